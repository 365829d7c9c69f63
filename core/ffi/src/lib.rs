//! The Ticketing client for other languages: one interface, one completion queue.
//!
//! `ticketing.udl` is the interface and its documentation. Everything here is thin: `queue` is
//! the state machine, `calls` what a tag stands for, `library` what a process holds.

#![allow(
    missing_docs,
    reason = "the interface is documented where it is defined, in ticketing.udl"
)]

mod calls;
mod keys;
mod library;
mod logs;
mod queue;
mod types;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ticketing_client as client;

use crate::calls::{Aborting, Operation, internal};
use crate::library::library;
use crate::queue::Queue;
pub use crate::types::{
    BrokerOptions, Completion, Dialect, LogLevel, LogRecord, Outcome, Stats, TicketError, TlsMode,
};
use crate::types::{duration, millis, timeout};

uniffi::include_scaffolding!("ticketing");

/// Runs an export; a panic of ours becomes `otherwise` and never crosses the boundary.
fn guarded<T>(otherwise: T, export: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(export)).unwrap_or(otherwise)
}

pub fn queue_open() -> i64 {
    guarded(-1, || library().queues.insert(Queue::new()))
}

pub fn queue_fd(queue: i64) -> i32 {
    guarded(-1, || {
        let queue = library().queues.get(queue);
        queue.map_or(-1, |queue| queue.descriptor())
    })
}

pub fn queue_wait(queue: i64, timeout_ms: i64) -> bool {
    guarded(false, || {
        let queue = library().queues.get(queue);
        queue.is_some_and(|queue| queue.wait(timeout(timeout_ms)))
    })
}

pub fn queue_next(queue: i64, seen: i64, max: u32, timeout_ms: i64) -> Vec<Completion> {
    guarded(Vec::new(), || {
        let Some(queue) = library().queues.get(queue) else {
            return Vec::new();
        };
        let max = usize::try_from(max).unwrap_or(usize::MAX);
        let taken = queue.next(seen, max, timeout(timeout_ms));
        let completions = taken.into_iter().map(|completion| Completion {
            seq: completion.seq,
            tag: completion.tag,
            outcome: completion.end.outcome,
        });
        completions.collect()
    })
}

pub fn queue_close(queue: i64) {
    guarded((), || {
        if let Some(queue) = library().queues.take(queue) {
            queue.close();
        }
    });
}

pub fn broker_open(options: BrokerOptions) -> Result<i64, TicketError> {
    let open = || {
        let builder = client::TicketBroker::builder()
            .addrs(options.addrs)
            .token(options.token)
            .tls(options.tls.into())
            .cluster(options.cluster)
            .max_pending(usize::try_from(options.max_pending).unwrap_or(usize::MAX));
        let broker = library().on_runtime(|| builder.connect())?;
        Ok(library().brokers.insert(broker))
    };
    guarded(
        Err(internal("opening a broker object panicked").into()),
        open,
    )
}

pub fn broker_stats(broker: i64) -> Stats {
    guarded(Stats::default(), || {
        let broker = library().brokers.get(broker);
        broker.map_or_else(Stats::default, |broker| broker.stats().into())
    })
}

pub fn broker_drop(broker: i64) {
    guarded((), || drop(library().brokers.take(broker)));
}

/// Submits what `operation` makes; what it fails with is how the call ends. Without its queue
/// there is nobody to tell: the call is given up.
fn submit(
    queue: i64,
    tag: i64,
    operation: impl FnOnce() -> Result<Operation, client::TicketError>,
) {
    guarded((), || {
        let Some(queue) = library().queues.get(queue) else {
            return;
        };
        let made = catch_unwind(AssertUnwindSafe(operation));
        let made = made.unwrap_or_else(|_| Err(internal("submitting a call panicked")));
        queue.submit(tag, made.unwrap_or_else(Operation::Failed));
    });
}

pub fn submit_acquire(
    broker: i64,
    queue: i64,
    tag: i64,
    keys: &[u8],
    wait_ms: i64,
    lease_ms: i64,
    min_work_ms: i64,
) {
    submit(queue, tag, || {
        let wait = duration("wait", wait_ms)?;
        let lease = duration("lease", lease_ms)?;
        let min_work = duration("min_work", min_work_ms)?;
        let keys = keys::decode(keys)?;
        let broker = library().broker(broker)?;
        let acquiring = broker.begin_acquire(keys, wait, lease, min_work)?;
        Ok(Operation::Acquire(acquiring, min_work))
    });
}

pub fn submit_release(queue: i64, tag: i64, ticket: i64) {
    submit(queue, tag, || {
        let found = library().tickets.get(ticket);
        let ticket = found.ok_or_else(|| library().unknown("ticket", ticket))?;
        Ok(Operation::release(ticket))
    });
}

pub fn submit_ready(broker: i64, queue: i64, tag: i64, timeout_ms: i64) {
    submit(queue, tag, || {
        let timeout = duration("timeout", timeout_ms)?;
        Ok(Operation::ready(library().broker(broker)?, timeout))
    });
}

pub fn submit_close(broker: i64, queue: i64, tag: i64) {
    submit(queue, tag, || {
        Ok(Operation::close(library().broker(broker)?))
    });
}

pub fn submit_campaign(
    broker: i64,
    queue: i64,
    tag: i64,
    name: &[u8],
    lease_ms: i64,
    margin_ms: i64,
) {
    submit(queue, tag, || {
        let broker = library().broker(broker)?;
        let name = keys::utf8("name", name)?;
        let mut candidate =
            client::Candidate::new(&broker, name).lease(duration("lease", lease_ms)?);
        if margin_ms != -1 {
            candidate = candidate.margin(duration("margin", margin_ms)?);
        }
        let campaign = async move { candidate.campaign().await };
        let task = library().on_runtime(|| Ok(tokio::spawn(campaign)))?;
        Ok(Operation::Campaign(Aborting(task)))
    });
}

/// The leadership under a number.
fn leadership(number: i64) -> Result<Arc<client::Leadership>, client::TicketError> {
    let found = library().leaderships.get(number);
    found.ok_or_else(|| library().unknown("leadership", number))
}

pub fn submit_next_term(queue: i64, tag: i64, leadership: i64, token: u64) {
    submit(queue, tag, || {
        let leadership = self::leadership(leadership)?;
        Ok(Operation::next_term(leadership, token))
    });
}

pub fn submit_resign(queue: i64, tag: i64, leadership: i64) {
    submit(queue, tag, || {
        Ok(Operation::resign(self::leadership(leadership)?))
    });
}

pub fn cancel(queue: i64, tag: i64) {
    guarded((), || {
        if let Some(queue) = library().queues.get(queue) {
            queue.cancel(tag);
        }
    });
}

pub fn ticket_drop(ticket: i64) {
    guarded((), || drop(library().tickets.take(ticket)));
}

pub fn ticket_keep(ticket: i64) {
    guarded((), || {
        if let Some(ticket) = library().tickets.get(ticket) {
            ticket.keep();
        }
    });
}

pub fn ticket_remaining_ms(ticket: i64) -> i64 {
    guarded(0, || {
        let ticket = library().tickets.get(ticket);
        ticket.map_or(0, |ticket| millis(ticket.remaining()))
    })
}

pub fn ticket_keys(ticket: i64) -> Vec<String> {
    guarded(Vec::new(), || {
        let ticket = library().tickets.get(ticket);
        ticket.map_or_else(Vec::new, |ticket| ticket.keys().map(Into::into).collect())
    })
}

pub fn leadership_drop(leadership: i64) {
    guarded((), || {
        if let Some(leadership) = library().leaderships.take(leadership) {
            calls::resign_in_background(leadership);
        }
    });
}

pub fn leadership_token(leadership: i64) -> u64 {
    guarded(0, || {
        let leadership = library().leaderships.get(leadership);
        leadership.map_or(0, |leadership| leadership.token())
    })
}

pub fn leadership_remaining_ms(leadership: i64) -> i64 {
    guarded(0, || {
        let leadership = library().leaderships.get(leadership);
        leadership.map_or(0, |leadership| millis(leadership.remaining()))
    })
}

pub fn fence_statement(dialect: Dialect, again: bool) -> String {
    client::fence_statement(dialect.into(), again).to_owned()
}

pub fn fence_table(dialect: Dialect) -> String {
    client::fence_table(dialect.into()).to_owned()
}

pub fn set_log_level(level: LogLevel) {
    guarded((), || {
        library();
        logs::set_level(level);
    });
}

pub fn drain_logs() -> Vec<LogRecord> {
    guarded(Vec::new(), || library().logs.drain())
}

pub fn interface_version() -> String {
    env!("TICKETING_INTERFACE").to_owned()
}

pub fn stop(timeout_ms: i64) {
    guarded((), || library().stop(timeout(timeout_ms)));
}
