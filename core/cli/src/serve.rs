//! `ticketing serve`: a broker as a process.

use std::io::{IsTerminal, Write, stderr, stdout};
use std::time::Duration;

use ticketing_broker::Broker;
use ticketing_broker::config::{Config, LogFormat};
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, info, warn};
use tracing_subscriber::EnvFilter;

use crate::args::ServeArgs;
use crate::failure::Failure;
use crate::process::raise_file_limit;

/// Files that a broker holds besides its connections.
const OTHER_FILES: u64 = 64;

/// How long threads that still wait for a file are given at the end.
const LEFTOVERS: Duration = Duration::from_millis(100);

/// Runs a broker until a signal ends it or it fails.
pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    let config = args.configuration()?;
    start_logs(&config)?;
    if let Some(limit) = raise_file_limit()
        && limit < config.limits.connections as u64 + OTHER_FILES
    {
        warn!(
            "this process may open {limit} files: not enough for limits.connections = {}; raise \
             the hard limit (ulimit -Hn) or lower limits.connections",
            config.limits.connections
        );
    }
    let mut runtime = Builder::new_multi_thread();
    if let Some(threads) = args.worker_threads {
        runtime.worker_threads(threads.into());
    }
    let runtime = runtime
        .enable_all()
        .build()
        .map_err(|error| Failure::run("cannot start", error))?;
    let outcome = runtime.block_on(serve(args, config));
    // Everything has ended by now, except a disk that hangs: it must not hold up the exit (S10).
    runtime.shutdown_timeout(LEFTOVERS);
    outcome
}

async fn serve(args: &ServeArgs, config: Config) -> Result<(), Failure> {
    // From here on no signal ends the process by itself: whoever reads the first line below may
    // send one at once.
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hang_up = listen(SignalKind::hangup())?;

    let broker = Broker::start(config).await.map_err(|error| {
        let text = error.to_string();
        if error.is_configuration() {
            Failure::Usage(text)
        } else {
            Failure::Run(text)
        }
    })?;
    announce(&broker);
    loop {
        tokio::select! {
            ended = broker.wait() => {
                return ended.map_err(|error| Failure::Run(error.to_string()));
            }
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
            _ = hang_up.recv() => reload(args, &broker),
        }
    }
    broker
        .shutdown()
        .await
        .map_err(|error| Failure::Run(error.to_string()))
}

fn listen(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::run("cannot listen to signals", error))
}

/// The first line on standard output, for whoever started this process and waits for it.
fn announce(broker: &Broker) {
    let mut out = stdout().lock();
    let told = writeln!(out, "listening on {}", broker.local_addr()).and_then(|()| out.flush());
    if let Err(error) = told {
        // A broker that nobody watches is no worse a broker.
        warn!("cannot write to standard output: {error}");
    }
    info!("listening on {}", broker.local_addr());
}

/// S10: a mistake in the new configuration leaves the old one in force.
fn reload(args: &ServeArgs, broker: &Broker) {
    let reloaded = args.configuration().and_then(|config| {
        broker
            .reload(&config)
            .map_err(|error| Failure::Usage(error.to_string()))
    });
    match reloaded {
        Ok(()) => info!("reloaded client_tokens and the certificate"),
        Err(failure) => error!("not reloaded, the old configuration stays in force: {failure}"),
    }
}

/// Logs go to standard error, as the configuration says.
fn start_logs(config: &Config) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(&config.log).map_err(|error| {
        Failure::Usage(format!(
            "log = {:?}: {error}; allowed: off, error, warn, info, debug, trace, or a tracing \
             filter like ticketing_broker=debug",
            config.log
        ))
    })?;
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // Saying on standard error that standard error is gone would be a panic.
        .log_internal_errors(false)
        .with_writer(stderr);
    let logs = logs.with_ansi(stderr().is_terminal());
    match config.log_format {
        LogFormat::Human => logs.init(),
        LogFormat::Json => logs.json().init(),
    }
    Ok(())
}
