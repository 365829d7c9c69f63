//! A key that owns its bytes.

use ticketing_wire::Key;

/// What fits without an allocation, so that the value is as large as a boxed slice and a tag.
const INLINE: usize = 22;

pub(super) enum KeyBuf {
    Inline { len: u8, bytes: [u8; INLINE] },
    Boxed(Box<[u8]>),
}

impl KeyBuf {
    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            KeyBuf::Inline { len, bytes } => &bytes[..usize::from(*len)],
            KeyBuf::Boxed(bytes) => bytes,
        }
    }

    pub(super) fn as_key(&self) -> Key<'_> {
        Key::from_bytes(self.as_bytes()).expect("was a key when it was stored")
    }
}

impl From<Key<'_>> for KeyBuf {
    fn from(key: Key<'_>) -> Self {
        let key = key.as_bytes();
        if key.len() > INLINE {
            return KeyBuf::Boxed(key.into());
        }
        let mut bytes = [0; INLINE];
        bytes[..key.len()].copy_from_slice(key);
        KeyBuf::Inline {
            len: key.len() as u8,
            bytes,
        }
    }
}
