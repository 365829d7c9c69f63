//! The client and the real broker, in one process over real sockets.

#![allow(clippy::unwrap_used, reason = "tests")]

mod peer;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use ticketing_broker::Broker;
use ticketing_broker::config::{ClientToken, Config, TlsConfig};
use ticketing_client::{ReleaseOutcome, TicketBroker};
use tokio::task::JoinSet;

use crate::peer::tls::{Ca, CaFile};
use crate::peer::{SOON, ask, outcome, secs, soon, until};

fn memory(listen: SocketAddr) -> Config {
    let mut config = Config::default();
    config.memory = true;
    config.listen = listen;
    config
}

async fn start() -> Broker {
    let any = "127.0.0.1:0".parse().unwrap();
    Broker::start(memory(any)).await.unwrap()
}

async fn connect(broker: &Broker) -> TicketBroker {
    let client = TicketBroker::connect(broker.local_addr().to_string()).unwrap();
    assert!(client.wait_ready(SOON).await);
    client
}

/// What is behind a lock: who holds it, and the last token.
#[derive(Default)]
struct Guarded {
    holders: AtomicU64,
    token: AtomicU64,
}

impl Guarded {
    fn enter(&self, token: u64) {
        assert_eq!(self.holders.fetch_add(1, Ordering::SeqCst), 0, "alone");
        let last = self.token.swap(token, Ordering::SeqCst);
        assert!(token > last, "tokens rise: {last}, {token}");
    }

    fn leave(&self) {
        self.holders.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s1_s3_one_holder_of_a_key_at_a_time_and_tokens_that_rise() {
    let broker = start().await;
    let clients = [connect(&broker).await, connect(&broker).await];
    let guarded: Arc<[Guarded; 4]> = Arc::default();
    let mut tasks = JoinSet::new();
    for task in 0..64_usize {
        let (client, guarded) = (clients[task % 2].clone(), Arc::clone(&guarded));
        tasks.spawn(async move {
            for round in 0..20 {
                let (a, b) = ((task + round) % 4, (task / 4 + 3 * round) % 4);
                let keys = [a, b].map(|n| format!("key-{n}"));
                let mut held = vec![a, b];
                held.dedup();
                // A set of one key travels as that key.
                let set = client
                    .acquire_set(&keys, secs(100), secs(200), Duration::ZERO)
                    .await
                    .unwrap();
                assert_eq!(set.keys().len(), held.len());
                held.iter().for_each(|n| guarded[*n].enter(set.token()));
                tokio::task::yield_now().await;
                held.iter().for_each(|n| guarded[*n].leave());
                match round % 3 {
                    0 => drop(set),
                    _ => {
                        let released = set.release().await;
                        assert_eq!(released.unwrap(), ReleaseOutcome::Released);
                    }
                }
            }
        });
    }
    soon("all tasks", async {
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
    })
    .await;
    let granted: u64 = clients.iter().map(|c| c.stats().granted).sum();
    assert_eq!(granted, 64 * 20);
    for client in clients {
        soon("close", client.close()).await;
        let stats = client.stats();
        assert_eq!(
            stats.released, stats.granted,
            "the dropped ones too: {stats:?}"
        );
    }
}

#[tokio::test]
async fn c1_c12_a_held_key_times_out_after_the_wait_and_at_once_with_wait_0() {
    let broker = start().await;
    let client = connect(&broker).await;
    let held = outcome("a ticket", ask(&client, "k", 5)).await.unwrap();
    let started = Instant::now();
    let e = outcome("wait 0", ask(&client, "k", 0)).await.unwrap_err();
    assert_eq!(e.kind(), "Timeout");
    let e = outcome("wait 1", ask(&client, "k", 1)).await.unwrap_err();
    assert_eq!(e.kind(), "Timeout");
    assert!(started.elapsed() >= secs(1));
    let waiting = ask(&client, "k", 20);
    let released = held.release().await.unwrap();
    assert_eq!(released, ReleaseOutcome::Released);
    let next = outcome("the next", waiting).await.unwrap();
    assert!(next.token() > held.token());
}

#[tokio::test]
async fn c14_leaving_a_scope_and_acquiring_again_with_wait_0_does_not_lose_to_ones_own_release() {
    let broker = start().await;
    let client = connect(&broker).await;
    let mut last = 0;
    for _ in 0..200 {
        let ticket = client
            .acquire("k", Duration::ZERO, secs(30), Duration::ZERO)
            .await
            .unwrap();
        assert!(ticket.token() > last);
        last = ticket.token();
    }
}

#[tokio::test]
async fn c9_s5_cancelling_in_the_line_withdraws_the_waiter_at_once() {
    let broker = start().await;
    let client = connect(&broker).await;
    let other = connect(&broker).await;
    let x = outcome("x", ask(&other, "x", 5)).await.unwrap();
    // Stands in the line for x, and so keeps y from those behind it.
    let set = tokio::spawn({
        let client = client.clone();
        async move {
            let lease = secs(30);
            client
                .acquire_set(["x", "y"], secs(200), lease, Duration::ZERO)
                .await
        }
    });
    soon("it is in the line", async {
        while let Ok(y) = outcome("y", ask(&other, "y", 0)).await {
            y.release().await.unwrap();
        }
    })
    .await;
    let behind = ask(&other, "y", 200);
    set.abort();
    outcome("y is served", behind).await.unwrap();
    assert!(x.remaining() > Duration::ZERO, "while x is held still");
    assert_eq!(
        (client.stats().given_up, client.stats().compensated),
        (1, 0)
    );
}

#[tokio::test]
async fn s2_c19_a_ticket_whose_lease_ended_is_not_current() {
    let broker = start().await;
    let client = connect(&broker).await;
    let short = client
        .acquire("k", secs(5), secs(3), Duration::ZERO)
        .await
        .unwrap();
    let next = outcome("the next", ask(&client, "k", 20)).await.unwrap();
    assert!(next.token() > short.token());
    assert_eq!(short.remaining(), Duration::ZERO, "never served early");
    assert_eq!(short.release().await.unwrap(), ReleaseOutcome::NotCurrent);
    assert_eq!(next.release().await.unwrap(), ReleaseOutcome::Released);
}

#[tokio::test]
async fn c13_c22_a_broker_that_stops_and_comes_again_on_its_port_serves_those_who_waited() {
    let broker = start().await;
    let client = connect(&broker).await;
    let held = outcome("a ticket", ask(&client, "k", 5)).await.unwrap();
    let waiting: Vec<_> = (0..8).map(|_| ask(&client, "k", 100)).collect();
    until("all are sent", || client.stats().sent == 8).await;
    // Each is answered E3; a release is taken still.
    let (stopped, released) = tokio::join!(broker.shutdown(), held.release());
    stopped.unwrap();
    assert_eq!(released.unwrap(), ReleaseOutcome::Released);
    until("no session", || client.stats().sessions_usable == 0).await;
    assert_eq!(client.stats().waiting, 8, "they wait for the next broker");

    let broker = Broker::start(memory(broker.local_addr())).await.unwrap();
    let mut last = held.token();
    let mut tasks = waiting.into_iter().collect::<Vec<_>>();
    soon("each has its turn", async {
        while !tasks.is_empty() {
            let (done, rest): (Vec<_>, Vec<_>) = tasks.into_iter().partition(|t| t.is_finished());
            tasks = rest;
            for task in done {
                let ticket = task.await.unwrap().unwrap();
                assert!(ticket.token() > last);
                last = ticket.token();
                ticket.release().await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    soon("close", client.close()).await;
    soon("stop", broker.shutdown()).await.unwrap();
}

#[tokio::test]
async fn c24_c28_tls_and_a_client_token() {
    let ca = Ca::new("ours");
    let (ca_file, server) = (CaFile::new(&ca.pem), ca.server("localhost"));
    let (cert, key) = (CaFile::new(&server.chain_pem), CaFile::new(&server.key_pem));
    let mut config = memory("127.0.0.1:0".parse().unwrap());
    config.tls = Some(TlsConfig {
        cert: Utf8PathBuf::from(&cert.path),
        key: Utf8PathBuf::from(&key.path),
    });
    config.client_tokens = vec![ClientToken {
        name: None,
        token: "open sesame".to_owned().into(),
    }];
    let broker = Broker::start(config).await.unwrap();
    let client = |token: &str| {
        let addr = format!("localhost:{}", broker.local_addr().port());
        let builder = TicketBroker::builder().addrs([addr]).tls(ca_file.mode());
        builder.token(token).connect().unwrap()
    };
    let right = client("open sesame");
    let ticket = outcome("a ticket", ask(&right, "k", 20)).await.unwrap();
    assert_eq!(ticket.release().await.unwrap(), ReleaseOutcome::Released);
    let e = outcome("wrong", ask(&client("open barley"), "k", 20))
        .await
        .unwrap_err();
    assert_eq!(e.kind(), "Auth", "{e}");
    soon("close", right.close()).await;
}
