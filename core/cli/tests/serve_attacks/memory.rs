//! S6: what clients make the broker hold is bounded, and given back.

use std::io::{ErrorKind, Write};
use std::thread;
use std::time::{Duration, Instant};

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

/// Holds a million keys and releases them, again and again: after each time the broker's memory
/// returns to within 10 % of its base.
fn gives_memory_back(args: &[&str], base_of: impl Fn(&Broker, &mut Raw) -> u64) {
    let count = size(1_000_000, 100_000);
    let broker = Broker::serve(args);
    let mut client = Raw::connect(&broker.address);
    let base = base_of(&broker, &mut client);
    for _ in 0..2 {
        let held = hold(&mut client, 0..count);
        let memory = broker.memory();
        assert!(
            memory > base + base / 4,
            "{memory} KiB of {base}: what is measured?"
        );
        free(&mut client, held);
        let back = settled(&broker, base + base / 10);
        println!("{base} KiB, {memory} with {count} keys held, {back} after");
        assert!(back <= base + base / 10, "{back} KiB, {base} before");
    }
}

/// What the broker keeps: what is `enough`, or the least that it has for longer than its allocator
/// takes to give back what is unused, which is 10 s.
fn settled(broker: &Broker, enough: u64) -> u64 {
    let (mut least, mut since) = (broker.memory(), Instant::now());
    while least > enough && since.elapsed() < Duration::from_secs(15) {
        thread::sleep(Duration::from_millis(50));
        let memory = broker.memory();
        if memory < least {
            (least, since) = (memory, Instant::now());
        }
    }
    least
}

#[test]
fn s6_keys_that_were_held_give_their_memory_back() {
    gives_memory_back(&["--memory"], |broker, client| {
        let held = hold(client, 0..1000);
        free(client, held);
        broker.memory()
    });
}

/// The database keeps a page cache, which is bounded and full after the first time.
#[test]
fn s6_keys_that_were_held_give_their_memory_back_with_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    gives_memory_back(&["--data-dir", data.to_str().unwrap()], |broker, client| {
        let held = hold(client, 0..size(1_000_000, 100_000));
        free(client, held);
        settled(broker, 0)
    });
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
