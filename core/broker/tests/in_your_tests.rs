//! A broker inside somebody's test, as README.md shows it.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::Read;

use common::{SOON, soon, until};
use tokio::net::TcpListener;

// README: begin
use std::time::Duration;

use ticketing_broker::{Broker, config::Config};
use ticketing_client::{TicketBroker, TicketError};

#[tokio::test]
async fn gives_way_to_another_holder() -> Result<(), Box<dyn std::error::Error>> {
    let server = Broker::start(Config::for_test()).await?; // in memory, on a free port
    let broker = TicketBroker::connect(server.local_addr().to_string().as_str())?;
    let [none, lease] = [0, 30].map(Duration::from_secs);

    let _held = broker.acquire("account-7", none, lease, none).await?;
    let refused = broker.acquire("account-7", none, lease, none).await;
    assert!(matches!(refused, Err(TicketError::Timeout { .. })));
    Ok(())
} // the broker ends here, also when the test fails
// README: end

#[test]
fn the_readme_shows_the_test_that_is_run_here() {
    let source = include_str!("in_your_tests.rs");
    let example = source.split("// README: begin\n").nth(1).unwrap();
    let example = example.split("// README: end\n").next().unwrap();
    let block = format!("```rust\n{example}```\n");
    assert!(
        include_str!("../../../README.md").contains(&block),
        "README.md should have:\n{block}"
    );
}

#[test]
fn a_plain_test_can_block_while_a_broker_runs() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(Broker::start(Config::for_test())).unwrap();
    let mut stream = std::net::TcpStream::connect(server.local_addr()).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.read_exact(&mut [0; 28]).unwrap();
    // In whichever order they go.
    drop(runtime);
    drop(server);
    assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
}

#[tokio::test]
async fn brokers_of_one_process_know_nothing_of_each_other() {
    let mut servers = Vec::new();
    for _ in 0..20 {
        servers.push(Broker::start(Config::for_test()).await.unwrap());
    }
    for server in &servers {
        let broker = TicketBroker::connect(server.local_addr().to_string().as_str()).unwrap();
        let [none, lease] = [0, 30].map(Duration::from_secs);
        let ticket = broker.acquire("same", none, lease, none).await.unwrap();
        ticket.keep();
    }
    for server in &servers {
        assert_eq!(server.stats().grants, 1);
    }
}

#[tokio::test]
async fn the_port_is_free_after_the_broker() {
    let server = Broker::start(Config::for_test()).await.unwrap();
    let addr = server.local_addr();
    server.shutdown().await.unwrap();
    let mut config = Config::for_test();
    config.listen = addr;
    let server = Broker::start(config).await.unwrap();

    drop(server);
    soon("the port is free", async {
        while TcpListener::bind(addr).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Clients that are still there, with or without something held, don't make a drop wait.
#[tokio::test]
async fn a_broker_that_is_dropped_ends_its_clients() {
    let server = Broker::start(Config::for_test()).await.unwrap();
    let broker = TicketBroker::connect(server.local_addr().to_string().as_str()).unwrap();
    let [none, lease] = [0, 30].map(Duration::from_secs);
    let _ticket = broker.acquire("k", none, lease, none).await.unwrap();
    drop(server);
    until("no session is left", || broker.stats().sessions_usable == 0).await;
}
