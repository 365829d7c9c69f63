//! The accept loop outlives a lack of file descriptors. Alone in its process: the limit is the
//! process's.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

#[tokio::test]
async fn s6_a_lack_of_file_descriptors_passes() {
    let broker = memory_broker().await;
    let addr = broker.local_addr();
    let mut before = Peer::connect(addr).await;
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(64),
            maximum,
        },
    )
    .unwrap();
    // Both ends are in this process: at the limit the last of them are never accepted.
    let mut streams = Vec::new();
    while let Ok(stream) = TcpStream::connect(addr).await {
        streams.push(stream);
    }
    assert!(streams.len() > 10);
    // The open connection is served meanwhile.
    before.granted(&acquire(1, 0, 30, &["k"])).await;
    streams.drain(..20);
    let mut last = streams.pop().expect("some are left");
    soon("a hello", last.read_exact(&mut [0; 28]))
        .await
        .unwrap();
    Peer::connect(addr)
        .await
        .granted(&acquire(1, 0, 30, &["l"]))
        .await;
}
