//! `ticketing demo`: the product's main job in one command, broker included.

pub(crate) mod bank;
mod child;
pub(crate) mod folder;
pub(crate) mod late;
mod stage;
mod term;
mod verdict;
pub(crate) mod worker;

use std::io::{Write, stdout};

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::DemoArgs;
use crate::failure::Failure;
use bank::Bank;
use folder::Folder;
use stage::Stage;
use verdict::Check;

/// The runtime of a worker: one thread for the client's connections, beside the main one.
fn runtime() -> Result<Runtime, Failure> {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| Failure::run("cannot start", error))
}

/// Runs the demo; success only if every check held.
pub(crate) fn run(args: &DemoArgs) -> Result<(), Failure> {
    // One thread: children end with the thread that started them (`--die-with-parent`).
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::run("cannot start", error))?;
    runtime.block_on(async {
        // Whichever ends first, dropping the other kills the children, then removes the files.
        tokio::select! {
            outcome = demo(args) => outcome,
            failure = interrupted() => Err(failure),
        }
    })
}

/// Ends with the signal that asks this program to end.
async fn interrupted() -> Failure {
    let listen = |kind| signal(kind).expect("signals can be listened to");
    let mut interrupt = listen(SignalKind::interrupt());
    let mut terminate = listen(SignalKind::terminate());
    let mut hang_up = listen(SignalKind::hangup());
    let kind = tokio::select! {
        _ = interrupt.recv() => SignalKind::interrupt(),
        _ = terminate.recv() => SignalKind::terminate(),
        _ = hang_up.recv() => SignalKind::hangup(),
    };
    Failure::Signal(u8::try_from(kind.as_raw_value()).unwrap_or(0))
}

async fn demo(args: &DemoArgs) -> Result<(), Failure> {
    // Made first, so dropped last: after the processes that use it.
    let folder = Folder::new(args.keep.as_deref())?;
    let mut bank =
        Bank::create(&folder.path.join("accounts.db"), args.accounts).map_err(stage::bank_error)?;
    let stage = Stage::set(&folder.path, args.accounts).await?;

    let mut checks = verdict::judge(&stage.transfers(args, &mut bank).await?);
    // The unfenced write goes to a copy, the fenced one to the accounts themselves.
    let copy = folder.path.join("accounts-unfenced.db");
    let mut copy = bank.copy_to(&copy).map_err(stage::bank_error)?;
    for (bank, unfenced) in [(&mut copy, true), (&mut bank, false)] {
        checks.push(verdict::judge_late(
            &stage.late_write(bank, unfenced).await?,
        ));
    }
    show(&checks).map_err(|error| Failure::run("cannot write the table", error))?;

    let failed: Vec<_> = checks
        .iter()
        .filter(|check| !check.holds)
        .map(|check| check.name)
        .collect();
    if failed.is_empty() {
        Ok(())
    } else {
        Err(Failure::run("these did not hold", failed.join(", ")))
    }
}

/// Writes the table of what was found.
fn show(checks: &[Check]) -> std::io::Result<()> {
    let mut out = stdout().lock();
    for Check { name, found, holds } in checks {
        writeln!(
            out,
            "{:6}  {name:20}  {found}",
            if *holds { "ok" } else { "FAILED" }
        )?;
    }
    out.flush()
}
