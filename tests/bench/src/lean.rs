//! The lean generator: one thread that keeps so many locks in flight on so many connections.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::keys::{KEY_LEN, Run, Space};
use crate::protocol::{Answer, Protocol, Slot};
use crate::{Meter, Stop};

/// How long a client without a place in a line waits before it asks again.
pub const RETRY: Duration = Duration::from_millis(1);

/// What to ask of a server.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// How many connections.
    pub connections: usize,
    /// How many locks each has in flight.
    pub in_flight: usize,
    /// On which keys.
    pub keys: Space,
    /// Until when.
    pub stop: Stop,
}

struct Connection<P> {
    stream: TcpStream,
    protocol: P,
    slots: Vec<Slot>,
    input: Vec<u8>,
    filled: usize,
    output: Vec<u8>,
}

/// A buffer that any answers to a full pipeline fit into.
const INPUT: usize = 64 * 1024;

impl<P: Protocol> Connection<P> {
    fn open(addr: SocketAddr, in_flight: usize) -> Result<Self> {
        let mut stream = std::net::TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        let protocol = P::open(&mut stream)?;
        stream.set_nonblocking(true)?;
        Ok(Connection {
            stream: TcpStream::from_std(stream),
            protocol,
            slots: vec![
                Slot {
                    key: [0; KEY_LEN],
                    token: 0
                };
                in_flight
            ],
            input: vec![0; INPUT],
            filled: 0,
            output: Vec::new(),
        })
    }

    /// Reads once. Says whether there may be more: a read that does not fill its buffer has
    /// emptied the socket, and a second one that only says so would cost every server the same.
    fn read(&mut self) -> Result<bool> {
        match self.stream.read(&mut self.input[self.filled..]) {
            Ok(0) => bail!("the server closed a connection"),
            Ok(read) => {
                self.filled += read;
                Ok(self.filled == self.input.len())
            }
            Err(error) => would_block(error).map(|()| false),
        }
    }

    fn write(&mut self) -> Result<()> {
        let mut written = 0;
        while written < self.output.len() {
            match self.stream.write(&self.output[written..]) {
                Ok(0) => bail!("the server closed a connection"),
                Ok(wrote) => written += wrote,
                Err(error) => {
                    would_block(error)?;
                    break;
                }
            }
        }
        self.output.drain(..written);
        Ok(())
    }
}

fn would_block(error: io::Error) -> Result<()> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(()),
        _ => Err(error.into()),
    }
}

/// Puts the load on the server at `addr` and says how many acquire+release pairs per second it did.
///
/// # Errors
/// The server is not there, or answers what a working one never does.
pub fn run<P: Protocol>(addr: SocketAddr, load: &Load) -> Result<f64> {
    let mut connections = Vec::with_capacity(load.connections);
    for _ in 0..load.connections {
        connections.push(Connection::<P>::open(addr, load.in_flight).context("connecting")?);
    }
    let mut poll = Poll::new()?;
    for (number, connection) in connections.iter_mut().enumerate() {
        let interest = Interest::READABLE | Interest::WRITABLE;
        poll.registry()
            .register(&mut connection.stream, Token(number), interest)?;
    }

    let run = Run::new(load.keys)?;
    let mut keys = run.keys(0);
    let mut tokens = 0;
    let mut start = |connection: &mut Connection<P>, index: usize| {
        let slot = &mut connection.slots[index];
        tokens += 1;
        *slot = Slot {
            key: keys.next_key(),
            token: tokens,
        };
        connection
            .protocol
            .acquire(index, slot, &mut connection.output);
    };
    for connection in &mut connections {
        for index in 0..load.in_flight {
            start(connection, index);
        }
        connection.write()?;
    }

    let mut meter = Meter::start(load.stop);
    let mut pairs = 0;
    let mut refused: VecDeque<(Instant, usize, usize)> = VecDeque::new();
    let mut events = Events::with_capacity(1024);
    loop {
        let pause = refused
            .front()
            .map(|(due, ..)| due.saturating_duration_since(Instant::now()));
        match poll.poll(
            &mut events,
            Some(pause.unwrap_or(Duration::from_millis(100))),
        ) {
            Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error.into()),
            _ => {}
        }
        for event in &events {
            let number = event.token().0;
            let connection = &mut connections[number];
            let mut more = true;
            while more {
                more = connection.read()?;
                let mut used = 0;
                while let Some((len, index, answer)) = connection.protocol.answer(
                    &connection.input[used..connection.filled],
                    &mut connection.slots,
                )? {
                    used += len;
                    match answer {
                        Answer::Granted => {
                            let slot = &connection.slots[index];
                            connection
                                .protocol
                                .release(index, slot, &mut connection.output);
                        }
                        Answer::Refused => {
                            refused.push_back((Instant::now() + RETRY, number, index));
                        }
                        Answer::Released => {
                            pairs += 1;
                            start(connection, index);
                        }
                    }
                }
                connection.input.copy_within(used..connection.filled, 0);
                connection.filled -= used;
            }
            connection.write()?;
        }
        if let Some(rate) = meter.done(pairs) {
            return Ok(rate);
        }
        let now = Instant::now();
        while let Some(&(due, number, index)) = refused.front()
            && due <= now
        {
            refused.pop_front();
            let connection = &mut connections[number];
            let slot = &connection.slots[index];
            connection
                .protocol
                .acquire(index, slot, &mut connection.output);
        }
        for connection in &mut connections {
            connection.write()?;
        }
    }
}
