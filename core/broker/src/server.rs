//! A broker: store, engine and front put together, from start to a clean end.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet, spawn_blocking};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{info, warn};

use crate::config::Config;
use crate::engine::{CommitterThread, Engine, Panicked};
use crate::front::{Access, AccessError, Front, Shared};
use crate::store::{CommitError, EmbeddedStore, MemoryStore, OpenError, Recovered, Store};
use crate::table::{LockTable, RestoreError, TableLimits, TableStats};
use crate::token::{TokenError, TokenSource};

/// How long a stopping broker goes on taking releases (S10).
const RELEASES: Duration = Duration::from_secs(1);
/// From the request to stop: when connections that still have something to come are cut off.
const CONNECTIONS: Duration = Duration::from_secs(3);
/// From the request to stop: when the last commit must be over (S10).
const STOP: Duration = Duration::from_millis(4800);

/// A running broker.
///
/// It lives on the tokio runtime that it was started on and needs that runtime's I/O and time
/// drivers. Several can run in one process. Dropping it ends it at once, without an answer to
/// anybody, and its port is free once the runtime has come round to it;
/// [`shutdown`](Broker::shutdown) ends it cleanly, and its port is free when that returns.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use ticketing_broker::{Broker, config::Config};
///
/// let mut config = Config::default(); // durable, on loopback
/// # let folder = tempfile::tempdir()?;
/// # config.data_dir = camino::Utf8PathBuf::try_from(folder.path().join("data"))?;
/// config.listen = "127.0.0.1:0".parse()?; // a free port
/// let broker = Broker::start(config).await?;
/// println!("clients connect to {}", broker.local_addr());
/// broker.shutdown().await?;
/// # Ok(()) }
/// ```
pub struct Broker {
    local_addr: SocketAddr,
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    ended: watch::Receiver<Option<Result<(), BrokerError>>>,
    /// The supervisor; it owns every other task.
    _tasks: JoinSet<()>,
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker")
            .field("local_addr", &self.local_addr)
            .finish_non_exhaustive()
    }
}

/// Why a broker did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration, or a file that it names, is wrong.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The address can't be listened on.
    #[error("cannot listen on {addr}: {source}{}", cure(.source))]
    Listen {
        /// The configured address.
        addr: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// The data directory can't be used (S8).
    #[error(transparent)]
    Store(#[from] OpenError),
    /// No token can be issued.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The store contradicts itself.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The system has no thread for the store.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

/// What to do about an address that can't be listened on.
fn cure(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "; stop whoever listens there, or choose another port",
        io::ErrorKind::AddrNotAvailable => "; this machine has no such address, choose one it has",
        io::ErrorKind::PermissionDenied => "; choose a port above 1023",
        _ => "",
    }
}

impl StartError {
    /// Whether the configuration has to be changed (a program exits with 2), rather than something
    /// around it (1).
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        match self {
            StartError::Access(_) | StartError::Token(TokenError::Floor(_)) => true,
            StartError::Listen { .. }
            | StartError::Store(_)
            | StartError::Token(_)
            | StartError::Restore(_)
            | StartError::Thread(_) => false,
        }
    }
}

/// Why a running broker ended by itself, or not cleanly.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// The store failed (S7). What it acknowledged before is safe; start the broker again once the
    /// cause is mended.
    #[error("{0}")]
    Store(Arc<CommitError>),
    /// The last commit was not over in time, so that its requests got no answer.
    #[error("the store did not finish within {} s of the request to stop", STOP.as_secs_f32())]
    StopTimeout,
    /// A bug of ours.
    #[error("internal error, please report it: {0}")]
    Internal(String),
}

impl From<Panicked> for BrokerError {
    fn from(Panicked: Panicked) -> Self {
        BrokerError::Internal("the committer has panicked".to_owned())
    }
}

impl From<JoinError> for BrokerError {
    fn from(error: JoinError) -> Self {
        BrokerError::Internal(error.to_string())
    }
}

impl Broker {
    /// Checks `config`, opens the store, takes the grants in it up again and begins to serve.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left running.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let access = Access::load(&config)?;
        let (store, recovered) = open_store(&config).await?;
        Self::serve(&config, access, store, &recovered).await
    }

    async fn serve(
        config: &Config,
        access: Access,
        store: Box<dyn Store>,
        recovered: &Recovered,
    ) -> Result<Self, StartError> {
        let origin = Instant::now();
        let table = open_table(config, recovered)?;
        let engine = Arc::new(Engine::new(table, origin, store.is_durable()));
        let listen_error = |source| StartError::Listen {
            addr: config.listen,
            source,
        };
        let listener = TcpListener::bind(config.listen)
            .await
            .map_err(listen_error)?;
        let local_addr = listener.local_addr().map_err(listen_error)?;

        let shared = Arc::new(Shared::new(engine.clone(), access, &config.limits));
        let front = Front::new(shared.clone(), listener, config.limits.connections);
        let (stop, stop_requested) = watch::channel(false);
        let (set_ended, ended) = watch::channel(None);
        let committer =
            CommitterThread::start(engine.clone(), store).map_err(StartError::Thread)?;
        let supervisor = Supervisor {
            timer: spawn({
                let engine = engine.clone();
                async move { engine.run_timer().await }
            }),
            committer,
            engine,
            front,
            stop: stop_requested,
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let result = supervisor.run().await;
            set_ended.send_replace(Some(result));
        });
        Ok(Broker {
            local_addr,
            shared,
            stop,
            ended,
            _tasks: tasks,
        })
    }

    /// The address that it listens on, with the port that was taken for port 0.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// What it holds at the moment.
    #[must_use]
    pub fn stats(&self) -> TableStats {
        self.shared.engine.stats()
    }

    /// Waits until the broker has ended: by [`shutdown`](Broker::shutdown), or by itself.
    ///
    /// # Errors
    /// [`BrokerError`]: it ended by itself, or not cleanly.
    pub async fn wait(&self) -> Result<(), BrokerError> {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(result) => result.clone().expect("waited for it"),
            Err(_) => Err(BrokerError::Internal(
                "the supervisor has panicked".to_owned(),
            )),
        }
    }

    /// Ends the broker cleanly, within 5 s (S10): answers waiters and new acquires `E3`, goes on
    /// taking releases for a second (less if none can come), commits, closes.
    ///
    /// # Errors
    /// As [`wait`](Broker::wait).
    pub async fn shutdown(&self) -> Result<(), BrokerError> {
        self.stop.send_replace(true);
        self.wait().await
    }

    /// Takes `client_tokens`, `allow_unauthenticated` and the certificate of `[tls]` from `config`,
    /// for connections from now on; all else needs a restart. Reads two small files.
    ///
    /// # Errors
    /// Something in `config` or its files is wrong; nothing has changed.
    pub fn reload(&self, config: &Config) -> Result<(), AccessError> {
        let mut config = config.clone();
        // What is listened on decides whether an empty list of tokens is allowed.
        config.listen = self.local_addr;
        let access = Access::load(&config)?;
        let added = access.tls.is_some();
        if added != self.shared.access().tls.is_some() {
            return Err(AccessError::TlsSwitched { added });
        }
        self.shared.replace_access(access);
        Ok(())
    }
}

async fn open_store(config: &Config) -> Result<(Box<dyn Store>, Recovered), StartError> {
    if config.memory {
        warn!("memory mode: no grant survives a restart of the broker");
        return Ok((Box::new(MemoryStore), Recovered::default()));
    }
    let dir = config.data_dir.clone();
    let (store, recovered) = spawn_blocking(move || EmbeddedStore::open(&dir))
        .await
        .expect("it does not panic, and the runtime is running")?;
    info!(grants = recovered.grants.len(), data_dir = %config.data_dir, "opened the store");
    Ok((Box::new(store), recovered))
}

fn open_table(config: &Config, recovered: &Recovered) -> Result<LockTable, StartError> {
    let clock = Box::new(|| {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    });
    let tokens = TokenSource::new(recovered.mark, config.token_floor, clock)?;
    if let Some(ahead) = tokens.mark_ahead() {
        warn!(
            "the store's tokens are {} h ahead of the system clock: one of the two is wrong",
            ahead.as_secs() / 3600
        );
    }
    let count = |limit: usize| u32::try_from(limit).expect("validated");
    let limits = TableLimits {
        waiters_per_key: count(config.limits.waiters_per_key),
        waiters: count(config.limits.waiters),
        grants: count(config.limits.grants),
    };
    let mut table = LockTable::new(limits, tokens);
    for grant in &recovered.grants {
        // S7: each for its full lease from now.
        table.restore(
            Duration::ZERO,
            grant.token,
            grant.keys.as_keys(),
            grant.lease,
        )?;
    }
    Ok(table)
}

/// A task that ends when the set is dropped.
fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> JoinSet<T> {
    let mut set = JoinSet::new();
    set.spawn(task);
    set
}

/// Owns every task of a broker.
struct Supervisor {
    engine: Arc<Engine>,
    front: Front,
    timer: JoinSet<()>,
    committer: CommitterThread,
    stop: watch::Receiver<bool>,
}

impl Supervisor {
    async fn run(mut self) -> Result<(), BrokerError> {
        let result = tokio::select! {
            error = failure(&mut self.committer, &mut self.timer) => Err(error),
            ended = self.front.run(|_| false) => ended.map_err(BrokerError::from),
            _ = self.stop.wait_for(|stop| *stop) => Ok(()),
        };
        match result {
            Ok(()) => self.stop().await,
            // A bug: nothing that the engine says can be trusted any more.
            Err(error @ BrokerError::Internal(_)) => Err(error),
            Err(error) => {
                // Every request has its answer, and connections end once those have left.
                let _ = timeout(RELEASES, self.front.drain()).await;
                Err(error)
            }
        }
    }

    /// S10.
    async fn stop(self) -> Result<(), BrokerError> {
        let Supervisor {
            engine,
            mut front,
            mut timer,
            mut committer,
            ..
        } = self;
        let begun = Instant::now();
        info!("stopping");
        engine.stop();
        // Nobody is there and nothing is held: no release can come.
        let nothing_left = |front: &Front| front.is_empty() && engine.stats().grants == 0;
        let result = tokio::select! {
            error = failure(&mut committer, &mut timer) => Err(error),
            ended = timeout(RELEASES, front.run(nothing_left)) => {
                ended.unwrap_or(Ok(())).map_err(BrokerError::from)
            }
        };
        engine.finish();
        let _ = timeout_at(begun + CONNECTIONS, front.drain()).await;
        result?;
        engine.drain();
        match timeout_at(begun + STOP, committer).await {
            Ok(ended) => ended?.map_err(|error| BrokerError::Store(Arc::new(error))),
            Err(_) => Err(BrokerError::StopTimeout),
        }
    }
}

/// Resolves when a task ends that has no reason to.
async fn failure(committer: &mut CommitterThread, timer: &mut JoinSet<()>) -> BrokerError {
    tokio::select! {
        ended = committer => match ended {
            Ok(Err(error)) => BrokerError::Store(Arc::new(error)),
            Ok(Ok(())) => BrokerError::Internal("the committer has ended".to_owned()),
            Err(error) => error.into(),
        },
        Some(ended) = timer.join_next() => match ended {
            Ok(()) => BrokerError::Internal("the timer has ended".to_owned()),
            Err(error) => error.into(),
        },
    }
}

#[cfg(test)]
mod tests;
