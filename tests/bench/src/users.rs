//! Client libraries as applications use them: many tasks, one lock each at a time.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use redis::aio::MultiplexedConnection;
use ticketing_client::{ReleaseOutcome, TicketBroker};
use tokio::task::JoinSet;
use tokio_postgres::{NoTls, Statement};

use crate::keys::{Run, Space};
use crate::lean::RETRY;
use crate::protocol::REDIS_RELEASE;
use crate::{Meter, Stop};

/// What one task holds of a client library.
pub trait Locker: Send + Sized + 'static {
    /// One for each of `tasks` tasks, on connections shared as the library means them to be.
    fn connect(addr: SocketAddr, tasks: u16) -> impl Future<Output = Result<Vec<Self>>>;

    /// Takes the lock on `key` and gives it back. `once` is a value that no other call has.
    fn pair(&mut self, key: &str, once: u64) -> impl Future<Output = Result<()>> + Send;
}

/// Runs `tasks` tasks at the server at `addr` and says how many pairs per second they did.
///
/// # Errors
/// The server is not there, or a library fails.
pub fn run<L: Locker>(addr: SocketAddr, tasks: u16, keys: Space, stop: Stop) -> Result<f64> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let rate = runtime.block_on(measure::<L>(addr, tasks, keys, stop));
    // Tasks are cut off where they are: their keys are this run's own.
    runtime.shutdown_background();
    rate
}

async fn measure<L: Locker>(addr: SocketAddr, tasks: u16, keys: Space, stop: Stop) -> Result<f64> {
    let run = Run::new(keys)?;
    let pairs = Arc::new(AtomicU64::new(0));
    let mut set = JoinSet::new();
    for (lane, mut locker) in (0..tasks).zip(L::connect(addr, tasks).await?) {
        let pairs = Arc::clone(&pairs);
        set.spawn(async move {
            let mut keys = run.keys(lane);
            loop {
                let key = keys.next_key();
                let key = std::str::from_utf8(&key)?;
                let once = pairs.load(Ordering::Relaxed) << 16 | u64::from(lane);
                locker.pair(key, once).await?;
                pairs.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let mut meter = Meter::start(stop);
    let mut tick = tokio::time::interval(Duration::from_millis(5));
    loop {
        tokio::select! {
            _ = tick.tick() => if let Some(rate) = meter.done(pairs.load(Ordering::Relaxed)) {
                return Ok(rate);
            },
            Some(ended) = set.join_next() => {
                let failed: Result<()> = ended?;
                failed?;
            }
        }
    }
}

/// `ticketing-client`: one broker object for all tasks.
#[derive(Debug)]
pub struct Ticketing(TicketBroker);

impl Locker for Ticketing {
    async fn connect(addr: SocketAddr, tasks: u16) -> Result<Vec<Self>> {
        let broker = TicketBroker::connect(addr.to_string())?;
        ensure!(
            broker.wait_ready(Duration::from_secs(10)).await,
            "the broker is not ready"
        );
        Ok((0..tasks).map(|_| Ticketing(broker.clone())).collect())
    }

    async fn pair(&mut self, key: &str, _once: u64) -> Result<()> {
        let (wait, lease) = (Duration::from_secs(60), Duration::from_secs(120));
        let ticket = self.0.acquire(key, wait, lease, Duration::ZERO).await?;
        ensure!(
            ticket.release().await? == ReleaseOutcome::Released,
            "a lock was lost"
        );
        Ok(())
    }
}

/// The `redis` crate: one multiplexed connection, `SET NX PX`, a script that deletes one's own.
#[derive(Debug)]
pub struct Redis {
    connection: MultiplexedConnection,
    script: Arc<redis::Script>,
}

impl Locker for Redis {
    async fn connect(addr: SocketAddr, tasks: u16) -> Result<Vec<Self>> {
        let client = redis::Client::open(format!("redis://{addr}/"))?;
        let connection = client.get_multiplexed_async_connection().await?;
        let script = Arc::new(redis::Script::new(REDIS_RELEASE));
        Ok((0..tasks)
            .map(|_| Redis {
                connection: connection.clone(),
                script: Arc::clone(&script),
            })
            .collect())
    }

    async fn pair(&mut self, key: &str, once: u64) -> Result<()> {
        let mut set = redis::cmd("SET");
        set.arg(key).arg(once).arg("NX").arg("PX").arg(250_000);
        loop {
            let granted: Option<String> = set.query_async(&mut self.connection).await?;
            if granted.is_some() {
                break;
            }
            tokio::time::sleep(RETRY).await;
        }
        let deleted: i64 = self
            .script
            .key(key)
            .arg(once)
            .invoke_async(&mut self.connection)
            .await?;
        ensure!(deleted == 1, "a lock was lost");
        Ok(())
    }
}

/// PostgreSQL's advisory locks by `tokio-postgres`: a session holds a lock, so each task needs one.
pub struct Postgres {
    client: tokio_postgres::Client,
    lock: Statement,
    unlock: Statement,
}

impl Locker for Postgres {
    async fn connect(addr: SocketAddr, tasks: u16) -> Result<Vec<Self>> {
        let config = format!("host={} port={} user=postgres", addr.ip(), addr.port());
        let mut all = Vec::new();
        for _ in 0..tasks {
            let (client, connection) = tokio_postgres::connect(&config, NoTls).await?;
            tokio::spawn(connection);
            let prepare = |call| format!("SELECT {call}(hashtextextended($1, 0))");
            let lock = client.prepare(&prepare("pg_advisory_lock")).await?;
            let unlock = client.prepare(&prepare("pg_advisory_unlock")).await?;
            all.push(Postgres {
                client,
                lock,
                unlock,
            });
        }
        Ok(all)
    }

    async fn pair(&mut self, key: &str, _once: u64) -> Result<()> {
        self.client.query_one(&self.lock, &[&key]).await?;
        let unlocked = self.client.query_one(&self.unlock, &[&key]).await?;
        ensure!(unlocked.get::<_, bool>(0), "a lock was lost");
        Ok(())
    }
}
