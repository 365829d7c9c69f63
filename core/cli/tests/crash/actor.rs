//! One of many who acquire and release, and who outlive the broker.

use std::sync::{Mutex, MutexGuard};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use ticketing_wire::{KeySet, Token};

use crate::ledger::{Ledger, SHARED};
use crate::wire::{Lost, Wire};

/// Seconds in line: long against what is between two grants, short against the test.
const WAIT: u8 = 1;

pub(crate) struct Actor {
    /// Its own place in the ledger.
    place: usize,
    random: StdRng,
    state: State,
}

enum State {
    Idle,
    /// The grant was answered.
    Holding(KeySet, Token),
    /// Its release was sent and not answered.
    Releasing(KeySet, Token),
}

impl Actor {
    pub(crate) fn new(number: usize, seed: u64) -> Self {
        Actor {
            place: SHARED + number,
            random: StdRng::seed_from_u64(seed),
            state: State::Idle,
        }
    }

    /// Works until the broker is gone.
    pub(crate) fn work(&mut self, address: &str, book: &Mutex<Ledger>) {
        // It may be killed before everybody is there.
        let Ok(mut wire) = Wire::connect(address) else {
            return;
        };
        while let Ok(()) = self.step(&mut wire, book) {}
    }

    fn step(&mut self, wire: &mut Wire, book: &Mutex<Ledger>) -> Result<(), Lost> {
        let lock = || -> MutexGuard<'_, Ledger> { book.lock().expect("no broken promise yet") };
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Idle => {
                let places = if self.random.random_bool(0.3) {
                    vec![self.place]
                } else {
                    let count = self.random.random_range(1..=3);
                    (0..count)
                        .map(|_| self.random.random_range(0..SHARED))
                        .collect()
                };
                let (keys, floor) = {
                    let ledger = lock();
                    (ledger.pick(&places), ledger.highest())
                };
                match wire.acquire(&keys, WAIT) {
                    Ok(Some(token)) => {
                        lock().granted(&keys, token, floor);
                        self.state = State::Holding(keys, token);
                    }
                    Ok(None) => {}
                    Err(lost) => {
                        lock().acquire_unanswered(&keys);
                        return Err(lost);
                    }
                }
            }
            State::Holding(keys, token) => {
                if self.random.random_bool(0.5) {
                    // Its own keys are as taken for itself as for anybody.
                    self.state = State::Holding(keys.clone(), token);
                    assert_eq!(wire.acquire(&keys, 0)?, None, "S1: {keys:?} under {token}");
                    return Ok(());
                }
                lock().releasing(&keys, token);
                self.release(wire, book, keys, token, true)?;
            }
            State::Releasing(keys, token) => self.release(wire, book, keys, token, false)?,
        }
        Ok(())
    }

    fn release(
        &mut self,
        wire: &mut Wire,
        book: &Mutex<Ledger>,
        keys: KeySet,
        token: Token,
        is_first_try: bool,
    ) -> Result<(), Lost> {
        let lock = || -> MutexGuard<'_, Ledger> { book.lock().expect("no broken promise yet") };
        match wire.release(&keys, token) {
            Ok(was_held) => {
                assert!(
                    was_held || !is_first_try,
                    "S7: {keys:?} is lost, granted under {token}"
                );
                lock().released(&keys, token);
                self.state = State::Idle;
                Ok(())
            }
            Err(lost) => {
                lock().release_unanswered();
                self.state = State::Releasing(keys, token);
                Err(lost)
            }
        }
    }
}
