//! The library's log, kept until the other side pulls it: no foreign code is called from here.

use std::collections::VecDeque;
use std::fmt::{Debug, Write};
use std::sync::{Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::Registry;
use tracing_subscriber::reload;

use crate::library::library;
use crate::types::{LogLevel, LogRecord};

/// So many records are kept; what comes on top is counted.
const MOST: usize = 1024;

#[derive(Default)]
pub(crate) struct Logs(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    records: VecDeque<LogRecord>,
    lost: u64,
}

impl Logs {
    fn push(&self, record: LogRecord) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match kept.records.len() < MOST {
            true => kept.records.push_back(record),
            false => kept.lost += 1,
        }
    }

    pub(crate) fn drain(&self) -> Vec<LogRecord> {
        let kept = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let mut records = Vec::from(kept.records);
        if kept.lost > 0 {
            records.push(LogRecord {
                level: LogLevel::Warn,
                target: "ticketing_ffi::logs".into(),
                message: format!("{} log records were lost: too many at once", kept.lost),
            });
        }
        records
    }
}

/// The level is the library's, not a process's: a child keeps its parent's.
static LEVEL: std::sync::OnceLock<reload::Handle<LevelFilter, Registry>> =
    std::sync::OnceLock::new();

/// Makes this library's `tracing` end here. In a program that has a subscriber of its own (a Rust
/// test), that one stays.
pub(crate) fn install() {
    if LEVEL.get().is_none() {
        let (level, handle) = reload::Layer::new(LevelFilter::WARN);
        let subscriber = Registry::default().with(Collector.with_filter(level));
        if tracing::subscriber::set_global_default(subscriber).is_ok() {
            let _ = LEVEL.set(handle);
        }
    }
}

pub(crate) fn set_level(level: LogLevel) {
    let filter = match level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    if let Some(handle) = LEVEL.get() {
        // It fails only when the subscriber is gone, and that is never.
        let _ = handle.reload(filter);
    }
}

struct Collector;

impl<S: Subscriber> Layer<S> for Collector {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let mut text = Text::default();
        event.record(&mut text);
        library().logs.push(LogRecord {
            level: match *metadata.level() {
                Level::ERROR => LogLevel::Error,
                Level::WARN => LogLevel::Warn,
                Level::INFO => LogLevel::Info,
                Level::DEBUG => LogLevel::Debug,
                Level::TRACE => LogLevel::Trace,
            },
            target: metadata.target().to_owned(),
            message: text.message + &text.fields,
        });
    }
}

/// The message, and ` name=value` for each other field.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a `String` does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_counted_and_said() {
        let logs = Logs::default();
        let record = |n: usize| LogRecord {
            level: LogLevel::Info,
            target: "here".into(),
            message: n.to_string(),
        };
        (0..MOST + 3).for_each(|n| logs.push(record(n)));
        let drained = logs.drain();
        assert_eq!(drained[..MOST], (0..MOST).map(record).collect::<Vec<_>>());
        assert_eq!(drained[MOST..].len(), 1);
        assert!(drained[MOST].message.starts_with("3 log records"));
        assert!(logs.drain().is_empty());
    }
}
