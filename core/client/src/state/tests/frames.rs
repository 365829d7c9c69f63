//! Requests as a broker reads them, and how it may answer.

use ticketing_wire::Incoming;

use super::*;

/// A request as the broker reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) id: RequestId,
    pub(super) keys: Vec<String>,
    pub(super) what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Acquire { wait: u8, lease: u8 },
    Release { token: u64 },
}

/// How a broker answers a request.
pub(super) type Answer = fn(&Frame) -> Reply;

impl Frame {
    pub(super) fn wait(&self) -> u8 {
        match self.what {
            What::Acquire { wait, .. } => wait,
            What::Release { .. } => panic!("{self:?} is no acquire"),
        }
    }

    pub(super) fn token(&self) -> u64 {
        match self.what {
            What::Release { token } => token,
            What::Acquire { .. } => panic!("{self:?} is no release"),
        }
    }

    pub(super) fn is_acquire(&self) -> bool {
        matches!(self.what, What::Acquire { .. })
    }

    pub(super) fn granted(&self, token: u64) -> Reply {
        let (id, token) = (self.id, Token::new(token).unwrap());
        match self.keys.len() {
            1 => Reply::Acquired { id, token },
            _ => Reply::SetAcquired { id, token },
        }
    }

    pub(super) fn released(&self) -> Reply {
        match self.keys.len() {
            1 => Reply::Released { id: self.id },
            _ => Reply::SetReleased { id: self.id },
        }
    }

    pub(super) fn not_current(&self) -> Reply {
        Reply::NotCurrent { id: self.id }
    }

    pub(super) fn timed_out(&self) -> Reply {
        Reply::TimedOut { id: self.id }
    }

    pub(super) fn busy(&self) -> Reply {
        Reply::Busy { id: self.id }
    }

    pub(super) fn indeterminate(&self) -> Reply {
        Reply::Indeterminate { id: self.id }
    }

    pub(super) fn moved(&self, slot: Option<u8>) -> Reply {
        Reply::Moved {
            id: self.id,
            slot: slot.map(|s| Slot::new(s).unwrap()),
        }
    }

    pub(super) fn error(&self, code: ErrorCode) -> Reply {
        Reply::Error { id: self.id, code }
    }
}

pub(super) fn decode(mut bytes: &[u8]) -> Vec<Frame> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let (incoming, used) = Incoming::decode(bytes).unwrap().expect("whole frames");
        let Incoming::Request(request) = incoming else {
            panic!("a broker would refuse {incoming:?}")
        };
        let names = |keys: ticketing_wire::Keys<'_>| keys.iter().map(|k| k.to_string()).collect();
        frames.push(match request {
            Request::Acquire {
                id,
                wait,
                lease,
                keys,
            } => Frame {
                id,
                keys: names(keys),
                what: What::Acquire { wait, lease },
            },
            Request::Release { id, token, keys } => Frame {
                id,
                keys: names(keys),
                what: What::Release { token: token.get() },
            },
        });
        bytes = &bytes[used..];
    }
    frames
}
