//! Hello, authentication and its result.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::VERSION;
use crate::reply::{SLOT_NONE, Slot};

/// Bytes of the server's hello.
pub const HELLO_LEN: usize = 28;
/// Bytes of the client's authentication.
pub const AUTH_LEN: usize = 32;
/// Bytes of the hello's nonce.
pub const NONCE_LEN: usize = 16;
/// The result byte of an accepted client.
pub const ACCEPTED: u8 = 1;
/// The result byte of a rejected client; the server closes after it.
pub const REJECTED: u8 = 0;

const MAGIC: &[u8; 8] = b"TCKCLI3\0";
const AUTH_PREFIX: &[u8; 16] = b"TCK/CLIENT/AUTH3";

/// How a broker runs, as its hello says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// One broker, no peers.
    Single,
    /// A cluster's node at this place of the address list.
    Cluster(Slot),
}

impl Mode {
    fn wire(self) -> [u8; 2] {
        match self {
            Mode::Single => [0, SLOT_NONE],
            Mode::Cluster(slot) => [1, slot.get()],
        }
    }
}

/// The first bytes of a connection, from the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// Single or cluster, and the node's slot.
    pub mode: Mode,
    /// Random bytes, new for each connection.
    pub nonce: [u8; NONCE_LEN],
}

/// Why a client refuses a hello: it is talking to the wrong server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HelloError {
    /// It is not a Ticketing broker.
    #[error("the peer is not a Ticketing broker (wrong magic bytes)")]
    Magic,
    /// It speaks another version.
    #[error("the broker speaks version {0} of the protocol, this client version {VERSION}")]
    Version(u16),
    /// An unknown mode, or a slot that does not go with it.
    #[error("the broker's hello has mode {mode} with slot {slot}")]
    Mode {
        /// The mode byte.
        mode: u8,
        /// The slot byte.
        slot: u8,
    },
}

impl Hello {
    /// The hello's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HELLO_LEN] {
        let mut out = [0; HELLO_LEN];
        out[..8].copy_from_slice(MAGIC);
        out[8..10].copy_from_slice(&VERSION.to_be_bytes());
        out[10..12].copy_from_slice(&self.mode.wire());
        out[12..].copy_from_slice(&self.nonce);
        out
    }

    /// Checks magic, version, mode and slot.
    ///
    /// # Errors
    /// [`HelloError`] says what a server of another kind sent.
    pub fn decode(bytes: &[u8; HELLO_LEN]) -> Result<Self, HelloError> {
        if bytes[..8] != MAGIC[..] {
            return Err(HelloError::Magic);
        }
        let version = u16::from_be_bytes([bytes[8], bytes[9]]);
        if version != VERSION {
            return Err(HelloError::Version(version));
        }
        let (mode, slot) = (bytes[10], bytes[11]);
        let mode = match (mode, Slot::new(slot)) {
            (0, None) if slot == SLOT_NONE => Mode::Single,
            (1, Some(slot)) => Mode::Cluster(slot),
            _ => return Err(HelloError::Mode { mode, slot }),
        };
        let mut nonce = [0; NONCE_LEN];
        nonce.copy_from_slice(&bytes[12..]);
        Ok(Hello { mode, nonce })
    }
}

/// What a broker is, mixed into the authentication so that a token for one is no use at another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity([u8; 32]);

/// A cluster name that is no name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a cluster name must not be empty")]
pub struct IdentityError;

impl Identity {
    /// The identity of every single broker.
    #[must_use]
    pub fn single() -> Self {
        Identity(Sha256::digest(b"ticketing/single/v3").into())
    }

    /// The identity of the cluster called `name`; exactly 64 hex digits are the identity itself.
    ///
    /// # Errors
    /// An empty name.
    pub fn cluster(name: &str) -> Result<Self, IdentityError> {
        if name.is_empty() {
            return Err(IdentityError);
        }
        if let Some(bytes) = parse_hex(name) {
            return Ok(Identity(bytes));
        }
        let mut hash = Sha256::new();
        hash.update(b"ticketing/cluster/v3\0");
        hash.update(name.as_bytes());
        Ok(Identity(hash.finalize().into()))
    }

    /// The identity's 32 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

fn parse_hex(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut out = [0; 32];
    for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |d: u8| char::from(d).to_digit(16);
        *byte = u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()?;
    }
    Some(out)
}

type HmacSha256 = Hmac<Sha256>;

impl Hello {
    /// The client's proof that it knows the client token `token` (may be empty).
    #[must_use]
    pub fn auth(&self, token: &str, identity: &Identity) -> [u8; AUTH_LEN] {
        self.mac(token, identity).finalize().into_bytes().into()
    }

    /// Whether `auth` proves knowledge of `token`; takes the same time whatever differs (S9).
    #[must_use]
    pub fn verify(&self, token: &str, identity: &Identity, auth: &[u8; AUTH_LEN]) -> bool {
        self.mac(token, identity).verify_slice(auth).is_ok()
    }

    fn mac(&self, token: &str, identity: &Identity) -> HmacSha256 {
        let mut mac = HmacSha256::new_from_slice(token.as_bytes()).expect("any length is a key");
        let [mode, slot] = self.mode.wire();
        mac.update(AUTH_PREFIX);
        mac.update(&VERSION.to_be_bytes());
        mac.update(&[mode]);
        mac.update(identity.as_bytes());
        mac.update(&[slot]);
        mac.update(&self.nonce);
        mac
    }
}
