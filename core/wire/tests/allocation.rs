//! Single-key frames are encoded and decoded without allocation.

use std::alloc::System;
use std::hint::black_box;

use alloc_tracker::{Allocator, Session};
use ticketing_wire::{
    ErrorCode, HEADER_LEN, Incoming, Key, KeySet, Keys, MAX_KEY_LEN, MAX_REQUEST_LEN, Reply,
    Request, RequestId, Slot, Token,
};

#[global_allocator]
static ALLOCATOR: Allocator<System> = Allocator::system();

/// How often this thread allocated while `work` ran.
fn allocations(session: &Session, name: &str, work: impl FnOnce()) -> u64 {
    let operation = session.operation(name);
    let span = operation.measure_thread().iterations(1);
    work();
    drop(span);
    let report = session.to_report();
    let (_, measured) = report
        .operations()
        .find(|(found, _)| *found == name)
        .expect("the operation was measured");
    measured.total_allocations_count()
}

fn session() -> Session {
    Session::new().no_stdout().no_file()
}

#[test]
fn single_key_requests_do_not_allocate() {
    let (id, token) = (RequestId::MAX, Token::MIN);
    let longest = "k".repeat(MAX_KEY_LEN);
    let keys = ["k", "order-42", "ключ", &longest].map(|key| KeySet::new([key]).unwrap());
    let mut out = Vec::with_capacity(MAX_REQUEST_LEN);
    let count = allocations(&session(), "requests", || {
        for key in &keys {
            let keys = key.as_keys();
            for request in [
                Request::Acquire {
                    id,
                    wait: 255,
                    lease: 250,
                    keys,
                },
                Request::Release { id, token, keys },
            ] {
                out.clear();
                request.encode(&mut out);
                let decoded = Incoming::decode(&out).unwrap();
                assert!(decoded == Some((Incoming::Request(request), out.len())));
                assert!(keys.iter().all(|k| Keys::One(k) == keys));
                assert!(Incoming::decode(&out[..HEADER_LEN + 1]) == Ok(None));
            }
        }
    });
    assert_eq!(count, 0);
}

#[test]
fn refused_requests_do_not_allocate() {
    let bad_key = *b"\x41\x00\x0b\0\0\0\0\0\0\0\x01\0\x01 ";
    let bad_opcode = *b"\x51\x00\x0b";
    let count = allocations(&session(), "refusals", || {
        let refused = black_box(Incoming::decode(&bad_key));
        assert!(matches!(
            refused,
            Ok(Some((
                Incoming::Refused {
                    code: ErrorCode::BadKey,
                    ..
                },
                14
            )))
        ));
        assert!(black_box(Incoming::decode(&bad_opcode)).is_err());
        assert!(black_box(Key::new("a key")).is_err());
    });
    assert_eq!(count, 0);
}

#[test]
fn replies_do_not_allocate() {
    let (id, token, slot) = (RequestId::MAX, Token::MIN, Slot::new(4));
    let mut out = Vec::with_capacity(MAX_REQUEST_LEN);
    let count = allocations(&session(), "replies", || {
        for reply in [
            Reply::Acquired { id, token },
            Reply::Released { id },
            Reply::TimedOut { id },
            Reply::Busy { id },
            Reply::NotCurrent { id },
            Reply::Indeterminate { id },
            Reply::Moved { id, slot },
            Reply::Error {
                id,
                code: ErrorCode::GroupMismatch,
            },
            Reply::Leader { slot: None },
        ] {
            out.clear();
            reply.encode(&mut out);
            assert!(Reply::decode(&out) == Ok(Some((reply, out.len()))));
        }
    });
    assert_eq!(count, 0);
}

#[test]
fn the_counter_counts() {
    let count = allocations(&session(), "a vector", || {
        black_box(vec![0_u8; 1]);
    });
    assert_eq!(count, 1);
}
