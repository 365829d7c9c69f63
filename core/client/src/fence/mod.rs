//! The fenced write (C20): the database refuses a holder that was paused past its lease.
//!
//! The fence is one statement, the *first* of the caller's transaction. A stale token breaks the
//! `NOT NULL` rule and so fails the transaction without anybody looking at row counts. The SQL
//! stands here once, for every language. `docs/fencing.md` says what was tried and why.

#[cfg(feature = "tokio-postgres")]
mod postgres;
#[cfg(feature = "rusqlite")]
mod sqlite;

use std::error::Error;

/// A database's dialect of the fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// SQLite 3.24 or later. Begin with `BEGIN IMMEDIATE`.
    Sqlite,
    /// PostgreSQL 9.5 or later.
    PostgreSql,
    /// MySQL and MariaDB.
    MySql,
}

/// The statement that makes the fence table, one for all keys.
#[must_use]
pub fn fence_table(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Sqlite => {
            "CREATE TABLE IF NOT EXISTS ticketing_fence \
             (key text PRIMARY KEY, token bigint NOT NULL)"
        }
        // The default collation could make `Order` and `order` one row.
        Dialect::PostgreSql => {
            "CREATE TABLE IF NOT EXISTS ticketing_fence \
             (key text COLLATE \"C\" PRIMARY KEY, token bigint NOT NULL)"
        }
        Dialect::MySql => {
            "CREATE TABLE IF NOT EXISTS ticketing_fence \
             (k VARBINARY(128) PRIMARY KEY, token BIGINT NOT NULL)"
        }
    }
}

/// The fence itself; its parameters are the key and the token. With `again`, a second transaction
/// under the same ticket passes too: equal tokens mean the same grant.
///
/// For databases without a helper here (sqlx, MySQL drivers): run it first in the transaction,
/// once for each key in key order, never in autocommit mode, and roll back when it fails.
#[must_use]
pub fn fence_statement(dialect: Dialect, again: bool) -> &'static str {
    match (dialect, again) {
        (Dialect::Sqlite, false) => {
            "INSERT INTO ticketing_fence AS f (key, token) VALUES (?1, ?2) ON CONFLICT (key) \
             DO UPDATE SET token = CASE WHEN f.token < excluded.token THEN excluded.token END"
        }
        (Dialect::Sqlite, true) => {
            "INSERT INTO ticketing_fence AS f (key, token) VALUES (?1, ?2) ON CONFLICT (key) \
             DO UPDATE SET token = CASE WHEN f.token <= excluded.token THEN excluded.token END"
        }
        (Dialect::PostgreSql, false) => {
            "INSERT INTO ticketing_fence AS f (key, token) VALUES ($1, $2) ON CONFLICT (key) \
             DO UPDATE SET token = CASE WHEN f.token < excluded.token THEN excluded.token END"
        }
        (Dialect::PostgreSql, true) => {
            "INSERT INTO ticketing_fence AS f (key, token) VALUES ($1, $2) ON CONFLICT (key) \
             DO UPDATE SET token = CASE WHEN f.token <= excluded.token THEN excluded.token END"
        }
        (Dialect::MySql, false) => {
            "INSERT INTO ticketing_fence (k, token) VALUES (?, ?) ON DUPLICATE KEY \
             UPDATE token = IF(VALUES(token) > token, VALUES(token), NULL)"
        }
        (Dialect::MySql, true) => {
            "INSERT INTO ticketing_fence (k, token) VALUES (?, ?) ON DUPLICATE KEY \
             UPDATE token = IF(VALUES(token) >= token, VALUES(token), NULL)"
        }
    }
}

/// Why a fence failed. Leave the transaction: roll it back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// A later ticket's work is already there (or, without `again`, this ticket's own): this one
    /// must not write.
    #[error("the ticket is stale: key {key:?} has been written under a token of {token} or later")]
    Stale {
        /// The key whose row refused.
        key: String,
        /// The refused token.
        token: u64,
    },
    /// The token does not fit a signed 64-bit column; no broker of ours issues such a one.
    #[error("token {0} exceeds 2^63 - 1, the most that the fence column holds")]
    TokenTooLarge(u64),
    /// Anything else that the database said.
    #[error("the fence statement failed: {0}")]
    Database(#[source] Box<dyn Error + Send + Sync>),
}

/// What is to be fenced: a row for each key, in key order (opposite orders would deadlock).
#[derive(Debug)]
#[cfg_attr(
    not(any(feature = "rusqlite", feature = "tokio-postgres")),
    expect(dead_code, reason = "read by the helpers alone")
)]
pub struct FenceRows<'a> {
    rows: Vec<(&'a str, u64)>,
    again: bool,
}

impl<'a> FenceRows<'a> {
    pub(crate) fn new(rows: impl Iterator<Item = (&'a str, u64)>, again: bool) -> Self {
        FenceRows {
            rows: rows.collect(),
            again,
        }
    }

    /// The statement, and its parameters for each key.
    #[cfg(any(feature = "rusqlite", feature = "tokio-postgres"))]
    fn parameters(&self) -> Result<Vec<(&'a str, i64)>, FenceError> {
        let signed = |token| i64::try_from(token).map_err(|_| FenceError::TokenTooLarge(token));
        self.rows
            .iter()
            .map(|&(key, token)| Ok((key, signed(token)?)))
            .collect()
    }
}

/// A transaction that a ticket can fence: `rusqlite::Transaction` (feature `rusqlite`) and
/// `tokio_postgres::Transaction` (feature `tokio-postgres`). Not a bare connection, where each
/// statement would be a transaction of its own and protect nothing.
pub trait FenceTransaction: private::Sealed {
    /// `Result<(), FenceError>`, or a future of it.
    type Fenced<'a>
    where
        Self: 'a;

    #[doc(hidden)]
    fn run<'a>(&'a mut self, rows: FenceRows<'a>) -> Self::Fenced<'a>;
}

mod private {
    pub trait Sealed {}
}
