//! What the lock table alone costs: `cargo run --release -p ticketing-broker --example table_bench`.
//!
//! Nanoseconds per acquire and release, and (on Linux) bytes of resident memory per held grant.

use std::hint::black_box;
use std::time::{Duration, Instant};

use ticketing_broker::table::{ConnId, LockTable, Sink, TableLimits};
use ticketing_broker::token::TokenSource;
use ticketing_wire::{Key, KeySet, Keys, Reply, RequestId, Token};

const PAIRS: u32 = 2_000_000;
const HELD: u32 = 1_000_000;
const ID: RequestId = RequestId::MIN;
const CONN: ConnId = ConnId(1);

/// Keeps the last grant.
struct Last(Option<Token>);

impl Sink for Last {
    fn reply(&mut self, _: ConnId, reply: Reply) {
        black_box(reply);
    }

    fn granted(&mut self, _: ConnId, _: RequestId, token: Token, keys: Keys<'_>, _: u8) {
        black_box(keys);
        self.0 = Some(token);
    }

    fn ended(&mut self, token: Token) {
        black_box(token);
    }

    fn mark(&mut self, _: u64) {}
}

struct Bench {
    table: LockTable,
    sink: Last,
    start: Instant,
}

impl Bench {
    fn new() -> Self {
        let tokens = TokenSource::new(0, 0, Box::new(|| 0)).expect("0 is a good clock");
        let limits = TableLimits {
            grants: u32::MAX,
            ..TableLimits::default()
        };
        let table = LockTable::new(limits, tokens);
        Bench {
            table,
            sink: Last(None),
            start: Instant::now(),
        }
    }

    fn acquire(&mut self, wait: u8, keys: Keys<'_>) -> Option<Token> {
        let now = self.start.elapsed();
        self.table
            .acquire(now, CONN, ID, wait, 250, keys, &mut self.sink);
        self.sink.0.take()
    }

    fn release(&mut self, token: Token, keys: Keys<'_>) -> Option<Token> {
        let now = self.start.elapsed();
        self.table
            .release(now, CONN, ID, token, keys, &mut self.sink);
        self.sink.0.take()
    }
}

/// The `n`th key of 20 bytes.
fn key(n: u32) -> String {
    format!("order-{n:014}")
}

fn one(key: &str) -> Keys<'_> {
    Keys::One(Key::new(key).expect("a key"))
}

fn per_pair(name: &str, pairs: u32, run: impl FnOnce()) {
    let start = Instant::now();
    run();
    let ns = start.elapsed().as_nanos() / u128::from(pairs);
    println!("{name:<50} {ns:>7} ns per acquire + release");
}

/// `live` grants stand while pairs on other keys come and go.
fn distinct(live: u32) {
    let mut bench = Bench::new();
    for n in 0..live {
        bench.acquire(0, one(&key(1_000_000 + n)));
    }
    let keys: Vec<String> = (0..4096).map(key).collect();
    per_pair(&format!("distinct keys, {live} others held"), PAIRS, || {
        for key in keys.iter().cycle().take(PAIRS as usize) {
            let token = bench.acquire(0, one(key)).expect("the key is free");
            bench.release(token, one(key));
        }
    });
}

/// Each release serves the next of 64 waiters, who then stands in line again.
fn contended() {
    let mut bench = Bench::new();
    let key = key(0);
    let mut token = bench.acquire(0, one(&key)).expect("the key is free");
    for _ in 0..64 {
        bench.acquire(250, one(&key));
    }
    per_pair("one key, 64 in line", PAIRS, || {
        for _ in 0..PAIRS {
            bench.acquire(250, one(&key));
            token = bench.release(token, one(&key)).expect("someone waits");
        }
    });
}

fn sets() {
    let mut bench = Bench::new();
    let set = KeySet::new((0..16).map(key)).expect("a set");
    per_pair("sets of 16 keys", PAIRS / 16, || {
        for _ in 0..PAIRS / 16 {
            let token = bench.acquire(0, set.as_keys()).expect("the keys are free");
            bench.release(token, set.as_keys());
        }
    });
}

fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

fn memory() {
    let mut bench = Bench::new();
    // Kept small: only the table's own growth is to be seen.
    let mut tokens = Vec::with_capacity(HELD as usize);
    tokens.resize(HELD as usize, Token::MIN);
    let Some(before) = resident() else {
        return println!("no /proc: memory not measured");
    };
    for (n, token) in (0..).zip(&mut tokens) {
        *token = bench.acquire(0, one(&key(n))).expect("the key is free");
    }
    let held = resident().unwrap_or(0);
    println!(
        "{HELD} grants of 20-byte keys{:>21} bytes each",
        held.saturating_sub(before) / u64::from(HELD)
    );
    for (n, token) in (0..).zip(&tokens) {
        bench.release(*token, one(&key(n)));
    }
    let after = resident().unwrap_or(0);
    println!(
        "  all released{:>38} KiB above the base",
        after.saturating_sub(before) / 1024
    );
}

fn expiry() {
    let mut bench = Bench::new();
    for n in 0..HELD {
        bench.acquire(0, one(&key(n)));
    }
    let start = Instant::now();
    bench.table.tick(
        bench.start.elapsed() + Duration::from_secs(250),
        &mut bench.sink,
    );
    let ns = start.elapsed().as_nanos() / u128::from(HELD);
    println!("{HELD} leases that end in one tick{:>18} ns each", ns);
}

/// The longest single call while the table grows and empties.
fn pauses() {
    let mut bench = Bench::new();
    let mut longest = [Duration::ZERO; 2];
    let mut tokens = Vec::with_capacity(HELD as usize);
    for n in 0..HELD {
        let (key, start) = (key(n), Instant::now());
        tokens.extend(bench.acquire(0, one(&key)));
        longest[0] = longest[0].max(start.elapsed());
    }
    for (n, &token) in (0..).zip(&tokens) {
        let (key, start) = (key(n), Instant::now());
        bench.release(token, one(&key));
        longest[1] = longest[1].max(start.elapsed());
    }
    println!("longest acquire and release, 0 to {HELD} and back   {longest:?}");
}

fn main() {
    memory();
    distinct(0);
    distinct(10_000);
    distinct(HELD);
    contended();
    sets();
    expiry();
    pauses();
}
