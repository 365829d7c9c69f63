//! The Ticketing broker as a library: lock table, stores, TCP and TLS front.

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
