//! The Ticketing broker as a library: lock table, stores, TCP and TLS front.
//!
//! # In your own tests
//!
//! A broker starts and stops in about a millisecond, keeps nothing on disk if told so, and several
//! run in one process, so that no test needs a mock or has to share one. Here the test is a holder
//! that the code under test has to wait for, or give way to:
//!
//! ```
//! use std::time::Duration;
//!
//! use ticketing_broker::{Broker, config::Config};
//! use ticketing_client::{TicketBroker, TicketError};
//!
//! # #[tokio::main(flavor = "current_thread")] // in a test: #[tokio::test]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Broker::start(Config::for_test()).await?;
//! let address = server.local_addr().to_string();
//!
//! let other = TicketBroker::connect(address.as_str())?;
//! let [none, lease] = [0, 30].map(Duration::from_secs);
//! let held = other.acquire("account-7", none, lease, none).await?;
//!
//! // What the code under test would do.
//! let broker = TicketBroker::connect(address.as_str())?;
//! let refused = broker.acquire("account-7", none, lease, none).await;
//! assert!(matches!(refused, Err(TicketError::Timeout { .. })));
//!
//! held.release().await?;
//! let ticket = broker.acquire("account-7", none, lease, none).await?;
//! assert!(ticket.token() > held.token());
//! # Ok(()) }
//! ```
//!
//! The broker ends with the value `server`, whatever becomes of the test ([`Broker::shutdown`] would
//! wait a second for the releases of clients that are still there). Code that blocks (or is
//! another process) needs a broker that runs meanwhile: start it on a multi-threaded runtime, in a
//! plain `#[test]` as
//!
//! ```
//! # use ticketing_broker::{Broker, config::Config};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = tokio::runtime::Runtime::new()?;
//! let server = runtime.block_on(Broker::start(Config::for_test()))?;
//! std::net::TcpStream::connect(server.local_addr())?; // blocks, and is served
//! # Ok(()) }
//! ```

#![forbid(unsafe_code)]

pub mod config;
mod engine;
mod front;
mod server;
pub mod store;
pub mod table;
pub mod token;

pub use front::AccessError;
pub use server::{Broker, BrokerError, StartError};
