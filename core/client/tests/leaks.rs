//! Nothing is left behind: no task, no socket, no memory. One test, since it looks at the whole
//! process.

#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(target_os = "linux")]

mod peer;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use ticketing_client::TicketBroker;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::peer::{Served, secs, sockets_to, soon, until};

/// What the process has in memory, in KB.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

/// A thousand acquires whose frames the peer has seen, and nine thousand before that.
async fn cancel_ten_thousand(broker: &TicketBroker, seen: &AtomicUsize) {
    let before = seen.load(Ordering::SeqCst);
    let mut sent = JoinSet::new();
    for n in 0..1000 {
        let broker = broker.clone();
        sent.spawn(async move {
            let key = format!("sent-{n}");
            broker
                .acquire(key, secs(200), secs(30), Duration::ZERO)
                .await
        });
    }
    until("the peer saw them", || {
        seen.load(Ordering::SeqCst) >= before + 1000
    })
    .await;
    soon("all are dropped", sent.shutdown()).await;
    for n in 0..9000 {
        let key = format!("early-{n}");
        let mut acquire = pin!(broker.acquire(key, secs(200), secs(30), Duration::ZERO));
        let polled = acquire
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
        if n % 50 == 0 {
            tokio::task::yield_now().await; // some of these are written before they are dropped
        }
    }
}

#[tokio::test]
async fn c9_c27_nothing_is_left_after_ten_thousand_cancelled_acquires_nor_after_close() {
    let seen = Arc::new(AtomicUsize::new(0));
    let peer = Served::start({
        let seen = Arc::clone(&seen);
        move |asked| {
            if asked.is_release() {
                return Some(asked.released());
            }
            seen.fetch_add(1, Ordering::SeqCst);
            None
        }
    });
    let mut after_first = 0;
    for round in 0..6 {
        // Room beside the given-up ones, which keep their places until their session ends.
        let broker = TicketBroker::builder()
            .addrs([peer.addr()])
            .max_pending(4096)
            .connect()
            .unwrap();
        until("both sessions", || broker.stats().sessions_usable == 2).await;
        assert_eq!((tasks(), sockets_to(peer.port)), (3, 2));
        for _ in 0..2 {
            cancel_ten_thousand(&broker, &seen).await;
            // What was sent is withdrawn with its session; others take over.
            until("two sessions and nothing else", || {
                let stats = broker.stats();
                (stats.waiting, stats.sent, stats.sessions_usable) == (0, 0, 2)
                    && (tasks(), sockets_to(peer.port)) == (3, 2)
            })
            .await;
        }
        assert!(broker.stats().given_up >= 2000);
        soon("close", broker.close()).await;
        assert_eq!(sockets_to(peer.port), 0);
        until("no task is left", || tasks() == 0).await;
        drop(broker);
        match round {
            0 => {}
            1 => after_first = resident(),
            _ => {
                // 20,000 acquires a round: a hundred bytes kept of each would be 2 MB.
                let grown = resident().saturating_sub(after_first);
                assert!(grown < 2000, "{grown} KB more after round {round}");
            }
        }
    }
}
