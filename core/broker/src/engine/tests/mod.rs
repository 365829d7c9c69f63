//! The pipeline without sockets: a fake store, a paused clock.

mod commit;
mod ends;
mod random;

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::time::Duration;

use ticketing_wire::{ErrorCode, KeySet, Reply, Request, RequestId, Token};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{Committer, Engine, Input, Outbox, Step};
use crate::store::{Batch, BoxFuture, CommitError, Record, Store};
use crate::table::{ConnId, LockTable, TableLimits};
use crate::token::TokenSource;

pub(crate) fn engine(hold: bool) -> Arc<Engine> {
    let tokens = TokenSource::new(0, 0, Box::new(|| 1)).unwrap();
    let table = LockTable::new(TableLimits::default(), tokens);
    Arc::new(Engine::new(table, Instant::now(), hold))
}

/// A store whose commits end when the test says so.
#[derive(Clone)]
pub(crate) struct FakeStore {
    /// The commits that were begun, each with the text of its records.
    commits: Arc<Mutex<Vec<Vec<String>>>>,
    /// One permit ends one commit.
    pub(crate) gate: Arc<Semaphore>,
    fails: bool,
}

impl FakeStore {
    /// A store whose first commit fails.
    pub(crate) fn failing() -> Self {
        FakeStore {
            fails: true,
            ..Self::new()
        }
    }

    pub(crate) fn new() -> Self {
        FakeStore {
            commits: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
            fails: false,
        }
    }

    /// Commits end by themselves.
    fn open() -> Self {
        let store = Self::new();
        store.gate.add_permits(Semaphore::MAX_PERMITS);
        store
    }

    pub(crate) fn commits(&self) -> Vec<Vec<String>> {
        self.commits.lock().unwrap().clone()
    }

    /// The records of commit number `at`, without marks.
    fn records(&self, at: usize) -> Vec<String> {
        let mut records = self.commits()[at].clone();
        records.retain(|record| !record.starts_with("mark"));
        records
    }

    /// Lets one commit end and what follows happen.
    async fn finish_one(&self) {
        self.gate.add_permits(1);
        settled().await;
    }
}

impl Store for FakeStore {
    fn commit(&mut self, mut batch: Batch) -> BoxFuture<'_, Result<Batch, CommitError>> {
        let text = |record| match record {
            Record::Grant { token, lease, keys } => {
                format!("grant {} {keys:?} {lease}", small(token))
            }
            Record::End { token } => format!("end {}", small(token)),
            Record::Mark { mark } => format!("mark {mark}"),
        };
        self.commits
            .lock()
            .unwrap()
            .push(batch.records().map(text).collect());
        Box::pin(async move {
            self.gate.acquire().await.unwrap().forget();
            if self.fails {
                return Err(CommitError::Failed(io::Error::other("the disk is gone")));
            }
            batch.clear();
            Ok(batch)
        })
    }

    fn is_durable(&self) -> bool {
        true
    }
}

/// A running pipeline in durable mode.
struct Pipeline {
    engine: Arc<Engine>,
    store: FakeStore,
    committer: JoinHandle<Result<(), CommitError>>,
}

fn pipeline(store: FakeStore) -> Pipeline {
    let engine = engine(true);
    let committer = tokio::spawn(Committer::new(engine.clone(), Box::new(store.clone())).run());
    Pipeline {
        engine,
        store,
        committer,
    }
}

/// Every task has done what it can: the paused clock goes on only then.
async fn settled() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// Tokens counted from the first one: 1, 2, …
fn small(token: Token) -> u64 {
    token.get() - (1 << 20)
}

fn token(small: u64) -> Token {
    Token::new(small + (1 << 20)).unwrap()
}

fn id(n: u64) -> RequestId {
    RequestId::new(n).unwrap()
}

fn acquire(n: u64, wait: u8, lease: u8, keys: &[&str]) -> Vec<u8> {
    let keys = KeySet::new(keys).unwrap();
    let mut out = Vec::new();
    Request::Acquire {
        id: id(n),
        wait,
        lease,
        keys: keys.as_keys(),
    }
    .encode(&mut out);
    out
}

fn release(n: u64, grant: u64, keys: &[&str]) -> Vec<u8> {
    let keys = KeySet::new(keys).unwrap();
    let mut out = Vec::new();
    Request::Release {
        id: id(n),
        token: token(grant),
        keys: keys.as_keys(),
    }
    .encode(&mut out);
    out
}

fn granted(n: u64, grant: u64) -> Reply {
    Reply::Acquired {
        id: id(n),
        token: token(grant),
    }
}

fn released(n: u64) -> Reply {
    Reply::Released { id: id(n) }
}

fn not_active(n: u64) -> Reply {
    Reply::Error {
        id: id(n),
        code: ErrorCode::NotActive,
    }
}

fn indeterminate(n: u64) -> Reply {
    Reply::Indeterminate { id: id(n) }
}

/// Counts how often a task would be woken.
#[derive(Default)]
struct Wakes(Arc<Count>);

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Wakes {
    fn waker(&self) -> Waker {
        self.0.clone().into()
    }

    fn count(&self) -> usize {
        self.0.0.load(Ordering::Relaxed)
    }
}

/// A connection's task, done by hand.
struct Peer {
    engine: Arc<Engine>,
    id: ConnId,
    out: Outbox,
    step: Step,
}

impl Peer {
    fn new(engine: &Arc<Engine>) -> Self {
        let step = Step::Continue { used: 0 };
        Peer {
            engine: engine.clone(),
            id: engine.connect(),
            out: Outbox::default(),
            step,
        }
    }

    /// Hands over what was "read" and takes the replies that are there.
    fn drive(&mut self, bytes: &[u8], input: Input) -> Vec<Reply> {
        let mut out = Outbox::default();
        let waker = Waker::noop();
        self.step = self
            .engine
            .drive(self.id, bytes, input, waker, &mut out, &mut Vec::new());
        self.out.append(&mut out);
        let mut replies = Vec::new();
        let mut rest = self.out.bytes();
        while let Some((reply, used)) = Reply::decode(rest).unwrap() {
            replies.push(reply);
            rest = &rest[used..];
        }
        self.out.clear();
        replies
    }

    /// Calls with nothing read; `waker` is woken from then on.
    fn drive_with(&mut self, waker: &Waker) {
        let mut out = Outbox::default();
        self.step = self
            .engine
            .drive(self.id, &[], Input::Open, waker, &mut out, &mut Vec::new());
        self.out.append(&mut out);
    }

    fn send(&mut self, bytes: &[u8]) -> Vec<Reply> {
        self.drive(bytes, Input::Open)
    }

    /// The replies that came meanwhile.
    fn replies(&mut self) -> Vec<Reply> {
        self.drive(&[], Input::Open)
    }

    fn disconnect(self) {
        self.engine.disconnect(self.id, &self.out);
    }
}
