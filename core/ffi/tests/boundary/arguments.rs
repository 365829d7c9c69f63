//! Wrong arguments are ends of their calls (C1–C6).

use ticketing_ffi::{
    BrokerOptions, TicketError, TlsMode, broker_open, submit_acquire, submit_campaign, submit_ready,
};

use crate::common::{Consumer, encoded, open_to_nobody, options};

/// How an acquire with these arguments ends, which reaches nobody.
fn refused(keys: &[u8], wait_ms: i64, lease_ms: i64, min_work_ms: i64) -> TicketError {
    let broker = open_to_nobody();
    let mut consumer = Consumer::open();
    let tag = consumer.submit(|queue, tag| {
        submit_acquire(broker, queue, tag, keys, wait_ms, lease_ms, min_work_ms);
    });
    // It is there at once: nothing is sent or waited for.
    consumer.drain(0);
    let error = consumer.error_of(tag);
    ticketing_ffi::broker_drop(broker);
    error
}

fn with_terms(wait_ms: i64, lease_ms: i64, min_work_ms: i64) -> TicketError {
    refused(&encoded(&["k"]), wait_ms, lease_ms, min_work_ms)
}

#[track_caller]
fn assert_invalid(error: &TicketError, expected: &str) {
    let TicketError::InvalidInput { argument, detail } = error else {
        panic!("{error:?}")
    };
    assert_eq!(argument, expected);
    assert!(!detail.is_empty());
}

#[track_caller]
fn assert_above(error: &TicketError, expected: &str, most: u64) {
    let TicketError::UnsupportedDuration {
        argument,
        max_seconds,
        detail,
    } = error
    else {
        panic!("{error:?}")
    };
    assert_eq!((argument.as_str(), *max_seconds), (expected, most));
    assert!(!detail.is_empty());
}

#[test]
fn c1_c4_a_wait_out_of_its_range() {
    assert_invalid(&with_terms(-1, 30_000, 0), "wait");
    assert_invalid(&with_terms(i64::MIN, 30_000, 0), "wait");
    assert_above(&with_terms(255_001, 30_000, 0), "wait", 255);
    assert_above(&with_terms(i64::MAX, 30_000, 0), "wait", 255);
}

#[test]
fn c2_c4_a_lease_out_of_its_range() {
    assert_invalid(&with_terms(0, -1, 0), "lease");
    assert_invalid(&with_terms(0, 0, 0), "lease");
    assert_above(&with_terms(0, 250_001, 0), "lease", 250);
    assert_above(&with_terms(0, i64::MAX, 0), "lease", 250);
}

#[test]
fn c3_c4_a_min_work_out_of_its_range() {
    assert_invalid(&with_terms(0, 30_000, -1), "min_work");
    assert_above(&with_terms(0, 30_000, 250_001), "min_work", 250);
    let TicketError::InsufficientLease {
        remaining_ms,
        min_work_ms,
        ..
    } = with_terms(0, 1_001, 2_001)
    else {
        panic!("min_work is above the lease, rounded up to 2 s")
    };
    assert_eq!((remaining_ms, min_work_ms), (2_000, 2_001));
}

#[test]
fn c5_keys_that_are_none() {
    assert_invalid(&refused(b"", 0, 30_000, 0), "keys");
    assert_invalid(&refused(b"\0", 0, 30_000, 0), "keys");
    assert_invalid(&refused(b"\0\x05ab", 0, 30_000, 0), "keys");
    assert_invalid(&refused(b"\0\x01\xff", 0, 30_000, 0), "key");
    assert_invalid(&refused(&encoded(&[""]), 0, 30_000, 0), "key");
    let many: Vec<String> = (0..17).map(|n| n.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_invalid(&refused(&encoded(&many), 0, 30_000, 0), "keys");
}

#[test]
fn a_wrong_argument_of_the_other_calls() {
    let broker = open_to_nobody();
    let mut consumer = Consumer::open();
    let campaign = |consumer: &mut Consumer, name: &[u8], lease_ms, margin_ms| {
        let tag = consumer.submit(|queue, tag| {
            submit_campaign(broker, queue, tag, name, lease_ms, margin_ms);
        });
        consumer.error_of(tag)
    };
    assert_invalid(&campaign(&mut consumer, b"\xff", 30_000, -1), "name");
    assert_invalid(&campaign(&mut consumer, b"n", -5, -1), "lease");
    assert_above(&campaign(&mut consumer, b"n", 251_000, -1), "lease", 250);
    assert_invalid(&campaign(&mut consumer, b"n", 30_000, -2), "margin");
    assert_invalid(&campaign(&mut consumer, b"n", 30_000, 15_001), "margin");
    let tag = consumer.submit(|queue, tag| submit_ready(broker, queue, tag, -1));
    assert_invalid(&consumer.error_of(tag), "timeout");
    ticketing_ffi::broker_drop(broker);
}

#[test]
fn c6_c28_options_that_make_no_broker_object() {
    let fine = || options("127.0.0.1:1".parse().unwrap());
    let opened = |options: BrokerOptions| broker_open(options).unwrap_err();
    let addrs = vec!["localhost".into()];
    assert!(matches!(
        opened(BrokerOptions { addrs, ..fine() }),
        TicketError::InvalidInput { .. }
    ));
    let addrs = vec![];
    assert!(matches!(
        opened(BrokerOptions { addrs, ..fine() }),
        TicketError::InvalidInput { .. }
    ));
    for max_pending in [0, 16_385, u32::MAX] {
        assert_invalid(
            &opened(BrokerOptions {
                max_pending,
                ..fine()
            }),
            "max_pending",
        );
    }
    let tls = TlsMode::Ca {
        path: "/nowhere/ca.pem".into(),
    };
    assert!(matches!(
        opened(BrokerOptions { tls, ..fine() }),
        TicketError::Io { .. }
    ));
    let tls = TlsMode::Ca {
        path: concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml").into(),
    };
    assert!(matches!(
        opened(BrokerOptions { tls, ..fine() }),
        TicketError::Tls { .. }
    ));
}
