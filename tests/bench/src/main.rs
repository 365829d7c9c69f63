//! The program behind `scripts/bench`.

#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use ticketing_bench::null;
use ticketing_bench::table::{self, Part, Plan, System};
use tokio::net::TcpListener;

/// Measures the broker beside other lock services.
#[derive(Parser)]
#[command(name = "ticketing-bench")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measures and prints Markdown tables.
    Compare {
        /// Whom to measure beside the broker.
        #[arg(
            long,
            value_delimiter = ',',
            default_value = "null,redis,memcached,postgres"
        )]
        against: Vec<System>,
        /// What to measure.
        #[arg(long, value_delimiter = ',', default_value = "memory,durable,size")]
        parts: Vec<Part>,
        /// Leaves the broker out.
        #[arg(long)]
        without_ticketing: bool,
        /// The program `ticketing`; by default the one beside this program.
        #[arg(long, value_name = "PROGRAM")]
        ticketing: Option<PathBuf>,
        /// How often each figure is taken; the median counts.
        #[arg(long, value_name = "N", default_value_t = 3)]
        rounds: usize,
        /// For how long each time, without warming up.
        #[arg(long, value_name = "N", default_value_t = 2.0)]
        seconds: f64,
        /// Only loads whose name contains this text: `library`, `64 × 1`, `32 keys`.
        #[arg(long, value_name = "TEXT", default_value = "")]
        only: String,
    },
    /// Answers every request at once and keeps nothing.
    Null {
        /// Where to listen.
        #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
        listen: SocketAddr,
    },
}

fn main() -> Result<()> {
    match Args::parse().command {
        Command::Null { listen } => tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?
            .block_on(async {
                let listener = TcpListener::bind(listen).await?;
                println!("listening on {}", listener.local_addr()?);
                null::serve(listener).await
            }),
        Command::Compare {
            against,
            parts,
            without_ticketing,
            ticketing,
            rounds,
            seconds,
            only,
        } => {
            let mut systems = vec![System::Ticketing];
            systems.extend(
                against
                    .into_iter()
                    .filter(|system| *system != System::Ticketing),
            );
            if without_ticketing {
                systems.remove(0);
            }
            let beside = std::env::current_exe()?.with_file_name("ticketing");
            let plan = Plan {
                systems: &systems,
                ticketing: &ticketing.unwrap_or(beside),
                rounds,
                time: Duration::try_from_secs_f64(seconds).context("--seconds")?,
                only: &only,
            };
            parts
                .into_iter()
                .try_for_each(|part| table::run(part, &plan))
        }
    }
}
