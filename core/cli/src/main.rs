//! The Ticketing program: `ticketing serve` is a broker, `ticketing demo` shows what it is for.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod client_options;
mod demo;
mod failure;
mod init;
mod leader;
mod manual;
mod process;
mod run;
mod serve;

use std::process::ExitCode;

use args::{Cli, Command, parse};
use clap::CommandFactory;

/// Gives memory back to the system within seconds of its last use, also where others still stand
/// above it: after a million keys the broker is as small as before.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let outcome = parse(std::env::args_os()).and_then(|cli| {
        if let Some(parent) = cli.die_with_parent {
            process::die_with(parent)?;
        }
        match cli.command {
            Command::Serve(args) => serve::run(&args),
            Command::Demo(args) => demo::run(&args),
            Command::Init(args) => init::run(&args),
            Command::Run(args) => run::run(&args),
            Command::Leader(args) => leader::run(&args),
            Command::Bench(args) => bench::run(&args),
            Command::Completions(args) => manual::completions(&args, &Cli::command()),
            Command::Man(args) => manual::man(&args, Cli::command()),
            Command::Exec(args) => Err(run::child::exec(&args.command)),
            Command::DemoWorker(args) => demo::worker::run(&args),
            Command::DemoLate(args) => demo::late::run(&args),
            Command::DemoCleaner(args) => demo::folder::clean(&args),
        }
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
