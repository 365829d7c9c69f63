//! The plan of a run, and its result as Markdown.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::keys::{KEY_LEN, Space};
use crate::lean::{self, Load};
use crate::servers::Server;
use crate::{Stop, memory, protocol, users};

/// A system that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum System {
    /// The broker.
    Ticketing,
    /// The null responder.
    Null,
    /// Redis.
    Redis,
    /// Memcached.
    Memcached,
    /// PostgreSQL's advisory locks.
    Postgres,
}

impl System {
    fn name(self) -> &'static str {
        match self {
            System::Ticketing => "ticketing",
            System::Null => "null",
            System::Redis => "Redis",
            System::Memcached => "memcached",
            System::Postgres => "PostgreSQL",
        }
    }
}

/// One part of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Nothing is kept on disk.
    Memory,
    /// What is granted is on disk before it is answered.
    Durable,
    /// What the broker's process weighs.
    Size,
}

/// How a run is made.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    /// Whom to measure.
    pub systems: &'a [System],
    /// The program `ticketing`.
    pub ticketing: &'a Path,
    /// How often each figure is taken; the median counts.
    pub rounds: usize,
    /// For how long each time.
    pub time: Duration,
    /// Only loads whose name contains this.
    pub only: &'a str,
}

/// What puts load on a server.
#[derive(Debug, Clone, Copy)]
enum Driver {
    /// The lean generator: connections, and locks in flight on each.
    Lean(usize, usize),
    /// A client library: tasks.
    Library(u16),
}

type Row = (Driver, Space);

const CONTENDED: Space = Space::Contended(32);

const MEMORY: [Row; 8] = [
    (Driver::Lean(1, 64), Space::Distinct),
    (Driver::Lean(2, 32), Space::Distinct),
    (Driver::Lean(64, 1), Space::Distinct),
    (Driver::Lean(1, 64), CONTENDED),
    (Driver::Lean(2, 32), CONTENDED),
    (Driver::Lean(64, 1), CONTENDED),
    (Driver::Library(64), Space::Distinct),
    (Driver::Library(64), CONTENDED),
];

const DURABLE: [Row; 6] = [
    (Driver::Lean(2, 32), Space::Distinct),
    (Driver::Lean(64, 1), Space::Distinct),
    (Driver::Lean(64, 8), Space::Distinct),
    (Driver::Library(64), Space::Distinct),
    (Driver::Library(64), CONTENDED),
    (Driver::Library(512), Space::Distinct),
];

/// Runs one part and prints its table.
///
/// # Errors
/// A server is missing or fails.
pub fn run(part: Part, plan: &Plan<'_>) -> Result<()> {
    match part {
        Part::Memory => {
            println!("\nNothing on disk, acquire+release pairs/s:\n");
            compare(plan, &MEMORY, false)
        }
        Part::Durable => {
            println!(
                "\nOn disk before the answer (Redis with `appendfsync always`; PostgreSQL's \
                 advisory locks never touch the disk), acquire+release pairs/s:\n"
            );
            compare(plan, &DURABLE, true)
        }
        Part::Size => size(plan),
    }
}

/// Measures each row on each system in turn, again and again, and prints the medians.
fn compare(plan: &Plan<'_>, rows: &[Row], durable: bool) -> Result<()> {
    let mut servers = Vec::new();
    for &system in plan.systems {
        let server = match system {
            System::Ticketing => Server::ticketing(plan.ticketing, durable)?,
            System::Redis => Server::redis(durable)?,
            System::Postgres => Server::postgres()?,
            // Neither can keep anything.
            System::Null | System::Memcached if durable => continue,
            System::Null => Server::null()?,
            System::Memcached => Server::memcached()?,
        };
        servers.push((system, server));
    }

    let rows: Vec<Row> = rows
        .iter()
        .copied()
        .filter(|row| name(row).contains(plan.only))
        .collect();
    let mut rates = vec![vec![Vec::new(); servers.len()]; rows.len()];
    for round in 1..=plan.rounds {
        for (row, rates) in rows.iter().zip(&mut rates) {
            eprintln!("round {round} of {}: {}", plan.rounds, name(row));
            for ((system, server), rates) in servers.iter().zip(rates) {
                let rate = measure(row, *system, server.addr, Stop::After(plan.time));
                let rate = rate.with_context(|| format!("{} on {}", name(row), system.name()))?;
                rates.extend(rate);
            }
        }
    }

    let systems: Vec<System> = servers.iter().map(|(system, _)| *system).collect();
    print(&systems, &rows, &rates);
    Ok(())
}

/// Prints the medians, and what the broker does in multiples of the others.
fn print(systems: &[System], rows: &[Row], rates: &[Vec<Vec<f64>>]) {
    let own = systems
        .iter()
        .position(|system| *system == System::Ticketing);
    let rivals: Vec<usize> = (0..systems.len())
        .filter(|&column| own.is_some_and(|own| own != column))
        .collect();
    let mut titles: Vec<String> = systems.iter().map(|system| system.name().into()).collect();
    titles.extend(
        rivals
            .iter()
            .map(|&rival| format!("÷ {}", systems[rival].name())),
    );
    println!("| load | {} |", titles.join(" | "));
    println!("| --- |{}", " ---: |".repeat(titles.len()));
    let none = || "–".to_owned();
    for (row, rates) in rows.iter().zip(rates) {
        let medians: Vec<Option<f64>> = rates.iter().map(|rates| median(rates)).collect();
        let ratio = |rival: usize| Some(format!("{:.2}", medians[own?]? / medians[rival]?));
        let cells = medians.iter().map(|rate| rate.map_or_else(none, thousands));
        let ratios = rivals
            .iter()
            .map(|&rival| ratio(rival).unwrap_or_else(none));
        println!(
            "| {} | {} |",
            name(row),
            cells.chain(ratios).collect::<Vec<_>>().join(" | ")
        );
    }
}

/// Pairs per second, or `None` where this driver has no client for the system.
fn measure(row: &Row, system: System, addr: SocketAddr, stop: Stop) -> Result<Option<f64>> {
    let (driver, keys) = *row;
    if system == System::Null && keys != Space::Distinct {
        // It lets everybody in at once: no lock could come near it, for some of its keys would be idle
        // while the random lines at others are served one by one.
        return Ok(None);
    }
    match driver {
        Driver::Lean(connections, in_flight) => {
            let load = Load {
                connections,
                in_flight,
                keys,
                stop,
            };
            match system {
                System::Ticketing | System::Null => lean::run::<protocol::Ticketing>(addr, &load),
                System::Redis => lean::run::<protocol::Redis>(addr, &load),
                System::Memcached => lean::run::<protocol::Memcached>(addr, &load),
                System::Postgres => return Ok(None),
            }
        }
        Driver::Library(tasks) => match system {
            System::Ticketing | System::Null => {
                users::run::<users::Ticketing>(addr, tasks, keys, stop)
            }
            System::Redis => users::run::<users::Redis>(addr, tasks, keys, stop),
            System::Postgres => users::run::<users::Postgres>(addr, tasks, keys, stop),
            // The client libraries for memcached pipeline nothing: the lean 64 × 1 says the same.
            System::Memcached => return Ok(None),
        },
    }
    .map(Some)
}

fn name((driver, keys): &Row) -> String {
    let driver = match driver {
        Driver::Lean(connections, in_flight) => format!("lean {connections} × {in_flight}"),
        Driver::Library(tasks) => format!("library, {tasks} tasks"),
    };
    match keys {
        Space::Distinct => format!("{driver}, distinct keys"),
        Space::Contended(keys) => format!("{driver}, {keys} keys"),
    }
}

fn median(rates: &[f64]) -> Option<f64> {
    let mut rates = rates.to_vec();
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied()
}

/// `1234567.8` as `1,234,568`.
fn thousands(rate: f64) -> String {
    let digits = format!("{rate:.0}");
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Prints how the broker's process grows.
fn size(plan: &Plan<'_>) -> Result<()> {
    const GRANTS: u64 = 1_000_000;
    const CONNECTIONS: usize = 10_000;
    memory::raise_file_limit()?;
    println!("\nGrowth of the broker's process (resident):\n");
    println!("| what | bytes each |");
    println!("| --- | ---: |");
    let start = |durable| Server::ticketing(plan.ticketing, durable);
    let bytes = memory::per_connection(&start(false)?, CONNECTIONS)?;
    println!("| idle connection, {CONNECTIONS} of them | {bytes} |");
    for (durable, mode) in [(false, "memory"), (true, "durable")] {
        let bytes = memory::per_grant(&start(durable)?, GRANTS)?;
        println!("| held grant, {KEY_LEN}-byte key, {GRANTS} of them, {mode} | {bytes} |");
    }
    Ok(())
}
