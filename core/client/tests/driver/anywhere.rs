//! Every call on a thread without a runtime, while the broker object's own runtime is driven
//! elsewhere; and `close` when nothing drives it.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use ticketing_client::{Candidate, ReleaseOutcome, TicketBroker};
use tokio::runtime::{Builder, Handle};

use crate::peer::{SOON, Served, secs};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls on this thread, which must not know any runtime.
fn block_on<T>(what: &str, future: impl Future<Output = T>) -> T {
    assert!(Handle::try_current().is_err());
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let started = Instant::now();
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        assert!(started.elapsed() < SOON, "{what}");
        thread::park_timeout(SOON);
    }
}

/// Grants everything with rising tokens, and takes every release.
fn generous() -> Served {
    let tokens = Arc::new(std::sync::atomic::AtomicU64::new(1));
    Served::start(move |asked| {
        let token = tokens.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Some(match asked.is_release() {
            true => asked.released(),
            false => asked.granted(token),
        })
    })
}

#[test]
fn c7_to_c27_every_call_works_on_a_thread_without_a_runtime() {
    let host = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let peer = generous();
    let (broker, deaf) = {
        let _in = host.enter();
        let broker = TicketBroker::connect(peer.addr()).unwrap();
        (broker, TicketBroker::connect("127.0.0.1:1").unwrap())
    };
    assert!(block_on("ready", broker.wait_ready(SOON)));
    let started = Instant::now();
    assert!(!block_on("not ready", deaf.wait_ready(secs(1))));
    assert!(started.elapsed() >= secs(1));
    let e = block_on("no broker", deaf.acquire("k", secs(1), secs(30), secs(0)));
    assert_eq!(e.unwrap_err().kind(), "NotConnected");
    assert!(started.elapsed() >= secs(2));

    let acquire = |key: &'static str, lease| broker.acquire(key, secs(5), secs(lease), secs(0));
    let held = block_on("acquire", acquire("k", 30)).unwrap();
    let released = block_on("release", held.release());
    assert_eq!(released, Ok(ReleaseOutcome::Released));
    let set = broker.acquire_set(["k", "l"], secs(5), secs(30), secs(0));
    drop(block_on("a set", set).unwrap()); // released in the background
    let brief = block_on("acquire", acquire("brief", 1)).unwrap();
    let started = Instant::now();
    block_on("expired", brief.expired());
    assert_eq!(brief.remaining(), Duration::ZERO);
    assert!(started.elapsed() <= SOON);
    brief.keep();

    let candidate = Candidate::new(&broker, "name").lease(secs(5));
    let leader = block_on("elected", candidate.campaign()).unwrap();
    let next = block_on("the next term", leader.next_term(leader.token()));
    assert!(next.unwrap() <= leader.token());
    let resigned = block_on("resign", leader.resign());
    assert_eq!(resigned, Ok(ReleaseOutcome::Released));
    let leader = block_on("elected again", candidate.campaign()).unwrap();
    block_on("close", broker.close());
    block_on("lost", leader.lost());
    assert_eq!(broker.stats().sessions_usable, 0);
    block_on("close", deaf.close());
    drop(leader);
    let started = Instant::now();
    while host.metrics().num_alive_tasks() > 0 {
        assert!(started.elapsed() < SOON, "a task is left");
        thread::yield_now();
    }
}

#[test]
fn c27_close_ends_every_call_also_when_nothing_drives_the_runtime() {
    let peer = generous();
    let host = Builder::new_current_thread().enable_all().build().unwrap();
    let (broker, held) = host.block_on(async {
        let broker = TicketBroker::connect(peer.addr()).unwrap();
        assert!(broker.wait_ready(SOON).await);
        let held = broker.acquire("k", secs(5), secs(30), secs(0)).await;
        (broker, held.unwrap())
    });
    // From here on nobody polls it.
    let waiting = {
        let broker = broker.clone();
        thread::spawn(move || {
            let asked = broker.acquire("k", secs(60), secs(90), secs(0));
            block_on("the acquire", asked).unwrap_err().kind()
        })
    };
    let release = thread::spawn(move || {
        let outcome = block_on("the release", held.release());
        let again = block_on("again", held.release());
        assert_eq!(outcome, again);
        outcome.unwrap_err().kind()
    });
    while broker.stats().waiting == 0 {
        thread::yield_now();
    }
    let started = Instant::now();
    block_on("close", broker.close());
    assert!(started.elapsed() >= secs(5), "{:?}", started.elapsed());
    assert_eq!(waiting.join().unwrap(), "Closed");
    let kind = release.join().unwrap();
    assert!(kind == "NotConnected" || kind == "Closed", "{kind}");
    block_on("closing twice", broker.close());
    // Driven again, or dropped, it lets the sockets go.
    drop(host);
    assert_eq!(crate::peer::sockets_to(peer.port), 0);
}
