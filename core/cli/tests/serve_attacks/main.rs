//! `ticketing serve` attacked over the network, from another process: what it holds is measured
//! from outside (S6), and others are served meanwhile.
//!
//! `TICKETING_LONG=1` makes the attacks as large as they are named; without it they are smaller.

#![allow(
    clippy::unwrap_used,
    reason = "a test says by its line where it failed"
)]

#[path = "../support/mod.rs"]
mod support;

mod broker;
mod memory;
mod raw;
mod resets;
mod signals;

/// `full` with `TICKETING_LONG` set, else `short`.
fn size(full: u64, short: u64) -> u64 {
    if std::env::var_os("TICKETING_LONG").is_some() {
        full
    } else {
        short
    }
}
