//! The fence in a `rusqlite` transaction.

use rusqlite::{Error, ErrorCode, Transaction, ffi};

use super::{Dialect, FenceError, FenceRows, FenceTransaction, fence_statement, private};

impl private::Sealed for Transaction<'_> {}

impl FenceTransaction for Transaction<'_> {
    type Fenced<'a>
        = Result<(), FenceError>
    where
        Self: 'a;

    fn run<'a>(&'a mut self, rows: FenceRows<'a>) -> Result<(), FenceError> {
        let database = |e: Error| FenceError::Database(e.into());
        if self.is_autocommit() {
            return Err(FenceError::Database(ENDED.into()));
        }
        let mut statement = self
            .prepare_cached(fence_statement(Dialect::Sqlite, rows.again))
            .map_err(database)?;
        for (key, token) in rows.parameters()? {
            match statement.execute((key, token)) {
                Ok(_) => {}
                Err(e) if is_stale(&e) => {
                    let token = token.unsigned_abs();
                    return Err(FenceError::Stale {
                        key: key.into(),
                        token,
                    });
                }
                Err(e) => return Err(database(e)),
            }
        }
        Ok(())
    }
}

/// Each statement would then be a transaction of its own.
const ENDED: &str =
    "the transaction has ended and the connection is in autocommit mode; begin anew";

/// Exactly the broken `NOT NULL` rule of the fence column.
fn is_stale(error: &Error) -> bool {
    matches!(error, Error::SqliteFailure(e, Some(message))
        if e.code == ErrorCode::ConstraintViolation
            && e.extended_code == ffi::SQLITE_CONSTRAINT_NOTNULL
            && message == "NOT NULL constraint failed: ticketing_fence.token")
}
