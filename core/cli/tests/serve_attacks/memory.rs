//! S6: what clients make the broker hold is bounded, and given back.

use std::io::{ErrorKind, Write};
use std::thread;

use ticketing_wire::{Reply, Token};

use crate::broker::{Broker, raise_file_limit};
use crate::raw::{Raw, acquire, id, release};
use crate::size;

fn key(n: u64) -> String {
    format!("account-{n}-of-many")
}

/// Sends one frame for each item, a few hundred at a time, and gives the replies to `take`.
fn pipelined<T>(
    client: &mut Raw,
    items: impl IntoIterator<Item = T>,
    frame: impl Fn(u64, &T) -> Vec<u8>,
    mut take: impl FnMut(T, Reply),
) {
    let mut items = items.into_iter().peekable();
    while items.peek().is_some() {
        let chunk: Vec<_> = (1..).zip(items.by_ref().take(500)).collect();
        let frames = chunk.iter().flat_map(|(n, item)| frame(*n, item));
        client.send(&frames.collect::<Vec<u8>>());
        for (n, item) in chunk {
            let reply = client.reply();
            assert_eq!(reply.id(), Some(id(n)));
            take(item, reply);
        }
    }
}

fn hold(client: &mut Raw, keys: std::ops::Range<u64>) -> Vec<(u64, Token)> {
    let mut held = Vec::new();
    pipelined(
        client,
        keys,
        |n, &at| acquire(n, 0, &key(at)),
        |at, reply| match reply {
            Reply::Acquired { token, .. } => held.push((at, token)),
            other => panic!("{other:?}"),
        },
    );
    held
}

fn free(client: &mut Raw, held: Vec<(u64, Token)>) {
    pipelined(
        client,
        held,
        |n, &(at, token)| release(n, token, &key(at)),
        |_, reply| assert!(matches!(reply, Reply::Released { .. }), "{reply:?}"),
    );
}

/// Holds a million keys and releases them, again and again: each time the broker needs the memory
/// of the first time. How much of it the process keeps in between is up to the system's allocator,
/// which can't give back what lies below anything that stays.
fn costs_memory_once(args: &[&str]) {
    let count = size(1_000_000, 100_000);
    let broker = Broker::serve(args);
    let mut client = Raw::connect(&broker.address);
    let mut round = || {
        let held = hold(&mut client, 0..count);
        let memory = broker.memory();
        free(&mut client, held);
        println!(
            "{memory} KiB with {count} keys held, {} without",
            broker.memory()
        );
        memory
    };
    let base = round();
    for _ in 0..5 {
        let memory = round();
        assert!(memory <= base + base / 10, "{memory} KiB, {base} before");
    }
}

#[test]
fn s6_keys_that_were_held_cost_memory_once() {
    costs_memory_once(&["--memory"]);
}

#[test]
fn s6_keys_that_were_held_cost_memory_once_with_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    costs_memory_once(&["--data-dir", data.to_str().unwrap()]);
}

#[test]
fn s6_ten_thousand_connections_are_served_and_one_more_is_closed() {
    // Each connection is a file here and one in the broker, which has some others too.
    let count = size(10_000, 10_000).min(raise_file_limit() - 200);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broker.toml");
    std::fs::write(&file, format!("limits.connections = {count}")).unwrap();
    let broker = Broker::serve(&["--memory", "--config", file.to_str().unwrap()]);
    let (base, files) = (broker.memory(), broker.files());

    let mut clients: Vec<_> = (0..count).map(|_| Raw::connect(&broker.address)).collect();
    assert!(Raw::try_connect(&broker.address).is_err(), "one too many");
    for (n, client) in (0..).zip(&mut clients) {
        client.send(&acquire(1, 0, &key(n)));
    }
    for client in &mut clients {
        client.grant();
    }
    let each = (broker.memory() - base) * 1024 / count;
    assert!(each <= 4096, "{each} bytes for a connection and a grant");
    // The first and the last are as good as any.
    for at in [0, clients.len() - 1] {
        clients[at].is_served(2, "free");
    }

    drop(clients);
    broker.closes_all_but(files);
    Raw::connect(&broker.address).is_served(1, "free");
}

#[test]
fn s6_clients_that_never_read_are_closed_and_cost_little() {
    const CLIENTS: u64 = 8;
    let broker = Broker::serve(&["--memory"]);
    let mut other = Raw::connect(&broker.address);
    let (base, files) = (broker.memory(), broker.files());
    let floods: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut client = Raw::connect(&broker.address);
            // Each is answered, and none of it makes the broker hold anything else.
            let burst: Vec<u8> = (1..1000).flat_map(|n| release(n, token(), "k")).collect();
            thread::spawn(move || {
                loop {
                    match client.stream.write_all(&burst) {
                        Ok(()) => {}
                        Err(error) => return error.kind(),
                    }
                }
            })
        })
        .collect();
    let mut n = 1;
    let mut most = 0;
    while !floods.iter().all(thread::JoinHandle::is_finished) {
        other.is_served(n, "free");
        n += 2;
        most = most.max(broker.memory());
    }
    for flood in floods {
        let end = flood.join().unwrap();
        assert!(
            [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe].contains(&end),
            "closed by the broker: {end}"
        );
    }
    println!("{base} KiB before, {most} at most, {n} requests meanwhile");
    // The limit and one buffer of replies above it, for each; a vector that grows may be twice
    // what it holds, and is copied.
    let bound = CLIENTS * 4 * (512 + 16);
    assert!(most <= base + bound, "{most} KiB, {base} before");
    broker.closes_all_but(files);
    other.is_served(n, "free");
}

fn token() -> Token {
    Token::new(1).expect("not 0")
}
