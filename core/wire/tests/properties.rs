//! Rules that hold for all bytes and all frames.

#![allow(clippy::unwrap_used, reason = "test helpers")]

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use ticketing_wire::{
    ErrorCode, HEADER_LEN, Hello, Incoming, InvalidKey, InvalidKeySet, Key, KeySet, Keys,
    MAX_KEY_LEN, MAX_REPLY_LEN, MAX_REQUEST_LEN, MAX_SET_KEYS, Mode, Reply, Request, RequestId,
    Slot, Token, Violation,
};

fn valid_key() -> impl Strategy<Value = String> {
    let any_char = any::<char>().prop_filter("separator", |c| !matches!(c, ' ' | '\n' | '\r'));
    let some_text = vec(any_char, 1..=MAX_KEY_LEN).prop_map(|chars| {
        let mut key = String::new();
        for c in chars {
            if key.len() + c.len_utf8() > MAX_KEY_LEN {
                break;
            }
            key.push(c);
        }
        key
    });
    // Short keys of few letters meet again; long ones reach the limit.
    prop_oneof!["[ab]{1,3}", "[!-~]{128}", some_text]
}

fn key_set(keys: impl Into<proptest::collection::SizeRange>) -> impl Strategy<Value = KeySet> {
    vec(valid_key(), keys).prop_map(|keys| KeySet::new(keys).unwrap())
}

fn id() -> impl Strategy<Value = RequestId> {
    prop_oneof![Just(1), Just(u64::MAX), 1..=u64::MAX].prop_map(|id| RequestId::new(id).unwrap())
}

fn token() -> impl Strategy<Value = Token> {
    id()
}

/// A request frame's parts, since a request borrows its keys.
fn request_parts() -> impl Strategy<Value = (bool, RequestId, u8, u8, Token, KeySet)> {
    let keys = prop_oneof![key_set(1), key_set(1..=MAX_SET_KEYS)];
    (any::<bool>(), id(), any::<u8>(), 1..=250_u8, token(), keys)
}

fn request(parts: &(bool, RequestId, u8, u8, Token, KeySet)) -> Request<'_> {
    let (acquire, id, wait, lease, token, ref keys) = *parts;
    let keys = keys.as_keys();
    if acquire {
        Request::Acquire {
            id,
            wait,
            lease,
            keys,
        }
    } else {
        Request::Release { id, token, keys }
    }
}

fn encoded(request: Request<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    request.encode(&mut out);
    out
}

fn reply() -> impl Strategy<Value = Reply> {
    let slot = || prop_oneof![Just(None), (0..=4_u8).prop_map(Slot::new)];
    let code = select(vec![
        ErrorCode::BadKey,
        ErrorCode::BadLease,
        ErrorCode::NotActive,
        ErrorCode::NoLeader,
        ErrorCode::BadKeySet,
        ErrorCode::GroupMismatch,
        ErrorCode::BadToken,
    ]);
    prop_oneof![
        (id(), token()).prop_map(|(id, token)| Reply::Acquired { id, token }),
        (id(), token()).prop_map(|(id, token)| Reply::SetAcquired { id, token }),
        id().prop_map(|id| Reply::TimedOut { id }),
        id().prop_map(|id| Reply::Busy { id }),
        id().prop_map(|id| Reply::Released { id }),
        id().prop_map(|id| Reply::SetReleased { id }),
        id().prop_map(|id| Reply::NotCurrent { id }),
        (id(), slot()).prop_map(|(id, slot)| Reply::Moved { id, slot }),
        id().prop_map(|id| Reply::Indeterminate { id }),
        (id(), code).prop_map(|(id, code)| Reply::Error { id, code }),
        slot().prop_map(|slot| Reply::Leader { slot }),
    ]
}

/// Bytes that get deep into the decoder: real frames, bent, cut, joined, and plain noise.
fn hostile(frame: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let bend = (any::<Index>(), any::<u8>());
    let bent = (
        frame,
        vec(bend, 0..4),
        vec(any::<u8>(), 0..40),
        any::<Index>(),
    )
        .prop_map(|(mut bytes, bends, tail, cut)| {
            for (at, value) in bends {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            bytes.extend_from_slice(&tail);
            bytes.truncate(cut.index(bytes.len() * 2 + 1));
            bytes
        });
    let noise = vec(any::<u8>(), 0..300);
    let headed = (
        select(b"ASRGTBNMIEL".to_vec()),
        0..2100_u16,
        vec(any::<u8>(), 0..2200),
    )
        .prop_map(|(opcode, len, body)| {
            let [hi, lo] = len.to_be_bytes();
            [&[opcode, hi, lo], body.as_slice()].concat()
        });
    prop_oneof![4 => bent, 1 => noise, 1 => headed]
}

/// Every answer to `bytes` lets a reader with one frame's worth of buffer go on.
fn assert_bounded<T>(
    bytes: &[u8],
    max: usize,
    result: &Result<Option<(T, usize)>, Violation>,
) -> Result<(), TestCaseError> {
    match result {
        Ok(Some((_, used))) => {
            prop_assert!((HEADER_LEN + 1..=max).contains(used), "took {used}");
            prop_assert!(*used <= bytes.len());
        }
        Ok(None) => prop_assert!(bytes.len() < max, "wants more than {} bytes", bytes.len()),
        Err(_) => prop_assert!(bytes.len() >= HEADER_LEN),
    }
    Ok(())
}

/// Fifty times as many with `TICKETING_LONG=1`.
fn cases() -> u32 {
    match std::env::var_os("TICKETING_LONG") {
        Some(_) => 100_000,
        None => 2000,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_leave_the_request_decoder_bounded_and_accepted_ones_encode_to_themselves(
        bytes in hostile(request_parts().prop_map(|parts| encoded(request(&parts))))
    ) {
        let mut rest = bytes.as_slice();
        loop {
            let result = Incoming::decode(rest);
            assert_bounded(rest, MAX_REQUEST_LEN, &result)?;
            let Ok(Some((incoming, used))) = result else { break };
            if let Incoming::Request(request) = incoming {
                prop_assert_eq!(encoded(request), &rest[..used]);
            }
            rest = &rest[used..];
        }
    }

    #[test]
    fn any_bytes_leave_the_reply_decoder_bounded_and_accepted_ones_encode_to_themselves(
        bytes in hostile(reply().prop_map(|reply| {
            let mut out = Vec::new();
            reply.encode(&mut out);
            out
        }))
    ) {
        let mut rest = bytes.as_slice();
        loop {
            let result = Reply::decode(rest);
            assert_bounded(rest, MAX_REPLY_LEN, &result)?;
            let Ok(Some((reply, used))) = result else { break };
            let mut out = Vec::new();
            reply.encode(&mut out);
            prop_assert_eq!(out, &rest[..used]);
            rest = &rest[used..];
        }
    }

    #[test]
    fn an_encoded_request_decodes_to_itself_and_not_before_its_last_byte(
        parts in request_parts(), tail in vec(any::<u8>(), 0..30), cut in any::<Index>()
    ) {
        let request = request(&parts);
        let mut bytes = encoded(request);
        let used = bytes.len();
        prop_assert!(used <= MAX_REQUEST_LEN);
        prop_assert_eq!(Incoming::decode(&bytes[..cut.index(used)]), Ok(None));
        bytes.extend_from_slice(&tail);
        prop_assert_eq!(Incoming::decode(&bytes), Ok(Some((Incoming::Request(request), used))));
    }

    #[test]
    fn an_encoded_reply_decodes_to_itself_and_not_before_its_last_byte(
        reply in reply(), tail in vec(any::<u8>(), 0..30), cut in any::<Index>()
    ) {
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        let used = bytes.len();
        prop_assert!(used <= MAX_REPLY_LEN);
        prop_assert_eq!(Reply::decode(&bytes[..cut.index(used)]), Ok(None));
        bytes.extend_from_slice(&tail);
        prop_assert_eq!(Reply::decode(&bytes), Ok(Some((reply, used))));
    }

    #[test]
    fn an_encoded_hello_decodes_to_itself_and_an_accepted_one_encodes_to_itself(
        slot in prop_oneof![Just(None), (0..=4_u8).prop_map(Slot::new)],
        nonce in any::<[u8; 16]>(), bends in vec((0..28_usize, any::<u8>()), 0..3)
    ) {
        let hello = Hello { mode: slot.map_or(Mode::Single, Mode::Cluster), nonce };
        let mut bytes = hello.encode();
        prop_assert_eq!(Hello::decode(&bytes), Ok(hello));
        for (at, value) in bends {
            bytes[at] = value;
        }
        if let Ok(accepted) = Hello::decode(&bytes) {
            prop_assert_eq!(accepted.encode(), bytes);
        }
    }

    #[test]
    fn c5_a_set_is_sorted_deduplicated_and_alone_a_single(keys in vec(valid_key(), 0..40)) {
        let sorted: BTreeSet<&[u8]> = keys.iter().map(String::as_bytes).collect();
        match KeySet::new(&keys) {
            Ok(set) => {
                let got: Vec<&[u8]> = set.as_keys().iter().map(Key::as_bytes).collect();
                prop_assert_eq!(got, sorted.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(set.as_keys().len(), sorted.len());
                prop_assert_eq!(matches!(set.as_keys(), Keys::One(_)), sorted.len() == 1);
                prop_assert_eq!(&KeySet::from(set.as_keys()), &set);
                let mut reversed = keys;
                reversed.reverse();
                prop_assert_eq!(KeySet::new(&reversed), Ok(set));
            }
            Err(error) => {
                prop_assert_eq!(error, InvalidKeySet::Count(sorted.len()));
                prop_assert!(!(1..=MAX_SET_KEYS).contains(&sorted.len()));
            }
        }
    }

    #[test]
    fn c5_a_key_is_what_the_wire_allows(bytes in vec(any::<u8>(), 0..140), text in "[a-c \n\r]{0,4}") {
        for bytes in [bytes.as_slice(), text.as_bytes()] {
            let allowed = (1..=128).contains(&bytes.len())
                && std::str::from_utf8(bytes).is_ok()
                && !bytes.iter().any(|b| [0x20, 0x0a, 0x0d].contains(b));
            prop_assert_eq!(Key::from_bytes(bytes).is_ok(), allowed);
        }
    }
}

#[test]
fn c5_a_bad_key_is_named_by_its_place() {
    let long = "k".repeat(MAX_KEY_LEN + 1);
    for (bad, reason) in [
        ("", InvalidKey::Length(0)),
        (long.as_str(), InvalidKey::Length(129)),
        ("a b", InvalidKey::Separator),
        ("a\r", InvalidKey::Separator),
    ] {
        assert_eq!(
            KeySet::new(["z", bad]),
            Err(InvalidKeySet::Key { index: 1, reason })
        );
    }
}

/// Which body lengths the wire page allows: the fixed fields, then a key or a key list.
fn request_lengths(opcode: u8) -> Option<std::ops::RangeInclusive<usize>> {
    match opcode {
        b'A' => Some(10..=10 + 128),
        b'S' => Some(11..=11 + 16 * 129),
        b'R' => Some(16..=16 + 128),
        b'G' => Some(17..=17 + 16 * 129),
        _ => None,
    }
}

fn reply_length(opcode: u8) -> Option<usize> {
    match opcode {
        b'A' | b'S' => Some(16),
        b'M' | b'E' => Some(9),
        b'L' => Some(1),
        b'T' | b'B' | b'R' | b'G' | b'N' | b'I' => Some(8),
        _ => None,
    }
}

#[test]
fn the_largest_frames_are_as_the_wire_page_says() {
    let ends = b"ASRG".map(|opcode| 3 + request_lengths(opcode).map_or(0, |r| *r.end()));
    assert_eq!(
        ends,
        [
            3 + 10 + 128,
            3 + 11 + 16 * 129,
            3 + 16 + 128,
            MAX_REQUEST_LEN
        ]
    );
    assert_eq!(MAX_REQUEST_LEN, 3 + 17 + 16 * 129);
    assert_eq!(MAX_REPLY_LEN, 3 + 16);
}

#[test]
fn every_header_is_decided_at_once() {
    for opcode in 0..=u8::MAX {
        for len in 0..=u16::MAX {
            let [hi, lo] = len.to_be_bytes();
            let (header, size) = ([opcode, hi, lo], usize::from(len));
            let wrong = Violation::Length { opcode, len };
            let request = match request_lengths(opcode) {
                None => Err(Violation::Opcode(opcode)),
                Some(allowed) if allowed.contains(&size) => Ok(None),
                Some(_) => Err(wrong),
            };
            assert_eq!(Incoming::decode(&header), request);
            let reply = match reply_length(opcode) {
                None => Err(Violation::Opcode(opcode)),
                Some(allowed) if allowed == size => Ok(None),
                Some(_) => Err(wrong),
            };
            assert_eq!(Reply::decode(&header), reply);
        }
    }
}

/// A frame made by hand.
fn frame(opcode: u8, fixed: &[u8], keys: &[u8]) -> Vec<u8> {
    let body = [&7_u64.to_be_bytes(), fixed, keys].concat();
    let [hi, lo] = u16::try_from(body.len()).unwrap().to_be_bytes();
    [&[opcode, hi, lo], body.as_slice()].concat()
}

fn list(count: u8, keys: &[&[u8]]) -> Vec<u8> {
    let mut out = vec![count];
    for key in keys {
        out.push(key.len().try_into().unwrap());
        out.extend_from_slice(key);
    }
    out
}

fn answer(bytes: &[u8]) -> Result<Option<ErrorCode>, Violation> {
    Ok(match Incoming::decode(bytes)? {
        Some((Incoming::Request(_), used)) if used == bytes.len() => None,
        Some((Incoming::Refused { id, code }, used)) if used == bytes.len() => {
            assert_eq!(id.get(), 7);
            Some(code)
        }
        other => panic!("{other:?} from {} bytes", bytes.len()),
    })
}

/// Acquire and release of a list, each with good and with bad fixed fields.
fn set_frames(list: &[u8]) -> [Vec<u8>; 4] {
    [
        frame(b'S', &[0, 1], list),
        frame(b'S', &[0, 0], list),
        frame(b'G', &1_u64.to_be_bytes(), list),
        frame(b'G', &0_u64.to_be_bytes(), list),
    ]
}

#[test]
fn of_several_faults_the_structural_one_closes_then_set_then_key_then_fields() {
    let long = [b'k'; 129];
    let many: Vec<[u8; 1]> = (b'A'..b'A' + 17).map(|c| [c]).collect();
    let many: Vec<&[u8]> = many.iter().map(|key| key.as_slice()).collect();
    let with_tail = |mut list: Vec<u8>| {
        list.push(b'a');
        list
    };

    // Bytes past the end, records past the end: close, whatever else is wrong.
    for structural in [
        with_tail(list(2, &[b"a", b"b"])),
        with_tail(list(2, &[b"b", b" "])),
        with_tail(list(0, &[])),
        with_tail(list(17, &many)),
        list(1, &[b"a", b"b"]),
        list(3, &[b"a", b"b"]),
        list(2, &[]),
        vec![2, 1, b'b', 1],
        vec![2, 1, b'b', 2, b'a'],
        vec![2, 255, b'b', 2, b'a'],
    ] {
        for bytes in set_frames(&structural) {
            assert_eq!(answer(&bytes), Err(Violation::KeyList), "{structural:?}");
        }
    }

    // Count, order, repetition: E5, also when a key, the lease or the token is bad too.
    for set in [
        list(0, &[]),
        list(1, &[b"a"]),
        list(1, &[b" "]),
        list(17, &many),
        list(2, &[b"b", b"a"]),
        list(2, &[b"a", b"a"]),
        list(2, &[b"", b""]),
        list(3, &[b"a", b"c", b"b"]),
        list(3, &[b"a", b" ", b"b"]),
        list(2, &[b"ab", b"a"]),
        list(2, &[&long, &long]),
    ] {
        for bytes in set_frames(&set) {
            assert_eq!(answer(&bytes), Ok(Some(ErrorCode::BadKeySet)), "{set:?}");
        }
    }

    // A bad key in a good order: E1 before lease and token.
    for keys in [
        list(2, &[b"", b"a"]),
        list(2, &[b" ", b"a"]),
        list(2, &[b"a", b"b\n"]),
        list(2, &[b"a", b"b\r"]),
        list(2, &[b"a", b"\xff"]),
        list(2, &[b"a", &long]),
        list(2, &[b"a", &[b'k'; 255]]),
    ] {
        for bytes in set_frames(&keys) {
            assert_eq!(answer(&bytes), Ok(Some(ErrorCode::BadKey)), "{keys:?}");
        }
    }
    for (fixed, opcode) in [(&[0, 0][..], b'A'), (&[0; 8][..], b'R')] {
        assert_eq!(
            answer(&frame(opcode, fixed, b" ")),
            Ok(Some(ErrorCode::BadKey))
        );
        assert_eq!(
            answer(&frame(opcode, fixed, b"")),
            Ok(Some(ErrorCode::BadKey))
        );
    }

    // Good keys: what is left is the lease or the token.
    let [acquire, no_lease, release, no_token] = set_frames(&list(2, &[b"a", b"b"]));
    assert_eq!(answer(&acquire), Ok(None));
    assert_eq!(answer(&no_lease), Ok(Some(ErrorCode::BadLease)));
    assert_eq!(answer(&release), Ok(None));
    assert_eq!(answer(&no_token), Ok(Some(ErrorCode::BadToken)));
}

#[test]
fn every_wait_and_lease_is_judged() {
    for wait in 0..=u8::MAX {
        for lease in 0..=u8::MAX {
            let refused = (!(1..=250).contains(&lease)).then_some(ErrorCode::BadLease);
            assert_eq!(answer(&frame(b'A', &[wait, lease], b"k")), Ok(refused));
        }
    }
}

#[test]
fn every_slot_and_error_code_is_judged() {
    for byte in 0..=u8::MAX {
        let slot_is_good = byte <= 4 || byte == 255;
        let moved = [b"M\x00\x09\0\0\0\0\0\0\0\x07", &[byte][..]].concat();
        let error = [b"E\x00\x09\0\0\0\0\0\0\0\x07", &[byte][..]].concat();
        assert_eq!(Reply::decode(&moved).is_ok(), slot_is_good);
        assert_eq!(Reply::decode(&[b'L', 0, 1, byte]).is_ok(), slot_is_good);
        assert_eq!(Reply::decode(&error).is_ok(), (1..=7).contains(&byte));
    }
}
