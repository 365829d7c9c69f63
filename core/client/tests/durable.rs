//! The client and the durable broker, which is restarted in the same folder.

#![allow(clippy::unwrap_used, reason = "tests")]

mod peer;

use std::net::SocketAddr;
use std::time::Duration;

use camino::Utf8Path;
use tempfile::TempDir;
use ticketing_broker::Broker;
use ticketing_broker::config::Config;
use ticketing_client::{ReleaseOutcome, Ticket, TicketBroker};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::peer::{SOON, ask, outcome, soon, until};

/// A broker on a folder of its own.
struct Durable {
    dir: TempDir,
    broker: Broker,
}

impl Durable {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let broker = Self::open(&dir, "127.0.0.1:0".parse().unwrap()).await;
        Durable { dir, broker }
    }

    async fn open(dir: &TempDir, listen: SocketAddr) -> Broker {
        let mut config = Config::for_test();
        config.memory = false;
        config.data_dir = Utf8Path::from_path(dir.path()).unwrap().join("data");
        config.listen = listen;
        Broker::start(config).await.unwrap()
    }

    fn addr(&self) -> SocketAddr {
        self.broker.local_addr()
    }

    async fn connect(&self) -> TicketBroker {
        let client = TicketBroker::connect(self.addr().to_string()).unwrap();
        assert!(client.wait_ready(SOON).await);
        client
    }

    /// Stops it; the folder and the port stay for `start_again`.
    async fn stop(self) -> (TempDir, SocketAddr) {
        let addr = self.addr();
        soon("stop", self.broker.shutdown()).await.unwrap();
        (self.dir, addr)
    }

    async fn start_again((dir, addr): (TempDir, SocketAddr)) -> Self {
        let broker = Self::open(&dir, addr).await;
        Durable { dir, broker }
    }
}

async fn try_key(client: &TicketBroker, key: &str) -> Result<Ticket, &'static str> {
    let tried = outcome("wait 0", ask(client, key, 0)).await;
    tried.map_err(|e| e.kind())
}

#[tokio::test]
async fn s7_c19_a_ticket_held_over_a_restart_is_still_current() {
    let durable = Durable::start().await;
    let client = durable.connect().await;
    let held = try_key(&client, "held").await.unwrap();
    let gone = try_key(&client, "gone").await.unwrap();
    assert_eq!(gone.release().await, Ok(ReleaseOutcome::Released));

    let durable = Durable::start_again(durable.stop().await).await;
    assert_eq!(try_key(&client, "held").await.unwrap_err(), "Timeout");
    let free = try_key(&client, "gone").await.unwrap();
    assert!(free.token() > held.token().max(gone.token()));
    assert!(held.remaining() > Duration::ZERO);
    assert_eq!(held.release().await, Ok(ReleaseOutcome::Released));
    let next = try_key(&client, "held").await.unwrap();
    assert!(next.token() > free.token());
    // It is on disk that the first one is gone.
    let durable = Durable::start_again(durable.stop().await).await;
    assert_eq!(next.release().await, Ok(ReleaseOutcome::Released));
    assert_eq!(free.release().await, Ok(ReleaseOutcome::Released));
    soon("close", client.close()).await;
    durable.stop().await;
}

#[tokio::test]
async fn s7_c13_c25_those_who_wait_at_a_restart_wait_on_or_are_told_that_they_cannot() {
    let durable = Durable::start().await;
    let client = durable.connect().await;
    let held = try_key(&client, "k").await.unwrap();
    let long: Vec<_> = (0..6).map(|_| ask(&client, "k", 200)).collect();
    let brief = ask(&client, "k", 2);
    until("all are sent", || client.stats().sent == 7).await;

    let stopped = durable.stop().await;
    // Answered `E3`, all wait for the next broker; the brief one as long as it can.
    let e = outcome("the brief one", brief).await.unwrap_err();
    assert_eq!(e.kind(), "NotConnected", "{e}");
    assert_eq!((client.stats().waiting, client.stats().sent), (6, 0));
    let durable = Durable::start_again(stopped).await;
    until("they are in the line again", || client.stats().sent == 6).await;
    assert!(long.iter().all(|task| !task.is_finished()), "k is held");
    assert_eq!(held.release().await, Ok(ReleaseOutcome::Released));

    let mut tasks = JoinSet::new();
    for task in long {
        tasks.spawn(task);
    }
    let mut last = held.token();
    while let Some(ended) = soon("each has its turn", tasks.join_next()).await {
        let ticket = ended.unwrap().unwrap().unwrap();
        assert!(ticket.token() > last);
        last = ticket.token();
        assert_eq!(ticket.release().await, Ok(ReleaseOutcome::Released));
    }
    durable.stop().await;
}

#[tokio::test]
async fn c19_a_release_called_while_the_broker_is_down_is_sent_to_the_next() {
    let durable = Durable::start().await;
    let client = durable.connect().await;
    let explicit = try_key(&client, "explicit").await.unwrap();
    let automatic = try_key(&client, "automatic").await.unwrap();
    let stopped = durable.stop().await;
    until("no session", || client.stats().sessions_usable == 0).await;
    drop(automatic);
    let release = tokio::spawn(async move { explicit.release().await });
    tokio::task::yield_now().await; // it is called
    let durable = Durable::start_again(stopped).await;
    let released = outcome("the release", release).await;
    assert_eq!(released, Ok(ReleaseOutcome::Released));
    until("both", || client.stats().released == 2).await;
    for key in ["explicit", "automatic"] {
        try_key(&client, key).await.unwrap();
    }
    durable.stop().await;
}

/// Carries bytes to a broker, and its answers back until it is told to swallow them.
async fn carry(listener: TcpListener, to: SocketAddr, swallow: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let swallow = swallow.clone();
        connections.spawn(async move {
            let Ok(broker) = TcpStream::connect(to).await else {
                return; // it is down
            };
            let ((mut from_client, mut to_client), (from_broker, mut to_broker)) =
                (client.into_split(), broker.into_split());
            let answers = async {
                let mut buf = [0; 1024];
                loop {
                    from_broker.readable().await.unwrap();
                    match from_broker.try_read(&mut buf) {
                        Ok(0) => return,
                        Ok(_) if *swallow.borrow() => {}
                        Ok(n) => to_client.write_all(&buf[..n]).await.unwrap(),
                        Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                        Err(_) => return,
                    }
                }
            };
            tokio::select! {
                () = answers => {}
                _ = tokio::io::copy(&mut from_client, &mut to_broker) => {}
            }
        });
    }
}

#[tokio::test]
async fn s7_c19_a_release_whose_answer_was_lost_is_repeated_over_the_restart() {
    let durable = Durable::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let through = listener.local_addr().unwrap().to_string();
    let (swallow, swallows) = watch::channel(false);
    tokio::spawn(carry(listener, durable.addr(), swallows));
    let client = TicketBroker::connect(through).unwrap();
    let direct = durable.connect().await;
    let held = try_key(&client, "k").await.unwrap();
    swallow.send_replace(true);
    let waiting = ask(&direct, "k", 100);
    let token = held.token();
    let release = tokio::spawn(async move { held.release().await });
    // It took effect, and nobody was told.
    let next = outcome("the next", waiting).await.unwrap();
    assert!(next.token() > token);
    assert!(!release.is_finished());

    let stopped = durable.stop().await;
    swallow.send_replace(false);
    let durable = Durable::start_again(stopped).await;
    let repeated = outcome("the repeat", release).await;
    assert_eq!(repeated, Ok(ReleaseOutcome::NotCurrent), "by the first try");
    assert_eq!(try_key(&client, "k").await.unwrap_err(), "Timeout");
    assert_eq!(next.release().await, Ok(ReleaseOutcome::Released));
    durable.stop().await;
}

#[cfg(feature = "rusqlite")]
#[tokio::test]
async fn c20_the_order_of_the_fence_is_kept_over_a_restart() {
    use ticketing_client::{Dialect, FenceError, fence_table};
    let mut db = rusqlite::Connection::open_in_memory().unwrap();
    db.execute_batch(fence_table(Dialect::Sqlite)).unwrap();
    let mut write = |ticket: &Ticket| {
        let mut tx = db.transaction().unwrap();
        ticket.fence(&mut tx)?;
        tx.commit().unwrap();
        Ok::<_, FenceError>(())
    };
    let durable = Durable::start().await;
    let client = durable.connect().await;
    let before = try_key(&client, "k").await.unwrap();
    let durable = Durable::start_again(durable.stop().await).await;
    write(&before).unwrap(); // it is held still
    assert_eq!(before.release().await, Ok(ReleaseOutcome::Released));
    let after = try_key(&client, "k").await.unwrap();
    write(&after).unwrap();
    let stale = write(&before).unwrap_err();
    assert!(matches!(stale, FenceError::Stale { token, .. } if token == before.token()));
    durable.stop().await;
}
