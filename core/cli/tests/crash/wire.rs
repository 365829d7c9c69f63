//! The plainest client there is: one socket, one request at a time.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use ticketing_wire::{KeySet, MAX_LEASE, Reply, Request, RequestId, Token};

use crate::support::{PATIENCE, authenticated};

pub(crate) struct Wire {
    stream: TcpStream,
    read: Vec<u8>,
    last_id: u64,
}

/// No answer: the request may have taken effect.
#[derive(Debug)]
pub(crate) struct Lost;

impl Wire {
    pub(crate) fn connect(address: &str) -> io::Result<Self> {
        Ok(Wire {
            stream: authenticated(address)?,
            read: Vec::new(),
            last_id: 0,
        })
    }

    /// The token; `None`: not within `wait` seconds.
    pub(crate) fn acquire(&mut self, keys: &KeySet, wait: u8) -> Result<Option<Token>, Lost> {
        let id = self.next_id();
        let keys = keys.as_keys();
        match self.call(Request::Acquire {
            id,
            wait,
            lease: MAX_LEASE,
            keys,
        })? {
            Reply::Acquired { token, .. } | Reply::SetAcquired { token, .. } => Ok(Some(token)),
            Reply::TimedOut { .. } => Ok(None),
            other => panic!("{other:?}"),
        }
    }

    /// Whether it was held until now.
    pub(crate) fn release(&mut self, keys: &KeySet, token: Token) -> Result<bool, Lost> {
        let id = self.next_id();
        match self.call(Request::Release {
            id,
            token,
            keys: keys.as_keys(),
        })? {
            Reply::Released { .. } | Reply::SetReleased { .. } => Ok(true),
            Reply::NotCurrent { .. } => Ok(false),
            other => panic!("{other:?}"),
        }
    }

    fn next_id(&mut self) -> RequestId {
        self.last_id += 1;
        RequestId::new(self.last_id).expect("not 0")
    }

    fn call(&mut self, request: Request<'_>) -> Result<Reply, Lost> {
        let mut frame = Vec::new();
        request.encode(&mut frame);
        self.stream.write_all(&frame).map_err(|_| Lost)?;
        let mut bytes = [0; 256];
        loop {
            if let Some((reply, used)) = Reply::decode(&self.read).expect("a frame") {
                self.read.drain(..used);
                assert_eq!(reply.id().map(RequestId::get), Some(self.last_id));
                return Ok(reply);
            }
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(Lost),
                Ok(len) => self.read.extend_from_slice(&bytes[..len]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    panic!("no answer within {PATIENCE:?}")
                }
                Err(_) => return Err(Lost),
            }
        }
    }
}
