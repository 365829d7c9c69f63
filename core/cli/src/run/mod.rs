//! `ticketing run`: a command that runs only while a ticket is held.

pub(crate) mod child;
pub(crate) mod signals;
mod supervisor;

use std::ffi::OsString;
use std::io::Write;
use std::time::Duration;

use clap::Args;
use rustix::process::{Signal, getpid, kill_process};
use ticketing_client::{ReleaseOutcome, TicketBroker, TicketError};

use crate::client_options::ClientOptions;
use crate::failure::Failure;
use child::{Environment, Supervised};
use signals::{Event, Signals};
use supervisor::{Action, Supervisor};

/// The exit codes, as sysexits.h and env have them.
pub(crate) mod code {
    pub(crate) const NOT_CONNECTED: u8 = 69;
    pub(crate) const OTHER: u8 = 70;
    pub(crate) const INDETERMINATE: u8 = 74;
    pub(crate) const NOT_GRANTED: u8 = 75;
    pub(crate) const LEASE: u8 = 76;
    pub(crate) const AUTH: u8 = 77;
}

/// The command line is wrong.
pub(crate) const USAGE: u8 = 64;

/// The clock of a sleeping machine stands for timers, not for leases: so it is looked at so often.
const LOOK: Duration = Duration::from_millis(250);

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Key to hold; given several times, all of them or none
    #[arg(long = "key", value_name = "KEY", required = true)]
    keys: Vec<String>,
    /// Seconds to stand in line at most, 0-255; 0 is one attempt
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    wait: Duration,
    /// Seconds that the keys are held at most, 1-250, from the moment of asking
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    lease: Duration,
    /// Seconds that the command must have before it is told to end
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = seconds)]
    min_work: Duration,
    /// Seconds before the end of the lease at which the command is told to end (TERM); killed at
    /// half of them [default: a tenth of the lease, 0.5 to 5]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    margin: Option<Duration>,
    /// Do not release when the command ends: the keys stay taken until the lease is over
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    client: ClientOptions,
    /// The command and its arguments
    #[arg(value_name = "CMD", required = true, last = true)]
    command: Vec<OsString>,
}

/// Runs the command under the ticket; its exit code is this program's.
pub(crate) fn run(args: &RunArgs) -> Result<(), Failure> {
    // On this thread alone, which lives as long as the process: the command ends with it.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Exit(code::OTHER, format!("cannot start: {error}")))?;
    let outcome = runtime.block_on(async {
        let broker = args.client.connect()?;
        let outcome = under_ticket(args, &broker).await;
        broker.close().await;
        outcome
    });
    match outcome {
        Ok(0) => Ok(()),
        Ok(code) => Err(Failure::Code(code)),
        // What other commands say with 1 and 2 could be the command's own words here.
        Err(Failure::Usage(text)) => Err(Failure::Exit(USAGE, text)),
        Err(Failure::Run(text)) => Err(Failure::Exit(code::OTHER, text)),
        Err(other) => Err(other),
    }
}

async fn under_ticket(args: &RunArgs, broker: &TicketBroker) -> Result<u8, Failure> {
    let mut signals = Signals::listen()?;
    let margin = args.margin.unwrap_or_else(|| default_margin(args.lease));
    let needed = args.min_work.saturating_add(margin);
    let acquire = broker.acquire_set(&args.keys, args.wait, args.lease, needed);
    let ticket = tokio::select! {
        ticket = acquire => ticket.map_err(|error| not_granted(&error))?,
        // Dropping the acquire withdraws it.
        number = signals.asked_to_end() => return Err(Failure::Signal(number)),
    };
    let environment = Environment {
        keys: ticket.keys().collect::<Vec<_>>().join(" "),
        token: ticket.token(),
    };
    let command = Supervised::start(&args.command, &environment)?;
    let end = supervise(command, margin, || ticket.remaining(), &mut signals).await?;
    if args.keep {
        ticket.keep();
    } else {
        release(ticket.release().await);
    }
    match end {
        End::Itself(code) => Ok(code),
        End::RanOut => Err(Failure::Exit(
            code::LEASE,
            "the lease ran out, and the command was ended; ask for a longer one".to_owned(),
        )),
    }
}

/// How a command has ended.
pub(crate) enum End {
    /// By itself, or by another's signal, with this exit code.
    Itself(u8),
    /// For want of lease.
    RanOut,
}

/// Watches over `command` until it has ended. It may run as long as more than `margin` is
/// `remaining`.
pub(crate) async fn supervise(
    command: Supervised,
    margin: Duration,
    remaining: impl Fn() -> Duration,
    signals: &mut Signals,
) -> Result<End, Failure> {
    let mut supervisor = Supervisor::new(margin);
    watch(&mut supervisor, &command, remaining, signals).await;
    let ran_out = supervisor.ran_out();
    if ran_out {
        // What the command has left behind in its group goes too.
        command.send(Signal::KILL);
    }
    let code = command.wait()?;
    Ok(if ran_out {
        End::RanOut
    } else {
        End::Itself(code)
    })
}

async fn watch(
    supervisor: &mut Supervisor,
    command: &Supervised,
    remaining: impl Fn() -> Duration,
    signals: &mut Signals,
) {
    loop {
        let idle = supervisor.idle_for(remaining()).min(LOOK);
        let event = tokio::select! {
            biased;
            event = signals.next() => event,
            () = tokio::time::sleep(idle) => Event::Nothing,
        };
        if command.has_ended() {
            return;
        }
        let remaining = remaining();
        let mut actions = Vec::new();
        // First: it may have stopped before this process goes on.
        if command.terminal_stopped_it() {
            actions.extend(supervisor.stop());
        }
        match event {
            Event::Nothing | Event::Child => {}
            Event::Stop => actions.extend(supervisor.stop()),
            Event::Continue => actions.extend(supervisor.resume(remaining)),
            Event::Forward(signal) => actions.push(Action::Send(signal)),
        }
        actions.extend(supervisor.tick(remaining));
        for action in actions {
            match action {
                Action::Send(signal) => command.send(signal),
                Action::StopSelf => {
                    let _ = kill_process(getpid(), Signal::STOP);
                }
            }
        }
    }
}

/// The command's exit code stands, whatever becomes of the release.
pub(crate) fn release(outcome: Result<ReleaseOutcome, TicketError>) {
    let warning = match outcome {
        Ok(ReleaseOutcome::Released) => return,
        Ok(ReleaseOutcome::NotCurrent) => {
            "the lease had ended before the release; only a fenced write was safe".to_owned()
        }
        Err(error) => format!(
            "the release was not confirmed ({error}); the keys are free when the lease ends"
        ),
    };
    // Nobody may be there to read it.
    let _ = writeln!(std::io::stderr(), "warning: {warning}");
}

/// The exit code of a ticket that was not granted, and why.
pub(crate) fn not_granted(error: &TicketError) -> Failure {
    let code = match error {
        TicketError::Timeout { .. }
        | TicketError::Busy { .. }
        | TicketError::ClientCapacity { .. } => code::NOT_GRANTED,
        TicketError::Indeterminate { .. } => code::INDETERMINATE,
        TicketError::InsufficientLease { .. } => code::LEASE,
        TicketError::NotConnected { .. } | TicketError::Closed { .. } => code::NOT_CONNECTED,
        TicketError::Auth { .. } => code::AUTH,
        TicketError::InvalidInput { .. } | TicketError::UnsupportedDuration { .. } => USAGE,
        _ => code::OTHER,
    };
    Failure::Exit(code, error.to_string())
}

/// A tenth of the lease, 0.5 s to 5 s.
fn default_margin(lease: Duration) -> Duration {
    (lease / 10).clamp(Duration::from_millis(500), Duration::from_secs(5))
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let allowed = || "allowed: seconds, like 5 or 0.5".to_owned();
    let number: f64 = text.parse().map_err(|_| allowed())?;
    Duration::try_from_secs_f64(number).map_err(|_| allowed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_may_have_a_fraction_but_no_sign() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(seconds("30"), Ok(Duration::from_secs(30)));
        for bad in ["-1", "NaN", "inf", "5s", "", "1e99"] {
            assert!(seconds(bad).unwrap_err().contains("0.5"), "{bad}");
        }
    }

    #[test]
    fn the_margin_follows_the_lease() {
        for (lease, margin) in [(1, 500), (20, 2000), (250, 5000)] {
            let margin = Duration::from_millis(margin);
            assert_eq!(default_margin(Duration::from_secs(lease)), margin);
        }
    }

    #[test]
    fn every_outcome_has_its_exit_code() {
        let detail = String::new;
        for (error, code) in [
            (TicketError::Timeout { detail: detail() }, 75),
            (TicketError::Busy { detail: detail() }, 75),
            (TicketError::ClientCapacity { detail: detail() }, 75),
            (TicketError::Indeterminate { detail: detail() }, 74),
            (TicketError::NotConnected { detail: detail() }, 69),
            (TicketError::Closed { detail: detail() }, 69),
            (TicketError::Auth { detail: detail() }, 77),
            (TicketError::Internal { detail: detail() }, 70),
            (TicketError::Tls { detail: detail() }, 70),
        ] {
            match not_granted(&error) {
                Failure::Exit(found, _) => assert_eq!(found, code, "{error:?}"),
                other => panic!("{other:?}"),
            }
        }
    }
}
