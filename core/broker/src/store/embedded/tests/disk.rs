//! A disk in memory that remembers what was not synced, so that a test can crash it anywhere.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::StorageBackend;

/// A disk; clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Disk(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// What is read.
    now: Vec<u8>,
    /// What the last sync made safe.
    synced: Vec<u8>,
    /// What was done since then.
    unsynced: Vec<Op>,
    /// What the last sync found: the bytes before, and what it had to make safe.
    last_sync: (Vec<u8>, Vec<Op>),
    fault: Option<Fault>,
    attempts_after_fault: usize,
}

#[derive(Debug, Clone)]
pub(super) enum Op {
    Write { at: usize, bytes: Vec<u8> },
    SetLen(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The next write, or growth, finds the disk full.
    Full,
    /// The next sync fails.
    Sync,
}

impl Op {
    pub(super) fn len(&self) -> usize {
        match self {
            Op::Write { bytes, .. } => bytes.len(),
            Op::SetLen(_) => 1,
        }
    }

    /// Whether it rewrites the file's first bytes.
    pub(super) fn is_header(&self) -> bool {
        matches!(self, Op::Write { at: 0, .. })
    }

    pub(super) fn apply(&self, to: &mut Vec<u8>) {
        match self {
            Op::SetLen(len) => to.resize(*len, 0),
            Op::Write { at, bytes } => to[*at..*at + bytes.len()].copy_from_slice(bytes),
        }
    }

    /// Only the first `len` bytes arrive; the rest of the write is what it was, or zeros.
    pub(super) fn apply_torn(&self, len: usize, zero_rest: bool, to: &mut [u8]) {
        if let Op::Write { at, bytes } = self {
            to[*at..*at + len].copy_from_slice(&bytes[..len]);
            if zero_rest {
                to[*at + len..*at + bytes.len()].fill(0);
            }
        }
    }
}

impl Disk {
    pub(super) fn holding(bytes: Vec<u8>) -> Self {
        let state = State {
            synced: bytes.clone(),
            now: bytes,
            ..State::default()
        };
        Disk(Arc::new(Mutex::new(state)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.state().now.clone()
    }

    /// The bytes before the last sync and the operations that it made safe.
    pub(super) fn last_sync(&self) -> (Vec<u8>, Vec<Op>) {
        self.state().last_sync.clone()
    }

    pub(super) fn fail_next(&self, fault: Fault) {
        self.state().fault = Some(fault);
    }

    /// Writes, growths and syncs that were tried after the fault.
    pub(super) fn attempts_after_fault(&self) -> usize {
        self.state().attempts_after_fault
    }
}

impl State {
    fn change(&mut self, op: Op) -> io::Result<()> {
        self.check(Fault::Full)?;
        op.apply(&mut self.now);
        self.unsynced.push(op);
        Ok(())
    }

    fn check(&mut self, kind: Fault) -> io::Result<()> {
        if self.attempts_after_fault > 0 {
            self.attempts_after_fault += 1;
        } else if self.fault == Some(kind) {
            self.attempts_after_fault = 1;
            return Err(match kind {
                Fault::Full => io::ErrorKind::StorageFull.into(),
                Fault::Sync => io::Error::other("the disk does not answer"),
            });
        }
        Ok(())
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state().now.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let at = usize::try_from(offset).expect("small");
        let state = self.state();
        let bytes = state
            .now
            .get(at..at + out.len())
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.state()
            .change(Op::SetLen(usize::try_from(len).expect("small")))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let at = usize::try_from(offset).expect("small");
        self.state().change(Op::Write {
            at,
            bytes: data.to_vec(),
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state();
        state.check(Fault::Sync)?;
        let before = std::mem::take(&mut state.synced);
        let ops = std::mem::take(&mut state.unsynced);
        state.synced = state.now.clone();
        state.last_sync = (before, ops);
        Ok(())
    }
}
