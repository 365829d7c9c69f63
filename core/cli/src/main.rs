//! The Ticketing program.

#![forbid(unsafe_code)]

fn main() {}
