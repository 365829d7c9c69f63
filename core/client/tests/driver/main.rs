//! The driver over real sockets and real TLS, against a scripted broker.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../peer/mod.rs"]
mod peer;

mod anywhere;
mod batching;
mod close;
mod connecting;
mod ending;
mod secrets;
mod session;
mod tickets;
mod tls;
mod tls_records;
