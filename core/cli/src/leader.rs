//! `ticketing leader`: a command that runs only while this process leads.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use ticketing_client::{Candidate, TicketBroker};

use crate::client_options::ClientOptions;
use crate::failure::Failure;
use crate::run::child::{Environment, Supervised};
use crate::run::signals::Signals;
use crate::run::{End, code, not_granted, release, seconds, supervise};

#[derive(Debug, Args)]
pub(crate) struct LeaderArgs {
    /// What is led: of all that stand for a name, one leads at a time
    #[arg(long, value_name = "NAME")]
    name: String,
    /// Seconds of a term, 1-250: so long at most nobody leads after a leader has died
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    lease: Duration,
    /// Seconds before the end of the last term at which the command is told to end (TERM); killed
    /// at half of them [default: a fifth of the lease]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    margin: Option<Duration>,
    #[command(flatten)]
    client: ClientOptions,
    /// The command and its arguments
    #[arg(value_name = "CMD", required = true, last = true)]
    command: Vec<OsString>,
}

/// Stands until it leads, runs the command, and resigns; its exit code is this program's.
pub(crate) fn run(args: &LeaderArgs) -> Result<(), Failure> {
    // On this thread alone, which lives as long as the process: the command ends with it.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::run("cannot start", error))?;
    let code = runtime.block_on(async {
        let broker = args.client.connect()?;
        let outcome = lead(args, &broker).await;
        broker.close().await;
        outcome
    })?;
    match code {
        0 => Ok(()),
        code => Err(Failure::Code(code)),
    }
}

async fn lead(args: &LeaderArgs, broker: &TicketBroker) -> Result<u8, Failure> {
    let mut signals = Signals::listen()?;
    let margin = args.margin.unwrap_or(args.lease / 5);
    let candidate = Candidate::new(broker, &args.name)
        .lease(args.lease)
        .margin(margin);
    let leadership = tokio::select! {
        elected = candidate.campaign() => elected.map_err(|error| match not_granted(&error) {
            Failure::Exit(crate::run::USAGE, text) => Failure::Usage(text),
            failure => failure,
        })?,
        number = signals.asked_to_end() => return Err(Failure::Signal(number)),
    };
    let environment = Environment {
        keys: leadership.name().to_owned(),
        // Later terms have higher ones, but nobody else gets one before this leadership is lost.
        token: leadership.token(),
    };
    let command = Supervised::start(&args.command, &environment)?;
    let end = supervise(command, margin, || leadership.remaining(), &mut signals).await?;
    release(leadership.resign().await);
    match end {
        End::Itself(code) => Ok(code),
        End::RanOut => Err(Failure::Exit(
            code::LEASE,
            "the leadership was lost, and the command was ended".to_owned(),
        )),
    }
}
