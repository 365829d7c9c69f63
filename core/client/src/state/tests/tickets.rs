//! Tickets on the state machine without a driver (C17, C18).

use std::future::Future;
use std::pin::pin;

use super::*;
use crate::shared::{Handle, Shared};
use crate::ticket::{Held, Ticket, TicketSet};

/// A ticket, and the session that takes its release.
struct Bench {
    handle: Arc<Handle>,
    session: SessionId,
}

impl Bench {
    fn new() -> Self {
        let now = Moment::now();
        let mut state = State::new(now, 1, 16, 1);
        state.tick(now);
        let link = state.next_connect().unwrap();
        let session = state.connected(now, link).unwrap();
        let shared = Arc::new(Shared::new(state, std::process::id));
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let handle = Arc::new(Handle::new(shared, runtime.unwrap().handle().clone()));
        Bench { handle, session }
    }

    fn grant(&self, names: &[&str]) -> Held {
        let grant = Grant {
            keys: Arc::new(keys(names)),
            token: token(42),
            valid_before: Moment::now() + secs(60),
        };
        Held::new(Arc::clone(&self.handle), grant)
    }

    fn ticket(&self) -> Ticket {
        Ticket::new(self.grant(&["k"]))
    }

    fn sent(&self) -> Vec<Frame> {
        let mut buf = Vec::new();
        self.handle.shared.with(|state, now| {
            let _ = state.transmit(now, self.session, &mut buf);
            state.transmitted(now, self.session);
        });
        decode(&buf)
    }

    fn reply(&self, reply: Reply) {
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        self.handle
            .shared
            .with(|state, now| state.received(now, self.session, &bytes));
    }
}

fn poll<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut cx = Context::from_waker(Waker::noop());
    match pin!(future).as_mut().poll(&mut cx) {
        Poll::Ready(out) => Some(out),
        Poll::Pending => None,
    }
}

#[test]
fn c17_a_ticket_has_its_keys_its_token_and_its_remaining_validity() {
    let bench = Bench::new();
    let ticket = bench.ticket();
    assert_eq!((ticket.key(), ticket.token()), ("k", 42));
    assert!(ticket.remaining() <= secs(60) && ticket.remaining() > secs(50));
    let set = TicketSet::new(bench.grant(&["b", "a", "b"]));
    assert_eq!(set.keys().collect::<Vec<_>>(), ["a", "b"]);
    fn belongs_to_nobodys_thread<T: Send + Sync + 'static>(_: &T) {}
    belongs_to_nobodys_thread(&ticket);
    belongs_to_nobodys_thread(&set);
}

#[test]
fn c17_the_end_of_the_validity_is_a_signal() {
    let bench = Bench::new();
    assert_eq!(poll(bench.ticket().expired()), None);
    let grant = Grant {
        keys: Arc::new(keys(&["k"])),
        token: token(42),
        valid_before: Moment::now(),
    };
    let ticket = Ticket::new(Held::new(Arc::clone(&bench.handle), grant));
    assert_eq!(poll(ticket.expired()), Some(()));
    assert_eq!(ticket.remaining(), Duration::ZERO);
}

#[test]
fn c18_an_explicit_release_is_sent_once_and_its_outcome_kept() {
    let bench = Bench::new();
    let ticket = bench.ticket();
    assert!(poll(ticket.release()).is_none());
    let sent = bench.sent();
    assert_eq!((sent.len(), sent[0].token()), (1, 42));
    // A caller that gave up leaves it running; asking again waits for the same one.
    assert!(poll(ticket.release()).is_none());
    assert_eq!(bench.sent(), []);
    bench.reply(sent[0].not_current());
    for _ in 0..2 {
        assert_eq!(poll(ticket.release()), Some(Ok(ReleaseOutcome::NotCurrent)));
    }
    ticket.keep();
    drop(ticket);
    assert_eq!(bench.sent(), []);
}

#[test]
fn c18_a_failed_explicit_release_is_not_repeated_either() {
    let bench = Bench::new();
    let ticket = bench.ticket();
    assert!(poll(ticket.release()).is_none());
    let sent = bench.sent();
    bench.reply(sent[0].error(ErrorCode::GroupMismatch));
    for _ in 0..2 {
        let outcome = poll(ticket.release()).unwrap();
        assert_eq!(outcome.unwrap_err().kind(), "Protocol");
    }
    drop(ticket);
    assert_eq!(bench.sent(), []);
}

#[test]
fn c18_a_dropped_ticket_is_released_in_the_background() {
    let bench = Bench::new();
    drop(bench.ticket());
    drop(TicketSet::new(bench.grant(&["a", "b"])));
    let sent = bench.sent();
    assert_eq!((sent.len(), sent[0].token()), (2, 42));
    assert_eq!(sent[1].keys, ["a", "b"]);
}

#[test]
fn c18_keep_gives_the_automatic_release_up_not_the_explicit_one() {
    let bench = Bench::new();
    let ticket = bench.ticket();
    ticket.keep();
    drop(ticket);
    assert_eq!(bench.sent(), []);
    let ticket = bench.ticket();
    ticket.keep();
    assert!(poll(ticket.release()).is_none());
    assert_eq!(bench.sent().len(), 1);
}

#[test]
fn c18_the_release_of_the_last_ticket_comes_before_the_close_that_it_causes() {
    let bench = Bench::new();
    let ticket = bench.ticket();
    let shared = Arc::clone(&bench.handle.shared);
    let session = bench.session;
    drop(bench);
    drop(ticket);
    let mut buf = Vec::new();
    shared.with(|state, now| {
        let _ = state.transmit(now, session, &mut buf);
    });
    assert_eq!(
        decode(&buf).len(),
        1,
        "closing, and the release is finished first (C27)"
    );
}
