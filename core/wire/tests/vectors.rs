//! The vectors in `tests/vectors/wire-v3.json`, both directions, cut and joined everywhere.
//!
//! The vectors come from a separate program that knows the wire page alone.

#![allow(clippy::unwrap_used, reason = "test helpers")]

use serde_json::Value;
use ticketing_wire::{
    AUTH_LEN, ErrorCode, HEADER_LEN, HELLO_LEN, Hello, HelloError, Identity, Incoming, KeySet,
    Mode, Reply, Request, RequestId, Slot, Token, Violation,
};

const VECTORS: &str = include_str!("../../../tests/vectors/wire-v3.json");

fn section(name: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(VECTORS).unwrap();
    let list = all[name].as_array().unwrap().clone();
    assert!(!list.is_empty(), "no vectors in {name}");
    list
}

fn text<'a>(vector: &'a Value, field: &str) -> &'a str {
    vector[field]
        .as_str()
        .unwrap_or_else(|| panic!("no text {field} in {vector}"))
}

fn number(vector: &Value, field: &str) -> u64 {
    vector[field]
        .as_u64()
        .unwrap_or_else(|| panic!("no number {field} in {vector}"))
}

fn byte(vector: &Value, field: &str) -> u8 {
    number(vector, field).try_into().unwrap()
}

fn hex(vector: &Value, field: &str) -> Vec<u8> {
    let digits = text(vector, field);
    (0..digits.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap())
        .collect()
}

fn id(vector: &Value) -> RequestId {
    RequestId::new(number(vector, "id")).unwrap()
}

fn keys(vector: &Value) -> KeySet {
    KeySet::new(
        vector["keys"]
            .as_array()
            .unwrap()
            .iter()
            .map(|key| key.as_str().unwrap()),
    )
    .unwrap()
}

fn request<'a>(vector: &Value, keys: &'a KeySet) -> Request<'a> {
    let (id, keys) = (id(vector), keys.as_keys());
    match text(vector, "kind") {
        "acquire" | "acquire_set" => Request::Acquire {
            id,
            wait: byte(vector, "wait"),
            lease: byte(vector, "lease"),
            keys,
        },
        "release" | "release_set" => Request::Release {
            id,
            token: Token::new(number(vector, "token")).unwrap(),
            keys,
        },
        other => panic!("unknown kind {other}"),
    }
}

fn code(number: u8) -> ErrorCode {
    use ErrorCode::{BadKey, BadKeySet, BadLease, BadToken, GroupMismatch, NoLeader, NotActive};
    [
        BadKey,
        BadLease,
        NotActive,
        NoLeader,
        BadKeySet,
        GroupMismatch,
        BadToken,
    ][usize::from(number) - 1]
}

fn slot(vector: &Value) -> Option<Slot> {
    match byte(vector, "slot") {
        255 => None,
        place => Some(Slot::new(place).unwrap()),
    }
}

fn reply(vector: &Value) -> Reply {
    let token = || Token::new(number(vector, "token")).unwrap();
    match text(vector, "kind") {
        "acquired" => Reply::Acquired {
            id: id(vector),
            token: token(),
        },
        "set_acquired" => Reply::SetAcquired {
            id: id(vector),
            token: token(),
        },
        "timed_out" => Reply::TimedOut { id: id(vector) },
        "busy" => Reply::Busy { id: id(vector) },
        "released" => Reply::Released { id: id(vector) },
        "set_released" => Reply::SetReleased { id: id(vector) },
        "not_current" => Reply::NotCurrent { id: id(vector) },
        "indeterminate" => Reply::Indeterminate { id: id(vector) },
        "moved" => Reply::Moved {
            id: id(vector),
            slot: slot(vector),
        },
        "error" => Reply::Error {
            id: id(vector),
            code: code(byte(vector, "code")),
        },
        "leader" => Reply::Leader { slot: slot(vector) },
        other => panic!("unknown kind {other}"),
    }
}

/// What an invalid vector must be found to be. A fault that the header shows is an opcode or a length.
fn violation(vector: &Value, bytes: &[u8]) -> Violation {
    let length = |opcode, len| Violation::Length { opcode, len };
    match text(vector, "why") {
        "empty body" => length(b'T', 0),
        "short id" => length(b'T', 7),
        "long body" => length(b'T', 9),
        "zero id" | "request id 0" => Violation::ZeroId,
        "zero token" => Violation::ZeroToken,
        "acquired without token" => length(b'A', 8),
        "error code 0" => Violation::ErrorCode(0),
        "error code 8" => Violation::ErrorCode(8),
        "leader too long" => length(b'L', 2),
        "moved without slot" => length(b'M', 8),
        "oversized declaration" | "declared 65535" => length(b'A', 0xffff),
        "unknown opcode" | "lower-case opcode" | "a reply opcode from a client" => {
            Violation::Opcode(bytes[0])
        }
        "request opcode body as reply" => length(b'R', 17),
        "set record past the end" => Violation::KeyList,
        "key too long" => length(b'A', 139),
        "body too short" => length(b'A', 9),
        other => panic!("no expectation for {other}"),
    }
}

/// Every prefix asks for more until the fault can be seen: in the header, or in the whole frame.
fn assert_violation<T: std::fmt::Debug + PartialEq>(
    bytes: &[u8],
    expected: Violation,
    decode: impl Fn(&[u8]) -> Result<Option<T>, Violation>,
) {
    let in_header = matches!(expected, Violation::Opcode(_) | Violation::Length { .. });
    let seen_at = if in_header { HEADER_LEN } else { bytes.len() };
    for cut in 0..=bytes.len() {
        let wanted = if cut < seen_at {
            Ok(None)
        } else {
            Err(expected)
        };
        assert_eq!(
            decode(&bytes[..cut]),
            wanted,
            "{expected} after {cut} of {} bytes",
            bytes.len()
        );
    }
}

/// Request frames that keep the connection, with what each is.
fn request_stream() -> Vec<(Vec<u8>, String)> {
    let mut frames: Vec<_> = section("requests")
        .iter()
        .map(|v| {
            (
                hex(v, "frame"),
                format!("{:?}", Incoming::Request(request(v, &keys(v)))),
            )
        })
        .collect();
    for vector in section("invalid_requests") {
        if let Some(number) = text(&vector, "answer").strip_prefix('E') {
            let refused = Incoming::Refused {
                id: RequestId::new(1).unwrap(),
                code: code(number.parse().unwrap()),
            };
            frames.push((hex(&vector, "bytes"), format!("{refused:?}")));
        }
    }
    frames
}

fn decode_request(bytes: &[u8]) -> Result<Option<(String, usize)>, Violation> {
    Ok(Incoming::decode(bytes)?.map(|(frame, used)| (format!("{frame:?}"), used)))
}

fn reply_stream() -> Vec<(Vec<u8>, Reply)> {
    section("replies")
        .iter()
        .map(|v| (hex(v, "frame"), reply(v)))
        .collect()
}

/// Prefixes, every pair of frames, and the whole stream cut in two at every byte and into bytes.
fn assert_fragments_and_coalescing<T: std::fmt::Debug + PartialEq + Clone>(
    frames: &[(Vec<u8>, T)],
    decode: impl Fn(&[u8]) -> Result<Option<(T, usize)>, Violation>,
) {
    for (bytes, value) in frames {
        for cut in 0..bytes.len() {
            assert_eq!(decode(&bytes[..cut]), Ok(None), "{value:?} cut at {cut}");
        }
        assert_eq!(decode(bytes), Ok(Some((value.clone(), bytes.len()))));
        for (next, next_value) in frames {
            let both = [bytes.as_slice(), next].concat();
            assert_eq!(decode(&both), Ok(Some((value.clone(), bytes.len()))));
            assert_eq!(
                decode(&both[bytes.len()..]),
                Ok(Some((next_value.clone(), next.len())))
            );
        }
    }

    let stream: Vec<u8> = frames.iter().flat_map(|(bytes, _)| bytes.clone()).collect();
    let values: Vec<T> = frames.iter().map(|(_, value)| value.clone()).collect();
    let read = |chunks: &mut dyn Iterator<Item = &[u8]>| {
        let (mut buffer, mut got) = (Vec::new(), Vec::new());
        for chunk in chunks {
            buffer.extend_from_slice(chunk);
            let mut start = 0;
            while let Some((value, used)) = decode(&buffer[start..]).unwrap() {
                got.push(value);
                start += used;
            }
            buffer.drain(..start);
        }
        assert!(buffer.is_empty(), "{} bytes are left over", buffer.len());
        got
    };
    assert_eq!(read(&mut stream.chunks(1)), values);
    for cut in 0..=stream.len() {
        let (head, tail) = stream.split_at(cut);
        assert_eq!(
            read(&mut [head, tail].into_iter()),
            values,
            "stream cut at {cut}"
        );
    }
}

#[test]
fn requests_decode_and_encode() {
    for vector in section("requests") {
        let (keys, bytes) = (keys(&vector), hex(&vector, "frame"));
        let request = request(&vector, &keys);
        assert_eq!(
            Incoming::decode(&bytes),
            Ok(Some((Incoming::Request(request), bytes.len()))),
            "{vector}"
        );
        let mut encoded = b"kept".to_vec();
        request.encode(&mut encoded);
        assert_eq!(encoded, [b"kept", bytes.as_slice()].concat(), "{vector}");
    }
}

#[test]
fn replies_decode_and_encode() {
    for vector in section("replies") {
        let (reply, bytes) = (reply(&vector), hex(&vector, "frame"));
        assert_eq!(
            Reply::decode(&bytes),
            Ok(Some((reply, bytes.len()))),
            "{vector}"
        );
        let mut encoded = b"kept".to_vec();
        reply.encode(&mut encoded);
        assert_eq!(encoded, [b"kept", bytes.as_slice()].concat(), "{vector}");
        assert_eq!(
            reply.id().map(RequestId::get),
            vector["id"].as_u64(),
            "{vector}"
        );
    }
}

#[test]
fn requests_at_every_fragment_boundary_and_coalescing() {
    assert_fragments_and_coalescing(&request_stream(), decode_request);
}

#[test]
fn replies_at_every_fragment_boundary_and_coalescing() {
    assert_fragments_and_coalescing(&reply_stream(), Reply::decode);
}

#[test]
fn invalid_replies_are_seen_as_early_as_the_header_allows() {
    for vector in section("invalid_replies") {
        let bytes = hex(&vector, "bytes");
        let expected = violation(&vector, &bytes);
        assert_violation(&bytes, expected, Reply::decode);
        for (good, _) in reply_stream() {
            let after = [good.as_slice(), &bytes].concat();
            assert_eq!(Reply::decode(&after[good.len()..]), Err(expected));
        }
    }
}

#[test]
fn invalid_requests_are_refused_or_close() {
    let (mut closed, mut refused) = (0, 0);
    for vector in section("invalid_requests") {
        let bytes = hex(&vector, "bytes");
        match text(&vector, "answer") {
            "close" => {
                assert_violation(&bytes, violation(&vector, &bytes), decode_request);
                closed += 1;
            }
            answer => {
                let code = code(answer.strip_prefix('E').unwrap().parse().unwrap());
                let frame = Incoming::Refused {
                    id: RequestId::new(1).unwrap(),
                    code,
                };
                assert_eq!(
                    Incoming::decode(&bytes),
                    Ok(Some((frame, bytes.len()))),
                    "{vector}"
                );
                refused += 1;
            }
        }
    }
    assert!(closed > 0 && refused > 0);
}

#[test]
fn handshakes_decode_encode_and_authenticate() {
    let mut hellos = Vec::new();
    for vector in section("handshakes") {
        let bytes: [u8; HELLO_LEN] = hex(&vector, "hello").try_into().unwrap();
        let auth: [u8; AUTH_LEN] = hex(&vector, "auth").try_into().unwrap();
        let hello = Hello::decode(&bytes).unwrap();
        let (mode, identity) = match (byte(&vector, "mode"), slot(&vector)) {
            (0, None) => (Mode::Single, Identity::single()),
            (1, Some(slot)) => (
                Mode::Cluster(slot),
                Identity::cluster(text(&vector, "identity")).unwrap(),
            ),
            other => panic!("no such mode: {other:?}"),
        };
        assert_eq!(hello.mode, mode);
        assert_eq!(hello.nonce, bytes[12..]);
        assert_eq!(hello.encode(), bytes);
        assert_eq!(identity.as_bytes().as_slice(), hex(&vector, "identity"));
        let token = text(&vector, "token");
        assert_eq!(hello.auth(token, &identity), auth);
        hellos.push((hello, token.to_owned(), identity, auth));
    }

    assert_eq!(hellos[4].2, Identity::cluster("default").unwrap());
    assert_eq!(hellos[5].2, Identity::cluster("orders").unwrap());

    // Only the very hello, token and identity verify: each vector's proof fails for every other.
    for (i, (_, _, _, auth)) in hellos.iter().enumerate() {
        for (k, (hello, token, identity, _)) in hellos.iter().enumerate() {
            assert_eq!(
                hello.verify(token, identity, auth),
                i == k,
                "proof {i} at hello {k}"
            );
        }
    }
}

#[test]
fn s9_a_proof_with_any_bit_changed_is_refused() {
    for vector in section("handshakes") {
        let hello = Hello::decode(&hex(&vector, "hello").try_into().unwrap()).unwrap();
        let identity = match hello.mode {
            Mode::Single => Identity::single(),
            Mode::Cluster(_) => Identity::cluster(text(&vector, "identity")).unwrap(),
        };
        let token = text(&vector, "token");
        let auth = hello.auth(token, &identity);
        assert!(hello.verify(token, &identity, &auth));
        assert!(!hello.verify(&format!("{token}x"), &identity, &auth));
        for bit in 0..AUTH_LEN * 8 {
            let mut changed = auth;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!hello.verify(token, &identity, &changed), "bit {bit}");
        }
    }
}

#[test]
fn invalid_hellos_are_named() {
    for vector in section("invalid_hellos") {
        let expected = match text(&vector, "why") {
            "magic" | "an older text greeting" => HelloError::Magic,
            "version 2" => HelloError::Version(2),
            "version 4" => HelloError::Version(4),
            "mode 2" => HelloError::Mode { mode: 2, slot: 255 },
            "single with a slot" => HelloError::Mode { mode: 0, slot: 0 },
            "cluster with slot 5" => HelloError::Mode { mode: 1, slot: 5 },
            "cluster without a slot" => HelloError::Mode { mode: 1, slot: 255 },
            other => panic!("no expectation for {other}"),
        };
        assert_eq!(
            Hello::decode(&hex(&vector, "bytes").try_into().unwrap()),
            Err(expected)
        );
    }
}
