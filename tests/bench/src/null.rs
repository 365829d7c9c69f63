//! The null responder: reads, decodes and answers every request at once, and keeps nothing. What a
//! broker could do at most behind the same sockets and codec.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};
use ticketing_wire::{
    ACCEPTED, AUTH_LEN, Hello, Identity, Incoming, Keys, Mode, NONCE_LEN, Reply, Request, Token,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Answers all who connect, for ever.
///
/// # Errors
/// The listener fails.
pub async fn serve(listener: TcpListener) -> Result<()> {
    let tokens = Arc::new(AtomicU64::new(1));
    loop {
        let (stream, _) = listener.accept().await?;
        let tokens = Arc::clone(&tokens);
        tokio::spawn(async move {
            if let Err(error) = converse(stream, &tokens).await {
                eprintln!("null responder: {error}");
            }
        });
    }
}

async fn converse(mut stream: TcpStream, tokens: &AtomicU64) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut nonce = [0; NONCE_LEN];
    getrandom::fill(&mut nonce)?;
    let hello = Hello {
        mode: Mode::Single,
        nonce,
    };
    stream.write_all(&hello.encode()).await?;
    let mut auth = [0; AUTH_LEN];
    stream.read_exact(&mut auth).await?;
    ensure!(
        hello.verify("", &Identity::single(), &auth),
        "wrong client token"
    );
    stream.write_all(&[ACCEPTED]).await?;

    let mut input = Vec::with_capacity(16 * 1024);
    let mut output = Vec::new();
    while stream.read_buf(&mut input).await? > 0 {
        let mut used = 0;
        while let Some((incoming, len)) = Incoming::decode(&input[used..])? {
            answer(&incoming, tokens).encode(&mut output);
            used += len;
        }
        input.drain(..used);
        stream.write_all(&output).await?;
        output.clear();
    }
    Ok(())
}

fn answer(incoming: &Incoming<'_>, tokens: &AtomicU64) -> Reply {
    match *incoming {
        Incoming::Request(Request::Acquire { id, keys, .. }) => {
            let token = tokens.fetch_add(1, Ordering::Relaxed);
            let token = Token::new(token).expect("it starts at 1 and never comes round");
            match keys {
                Keys::One(_) => Reply::Acquired { id, token },
                Keys::Set(_) => Reply::SetAcquired { id, token },
            }
        }
        Incoming::Request(Request::Release {
            id,
            keys: Keys::One(_),
            ..
        }) => Reply::Released { id },
        Incoming::Request(Request::Release { id, .. }) => Reply::SetReleased { id },
        Incoming::Refused { id, code } => Reply::Error { id, code },
    }
}
