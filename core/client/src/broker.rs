//! The broker object: made once at start-up, shared by all (C21).

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ticketing_wire::{Identity, KeySet};

use crate::acquiring::Acquiring;
use crate::addr::Addr;
use crate::args::{Terms, key_set};
use crate::clock::Moment;
use crate::driver::{self, Peer};
use crate::shared::{Handle, Shared};
use crate::state::{CLOSE_TIME, Readiness, State};
use crate::ticket::{Held, Ticket, TicketSet};
use crate::tls::{TlsClient, TlsMode};
use crate::{Stats, TicketError};

const DEFAULT_MAX_PENDING: usize = 1024;
const MAX_MAX_PENDING: usize = 16_384;

/// How long `close` waits for the driver to close the sockets that its 5 s left.
const LAST_SOCKETS: Duration = Duration::from_secs(1);

/// A client of one broker, or of one cluster of brokers.
///
/// Made once at start-up and shared: a clone is another handle to the same connections. It heals
/// itself. When the last handle and the last ticket are gone, it closes in the background; call
/// [`TicketBroker::close`] to wait for that. The documented order is: release, then close.
#[derive(Clone)]
pub struct TicketBroker(Arc<Handle>);

/// What a [`TicketBroker`] is made from.
#[derive(Clone)]
pub struct Builder {
    addrs: Vec<String>,
    token: String,
    tls: TlsMode,
    cluster: String,
    max_pending: usize,
    process_id: fn() -> u32,
}

impl fmt::Debug for Builder {
    /// Without the token (C29).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("addrs", &self.addrs)
            .field("tls", &self.tls)
            .field("cluster", &self.cluster)
            .field("max_pending", &self.max_pending)
            .finish_non_exhaustive()
    }
}

impl Default for Builder {
    fn default() -> Self {
        Builder {
            addrs: Vec::new(),
            token: String::new(),
            tls: TlsMode::Off,
            cluster: "default".into(),
            max_pending: DEFAULT_MAX_PENDING,
            process_id: std::process::id,
        }
    }
}

impl Builder {
    /// `host:port` or `[v6]:port`: one address is a single broker, two to five are a cluster's
    /// nodes in slot order (C6).
    #[must_use]
    pub fn addrs<S: Into<String>>(mut self, addrs: impl IntoIterator<Item = S>) -> Self {
        self.addrs = addrs.into_iter().map(Into::into).collect();
        self
    }

    /// The client token; empty (the default) for a broker without authentication.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = token.into();
        self
    }

    /// How the connection is protected; off by default.
    #[must_use]
    pub fn tls(mut self, tls: TlsMode) -> Self {
        self.tls = tls;
        self
    }

    /// The cluster's name (default `default`), or exactly 64 hex digits for its identity itself.
    #[must_use]
    pub fn cluster(mut self, name: impl Into<String>) -> Self {
        self.cluster = name.into();
        self
    }

    /// How many acquires may be outstanding: 1–16384, default 1024 (C26).
    #[must_use]
    pub fn max_pending(mut self, max_pending: usize) -> Self {
        self.max_pending = max_pending;
        self
    }

    /// Where the process id is read, so that C30 can be tested without a `fork`.
    #[doc(hidden)]
    #[must_use]
    pub fn process_id(mut self, process_id: fn() -> u32) -> Self {
        self.process_id = process_id;
        self
    }

    /// Makes the broker object; does not wait for a connection (C21). Call it inside a tokio
    /// runtime: its tasks live there.
    ///
    /// # Errors
    /// `InvalidInput`: an address, `max_pending` or the cluster's name is wrong, or there is no
    /// tokio runtime. `Io`: the CA file can't be read. `Tls`: it holds no certificate.
    pub fn connect(self) -> Result<TicketBroker, TicketError> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| {
            TicketError::invalid("runtime", "make the broker object inside a tokio runtime")
        })?;
        let addrs = Addr::parse_all(&self.addrs)?;
        if !(1..=MAX_MAX_PENDING).contains(&self.max_pending) {
            let detail = format!("{} is not in 1 to {MAX_MAX_PENDING}", self.max_pending);
            return Err(TicketError::invalid("max_pending", detail));
        }
        let identity = match addrs.len() {
            1 => Identity::single(),
            _ => Identity::cluster(&self.cluster)
                .map_err(|e| TicketError::invalid("cluster", e.to_string()))?,
        };
        let tls = TlsClient::new(&self.tls)?;
        let state = State::new(Moment::now(), addrs.len(), self.max_pending, rand::random());
        let shared = Arc::new(Shared::new(state, self.process_id));
        let peer = Peer {
            addrs,
            token: self.token,
            identity,
            tls,
        };
        runtime.spawn(driver::run(Arc::clone(&shared), Arc::new(peer)));
        Ok(TicketBroker(Arc::new(Handle::new(shared, runtime))))
    }
}

/// One or more addresses, for [`TicketBroker::connect`].
#[derive(Debug, Clone)]
pub struct Addrs(Vec<String>);

impl From<&str> for Addrs {
    fn from(addr: &str) -> Self {
        Addrs(vec![addr.into()])
    }
}

impl From<String> for Addrs {
    fn from(addr: String) -> Self {
        Addrs(vec![addr])
    }
}

impl<S: Into<String>> From<Vec<S>> for Addrs {
    fn from(addrs: Vec<S>) -> Self {
        Addrs(addrs.into_iter().map(Into::into).collect())
    }
}

impl<S: Into<String>, const N: usize> From<[S; N]> for Addrs {
    fn from(addrs: [S; N]) -> Self {
        Addrs(addrs.into_iter().map(Into::into).collect())
    }
}

impl TicketBroker {
    /// A broker object without token and TLS: [`Builder::connect`] with the addresses alone.
    ///
    /// # Errors
    /// As [`Builder::connect`].
    pub fn connect(addrs: impl Into<Addrs>) -> Result<Self, TicketError> {
        Self::builder().addrs(addrs.into().0).connect()
    }

    /// A broker object with options.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Waits until a session is usable, at most `timeout`; says whether one is (C21).
    pub async fn wait_ready(&self, timeout: Duration) -> bool {
        if self.0.shared.check_process().is_err() {
            return false;
        }
        let shared = &self.0.shared;
        let (mut readiness, end) =
            shared.with(|state, now| (state.watch_readiness(), now + timeout));
        let decided = readiness.wait_for(|r| *r != Readiness::Waiting);
        let ended = shared.alarm.until(end, decided).await;
        matches!(ended, Some(Ok(r)) if *r == Readiness::Usable)
    }

    /// Asks for a ticket on `key`: stands in line for at most `wait` (0–255 s; 0 is one immediate
    /// attempt), holds it for at most `lease` (1–250 s), and wants at least `min_work` (0–lease)
    /// of validity left when this returns. Durations are rounded up to whole seconds (C1–C4).
    /// The time in line counts against the lease (C16): choose a lease above `wait + min_work`.
    ///
    /// Dropping the future cancels the request; a grant that crosses this is given back.
    ///
    /// # Errors
    /// See [`TicketError`]: the arguments' kinds before anything is sent, then the outcomes. No
    /// error means that the caller may enter its critical section, every error that it may not.
    pub async fn acquire(
        &self,
        key: impl AsRef<str>,
        wait: Duration,
        lease: Duration,
        min_work: Duration,
    ) -> Result<Ticket, TicketError> {
        let terms = Terms::new(wait, lease, min_work)?;
        let keys = key_set([key])?;
        self.grant(keys, terms).await.map(Ticket::new)
    }

    /// As [`TicketBroker::acquire`], for 1–16 keys at once: all or none, under one token.
    ///
    /// # Errors
    /// As [`TicketBroker::acquire`].
    pub async fn acquire_set<S: AsRef<str>>(
        &self,
        keys: impl IntoIterator<Item = S>,
        wait: Duration,
        lease: Duration,
        min_work: Duration,
    ) -> Result<TicketSet, TicketError> {
        let terms = Terms::new(wait, lease, min_work)?;
        let keys = key_set(keys)?;
        self.grant(keys, terms).await.map(TicketSet::new)
    }

    async fn grant(&self, keys: KeySet, terms: Terms) -> Result<Held, TicketError> {
        let mut acquiring = self.begin(keys, terms)?;
        poll_fn(|cx| acquiring.poll_held(cx)).await
    }

    pub(crate) fn begin(&self, keys: KeySet, terms: Terms) -> Result<Acquiring, TicketError> {
        self.0.shared.check_process()?;
        if terms.hardly_succeeds() && !self.0.advised.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                wait_s = terms.wait,
                lease_s = terms.lease,
                min_work = ?terms.min_work,
                "a grant after a full wait would leave less than min_work of the lease; \
                 choose a lease above wait + min_work (said once)"
            );
        }
        Ok(Acquiring::begin(&self.0, keys, terms))
    }

    /// Ends this broker object and waits until its sockets and tasks are gone, at most about 5 s
    /// (C27). Unsent acquires fail with `Closed`, sent ones with `Indeterminate`; releases are
    /// finished first. Tickets that were handed out stay valid until their lease ends. Closing
    /// twice is fine.
    ///
    /// The sockets belong to the runtime that the broker object was made in: if nothing drives
    /// that, this returns after 6 s, and the sockets close when it is driven or dropped.
    pub async fn close(&self) {
        if self.0.shared.check_process().is_err() {
            return;
        }
        let shared = &self.0.shared;
        let (mut closed, end) = shared.with(|state, now| {
            state.close(now);
            (state.watch_gone(), now + CLOSE_TIME)
        });
        // The sender lives in the state, which this handle keeps.
        let gone = closed.wait_for(|gone| *gone);
        if shared.alarm.until(end, gone).await.is_none() {
            // Every call has its outcome now, even if nothing drives the broker object.
            shared.with(|state, now| state.tick(now));
            let gone = closed.wait_for(|gone| *gone);
            let _ = shared.alarm.until(end + LAST_SOCKETS, gone).await;
        }
    }

    /// What it does at the moment, and what it did so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        match self.0.shared.check_process() {
            Ok(()) => self.0.shared.with(|state, _| state.stats()),
            Err(_) => Stats::default(),
        }
    }
}

impl TicketBroker {
    pub(crate) fn handle(&self) -> &Handle {
        &self.0
    }
}

impl fmt::Debug for TicketBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TicketBroker")
            .field("stats", &self.stats())
            .finish()
    }
}
