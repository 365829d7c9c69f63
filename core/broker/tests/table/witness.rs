//! What must hold of the table's effects, whatever led to them.

use std::collections::HashMap;

use ticketing_wire::Reply;

use super::model::Names;
use super::recorder::Effect;

/// Looks at requests and effects alone, and knows nothing of how a table works.
#[derive(Default)]
pub(crate) struct Witness {
    holders: HashMap<String, u64>,
    last_token: u64,
    /// Unanswered acquires in arrival order: connection, id, keys.
    asked: Vec<(u64, u64, Names)>,
    /// Unanswered releases: connection and id.
    releases: Vec<(u64, u64)>,
}

impl Witness {
    pub(crate) fn acquire(&mut self, conn: u64, id: u64, keys: Names) {
        self.asked.push((conn, id, keys));
    }

    pub(crate) fn release(&mut self, conn: u64, id: u64) {
        self.releases.push((conn, id));
    }

    pub(crate) fn restore(&mut self, token: u64, keys: &Names) {
        self.last_token = self.last_token.max(token);
        self.hold(token, keys.iter().copied());
    }

    /// `leaving` is a connection that ends meanwhile: its waiters are not answered.
    pub(crate) fn see(&mut self, effects: &[Effect], leaving: Option<u64>) {
        for effect in effects {
            match effect {
                Effect::Granted {
                    conn,
                    id,
                    token,
                    keys,
                    ..
                } => {
                    assert!(*token > self.last_token, "tokens rise (S3)");
                    self.last_token = *token;
                    let at = self.asked.iter().position(|a| (a.0, a.1) == (*conn, *id));
                    let at = at.expect("each grant answers an unanswered acquire");
                    let (_, _, asked) = self.asked.remove(at);
                    assert!(
                        asked.iter().eq(keys),
                        "exactly the keys that were asked for"
                    );
                    let mut waits = self.asked[..at].iter().filter(|a| Some(a.0) != leaving);
                    let overtaken = waits.find(|a| !a.2.is_disjoint(&asked));
                    assert_eq!(overtaken, None, "nobody is overtaken on its keys (S1)");
                    self.hold(*token, keys.iter().map(String::as_str));
                }
                Effect::Ended(token) => {
                    let before = self.holders.len();
                    self.holders.retain(|_, holder| holder != token);
                    assert!(self.holders.len() < before, "only a current grant ends");
                }
                Effect::Reply(conn, reply) => self.answered(*conn, *reply),
                Effect::Mark(_) => {}
            }
        }
        self.asked.retain(|asked| Some(asked.0) != leaving);
    }

    fn answered(&mut self, conn: u64, reply: Reply) {
        let id = reply.id().expect("the table pushes nothing").get();
        let acquires = self.asked.len();
        let releases = self.releases.len();
        match reply {
            Reply::Released { .. } | Reply::SetReleased { .. } | Reply::NotCurrent { .. } => {
                self.releases.retain(|&release| release != (conn, id));
            }
            Reply::Error { .. } => {
                self.releases.retain(|&release| release != (conn, id));
                self.asked.retain(|asked| (asked.0, asked.1) != (conn, id));
            }
            _ => self.asked.retain(|asked| (asked.0, asked.1) != (conn, id)),
        }
        let left = self.asked.len() + self.releases.len();
        assert_eq!(
            left + 1,
            acquires + releases,
            "{reply:?} answers one unanswered request"
        );
    }

    fn hold<'a>(&mut self, token: u64, keys: impl Iterator<Item = &'a str>) {
        for key in keys {
            let other = self.holders.insert(key.to_owned(), token);
            assert_eq!(other, None, "{key} has one holder at a time (S1)");
        }
    }

    /// Every lease and wait is over.
    pub(crate) fn end(&self) {
        assert!(self.holders.is_empty(), "still held: {:?}", self.holders);
        assert!(self.asked.is_empty(), "never answered: {:?}", self.asked);
        assert!(
            self.releases.is_empty(),
            "never answered: {:?}",
            self.releases
        );
    }
}
