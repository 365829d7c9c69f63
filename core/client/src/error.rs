//! The one error type, the same kinds in every language.

/// Why a call did not end in a ticket or a release. Each kind asks the caller for something
/// different; the README has the table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "`detail` is text for people; the other fields are named by the kind"
)]
pub enum TicketError {
    /// The key was not free within the wait. Nothing is held; ask again when it suits.
    #[error("not granted in time: {detail}")]
    Timeout { detail: String },
    /// The caller gave up before the request was sent. Nothing is held.
    #[error("cancelled before it was sent: {detail}")]
    Cancelled { detail: String },
    /// The broker object was closed, or was inherited through `fork()`.
    #[error("closed: {detail}")]
    Closed { detail: String },
    /// The broker is at a limit. Nothing is queued or held; back off and ask anew.
    #[error("the broker is at a limit: {detail}")]
    Busy { detail: String },
    /// `max_pending` acquires are outstanding here. Nothing was sent.
    #[error("too many acquires are outstanding in this client: {detail}")]
    ClientCapacity { detail: String },
    /// No connection was usable in time. Nothing is held.
    #[error("not connected: {detail}")]
    NotConnected { detail: String },
    /// The broker rejects the client token.
    #[error("the broker rejected the client token: {detail}")]
    Auth { detail: String },
    /// It is not known whether the request took effect. Do not enter the critical section; what
    /// may have been granted ends with its lease.
    #[error("outcome unknown: {detail}")]
    Indeterminate { detail: String },
    /// The grant came too late for `min_work`, or `min_work` exceeds the lease. Nothing is held.
    #[error("{remaining_ms} ms of validity do not hold {min_work_ms} ms of work: {detail}")]
    InsufficientLease {
        remaining_ms: u64,
        min_work_ms: u64,
        detail: String,
    },
    /// A duration above its range; nothing is ever clamped.
    #[error("`{argument}` is at most {max_seconds} s: {detail}")]
    UnsupportedDuration {
        argument: &'static str,
        max_seconds: u64,
        detail: String,
    },
    /// An argument that no call could serve.
    #[error("`{argument}` is not valid: {detail}")]
    InvalidInput {
        argument: &'static str,
        detail: String,
    },
    /// The broker refused the request as wrong, or its bytes were not the protocol's.
    #[error("protocol error {code}: {detail}")]
    Protocol { code: String, detail: String },
    /// TLS could not be set up.
    #[error("TLS: {detail}")]
    Tls { detail: String },
    /// A file could not be read.
    #[error("I/O: {detail}")]
    Io { detail: String },
    /// A bug of ours, caught at a boundary.
    #[error("internal error, please report it: {detail}")]
    Internal { detail: String },
}

impl TicketError {
    /// The kind's name, the same in every language.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            TicketError::Timeout { .. } => "Timeout",
            TicketError::Cancelled { .. } => "Cancelled",
            TicketError::Closed { .. } => "Closed",
            TicketError::Busy { .. } => "Busy",
            TicketError::ClientCapacity { .. } => "ClientCapacity",
            TicketError::NotConnected { .. } => "NotConnected",
            TicketError::Auth { .. } => "Auth",
            TicketError::Indeterminate { .. } => "Indeterminate",
            TicketError::InsufficientLease { .. } => "InsufficientLease",
            TicketError::UnsupportedDuration { .. } => "UnsupportedDuration",
            TicketError::InvalidInput { .. } => "InvalidInput",
            TicketError::Protocol { .. } => "Protocol",
            TicketError::Tls { .. } => "Tls",
            TicketError::Io { .. } => "Io",
            TicketError::Internal { .. } => "Internal",
        }
    }

    pub(crate) fn invalid(argument: &'static str, detail: impl Into<String>) -> Self {
        TicketError::InvalidInput {
            argument,
            detail: detail.into(),
        }
    }

    pub(crate) fn indeterminate(detail: impl Into<String>) -> Self {
        TicketError::Indeterminate {
            detail: detail.into(),
        }
    }

    pub(crate) fn closed() -> Self {
        TicketError::Closed {
            detail: "this broker object was closed; make a new one".into(),
        }
    }
}
