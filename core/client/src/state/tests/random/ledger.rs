//! What was asked, sent, answered and told, and what the clauses say of it.

use super::super::super::acquire::Stage;
use super::*;

/// One acquire.
struct Ask {
    keys: Vec<String>,
    terms: Terms,
    wait_end: Moment,
    /// The try that is unanswered or was answered for good.
    wire: Option<Wire>,
    /// Its outcome was seen.
    decided: Option<&'static str>,
}

struct Wire {
    sid: SessionId,
    sent_at: Moment,
    due: Moment,
    answer: Option<Reply>,
}

/// One release.
struct Pass {
    id: ReleaseId,
    keys: Vec<String>,
    born: Moment,
    compensating: bool,
    /// Where it was tried, and whether that try is unanswered.
    tries: Vec<(SessionId, bool)>,
    unsure: u32,
    not_before: Option<Moment>,
    /// The first final answer.
    answer: Option<&'static str>,
    cell: Option<Arc<ReleaseCell>>,
}

#[derive(Clone, Copy)]
enum Request {
    Acquire(AcquireId),
    /// By its token, and when its session is to be retired for want of an answer.
    Release {
        token: u64,
        due: Moment,
    },
}

#[derive(Default)]
pub(super) struct Ledger {
    asks: BTreeMap<AcquireId, Ask>,
    /// Unfinished releases by token.
    passes: BTreeMap<u64, Pass>,
    /// Explicit and automatic releases whose cell is not known to the state's map yet.
    cells: BTreeMap<u64, Arc<ReleaseCell>>,
    /// Sent and unanswered on sessions that live.
    wires: BTreeMap<(SessionId, u64), Request>,
    /// Every token that was ever released: never by two releases.
    given_back: BTreeSet<u64>,
    handed_out: BTreeSet<u64>,
    /// Grants parsed since the last look.
    parsed: Vec<u64>,
    pub(super) rejections: u32,
    pub(super) closed_at: Option<Moment>,
    /// Sessions seen open, and those that end through `M` or `E`.
    open: BTreeSet<SessionId>,
    excused: BTreeSet<SessionId>,
    last_retired: Option<Moment>,
    pub(super) compensations: u64,
}

impl Ledger {
    pub(super) fn asked(&mut self, now: Moment, id: AcquireId, keys: Vec<String>, terms: Terms) {
        let wait = if terms.wait == 0 {
            secs(5)
        } else {
            secs(terms.wait.into())
        };
        let ask = Ask {
            keys,
            terms,
            wait_end: now + wait,
            wire: None,
            decided: None,
        };
        assert!(self.asks.insert(id, ask).is_none());
    }

    pub(super) fn undecided(&self) -> Vec<AcquireId> {
        self.asks.keys().copied().collect()
    }

    /// Requests that a session handed over, while it was in the state `open`.
    pub(super) fn sent(&mut self, rig: &Rig, sid: SessionId, open: bool, frames: &[Frame]) {
        assert!(
            open || frames.is_empty(),
            "sent on a session that is not open"
        );
        for frame in frames {
            match frame.what {
                What::Acquire { wait, lease } => self.sent_acquire(rig, sid, frame, wait, lease),
                What::Release { token } => self.sent_release(rig.now, sid, frame, token),
            }
        }
    }

    fn sent_acquire(&mut self, rig: &Rig, sid: SessionId, frame: &Frame, wait: u8, lease: u8) {
        let on_wire = |id: &&AcquireId| rig.on_wire(**id) == Some((sid, frame.id.get()));
        let id = *self
            .asks
            .keys()
            .find(on_wire)
            .expect("somebody asked for it");
        // C14: everything of its keys that was released before it is finished or was sent here.
        for (token, pass) in &self.passes {
            let shares = pass.keys.iter().any(|k| frame.keys.contains(k));
            let here = pass.tries.iter().any(|(s, _)| *s == sid);
            let over = pass.born + secs(5) <= rig.now;
            let may = pass.id > id || !shares || here || over;
            assert!(may, "{frame:?} overtakes the release of {token}");
        }
        let ask = self.asks.get_mut(&id).unwrap();
        assert!(ask.wire.is_none(), "sent twice: {frame:?}");
        assert_eq!(
            (ask.decided, &ask.keys, ask.terms.lease),
            (None, &frame.keys, lease)
        );
        let left = rig.now.until(ask.wait_end);
        assert!(!left.is_zero(), "sent after its wait");
        let rounded = if ask.terms.wait == 0 {
            0
        } else {
            crate::args::seconds_up(left)
        };
        assert_eq!(u64::from(wait), rounded);
        ask.wire = Some(Wire {
            sid,
            sent_at: rig.now,
            due: rig.now + secs(wait.into()) + secs(3),
            answer: None,
        });
        self.wires
            .insert((sid, frame.id.get()), Request::Acquire(id));
        // C26.
        let acquires = self
            .wires
            .values()
            .filter(|r| matches!(r, Request::Acquire(_)))
            .count();
        assert!(
            acquires <= rig.state.max_pending,
            "more than max_pending outstanding"
        );
    }

    fn sent_release(&mut self, now: Moment, sid: SessionId, frame: &Frame, token: u64) {
        let pass = self.passes.get_mut(&token).expect("it is unfinished");
        assert_eq!(pass.keys, frame.keys);
        assert!(now < pass.born + secs(5), "sent after its 5 s");
        assert!(
            !pass.tries.contains(&(sid, true)),
            "a second unanswered try on a session"
        );
        assert!(
            pass.not_before.is_none_or(|at| at <= now),
            "too soon after an `I`"
        );
        pass.tries.push((sid, true));
        let due = now + secs(5);
        self.wires
            .insert((sid, frame.id.get()), Request::Release { token, due });
    }

    /// A reply that is parsed next.
    pub(super) fn heard(&mut self, now: Moment, sid: SessionId, reply: Reply) {
        let Some(id) = reply.id() else { return };
        let request = self.wires.remove(&(sid, id.get())).expect("outstanding");
        let refused = match reply {
            Reply::Moved { .. } => true,
            Reply::Error { code, .. } => {
                matches!(code, ErrorCode::NotActive | ErrorCode::NoLeader)
            }
            _ => false,
        };
        if matches!(reply, Reply::Moved { .. } | Reply::Error { .. }) {
            self.excused.insert(sid);
        }
        match request {
            Request::Acquire(id) => {
                if let Reply::Acquired { token, .. } | Reply::SetAcquired { token, .. } = reply {
                    self.parsed.push(token.get());
                }
                // Nobody waits for it any more: it may only have a grant to give back.
                let Some(ask) = self.asks.get_mut(&id).filter(|a| a.decided.is_none()) else {
                    return;
                };
                if refused {
                    ask.wire = None;
                } else {
                    ask.wire.as_mut().unwrap().answer = Some(reply);
                }
            }
            Request::Release { token, .. } => {
                let Some(pass) = self.passes.get_mut(&token) else {
                    return;
                };
                for (s, unanswered) in &mut pass.tries {
                    *unanswered &= *s != sid;
                }
                let answer = match reply {
                    Reply::Released { .. } | Reply::SetReleased { .. } => "Released",
                    Reply::NotCurrent { .. } => "NotCurrent",
                    Reply::Indeterminate { .. } => {
                        pass.not_before = Some(now + ms(100 << pass.unsure));
                        pass.unsure += 1;
                        return;
                    }
                    _ if refused => return,
                    _ => "Protocol",
                };
                pass.answer.get_or_insert(answer);
            }
        }
    }

    pub(super) fn released(&mut self, token: u64, cell: Arc<ReleaseCell>) {
        assert!(self.handed_out.contains(&token));
        self.cells.insert(token, cell);
    }

    /// Takes an outcome from the state machine. What the caller holds now, if anything.
    pub(super) fn took(
        &mut self,
        rig: &Rig,
        id: AcquireId,
        outcome: Result<Grant, TicketError>,
    ) -> Option<Grant> {
        let ask = self.asks.remove(&id).expect("it had no outcome yet");
        let decided = ask.decided.expect("seen before");
        match outcome {
            Ok(grant) => {
                assert_eq!(decided, "Ok");
                let left = rig.now.until(grant.valid_before);
                assert!(left >= ask.terms.min_work && !left.is_zero(), "C16");
                let lease = secs(ask.terms.lease.into());
                assert_eq!(grant.valid_before, ask.wire.unwrap().sent_at + lease);
                assert!(
                    self.handed_out.insert(grant.token.get()),
                    "handed out twice"
                );
                Some(grant)
            }
            Err(e) => {
                // A grant that became too old meanwhile is given back.
                assert!(e.kind() == decided || (e.kind(), decided) == ("InsufficientLease", "Ok"));
                if decided == "Ok" {
                    self.parsed.push(granted(&ask).unwrap());
                }
                None
            }
        }
    }

    /// The caller cancelled; `by_deadline` if its own deadline passed.
    pub(super) fn cancelled(&mut self, id: AcquireId, kind: &str, by_deadline: bool) {
        let ask = self.asks.remove(&id).expect("it had no outcome yet");
        match (ask.decided, &ask.wire) {
            (Some("Ok"), _) => {
                assert_eq!(kind, "Indeterminate");
                self.parsed.push(granted(&ask).unwrap());
            }
            (Some(decided), _) => assert_eq!(kind, decided),
            (None, Some(_)) => assert_eq!(kind, "Indeterminate"),
            (None, None) => assert_eq!(kind, if by_deadline { "Timeout" } else { "Cancelled" }),
        }
    }

    /// Looks at everything after each step; `ticked` if all that was due has been done.
    pub(super) fn settle(&mut self, rig: &Rig, ticked: bool) {
        self.settle_sessions(rig, ticked);
        self.settle_releases(rig, ticked);
        self.settle_acquires(rig, ticked);
        // Each grant came to its caller, or is given back.
        let closed = rig.state.is_closed();
        for token in std::mem::take(&mut self.parsed) {
            let waits = |a: &Ask| a.decided == Some("Ok") && granted(a) == Some(token);
            let back = self.passes.get(&token).is_some_and(|p| p.compensating);
            let waits = self.asks.values().any(waits);
            assert!(
                waits != back || closed,
                "grant {token}: waits {waits}, given back {back}"
            );
            self.compensations += u64::from(!waits);
        }
        self.settle_counts(rig);
    }

    fn settle_sessions(&mut self, rig: &Rig, ticked: bool) {
        let sessions = &rig.state.sessions;
        let gone = |sid: &SessionId| sessions.get(sid).is_none_or(|s| s.is_over());
        self.wires.retain(|(sid, _), _| !gone(sid));
        // C9's ration.
        let leaving = sessions
            .values()
            .filter(|s| s.is_retired() || s.is_ending())
            .count();
        let left: Vec<SessionId> = self
            .open
            .iter()
            .copied()
            .filter(|s| !rig.is_open(*s) && !gone(s))
            .collect();
        let retired = left.iter().filter(|s| !self.excused.contains(s)).count();
        if retired > 0 && self.closed_at.is_none() {
            assert_eq!(retired, 1, "retired together");
            assert!(leaving <= 8, "{leaving} retired or ending");
            let last = self.last_retired.replace(rig.now);
            assert!(
                last.is_none_or(|l| l.until(rig.now) >= ms(100)),
                "retired too soon"
            );
        }
        // No answer is owed for ever: C9 retires the session when its ration allows.
        let rationed = leaving >= 8
            || self
                .last_retired
                .is_some_and(|l| l.until(rig.now) < ms(100));
        let overdue = self.wires.iter().any(|((sid, _), request)| {
            matches!(request, Request::Release { due, .. } if *due <= rig.now) && rig.is_open(*sid)
        });
        assert!(
            !(ticked && overdue) || rationed || self.closed_at.is_some(),
            "an answer is overdue"
        );
        self.open = sessions
            .keys()
            .copied()
            .filter(|s| rig.is_open(*s))
            .collect();
    }

    fn settle_releases(&mut self, rig: &Rig, ticked: bool) {
        let sessions = &rig.state.sessions;
        for (id, release) in &rig.state.releases {
            let token = release.token.get();
            if self.passes.contains_key(&token) {
                continue;
            }
            assert!(self.given_back.insert(token), "{token} is released by two");
            let keys = release
                .keys
                .as_keys()
                .iter()
                .map(|k| k.to_string())
                .collect();
            let compensating = release.is_compensating();
            assert_eq!(compensating, !self.handed_out.contains(&token));
            let pass = Pass {
                id: *id,
                keys,
                born: rig.now,
                compensating,
                tries: Vec::new(),
                unsure: 0,
                not_before: None,
                answer: None,
                cell: self.cells.remove(&token),
            };
            self.passes.insert(token, pass);
        }
        // Those that were dropped or refused at once have their outcome.
        for (token, cell) in std::mem::take(&mut self.cells) {
            assert_ne!(outcome_of(&cell), "pending", "{token}");
        }
        let closed = rig.state.is_closed();
        self.passes.retain(|token, pass| {
            for (sid, unanswered) in &mut pass.tries {
                *unanswered &= sessions.get(sid).is_some_and(|s| !s.is_over());
            }
            let over = pass.born + secs(5) <= rig.now;
            if rig.state.releases.contains_key(&pass.id) {
                assert_eq!(pass.answer, None, "release of {token} has its answer");
                assert!(!(ticked && over), "release of {token} is past its 5 s");
                return true;
            }
            let expected = match pass.answer {
                Some(answer) => answer,
                None => {
                    assert!(over || closed, "release of {token} ended early");
                    if pass.tries.is_empty() {
                        "NotConnected"
                    } else {
                        "Indeterminate"
                    }
                }
            };
            if let Some(cell) = &pass.cell {
                assert_eq!(outcome_of(cell), expected, "release of {token}");
            }
            false
        });
    }

    fn settle_acquires(&mut self, rig: &Rig, ticked: bool) {
        for (id, ask) in self.asks.iter_mut().filter(|(_, a)| a.decided.is_none()) {
            let acquire = &rig.state.acquires[id];
            let gone = |sid| rig.state.sessions.get(&sid).is_none_or(|s| s.is_over());
            let wait_over = ask.wait_end <= rig.now;
            let Stage::Done(outcome) = &acquire.stage else {
                match &ask.wire {
                    Some(wire) => {
                        assert_eq!(wire.answer, None, "{id} has its answer");
                        assert!(!gone(wire.sid), "{id} is lost");
                        assert!(!ticked || rig.now < wire.due, "{id} is unanswered");
                    }
                    None => assert!(!(ticked && wait_over), "{id} waits on"),
                }
                assert_eq!(self.closed_at, None, "{id} at close");
                continue;
            };
            let kind = outcome.as_ref().map_or_else(TicketError::kind, |_| "Ok");
            let fits = match &ask.wire {
                None => match kind {
                    "NotConnected" | "Timeout" => wait_over,
                    "ClientCapacity" => wait_over || ask.terms.wait == 0,
                    "Auth" => self.rejections > 0,
                    "Closed" => self.closed_at.is_some(),
                    _ => false,
                },
                Some(wire) => match wire.answer {
                    None => {
                        let lost = gone(wire.sid) || wire.due <= rig.now;
                        kind == "Indeterminate" && (lost || self.closed_at.is_some())
                    }
                    Some(Reply::Acquired { token, .. } | Reply::SetAcquired { token, .. }) => {
                        let valid = wire.sent_at + secs(ask.terms.lease.into());
                        let left = rig.now.until(valid);
                        let enough = left >= ask.terms.min_work && !left.is_zero();
                        match outcome {
                            Ok(grant) => enough && grant.token == token,
                            Err(_) => kind == "InsufficientLease" && !enough,
                        }
                    }
                    Some(Reply::TimedOut { .. }) => kind == "Timeout",
                    Some(Reply::Busy { .. }) => kind == "Busy",
                    Some(Reply::Indeterminate { .. }) => kind == "Indeterminate",
                    Some(_) => kind == "Protocol",
                },
            };
            let sent = ask.wire.as_ref().map(|w| (w.sid, w.answer));
            assert!(fits, "{id} ended as {kind}, sent and answered: {sent:?}");
            ask.decided = Some(kind);
        }
    }

    /// The state machine's own bookkeeping agrees with ours.
    fn settle_counts(&self, rig: &Rig) {
        let state = &rig.state;
        let undecided = || self.asks.values().filter(|a| a.decided.is_none());
        let sent = undecided().filter(|a| a.wire.is_some()).count();
        assert_eq!(state.counters.sent, sent);
        assert_eq!(state.counters.waiting, undecided().count() - sent);
        let on_wire = self
            .wires
            .values()
            .filter(|r| matches!(r, Request::Acquire(_)))
            .count();
        assert_eq!(state.given_up, on_wire - sent);
        let assigned = |a: &&Acquire| matches!(a.stage, Stage::Assigned(_));
        let assigned = state.acquires.values().filter(assigned).count();
        let compensating = self.passes.values().filter(|p| p.compensating).count();
        assert_eq!(state.places, assigned + on_wire + compensating);
        assert!(state.release_places <= RELEASE_PLACES);
        assert_eq!(state.counters.compensated, self.compensations);
    }

    pub(super) fn assert_done(&self) {
        assert!(self.asks.is_empty() && self.passes.is_empty() && self.parsed.is_empty());
    }
}

/// The token that an acquire was answered with.
fn granted(ask: &Ask) -> Option<u64> {
    match ask.wire.as_ref()?.answer? {
        Reply::Acquired { token, .. } | Reply::SetAcquired { token, .. } => Some(token.get()),
        _ => None,
    }
}
