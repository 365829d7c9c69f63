//! The Ticketing program: `ticketing serve` is a broker, `ticketing demo` shows what it is for.

#![forbid(unsafe_code)]

mod args;
mod demo;
mod failure;
mod process;
mod serve;

use std::process::ExitCode;

use args::{Command, parse};

fn main() -> ExitCode {
    let outcome = parse(std::env::args_os()).and_then(|cli| {
        if let Some(parent) = cli.die_with_parent {
            process::die_with(parent)?;
        }
        match cli.command {
            Command::Serve(args) => serve::run(&args),
            Command::Demo(args) => demo::run(&args),
            Command::DemoWorker(args) => demo::worker::run(&args),
            Command::DemoLate(args) => demo::late::run(&args),
        }
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
