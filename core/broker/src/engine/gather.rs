//! When to commit: how long an open batch waits for more requests to share its sync.

use std::time::Duration;

/// Decides when the open batch is committed. Pure: no clock of its own.
///
/// Clients answer a delivery with their next requests a moment later. Committing as soon as a sync
/// is over would find the half of them that came during it, and from then on two half-full cohorts
/// would take turns. So after a delivery the next sync waits until about as many requests have come
/// as replies went out, but only for a part of the recent sync time (see [`limit`]). Once that time
/// is over the broker counts as idle, and whatever comes is committed at once.
#[derive(Debug, Default)]
pub(super) struct Gather {
    /// How many replies the last commit delivered.
    expected: usize,
    /// How many requests came since then.
    arrived: usize,
    /// When waiting for them is over.
    deadline: Duration,
    /// Moving average of what a sync takes.
    sync: Duration,
}

/// What the committer does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Commit now.
    Commit,
    /// Until this time, wait for [`Gather::is_complete`].
    Gather(Duration),
    /// Wait for anything at all.
    Idle,
}

impl Gather {
    pub(super) fn arrived(&mut self, requests: usize) {
        self.arrived += requests;
    }

    /// Whether about as many requests have come as the last commit answered: one in 32 may be
    /// slow, or gone. Those come too late for the next sync every time, so more would waste it.
    pub(super) fn is_complete(&self) -> bool {
        self.arrived + self.expected / 32 >= self.expected
    }

    /// A commit's replies have left; its sync, if it had one, took `sync`.
    pub(super) fn delivered(&mut self, now: Duration, replies: usize, sync: Option<Duration>) {
        if let Some(sync) = sync {
            self.sync = if self.sync.is_zero() {
                sync
            } else {
                (self.sync * 3 + sync) / 4
            };
        }
        self.expected = replies;
        self.arrived = 0;
        self.deadline = now + limit(self.sync);
    }

    /// The deadline is over.
    pub(super) fn give_up(&mut self) {
        self.deadline = Duration::ZERO;
    }

    /// What to do at `now`, with or without something in the open batch.
    pub(super) fn next(&self, now: Duration, open: bool) -> Next {
        match (open, now < self.deadline && !self.is_complete()) {
            (_, true) => Next::Gather(self.deadline),
            (true, false) => Next::Commit,
            (false, false) => Next::Idle,
        }
    }
}

/// How long to wait at most after a sync that took `sync`: a quarter of it. On a disk so fast that
/// no client is back by then, up to as long as the sync itself, which two cohorts would lose too.
fn limit(sync: Duration) -> Duration {
    /// What clients take to come back, with some room.
    const TURNAROUND: Duration = Duration::from_micros(250);
    (sync / 4).max(sync.min(TURNAROUND))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    #[test]
    fn an_idle_broker_commits_at_once() {
        let mut gather = Gather::default();
        assert_eq!(gather.next(us(0), false), Next::Idle);
        assert_eq!(gather.next(us(0), true), Next::Commit);
        gather.delivered(us(2000), 64, Some(us(2000)));
        assert_eq!(gather.next(us(2499), true), Next::Gather(us(2500)));
        assert_eq!(
            gather.next(us(2500), true),
            Next::Commit,
            "a quarter of the sync is over"
        );
        assert_eq!(gather.next(us(2500), false), Next::Idle);
    }

    #[test]
    fn a_fast_disk_is_given_the_time_that_clients_need() {
        for (sync, most) in [
            (0, 0),
            (100, 100),
            (250, 250),
            (900, 250),
            (1000, 250),
            (4000, 1000),
        ] {
            assert_eq!(limit(us(sync)), us(most), "{sync}");
        }
    }

    #[test]
    fn a_lone_client_never_waits() {
        let mut gather = Gather::default();
        gather.delivered(us(2000), 1, Some(us(2000)));
        gather.arrived(1);
        assert_eq!(gather.next(us(2001), true), Next::Commit);
    }

    #[test]
    fn two_cohorts_become_one() {
        let mut gather = Gather::default();
        // 32 of 64 clients were in the commit, the others came while it was under way.
        gather.arrived(32);
        gather.delivered(us(2000), 32, Some(us(2000)));
        assert!(matches!(gather.next(us(2000), true), Next::Gather(_)));
        gather.arrived(30);
        assert!(matches!(gather.next(us(2100), true), Next::Gather(_)));
        gather.arrived(1);
        assert_eq!(
            gather.next(us(2100), true),
            Next::Commit,
            "31 of the 32 are back"
        );
    }

    #[test]
    fn a_batch_without_a_sync_leaves_the_sync_time_alone() {
        let mut gather = Gather::default();
        gather.delivered(us(0), 1, Some(us(4000)));
        gather.delivered(us(100), 1, None);
        assert_eq!(gather.next(us(100), false), Next::Gather(us(1100)));
    }
}
