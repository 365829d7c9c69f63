//! A scripted broker: real TCP (and TLS) on loopback that does as a test says, and nothing else.
//! It spawns no task, so that a test can count the client's.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test program uses a part of it"
)]
#![allow(clippy::unwrap_used, reason = "tests")]

mod asked;
mod stream;
pub mod tls;

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use ticketing_client::{Ticket, TicketBroker, TicketError};
use ticketing_wire::{ACCEPTED, AUTH_LEN, Hello, Identity, Incoming, Mode, REJECTED, Reply, Slot};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

pub use self::asked::Asked;
use self::stream::Stream;

/// A bound on what must happen; no test passes or fails by how fast it does.
pub const SOON: Duration = Duration::from_secs(30);

pub const fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}

pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(SOON, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within {SOON:?}"),
    }
}

/// Waits until `condition` holds.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    soon(what, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// A listener whose connections do as they are told.
pub struct Peer {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    mode: Mode,
}

impl Peer {
    pub async fn start() -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    /// As a cluster's node.
    pub async fn start_node(slot: u8) -> Self {
        let mut peer = Self::start().await;
        peer.mode = Mode::Cluster(Slot::new(slot).unwrap());
        peer
    }

    pub async fn start_tls(config: tokio_rustls::rustls::ServerConfig) -> Self {
        let mut peer = Self::start().await;
        peer.tls = Some(TlsAcceptor::from(Arc::new(config)));
        peer
    }

    /// With receive buffers so small that a client which writes much soon has to wait.
    pub fn start_narrow() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        Self::on(socket.listen(64).unwrap())
    }

    /// Again on a port that another peer had.
    pub async fn start_at(port: u16) -> Self {
        Self::on(TcpListener::bind(("127.0.0.1", port)).await.unwrap())
    }

    fn on(listener: TcpListener) -> Self {
        Peer {
            listener,
            tls: None,
            mode: Mode::Single,
        }
    }

    pub fn port(&self) -> u16 {
        self.listener.local_addr().unwrap().port()
    }

    pub fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    pub fn connect(&self) -> TicketBroker {
        TicketBroker::connect(self.addr()).unwrap()
    }

    pub async fn accept_tcp(&self) -> TcpStream {
        soon("a connection", self.listener.accept())
            .await
            .unwrap()
            .0
    }

    /// A connection, inside TLS if the peer has a certificate; nothing is said on it yet.
    pub async fn accept(&self) -> Conn {
        self.try_accept().await.expect("a TLS handshake")
    }

    pub async fn try_accept(&self) -> io::Result<Conn> {
        let tcp = self.accept_tcp().await;
        tcp.set_nodelay(true).unwrap();
        let stream = match &self.tls {
            None => Stream::Plain(tcp),
            Some(acceptor) => {
                let tls = soon("a TLS handshake", acceptor.accept(tcp)).await?;
                Stream::Tls(Box::new(tls))
            }
        };
        Ok(self.conn(stream))
    }

    fn conn(&self, stream: Stream) -> Conn {
        Conn {
            stream,
            mode: self.mode,
            buf: Vec::new(),
        }
    }

    /// An authenticated connection. One that the client has given up meanwhile is passed over.
    pub async fn session(&self) -> Conn {
        loop {
            let mut conn = self.accept().await;
            if soon("a handshake", conn.try_handshake()).await {
                return conn;
            }
        }
    }

    /// Both connections of a client.
    pub async fn pair(&self) -> Pair {
        Pair([self.session().await, self.session().await])
    }
}

/// A peer that answers by itself, on a thread and a runtime of its own; ends when it is dropped.
pub struct Served {
    pub port: u16,
    _stop: oneshot::Sender<()>,
}

impl Served {
    /// Lets everybody in; replies what `answer` says to each request.
    pub fn start(answer: impl Fn(&Asked) -> Option<Reply> + Clone + Send + 'static) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = std::sync::mpsc::channel();
        let serve = async move {
            let peer = Peer::start().await;
            tell.send(peer.port()).unwrap();
            loop {
                let (tcp, _) = peer.listener.accept().await.unwrap();
                tcp.set_nodelay(true).unwrap();
                let mut conn = peer.conn(Stream::Plain(tcp));
                let answer = answer.clone();
                tokio::spawn(async move {
                    if !conn.try_handshake().await {
                        return;
                    }
                    while let Ok(Some(asked)) = conn.try_next().await {
                        if let Some(reply) = answer(&asked) {
                            let _ = conn.try_reply(reply).await;
                        }
                    }
                });
            }
        };
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    () = serve => {}
                }
            });
        });
        let port = told.recv().unwrap();
        Served { port, _stop: stop }
    }

    pub fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

/// One connection of the client, seen from the broker's end.
pub struct Conn {
    stream: Stream,
    mode: Mode,
    buf: Vec<u8>,
}

impl Conn {
    /// The raw socket, below TLS.
    pub fn tcp(&self) -> &TcpStream {
        match &self.stream {
            Stream::Plain(tcp) => tcp,
            Stream::Tls(tls) => tls.get_ref().0,
        }
    }

    pub fn hello(&self) -> Hello {
        Hello {
            mode: self.mode,
            nonce: [7; 16],
        }
    }

    /// Says hello and reads the client's authentication.
    pub async fn authentication(&mut self) -> [u8; AUTH_LEN] {
        self.send(&self.hello().encode()).await;
        let mut auth = [0; AUTH_LEN];
        soon("authentication", self.stream.read_exact(&mut auth))
            .await
            .unwrap();
        auth
    }

    /// Lets in a client without a token; `false` if it has gone.
    pub async fn try_handshake(&mut self) -> bool {
        let hello = self.hello();
        let mut auth = [0; AUTH_LEN];
        if self.stream.write_all(&hello.encode()).await.is_err()
            || self.stream.flush().await.is_err()
            || self.stream.read_exact(&mut auth).await.is_err()
        {
            return false;
        }
        let identity = match self.mode {
            Mode::Single => Identity::single(),
            Mode::Cluster(_) => Identity::cluster("default").unwrap(),
        };
        assert!(hello.verify("", &identity, &auth));
        self.stream.write_all(&[ACCEPTED]).await.is_ok() && self.stream.flush().await.is_ok()
    }

    /// Rejects whatever token the client has.
    pub async fn reject(mut self) {
        self.authentication().await;
        self.send(&[REJECTED]).await;
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    /// The TLS record that carries these bytes, without sending it.
    pub fn record(&mut self, bytes: &[u8]) -> Vec<u8> {
        let Stream::Tls(tls) = &mut self.stream else {
            panic!("a bare connection has no records")
        };
        let (_, session) = tls.get_mut();
        session.writer().write_all(bytes).unwrap();
        let mut record = Vec::new();
        session.write_tls(&mut record).unwrap();
        record
    }

    /// A TLS record without data: new keys.
    pub async fn send_key_update(&mut self) {
        let Stream::Tls(tls) = &mut self.stream else {
            panic!("a bare connection has no keys")
        };
        tls.get_mut().1.refresh_traffic_keys().unwrap();
        self.stream.flush().await.unwrap();
    }

    /// Below TLS.
    pub async fn send_raw(&mut self, bytes: &[u8]) {
        match &mut self.stream {
            Stream::Plain(tcp) => tcp.write_all(bytes).await.unwrap(),
            Stream::Tls(tls) => tls.get_mut().0.write_all(bytes).await.unwrap(),
        }
    }

    pub async fn reply(&mut self, reply: Reply) {
        self.try_reply(reply).await.unwrap();
    }

    pub async fn try_reply(&mut self, reply: Reply) -> io::Result<()> {
        self.stream.write_all(&encoded(reply)).await?;
        self.stream.flush().await
    }

    /// The next request; `None` at the end of the stream. May be dropped and called again.
    pub async fn try_next(&mut self) -> io::Result<Option<Asked>> {
        loop {
            if let Some((frame, used)) = Incoming::decode(&self.buf).expect("a valid request") {
                let asked = Asked::from_wire(frame);
                self.buf.drain(..used);
                return Ok(Some(asked));
            }
            if self.stream.read_buf(&mut self.buf).await? == 0 {
                assert!(self.buf.is_empty(), "cut within a request");
                return Ok(None);
            }
        }
    }

    pub async fn next(&mut self) -> Asked {
        soon("a request", self.try_next())
            .await
            .unwrap()
            .expect("a request, not the end of the stream")
    }

    /// The client half-closed, and sent nothing before it.
    pub async fn eof(&mut self) {
        let next = soon("the end of the stream", self.try_next()).await;
        assert_eq!(next.unwrap(), None);
    }

    /// The client's end of the connection is gone, in whatever way.
    pub async fn ended(&mut self) -> Option<io::ErrorKind> {
        soon("the end of the connection", async {
            loop {
                match self.try_next().await {
                    Ok(Some(_)) => {}
                    Ok(None) => return None,
                    Err(e) => return Some(e.kind()),
                }
            }
        })
        .await
    }

    /// Answers a grant to the next acquire.
    pub async fn grant(&mut self, token: u64) -> Asked {
        let asked = self.next().await;
        assert!(!asked.is_release(), "{asked:?}");
        self.reply(asked.granted(token)).await;
        asked
    }

    /// Ends the connection with a reset.
    pub fn reset(self) {
        self.tcp().set_zero_linger().unwrap();
    }

    /// Ends the sending side, inside TLS with its close_notify.
    pub async fn finish(&mut self) {
        let _ = self.stream.shutdown().await;
    }
}

/// Both connections of a client to a single broker.
pub struct Pair(pub [Conn; 2]);

impl Pair {
    /// The next request, and which connection it came on.
    pub async fn next(&mut self) -> (usize, Asked) {
        let [a, b] = &mut self.0;
        soon("a request on either connection", async {
            tokio::select! {
                Ok(Some(asked)) = a.try_next() => (0, asked),
                Ok(Some(asked)) = b.try_next() => (1, asked),
            }
        })
        .await
    }

    pub async fn reply(&mut self, on: usize, reply: Reply) {
        self.0[on].reply(reply).await;
    }

    pub async fn grant(&mut self, token: u64) -> (usize, Asked) {
        let (on, asked) = self.next().await;
        assert!(!asked.is_release(), "{asked:?}");
        self.reply(on, asked.granted(token)).await;
        (on, asked)
    }
}

pub fn encoded(reply: Reply) -> Vec<u8> {
    let mut bytes = Vec::new();
    reply.encode(&mut bytes);
    bytes
}

/// An acquire of its own task.
pub fn ask(broker: &TicketBroker, key: &str, wait: u64) -> JoinHandle<Result<Ticket, TicketError>> {
    let (broker, key) = (broker.clone(), key.to_owned());
    tokio::spawn(async move {
        broker
            .acquire(key, secs(wait), secs(30), Duration::ZERO)
            .await
    })
}

/// The outcome of such a task.
pub async fn outcome<T>(what: &str, task: JoinHandle<T>) -> T {
    soon(what, task).await.unwrap()
}

/// A ticket on `key`, granted on `conn`.
pub async fn ticket(broker: &TicketBroker, conn: &mut Conn, key: &str, token: u64) -> Ticket {
    let (ticket, _) = tokio::join!(
        broker.acquire(key, secs(5), secs(30), Duration::ZERO),
        conn.grant(token)
    );
    ticket.unwrap()
}

/// How many sockets of this process are connected to `port` from the client's side.
#[cfg(target_os = "linux")]
pub fn sockets_to(port: u16) -> usize {
    use std::collections::HashSet;
    let own: HashSet<String> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter_map(|link| {
            let link = link.to_str()?.strip_prefix("socket:[")?;
            Some(link.strip_suffix(']')?.to_owned())
        })
        .collect();
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let remote = format!(":{port:04X}");
    // The kernel lists a socket twice when others come and go meanwhile.
    let found: HashSet<&str> = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|f| f.len() > 9 && f[2].ends_with(&remote) && own.contains(f[9]))
        .map(|f| f[9])
        .collect();
    found.len()
}
