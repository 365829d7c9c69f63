//! What the caller asks for, checked before anything is sent (C1–C5).

use std::time::Duration;

use ticketing_wire::{InvalidKeySet, KeySet};

use crate::TicketError;

/// The longest `wait` (C1).
const MAX_WAIT: Duration = Duration::from_secs(255);
/// The longest `lease` and `min_work` (C2, C3).
const MAX_LEASE: Duration = Duration::from_secs(250);

/// One acquire's durations, normalised (C4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    /// Whole seconds in line, 0–255; 0 never queues.
    pub(crate) wait: u8,
    /// Whole seconds held, 1–250.
    pub(crate) lease: u8,
    /// The validity that the caller needs at the moment it resumes.
    pub(crate) min_work: Duration,
}

impl Terms {
    pub(crate) fn new(
        wait: Duration,
        lease: Duration,
        min_work: Duration,
    ) -> Result<Self, TicketError> {
        if lease.is_zero() {
            return Err(TicketError::invalid(
                "lease",
                "a lease is 1 to 250 s, not 0",
            ));
        }
        let wait = whole_seconds("wait", wait, MAX_WAIT)?;
        let lease = whole_seconds("lease", lease, MAX_LEASE)?;
        if min_work > MAX_LEASE {
            return Err(above("min_work", min_work, MAX_LEASE));
        }
        let normalised = Duration::from_secs(lease.into());
        if min_work > normalised {
            return Err(TicketError::InsufficientLease {
                remaining_ms: millis(normalised),
                min_work_ms: millis_up(min_work),
                detail: "min_work must not exceed the lease; ask for a longer lease".into(),
            });
        }
        Ok(Terms {
            wait,
            lease,
            min_work,
        })
    }

    /// Whether a grant after a full wait would leave less than `min_work` (C16: the time in line
    /// counts against the lease).
    pub(crate) fn hardly_succeeds(&self) -> bool {
        Duration::from_secs(self.lease.into())
            <= Duration::from_secs(self.wait.into()) + self.min_work
    }
}

fn whole_seconds(
    argument: &'static str,
    value: Duration,
    max: Duration,
) -> Result<u8, TicketError> {
    let seconds = seconds_up(value);
    if seconds > max.as_secs() {
        return Err(above(argument, value, max));
    }
    Ok(u8::try_from(seconds).expect("at most 255"))
}

/// Rounded up to the wire's unit (C4).
pub(crate) fn seconds_up(value: Duration) -> u64 {
    value
        .as_secs()
        .saturating_add(u64::from(value.subsec_nanos() > 0))
}

fn above(argument: &'static str, value: Duration, max: Duration) -> TicketError {
    TicketError::UnsupportedDuration {
        argument,
        max_seconds: max.as_secs(),
        detail: format!("{value:?} was asked for"),
    }
}

/// Whole milliseconds, rounded down.
pub(crate) fn millis(value: Duration) -> u64 {
    u64::try_from(value.as_millis()).unwrap_or(u64::MAX)
}

/// Whole milliseconds, rounded up, so that a need is never understated.
pub(crate) fn millis_up(value: Duration) -> u64 {
    millis(value.saturating_add(Duration::from_nanos(999_999)))
}

/// The keys of one acquire (C5).
pub(crate) fn key_set<S: AsRef<str>>(
    keys: impl IntoIterator<Item = S>,
) -> Result<KeySet, TicketError> {
    KeySet::new(keys).map_err(|e| match e {
        InvalidKeySet::Key { reason, .. } => TicketError::invalid("key", reason.to_string()),
        other => TicketError::invalid("keys", other.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    fn terms(wait: Duration, lease: Duration, min_work: Duration) -> Result<Terms, TicketError> {
        Terms::new(wait, lease, min_work)
    }

    fn too_long(result: Result<Terms, TicketError>, argument: &str, max: u64) {
        match result.unwrap_err() {
            TicketError::UnsupportedDuration {
                argument: a,
                max_seconds,
                ..
            } => {
                assert_eq!((a, max_seconds), (argument, max));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn c1_wait_is_0_to_255_s() {
        assert_eq!(terms(secs(0), secs(1), secs(0)).unwrap().wait, 0);
        assert_eq!(terms(secs(255), secs(1), secs(0)).unwrap().wait, 255);
        too_long(
            terms(secs(255) + Duration::from_nanos(1), secs(1), secs(0)),
            "wait",
            255,
        );
        too_long(terms(Duration::MAX, secs(1), secs(0)), "wait", 255);
    }

    #[test]
    fn c2_lease_is_1_to_250_s() {
        assert_eq!(terms(secs(0), secs(250), secs(0)).unwrap().lease, 250);
        too_long(terms(secs(0), secs(251), secs(0)), "lease", 250);
        let zero = terms(secs(0), secs(0), secs(0)).unwrap_err();
        assert!(
            matches!(
                zero,
                TicketError::InvalidInput {
                    argument: "lease",
                    ..
                }
            ),
            "{zero:?}"
        );
    }

    #[test]
    fn c3_min_work_is_at_most_250_s_and_at_most_the_normalised_lease() {
        assert!(terms(secs(0), Duration::from_millis(4001), secs(5)).is_ok());
        too_long(terms(secs(0), secs(9), secs(251)), "min_work", 250);
        let more = terms(secs(0), secs(4), Duration::from_millis(4001)).unwrap_err();
        assert!(
            matches!(
                more,
                TicketError::InsufficientLease {
                    remaining_ms: 4000,
                    min_work_ms: 4001,
                    ..
                }
            ),
            "{more:?}"
        );
    }

    #[test]
    fn c4_wait_and_lease_are_rounded_up_then_range_checked() {
        let t = terms(
            Duration::from_nanos(1),
            Duration::from_millis(249_001),
            secs(0),
        )
        .unwrap();
        assert_eq!((t.wait, t.lease), (1, 250));
        too_long(
            terms(secs(0), Duration::from_millis(250_001), secs(0)),
            "lease",
            250,
        );
        // A range fault is told before min_work is compared with the lease.
        too_long(terms(secs(0), secs(1), secs(300)), "min_work", 250);
    }

    #[test]
    fn c5_keys_are_checked_sorted_and_made_one() {
        assert_eq!(
            key_set(["b", "a", "b"]).unwrap(),
            key_set(["a", "b"]).unwrap()
        );
        assert_eq!(key_set(["a", "a"]).unwrap(), key_set(["a"]).unwrap());
        for bad in ["", "a b", "a\nb", "a\rb", &"k".repeat(129)] {
            let e = key_set([bad]).unwrap_err();
            assert!(
                matches!(
                    e,
                    TicketError::InvalidInput {
                        argument: "key",
                        ..
                    }
                ),
                "{e:?}"
            );
        }
        let none = key_set::<&str>([]).unwrap_err();
        assert!(
            matches!(
                none,
                TicketError::InvalidInput {
                    argument: "keys",
                    ..
                }
            ),
            "{none:?}"
        );
        assert!(key_set((0..17).map(|i| i.to_string())).is_err());
    }
}
