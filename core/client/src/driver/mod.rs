//! The thin driver: sockets, TLS and timers for the state machine, which decides everything.

mod connect;
mod pump;
mod records;

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use ticketing_wire::Identity;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::addr::Addr;
use crate::clock::Moment;
use crate::shared::Shared;
use crate::state::{Failure, LinkId};
use crate::tls::TlsClient;

/// Whom the connections go to, and how.
pub(crate) struct Peer {
    pub(crate) addrs: Vec<Addr>,
    /// Never printed (C29).
    pub(crate) token: String,
    pub(crate) identity: Identity,
    pub(crate) tls: TlsClient,
}

/// Tells the state machine that nothing drives it any more, also when the runtime that the driver
/// lived in was shut down, even before its first step: calls then fail instead of waiting for ever.
struct Gone(Arc<Shared>);

impl Drop for Gone {
    fn drop(&mut self) {
        if self.0.check_process().is_ok() {
            self.0.with(|state, now| state.driver_gone(now));
        }
    }
}

/// The one task of a broker object, beside one for each connection. Ends when it is closed and
/// every socket is gone.
pub(crate) fn run(shared: Arc<Shared>, peer: Arc<Peer>) -> impl Future<Output = ()> {
    let gone = Gone(shared);
    async move {
        drive(&gone.0, &peer).await;
        drop(gone);
    }
}

async fn drive(shared: &Arc<Shared>, peer: &Arc<Peer>) {
    let mut connections = JoinSet::new();
    // Dropped when all is over: attempts end with it.
    let over = watch::Sender::new(());
    while let Some(deadline) = step(shared, peer, &mut connections, &over).await {
        let woken = poll_fn(|_| match shared.with(|state, _| state.driver_is_woken()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        });
        tokio::select! {
            () = woken => {}
            () = sleep_until(deadline) => {}
            Some(ended) = connections.join_next() => {
                if let Err(e) = ended {
                    tracing::error!(error = %e, "a connection task failed, please report it");
                }
            }
        }
    }
    drop(over);
    // Sessions are over by now and close their sockets themselves.
    while connections.join_next().await.is_some() {}
}

/// Does what is due and opens connections. `None` when all is over, else the next deadline.
async fn step(
    shared: &Arc<Shared>,
    peer: &Arc<Peer>,
    connections: &mut JoinSet<()>,
    over: &watch::Sender<()>,
) -> Option<Option<Moment>> {
    poll_fn(|cx| {
        let mut links = Vec::new();
        let next = shared.with(|state, now| {
            state.tick(now);
            if state.is_closed() {
                return None;
            }
            links.extend(std::iter::from_fn(|| state.next_connect()));
            Some(state.next_deadline(cx.waker()))
        });
        for link in links {
            let shared = Arc::clone(shared);
            connections.spawn(connection(shared, Arc::clone(peer), link, over.subscribe()));
        }
        Poll::Ready(next)
    })
    .await
}

async fn sleep_until(deadline: Option<Moment>) {
    match deadline {
        Some(at) => tokio::time::sleep(Moment::now().until(at)).await,
        None => std::future::pending().await,
    }
}

/// Tells the state machine that an attempt failed, also when its task ends by a bug: its link
/// would count as connecting for ever.
struct Attempt<'a> {
    shared: &'a Shared,
    link: LinkId,
    /// `None` when there is nothing to tell any more.
    failure: Option<Failure>,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if let Some(failure) = self.failure.take()
            && self.shared.check_process().is_ok()
        {
            self.shared
                .with(|state, now| state.connect_failed(now, self.link, failure));
        }
    }
}

/// One connection, from the attempt to its end.
async fn connection(
    shared: Arc<Shared>,
    peer: Arc<Peer>,
    link: LinkId,
    mut over: watch::Receiver<()>,
) {
    let unexpected = "the connection attempt ended unexpectedly; please report it";
    let mut attempt = Attempt {
        shared: &shared,
        link,
        failure: Some(Failure::Other(unexpected.into())),
    };
    let (node, mode) = shared.with(|state, _| (state.node_of(link), state.expected_mode(link)));
    let addr = &peer.addrs[node];
    let opened = tokio::select! {
        opened = connect::open(addr, &peer, mode) => opened,
        _ = over.changed() => {
            attempt.failure = None;
            return;
        }
    };
    match opened {
        Ok(stream) => {
            attempt.failure = None;
            if let Some(session) = shared.with(|state, now| state.connected(now, link)) {
                tracing::debug!(%addr, session, "connected");
                pump::run(&shared, session, stream).await;
            }
        }
        Err(failure) => {
            let failure = match failure {
                Failure::Other(why) => Failure::Other(format!("{addr}: {why}")),
                Failure::Rejected => Failure::Rejected,
            };
            tracing::debug!(%addr, ?failure, "not connected");
            attempt.failure = Some(failure);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::state::State;

    #[tokio::test]
    async fn c22_an_attempt_that_ends_by_a_bug_is_a_failed_attempt() {
        let state = State::new(Moment::now(), 1, 16, 1);
        let shared = Arc::new(Shared::new(state, std::process::id));
        // No address: each attempt panics when it looks for its own.
        let peer = Peer {
            addrs: Vec::new(),
            token: String::new(),
            identity: Identity::single(),
            tls: TlsClient(None),
        };
        let driver = tokio::spawn(run(Arc::clone(&shared), Arc::new(peer)));
        // They are made again.
        let again = async {
            while shared.with(|state, _| state.faults()) < 4 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let again = tokio::time::timeout(Duration::from_secs(30), again).await;
        assert!(again.is_ok(), "a link is connecting for ever");
        let error = shared.with(|state, _| state.stats().last_connection_error);
        assert!(error.unwrap().contains("unexpected"));
        shared.with(|state, now| state.close(now));
        driver.await.unwrap();
    }
}
