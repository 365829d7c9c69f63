//! The generator and the null responder understand each other; nothing here measures time.

use std::net::SocketAddr;

use ticketing_bench::keys::{KEY_LEN, Run, Space};
use ticketing_bench::lean::{self, Load};
use ticketing_bench::protocol::Ticketing;
use ticketing_bench::{Stop, null, users};
use tokio::net::TcpListener;

/// A null responder that lives as long as the runtime.
fn start_null(runtime: &tokio::runtime::Runtime) -> SocketAddr {
    let listener = runtime
        .block_on(TcpListener::bind("127.0.0.1:0"))
        .expect("a free port");
    let addr = listener.local_addr().expect("it is bound");
    runtime.spawn(null::serve(listener));
    addr
}

#[test]
fn the_lean_generator_and_the_null_responder_work_together() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let addr = start_null(&runtime);
    for (connections, in_flight) in [(1, 64), (2, 32), (64, 1)] {
        for keys in [Space::Distinct, Space::Contended(32)] {
            let load = Load {
                connections,
                in_flight,
                keys,
                stop: Stop::Pairs(2000),
            };
            let rate = lean::run::<Ticketing>(addr, &load).unwrap();
            assert!(rate > 0.0);
        }
    }
}

#[test]
fn the_client_library_and_the_null_responder_work_together() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let addr = start_null(&runtime);
    let rate = users::run::<users::Ticketing>(addr, 64, Space::Contended(32), Stop::Pairs(2000));
    assert!(rate.unwrap() > 0.0);
}

#[test]
fn keys_are_distinct_where_they_should_be() {
    let take = |run: Run, lane| {
        let mut keys = run.keys(lane);
        (0..1000).map(move |_| keys.next_key())
    };
    let run = Run::new(Space::Distinct).unwrap();
    let mut all: Vec<[u8; KEY_LEN]> = (0..4).flat_map(|lane| take(run, lane)).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 4000);

    let run = Run::new(Space::Contended(32)).unwrap();
    let mut shared: Vec<[u8; KEY_LEN]> = (0..4).flat_map(|lane| take(run, lane)).collect();
    shared.sort_unstable();
    shared.dedup();
    assert_eq!(shared.len(), 32);
}
