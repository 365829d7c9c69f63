//! The mutations of one commit, in one reusable buffer.

use std::fmt;

use ticketing_wire::{Incoming, Keys, Request, Token};

/// What the lock table changed since the last commit, in order.
///
/// One byte buffer that is cleared and used again, so that gathering allocates nothing. Each
/// record is self-delimiting:
///
/// | record | bytes |
/// | --- | --- |
/// | grant | the wire's acquire frame (`A` or `S`) with the token in the place of the request id and wait 0: it has exactly a grant's content, and one codec checks keys everywhere |
/// | end | `e`, token u64 big-endian |
/// | mark | `m`, mark u64 big-endian |
#[derive(Default, Clone, PartialEq, Eq)]
pub struct Batch {
    bytes: Vec<u8>,
}

const END: u8 = b'e';
const MARK: u8 = b'm';
/// Opcode and u64.
const FIXED_LEN: usize = 9;

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The keys are held under `token` for `lease` seconds.
    pub fn grant(&mut self, token: Token, lease: u8, keys: Keys<'_>) {
        Request::Acquire {
            id: token,
            wait: 0,
            lease,
            keys,
        }
        .encode(&mut self.bytes);
    }

    /// The grant under `token` is gone: released, expired or undone.
    pub fn end(&mut self, token: Token) {
        self.fixed(END, token.get());
    }

    /// No token above `mark` is issued before the next mark (S3).
    pub fn mark(&mut self, mark: u64) {
        self.fixed(MARK, mark);
    }

    fn fixed(&mut self, opcode: u8, value: u64) {
        self.bytes.push(opcode);
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    /// Forgets all records and keeps the buffer.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Whether there is nothing to commit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The records' bytes: how much a commit has to write.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The records in order.
    #[must_use]
    pub fn records(&self) -> BatchRecords<'_> {
        BatchRecords { rest: &self.bytes }
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.records()).finish()
    }
}

/// One mutation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record<'a> {
    /// See [`Batch::grant`].
    Grant {
        /// The grant's fencing token.
        token: Token,
        /// Its lease in seconds.
        lease: u8,
        /// Its keys.
        keys: Keys<'a>,
    },
    /// See [`Batch::end`].
    End {
        /// The ended grant's token.
        token: Token,
    },
    /// See [`Batch::mark`].
    Mark {
        /// The highest token that may be issued.
        mark: u64,
    },
}

impl<'a> Record<'a> {
    /// Takes the first record off `bytes`; `None` if they don't begin with a whole record.
    pub(super) fn take(bytes: &mut &'a [u8]) -> Option<Self> {
        match *bytes.first()? {
            opcode @ (END | MARK) => {
                let (record, rest) = bytes.split_first_chunk::<FIXED_LEN>()?;
                let value = u64::from_be_bytes(record[1..].try_into().expect("eight bytes"));
                *bytes = rest;
                if opcode == MARK {
                    Some(Record::Mark { mark: value })
                } else {
                    Token::new(value).map(|token| Record::End { token })
                }
            }
            b'A' | b'S' => match Incoming::decode(bytes) {
                Ok(Some((
                    Incoming::Request(Request::Acquire {
                        id, lease, keys, ..
                    }),
                    used,
                ))) => {
                    *bytes = &bytes[used..];
                    Some(Record::Grant {
                        token: id,
                        lease,
                        keys,
                    })
                }
                _ => None,
            },
            _ => None,
        }
    }
}

/// Iterator over a batch's records.
#[derive(Debug, Clone)]
pub struct BatchRecords<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for BatchRecords<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        if self.rest.is_empty() {
            return None;
        }
        Some(Record::take(&mut self.rest).expect("a batch holds what it was given"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ticketing_wire::KeySet;

    fn token(n: u64) -> Token {
        Token::new(n).unwrap()
    }

    #[test]
    fn records_come_back_in_order() {
        let one = KeySet::new(["order-42"]).unwrap();
        let set = KeySet::new(["b", "a", "ключ"]).unwrap();
        let mut batch = Batch::new();
        batch.mark(u64::MAX);
        batch.grant(token(7), 250, one.as_keys());
        batch.end(token(7));
        batch.grant(token(u64::MAX), 1, set.as_keys());
        let records: Vec<_> = batch.records().collect();
        assert_eq!(
            records,
            [
                Record::Mark { mark: u64::MAX },
                Record::Grant {
                    token: token(7),
                    lease: 250,
                    keys: one.as_keys()
                },
                Record::End { token: token(7) },
                Record::Grant {
                    token: token(u64::MAX),
                    lease: 1,
                    keys: set.as_keys()
                },
            ]
        );
        batch.clear();
        assert!(batch.is_empty());
        assert_eq!(batch.records().next(), None);
    }

    #[test]
    fn no_part_of_a_record_is_a_record() {
        let set = KeySet::new(["a", "b"]).unwrap();
        let mut batch = Batch::new();
        batch.grant(token(1), 9, set.as_keys());
        for cut in 0..batch.bytes.len() {
            assert_eq!(Record::take(&mut &batch.bytes[..cut]), None, "{cut}");
        }
        for cut in 0..FIXED_LEN {
            assert_eq!(
                Record::take(&mut &[END, 0, 0, 0, 0, 0, 0, 0, 1][..cut]),
                None,
                "{cut}"
            );
        }
        assert_eq!(
            Record::take(&mut &[END, 0, 0, 0, 0, 0, 0, 0, 0][..]),
            None,
            "token 0"
        );
        assert_eq!(Record::take(&mut &[0; 32][..]), None);
    }
}
