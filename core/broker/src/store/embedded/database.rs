//! The database file: its tables, its format, and what of redb's errors means what.

use std::io;

use camino::Utf8Path;
use redb::{
    Builder, Database, DatabaseError, Durability, ReadableDatabase, ReadableTable, StorageError,
    TableDefinition, TableError,
};

use crate::store::batch::Record;
use crate::store::{Batch, Recovered, StoredGrant};

/// Token → the grant's record, as a [`Batch`] holds it.
const GRANTS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("grants");
/// [`FORMAT_KEY`] and [`MARK_KEY`].
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const FORMAT_KEY: &str = "format";
const MARK_KEY: &str = "mark";
/// The version of these tables. redb's file format has a version of its own.
const FORMAT: u64 = 1;
/// Enough for the upper levels of the tree; the system's page cache has the rest.
const CACHE_BYTES: usize = 16 * 1024 * 1024;

/// Why a file can't be used as the database.
#[derive(Debug)]
pub(super) enum OpenDatabaseError {
    Io(io::Error),
    Foreign(String),
    Newer { found: u64, supported: u64 },
    Corrupt(String),
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    // Every page is checked at every start, so that a file that was damaged or exchanged is
    // refused (S8) rather than found out in the middle of a commit.
    builder
        .set_cache_size(CACHE_BYTES)
        .set_check_integrity_on_open(true);
    builder
}

/// Makes a new, empty database in `file`.
pub(super) fn create(file: &Utf8Path) -> Result<(), OpenDatabaseError> {
    initialise(builder().create(file)?)?.close()?;
    Ok(())
}

/// Opens the existing database in `file`. Opening it for writing changes it, so what is not ours
/// is refused before (S8); only one that its owner did not close can't be read without that.
pub(super) fn open(file: &Utf8Path) -> Result<Database, OpenDatabaseError> {
    if let Ok(database) = builder().open_read_only(file) {
        check_format(&database)?;
    }
    Ok(builder().open(file)?)
}

fn initialise(database: Database) -> Result<Database, OpenDatabaseError> {
    let transaction = database.begin_write().map_err(redb::Error::from)?;
    transaction.open_table(META)?.insert(FORMAT_KEY, FORMAT)?;
    transaction.open_table(GRANTS)?;
    transaction.commit().map_err(redb::Error::from)?;
    Ok(database)
}

/// The open database.
pub(super) struct Grants {
    database: Database,
    /// The record of one grant.
    scratch: Batch,
}

impl Grants {
    /// Reads what the database holds.
    pub(super) fn open(database: Database) -> Result<(Self, Recovered), OpenDatabaseError> {
        let recovered = read(&database)?;
        Ok((
            Grants {
                database,
                scratch: Batch::new(),
            },
            recovered,
        ))
    }

    /// Commits `batch` in one transaction, that is, one sync.
    pub(super) fn apply(&mut self, batch: &Batch) -> io::Result<()> {
        self.try_apply(batch).map_err(into_io)
    }

    fn try_apply(&mut self, batch: &Batch) -> Result<(), redb::Error> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        {
            let mut grants = transaction.open_table(GRANTS)?;
            for record in batch.records() {
                match record {
                    Record::Grant { token, lease, keys } => {
                        self.scratch.clear();
                        self.scratch.grant(token, lease, keys);
                        grants.insert(token.get(), self.scratch.as_bytes())?;
                    }
                    Record::End { token } => {
                        grants.remove(token.get())?;
                    }
                    Record::Mark { mark } => {
                        transaction.open_table(META)?.insert(MARK_KEY, mark)?;
                    }
                }
            }
        }
        transaction.commit()?;
        Ok(())
    }
}

fn check_format(database: &impl ReadableDatabase) -> Result<(), OpenDatabaseError> {
    let transaction = database.begin_read().map_err(redb::Error::from)?;
    let format = transaction.open_table(META)?.get(FORMAT_KEY)?;
    match format.map(|format| format.value()) {
        Some(FORMAT) => Ok(()),
        Some(found) if found > FORMAT => Err(OpenDatabaseError::Newer {
            found,
            supported: FORMAT,
        }),
        other => Err(OpenDatabaseError::Foreign(format!(
            "its format is {other:?}"
        ))),
    }
}

fn read(database: &Database) -> Result<Recovered, OpenDatabaseError> {
    check_format(database)?;
    let transaction = database.begin_read().map_err(redb::Error::from)?;
    let mark = transaction.open_table(META)?.get(MARK_KEY)?;
    let mut recovered = Recovered {
        mark: mark.map_or(0, |mark| mark.value()),
        grants: Vec::new(),
    };
    for entry in transaction.open_table(GRANTS)?.iter()? {
        let (key, value) = entry?;
        let mut bytes = value.value();
        match Record::take(&mut bytes) {
            Some(Record::Grant { token, lease, keys })
                if token.get() == key.value() && bytes.is_empty() =>
            {
                recovered.grants.push(StoredGrant {
                    token,
                    lease,
                    keys: keys.into(),
                });
            }
            _ => {
                let reason = format!("the grant of token {} cannot be read", key.value());
                return Err(OpenDatabaseError::Corrupt(reason));
            }
        }
    }
    Ok(recovered)
}

fn into_io(error: redb::Error) -> io::Error {
    match error {
        redb::Error::Io(error) => error,
        other => io::Error::other(other),
    }
}

impl From<redb::Error> for OpenDatabaseError {
    fn from(error: redb::Error) -> Self {
        match error {
            // How redb says that a file has none of its magic bytes, or ends too early for them.
            redb::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => {
                Self::Foreign(error.to_string())
            }
            redb::Error::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Self::Corrupt(error.to_string())
            }
            redb::Error::Io(error) => Self::Io(error),
            redb::Error::Corrupted(reason) => Self::Corrupt(reason),
            redb::Error::TableDoesNotExist(_)
            | redb::Error::TableTypeMismatch { .. }
            | redb::Error::TableIsMultimap(_)
            | redb::Error::TypeDefinitionChanged { .. }
            | redb::Error::UpgradeRequired(_) => Self::Foreign(error.to_string()),
            other => Self::Io(io::Error::other(other)),
        }
    }
}

impl From<DatabaseError> for OpenDatabaseError {
    fn from(error: DatabaseError) -> Self {
        redb::Error::from(error).into()
    }
}

impl From<StorageError> for OpenDatabaseError {
    fn from(error: StorageError) -> Self {
        redb::Error::from(error).into()
    }
}

impl From<TableError> for OpenDatabaseError {
    fn from(error: TableError) -> Self {
        redb::Error::from(error).into()
    }
}

#[cfg(test)]
pub(super) mod for_tests {
    //! The database on a disk that a test controls.

    use super::*;

    pub(in super::super) fn create_on(
        disk: impl redb::StorageBackend,
    ) -> Result<Database, OpenDatabaseError> {
        initialise(builder().create_with_backend(disk)?)
    }

    pub(in super::super) fn open_on(
        disk: impl redb::StorageBackend,
    ) -> Result<(Grants, Recovered), OpenDatabaseError> {
        Grants::open(builder().create_with_backend(disk)?)
    }
}
