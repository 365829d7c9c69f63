//! The end: C27, and C30 for what a child process inherits.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ticketing_client::{ReleaseOutcome, Stats, TicketBroker};
use tokio::runtime::Handle;

use crate::peer::{Peer, SOON, Served, ask, outcome, secs, sockets_to, soon, ticket, until};

async fn no_tasks() {
    let metrics = Handle::current().metrics();
    until("no task is left", || metrics.num_alive_tasks() == 0).await;
}

#[tokio::test]
async fn c27_close_leaves_no_socket_and_no_task_whatever_was_under_way() {
    let peer = Peer::start().await;
    let broker = peer.connect();
    let mut conn = peer.session().await;
    until("a session", || broker.stats().sessions_usable == 1).await;
    let held = ticket(&broker, &mut conn, "held", 1).await;
    let sent = ask(&broker, "sent", 60);
    conn.next().await;
    assert_eq!(sockets_to(peer.port()), 2, "the second waits for its hello");

    let closing = tokio::spawn({
        let broker = broker.clone();
        async move { broker.close().await }
    });
    let e = outcome("the sent one", sent).await.unwrap_err();
    assert_eq!(e.kind(), "Indeterminate");
    let e = outcome("a new one", ask(&broker, "new", 60))
        .await
        .unwrap_err();
    assert_eq!(e.kind(), "Closed");
    assert!(!broker.wait_ready(SOON).await, "closed is not ready");
    conn.eof().await;
    conn.finish().await;
    outcome("close", closing).await;
    assert_eq!(sockets_to(peer.port()), 0);
    soon("closing twice", broker.close()).await;
    let e = held.release().await.unwrap_err();
    assert_eq!(e.kind(), "Closed");
    assert!(
        held.remaining() > Duration::ZERO,
        "valid until its lease ends"
    );
    no_tasks().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c27_when_close_returns_no_socket_is_left() {
    let peer = Served::start(|asked| Some(asked.released()));
    // With nothing to wait for none of these takes seconds.
    soon("all of them", async {
        for round in 0..200 {
            let broker = TicketBroker::connect(peer.addr()).unwrap();
            if round % 2 == 0 {
                assert!(broker.wait_ready(SOON).await);
            }
            broker.close().await;
            assert_eq!(sockets_to(peer.port), 0, "round {round}");
        }
    })
    .await;
}

#[tokio::test]
async fn c27_an_unsent_acquire_is_closed() {
    let peer = Peer::start().await;
    let broker = peer.connect();
    let unsent = ask(&broker, "k", 60);
    until("it waits", || broker.stats().waiting == 1).await;
    let started = Instant::now();
    soon("close, with two attempts under way", broker.close()).await;
    assert!(
        started.elapsed() < secs(9),
        "it did not wait for their 10 s"
    );
    let e = outcome("the unsent one", unsent).await.unwrap_err();
    assert_eq!(e.kind(), "Closed");
    assert_eq!(sockets_to(peer.port()), 0);
    no_tasks().await;
}

#[tokio::test]
async fn c27_close_finishes_the_releases_first() {
    let peer = Peer::start().await;
    let broker = peer.connect();
    let mut conn = peer.session().await;
    until("a session", || broker.stats().sessions_usable == 1).await;
    let explicit = ticket(&broker, &mut conn, "explicit", 1).await;
    drop(ticket(&broker, &mut conn, "automatic", 2).await);
    let script = async {
        let automatic = conn.next().await;
        let explicit = conn.next().await;
        conn.reply(automatic.released()).await;
        conn.reply(explicit.released()).await;
        conn.eof().await;
    };
    let release = async {
        let (released, ()) = tokio::join!(explicit.release(), broker.close());
        released
    };
    let (released, ()) = soon("close", async { tokio::join!(release, script) }).await;
    assert_eq!(released.unwrap(), ReleaseOutcome::Released);
    assert_eq!(broker.stats().released, 2);
    no_tasks().await;
}

#[tokio::test]
async fn c27_a_session_is_opened_for_the_releases_that_remain() {
    let peer = Peer::start().await;
    let broker = peer.connect();
    let mut conn = peer.session().await;
    until("a session", || broker.stats().sessions_usable == 1).await;
    let held = ticket(&broker, &mut conn, "k", 1).await;
    conn.reset();
    until("no session", || broker.stats().sessions_usable == 0).await;
    let script = async {
        let mut conn = peer.session().await;
        let asked = conn.next().await;
        conn.reply(asked.released()).await;
        conn.eof().await;
    };
    let release = async {
        let (released, ()) = tokio::join!(held.release(), broker.close());
        released
    };
    let (released, ()) = soon("close", async { tokio::join!(release, script) }).await;
    assert_eq!(released.unwrap(), ReleaseOutcome::Released);
    no_tasks().await;
}

#[tokio::test]
async fn c27_a_peer_that_does_not_answer_delays_close_for_5_s() {
    let peer = Peer::start().await;
    let broker = peer.connect();
    let mut conn = peer.session().await;
    until("a session", || broker.stats().sessions_usable == 1).await;
    let held = ticket(&broker, &mut conn, "k", 1).await;
    let started = Instant::now();
    let release = tokio::spawn(async move { held.release().await });
    conn.next().await; // no answer
    soon("close", broker.close()).await;
    assert!(started.elapsed() >= secs(5), "{:?}", started.elapsed());
    let e = outcome("the release", release).await.unwrap_err();
    assert_eq!(e.kind(), "Indeterminate");
    assert_eq!(sockets_to(peer.port()), 0);
    no_tasks().await;
}

#[tokio::test]
async fn c27_dropping_the_last_handle_closes_in_the_background() {
    let peer = Peer::start().await;
    let broker = peer.connect();
    let mut conn = peer.session().await;
    until("a session", || broker.stats().sessions_usable == 1).await;
    let held = ticket(&broker, &mut conn, "k", 1).await;
    drop(broker); // the ticket still holds it up
    let (released, _) = tokio::join!(held.release(), async {
        let asked = conn.next().await;
        conn.reply(asked.released()).await;
    });
    assert_eq!(released.unwrap(), ReleaseOutcome::Released);
    drop(held);
    conn.eof().await;
    drop(conn);
    no_tasks().await;
    assert_eq!(sockets_to(peer.port()), 0);
}

#[test]
fn c27_a_runtime_that_is_shut_down_ends_the_calls_of_another() {
    let outer = tokio::runtime::Runtime::new().unwrap();
    let (peer, waiting, release) = outer.block_on(async {
        let peer = Peer::start().await;
        let host = tokio::runtime::Runtime::new().unwrap();
        let broker = {
            let _in = host.enter();
            peer.connect()
        };
        let mut conn = peer.session().await;
        until("a session", || broker.stats().sessions_usable == 1).await;
        let held = ticket(&broker, &mut conn, "held", 1).await;
        let waiting = ask(&broker, "k", 200);
        let release = tokio::spawn(async move { held.release().await });
        conn.next().await;
        conn.next().await;
        host.shutdown_background();
        (peer, waiting, release)
    });
    outer.block_on(async {
        let e = outcome("the acquire", waiting).await.unwrap_err();
        assert_eq!(e.kind(), "Indeterminate", "{e}");
        let e = outcome("the release", release).await.unwrap_err();
        assert_eq!(e.kind(), "Indeterminate", "{e}");
        until("no socket is left", || sockets_to(peer.port()) == 0).await;
    });
}

#[test]
fn c27_a_runtime_that_never_ran_ends_the_calls_of_another() {
    let host = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let broker = {
        let _in = host.enter();
        TicketBroker::connect("127.0.0.1:1").unwrap()
    };
    let outer = tokio::runtime::Runtime::new().unwrap();
    outer.block_on(async {
        let waiting = ask(&broker, "k", 200);
        until("it waits", || broker.stats().waiting == 1).await;
        host.shutdown_background(); // its driver was never polled
        let e = outcome("the acquire", waiting).await.unwrap_err();
        assert_eq!(e.kind(), "Closed", "{e}");
        soon("close", broker.close()).await;
    });
}

#[tokio::test]
async fn c30_in_a_child_everything_inherited_is_closed_and_the_parents_goes_on() {
    static PROCESS: AtomicU32 = AtomicU32::new(1);
    fn process() -> u32 {
        PROCESS.load(Ordering::Relaxed)
    }
    let peer = Peer::start().await;
    let broker = TicketBroker::builder()
        .addrs([peer.addr()])
        .process_id(process)
        .connect()
        .unwrap();
    let mut conn = peer.session().await;
    until("a session", || broker.stats().sessions_usable == 1).await;
    let held = ticket(&broker, &mut conn, "held", 1).await;
    let dropped = ticket(&broker, &mut conn, "dropped", 2).await;
    let released = ticket(&broker, &mut conn, "released", 3).await;
    let mut pending = Box::pin(broker.acquire("pending", secs(60), secs(30), Duration::ZERO));
    let mut cancelled = Box::pin(broker.acquire("cancelled", secs(60), secs(30), Duration::ZERO));
    let mut releasing = Box::pin(released.release());
    let mut asked = Vec::new();
    for future in [&mut pending, &mut cancelled] {
        tokio::select! {
            biased;
            _ = future => panic!("nobody answered"),
            frame = conn.next() => asked.push(frame),
        }
    }
    let asked_release = tokio::select! {
        biased;
        _ = &mut releasing => panic!("nobody answered"),
        frame = conn.next() => frame,
    };

    // "The child": the same memory, another process id.
    PROCESS.store(2, Ordering::Relaxed);
    let e = broker
        .acquire("k", secs(1), secs(30), Duration::ZERO)
        .await
        .unwrap_err();
    assert_eq!(e.kind(), "Closed", "{e}");
    assert_eq!(held.release().await.unwrap_err().kind(), "Closed");
    let e = soon("an acquire that was under way", pending).await;
    assert_eq!(e.unwrap_err().kind(), "Closed");
    let e = soon("a release that was under way", releasing).await;
    assert_eq!(e.unwrap_err().kind(), "Closed");
    assert!(!broker.wait_ready(SOON).await);
    assert_eq!(broker.stats(), Stats::default());
    soon("close, which is not the child's", broker.close()).await;
    drop(dropped);
    drop(cancelled);
    drop(broker.clone());
    let made_here = TicketBroker::builder()
        .addrs([peer.addr()])
        .process_id(process)
        .connect()
        .unwrap();
    let _ = format!("{broker:?} {held:?}");

    // The parent's connection has seen nothing of it, and works.
    PROCESS.store(1, Ordering::Relaxed);
    conn.reply(asked_release.released()).await;
    let next = ask(&broker, "next", 5);
    let frame = conn.next().await;
    assert_eq!(
        frame.keys(),
        ["next"],
        "no release, no half-close before it"
    );
    conn.reply(frame.granted(9)).await;
    outcome("a ticket", next).await.unwrap().keep();
    assert_eq!(broker.stats().given_up, 0);

    // A broker object made in the child works there.
    PROCESS.store(2, Ordering::Relaxed);
    let (ready, _sessions) = tokio::join!(made_here.wait_ready(SOON), async {
        // The parent's second connection is among those that wait.
        [peer.session().await, peer.session().await]
    });
    assert!(ready);
    PROCESS.store(1, Ordering::Relaxed);
}
