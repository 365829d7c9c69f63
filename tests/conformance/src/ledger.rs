//! The ledger: what holds in every scenario, whatever its steps look at.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::peer::Request;

/// Each grant that the scripted broker gives is reported once, or released within 5 s, or its
/// session ends; nothing is asked for twice.
#[derive(Default)]
pub(crate) struct Ledger(Mutex<Books>);

#[derive(Default)]
struct Books {
    grants: BTreeMap<u64, Grant>,
    ended: BTreeSet<usize>,
    /// Acquires that the testee was told to make, and those that reached the broker.
    called: u32,
    asked: u32,
    /// Answers after which an acquire is made anew (C13).
    anew: u32,
    problems: Vec<String>,
}

struct Grant {
    session: usize,
    given: Instant,
    reported: u32,
    released: Option<Instant>,
    ended: bool,
}

/// C19's 5 s, with what a loaded machine may need on top.
const IN_TIME: Duration = Duration::from_secs(7);

impl Ledger {
    /// The testee was told to acquire.
    pub(crate) fn called(&self) {
        self.books(|books| books.called += 1);
    }

    /// A request reached the broker.
    pub(crate) fn requested(&self, request: &Request, now: Instant) {
        self.books(|books| {
            if request.is_acquire() {
                books.asked += 1;
                return;
            }
            match books.grants.get_mut(&request.token) {
                Some(grant) => drop(grant.released.get_or_insert(now)),
                None => books.problems.push(format!(
                    "a release of a token that was never given: {request:?}"
                )),
            }
        });
    }

    /// The broker gives a grant.
    pub(crate) fn granted(&self, token: u64, session: usize, now: Instant) {
        self.books(|books| {
            let grant = Grant {
                session,
                given: now,
                reported: 0,
                released: None,
                ended: books.ended.contains(&session),
            };
            books.grants.insert(token, grant);
        });
    }

    /// The broker answers so that the acquire is made anew.
    pub(crate) fn anew(&self) {
        self.books(|books| books.anew += 1);
    }

    /// The session is over, by whomever: its unreported grants are its own matter.
    pub(crate) fn session_ended(&self, session: usize) {
        self.books(|books| {
            books.ended.insert(session);
            for grant in books.grants.values_mut().filter(|g| g.session == session) {
                grant.ended = true;
            }
        });
    }

    /// The testee reported a ticket.
    pub(crate) fn reported(&self, token: &str) {
        self.books(|books| {
            let known = token
                .parse()
                .ok()
                .and_then(|token: u64| books.grants.get_mut(&token));
            match known {
                Some(grant) => {
                    grant.reported += 1;
                    if grant.reported > 1 {
                        books
                            .problems
                            .push(format!("token {token} was reported twice"));
                    }
                }
                None => books
                    .problems
                    .push(format!("token {token} was reported and never given")),
            }
        });
    }

    /// Whether some grant came to nobody so far.
    #[must_use]
    pub(crate) fn is_open(&self) -> bool {
        self.books(|books| books.grants.values().any(Grant::is_open))
    }

    /// What does not hold.
    #[must_use]
    pub(crate) fn problems(&self) -> Vec<String> {
        self.books(|books| {
            let mut problems = books.problems.clone();
            if books.asked > books.called + books.anew {
                problems.push(format!(
                    "{} acquires reached the broker, {} were called",
                    books.asked, books.called
                ));
            }
            for (token, grant) in &books.grants {
                let late = grant.released.is_some_and(|at| at > grant.given + IN_TIME);
                if grant.is_open() {
                    problems.push(format!("grant {token} was neither reported nor released"));
                } else if grant.reported == 0 && late {
                    problems.push(format!("grant {token} was released too late"));
                }
            }
            problems
        })
    }

    fn books<T>(&self, look: impl FnOnce(&mut Books) -> T) -> T {
        look(&mut self.0.lock().expect("not poisoned"))
    }
}

impl Grant {
    fn is_open(&self) -> bool {
        self.reported == 0 && self.released.is_none() && !self.ended
    }
}
