//! The interface's types, and how the client's turn into them. Documented in `ticketing.udl`.

use std::time::Duration;

use ticketing_client as client;

pub enum Dialect {
    Sqlite,
    PostgreSql,
    MySql,
}

impl From<Dialect> for client::Dialect {
    fn from(dialect: Dialect) -> Self {
        match dialect {
            Dialect::Sqlite => client::Dialect::Sqlite,
            Dialect::PostgreSql => client::Dialect::PostgreSql,
            Dialect::MySql => client::Dialect::MySql,
        }
    }
}

pub struct BrokerOptions {
    pub addrs: Vec<String>,
    pub token: String,
    pub tls: TlsMode,
    pub cluster: String,
    pub max_pending: u32,
}

pub enum TlsMode {
    Off,
    SystemRoots,
    Ca { path: String },
    InsecureSkipVerify,
}

impl From<TlsMode> for client::TlsMode {
    fn from(mode: TlsMode) -> Self {
        match mode {
            TlsMode::Off => client::TlsMode::Off,
            TlsMode::SystemRoots => client::TlsMode::SystemRoots,
            TlsMode::Ca { path } => client::TlsMode::Ca(path.into()),
            TlsMode::InsecureSkipVerify => client::TlsMode::InsecureSkipVerify,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Granted {
        ticket: i64,
        token: u64,
        valid_for_ms: i64,
    },
    Released,
    NotCurrent,
    Ready {
        usable: bool,
    },
    Closed,
    Elected {
        leadership: i64,
        token: u64,
    },
    Term {
        token: u64,
    },
    Lost,
    Failed {
        error: TicketError,
    },
}

impl From<client::TicketError> for Outcome {
    fn from(error: client::TicketError) -> Self {
        Outcome::Failed {
            error: error.into(),
        }
    }
}

impl From<Result<client::ReleaseOutcome, client::TicketError>> for Outcome {
    fn from(released: Result<client::ReleaseOutcome, client::TicketError>) -> Self {
        match released {
            Ok(client::ReleaseOutcome::Released) => Outcome::Released,
            Ok(client::ReleaseOutcome::NotCurrent) => Outcome::NotCurrent,
            Err(e) => e.into(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    pub seq: i64,
    pub tag: i64,
    pub outcome: Outcome,
}

#[derive(Default)]
pub struct Stats {
    pub sessions_usable: u32,
    pub waiting: u32,
    pub sent: u32,
    pub granted: i64,
    pub released: i64,
    pub given_up: i64,
    pub compensated: i64,
    pub automatic_dropped: i64,
    pub last_connection_error: Option<String>,
}

impl From<client::Stats> for Stats {
    fn from(stats: client::Stats) -> Self {
        let now = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let in_all = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        Stats {
            sessions_usable: now(stats.sessions_usable),
            waiting: now(stats.waiting),
            sent: now(stats.sent),
            granted: in_all(stats.granted),
            released: in_all(stats.released),
            given_up: in_all(stats.given_up),
            compensated: in_all(stats.compensated),
            automatic_dropped: in_all(stats.automatic_dropped),
            last_connection_error: stats.last_connection_error,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    pub level: LogLevel,
    pub target: String,
    pub message: String,
}

/// The client's error with its text, variant by variant.
macro_rules! errors {
    ($($kind:ident { $($field:ident: $type:ty),* }),* $(,)?) => {
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum TicketError {
            $($kind { $($field: $type),* }),*
        }

        impl From<client::TicketError> for TicketError {
            fn from(error: client::TicketError) -> Self {
                match error {
                    $(client::TicketError::$kind { $($field),* } => {
                        TicketError::$kind { $($field: $field.into()),* }
                    })*
                    // The client's enum is open for kinds to come; this list is closed by a test.
                    other => TicketError::Internal { detail: other.to_string() },
                }
            }
        }
    };
}

errors! {
    Timeout { detail: String },
    Cancelled { detail: String },
    Closed { detail: String },
    Busy { detail: String },
    ClientCapacity { detail: String },
    NotConnected { detail: String },
    Auth { detail: String },
    Indeterminate { detail: String },
    InsufficientLease { remaining_ms: u64, min_work_ms: u64, detail: String },
    UnsupportedDuration { argument: String, max_seconds: u64, detail: String },
    InvalidInput { argument: String, detail: String },
    Protocol { code: String, detail: String },
    Tls { detail: String },
    Io { detail: String },
    Internal { detail: String },
}

impl std::fmt::Display for TicketError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(self, f)
    }
}

impl std::error::Error for TicketError {}

/// A duration from the other side. Negative ones are refused here, since the client's type has
/// none; the layer above says NaN and the like by a name of its own (C4).
pub(crate) fn duration(argument: &'static str, ms: i64) -> Result<Duration, client::TicketError> {
    let ms = u64::try_from(ms).map_err(|_| client::TicketError::InvalidInput {
        argument,
        detail: format!("{ms} ms is negative"),
    })?;
    Ok(Duration::from_millis(ms))
}

/// How long to wait for completions: nothing is refused, a negative one is none.
pub(crate) fn timeout(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

/// Whole milliseconds, rounded down: a validity is never overstated.
pub(crate) fn millis(value: Duration) -> i64 {
    i64::try_from(value.as_millis()).unwrap_or(i64::MAX)
}
