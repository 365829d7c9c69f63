//! A disk in memory that remembers what was not synced, so that a test can crash it anywhere.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::RngExt;
use rand::rngs::StdRng;
use redb::StorageBackend;

/// What a disk writes at once.
const SECTOR: usize = 512;

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
    /// What goes wrong, after how many operations that it could hit.
    fault: Option<(Fault, usize)>,
    attempts_after_fault: usize,
}

#[derive(Debug, Clone)]
pub(super) enum Op {
    Write { at: usize, bytes: Vec<u8> },
    SetLen(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// A write, or growth, finds the disk full.
    Full,
    /// A sync fails.
    Sync,
    /// The power fails: this operation and all later ones do.
    Power,
    /// The process is killed: likewise, but what was written can be read by the next one.
    Kill,
    /// Nothing.
    None,
}

impl Fault {
    fn hits(self, kind: Fault) -> bool {
        self == kind || self.is_end()
    }

    /// Whether nothing works after it.
    fn is_end(self) -> bool {
        matches!(self, Fault::Power | Fault::Kill)
    }
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
        self.fail_at(fault, 0);
    }

    /// Like [`fail_next`](Disk::fail_next), after `count` operations that the fault could have hit.
    pub(super) fn fail_at(&self, fault: Fault, count: usize) {
        self.state().fault = Some((fault, count));
    }

    /// The disk as the next process finds it.
    pub(super) fn after_a_kill(&self) -> Disk {
        let state = self.state();
        Disk(Arc::new(Mutex::new(State {
            now: state.now.clone(),
            synced: state.synced.clone(),
            unsynced: state.unsynced.clone(),
            ..State::default()
        })))
    }

    /// What is left without power: all that was synced, and of each later write all, nothing or a
    /// part, in any order.
    pub(super) fn after_power_loss(&self, random: &mut StdRng) -> Vec<u8> {
        let state = self.state();
        let mut left = state.synced.clone();
        // Sizes are kept in a journal of their own.
        let sizes = state
            .unsynced
            .iter()
            .filter(|op| matches!(op, Op::SetLen(_)));
        let mut sizes_left = random.random_range(0..=sizes.count());
        // Often the writes arrive as they were made, up to the last one or nearly.
        let mut in_order = match random.random_range(0..4) {
            0 => usize::MAX,
            1 => random.random_range(0..=state.unsynced.len()),
            _ => 0,
        };
        if in_order > 0 {
            sizes_left = usize::MAX;
        }
        for op in &state.unsynced {
            if in_order > 0 {
                in_order -= 1;
                op.apply(&mut left);
                continue;
            }
            match op {
                Op::SetLen(_) if sizes_left > 0 => {
                    sizes_left -= 1;
                    op.apply(&mut left);
                }
                Op::SetLen(_) => {}
                Op::Write { at, bytes } => {
                    let within = bytes.len().min(left.len().saturating_sub(*at));
                    let mut keep = |part: Range<usize>| {
                        left[at + part.start..at + part.end].copy_from_slice(&bytes[part]);
                    };
                    match random.random_range(0..4) {
                        0 => {}
                        1 => keep(0..within),
                        // Torn at a byte.
                        2 => keep(0..random.random_range(0..=within)),
                        // Any of its sectors.
                        _ => (0..within)
                            .step_by(SECTOR)
                            .filter(|_| random.random_bool(0.5))
                            .for_each(|from| keep(from..within.min(from + SECTOR))),
                    }
                }
            }
        }
        left
    }

    /// Writes, growths and syncs that were tried after the fault.
    pub(super) fn attempts_after_fault(&self) -> usize {
        self.state().attempts_after_fault
    }
}

impl State {
    fn change(&mut self, op: Op) -> io::Result<()> {
        if let Err(error) = self.check(Fault::Full) {
            if matches!(self.fault, Some((Fault::Power, _))) && self.attempts_after_fault == 1 {
                // The power may fail in the middle of it.
                self.unsynced.push(op);
            }
            return Err(error);
        }
        op.apply(&mut self.now);
        self.unsynced.push(op);
        Ok(())
    }

    fn check(&mut self, kind: Fault) -> io::Result<()> {
        if self.attempts_after_fault > 0 {
            self.attempts_after_fault += 1;
            return match self.fault {
                Some((fault, _)) if fault.is_end() => Err(gone()),
                _ => Ok(()),
            };
        }
        match &mut self.fault {
            Some((fault, count)) if fault.hits(kind) => {
                if *count > 0 {
                    *count -= 1;
                    return Ok(());
                }
                self.attempts_after_fault = 1;
                Err(match fault {
                    Fault::Full => io::ErrorKind::StorageFull.into(),
                    _ => gone(),
                })
            }
            _ => Ok(()),
        }
    }
}

fn gone() -> io::Error {
    io::Error::other("the disk does not answer")
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
