//! What a scripted broker is asked, and the replies that fit it.

use ticketing_wire::{ErrorCode, Incoming, Keys, Reply, Request, RequestId, Token};

/// A request that the client sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    Acquire {
        id: RequestId,
        wait: u8,
        lease: u8,
        keys: Vec<String>,
    },
    Release {
        id: RequestId,
        token: u64,
        keys: Vec<String>,
    },
}

impl Asked {
    pub fn id(&self) -> RequestId {
        match self {
            Asked::Acquire { id, .. } | Asked::Release { id, .. } => *id,
        }
    }

    pub fn keys(&self) -> &[String] {
        match self {
            Asked::Acquire { keys, .. } | Asked::Release { keys, .. } => keys,
        }
    }

    pub fn is_release(&self) -> bool {
        matches!(self, Asked::Release { .. })
    }

    /// The grant of this acquire.
    pub fn granted(&self, token: u64) -> Reply {
        let (id, token) = (self.id(), Token::new(token).unwrap());
        match self.keys().len() {
            1 => Reply::Acquired { id, token },
            _ => Reply::SetAcquired { id, token },
        }
    }

    /// The success of this release.
    pub fn released(&self) -> Reply {
        let id = self.id();
        match self.keys().len() {
            1 => Reply::Released { id },
            _ => Reply::SetReleased { id },
        }
    }

    pub fn refused(&self, code: ErrorCode) -> Reply {
        Reply::Error {
            id: self.id(),
            code,
        }
    }

    pub(super) fn from_wire(frame: Incoming<'_>) -> Self {
        let own = |keys: Keys<'_>| -> Vec<String> {
            keys.iter().map(|key| key.as_str().to_owned()).collect()
        };
        match frame {
            Incoming::Request(Request::Acquire {
                id,
                wait,
                lease,
                keys,
            }) => Asked::Acquire {
                id,
                wait,
                lease,
                keys: own(keys),
            },
            Incoming::Request(Request::Release { id, token, keys }) => Asked::Release {
                id,
                token: token.get(),
                keys: own(keys),
            },
            Incoming::Refused { id, code } => panic!("request {id} deserves {code:?}"),
        }
    }
}
