//! Tokens rise for ever (S3).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use ticketing_broker::token::{BLOCK, TokenError, TokenSource};

const LIMIT: u64 = 1 << 63;
const CLOCK_LIMIT: u64 = 1 << 42;
/// The highest mark or floor that is taken.
const HIGHEST: u64 = LIMIT - (1 << 56);
const DAY_MS: u64 = 86_400_000;

#[derive(Clone, Default)]
struct Clock(Arc<AtomicU64>);

impl Clock {
    fn at(ms: u64) -> Self {
        let clock = Clock::default();
        clock.set(ms);
        clock
    }

    fn set(&self, ms: u64) {
        self.0.store(ms, Ordering::Relaxed);
    }

    fn source(&self, mark: u64, floor: u64) -> Result<TokenSource, TokenError> {
        let clock = self.clone();
        TokenSource::new(
            mark,
            floor,
            Box::new(move || clock.0.load(Ordering::Relaxed)),
        )
    }
}

/// The next token, and the mark if it begins a block.
fn next(source: &mut TokenSource) -> (u64, Option<u64>) {
    let mut mark = None;
    let token = source.next(|new| {
        assert_eq!(mark, None, "one block at a time");
        mark = Some(new);
    });
    (token.get(), mark)
}

/// The rest of the block: its last token.
fn use_up_block(source: &mut TokenSource, tokens: u64) -> u64 {
    let mut last = 0;
    for _ in 0..tokens {
        let (token, mark) = next(source);
        assert_eq!(mark, None, "within the block");
        last = token;
    }
    last
}

#[test]
fn s3_a_block_starts_above_the_clock_the_stored_mark_and_the_floor() {
    let start = |ms, mark, floor| next(&mut Clock::at(ms).source(mark, floor).unwrap());
    assert_eq!(start(0, 0, 0), (1, Some(BLOCK)));
    assert_eq!(start(7, 0, 0), ((7 << 20) + 1, Some(8 << 20)));
    assert_eq!(start(7, 9 << 20, 0), ((9 << 20) + 1, Some(10 << 20)));
    assert_eq!(
        start(7, 9 << 20, 12_345_678),
        (12_345_679, Some(12_345_678 + BLOCK))
    );
    assert_eq!(
        start(7, 12_345_678, 9 << 20),
        (12_345_679, Some(12_345_678 + BLOCK))
    );
}

#[test]
fn s3_each_block_is_announced_before_its_first_token_and_used_to_its_end() {
    let clock = Clock::at(3);
    let mut source = clock.source(0, 0).unwrap();
    assert_eq!(next(&mut source), ((3 << 20) + 1, Some(4 << 20)));
    assert_eq!(use_up_block(&mut source, BLOCK - 1), 4 << 20);
    // The clock stands still: the next block follows on.
    assert_eq!(next(&mut source), ((4 << 20) + 1, Some(5 << 20)));
    use_up_block(&mut source, BLOCK - 1);
    // It went on: the next block is above it.
    clock.set(1000);
    assert_eq!(next(&mut source), ((1000 << 20) + 1, Some(1001 << 20)));
    use_up_block(&mut source, BLOCK - 1);
    // It went back: the next block follows on.
    clock.set(2);
    assert_eq!(next(&mut source), ((1001 << 20) + 1, Some(1002 << 20)));
}

#[test]
fn s3_a_clock_past_2_to_the_42_ms_is_refused_at_start() {
    let error = Clock::at(CLOCK_LIMIT).source(0, 0).unwrap_err();
    assert_eq!(error, TokenError::Clock(CLOCK_LIMIT));
    assert_eq!(
        error.to_string(),
        "the system clock says 4398046511104 ms since 1970, the limit is 4398046511103 (the year \
         2109): set the clock"
    );
    let mut source = Clock::at(CLOCK_LIMIT - 1).source(0, 0).unwrap();
    assert_eq!(next(&mut source).0, ((CLOCK_LIMIT - 1) << 20) + 1);
}

#[test]
fn s3_tokens_stay_below_2_to_the_63() {
    let clock = Clock::at(0);
    for floor in [HIGHEST + 1, LIMIT, u64::MAX] {
        let error = clock.source(0, floor).unwrap_err();
        assert_eq!(error, TokenError::Floor(floor));
        assert!(
            error.to_string().contains("at most 9151314442816847872"),
            "{error}"
        );
        let error = clock.source(floor, 0).unwrap_err();
        assert_eq!(error, TokenError::Mark(floor));
        assert!(error.to_string().contains(&floor.to_string()), "{error}");
    }
    for (mark, floor) in [(HIGHEST, 0), (0, HIGHEST)] {
        let mut source = clock.source(mark, floor).unwrap();
        assert_eq!(next(&mut source), (HIGHEST + 1, Some(HIGHEST + BLOCK)));
        const { assert!(HIGHEST + BLOCK < LIMIT) };
    }
    // A clock that goes mad later on.
    let mut source = clock.source(0, 0).unwrap();
    next(&mut source);
    use_up_block(&mut source, BLOCK - 1);
    clock.set(u64::MAX);
    let (token, mark) = next(&mut source);
    assert_eq!(token, ((CLOCK_LIMIT - 1) << 20) + 1);
    assert!(mark.is_some_and(|mark| mark < LIMIT), "{mark:?}");
}

#[test]
fn s3_a_store_that_went_back_in_time_takes_no_token_back() {
    let clock = Clock::at(1_700_000_000_000);
    let mut source = clock.source(0, 0).unwrap();
    let (_, backed_up) = next(&mut source);
    let mut highest = 0;
    for ms in 1..4 {
        use_up_block(&mut source, BLOCK - 1);
        clock.set(1_700_000_000_000 + ms);
        highest = next(&mut source).0;
    }
    // Restored from the backup, or empty, at any later time.
    clock.set(1_700_000_000_004);
    for mark in [backed_up.unwrap(), 0] {
        let token = next(&mut clock.source(mark, 0).unwrap()).0;
        assert!(token > highest, "{token} after {highest}");
    }
}

#[test]
fn s3_a_stored_mark_over_a_day_ahead_of_the_clock_is_told() {
    let now = 1_700_000_000_000;
    let ahead = |ms| {
        Clock::at(now)
            .source((now + ms) << 20, 0)
            .unwrap()
            .mark_ahead()
    };
    assert_eq!(Clock::at(now).source(0, 0).unwrap().mark_ahead(), None);
    assert_eq!(ahead(1), None);
    assert_eq!(ahead(DAY_MS), None);
    assert_eq!(ahead(DAY_MS + 1), Some(Duration::from_millis(DAY_MS + 1)));
    // A floor that the operator chose is no surprise.
    let floor = Clock::at(now).source(0, (now + 2 * DAY_MS) << 20).unwrap();
    assert_eq!(floor.mark_ahead(), None);
}

#[derive(Debug, Clone)]
enum Event {
    Issue(u64),
    ClockTo(u64),
    /// With the mark that was announced last, and this floor.
    Restart(u64),
    /// With nothing stored; the clock shows more than any token.
    LoseStore,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => prop_oneof![1..4_u64, 1..3 * BLOCK].prop_map(Event::Issue),
        3 => (0..1_u64 << 20).prop_map(Event::ClockTo),
        2 => prop_oneof![3 => Just(0), 1 => 0..1_u64 << 40].prop_map(Event::Restart),
        1 => Just(Event::LoseStore),
    ]
}

/// Thirty times as many with `TICKETING_LONG=1`.
fn cases() -> u32 {
    match std::env::var_os("TICKETING_LONG") {
        Some(_) => 1000,
        None => 32,
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(),
        failure_persistence: Some(Box::new(FileFailurePersistence::Off)),
        ..ProptestConfig::default()
    })]

    #[test]
    fn s3_tokens_rise_across_restarts_whatever_the_clock_does(events in vec(event(), 1..20)) {
        let clock = Clock::default();
        let mut source = clock.source(0, 0).unwrap();
        let (mut last, mut stored) = (0, 0);
        for event in events {
            match event {
                Event::Issue(count) => for _ in 0..count {
                    let (token, mark) = next(&mut source);
                    stored = mark.unwrap_or(stored);
                    prop_assert!(last < token && token <= stored);
                    last = token;
                },
                Event::ClockTo(ms) => clock.set(ms),
                Event::Restart(floor) => {
                    source = clock.source(stored, floor).unwrap();
                    prop_assert_eq!(source.stored_mark(), stored);
                }
                Event::LoseStore => {
                    clock.set((last >> 20) + 1);
                    source = clock.source(0, 0).unwrap();
                    let (token, mark) = next(&mut source);
                    prop_assert!(last < token);
                    (last, stored) = (token, mark.unwrap());
                }
            }
        }
    }
}
