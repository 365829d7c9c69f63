//! One term under a ticket, as a worker tells it to the demo: a line of text.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// From the moment a worker held its ticket until just before it released it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Term {
    /// The ticket's token.
    pub(crate) token: u64,
    /// When the ticket was in hand, on the clock that all processes of the machine share.
    pub(crate) entered: Duration,
    /// When the work was done and the release not yet called.
    pub(crate) left: Duration,
    /// The accounts whose keys the ticket is for.
    pub(crate) accounts: [u32; 2],
}

/// The present on the clock of [`Term`].
pub(crate) fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::try_from(time).expect("this clock starts at boot")
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b] = self.accounts;
        write!(
            f,
            "term {} {} {} {a} {b}",
            self.token,
            self.entered.as_nanos(),
            self.left.as_nanos()
        )
    }
}

impl FromStr for Term {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let parse = || {
            let mut words = line
                .strip_prefix("term ")?
                .split(' ')
                .map(str::parse::<u64>);
            let mut next = || words.next()?.ok();
            let term = Term {
                token: next()?,
                entered: Duration::from_nanos(next()?),
                left: Duration::from_nanos(next()?),
                accounts: [next()?.try_into().ok()?, next()?.try_into().ok()?],
            };
            words.next().is_none().then_some(term)
        };
        parse().ok_or_else(|| format!("not a term: {line:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_survives_its_line() {
        let term = Term {
            token: u64::MAX >> 1,
            entered: Duration::new(3, 5),
            left: Duration::new(4, 0),
            accounts: [7, 0],
        };
        assert_eq!(term.to_string().parse(), Ok(term));
        for bad in [
            "",
            "term",
            "term 1 2 3 4",
            "term 1 2 3 4 5 6",
            "term 1 2 3 4 x",
            "x 1 2 3 4 5",
        ] {
            assert!(bad.parse::<Term>().is_err(), "{bad}");
        }
        assert!(now() <= now());
    }
}
