//! A lock table with a clock to set and a sink that writes everything down.

#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use ticketing_broker::table::{ConnId, LockTable, RestoreError, Sink, TableLimits};
use ticketing_broker::token::TokenSource;
use ticketing_wire::{ErrorCode, KeySet, Keys, Reply, RequestId, Token};

/// One call of the sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    Reply(u64, Reply),
    Granted {
        conn: u64,
        id: u64,
        token: u64,
        keys: Vec<String>,
        set: bool,
        lease: u8,
    },
    Ended(u64),
    Mark(u64),
}

impl Effect {
    pub(crate) fn granted(conn: u64, id: u64, token: u64, keys: &[&str], lease: u8) -> Self {
        let set = keys.len() > 1;
        let keys = keys.iter().map(|&key| key.to_owned()).collect();
        Effect::Granted {
            conn,
            id,
            token,
            keys,
            set,
            lease,
        }
    }

    /// Whether it is a grant of `key`.
    pub(crate) fn names(&self, key: &str) -> bool {
        matches!(self, Effect::Granted { keys, .. } if keys.iter().any(|k| k == key))
    }

    pub(crate) fn released(conn: u64, id: u64) -> Self {
        Effect::Reply(conn, Reply::Released { id: request(id) })
    }

    pub(crate) fn set_released(conn: u64, id: u64) -> Self {
        Effect::Reply(conn, Reply::SetReleased { id: request(id) })
    }

    pub(crate) fn timed_out(conn: u64, id: u64) -> Self {
        Effect::Reply(conn, Reply::TimedOut { id: request(id) })
    }

    pub(crate) fn busy(conn: u64, id: u64) -> Self {
        Effect::Reply(conn, Reply::Busy { id: request(id) })
    }

    pub(crate) fn not_current(conn: u64, id: u64) -> Self {
        Effect::Reply(conn, Reply::NotCurrent { id: request(id) })
    }

    pub(crate) fn error(conn: u64, id: u64, code: ErrorCode) -> Self {
        Effect::Reply(
            conn,
            Reply::Error {
                id: request(id),
                code,
            },
        )
    }
}

fn request(id: u64) -> RequestId {
    RequestId::new(id).expect("ids start at 1")
}

#[derive(Default)]
pub(crate) struct Recorder(pub(crate) Vec<Effect>);

impl Sink for Recorder {
    fn reply(&mut self, conn: ConnId, reply: Reply) {
        self.0.push(Effect::Reply(conn.0, reply));
    }

    fn granted(&mut self, conn: ConnId, id: RequestId, token: Token, keys: Keys<'_>, lease: u8) {
        self.0.push(Effect::Granted {
            conn: conn.0,
            id: id.get(),
            token: token.get(),
            keys: keys.iter().map(|key| key.as_str().to_owned()).collect(),
            set: matches!(keys, Keys::Set(_)),
            lease,
        });
    }

    fn ended(&mut self, token: Token) {
        self.0.push(Effect::Ended(token.get()));
    }

    fn mark(&mut self, mark: u64) {
        self.0.push(Effect::Mark(mark));
    }
}

pub(crate) struct Bench {
    pub(crate) table: LockTable,
    pub(crate) now: Duration,
    sink: Recorder,
}

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl Bench {
    fn from(limits: TableLimits, stored_mark: u64, clock_ms: u64) -> Self {
        let tokens = TokenSource::new(stored_mark, 0, Box::new(move || clock_ms)).unwrap();
        let table = LockTable::new(limits, tokens);
        Bench {
            table,
            now: Duration::ZERO,
            sink: Recorder::default(),
        }
    }

    /// Tokens count from 1.
    pub(crate) fn new() -> Self {
        Bench::from(TableLimits::default(), 0, 0)
    }

    pub(crate) fn with(limits: TableLimits) -> Self {
        Bench::from(limits, 0, 0)
    }

    pub(crate) fn with_mark(limits: TableLimits, stored_mark: u64) -> Self {
        Bench::from(limits, stored_mark, 0)
    }

    pub(crate) fn at_clock(clock_ms: u64) -> Self {
        Bench::from(TableLimits::default(), 0, clock_ms)
    }

    pub(crate) fn restored(stored_mark: u64) -> Self {
        Bench::from(TableLimits::default(), stored_mark, 0)
    }

    pub(crate) fn at(&mut self, now: Duration) {
        self.now = now;
    }

    pub(crate) fn acquire(&mut self, conn: u64, id: u64, wait: u8, lease: u8, keys: &[&str]) {
        let keys = KeySet::new(keys).unwrap();
        let (conn, id) = (ConnId(conn), request(id));
        self.table.acquire(
            self.now,
            conn,
            id,
            wait,
            lease,
            keys.as_keys(),
            &mut self.sink,
        );
    }

    pub(crate) fn release(&mut self, conn: u64, id: u64, token: u64, keys: &[&str]) {
        let keys = KeySet::new(keys).unwrap();
        let (conn, id, token) = (ConnId(conn), request(id), Token::new(token).unwrap());
        self.table
            .release(self.now, conn, id, token, keys.as_keys(), &mut self.sink);
    }

    pub(crate) fn disconnect(&mut self, conn: u64) {
        self.table
            .disconnect(self.now, ConnId(conn), &mut self.sink);
    }

    pub(crate) fn refuse(&mut self, conn: Option<u64>) {
        self.table
            .refuse_waiters(self.now, conn.map(ConnId), &mut self.sink);
    }

    pub(crate) fn undo(&mut self, token: u64) {
        self.table
            .undo(self.now, Token::new(token).unwrap(), &mut self.sink);
    }

    pub(crate) fn restore(
        &mut self,
        token: u64,
        keys: &[&str],
        lease: u8,
    ) -> Result<(), RestoreError> {
        let keys = KeySet::new(keys).unwrap();
        self.table
            .restore(self.now, Token::new(token).unwrap(), keys.as_keys(), lease)
    }

    pub(crate) fn tick(&mut self) {
        self.table.tick(self.now, &mut self.sink);
    }

    /// The effects since the last look.
    pub(crate) fn take_with_marks(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.sink.0)
    }

    pub(crate) fn take(&mut self) -> Vec<Effect> {
        let mut effects = self.take_with_marks();
        effects.retain(|effect| !matches!(effect, Effect::Mark(_)));
        effects
    }

    #[track_caller]
    pub(crate) fn expect(&mut self, expected: &[Effect]) {
        assert_eq!(self.take(), expected);
    }

    #[track_caller]
    pub(crate) fn expect_with_marks(&mut self, expected: &[Effect]) {
        assert_eq!(self.take_with_marks(), expected);
    }
}
