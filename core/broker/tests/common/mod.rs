//! A bare client for the broker's tests, and a broker for each of them.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test program uses a part of it"
)]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::net::SocketAddr;
use std::time::Duration;

use ticketing_broker::Broker;
use ticketing_broker::config::Config;
use ticketing_wire::{
    ACCEPTED, ErrorCode, HELLO_LEN, Hello, Identity, KeySet, Reply, Request, RequestId, Token,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

/// A bound on what must happen; no test passes or fails by how fast it does.
pub const SOON: Duration = Duration::from_secs(20);

pub fn memory_config() -> Config {
    let mut config = Config::default();
    config.memory = true;
    config.listen = "127.0.0.1:0".parse().unwrap();
    config
}

pub async fn memory_broker() -> Broker {
    Broker::start(memory_config()).await.unwrap()
}

pub fn id(n: u64) -> RequestId {
    RequestId::new(n).unwrap()
}

pub fn acquire(n: u64, wait: u8, lease: u8, keys: &[&str]) -> Vec<u8> {
    let keys = KeySet::new(keys).unwrap();
    let mut out = Vec::new();
    Request::Acquire {
        id: id(n),
        wait,
        lease,
        keys: keys.as_keys(),
    }
    .encode(&mut out);
    out
}

pub fn release(n: u64, token: Token, keys: &[&str]) -> Vec<u8> {
    let keys = KeySet::new(keys).unwrap();
    let mut out = Vec::new();
    Request::Release {
        id: id(n),
        token,
        keys: keys.as_keys(),
    }
    .encode(&mut out);
    out
}

pub fn error(n: u64, code: ErrorCode) -> Reply {
    Reply::Error { id: id(n), code }
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

/// One authenticated connection.
pub struct Peer<S = TcpStream> {
    pub stream: S,
    buf: Vec<u8>,
}

impl Peer {
    pub async fn connect(addr: SocketAddr) -> Self {
        Self::connect_with(addr, "").await.expect("let in")
    }

    /// `None` if the broker rejects the token.
    pub async fn connect_with(addr: SocketAddr, token: &str) -> Option<Self> {
        let stream = TcpStream::connect(addr).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Peer::handshake(stream, token).await
    }

    /// Ends the connection with a reset.
    pub fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<S> {
    pub async fn handshake(mut stream: S, token: &str) -> Option<Self> {
        soon("handshake", async move {
            let mut hello = [0; HELLO_LEN];
            stream.read_exact(&mut hello).await.unwrap();
            let hello = Hello::decode(&hello).unwrap();
            stream
                .write_all(&hello.auth(token, &Identity::single()))
                .await
                .unwrap();
            stream.flush().await.unwrap();
            let accepted = stream.read_u8().await.unwrap() == ACCEPTED;
            if !accepted {
                assert_eq!(
                    stream.read(&mut [0]).await.unwrap(),
                    0,
                    "closed after a rejection"
                );
            }
            accepted.then_some(Peer {
                stream,
                buf: Vec::new(),
            })
        })
        .await
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    /// The next reply; `None` at the end of the connection, however it came.
    pub async fn next(&mut self) -> Option<Reply> {
        soon("a reply or the end", async {
            loop {
                if let Some((reply, used)) = Reply::decode(&self.buf).expect("a valid reply") {
                    self.buf.drain(..used);
                    return Some(reply);
                }
                if !matches!(self.stream.read_buf(&mut self.buf).await, Ok(1..)) {
                    assert!(self.buf.is_empty(), "cut within a reply");
                    return None;
                }
            }
        })
        .await
    }

    pub async fn reply(&mut self) -> Reply {
        self.next().await.expect("a reply, not the end")
    }

    /// Sends a request that must be granted; its token.
    pub async fn granted(&mut self, request: &[u8]) -> Token {
        self.send(request).await;
        self.grant().await
    }

    /// The next reply, which must be a grant.
    pub async fn grant(&mut self) -> Token {
        match self.reply().await {
            Reply::Acquired { token, .. } | Reply::SetAcquired { token, .. } => token,
            other => panic!("not a grant: {other:?}"),
        }
    }

    /// All replies until the end.
    pub async fn rest(&mut self) -> Vec<Reply> {
        let mut replies = Vec::new();
        while let Some(reply) = self.next().await {
            replies.push(reply);
        }
        replies
    }
}
