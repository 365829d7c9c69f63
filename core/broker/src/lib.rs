//! The Ticketing broker as a library: lock table, stores, TCP and TLS front.

#![forbid(unsafe_code)]

pub mod config;
pub mod store;
pub mod table;
pub mod token;
