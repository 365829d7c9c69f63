//! What happens to a command when: decisions alone, without clock, signals or processes.

use std::time::Duration;

use rustix::process::Signal;

/// What the driver does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Send this to the command's process group.
    Send(Signal),
    /// Stop this process, as the command is stopped.
    StopSelf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// TERM has gone out because the lease ends.
    Terminating,
    /// KILL has gone out because the lease ends.
    Killed,
}

/// Watches over a command that may run only as long as a lease.
///
/// Every time is what remains of the conservative validity (C16), read anew for each call: a
/// machine that slept, or a process that was stopped, cannot make it stale.
#[derive(Debug)]
pub(crate) struct Supervisor {
    /// TERM goes out when only this much remains, KILL at the half of it.
    margin: Duration,
    phase: Phase,
    stopped: bool,
}

impl Supervisor {
    pub(crate) fn new(margin: Duration) -> Self {
        Supervisor {
            margin,
            phase: Phase::Running,
            stopped: false,
        }
    }

    /// Whether the command was ended, or is being ended, for want of lease.
    pub(crate) fn ran_out(&self) -> bool {
        self.phase != Phase::Running
    }

    /// How long nothing has to be done, if nothing happens.
    pub(crate) fn idle_for(&self, remaining: Duration) -> Duration {
        match self.phase {
            Phase::Running => remaining.saturating_sub(self.margin),
            Phase::Terminating => remaining.saturating_sub(self.margin / 2),
            Phase::Killed => Duration::MAX,
        }
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, remaining: Duration) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.phase != Phase::Killed && remaining <= self.margin / 2 {
            self.phase = Phase::Killed;
            // It reaches a stopped process too.
            actions.push(Action::Send(Signal::KILL));
        } else if self.phase == Phase::Running && remaining <= self.margin {
            self.phase = Phase::Terminating;
            self.stopped = false;
            // Only a running process can end in its own way, and anybody may have stopped it.
            actions.extend([Signal::TERM, Signal::CONT].map(Action::Send));
        }
        actions
    }

    /// This process was asked to stop (a terminal's Ctrl-Z, say), or a terminal stopped the command.
    /// Nobody watches the lease while this process stands still, so all of the group does too.
    pub(crate) fn stop(&mut self) -> Vec<Action> {
        if self.phase != Phase::Running || self.stopped {
            return Vec::new();
        }
        self.stopped = true;
        vec![Action::Send(Signal::STOP), Action::StopSelf]
    }

    /// This process goes on after a stop. The command goes on only if the lease allows it.
    pub(crate) fn resume(&mut self, remaining: Duration) -> Vec<Action> {
        let mut actions = self.tick(remaining);
        if self.phase == Phase::Running {
            self.stopped = false;
            actions.push(Action::Send(Signal::CONT));
        }
        actions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn supervisor() -> Supervisor {
        Supervisor::new(ms(1000))
    }

    const TERM: Action = Action::Send(Signal::TERM);
    const KILL: Action = Action::Send(Signal::KILL);
    const CONT: Action = Action::Send(Signal::CONT);
    const STOP: Action = Action::Send(Signal::STOP);

    #[test]
    fn term_at_the_margin_and_kill_at_half_of_it() {
        let mut s = supervisor();
        assert_eq!(s.idle_for(ms(5000)), ms(4000));
        assert_eq!(s.tick(ms(1001)), []);
        assert!(!s.ran_out());
        assert_eq!(s.tick(ms(1000)), [TERM, CONT]);
        assert!(s.ran_out());
        assert_eq!(s.idle_for(ms(900)), ms(400));
        assert_eq!(s.tick(ms(501)), []);
        assert_eq!(s.tick(ms(500)), [KILL]);
        assert_eq!(s.tick(ms(0)), [], "once");
        assert_eq!(s.idle_for(ms(0)), Duration::MAX);
    }

    #[test]
    fn whoever_comes_late_kills_at_once() {
        for remaining in [0, 1, 500] {
            assert_eq!(supervisor().tick(ms(remaining)), [KILL]);
        }
    }

    #[test]
    fn a_stop_stops_the_command_first() {
        let mut s = supervisor();
        assert_eq!(s.stop(), [STOP, Action::StopSelf]);
        assert_eq!(s.stop(), [], "the command's stop is the same one");
        assert_eq!(s.resume(ms(5000)), [CONT]);
        assert_eq!(s.stop(), [STOP, Action::StopSelf]);
    }

    #[test]
    fn continued_past_the_lease_it_kills_before_the_command_runs_on() {
        for remaining in [0, 499] {
            let mut s = supervisor();
            s.stop();
            assert_eq!(s.resume(ms(remaining)), [KILL]);
        }
    }

    #[test]
    fn continued_within_the_margin_it_tells_the_command_to_end() {
        let mut s = supervisor();
        s.stop();
        assert_eq!(s.resume(ms(900)), [TERM, CONT]);
        assert_eq!(s.stop(), [], "no stopping any more");
    }

    #[test]
    fn a_continue_without_a_stop_passes_on() {
        // This process itself was stopped in the way that cannot be caught.
        assert_eq!(supervisor().resume(ms(5000)), [CONT]);
        assert_eq!(supervisor().resume(ms(0)), [KILL]);
    }
}
