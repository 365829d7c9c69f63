//! What every frame has: a header, a request id, and one way to be wrong.

use std::num::NonZeroU64;

/// Opcode (u8) and body length (u16).
pub const HEADER_LEN: usize = 3;

/// The longest request frame, header included (release of a full set).
pub const MAX_REQUEST_LEN: usize = HEADER_LEN + 17 + 16 * 129;

/// The longest reply frame, header included.
pub const MAX_REPLY_LEN: usize = HEADER_LEN + 16;

/// A request id: chosen by the client, never 0, never used twice in a connection.
pub type RequestId = NonZeroU64;

/// A fencing token, never 0.
pub type Token = NonZeroU64;

/// Bytes that no conforming peer sends. The receiver closes the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// An opcode that this direction does not have.
    #[error("unknown opcode 0x{0:02x}")]
    Opcode(u8),
    /// A body length that the opcode does not allow.
    #[error("opcode '{}' with a body of {len} bytes", *.opcode as char)]
    Length {
        /// The frame's opcode.
        opcode: u8,
        /// The length that its header declares.
        len: u16,
    },
    /// A request id of 0.
    #[error("request id 0")]
    ZeroId,
    /// A token of 0 in a grant.
    #[error("a grant with token 0")]
    ZeroToken,
    /// An error code that is not in the protocol.
    #[error("unknown error code {0}")]
    ErrorCode(u8),
    /// A slot that no address list can have.
    #[error("slot {0} is neither 0-4 nor 255")]
    Slot(u8),
    /// A key list whose records do not fill the body exactly.
    #[error("a key list that does not fit its frame")]
    KeyList,
}

/// The header's opcode and body length, or `None` while fewer than three bytes are there.
pub(crate) fn header(buf: &[u8]) -> Option<(u8, u16)> {
    match *buf {
        [opcode, hi, lo, ..] => Some((opcode, u16::from_be_bytes([hi, lo]))),
        _ => None,
    }
}

/// Takes a big-endian u64 off the front. The caller has checked the length.
pub(crate) fn take_u64(body: &mut &[u8]) -> u64 {
    let (head, rest) = body.split_first_chunk::<8>().expect("length was checked");
    *body = rest;
    u64::from_be_bytes(*head)
}

/// Takes one byte off the front. The caller has checked the length.
pub(crate) fn take_u8(body: &mut &[u8]) -> u8 {
    let (head, rest) = body.split_first().expect("length was checked");
    *body = rest;
    *head
}

pub(crate) fn take_id(body: &mut &[u8]) -> Result<RequestId, Violation> {
    RequestId::new(take_u64(body)).ok_or(Violation::ZeroId)
}

pub(crate) fn put_header(out: &mut Vec<u8>, opcode: u8, body_len: usize) {
    let len = u16::try_from(body_len).expect("bodies are far below 64 KiB");
    out.push(opcode);
    out.extend_from_slice(&len.to_be_bytes());
}
