//! From an address to an authenticated stream (C22).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use ticketing_wire::{ACCEPTED, HELLO_LEN, Hello, Mode, REJECTED};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::Peer;
use super::records::Records;
use crate::addr::Addr;
use crate::state::Failure;

/// Name, connection, TLS and handshake together.
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// A dead peer is found after 15 s of idleness and three probes, or 20 s of unacknowledged bytes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;
#[cfg(target_os = "linux")]
const USER_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<Records<TcpStream>>>),
}

/// Resolves the name anew and tries all of its addresses.
pub(super) async fn open(addr: &Addr, peer: &Peer, mode: Mode) -> Result<Stream, Failure> {
    let deadline = Instant::now() + CONNECT_TIME;
    let lookup = timeout_at(deadline, lookup_host((addr.host.as_str(), addr.port)));
    let found: Vec<SocketAddr> = match lookup.await {
        Ok(Ok(found)) => found.collect(),
        Ok(Err(e)) => return Err(other("the name did not resolve", &e)),
        Err(_) => {
            return Err(Failure::Other(
                "the name did not resolve within 10 s".into(),
            ));
        }
    };
    open_first(&found, deadline, addr, peer, mode).await
}

/// Tries one address after the other.
async fn open_first(
    found: &[SocketAddr],
    deadline: Instant,
    addr: &Addr,
    peer: &Peer,
    mode: Mode,
) -> Result<Stream, Failure> {
    let mut last = Failure::Other("the name has no address".into());
    for (tried, to) in found.iter().enumerate() {
        // An address that swallows packets leaves time for those after it.
        let left = deadline.saturating_duration_since(Instant::now());
        let share = left / u32::try_from(found.len() - tried).expect("few addresses");
        let attempt = timeout_at(Instant::now() + share, open_one(*to, addr, peer, mode));
        last = match attempt.await {
            Ok(Ok(stream)) => return Ok(stream),
            // Another address of the same name would say the same.
            Ok(Err(Failure::Rejected)) => return Err(Failure::Rejected),
            Ok(Err(failure)) => failure,
            Err(_) => Failure::Other(match peer.tls.0 {
                Some(_) => "no connection and handshake within 10 s".into(),
                None => "no connection and handshake within 10 s (does it want TLS?)".into(),
            }),
        };
    }
    Err(last)
}

async fn open_one(to: SocketAddr, addr: &Addr, peer: &Peer, mode: Mode) -> Result<Stream, Failure> {
    let mut tcp = TcpStream::connect(to)
        .await
        .map_err(|e| other("could not connect", &e))?;
    prepare(&tcp).map_err(|e| other("could not set up the socket", &e))?;
    let Some(config) = &peer.tls.0 else {
        handshake(&mut tcp, peer, mode).await?;
        return Ok(Stream::Plain(tcp));
    };
    let mut tls = tls(config, addr, tcp).await?;
    handshake(&mut tls, peer, mode).await?;
    Ok(Stream::Tls(Box::new(tls)))
}

fn prepare(tcp: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(tcp);
    socket.set_tcp_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL);
    socket.set_tcp_keepalive(&keepalive.with_retries(KEEPALIVE_PROBES))?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    Ok(())
}

async fn tls(
    config: &Arc<ClientConfig>,
    addr: &Addr,
    tcp: TcpStream,
) -> Result<TlsStream<Records<TcpStream>>, Failure> {
    let name = ServerName::try_from(addr.host.clone())
        .map_err(|_| Failure::Other("the host is no name that TLS can verify".into()))?;
    let connector = TlsConnector::from(Arc::clone(config));
    connector
        .connect(name, Records::new(tcp))
        .await
        .map_err(|e| other("TLS failed", &e))
}

/// Hello, authentication, result: the server speaks first.
async fn handshake(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    peer: &Peer,
    mode: Mode,
) -> Result<(), Failure> {
    let mut hello = [0; HELLO_LEN];
    stream.read_exact(&mut hello).await.map_err(|e| {
        other(
            "no hello (is it a Ticketing broker? does it want TLS? is it at its connection limit?)",
            &e,
        )
    })?;
    let hello = Hello::decode(&hello).map_err(|e| Failure::Other(e.to_string()))?;
    if hello.mode != mode {
        let detail = format!(
            "the broker is {:?}, the addresses given here mean {mode:?}; check their number and order",
            hello.mode
        );
        return Err(Failure::Other(detail));
    }
    let auth = hello.auth(&peer.token, &peer.identity);
    let lost = |e: io::Error| other("the connection ended during authentication", &e);
    stream.write_all(&auth).await.map_err(lost)?;
    stream.flush().await.map_err(lost)?;
    match stream.read_u8().await.map_err(lost)? {
        ACCEPTED => Ok(()),
        REJECTED => Err(Failure::Rejected),
        byte => Err(Failure::Other(format!(
            "an authentication result of {byte}, not 0 or 1"
        ))),
    }
}

fn other(what: &str, error: &io::Error) -> Failure {
    Failure::Other(format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use ticketing_wire::{AUTH_LEN, Identity};
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;
    use crate::tls::TlsClient;

    #[tokio::test]
    async fn c22_all_addresses_of_a_name_are_tried() {
        let any = "127.0.0.1:0".parse().unwrap();
        let refusing = TcpSocket::new_v4().unwrap(); // taken, and nobody listens
        refusing.bind(any).unwrap();
        let silent = TcpListener::bind(any).await.unwrap();
        let broker = TcpListener::bind(any).await.unwrap();
        let found = [
            refusing.local_addr().unwrap(),
            silent.local_addr().unwrap(),
            broker.local_addr().unwrap(),
        ];
        let addr = Addr::parse("name:1").unwrap();
        let peer = Peer {
            addrs: Vec::new(),
            token: String::new(),
            identity: Identity::single(),
            tls: TlsClient(None),
        };
        let serve = async {
            let (mut tcp, _) = broker.accept().await.unwrap();
            let hello = Hello {
                mode: Mode::Single,
                nonce: [1; 16],
            };
            tcp.write_all(&hello.encode()).await.unwrap();
            tcp.read_exact(&mut [0; AUTH_LEN]).await.unwrap();
            tcp.write_u8(ACCEPTED).await.unwrap();
        };
        let deadline = Instant::now() + CONNECT_TIME;
        let opened = open_first(&found, deadline, &addr, &peer, Mode::Single);
        // The silent one has its share of the 10 s and no more.
        tokio::select! {
            opened = opened => assert!(opened.is_ok()),
            () = async { serve.await; std::future::pending().await } => {}
        }
    }

    #[tokio::test]
    async fn c22_dead_peers_are_found_by_keepalive_and_user_timeout() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        prepare(&tcp).unwrap();
        let socket = SockRef::from(&tcp);
        assert!(socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap());
        #[cfg(target_os = "linux")]
        {
            let secs = Duration::from_secs;
            assert_eq!(socket.tcp_keepalive_time().unwrap(), secs(15));
            assert_eq!(socket.tcp_keepalive_interval().unwrap(), secs(5));
            assert_eq!(socket.tcp_keepalive_retries().unwrap(), 3);
            assert_eq!(socket.tcp_user_timeout().unwrap(), Some(secs(20)));
        }
    }
}
