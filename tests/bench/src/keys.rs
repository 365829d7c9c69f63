//! Which keys a load asks for.

use std::io::Write;

use anyhow::{Context, Result};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// How many bytes each key has.
pub const KEY_LEN: usize = 20;

/// The keys of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// Every pair takes a key of its own: nobody waits.
    Distinct,
    /// Every pair takes one of this many keys at random.
    Contended(u64),
}

/// The keys of one run. No other run has them: locks that a run leaves behind hinder none.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    space: Space,
    salt: u32,
}

impl Run {
    /// A new run.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn new(space: Space) -> Result<Self> {
        let salt = getrandom::u32().context("no random bytes")?;
        Ok(Run { space, salt })
    }

    /// A supply of this run's keys. Different lanes never share a distinct key.
    #[must_use]
    pub fn keys(self, lane: u16) -> Keys {
        let first = u64::from(lane) << 32;
        // The same order for every server.
        Keys {
            run: self,
            last: first,
            random: SmallRng::seed_from_u64(first),
        }
    }
}

/// An endless supply of keys.
#[derive(Debug)]
pub struct Keys {
    run: Run,
    last: u64,
    random: SmallRng,
}

impl Keys {
    /// The next key, [`KEY_LEN`] bytes of ASCII.
    pub fn next_key(&mut self) -> [u8; KEY_LEN] {
        let number = match self.run.space {
            Space::Distinct => {
                self.last += 1;
                self.last
            }
            Space::Contended(keys) => self.random.random_range(0..keys),
        };
        let mut key = [0; KEY_LEN];
        write!(key.as_mut_slice(), "{:08x}{number:012x}", self.run.salt).expect("it fits");
        key
    }
}
