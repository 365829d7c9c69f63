//! The rig: plays the driver, the broker and the clock for one `State`.

use ticketing_wire::{ErrorCode, Incoming, Reply};

use super::super::acquire::Stage;
use super::*;

/// A request as the broker reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) id: RequestId,
    pub(super) keys: Vec<String>,
    pub(super) what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Acquire { wait: u8, lease: u8 },
    Release { token: u64 },
}

/// How a broker answers a request.
pub(super) type Answer = fn(&Frame) -> Reply;

impl Frame {
    pub(super) fn wait(&self) -> u8 {
        match self.what {
            What::Acquire { wait, .. } => wait,
            What::Release { .. } => panic!("{self:?} is no acquire"),
        }
    }

    pub(super) fn token(&self) -> u64 {
        match self.what {
            What::Release { token } => token,
            What::Acquire { .. } => panic!("{self:?} is no release"),
        }
    }

    pub(super) fn is_acquire(&self) -> bool {
        matches!(self.what, What::Acquire { .. })
    }

    pub(super) fn granted(&self, token: u64) -> Reply {
        let (id, token) = (self.id, Token::new(token).unwrap());
        match self.keys.len() {
            1 => Reply::Acquired { id, token },
            _ => Reply::SetAcquired { id, token },
        }
    }

    pub(super) fn released(&self) -> Reply {
        match self.keys.len() {
            1 => Reply::Released { id: self.id },
            _ => Reply::SetReleased { id: self.id },
        }
    }

    pub(super) fn not_current(&self) -> Reply {
        Reply::NotCurrent { id: self.id }
    }

    pub(super) fn timed_out(&self) -> Reply {
        Reply::TimedOut { id: self.id }
    }

    pub(super) fn busy(&self) -> Reply {
        Reply::Busy { id: self.id }
    }

    pub(super) fn indeterminate(&self) -> Reply {
        Reply::Indeterminate { id: self.id }
    }

    pub(super) fn moved(&self, slot: Option<u8>) -> Reply {
        Reply::Moved {
            id: self.id,
            slot: slot.map(|s| Slot::new(s).unwrap()),
        }
    }

    pub(super) fn error(&self, code: ErrorCode) -> Reply {
        Reply::Error { id: self.id, code }
    }
}

pub(super) struct Rig {
    pub(super) state: State,
    pub(super) now: Moment,
    /// Sessions whose sending side was shut down.
    pub(super) shut: BTreeSet<SessionId>,
}

pub(super) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(super) const fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}

pub(super) fn keys(keys: &[&str]) -> KeySet {
    KeySet::new(keys).unwrap()
}

pub(super) fn token(token: u64) -> Token {
    Token::new(token).unwrap()
}

impl Rig {
    pub(super) fn new(addresses: usize, max_pending: usize) -> Self {
        Self::seeded(addresses, max_pending, 1)
    }

    pub(super) fn seeded(addresses: usize, max_pending: usize, seed: u64) -> Self {
        let now = Moment::default() + secs(1000);
        Rig {
            state: State::new(now, addresses, max_pending, seed),
            now,
            shut: BTreeSet::new(),
        }
    }

    /// A single broker with its two sessions up, asked in the order of the numbers returned.
    pub(super) fn pair() -> (Self, SessionId, SessionId) {
        let mut rig = Rig::new(1, 1024);
        let (a, b) = (rig.connect(), rig.connect());
        (rig, a, b)
    }

    /// A single broker with one session up, the other link waiting in its attempt.
    pub(super) fn one() -> (Self, SessionId) {
        let mut rig = Rig::new(1, 1024);
        let a = rig.connect();
        rig.attempt();
        (rig, a)
    }

    /// A cluster with a session to each node, none of which has said `L` yet.
    pub(super) fn cluster(nodes: usize) -> (Self, Vec<SessionId>) {
        let mut rig = Rig::new(nodes, 1024);
        let sessions = (0..nodes).map(|_| rig.connect()).collect();
        (rig, sessions)
    }

    /// The connection attempt that is due now.
    pub(super) fn attempt(&mut self) -> LinkId {
        self.due().expect("a connection is due")
    }

    pub(super) fn due(&mut self) -> Option<LinkId> {
        self.tick();
        self.state.next_connect()
    }

    /// Opens the connection that is due now.
    pub(super) fn connect(&mut self) -> SessionId {
        let link = self.attempt();
        self.succeed(link)
    }

    pub(super) fn succeed(&mut self, link: LinkId) -> SessionId {
        self.state.connected(self.now, link).expect("wanted")
    }

    pub(super) fn fail(&mut self, link: LinkId) {
        let why = Failure::Other("refused".into());
        self.state.connect_failed(self.now, link, why);
    }

    pub(super) fn reject(&mut self, link: LinkId) {
        self.state.connect_failed(self.now, link, Failure::Rejected);
    }

    pub(super) fn tick(&mut self) {
        self.state.tick(self.now);
        let again = self.deadline().is_some_and(|at| at <= self.now);
        if again {
            self.state.tick(self.now);
            // A link that opens at once may need one more; a deadline that stays is a busy loop.
            assert!(self.deadline().is_none_or(|at| at > self.now), "busy loop");
        }
    }

    pub(super) fn deadline(&mut self) -> Option<Moment> {
        self.state.next_deadline(Waker::noop())
    }

    /// Time goes on, with everything done when it is due.
    pub(super) fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(at) = self.deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.tick();
        }
        self.now = end;
        self.tick();
    }

    /// Time goes on while the process is stopped.
    pub(super) fn stop(&mut self, by: Duration) {
        self.now = self.now + by;
    }

    pub(super) fn acquire(&mut self, key: &str, wait: u64, lease: u64) -> AcquireId {
        self.ask(&[key], wait, lease, Duration::ZERO)
    }

    pub(super) fn ask(
        &mut self,
        names: &[&str],
        wait: u64,
        lease: u64,
        min_work: Duration,
    ) -> AcquireId {
        let terms = Terms::new(secs(wait), secs(lease), min_work).unwrap();
        self.state.acquire(self.now, keys(names), terms)
    }

    pub(super) fn cancel(&mut self, id: AcquireId) -> Option<&'static str> {
        let error = self.state.cancel(self.now, id, Cause::Cancelled);
        error.map(|e| e.kind())
    }

    pub(super) fn pass_deadline(&mut self, id: AcquireId) -> Option<&'static str> {
        let error = self.state.cancel(self.now, id, Cause::Deadline);
        error.map(|e| e.kind())
    }

    pub(super) fn release(&mut self, names: &[&str], number: u64) -> Arc<ReleaseCell> {
        self.release_as(names, number, Origin::Explicit)
    }

    pub(super) fn release_as(
        &mut self,
        names: &[&str],
        number: u64,
        origin: Origin,
    ) -> Arc<ReleaseCell> {
        let names = Arc::new(keys(names));
        self.state.release(self.now, names, token(number), origin)
    }

    /// What the session sends now.
    pub(super) fn sent(&mut self, sid: SessionId) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(more) = self.hand_over(sid) {
            frames.extend(more);
            self.state.transmitted(self.now, sid);
        }
        frames
    }

    /// One `Write` of a session, which then stays under way; `None` if it has nothing to write.
    pub(super) fn hand_over(&mut self, sid: SessionId) -> Option<Vec<Frame>> {
        let mut buf = Vec::new();
        let mut cx = Context::from_waker(Waker::noop());
        match self.state.poll_transmit(self.now, sid, &mut buf, &mut cx) {
            Poll::Ready(Transmit::Write) => {
                assert!(!self.shut.contains(&sid), "sent after the shutdown");
                Some(decode(&buf))
            }
            Poll::Ready(Transmit::Shutdown) => {
                assert!(self.shut.insert(sid), "shut down twice");
                None
            }
            Poll::Pending => None,
        }
    }

    /// The one request that the session sends now.
    pub(super) fn sent_one(&mut self, sid: SessionId) -> Frame {
        let mut frames = self.sent(sid);
        assert_eq!(frames.len(), 1, "{frames:?}");
        frames.remove(0)
    }

    /// The one request that is sent now, and on which session.
    pub(super) fn sent_anywhere(&mut self) -> (SessionId, Frame) {
        let mut all = self.sent_everywhere();
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    pub(super) fn sent_everywhere(&mut self) -> Vec<(SessionId, Frame)> {
        let ids: Vec<SessionId> = self.state.sessions.keys().copied().collect();
        let mut all = Vec::new();
        for sid in ids {
            all.extend(self.sent(sid).into_iter().map(|frame| (sid, frame)));
        }
        all
    }

    pub(super) fn reply(&mut self, sid: SessionId, reply: Reply) {
        self.replies(sid, &[reply]);
    }

    /// Several replies in one read.
    pub(super) fn replies(&mut self, sid: SessionId, replies: &[Reply]) {
        let mut bytes = Vec::new();
        for reply in replies {
            reply.encode(&mut bytes);
        }
        self.read(sid, &bytes);
    }

    pub(super) fn read(&mut self, sid: SessionId, bytes: &[u8]) -> bool {
        self.state.received(self.now, sid, bytes)
    }

    pub(super) fn leader(&mut self, sid: SessionId, slot: Option<u8>) {
        let slot = slot.map(|s| Slot::new(s).unwrap());
        self.reply(sid, Reply::Leader { slot });
    }

    pub(super) fn lose(&mut self, sid: SessionId) {
        self.state.lost(self.now, sid, "reset by the peer");
    }

    pub(super) fn eof(&mut self, sid: SessionId) {
        self.state.end_of_stream(self.now, sid);
    }

    /// How the driver is told to close the session, if it is.
    pub(super) fn over(&mut self, sid: SessionId) -> Option<SessionEnd> {
        let mut cx = Context::from_waker(Waker::noop());
        match self.state.poll_over(sid, &mut cx) {
            Poll::Ready(end) => Some(end),
            Poll::Pending => None,
        }
    }

    pub(super) fn forget(&mut self, sid: SessionId) {
        self.state.forget(self.now, sid);
    }

    pub(super) fn is_open(&self, sid: SessionId) -> bool {
        self.state.sessions.get(&sid).is_some_and(|s| s.is_open())
    }

    pub(super) fn is_retired(&self, sid: SessionId) -> bool {
        self.state
            .sessions
            .get(&sid)
            .is_some_and(|s| s.is_retired())
    }

    pub(super) fn is_ending(&self, sid: SessionId) -> bool {
        self.state.sessions.get(&sid).is_some_and(|s| s.is_ending())
    }

    pub(super) fn outcome(&mut self, id: AcquireId) -> Option<Result<Grant, TicketError>> {
        let mut cx = Context::from_waker(Waker::noop());
        match self.state.poll_acquire(self.now, id, &mut cx) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    /// The outcome in a word: a kind of error, `Ok`, or `pending`.
    pub(super) fn kind(&mut self, id: AcquireId) -> &'static str {
        match self.outcome(id) {
            None => "pending",
            Some(Ok(_)) => "Ok",
            Some(Err(e)) => e.kind(),
        }
    }

    pub(super) fn detail(&mut self, id: AcquireId) -> String {
        self.outcome(id).expect("finished").unwrap_err().to_string()
    }

    /// Where the state machine has an acquire on the wire.
    pub(super) fn on_wire(&self, id: AcquireId) -> Option<(SessionId, u64)> {
        match self.state.acquires.get(&id)?.stage {
            Stage::Sent { session, id, .. } => Some((session, id)),
            _ => None,
        }
    }

    /// Tokens of the releases that are not finished, with how many of each.
    pub(super) fn releasing(&self) -> BTreeMap<u64, usize> {
        let mut tokens = BTreeMap::new();
        for release in self.state.releases.values() {
            *tokens.entry(release.token.get()).or_default() += 1;
        }
        tokens
    }

    /// Nothing is held, counted, timed or outstanding any more.
    pub(super) fn assert_idle(&self) {
        self.state.assert_idle();
    }
}

pub(super) fn outcome_of(cell: &ReleaseCell) -> &'static str {
    match cell.get() {
        None => "pending",
        Some(Ok(ReleaseOutcome::Released)) => "Released",
        Some(Ok(ReleaseOutcome::NotCurrent)) => "NotCurrent",
        Some(Err(e)) => e.kind(),
    }
}

pub(super) fn decode(mut bytes: &[u8]) -> Vec<Frame> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let (incoming, used) = Incoming::decode(bytes).unwrap().expect("whole frames");
        let Incoming::Request(request) = incoming else {
            panic!("a broker would refuse {incoming:?}")
        };
        let names = |keys: ticketing_wire::Keys<'_>| keys.iter().map(|k| k.to_string()).collect();
        frames.push(match request {
            Request::Acquire {
                id,
                wait,
                lease,
                keys,
            } => Frame {
                id,
                keys: names(keys),
                what: What::Acquire { wait, lease },
            },
            Request::Release { id, token, keys } => Frame {
                id,
                keys: names(keys),
                what: What::Release { token: token.get() },
            },
        });
        bytes = &bytes[used..];
    }
    frames
}
