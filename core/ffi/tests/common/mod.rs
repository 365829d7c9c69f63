//! A real broker, and a consumer of a queue as a language's layer is one.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test program uses a part of it"
)]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use ticketing_broker::{Broker, config::Config};
use ticketing_ffi::{
    BrokerOptions, Completion, Outcome, TicketError, TlsMode, broker_open, queue_next, queue_open,
    submit_acquire,
};
use tokio::runtime::Runtime;

/// A bound on what must happen; no test passes or fails by how fast it does.
pub const SOON: Duration = Duration::from_secs(30);

pub fn until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + SOON;
    while !condition() {
        assert!(Instant::now() < end, "{what}: not within {SOON:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A broker in memory that is served on threads of its own.
pub struct Server {
    broker: Broker,
    _runtime: Runtime,
}

impl Server {
    pub fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("server")
            .enable_all()
            .build()
            .unwrap();
        Server {
            broker: runtime.block_on(Broker::start(Config::for_test())).unwrap(),
            _runtime: runtime,
        }
    }

    pub fn addr(&self) -> SocketAddr {
        self.broker.local_addr()
    }

    pub fn grants(&self) -> usize {
        self.broker.stats().grants
    }

    /// A broker object that talks to it.
    pub fn open(&self) -> i64 {
        broker_open(options(self.addr())).unwrap()
    }

    #[track_caller]
    pub fn holds_nothing_soon(&self) {
        self.holds_soon(0);
    }

    /// At most so many grants, and nobody waits.
    #[track_caller]
    pub fn holds_soon(&self, most: usize) {
        until("no more than that is held", || {
            let stats = self.broker.stats();
            stats.grants <= most && stats.waiters == 0
        });
    }
}

pub fn options(addr: SocketAddr) -> BrokerOptions {
    BrokerOptions {
        addrs: vec![addr.to_string()],
        token: String::new(),
        tls: TlsMode::Off,
        cluster: "default".into(),
        max_pending: 1024,
    }
}

/// A broker object that reaches nobody.
pub fn open_to_nobody() -> i64 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    drop(listener);
    broker_open(options(addr)).unwrap()
}

/// Keys as they cross the boundary.
pub fn encoded(keys: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for key in keys {
        bytes.extend(u16::try_from(key.len()).unwrap().to_be_bytes());
        bytes.extend(key.as_bytes());
    }
    bytes
}

/// A queue and what came out of it.
pub struct Consumer {
    pub queue: i64,
    pub seen: i64,
    last_tag: i64,
    ended: BTreeMap<i64, Outcome>,
}

impl Consumer {
    pub fn open() -> Self {
        Consumer {
            queue: queue_open(),
            seen: 0,
            last_tag: 0,
            ended: BTreeMap::new(),
        }
    }

    /// A tag of its own for the call that `submit` makes.
    pub fn submit(&mut self, submit: impl FnOnce(i64, i64)) -> i64 {
        self.last_tag += 1;
        submit(self.queue, self.last_tag);
        self.last_tag
    }

    /// An acquire with a lease of 30 s.
    pub fn acquire(&mut self, broker: i64, key: &str, wait_ms: i64) -> i64 {
        let keys = encoded(&[key]);
        self.submit(|queue, tag| submit_acquire(broker, queue, tag, &keys, wait_ms, 30_000, 0))
    }

    pub fn drain(&mut self, timeout_ms: i64) {
        for Completion { seq, tag, outcome } in queue_next(self.queue, self.seen, 16, timeout_ms) {
            assert_eq!(seq, self.seen + 1);
            self.seen = seq;
            assert_eq!(
                self.ended.insert(tag, outcome),
                None,
                "tag {tag} ended twice"
            );
        }
    }

    /// How a call ended, once it has.
    #[track_caller]
    pub fn end_of(&mut self, tag: i64) -> Outcome {
        let end = Instant::now() + SOON;
        loop {
            if let Some(outcome) = self.ended.get(&tag) {
                return outcome.clone();
            }
            assert!(Instant::now() < end, "tag {tag} has not ended");
            self.drain(100);
        }
    }

    #[track_caller]
    pub fn error_of(&mut self, tag: i64) -> TicketError {
        match self.end_of(tag) {
            Outcome::Failed { error } => error,
            other => panic!("{other:?}"),
        }
    }

    /// A ticket on `key`, and its token.
    #[track_caller]
    pub fn ticket(&mut self, broker: i64, key: &str) -> (i64, u64) {
        let tag = self.acquire(broker, key, 5_000);
        match self.end_of(tag) {
            Outcome::Granted { ticket, token, .. } => (ticket, token),
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        ticketing_ffi::queue_close(self.queue);
    }
}
