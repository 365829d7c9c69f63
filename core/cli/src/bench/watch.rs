//! A key whose holders are watched.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// A key of this run. Nobody else knows its name, so that every holder passes through here.
pub(super) struct Watched {
    name: String,
    held: AtomicBool,
    last_token: AtomicU64,
    violations: AtomicU64,
}

impl Watched {
    pub(super) fn new(name: String) -> Self {
        Watched {
            name,
            held: AtomicBool::new(false),
            last_token: AtomicU64::new(0),
            violations: AtomicU64::new(0),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// A ticket with `token` was handed out.
    pub(super) fn enter(&self, token: u64) {
        let held = self.held.swap(true, SeqCst);
        let rose = self.last_token.swap(token, SeqCst) < token;
        if held || !rose {
            self.violations.fetch_add(1, SeqCst);
        }
    }

    /// The ticket is about to be released.
    pub(super) fn leave(&self) {
        self.held.store(false, SeqCst);
    }

    pub(super) fn violations(&self) -> u64 {
        self.violations.load(SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_after_the_other_with_rising_tokens_is_no_violation() {
        let key = Watched::new("k".to_owned());
        for token in [1, 2, 9] {
            key.enter(token);
            key.leave();
        }
        assert_eq!(key.violations(), 0);
    }

    #[test]
    fn two_holders_at_a_time_are_seen() {
        let key = Watched::new("k".to_owned());
        key.enter(1);
        key.enter(2);
        assert_eq!(key.violations(), 1);
    }

    #[test]
    fn a_token_that_does_not_rise_is_seen() {
        for second in [7, 6] {
            let key = Watched::new("k".to_owned());
            key.enter(7);
            key.leave();
            key.enter(second);
            assert_eq!(key.violations(), 1, "{second}");
        }
    }
}
