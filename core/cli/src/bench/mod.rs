//! `ticketing bench`: what a running broker does under load, with exclusion checked at each step.

mod report;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use ticketing_client::{ReleaseOutcome, TicketBroker, TicketError};
use tokio::task::JoinSet;

use crate::client_options::ClientOptions;
use crate::failure::Failure;
use report::{Report, Times};
use watch::Watched;

/// How long the first connection may take.
const READY: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Acquire + release pairs in all
    #[arg(long, value_name = "COUNT", default_value_t = 40_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    ops: u32,
    /// Tasks that make them, each one at a time
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    tasks: u32,
    /// Keys that they contend for; of this run alone
    #[arg(long, value_name = "COUNT", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    keys: u32,
    /// Seconds that an acquire stands in line at most, 0-255
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    wait: u64,
    /// Seconds of each lease, 1-250
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    lease: u64,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    client: ClientOptions,
}

/// Runs the load and prints what came of it; success only if exclusion and token order held.
pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::run("cannot start", error))?;
    let report = runtime.block_on(load(args))?;
    let text = if args.json {
        report.json()
    } else {
        report.table()
    };
    write_out(&text).map_err(|error| Failure::run("cannot write the result", error))?;
    match report.violations {
        0 => Ok(()),
        n => Err(Failure::Run(format!(
            "{n} violations: two holders of a key at a time, or a token that did not rise; please report it"
        ))),
    }
}

fn write_out(text: &str) -> std::io::Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

/// What all tasks share.
struct Load {
    broker: TicketBroker,
    keys: Vec<Watched>,
    /// Pairs that nobody has begun.
    left: AtomicU32,
    wait: Duration,
    lease: Duration,
    bar: ProgressBar,
}

async fn load(args: &BenchArgs) -> Result<Report, Failure> {
    let broker = args.client.connect()?;
    if !broker.wait_ready(READY).await {
        let why = broker.stats().last_connection_error;
        let why = why.unwrap_or_else(|| "no answer".to_owned());
        return Err(Failure::Run(format!("not connected: {why}")));
    }
    let run: u64 = rand::random();
    let load = Arc::new(Load {
        broker,
        keys: (0..args.keys)
            .map(|n| Watched::new(format!("bench-{run:016x}-{n}")))
            .collect(),
        left: AtomicU32::new(args.ops),
        wait: Duration::from_secs(args.wait),
        lease: Duration::from_secs(args.lease),
        bar: progress(args.ops),
    });
    let begun = Instant::now();
    let mut tasks: JoinSet<_> = (0..args.tasks).map(|_| Arc::clone(&load).task()).collect();
    let mut times = Times::default();
    while let Some(ended) = tasks.join_next().await {
        times.add(ended.expect("a task does not panic")?);
    }
    let took = begun.elapsed();
    load.bar.finish_and_clear();
    load.broker.close().await;
    let violations = load.keys.iter().map(Watched::violations).sum();
    Ok(Report::new(args.tasks, args.keys, took, times, violations))
}

impl Load {
    /// Makes pairs until none is left.
    async fn task(self: Arc<Self>) -> Result<Times, Failure> {
        let mut times = Times::default();
        let take = |left: u32| left.checked_sub(1);
        while let Ok(n) = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
        {
            let key = &self.keys[n as usize % self.keys.len()];
            self.pair(key, &mut times).await?;
            self.bar.inc(1);
        }
        Ok(times)
    }

    async fn pair(&self, key: &Watched, times: &mut Times) -> Result<(), Failure> {
        let asked = Instant::now();
        let acquired = self
            .broker
            .acquire(key.name(), self.wait, self.lease, Duration::ZERO);
        let ticket = match acquired.await {
            Ok(ticket) => ticket,
            Err(error) => return tolerate(error, times),
        };
        times.acquire.push(asked.elapsed());
        key.enter(ticket.token());
        let asked = Instant::now();
        // Before the request, after which another may hold it.
        key.leave();
        match ticket.release().await {
            Ok(ReleaseOutcome::Released) => times.release.push(asked.elapsed()),
            Ok(ReleaseOutcome::NotCurrent) => times.count("NotCurrent"),
            Err(error) => return tolerate(error, times),
        }
        Ok(())
    }
}

/// Counts what load alone can bring about; anything else ends the run.
fn tolerate(error: TicketError, times: &mut Times) -> Result<(), Failure> {
    match error {
        TicketError::Timeout { .. }
        | TicketError::Busy { .. }
        | TicketError::ClientCapacity { .. }
        | TicketError::Indeterminate { .. }
        | TicketError::InsufficientLease { .. } => {
            times.count(error.kind());
            Ok(())
        }
        TicketError::InvalidInput { .. } | TicketError::UnsupportedDuration { .. } => {
            Err(Failure::Usage(error.to_string()))
        }
        other => Err(Failure::Run(format!("{}: {other}", other.kind()))),
    }
}

/// Hidden where standard error is no terminal.
fn progress(ops: u32) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {human_pos}/{human_len}")
        .expect("the template is right");
    ProgressBar::new(ops.into()).with_style(style)
}
