//! Server → client frames.

use crate::frame::{self, HEADER_LEN, RequestId, Token, Violation};

/// The slot byte that means "no node" or "single mode".
pub const SLOT_NONE: u8 = 255;

/// A node's place in a cluster's address list, 0–4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u8);

impl Slot {
    /// The slot at `place`, or `None` above 4.
    #[must_use]
    pub fn new(place: u8) -> Option<Self> {
        (place <= 4).then_some(Slot(place))
    }

    /// The place in the address list, 0–4.
    #[must_use]
    pub fn get(self) -> u8 {
        self.0
    }

    pub(crate) fn from_wire(byte: u8) -> Result<Option<Self>, Violation> {
        match byte {
            SLOT_NONE => Ok(None),
            place => Slot::new(place).map(Some).ok_or(Violation::Slot(place)),
        }
    }

    pub(crate) fn to_wire(slot: Option<Self>) -> u8 {
        slot.map_or(SLOT_NONE, Slot::get)
    }
}

/// Why a broker refuses a request; the request has had no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ErrorCode {
    /// A key that breaks the rules for keys.
    BadKey = 1,
    /// A lease outside 1–250 s.
    BadLease = 2,
    /// The node is starting, stopping or not serving yet.
    NotActive = 3,
    /// The cluster has no leader.
    NoLeader = 4,
    /// A set whose count or order is wrong, or that repeats a key.
    BadKeySet = 5,
    /// The token is current, but for other keys.
    GroupMismatch = 6,
    /// A token of 0.
    BadToken = 7,
}

impl ErrorCode {
    /// The code's number on the wire.
    #[must_use]
    pub fn get(self) -> u8 {
        self as u8
    }

    /// The code's name in the protocol.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ErrorCode::BadKey => "BadKey",
            ErrorCode::BadLease => "BadLease",
            ErrorCode::NotActive => "NotActive",
            ErrorCode::NoLeader => "NoLeader",
            ErrorCode::BadKeySet => "BadKeySet",
            ErrorCode::GroupMismatch => "GroupMismatch",
            ErrorCode::BadToken => "BadToken",
        }
    }

    fn from_wire(byte: u8) -> Result<Self, Violation> {
        Ok(match byte {
            1 => ErrorCode::BadKey,
            2 => ErrorCode::BadLease,
            3 => ErrorCode::NotActive,
            4 => ErrorCode::NoLeader,
            5 => ErrorCode::BadKeySet,
            6 => ErrorCode::GroupMismatch,
            7 => ErrorCode::BadToken,
            other => return Err(Violation::ErrorCode(other)),
        })
    }
}

/// A frame from the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "`id` is the request that a reply answers, `token` the grant's"
)]
pub enum Reply {
    /// `A`: one key is granted.
    Acquired { id: RequestId, token: Token },
    /// `S`: a set is granted.
    SetAcquired { id: RequestId, token: Token },
    /// `T`: not granted within the wait.
    TimedOut { id: RequestId },
    /// `B`: a capacity limit; not queued, not granted.
    Busy { id: RequestId },
    /// `R`: the grant on one key is gone.
    Released { id: RequestId },
    /// `G`: the grant on a set is gone.
    SetReleased { id: RequestId },
    /// `N`: no such grant is held.
    NotCurrent { id: RequestId },
    /// `M`: not the leader, not accepted; `slot` names the leader if it is known.
    Moved { id: RequestId, slot: Option<Slot> },
    /// `I`: the node cannot say whether it took effect.
    Indeterminate { id: RequestId },
    /// `E`: refused, without effect.
    Error { id: RequestId, code: ErrorCode },
    /// `L`: the leader's slot, pushed in cluster mode only; `None` while there is none.
    Leader { slot: Option<Slot> },
}

impl Reply {
    /// The request that this reply answers; `None` for a pushed frame.
    #[must_use]
    pub fn id(&self) -> Option<RequestId> {
        match *self {
            Reply::Acquired { id, .. }
            | Reply::SetAcquired { id, .. }
            | Reply::TimedOut { id }
            | Reply::Busy { id }
            | Reply::Released { id }
            | Reply::SetReleased { id }
            | Reply::NotCurrent { id }
            | Reply::Moved { id, .. }
            | Reply::Indeterminate { id }
            | Reply::Error { id, .. } => Some(id),
            Reply::Leader { .. } => None,
        }
    }

    fn opcode(&self) -> u8 {
        match self {
            Reply::Acquired { .. } => b'A',
            Reply::SetAcquired { .. } => b'S',
            Reply::TimedOut { .. } => b'T',
            Reply::Busy { .. } => b'B',
            Reply::Released { .. } => b'R',
            Reply::SetReleased { .. } => b'G',
            Reply::NotCurrent { .. } => b'N',
            Reply::Moved { .. } => b'M',
            Reply::Indeterminate { .. } => b'I',
            Reply::Error { .. } => b'E',
            Reply::Leader { .. } => b'L',
        }
    }

    fn body_len(opcode: u8) -> Option<u16> {
        match opcode {
            b'A' | b'S' => Some(16),
            b'M' | b'E' => Some(9),
            b'L' => Some(1),
            b'T' | b'B' | b'R' | b'G' | b'N' | b'I' => Some(8),
            _ => None,
        }
    }

    /// Appends the frame to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let opcode = self.opcode();
        let len = Self::body_len(opcode).expect("every reply has a length");
        frame::put_header(out, opcode, len.into());
        if let Some(id) = self.id() {
            out.extend_from_slice(&id.get().to_be_bytes());
        }
        match *self {
            Reply::Acquired { token, .. } | Reply::SetAcquired { token, .. } => {
                out.extend_from_slice(&token.get().to_be_bytes());
            }
            Reply::Moved { slot, .. } | Reply::Leader { slot } => out.push(Slot::to_wire(slot)),
            Reply::Error { code, .. } => out.push(code.get()),
            _ => {}
        }
    }

    /// Decodes the first frame of `buf` and says how many bytes it took; `None` if more bytes are
    /// needed. Decides from the header alone whether a body is worth waiting for.
    ///
    /// # Errors
    /// [`Violation`]: close the connection.
    pub fn decode(buf: &[u8]) -> Result<Option<(Self, usize)>, Violation> {
        let Some((opcode, len)) = frame::header(buf) else {
            return Ok(None);
        };
        let expected = Self::body_len(opcode).ok_or(Violation::Opcode(opcode))?;
        if len != expected {
            return Err(Violation::Length { opcode, len });
        }
        let used = HEADER_LEN + usize::from(len);
        let Some(mut body) = buf.get(HEADER_LEN..used) else {
            return Ok(None);
        };
        if opcode == b'L' {
            return Ok(Some((
                Reply::Leader {
                    slot: Slot::from_wire(body[0])?,
                },
                used,
            )));
        }
        let id = frame::take_id(&mut body)?;
        let reply = match opcode {
            b'A' => Reply::Acquired {
                id,
                token: take_token(&mut body)?,
            },
            b'S' => Reply::SetAcquired {
                id,
                token: take_token(&mut body)?,
            },
            b'T' => Reply::TimedOut { id },
            b'B' => Reply::Busy { id },
            b'R' => Reply::Released { id },
            b'G' => Reply::SetReleased { id },
            b'N' => Reply::NotCurrent { id },
            b'M' => Reply::Moved {
                id,
                slot: Slot::from_wire(body[0])?,
            },
            b'I' => Reply::Indeterminate { id },
            _ => Reply::Error {
                id,
                code: ErrorCode::from_wire(body[0])?,
            },
        };
        Ok(Some((reply, used)))
    }
}

fn take_token(body: &mut &[u8]) -> Result<Token, Violation> {
    Token::new(frame::take_u64(body)).ok_or(Violation::ZeroToken)
}
