//! The interface as languages use it, against a real broker.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;

mod arguments;
mod calls;
mod leadership;
mod numbers;
mod queue;
mod random;
mod relay;
