//! The library's log. One test, since the log is the process's.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use ticketing_ffi::*;

use common::{Consumer, Server, open_to_nobody, options, until};

const SECRET: &str = "a-token-that-nobody-may-read";

#[test]
fn c29_logs_are_pulled_and_hold_no_secret() {
    // At first, only what an operator should see.
    let nobody = open_to_nobody();
    until("it failed to connect", || {
        broker_stats(nobody).last_connection_error.is_some()
    });
    assert_eq!(drain_logs(), []);
    let unverified = broker_open(BrokerOptions {
        tls: TlsMode::InsecureSkipVerify,
        token: SECRET.into(),
        ..options("127.0.0.1:1".parse().unwrap())
    });
    broker_drop(unverified.unwrap());
    let warned = drain_logs();
    assert!(
        !warned.is_empty() && warned.iter().all(|r| r.level == LogLevel::Warn),
        "{warned:?}"
    );

    set_log_level(LogLevel::Trace);
    let server = Server::start();
    let broker = broker_open(BrokerOptions {
        token: SECRET.into(),
        ..options(server.addr())
    })
    .unwrap();
    let mut consumer = Consumer::open();
    let (ticket, _) = consumer.ticket(broker, "k");
    ticket_drop(ticket);
    server.holds_nothing_soon();
    let records = drain_logs();
    assert!(
        records
            .iter()
            .any(|r| r.level >= LogLevel::Debug && r.target.starts_with("ticketing_client")),
        "{records:?}"
    );
    for record in warned.iter().chain(&records) {
        assert!(
            !record.message.contains(SECRET) && !record.target.is_empty(),
            "{record:?}"
        );
    }

    set_log_level(LogLevel::Off);
    drain_logs();
    drop(server);
    until("the sessions are gone", || {
        broker_stats(broker).sessions_usable == 0
    });
    assert_eq!(drain_logs(), []);
    broker_drop(broker);
    broker_drop(nobody);
}
