//! The Ticketing wire protocol, version 3 (`docs/wire-v3.md`): typed frames from bytes and back.
//!
//! Both sides of a connection use this crate and nobody else touches an offset. It does no I/O,
//! reads no clock and knows no async runtime. Single-key frames are encoded and decoded without
//! allocation: decoded requests borrow from the buffer that they were read into.
//!
//! ```
//! use ticketing_wire::{Incoming, KeySet, Request, RequestId};
//!
//! let keys = KeySet::new(["order-42"])?;
//! let id = RequestId::new(1).unwrap();
//! let mut bytes = Vec::new();
//! Request::Acquire { id, wait: 5, lease: 30, keys: keys.as_keys() }.encode(&mut bytes);
//!
//! let (frame, used) = Incoming::decode(&bytes)?.expect("the frame is whole");
//! assert_eq!(used, bytes.len());
//! assert!(matches!(frame, Incoming::Request(Request::Acquire { lease: 30, .. })));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod frame;
mod handshake;
mod key;
mod reply;
mod request;

pub use frame::{HEADER_LEN, MAX_REPLY_LEN, MAX_REQUEST_LEN, RequestId, Token, Violation};
pub use handshake::{
    ACCEPTED, AUTH_LEN, HELLO_LEN, Hello, HelloError, Identity, IdentityError, Mode, NONCE_LEN,
    REJECTED,
};
pub use key::{
    InvalidKey, InvalidKeySet, Key, KeyList, KeySet, Keys, KeysIter, MAX_KEY_LEN, MAX_SET_KEYS,
};
pub use reply::{ErrorCode, Reply, SLOT_NONE, Slot};
pub use request::{Incoming, MAX_LEASE, Request};

/// The version this crate speaks.
pub const VERSION: u16 = 3;

/// The port a broker listens on when nothing else is said.
pub const DEFAULT_PORT: u16 = 5225;
