//! The task of one connection: handshake, session, close.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use ticketing_wire::{ACCEPTED, AUTH_LEN, Hello, Mode, NONCE_LEN, REJECTED};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::debug;

use super::Shared;
use super::access::Access;
use super::session::{End, Session};

/// How long the broker waits for a client to close after its last reply. Closing with unread
/// bytes in the socket would reset the connection and could take that reply back.
const LINGER: Duration = Duration::from_secs(1);

/// Why a connection never became a session.
#[derive(Debug, thiserror::Error)]
enum HandshakeError {
    #[error("no handshake within limits.auth_timeout = {} s", .0.as_secs_f32())]
    Timeout(Duration),
    #[error("TLS: {0}")]
    Tls(io::Error),
    #[error("authentication rejected")]
    Rejected,
    #[error(transparent)]
    Io(#[from] io::Error),
}

pub(super) async fn run(shared: Arc<Shared>, stream: TcpStream, peer: SocketAddr) {
    let deadline = Instant::now() + shared.auth_timeout;
    if let Err(error) = configure(&stream) {
        debug!(%peer, %error, "a connection was gone before it began");
        return;
    }
    let access = shared.access();
    let Some(acceptor) = access.tls.clone() else {
        return serve(&shared, access, stream, peer, deadline).await;
    };
    // Boxed, so that a plain connection does not pay for the size of a TLS one.
    Box::pin(async move {
        match timeout_at(deadline, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => serve(&shared, access, stream, peer, deadline).await,
            Ok(Err(error)) => shared.turned_away(peer, &HandshakeError::Tls(error)),
            Err(_) => shared.turned_away(peer, &HandshakeError::Timeout(shared.auth_timeout)),
        }
    })
    .await;
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    shared: &Shared,
    access: Arc<Access>,
    mut stream: S,
    peer: SocketAddr,
    deadline: Instant,
) {
    let admitted = timeout_at(deadline, handshake(&access, &mut stream))
        .await
        .unwrap_or(Err(HandshakeError::Timeout(shared.auth_timeout)));
    // A session may last for days: it must not keep replaced tokens or certificates.
    drop(access);
    match admitted {
        Ok(true) => {}
        Ok(false) => {
            shared.turned_away(peer, &HandshakeError::Rejected);
            return close(&mut stream).await;
        }
        // Whoever looks whether the port is open does this.
        Err(HandshakeError::Io(error)) => return debug!(%peer, %error, "no handshake"),
        Err(error) => return shared.turned_away(peer, &error),
    }
    let mut session = Session::new(&shared.engine, stream, shared.max_unsent);
    match session.run().await {
        End::Answered => close(session.stream()).await,
        End::Lost(error) => debug!(%peer, %error, "a connection was lost"),
        end => shared.turned_away(peer, &end),
    }
}

/// Says hello and whether the client has one of the tokens.
async fn handshake<S>(access: &Access, stream: &mut S) -> Result<bool, HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut nonce = [0; NONCE_LEN];
    getrandom::fill(&mut nonce).map_err(io::Error::other)?;
    let hello = Hello {
        mode: Mode::Single,
        nonce,
    };
    stream.write_all(&hello.encode()).await?;
    stream.flush().await?;
    let mut auth = [0; AUTH_LEN];
    stream.read_exact(&mut auth).await?;
    let admitted = access.admits(&hello, &auth);
    stream
        .write_all(&[if admitted { ACCEPTED } else { REJECTED }])
        .await?;
    stream.flush().await?;
    Ok(admitted)
}

/// Closes after the last reply: ends the sending side, then waits a moment for the client's end.
async fn close<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) {
    let linger = async {
        stream.shutdown().await?;
        tokio::io::copy(stream, &mut tokio::io::sink()).await
    };
    // Whatever happens, the connection is over.
    let _ = timeout(LINGER, linger).await;
}

/// Small replies leave at once, and a peer that is gone is noticed (S5, C22).
fn configure(stream: &TcpStream) -> io::Result<()> {
    const IDLE: Duration = Duration::from_secs(15);
    const INTERVAL: Duration = Duration::from_secs(5);
    const PROBES: u32 = 3;
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(IDLE).with_interval(INTERVAL);
    socket.set_tcp_keepalive(&keepalive.with_retries(PROBES))?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(Duration::from_secs(20)))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::engine::tests::engine;
    use ticketing_wire::HELLO_LEN;
    use tokio::io::duplex;

    /// Closing at once would reset the connection of a client that goes on sending.
    #[tokio::test(start_paused = true)]
    async fn s5_after_the_last_reply_the_clients_end_is_waited_for() {
        let config = Config::for_test();
        let access = Access::load(&config).unwrap();
        let shared = Shared::new(engine(false), access, &config.limits);
        let (mut client, stream) = duplex(1000);
        let deadline = Instant::now() + shared.auth_timeout;
        let serving = serve(&shared, shared.access(), stream, config.listen, deadline);
        let client = async {
            client.read_exact(&mut [0; HELLO_LEN]).await.unwrap();
            client.write_all(&[0; AUTH_LEN]).await.unwrap();
            assert_eq!(client.read_u8().await.unwrap(), ACCEPTED);
            shared.engine.finish();
            assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
            tokio::time::sleep(LINGER / 2).await;
            client.write_all(&[0; 100]).await.expect("it still reads");
            tokio::time::sleep(LINGER).await;
            client.write_all(&[0]).await.expect_err("it is gone");
        };
        tokio::join!(serving, client);
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn s5_dead_peers_are_found() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        configure(&stream).unwrap();
        let socket = SockRef::from(&stream);
        assert!(stream.nodelay().unwrap());
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap().as_secs(), 15);
        assert_eq!(socket.tcp_keepalive_interval().unwrap().as_secs(), 5);
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), 3);
        let timeout = socket.tcp_user_timeout().unwrap();
        assert_eq!(timeout, Some(Duration::from_secs(20)));
    }
}
