//! Keys: one borrowed key, the keys of one request, and the canonical set that owns its bytes.

use std::fmt;

/// The longest key, in bytes of UTF-8.
pub const MAX_KEY_LEN: usize = 128;

/// The most keys that one set may hold.
pub const MAX_SET_KEYS: usize = 16;

/// One key, borrowed: 1–128 bytes of UTF-8 without space, LF or CR.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key<'a>(&'a str);

/// Why some text is not a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidKey {
    /// Empty, or longer than 128 bytes.
    #[error("a key has 1 to {MAX_KEY_LEN} bytes of UTF-8, this one has {0}")]
    Length(usize),
    /// It contains a space, LF or CR.
    #[error("a key must not contain a space, a line feed or a carriage return")]
    Separator,
    /// It is not UTF-8.
    #[error("a key must be UTF-8")]
    NotUtf8,
}

impl<'a> Key<'a> {
    /// Checks `text` against the rules for keys.
    ///
    /// # Errors
    /// [`InvalidKey`] says which rule it breaks.
    pub fn new(text: &'a str) -> Result<Self, InvalidKey> {
        let bytes = text.as_bytes();
        if bytes.is_empty() || bytes.len() > MAX_KEY_LEN {
            return Err(InvalidKey::Length(bytes.len()));
        }
        if bytes.iter().any(|b| matches!(b, b' ' | b'\n' | b'\r')) {
            return Err(InvalidKey::Separator);
        }
        Ok(Key(text))
    }

    /// Checks bytes that came from outside.
    ///
    /// # Errors
    /// [`InvalidKey`] says which rule they break.
    pub fn from_bytes(bytes: &'a [u8]) -> Result<Self, InvalidKey> {
        Key::new(std::str::from_utf8(bytes).map_err(|_| InvalidKey::NotUtf8)?)
    }

    /// The key's text.
    #[must_use]
    pub fn as_str(self) -> &'a str {
        self.0
    }

    /// The key's UTF-8 bytes.
    #[must_use]
    pub fn as_bytes(self) -> &'a [u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.0, f)
    }
}

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Two to sixteen keys, strictly ascending, borrowed in their wire form.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyList<'a> {
    /// Count, then length and bytes of each key; checked when this value was made.
    bytes: &'a [u8],
}

/// Why the bytes of a key list are no key list. `Malformed` is a violation; the others are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadList {
    /// The records do not fill the bytes exactly.
    Malformed,
    /// The count, the order or a repetition.
    Set,
    /// One of the keys.
    Key,
}

impl<'a> KeyList<'a> {
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Self, BadList> {
        let (&count, mut rest) = bytes.split_first().ok_or(BadList::Malformed)?;
        let (mut bad_key, mut unordered) = (false, false);
        let mut last: Option<&[u8]> = None;
        for _ in 0..count {
            let (&len, tail) = rest.split_first().ok_or(BadList::Malformed)?;
            let (key, tail) = tail
                .split_at_checked(len.into())
                .ok_or(BadList::Malformed)?;
            bad_key |= Key::from_bytes(key).is_err();
            unordered |= last.is_some_and(|l| l >= key);
            last = Some(key);
            rest = tail;
        }
        if !rest.is_empty() {
            Err(BadList::Malformed)
        } else if unordered || !(2..=MAX_SET_KEYS).contains(&count.into()) {
            Err(BadList::Set)
        } else if bad_key {
            Err(BadList::Key)
        } else {
            Ok(KeyList { bytes })
        }
    }

    pub(crate) fn wire_bytes(self) -> &'a [u8] {
        self.bytes
    }
}

/// The keys of one request: one key, or a set of two to sixteen.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Keys<'a> {
    /// One key.
    One(Key<'a>),
    /// Two to sixteen keys.
    Set(KeyList<'a>),
}

impl<'a> Keys<'a> {
    /// The keys in ascending order.
    #[must_use]
    pub fn iter(self) -> KeysIter<'a> {
        match self {
            Keys::One(key) => KeysIter(Rest::One(Some(key))),
            Keys::Set(list) => KeysIter(Rest::Records(&list.bytes[1..])),
        }
    }

    /// How many there are: 1–16.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(self) -> usize {
        match self {
            Keys::One(_) => 1,
            Keys::Set(list) => list.bytes[0].into(),
        }
    }
}

impl<'a> IntoIterator for Keys<'a> {
    type Item = Key<'a>;
    type IntoIter = KeysIter<'a>;

    fn into_iter(self) -> KeysIter<'a> {
        self.iter()
    }
}

impl fmt::Debug for Keys<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Iterator over [`Keys`].
#[derive(Debug, Clone)]
pub struct KeysIter<'a>(Rest<'a>);

#[derive(Debug, Clone)]
enum Rest<'a> {
    One(Option<Key<'a>>),
    Records(&'a [u8]),
}

impl<'a> Iterator for KeysIter<'a> {
    type Item = Key<'a>;

    fn next(&mut self) -> Option<Key<'a>> {
        match &mut self.0 {
            Rest::One(key) => key.take(),
            Rest::Records(records) => {
                let (&len, tail) = records.split_first()?;
                let (key, tail) = tail.split_at(len.into());
                *records = tail;
                Some(Key::from_bytes(key).expect("checked when the list was made"))
            }
        }
    }
}

/// One to sixteen keys that own their bytes, sorted and without repetition (C5).
///
/// Cheap to encode: it is kept in its wire form.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct KeySet {
    /// As [`KeyList`], but the count may be 1.
    bytes: Box<[u8]>,
}

/// Why some keys are not a set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidKeySet {
    /// No key, or more than sixteen different ones.
    #[error("a set has 1 to {MAX_SET_KEYS} keys, this one has {0}")]
    Count(usize),
    /// One of the keys breaks the rules.
    #[error("key {index}: {reason}")]
    Key {
        /// Which one, counted from 0 in the order given.
        index: usize,
        /// The rule that it breaks.
        reason: InvalidKey,
    },
}

impl KeySet {
    /// Checks, sorts and de-duplicates `keys`.
    ///
    /// # Errors
    /// [`InvalidKeySet`]: a bad key, no key, or more than sixteen different ones.
    pub fn new<S: AsRef<str>>(keys: impl IntoIterator<Item = S>) -> Result<Self, InvalidKeySet> {
        let keys: Vec<S> = keys.into_iter().collect();
        let mut checked = Vec::with_capacity(keys.len());
        for (index, key) in keys.iter().enumerate() {
            let key =
                Key::new(key.as_ref()).map_err(|reason| InvalidKeySet::Key { index, reason })?;
            checked.push(key);
        }
        checked.sort_unstable();
        checked.dedup();
        if checked.is_empty() || checked.len() > MAX_SET_KEYS {
            return Err(InvalidKeySet::Count(checked.len()));
        }
        Ok(Self::from_ascending(checked.len(), checked.into_iter()))
    }

    fn from_ascending<'a>(count: usize, keys: impl Iterator<Item = Key<'a>>) -> Self {
        let mut bytes = Vec::with_capacity(1 + count * 24);
        bytes.push(u8::try_from(count).expect("at most 16"));
        for key in keys {
            bytes.push(u8::try_from(key.as_bytes().len()).expect("at most 128"));
            bytes.extend_from_slice(key.as_bytes());
        }
        KeySet {
            bytes: bytes.into(),
        }
    }

    /// The keys as a request carries them: a set of one travels as a single (C5).
    #[must_use]
    pub fn as_keys(&self) -> Keys<'_> {
        match self.bytes.first() {
            Some(1) => Keys::One(Key::from_bytes(&self.bytes[2..]).expect("checked when made")),
            _ => Keys::Set(KeyList { bytes: &self.bytes }),
        }
    }
}

impl From<Keys<'_>> for KeySet {
    fn from(keys: Keys<'_>) -> Self {
        match keys {
            Keys::One(key) => Self::from_ascending(1, std::iter::once(key)),
            Keys::Set(list) => KeySet {
                bytes: list.bytes.into(),
            },
        }
    }
}

impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_keys().fmt(f)
    }
}
