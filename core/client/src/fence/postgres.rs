//! The fence in a `tokio_postgres` transaction.

use std::pin::Pin;

use tokio_postgres::error::SqlState;
use tokio_postgres::{Error, Transaction};

use super::{Dialect, FenceError, FenceRows, FenceTransaction, fence_statement, private};

impl private::Sealed for Transaction<'_> {}

impl FenceTransaction for Transaction<'_> {
    type Fenced<'a>
        = Pin<Box<dyn Future<Output = Result<(), FenceError>> + Send + 'a>>
    where
        Self: 'a;

    fn run<'a>(&'a mut self, rows: FenceRows<'a>) -> Self::Fenced<'a> {
        Box::pin(async move {
            let statement = fence_statement(Dialect::PostgreSql, rows.again);
            for (key, token) in rows.parameters()? {
                match self.execute(statement, &[&key, &token]).await {
                    Ok(_) => {}
                    Err(e) if is_stale(&e) => {
                        let token = token.unsigned_abs();
                        return Err(FenceError::Stale {
                            key: key.into(),
                            token,
                        });
                    }
                    Err(e) => return Err(FenceError::Database(e.into())),
                }
            }
            Ok(())
        })
    }
}

/// Exactly the broken `NOT NULL` rule of the fence column.
fn is_stale(error: &Error) -> bool {
    error.as_db_error().is_some_and(|e| {
        *e.code() == SqlState::NOT_NULL_VIOLATION
            && e.table() == Some("ticketing_fence")
            && e.column() == Some("token")
    })
}
