//! A client that does what no client should: one socket, any bytes, in any order.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use rustix::net::sockopt::set_socket_linger;
use ticketing_wire::{KeySet, MAX_LEASE, Reply, Request, RequestId, Token};

use crate::support::authenticated;

pub(crate) fn id(n: u64) -> RequestId {
    RequestId::new(n).expect("not 0")
}

/// The frame of an acquire with the longest lease.
pub(crate) fn acquire(n: u64, wait: u8, key: &str) -> Vec<u8> {
    let keys = KeySet::new([key]).expect("a key");
    let mut frame = Vec::new();
    Request::Acquire {
        id: id(n),
        wait,
        lease: MAX_LEASE,
        keys: keys.as_keys(),
    }
    .encode(&mut frame);
    frame
}

pub(crate) fn release(n: u64, token: Token, key: &str) -> Vec<u8> {
    let keys = KeySet::new([key]).expect("a key");
    let mut frame = Vec::new();
    Request::Release {
        id: id(n),
        token,
        keys: keys.as_keys(),
    }
    .encode(&mut frame);
    frame
}

/// An authenticated connection.
pub(crate) struct Raw {
    pub(crate) stream: TcpStream,
    read: Vec<u8>,
}

impl Raw {
    pub(crate) fn connect(address: &str) -> Self {
        Self::try_connect(address).expect("let in")
    }

    /// # Errors
    /// The broker closed before its hello, say.
    pub(crate) fn try_connect(address: &str) -> io::Result<Self> {
        Ok(Raw {
            stream: authenticated(address)?,
            read: Vec::new(),
        })
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the broker reads");
    }

    /// The next reply; `None` at the end of the connection.
    pub(crate) fn next(&mut self) -> Option<Reply> {
        let mut bytes = [0; 16 * 1024];
        loop {
            if let Some((reply, used)) = Reply::decode(&self.read).expect("a frame") {
                self.read.drain(..used);
                return Some(reply);
            }
            match self.stream.read(&mut bytes) {
                Ok(0) => return None,
                Ok(len) => self.read.extend_from_slice(&bytes[..len]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no reply: {error}"),
            }
        }
    }

    pub(crate) fn reply(&mut self) -> Reply {
        self.next().expect("a reply, not the end")
    }

    /// The next reply, which must be a grant.
    pub(crate) fn grant(&mut self) -> Token {
        match self.reply() {
            Reply::Acquired { token, .. } => token,
            other => panic!("not a grant: {other:?}"),
        }
    }

    pub(crate) fn granted(&mut self, request: &[u8]) -> Token {
        self.send(request);
        self.grant()
    }

    /// Acquires a free key and releases it, as request `n` and the one after.
    pub(crate) fn is_served(&mut self, n: u64, key: &str) {
        let token = self.granted(&acquire(n, 0, key));
        self.send(&release(n + 1, token, key));
        assert_eq!(self.reply(), Reply::Released { id: id(n + 1) });
    }

    /// Ends the connection with a reset.
    pub(crate) fn reset(self) {
        let at_once = Some(std::time::Duration::ZERO);
        set_socket_linger(&self.stream, at_once).expect("a socket");
    }
}
