//! The Ticketing client: a *ticket* on a key from a Ticketing broker, and the fenced write.
//!
//! A process asks for a ticket (wait at most so long, hold at most so long, need at least so much
//! time to work), works while it holds it, and fences its database write with the ticket's token,
//! so that a holder that was paused past its lease cannot overwrite a later one's work.
//!
//! ```no_run
//! use std::time::Duration;
//! use ticketing_client::TicketBroker;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let broker = TicketBroker::connect("127.0.0.1:5225")?;
//! let secs = Duration::from_secs;
//! let ticket = broker.acquire("order-42", secs(5), secs(30), secs(10)).await?;
//! // … one transaction that begins with `ticket.fence(&mut tx)` …
//! ticket.release().await?;
//! broker.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! Clause numbers (`C13`) are those of `docs/semantics.md`.

#![forbid(unsafe_code)]

mod acquiring;
mod addr;
mod alarm;
mod args;
mod broker;
mod clock;
mod driver;
mod error;
mod fence;
mod leader;
mod shared;
mod state;
mod stats;
mod ticket;
mod tls;

pub use acquiring::Acquiring;
pub use broker::{Addrs, Builder, TicketBroker};
pub use error::TicketError;
pub use fence::{Dialect, FenceError, FenceRows, FenceTransaction, fence_statement, fence_table};
pub use leader::{Candidate, Leadership};
pub use stats::Stats;
pub use ticket::{ReleaseOutcome, Ticket, TicketSet};
pub use tls::TlsMode;
