//! The figures of a run.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

/// What the calls took.
#[derive(Debug, Default)]
pub(super) struct Times {
    pub(super) acquire: Vec<Duration>,
    pub(super) release: Vec<Duration>,
    /// Calls that ended otherwise, by kind.
    others: BTreeMap<&'static str, u64>,
}

impl Times {
    pub(super) fn count(&mut self, kind: &'static str) {
        *self.others.entry(kind).or_default() += 1;
    }

    pub(super) fn add(&mut self, other: Times) {
        self.acquire.extend(other.acquire);
        self.release.extend(other.release);
        for (kind, n) in other.others {
            *self.others.entry(kind).or_default() += n;
        }
    }
}

/// The spread of one call's times.
#[derive(Debug, PartialEq, Eq)]
struct Spread {
    p50: Duration,
    p99: Duration,
    p999: Duration,
    max: Duration,
}

impl Spread {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        // The smallest time that so many of a thousand calls did not exceed.
        let quantile = |of_1000: usize| {
            let rank = (times.len() * of_1000).div_ceil(1000);
            times
                .get(rank.saturating_sub(1))
                .copied()
                .unwrap_or_default()
        };
        Spread {
            p50: quantile(500),
            p99: quantile(990),
            p999: quantile(999),
            max: quantile(1000),
        }
    }

    fn row(&self, name: &str) -> String {
        let ms = |time: Duration| format!("{:.2} ms", time.as_secs_f64() * 1000.0);
        let [p50, p99, p999, max] = [self.p50, self.p99, self.p999, self.max].map(ms);
        format!("{name}{p50:>12}{p99:>12}{p999:>12}{max:>12}")
    }

    fn json(&self) -> Value {
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        json!({
            "p50": us(self.p50),
            "p99": us(self.p99),
            "p99.9": us(self.p999),
            "max": us(self.max),
        })
    }
}

/// What came of a run.
#[derive(Debug)]
pub(super) struct Report {
    tasks: u32,
    keys: u32,
    took: Duration,
    pairs: usize,
    acquire: Spread,
    release: Spread,
    others: BTreeMap<&'static str, u64>,
    /// Grants that broke exclusion or the order of tokens.
    pub(super) violations: u64,
}

impl Report {
    pub(super) fn new(
        tasks: u32,
        keys: u32,
        took: Duration,
        times: Times,
        violations: u64,
    ) -> Self {
        Report {
            tasks,
            keys,
            took,
            pairs: times.release.len(),
            acquire: Spread::of(times.acquire),
            release: Spread::of(times.release),
            others: times.others,
            violations,
        }
    }

    fn rate(&self) -> f64 {
        let pairs = u32::try_from(self.pairs).unwrap_or(u32::MAX);
        f64::from(pairs) / self.took.as_secs_f64().max(f64::EPSILON)
    }

    pub(super) fn table(&self) -> String {
        let Report {
            tasks, keys, pairs, ..
        } = self;
        let mut text = format!(
            "{pairs} acquire + release by {tasks} tasks on {keys} keys in {:.2} s: {:.0} ops/s\n\
             {:>19}{:>12}{:>12}{:>12}\n{}\n{}\n",
            self.took.as_secs_f64(),
            self.rate(),
            "p50",
            "p99",
            "p99.9",
            "max",
            self.acquire.row("acquire"),
            self.release.row("release"),
        );
        for (kind, n) in &self.others {
            let _ = writeln!(text, "{kind}: {n}");
        }
        let _ = match self.violations {
            0 => write!(text, "exclusion held, and every key's tokens rose"),
            n => write!(text, "{n} VIOLATIONS of exclusion or token order"),
        };
        text
    }

    pub(super) fn json(&self) -> String {
        json!({
            "ops": self.pairs,
            "tasks": self.tasks,
            "keys": self.keys,
            "seconds": self.took.as_secs_f64(),
            "ops_per_second": self.rate().round(),
            "acquire_us": self.acquire.json(),
            "release_us": self.release.json(),
            "other_outcomes": self.others,
            "violations": self.violations,
        })
        .to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(range: std::ops::RangeInclusive<u64>) -> Vec<Duration> {
        range.rev().map(Duration::from_millis).collect()
    }

    #[test]
    fn the_spread_is_of_the_sorted_times() {
        let [p50, p99, p999, max] = [500, 990, 999, 1000].map(Duration::from_millis);
        let spread = Spread {
            p50,
            p99,
            p999,
            max,
        };
        assert_eq!(Spread::of(ms(1..=1000)), spread);
        let one = Spread::of(ms(7..=7));
        assert_eq!(
            (one.p50, one.max),
            (Duration::from_millis(7), Duration::from_millis(7))
        );
        assert_eq!(Spread::of(Vec::new()).max, Duration::ZERO);
    }

    fn report(violations: u64) -> Report {
        let mut times = Times {
            acquire: ms(1..=4),
            release: ms(1..=4),
            ..Times::default()
        };
        let mut more = Times::default();
        more.count("Busy");
        times.count("Busy");
        times.add(more);
        Report::new(2, 3, Duration::from_millis(500), times, violations)
    }

    #[test]
    fn the_table_says_what_there_is_to_say() {
        let table = report(0).table();
        let first = "4 acquire + release by 2 tasks on 3 keys in 0.50 s: 8 ops/s";
        assert_eq!(table.lines().next(), Some(first));
        assert!(table.contains("Busy: 2\nexclusion held"), "{table}");
        assert!(
            report(5)
                .table()
                .ends_with("5 VIOLATIONS of exclusion or token order")
        );
    }

    #[test]
    fn the_json_has_the_same_figures() {
        let json: Value = serde_json::from_str(&report(5).json()).unwrap();
        assert_eq!(json["ops"], 4);
        assert_eq!(json["ops_per_second"], 8.0);
        assert_eq!(json["acquire_us"]["p50"], 2000);
        assert_eq!(json["release_us"]["max"], 4000);
        assert_eq!(json["other_outcomes"]["Busy"], 2);
        assert_eq!(json["violations"], 5);
    }
}
