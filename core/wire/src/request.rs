//! Client → server frames.

use crate::frame::{self, HEADER_LEN, RequestId, Token, Violation};
use crate::key::{BadList, Key, KeyList, Keys, MAX_KEY_LEN, MAX_SET_KEYS};
use crate::reply::ErrorCode;

/// The longest lease, in seconds.
pub const MAX_LEASE: u8 = 250;

/// The longest key list: count, then sixteen records.
const MAX_LIST: usize = 1 + MAX_SET_KEYS * (1 + MAX_KEY_LEN);
/// id, wait, lease.
const ACQUIRE_FIXED: usize = 10;
/// id, token.
const RELEASE_FIXED: usize = 16;

/// A request that keeps every rule of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request<'a> {
    /// `A` or `S`: asks for a grant on the keys.
    Acquire {
        /// The request's id.
        id: RequestId,
        /// How long to stand in line, in seconds; 0 never queues.
        wait: u8,
        /// How long to hold, in seconds, 1–250.
        lease: u8,
        /// What to hold.
        keys: Keys<'a>,
    },
    /// `R` or `G`: gives a grant back.
    Release {
        /// The request's id.
        id: RequestId,
        /// The grant's token.
        token: Token,
        /// The grant's keys.
        keys: Keys<'a>,
    },
}

impl Request<'_> {
    /// Appends the frame to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (opcodes, id, keys) = match *self {
            Request::Acquire { id, keys, .. } => ([b'A', b'S'], id, keys),
            Request::Release { id, keys, .. } => ([b'R', b'G'], id, keys),
        };
        let (opcode, key_bytes) = match keys {
            Keys::One(key) => (opcodes[0], key.as_bytes()),
            Keys::Set(list) => (opcodes[1], list.wire_bytes()),
        };
        let fixed = match self {
            Request::Acquire { .. } => ACQUIRE_FIXED,
            Request::Release { .. } => RELEASE_FIXED,
        };
        frame::put_header(out, opcode, fixed + key_bytes.len());
        out.extend_from_slice(&id.get().to_be_bytes());
        match *self {
            Request::Acquire { wait, lease, .. } => out.extend_from_slice(&[wait, lease]),
            Request::Release { token, .. } => out.extend_from_slice(&token.get().to_be_bytes()),
        }
        out.extend_from_slice(key_bytes);
    }
}

/// What a broker reads: a request, or one that it refuses with an error code and lives on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Incoming<'a> {
    /// A request that keeps the rules.
    Request(Request<'a>),
    /// A request that is answered with `E` and has no effect.
    Refused {
        /// The request's id.
        id: RequestId,
        /// Why.
        code: ErrorCode,
    },
}

impl<'a> Incoming<'a> {
    /// Decodes the first frame of `buf` and says how many bytes it took; `None` if more bytes are
    /// needed. Decides from the header alone whether a body is worth waiting for, so a caller
    /// never needs to buffer more than [`crate::MAX_REQUEST_LEN`] bytes.
    ///
    /// # Errors
    /// [`Violation`]: close the connection.
    pub fn decode(buf: &'a [u8]) -> Result<Option<(Self, usize)>, Violation> {
        let Some((opcode, len)) = frame::header(buf) else {
            return Ok(None);
        };
        let body_len = usize::from(len);
        let allowed = match opcode {
            b'A' => ACQUIRE_FIXED..=ACQUIRE_FIXED + MAX_KEY_LEN,
            b'S' => ACQUIRE_FIXED + 1..=ACQUIRE_FIXED + MAX_LIST,
            b'R' => RELEASE_FIXED..=RELEASE_FIXED + MAX_KEY_LEN,
            b'G' => RELEASE_FIXED + 1..=RELEASE_FIXED + MAX_LIST,
            other => return Err(Violation::Opcode(other)),
        };
        if !allowed.contains(&body_len) {
            return Err(Violation::Length { opcode, len });
        }
        let used = HEADER_LEN + body_len;
        let Some(mut body) = buf.get(HEADER_LEN..used) else {
            return Ok(None);
        };
        let id = frame::take_id(&mut body)?;
        Ok(Some((Self::decode_body(opcode, id, body)?, used)))
    }

    fn decode_body(opcode: u8, id: RequestId, mut body: &'a [u8]) -> Result<Self, Violation> {
        let refused = |code| Ok(Incoming::Refused { id, code });
        if let b'A' | b'S' = opcode {
            let (wait, lease) = (frame::take_u8(&mut body), frame::take_u8(&mut body));
            match decode_keys(opcode == b'S', body)? {
                Err(code) => refused(code),
                Ok(_) if !(1..=MAX_LEASE).contains(&lease) => refused(ErrorCode::BadLease),
                Ok(keys) => Ok(Incoming::Request(Request::Acquire {
                    id,
                    wait,
                    lease,
                    keys,
                })),
            }
        } else {
            let token = Token::new(frame::take_u64(&mut body));
            match (decode_keys(opcode == b'G', body)?, token) {
                (Err(code), _) => refused(code),
                (Ok(_), None) => refused(ErrorCode::BadToken),
                (Ok(keys), Some(token)) => {
                    Ok(Incoming::Request(Request::Release { id, token, keys }))
                }
            }
        }
    }
}

fn decode_keys(set: bool, body: &[u8]) -> Result<Result<Keys<'_>, ErrorCode>, Violation> {
    if !set {
        return Ok(Key::from_bytes(body)
            .map(Keys::One)
            .map_err(|_| ErrorCode::BadKey));
    }
    match KeyList::decode(body) {
        Ok(list) => Ok(Ok(Keys::Set(list))),
        Err(BadList::Malformed) => Err(Violation::KeyList),
        Err(BadList::Set) => Ok(Err(ErrorCode::BadKeySet)),
        Err(BadList::Key) => Ok(Err(ErrorCode::BadKey)),
    }
}
