//! One suite, every language, the same answers.
//!
//! The runner starts a *testee* (a small program for each language, written against its package),
//! plays the broker byte by byte, and judges: what the testee reported, what reached the wire, and
//! what must not have reached it. Expectations live here and in `scenarios/`, never in a testee.

#![forbid(unsafe_code)]

mod leak;
mod ledger;
pub mod live;
mod peer;
mod play;
pub mod report;
pub mod scenario;
mod storm;
pub mod suite;
pub mod testee;
