//! Leadership by fenced terms, with the real broker.

#![allow(clippy::unwrap_used, reason = "tests")]

mod peer;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use ticketing_broker::Broker;
use ticketing_broker::config::Config;
use ticketing_client::{Candidate, Leadership, ReleaseOutcome, TicketBroker};
use tokio::runtime::Runtime;
use tokio::task::{JoinHandle, JoinSet};

use crate::peer::{Peer, secs, soon, until};

async fn start_on(listen: SocketAddr) -> Broker {
    let mut config = Config::for_test();
    config.listen = listen;
    Broker::start(config).await.unwrap()
}

async fn start() -> Broker {
    start_on("127.0.0.1:0".parse().unwrap()).await
}

fn candidate(broker: &Broker, lease: u64) -> Candidate {
    let client = TicketBroker::connect(broker.local_addr().to_string()).unwrap();
    Candidate::new(&client, "name").lease(secs(lease))
}

async fn elected(candidate: &Candidate) -> Leadership {
    soon("an election", candidate.campaign()).await.unwrap()
}

fn campaign(candidate: &Candidate) -> JoinHandle<Leadership> {
    let candidate = candidate.clone();
    tokio::spawn(async move { candidate.campaign().await.unwrap() })
}

#[tokio::test]
async fn a_leader_goes_on_from_term_to_term_while_others_stand() {
    let broker = start().await;
    let leader = elected(&candidate(&broker, 5)).await;
    let mut others = JoinSet::new();
    for _ in 0..3 {
        let other = candidate(&broker, 5);
        others.spawn(async move { other.campaign().await });
    }
    let started = Instant::now();
    let mut token = leader.token();
    // Longer than two leases of one ticket.
    while started.elapsed() < secs(11) {
        let next = soon("the next term", leader.next_term(token)).await;
        let next = next.expect("it is not lost");
        assert!(next > token && leader.remaining() > Duration::ZERO);
        token = next;
    }
    assert!(others.try_join_next().is_none());
    assert_eq!((leader.name(), leader.token()), ("name", token));

    assert_eq!(leader.resign().await, Ok(ReleaseOutcome::Released));
    let next = soon("another leads", others.join_next()).await.unwrap();
    assert!(next.unwrap().unwrap().token() > token);
}

#[tokio::test]
async fn resigning_ends_the_leadership_for_all_who_look_at_it() {
    let broker = start().await;
    let leader = elected(&candidate(&broker, 250)).await;
    let (resigned, ()) = soon("both", async {
        tokio::join!(leader.resign(), leader.lost())
    })
    .await;
    assert_eq!(resigned, Ok(ReleaseOutcome::Released));
    assert_eq!(leader.remaining(), Duration::ZERO);
    assert_eq!(leader.next_term(0).await, None);
    assert_eq!(leader.resign().await, Ok(ReleaseOutcome::Released));
}

#[tokio::test]
async fn a_leadership_that_is_dropped_is_resigned() {
    let broker = start().await;
    let leader = elected(&candidate(&broker, 250)).await;
    let token = leader.token();
    assert!(leader.remaining() > secs(200));
    let other = campaign(&candidate(&broker, 250));
    drop(leader);
    let next = soon("another leads", other).await.unwrap();
    assert!(next.token() > token);
}

#[tokio::test]
async fn a_candidate_that_is_dropped_leaves_the_name_to_others() {
    let broker = start().await;
    let leader = elected(&candidate(&broker, 30)).await;
    let standing = campaign(&candidate(&broker, 30));
    let third = candidate(&broker, 30);
    assert!(
        tokio::time::timeout(secs(2), third.campaign())
            .await
            .is_err()
    );
    standing.abort();
    leader.resign().await.unwrap();
    elected(&third).await.resign().await.unwrap();
}

/// At most one at a time, whatever they do; each ends its work before it lets go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_leads_at_a_time() {
    let broker = start().await;
    // Who leads: until when at least; and the last token.
    let led: Arc<Mutex<(Option<Instant>, u64)>> = Arc::default();
    let mut tasks = JoinSet::new();
    for n in 0..4 {
        let candidate = candidate(&broker, 3).margin(Duration::from_millis(500));
        let led = Arc::clone(&led);
        tasks.spawn(async move {
            for round in 0..3 {
                let leader = candidate.campaign().await.unwrap();
                let enter = |token: u64| {
                    let mut led = led.lock().unwrap();
                    let until = Instant::now() + leader.remaining();
                    let before = std::mem::replace(&mut *led, (Some(until), token));
                    assert!(before.1 < token, "tokens rise");
                    before.0
                };
                let before = enter(leader.token());
                assert!(
                    before.is_none_or(|until| until <= Instant::now()),
                    "two lead"
                );
                if (n + round) % 2 == 0
                    && let Some(next) = leader.next_term(leader.token()).await
                {
                    enter(next);
                }
                let mut led = led.lock().unwrap();
                if !leader.remaining().is_zero() {
                    led.0 = None;
                }
                drop(leader);
            }
        });
    }
    let all = async {
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
    };
    tokio::time::timeout(secs(200), all).await.unwrap();
}

#[tokio::test]
async fn a_leader_that_was_stopped_past_its_lease_knows_that_it_has_lost() {
    let broker = start().await;
    let addr = broker.local_addr().to_string();
    let (tell, told) = mpsc::channel();
    let (go_on, wait) = mpsc::channel();
    let stopped = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let client = TicketBroker::connect(addr).unwrap();
            let candidate = Candidate::new(&client, "name").lease(secs(2));
            let leader = elected(&candidate).await;
            tell.send(leader.token()).unwrap();
            wait.recv().unwrap(); // everything of this leader stands still
            assert_eq!(leader.remaining(), Duration::ZERO);
            assert_eq!(leader.next_term(leader.token()).await, None);
            soon("it knows", leader.lost()).await;
            assert_eq!(leader.resign().await, Ok(ReleaseOutcome::NotCurrent));
        });
    });
    let token = soon("the first leads", async {
        tokio::task::spawn_blocking(move || told.recv().unwrap())
            .await
            .unwrap()
    })
    .await;
    let next = elected(&candidate(&broker, 2)).await;
    assert!(next.token() > token);
    go_on.send(()).unwrap();
    tokio::task::spawn_blocking(|| stopped.join().unwrap())
        .await
        .unwrap();
    assert!(
        !next.remaining().is_zero(),
        "the late one took nothing away"
    );
}

#[tokio::test]
async fn a_leader_whose_broker_is_gone_is_told_before_its_term_ends_and_stands_again() {
    let broker = start().await;
    let candidate = candidate(&broker, 4).margin(secs(2));
    let leader = elected(&candidate).await;
    let token = leader.token();
    broker.shutdown().await.unwrap();
    let addr = broker.local_addr();
    drop(broker);
    soon("it is told", leader.lost()).await;
    assert!(leader.remaining() <= secs(2));
    assert_eq!(leader.next_term(0).await, None, "it stays lost");
    let again = campaign(&candidate);
    let _broker = start_on(addr).await;
    let again = soon("it leads again", again).await.unwrap();
    assert!(again.token() > token);
}

#[tokio::test]
async fn a_leader_that_dies_is_followed_when_its_lease_has_run_out() {
    let broker = start().await;
    let addr = broker.local_addr().to_string();
    let started = Instant::now();
    let token = tokio::task::spawn_blocking(move || {
        let runtime = Runtime::new().unwrap();
        let leader = runtime.block_on(async {
            let client = TicketBroker::connect(addr).unwrap();
            elected(&Candidate::new(&client, "name").lease(secs(3))).await
        });
        let token = leader.token();
        // It dies without a word: not even its ticket is dropped.
        std::mem::forget(leader);
        runtime.shutdown_background();
        token
    })
    .await
    .unwrap();
    let next = elected(&candidate(&broker, 3)).await;
    assert!(started.elapsed() >= secs(3), "{:?}", started.elapsed());
    assert!(next.token() > token);
}

#[tokio::test]
async fn what_cannot_be_led_is_refused() {
    let peer = Peer::start().await;
    let client = peer.connect();
    let ms = Duration::from_millis;
    let candidate = |name: &str| Candidate::new(&client, name);
    for (candidate, kind, part) in [
        (candidate("a b"), "InvalidInput", "key"),
        (candidate(&"n".repeat(122)), "InvalidInput", "key"),
        (
            candidate("n").lease(Duration::ZERO),
            "InvalidInput",
            "lease",
        ),
        (
            candidate("n").lease(secs(251)),
            "UnsupportedDuration",
            "lease",
        ),
        (
            candidate("n").lease(secs(4)).margin(ms(2001)),
            "InvalidInput",
            "margin",
        ),
    ] {
        let e = candidate.campaign().await.unwrap_err();
        assert_eq!(e.kind(), kind, "{e}");
        assert!(e.to_string().contains(part), "{e}");
    }
    client.close().await;
    let e = candidate("n").campaign().await.unwrap_err();
    assert_eq!(e.kind(), "Closed", "{e}");
    until("no task is left", || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
            == 0
    })
    .await;
}

#[cfg(feature = "rusqlite")]
#[tokio::test]
async fn c20_a_leader_fences_all_its_transactions_in_the_row_of_the_name() {
    use ticketing_client::{Dialect, FenceError, fence_table};
    let mut db = rusqlite::Connection::open_in_memory().unwrap();
    db.execute_batch(fence_table(Dialect::Sqlite)).unwrap();
    let broker = start().await;
    let client = TicketBroker::connect(broker.local_addr().to_string()).unwrap();
    let old = elected(&Candidate::new(&client, "name").lease(secs(2))).await;
    for _ in 0..2 {
        let mut tx = db.transaction().unwrap();
        old.fence(&mut tx).unwrap();
        tx.commit().unwrap();
    }
    // No next term can be asked for any more; the last one runs out.
    client.close().await;
    let new = elected(&candidate(&broker, 30)).await;
    let mut tx = db.transaction().unwrap();
    new.fence(&mut tx).unwrap();
    tx.commit().unwrap();
    let mut tx = db.transaction().unwrap();
    let refused = old.fence(&mut tx).unwrap_err();
    assert!(matches!(refused, FenceError::Stale { key, .. } if key == "name"));
}
