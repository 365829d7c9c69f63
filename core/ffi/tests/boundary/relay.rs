//! What stands between a client and its broker: passes bytes on, and holds replies back when told.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

#[derive(Default)]
struct Gate {
    held: Mutex<bool>,
    changed: Condvar,
}

pub(crate) struct Relay {
    addr: SocketAddr,
    gate: Arc<Gate>,
}

impl Relay {
    /// Its threads end with the connections, the listening one with the process.
    pub(crate) fn to(broker: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let gate = Arc::new(Gate::default());
        let relay = Relay {
            addr,
            gate: Arc::clone(&gate),
        };
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(server) = TcpStream::connect(broker) else {
                    return;
                };
                let client = client.unwrap();
                let (to_server, to_client) =
                    (server.try_clone().unwrap(), client.try_clone().unwrap());
                let gate = Arc::clone(&gate);
                thread::spawn(move || pass(client, to_server, &Gate::default()));
                thread::spawn(move || pass(server, to_client, &gate));
            }
        });
        relay
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Whether replies are held back.
    pub(crate) fn hold(&self, held: bool) {
        *self.gate.held.lock().unwrap() = held;
        self.gate.changed.notify_all();
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, gate: &Gate) {
    to.set_nodelay(true).unwrap();
    let mut bytes = [0; 4096];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        let held = gate.held.lock().unwrap();
        drop(gate.changed.wait_while(held, |held| *held).unwrap());
        if to.write_all(&bytes[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
