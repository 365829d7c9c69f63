//! What the broker has promised to all actors together.

use std::collections::BTreeMap;

use ticketing_wire::{KeySet, Token};

use crate::wire::Wire;

/// Places that all actors share: few enough that there are always waiters. After them, each actor
/// has one of its own.
pub(crate) const SHARED: usize = 6;

#[derive(Debug)]
pub(crate) struct Ledger {
    /// The keys in use, one a place. One that an unanswered acquire may hold is replaced.
    keys: Vec<Key>,
    /// How many keys there ever were.
    named: usize,
    /// What acquires without an answer asked for.
    unanswered: Vec<KeySet>,
    /// The highest token that was seen.
    highest: u64,
    counts: Counts,
}

#[derive(Debug)]
struct Key {
    name: String,
    state: State,
}

/// What is known of a key in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Its last release was answered.
    Free,
    /// A grant was answered, its release not yet sent.
    Held(Token),
    /// A release was sent and not yet answered.
    Releasing(Token),
}

#[derive(Debug, Default)]
struct Counts {
    grants: usize,
    releases: usize,
    unanswered_acquires: usize,
    unanswered_releases: usize,
    held_over_a_restart: usize,
    free_over_a_restart: usize,
}

impl Ledger {
    pub(crate) fn new(actors: usize) -> Self {
        let mut ledger = Ledger {
            keys: Vec::new(),
            named: 0,
            unanswered: Vec::new(),
            highest: 0,
            counts: Counts::default(),
        };
        for _ in 0..SHARED + actors {
            let key = ledger.new_key();
            ledger.keys.push(key);
        }
        ledger
    }

    fn new_key(&mut self) -> Key {
        self.named += 1;
        Key {
            name: format!("key-{}", self.named),
            state: State::Free,
        }
    }

    /// The keys at these places.
    pub(crate) fn pick(&self, places: &[usize]) -> KeySet {
        KeySet::new(places.iter().map(|place| &self.keys[*place].name)).expect("keys")
    }

    pub(crate) fn highest(&self) -> u64 {
        self.highest
    }

    /// A grant was answered whose acquire was sent when `floor` was the highest token.
    pub(crate) fn granted(&mut self, keys: &KeySet, token: Token, floor: u64) {
        assert!(token.get() > floor, "S3: token {token} after {floor}");
        self.highest = self.highest.max(token.get());
        self.counts.grants += 1;
        for state in self.states(keys) {
            if let State::Held(other) = *state {
                panic!("S1: {keys:?} granted under {token} while held under {other}");
            }
            *state = State::Held(token);
        }
    }

    /// A release is about to be sent.
    pub(crate) fn releasing(&mut self, keys: &KeySet, token: Token) {
        for state in self.states(keys) {
            assert_eq!(*state, State::Held(token), "the ledger contradicts itself");
            *state = State::Releasing(token);
        }
    }

    /// A release was answered.
    pub(crate) fn released(&mut self, keys: &KeySet, token: Token) {
        self.counts.releases += 1;
        // Somebody else may have been told of the next grant before this answer was read.
        for state in self
            .states(keys)
            .filter(|state| **state == State::Releasing(token))
        {
            *state = State::Free;
        }
    }

    pub(crate) fn release_unanswered(&mut self) {
        self.counts.unanswered_releases += 1;
    }

    pub(crate) fn acquire_unanswered(&mut self, keys: &KeySet) {
        self.counts.unanswered_acquires += 1;
        self.unanswered.push(keys.clone());
    }

    /// Everybody has stopped: replaces the keys that a grant without an answer may hold. Where one
    /// of its keys is still held, there was none.
    fn settle(&mut self) {
        for keys in std::mem::take(&mut self.unanswered) {
            if self
                .states(&keys)
                .any(|state| matches!(state, State::Held(_)))
            {
                continue;
            }
            for place in 0..self.keys.len() {
                if keys
                    .as_keys()
                    .iter()
                    .any(|key| key.as_str() == self.keys[place].name)
                {
                    self.keys[place] = self.new_key();
                }
            }
        }
    }

    fn states<'a>(&'a mut self, keys: &KeySet) -> impl Iterator<Item = &'a mut State> {
        let names: Vec<_> = keys
            .as_keys()
            .iter()
            .map(|key| key.as_str().to_owned())
            .collect();
        let picked = move |key: &&'a mut Key| names.contains(&key.name);
        self.keys
            .iter_mut()
            .filter(picked)
            .map(|key| &mut key.state)
    }

    /// Nobody else is connected: what was granted is held, what was released is free.
    pub(crate) fn check_after_restart(&mut self, wire: &mut Wire) {
        self.settle();
        let mut states = BTreeMap::new();
        for key in &self.keys {
            states.insert(key.name.clone(), key.state);
        }
        for (name, state) in states {
            let key = KeySet::new([&name]).expect("a key");
            let got = wire.acquire(&key, 0).expect("it serves");
            match state {
                State::Held(token) => {
                    assert_eq!(got, None, "S7: {name}, held under {token}, is granted anew");
                    self.counts.held_over_a_restart += 1;
                }
                State::Free => {
                    assert!(
                        got.is_some(),
                        "S7: {name}, which was released, is held again"
                    );
                    self.counts.free_over_a_restart += 1;
                }
                State::Releasing(_) => {}
            }
            if let Some(token) = got {
                assert!(
                    token.get() > self.highest,
                    "S3: {token} after {}",
                    self.highest
                );
                self.highest = token.get();
                assert!(
                    wire.release(&key, token).expect("it serves"),
                    "just granted"
                );
            }
        }
    }

    /// Whether the test has seen what it is about.
    pub(crate) fn is_telling(&self, rounds: usize) -> bool {
        let counts = &self.counts;
        counts.grants > rounds
            && counts.unanswered_acquires > 0
            && counts.held_over_a_restart > 0
            && counts.free_over_a_restart > 0
    }
}
