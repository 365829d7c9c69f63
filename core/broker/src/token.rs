//! Fencing tokens that rise for ever (S3).

use std::time::Duration;

use ticketing_wire::Token;

/// How many tokens one block holds. A block is reserved in the store before it is used.
pub const BLOCK: u64 = 1 << BLOCK_BITS;

/// A millisecond of the wall clock is worth as many tokens as a block has, so a broker would have
/// to grant a billion times a second to outrun the clock.
const BLOCK_BITS: u32 = 20;

/// Clocks at or above this (the year 2109) are refused: 2^42 ms × 2^20 is 2^62.
const MAX_CLOCK_MS: u64 = 1 << 42;

/// Tokens stay below this, so that a signed 64-bit column holds them.
const TOKEN_LIMIT: u64 = 1 << 63;

/// What must be left below [`TOKEN_LIMIT`] at start: two thousand years at a million a second, so
/// a running broker never comes to the end.
const HEADROOM: u64 = 1 << 56;

/// A stored mark this far ahead of the clock says that one of the two is wrong.
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// The wall clock, in milliseconds since the Unix epoch.
pub type WallClock = Box<dyn FnMut() -> u64 + Send>;

/// Why no token can be issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The wall clock is past 2^42 ms.
    #[error(
        "the system clock says {0} ms since 1970, the limit is {max} (the year 2109): set the clock",
        max = MAX_CLOCK_MS - 1
    )]
    Clock(u64),
    /// The configured floor leaves too few tokens below 2^63.
    #[error("token_floor is {0}, it must be at most {max}", max = highest_start())]
    Floor(u64),
    /// The stored mark leaves too few tokens below 2^63.
    #[error(
        "the store has reserved tokens up to {0}, above {max}: it is damaged or not this program's; \
         restore it from a backup",
        max = highest_start()
    )]
    Mark(u64),
}

const fn highest_start() -> u64 {
    TOKEN_LIMIT - HEADROOM
}

/// Issues tokens in blocks of [`BLOCK`]; each block starts above the last one, above the stored
/// mark and the configured floor, *and* above Unix-milliseconds × 2^20, so that a store that went
/// back in time can't take the tokens back with it (S3).
pub struct TokenSource {
    clock: WallClock,
    /// The last token issued, or what the first one must exceed.
    last: u64,
    /// The last token of the current block.
    mark: u64,
    stored_mark: u64,
    mark_ahead: Option<Duration>,
}

impl TokenSource {
    /// A source that starts above `stored_mark` (0: nothing was stored) and above `token_floor`
    /// (0: none).
    ///
    /// # Errors
    /// [`TokenError`]: the clock is past 2^42 ms, or a number leaves too little room below 2^63.
    pub fn new(
        stored_mark: u64,
        token_floor: u64,
        mut clock: WallClock,
    ) -> Result<Self, TokenError> {
        let now_ms = clock();
        if now_ms >= MAX_CLOCK_MS {
            return Err(TokenError::Clock(now_ms));
        }
        if token_floor > highest_start() {
            return Err(TokenError::Floor(token_floor));
        }
        if stored_mark > highest_start() {
            return Err(TokenError::Mark(stored_mark));
        }
        let ahead_ms = (stored_mark >> BLOCK_BITS).saturating_sub(now_ms);
        let last = stored_mark.max(token_floor);
        Ok(TokenSource {
            clock,
            last,
            mark: last,
            stored_mark,
            mark_ahead: (ahead_ms > DAY_MS).then(|| Duration::from_millis(ahead_ms)),
        })
    }

    /// How far the stored mark was ahead of the wall clock at start, if over a day: worth a warning.
    #[must_use]
    pub fn mark_ahead(&self) -> Option<Duration> {
        self.mark_ahead
    }

    /// The mark that the store had at start; no token in it can be higher.
    #[must_use]
    pub fn stored_mark(&self) -> u64 {
        self.stored_mark
    }

    /// The next token. When it begins a new block, `on_block` gets the block's last token first:
    /// the mark, to be stored no later than the token itself becomes known to anyone.
    pub fn next(&mut self, on_block: impl FnOnce(u64)) -> Token {
        if self.last == self.mark {
            // A clock that jumps past its limit while running must not take the tokens to 2^63.
            let now_ms = (self.clock)().min(MAX_CLOCK_MS - 1);
            self.last = self.last.max(now_ms << BLOCK_BITS);
            self.mark = self.last + BLOCK;
            on_block(self.mark);
        }
        self.last += 1;
        Token::new(self.last).expect("tokens start above 0")
    }
}

impl std::fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenSource")
            .field("last", &self.last)
            .field("mark", &self.mark)
            .finish_non_exhaustive()
    }
}
