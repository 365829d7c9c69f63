//! The rig: plays the driver, the broker and the clock for one `State`.

use super::super::acquire::Stage;
use super::*;

pub(super) struct Rig {
    pub(super) state: State,
    pub(super) now: Moment,
    /// Sessions whose sending side was shut down.
    pub(super) shut: BTreeSet<SessionId>,
    /// Who was told to wait for what: nothing may become ready without a wake-up.
    waiting: BTreeMap<Wait, Arc<Flag>>,
    armed: Option<Moment>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wait {
    Driver,
    Writer(SessionId),
    Ender(SessionId),
    Acquire(AcquireId),
}

/// Whether a waker was woken.
#[derive(Debug, Default)]
pub(super) struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Flag {
    pub(super) fn is_woken(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
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
            waiting: BTreeMap::new(),
            armed: None,
        }
    }

    /// Asks the state machine for something that may have to be waited for. Whoever was told to
    /// wait before has to be woken before it is there.
    fn poll<T>(
        &mut self,
        wait: Wait,
        ask: impl FnOnce(&mut Self, &mut Context<'_>) -> Poll<T>,
    ) -> Option<T> {
        self.wake();
        let flag = Arc::<Flag>::default();
        let waker = Waker::from(Arc::clone(&flag));
        match ask(self, &mut Context::from_waker(&waker)) {
            Poll::Ready(out) => {
                if let Some(waiting) = self.waiting.remove(&wait) {
                    assert!(waiting.is_woken(), "{wait:?} was not woken");
                }
                Some(out)
            }
            Poll::Pending => {
                self.waiting.insert(wait, flag);
                None
            }
        }
    }

    /// What happens when the lock is dropped.
    fn wake(&mut self) {
        for waker in self.state.take_wakers() {
            waker.wake();
        }
    }

    /// Whether the driver has heard that everything is closed.
    pub(super) fn driver_knows(&mut self) -> bool {
        self.wake();
        self.waiting
            .get(&Wait::Driver)
            .is_none_or(|flag| flag.is_woken())
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
        if self.state.is_closed() {
            assert!(self.driver_knows(), "the driver sleeps on");
        } else {
            self.state.tick(self.now);
        }
        if self.state.is_closed() {
            self.waiting.remove(&Wait::Driver); // it has ended
            return;
        }
        let again = self.deadline().is_some_and(|at| at <= self.now);
        if again {
            self.state.tick(self.now);
            // A link that opens at once may need one more; a deadline that stays is a busy loop.
            assert!(self.deadline().is_none_or(|at| at > self.now), "busy loop");
        }
    }

    pub(super) fn deadline(&mut self) -> Option<Moment> {
        if self.state.is_closed() {
            return self.state.next_deadline(Waker::noop());
        }
        self.wake();
        let flag = Arc::<Flag>::default();
        let next = self.state.next_deadline(&Waker::from(Arc::clone(&flag)));
        let earlier = next.is_some_and(|at| self.armed.is_none_or(|armed| at < armed));
        let before = self.waiting.insert(Wait::Driver, flag);
        if earlier && let Some(before) = before {
            assert!(before.is_woken(), "the driver sleeps on");
        }
        self.armed = next;
        next
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
        let next = self.poll(Wait::Writer(sid), |rig, cx| {
            loop {
                ready!(rig.state.poll_sendable(sid, cx));
                if let Some(next) = rig.state.transmit(rig.now, sid, &mut buf) {
                    return Poll::Ready(next);
                }
            }
        });
        match next? {
            Transmit::Write => {
                assert!(!self.shut.contains(&sid), "sent after the shutdown");
                Some(decode(&buf))
            }
            Transmit::Shutdown => {
                assert!(self.shut.insert(sid), "shut down twice");
                None
            }
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
        self.poll(Wait::Ender(sid), |rig, cx| rig.state.poll_over(sid, cx))
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
        self.poll(Wait::Acquire(id), |rig, cx| {
            rig.state.poll_acquire(rig.now, id, cx)
        })
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
