//! The front: accepts connections and runs one task for each.

mod access;
mod connection;
mod session;

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

pub(crate) use access::Access;
pub use access::AccessError;

use crate::config::Limits;
use crate::engine::Engine;

/// What every connection's task needs.
pub(crate) struct Shared {
    pub(crate) engine: Arc<Engine>,
    access: Mutex<Arc<Access>>,
    auth_timeout: Duration,
    max_unsent: usize,
    turned_away: Mutex<Warning>,
}

impl Shared {
    pub(crate) fn new(engine: Arc<Engine>, access: Access, limits: &Limits) -> Self {
        Shared {
            engine,
            access: Mutex::new(Arc::new(access)),
            auth_timeout: limits.auth_timeout,
            max_unsent: limits.unsent_replies,
            turned_away: Mutex::default(),
        }
    }

    pub(crate) fn access(&self) -> Arc<Access> {
        self.access
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Logs why a client was not let in or was thrown out: one a minute for all to see.
    fn turned_away(&self, peer: SocketAddr, reason: &dyn Display) {
        let mut warning = self
            .turned_away
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if warning.is_due() {
            warn!(%peer, %reason, "closed a connection (in the next minute logged as debug)");
        } else {
            debug!(%peer, %reason, "closed a connection");
        }
    }

    /// For connections from now on.
    pub(crate) fn replace_access(&self, access: Access) {
        *self.access.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(access);
    }
}

/// The listener and the connections. Dropping it ends them all.
pub(crate) struct Front {
    shared: Arc<Shared>,
    listener: TcpListener,
    max_connections: usize,
    connections: JoinSet<()>,
    full: Warning,
    failing: Warning,
}

/// Something that may happen thousands of times a second and is worth a line now and then.
#[derive(Default)]
struct Warning {
    last: Option<Instant>,
}

impl Warning {
    fn is_due(&mut self) -> bool {
        const EVERY: Duration = Duration::from_secs(60);
        let due = self.last.is_none_or(|last| last.elapsed() >= EVERY);
        if due {
            self.last = Some(Instant::now());
        }
        due
    }
}

impl Front {
    pub(crate) fn new(shared: Arc<Shared>, listener: TcpListener, max_connections: usize) -> Self {
        Front {
            shared,
            listener,
            max_connections,
            connections: JoinSet::new(),
            full: Warning::default(),
            failing: Warning::default(),
        }
    }

    /// Accepts until it is dropped, or `is_done` after an event. May be dropped and called again.
    ///
    /// # Errors
    /// A connection's task panicked: a bug, which may have left the engine half-changed.
    pub(crate) async fn run(&mut self, is_done: impl Fn(&Self) -> bool) -> Result<(), JoinError> {
        while !is_done(self) {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, peer)) => self.open(stream, peer)?,
                    Err(error) => self.back_off(&error).await,
                },
                Some(ended) = self.connections.join_next() => ended?,
            }
        }
        Ok(())
    }

    fn open(&mut self, stream: TcpStream, peer: SocketAddr) -> Result<(), JoinError> {
        while let Some(ended) = self.connections.try_join_next() {
            ended?;
        }
        if self.connections.len() < self.max_connections {
            self.connections
                .spawn(connection::run(self.shared.clone(), stream, peer));
        } else if self.full.is_due() {
            // S6: closed before the hello.
            let limit = self.max_connections;
            warn!("refusing connections: limits.connections = {limit} are open");
        }
        Ok(())
    }

    /// A connection that was gone before it was accepted is nobody's problem; anything else (out of
    /// file descriptors, of memory) gets better only with time.
    async fn back_off(&mut self, error: &io::Error) {
        use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
        if let ConnectionAborted | ConnectionReset | Interrupted = error.kind() {
            return;
        }
        if self.failing.is_due() {
            warn!(%error, "cannot accept connections; trying again every 100 ms");
        }
        sleep(Duration::from_millis(100)).await;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Accepts no more and waits until every connection has ended.
    pub(crate) async fn drain(self) {
        let Front {
            listener,
            mut connections,
            ..
        } = self;
        drop(listener);
        while connections.join_next().await.is_some() {}
    }
}
