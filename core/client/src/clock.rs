//! The clock of C16: it goes on while the machine sleeps.

use std::ops::{Add, Sub};
use std::time::Duration;

/// An instant on that clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Moment(Duration);

impl Moment {
    /// The present.
    pub(crate) fn now() -> Self {
        Moment(read())
    }

    /// How long until `later`; zero if that has passed.
    pub(crate) fn until(self, later: Moment) -> Duration {
        later.0.saturating_sub(self.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, by: Duration) -> Moment {
        Moment(self.0.saturating_add(by))
    }
}

impl Sub<Duration> for Moment {
    type Output = Moment;

    fn sub(self, by: Duration) -> Moment {
        Moment(self.0.saturating_sub(by))
    }
}

/// `std`'s monotonic clock stops during suspend on Linux, so CLOCK_BOOTTIME is read there; macOS'
/// CLOCK_MONOTONIC is its continuous clock already.
#[cfg(unix)]
fn read() -> Duration {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
    let t = rustix::time::clock_gettime(CLOCK);
    Duration::new(
        u64::try_from(t.tv_sec).expect("this clock starts at boot"),
        u32::try_from(t.tv_nsec).expect("below a second"),
    )
}

/// Windows: `Instant` counts through sleep there.
#[cfg(not(unix))]
fn read() -> Duration {
    use std::sync::OnceLock;
    use std::time::Instant;
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    ORIGIN.get_or_init(Instant::now).elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn c16_the_clock_counts_the_time_since_boot() {
        // CLOCK_BOOTTIME is what /proc/uptime shows; CLOCK_MONOTONIC would lack time asleep.
        let uptime = || -> f64 {
            let text = std::fs::read_to_string("/proc/uptime").unwrap();
            text.split(' ').next().unwrap().parse().unwrap()
        };
        let before = uptime();
        let now = Moment::now().0.as_secs_f64();
        let after = uptime();
        assert!(
            before - 0.02 <= now && now <= after + 0.02,
            "{before} {now} {after}"
        );
    }
}
