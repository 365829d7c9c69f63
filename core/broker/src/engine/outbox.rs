//! Replies on their way to one connection, and the grants that they carry.

use ticketing_wire::{Reply, Token};

/// Encoded replies that no write holds yet.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    /// The grants among them, each with the offset of its frame. Were their bytes never given to
    /// the transport, they are undone (S5).
    grants: Vec<(usize, Token)>,
}

/// What an emptied outbox may keep for reuse: an idle connection stays small.
const KEPT: usize = 256;

impl Outbox {
    pub(crate) fn push(&mut self, reply: &Reply) {
        if let Reply::Acquired { token, .. } | Reply::SetAcquired { token, .. } = *reply {
            self.grants.push((self.bytes.len(), token));
        }
        reply.encode(&mut self.bytes);
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Moves everything from `other` behind what is here.
    pub(crate) fn append(&mut self, other: &mut Outbox) {
        let base = self.bytes.len();
        self.bytes.append(&mut other.bytes);
        let moved = other.grants.drain(..);
        self.grants
            .extend(moved.map(|(at, token)| (base + at, token)));
        other.shrink();
    }

    /// Forgets the first `written` bytes: the transport has them. A grant whose frame they only
    /// begin counts as written.
    pub(crate) fn advance(&mut self, written: usize) {
        if written >= self.bytes.len() {
            self.clear();
            return;
        }
        self.bytes.drain(..written);
        self.grants.retain_mut(|(at, _)| {
            let kept = *at >= written;
            *at = at.saturating_sub(written);
            kept
        });
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.grants.clear();
    }

    /// Gives the memory of a burst back.
    pub(crate) fn shrink(&mut self) {
        self.bytes.shrink_to(KEPT.max(self.bytes.len()));
        self.grants.shrink_to(self.grants.len());
    }

    /// The grants that no write holds, oldest first.
    pub(crate) fn grants(&self) -> impl Iterator<Item = Token> {
        self.grants.iter().map(|(_, token)| *token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ticketing_wire::RequestId;

    fn id(n: u64) -> RequestId {
        RequestId::new(n).unwrap()
    }

    fn token(n: u64) -> Token {
        Token::new(n).unwrap()
    }

    fn grant(n: u64) -> Reply {
        Reply::Acquired {
            id: id(n),
            token: token(n),
        }
    }

    #[test]
    fn s5_a_grant_counts_as_written_once_its_first_byte_is() {
        for (written, left) in [(0, vec![1, 2]), (1, vec![2]), (19, vec![2]), (30, vec![2])] {
            let mut outbox = Outbox::default();
            outbox.push(&grant(1));
            outbox.push(&Reply::Released { id: id(9) });
            outbox.push(&grant(2));
            let all = outbox.bytes().to_vec();
            outbox.advance(written);
            let grants: Vec<_> = outbox.grants().map(Token::get).collect();
            assert_eq!(grants, left, "{written} bytes written");
            assert_eq!(outbox.bytes(), &all[written..]);
        }
    }

    #[test]
    fn s5_appending_and_advancing_keep_a_grant_with_its_bytes() {
        let (mut first, mut second) = (Outbox::default(), Outbox::default());
        first.push(&grant(1));
        second.push(&grant(2));
        first.append(&mut second);
        assert!(second.is_empty());
        first.advance(19);
        assert_eq!(first.grants().map(Token::get).collect::<Vec<_>>(), [2]);
        first.advance(18);
        assert_eq!(first.grants().count(), 0);
        assert_eq!(first.bytes().len(), 1);
        first.advance(1);
        assert!(first.is_empty());
    }
}
