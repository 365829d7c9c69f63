//! What a broker object tells of itself.

/// A snapshot of a broker object, from [`crate::TicketBroker::stats`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Sessions that can take a request now.
    pub sessions_usable: usize,
    /// Acquires that are not sent yet.
    pub waiting: usize,
    /// Acquires that are sent and unanswered.
    pub sent: usize,
    /// Tickets handed out, in all.
    pub granted: u64,
    /// Releases that the broker answered, in all.
    pub released: u64,
    /// Acquires that were given up after they were sent, in all.
    pub given_up: u64,
    /// Grants that came to nobody and were given back, in all.
    pub compensated: u64,
    /// Automatic releases that were dropped because too many waited; their leases run out.
    pub automatic_dropped: u64,
    /// The last connection error, if there was one.
    pub last_connection_error: Option<String>,
}

/// The counters behind [`Stats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) waiting: usize,
    pub(crate) sent: usize,
    pub(crate) granted: u64,
    pub(crate) released: u64,
    pub(crate) given_up: u64,
    pub(crate) compensated: u64,
    pub(crate) automatic_dropped: u64,
}

impl Counters {
    pub(crate) fn stats(&self, sessions_usable: usize, last_error: Option<String>) -> Stats {
        Stats {
            sessions_usable,
            waiting: self.waiting,
            sent: self.sent,
            granted: self.granted,
            released: self.released,
            given_up: self.given_up,
            compensated: self.compensated,
            automatic_dropped: self.automatic_dropped,
            last_connection_error: last_error,
        }
    }
}
