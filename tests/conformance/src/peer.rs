//! The scripted broker: it lets clients in, keeps what they ask, and says what it is told to.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use socket2::SockRef;
use ticketing_wire::{
    ACCEPTED, AUTH_LEN, Hello, Identity, Incoming, Keys, Mode, REJECTED, Request as WireRequest,
    Slot,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout_at;

use crate::ledger::Ledger;

/// Less than the second for which a client reads on (C13a).
const LINGER: Duration = Duration::from_millis(600);

/// How a peer behaves by itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manners {
    /// Rejects every client token.
    pub(crate) reject: bool,
    /// Leaves releases to the scenario's steps.
    pub(crate) releases_by_hand: bool,
    /// Goes on sending for a moment after the client's half-close.
    pub(crate) lingers: bool,
    /// A cluster's nodes, or 0.
    pub(crate) nodes: u8,
}

/// A request that reached the peer.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// Where: an index of sessions.
    pub(crate) session: usize,
    /// The node of a cluster.
    pub(crate) node: u8,
    /// Its id there.
    pub(crate) id: u64,
    /// `A`, `S`, `R` or `G`.
    pub(crate) kind: char,
    /// Of an acquire.
    pub(crate) wait: u8,
    /// Of an acquire.
    pub(crate) lease: u8,
    /// Of a release.
    pub(crate) token: u64,
    /// Its keys.
    pub(crate) keys: Vec<String>,
}

impl Request {
    /// Whether it asks for a ticket.
    #[must_use]
    pub(crate) fn is_acquire(&self) -> bool {
        matches!(self.kind, 'A' | 'S')
    }
}

/// What a session is told to do.
pub(crate) enum Order {
    /// Send these bytes.
    Bytes(Vec<u8>),
    /// Shut the sending side down.
    Half,
    /// Close.
    Close,
    /// Close with a reset.
    Reset,
}

struct Session {
    orders: mpsc::UnboundedSender<Order>,
    node: u8,
    /// The client ended its side, or the whole connection is gone.
    ended: bool,
    gone: bool,
}

#[derive(Default)]
struct State {
    sessions: Vec<Session>,
    requests: VecDeque<Request>,
    violations: Vec<String>,
}

/// The scripted broker of one scenario, on ports of its own.
pub(crate) struct Peer {
    /// Its addresses, in slot order.
    pub(crate) addrs: Vec<String>,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

struct Shared {
    state: Mutex<State>,
    changed: Notify,
    manners: Manners,
    ledger: Arc<Ledger>,
}

impl Peer {
    /// Listens on free ports of loopback.
    ///
    /// # Errors
    /// The system refuses it.
    pub(crate) async fn start(manners: Manners, ledger: Arc<Ledger>) -> Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Notify::new(),
            manners,
            ledger,
        });
        let (mut addrs, mut tasks) = (Vec::new(), JoinSet::new());
        for node in 0..manners.nodes.max(1) {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            addrs.push(listener.local_addr()?.to_string());
            tasks.spawn(accept(listener, node, Arc::clone(&shared)));
        }
        Ok(Peer {
            addrs,
            shared,
            _tasks: tasks,
        })
    }

    /// The first request that fits, at most so much later.
    ///
    /// # Errors
    /// None came; what came instead is said.
    pub(crate) async fn take(
        &self,
        fits: impl Fn(&Request) -> bool,
        within: Duration,
    ) -> Result<Request> {
        let found = self.until(within, |state| {
            let at = state.requests.iter().position(&fits)?;
            state.requests.remove(at)
        });
        match found.await {
            Some(request) => Ok(request),
            None => {
                let state = self.shared.state.lock().expect("not poisoned");
                bail!("it did not come; unanswered: {:?}", state.requests)
            }
        }
    }

    /// Waits until the client has ended its side of a session.
    ///
    /// # Errors
    /// It has not, in time.
    pub(crate) async fn ended(&self, session: usize, within: Duration) -> Result<()> {
        let ended = self.until(within, |state| state.sessions[session].ended.then_some(()));
        match ended.await {
            Some(()) => Ok(()),
            None => bail!("the session was not ended by the client"),
        }
    }

    /// Waits until so many sessions are usable.
    ///
    /// # Errors
    /// They are not, in time.
    pub(crate) async fn sessions(&self, count: usize, within: Duration) -> Result<()> {
        let there = |state: &mut State| {
            let usable = state.sessions.iter().filter(|session| !session.ended);
            (usable.count() >= count).then_some(())
        };
        match self.until(within, there).await {
            Some(()) => Ok(()),
            None => bail!("there are not {count} sessions"),
        }
    }

    /// Waits until no connection is left.
    ///
    /// # Errors
    /// Some are, after that time.
    pub(crate) async fn all_gone(&self, within: Duration) -> Result<()> {
        let gone = |state: &mut State| {
            let all = state.sessions.iter().all(|session| session.gone);
            all.then_some(())
        };
        match self.until(within, gone).await {
            Some(()) => Ok(()),
            None => bail!("a connection is still there after the broker object was closed"),
        }
    }

    /// Tells the session to do something; one that is gone does nothing.
    pub(crate) fn order(&self, session: usize, order: Order) {
        let state = self.shared.state.lock().expect("not poisoned");
        let _ = state.sessions[session].orders.send(order);
    }

    /// Tells every session of a node to send something.
    pub(crate) fn tell_node(&self, node: u8, bytes: &[u8]) {
        let state = self.shared.state.lock().expect("not poisoned");
        for session in state.sessions.iter().filter(|s| s.node == node && !s.ended) {
            let _ = session.orders.send(Order::Bytes(bytes.to_vec()));
        }
    }

    /// What no step took, and what was wrong with the client's bytes.
    #[must_use]
    pub(crate) fn left_over(&self) -> Vec<String> {
        let state = self.shared.state.lock().expect("not poisoned");
        let unexpected = state
            .requests
            .iter()
            .map(|r| format!("not expected: {r:?}"));
        unexpected.chain(state.violations.clone()).collect()
    }

    async fn until<T>(
        &self,
        within: Duration,
        mut look: impl FnMut(&mut State) -> Option<T>,
    ) -> Option<T> {
        let end = tokio::time::Instant::now() + within;
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(found) = look(&mut self.shared.state.lock().expect("not poisoned")) {
                return Some(found);
            }
            if timeout_at(end, changed).await.is_err() {
                return None;
            }
        }
    }
}

impl Shared {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().expect("not poisoned"));
        self.changed.notify_waiters();
    }
}

async fn accept(listener: TcpListener, node: u8, shared: Arc<Shared>) {
    let mut tasks = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        tasks.spawn(serve(stream, node, Arc::clone(&shared)));
    }
}

async fn serve(mut stream: TcpStream, node: u8, shared: Arc<Shared>) {
    if !matches!(handshake(&mut stream, node, &shared).await, Ok(true)) {
        return;
    }
    let (orders, told) = mpsc::unbounded_channel();
    let mut number = 0;
    shared.change(|state| {
        number = state.sessions.len();
        state.sessions.push(Session {
            orders,
            node,
            ended: false,
            gone: false,
        });
    });
    exchange(stream, number, node, &shared, told).await;
    shared.ledger.session_ended(number);
    shared.change(|state| {
        state.sessions[number].ended = true;
        state.sessions[number].gone = true;
    });
}

async fn handshake(stream: &mut TcpStream, node: u8, shared: &Shared) -> io::Result<bool> {
    stream.set_nodelay(true)?;
    let (mode, identity) = match shared.manners.nodes {
        0 => (Mode::Single, Identity::single()),
        _ => (
            Mode::Cluster(Slot::new(node).expect("at most five nodes")),
            Identity::cluster("default").expect("a name"),
        ),
    };
    let hello = Hello {
        mode,
        nonce: rand::random(),
    };
    stream.write_all(&hello.encode()).await?;
    let mut auth = [0; AUTH_LEN];
    stream.read_exact(&mut auth).await?;
    if shared.manners.reject {
        stream.write_all(&[REJECTED]).await?;
        return Ok(false);
    }
    if !hello.verify("", &identity, &auth) {
        let wrong = "a client token that is not the empty one".to_owned();
        shared.change(|state| state.violations.push(wrong));
    }
    stream.write_all(&[ACCEPTED]).await?;
    Ok(true)
}

async fn exchange(
    stream: TcpStream,
    number: usize,
    node: u8,
    shared: &Shared,
    mut orders: mpsc::UnboundedReceiver<Order>,
) {
    let (mut from, mut to) = stream.into_split();
    let (mut buffer, mut chunk, mut reading) = (Vec::new(), vec![0; 16 * 1024], true);
    loop {
        tokio::select! {
            read = from.read(&mut chunk), if reading => match read {
                Ok(0) | Err(_) => {
                    reading = false;
                    shared.ledger.session_ended(number);
                    shared.change(|state| state.sessions[number].ended = true);
                    if read.is_err() {
                        return;
                    }
                    if shared.manners.lingers {
                        tokio::time::sleep(LINGER).await;
                    }
                }
                Ok(n) => {
                    buffer.extend_from_slice(&chunk[..n]);
                    requests(&mut buffer, number, node, shared);
                }
            },
            order = orders.recv() => match order {
                Some(Order::Bytes(bytes)) => if to.write_all(&bytes).await.is_err() { return },
                Some(Order::Half) => drop(to.shutdown().await),
                Some(Order::Reset) => {
                    let _ = SockRef::from(to.as_ref()).set_linger(Some(Duration::ZERO));
                    return;
                }
                Some(Order::Close) | None => return,
            },
        }
        // As a broker does: the rest is delivered, then it closes (S5).
        if !reading && orders.is_empty() {
            return;
        }
    }
}

/// Takes whole frames out of the buffer.
fn requests(buffer: &mut Vec<u8>, session: usize, node: u8, shared: &Shared) {
    loop {
        let (request, used) = match Incoming::decode(buffer) {
            Ok(None) => return,
            Ok(Some((Incoming::Request(request), used))) => (taken(&request, session, node), used),
            other => {
                let wrong = format!("bytes that are no request: {other:?}");
                shared.change(|state| state.violations.push(wrong));
                buffer.clear();
                return;
            }
        };
        buffer.drain(..used);
        shared.ledger.requested(&request, Instant::now());
        if !request.is_acquire() && !shared.manners.releases_by_hand {
            let reply = crate::play::reply_to(&request, request.kind, 0, 0, 0);
            let state = shared.state.lock().expect("not poisoned");
            let _ = state.sessions[session].orders.send(Order::Bytes(reply));
        } else {
            shared.change(|state| state.requests.push_back(request));
        }
    }
}

fn taken(request: &WireRequest<'_>, session: usize, node: u8) -> Request {
    let owned = |keys: Keys<'_>| keys.iter().map(|key| key.as_str().to_owned()).collect();
    let (id, keys, kinds, wait, lease, token) = match *request {
        WireRequest::Acquire {
            id,
            wait,
            lease,
            keys,
        } => (id, keys, ['A', 'S'], wait, lease, 0),
        WireRequest::Release { id, token, keys } => (id, keys, ['R', 'G'], 0, 0, token.get()),
    };
    Request {
        session,
        node,
        id: id.get(),
        kind: kinds[usize::from(keys.len() > 1)],
        wait,
        lease,
        token,
        keys: owned(keys),
    }
}
