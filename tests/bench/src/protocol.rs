//! What the lean generator says to each server: the least that takes and gives back a lock.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, bail, ensure};
use ticketing_wire::{
    ACCEPTED, HELLO_LEN, Hello, Identity, Key, Keys, Reply, Request, RequestId, Token,
};

use crate::keys::KEY_LEN;

/// How long a lock lasts at most, in seconds: longer than any run. Time in line likewise.
const LEASE: u8 = 250;

/// One lock that is being taken or given back.
#[derive(Debug, Clone)]
pub struct Slot {
    /// The key.
    pub key: [u8; KEY_LEN],
    /// What proves ownership. The generator sets one of its own before each acquire; a server that
    /// issues tokens replaces it.
    pub token: u64,
}

/// What a server said about one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The lock is held.
    Granted,
    /// It is not: ask again later.
    Refused,
    /// It was given back.
    Released,
}

/// One connection's end of a protocol.
pub trait Protocol: Sized {
    /// Whatever comes before the first request.
    ///
    /// # Errors
    /// The server is another one, or the socket fails.
    fn open(stream: &mut TcpStream) -> Result<Self>;

    /// Appends a request for `slot`, which is number `index` of this connection.
    fn acquire(&mut self, index: usize, slot: &Slot, out: &mut Vec<u8>);

    /// Appends the release of `slot`.
    fn release(&mut self, index: usize, slot: &Slot, out: &mut Vec<u8>);

    /// Takes one answer off the front of `input`: its length, whose it is and what it says; `None`
    /// while it is incomplete.
    ///
    /// # Errors
    /// An answer that a working server never gives here.
    fn answer(
        &mut self,
        input: &[u8],
        slots: &mut [Slot],
    ) -> Result<Option<(usize, usize, Answer)>>;
}

/// The ticketing protocol.
#[derive(Debug, Default)]
pub struct Ticketing {
    requests: u64,
}

/// Low bits of a request id that carry the slot's number; the rest count up.
const INDEX_BITS: u32 = 16;

impl Ticketing {
    fn next_id(&mut self, index: usize) -> RequestId {
        self.requests += 1;
        RequestId::new(self.requests << INDEX_BITS | index as u64).expect("requests is above 0")
    }

    /// Appends an acquire that says how long to wait.
    pub(crate) fn acquire_within(
        &mut self,
        wait: u8,
        index: usize,
        slot: &Slot,
        out: &mut Vec<u8>,
    ) {
        let id = self.next_id(index);
        Request::Acquire {
            id,
            wait,
            lease: LEASE,
            keys: keys(slot),
        }
        .encode(out);
    }
}

fn keys(slot: &Slot) -> Keys<'_> {
    Keys::One(Key::from_bytes(&slot.key).expect("generated keys are ASCII"))
}

impl Protocol for Ticketing {
    fn open(stream: &mut TcpStream) -> Result<Self> {
        let mut hello = [0; HELLO_LEN];
        stream.read_exact(&mut hello)?;
        stream.write_all(&Hello::decode(&hello)?.auth("", &Identity::single()))?;
        let mut result = [0];
        stream.read_exact(&mut result)?;
        ensure!(result == [ACCEPTED], "the broker wants a client token");
        Ok(Ticketing::default())
    }

    fn acquire(&mut self, index: usize, slot: &Slot, out: &mut Vec<u8>) {
        self.acquire_within(LEASE, index, slot, out);
    }

    fn release(&mut self, index: usize, slot: &Slot, out: &mut Vec<u8>) {
        let token = Token::new(slot.token).expect("a granted token is not 0");
        Request::Release {
            id: self.next_id(index),
            token,
            keys: keys(slot),
        }
        .encode(out);
    }

    fn answer(
        &mut self,
        input: &[u8],
        slots: &mut [Slot],
    ) -> Result<Option<(usize, usize, Answer)>> {
        let Some((reply, used)) = Reply::decode(input)? else {
            return Ok(None);
        };
        let id = reply.id().context("a pushed frame from a single broker")?;
        let index = usize::try_from(id.get() & ((1 << INDEX_BITS) - 1))?;
        let answer = match reply {
            Reply::Acquired { token, .. } => {
                slots[index].token = token.get();
                Answer::Granted
            }
            Reply::Released { .. } => Answer::Released,
            Reply::TimedOut { .. } => Answer::Refused,
            other => bail!("unexpected answer {other:?}"),
        };
        Ok(Some((used, index, answer)))
    }
}

/// A request whose answer comes in its turn.
type Turn = (usize, bool);

/// Redis as its manual describes a lock: `SET NX PX`, and a script that deletes what is one's own.
#[derive(Debug)]
pub struct Redis {
    script: String,
    turns: VecDeque<Turn>,
}

/// Deletes the key while it holds the caller's value.
pub const REDIS_RELEASE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then \
                                 return redis.call('del', KEYS[1]) else return 0 end";

impl Protocol for Redis {
    fn open(stream: &mut TcpStream) -> Result<Self> {
        let mut command = Vec::new();
        resp(
            &mut command,
            &[b"SCRIPT", b"LOAD", REDIS_RELEASE.as_bytes()],
        );
        stream.write_all(&command)?;
        // "$40\r\n", 40 hex digits, "\r\n"
        let mut reply = [0; 47];
        stream.read_exact(&mut reply)?;
        let script = std::str::from_utf8(&reply[5..45])?.to_owned();
        Ok(Redis {
            script,
            turns: VecDeque::new(),
        })
    }

    fn acquire(&mut self, index: usize, slot: &Slot, out: &mut Vec<u8>) {
        self.turns.push_back((index, true));
        let value = hex(slot.token);
        resp(out, &[b"SET", &slot.key, &value, b"NX", b"PX", b"250000"]);
    }

    fn release(&mut self, index: usize, slot: &Slot, out: &mut Vec<u8>) {
        self.turns.push_back((index, false));
        let value = hex(slot.token);
        resp(
            out,
            &[b"EVALSHA", self.script.as_bytes(), b"1", &slot.key, &value],
        );
    }

    fn answer(
        &mut self,
        input: &[u8],
        _slots: &mut [Slot],
    ) -> Result<Option<(usize, usize, Answer)>> {
        let Some((line, used)) = line(input) else {
            return Ok(None);
        };
        let (index, acquiring) = self.turns.pop_front().context("an answer to nothing")?;
        let answer = match (acquiring, line) {
            (true, b"+OK") => Answer::Granted,
            (true, b"$-1") => Answer::Refused,
            (false, b":1") => Answer::Released,
            _ => bail!("unexpected answer {:?}", String::from_utf8_lossy(line)),
        };
        Ok(Some((used, index, answer)))
    }
}

/// Memcached's meta commands: add, and delete while the item is still the one that was added.
#[derive(Debug)]
pub struct Memcached {
    turns: VecDeque<Turn>,
}

impl Protocol for Memcached {
    fn open(_stream: &mut TcpStream) -> Result<Self> {
        Ok(Memcached {
            turns: VecDeque::new(),
        })
    }

    fn acquire(&mut self, index: usize, slot: &Slot, out: &mut Vec<u8>) {
        self.turns.push_back((index, true));
        // Mode E adds, T is the time to live, c returns the item's unique number.
        out.extend_from_slice(b"ms ");
        out.extend_from_slice(&slot.key);
        out.extend_from_slice(b" 1 ME T250 c\r\n1\r\n");
    }

    fn release(&mut self, index: usize, slot: &Slot, out: &mut Vec<u8>) {
        self.turns.push_back((index, false));
        out.extend_from_slice(b"md ");
        out.extend_from_slice(&slot.key);
        write!(out, " C{}\r\n", slot.token).expect("a Vec takes all");
    }

    fn answer(
        &mut self,
        input: &[u8],
        slots: &mut [Slot],
    ) -> Result<Option<(usize, usize, Answer)>> {
        let Some((line, used)) = line(input) else {
            return Ok(None);
        };
        let (index, acquiring) = self.turns.pop_front().context("an answer to nothing")?;
        let answer = match (acquiring, line) {
            (true, [b'H', b'D', b' ', b'c', unique @ ..]) => {
                slots[index].token = std::str::from_utf8(unique)?.parse()?;
                Answer::Granted
            }
            (true, [b'N', b'S', ..]) => Answer::Refused,
            (false, b"HD") => Answer::Released,
            _ => bail!("unexpected answer {:?}", String::from_utf8_lossy(line)),
        };
        Ok(Some((used, index, answer)))
    }
}

/// The first line without its end, and its length with it.
fn line(input: &[u8]) -> Option<(&[u8], usize)> {
    let end = input.iter().position(|&byte| byte == b'\n')?;
    Some((
        input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]),
        end + 1,
    ))
}

fn hex(value: u64) -> [u8; 16] {
    std::array::from_fn(|i| b"0123456789abcdef"[(value >> (60 - 4 * i)) as usize & 15])
}

/// A command as an array of bulk strings.
fn resp(out: &mut Vec<u8>, parts: &[&[u8]]) {
    write!(out, "*{}\r\n", parts.len()).expect("a Vec takes all");
    for part in parts {
        write!(out, "${}\r\n", part.len()).expect("a Vec takes all");
        out.extend_from_slice(part);
        out.extend_from_slice(b"\r\n");
    }
}
