//! The durable store of a single broker: a folder with one [redb] database and a lock.
//!
//! A commit is one write transaction with one sync, and blocks for as long. The pages that it writes
//! were free in the state before, and the state becomes current by a checksummed header in the same
//! sync: after a crash either the whole commit is there or the one before it.
//!
//! # Why redb
//!
//! Measured on two cores, ext4, a sync of 0.09 ms: acquire+release pairs a second in a closed loop
//! of as many clients (half of them acquire while the others release), 10,000 other grants held,
//! the store alone, without sockets. Each of the three makes one sync a commit.
//!
//! | clients | redb 4.6 | fjall 3.1 | preallocated log |
//! | --- | --- | --- | --- |
//! | 64 | 170,000 (189 µs a commit, 31 KiB) | 187,000 (171 µs, 9 KiB) | 324,000 (99 µs, 5 KiB) |
//! | 512 | 652,000 (392 µs, 36 KiB) | 511,000 (501 µs, 37 KiB) | 2,070,000 (124 µs, 16 KiB) |
//!
//! All are several times what the sockets of that machine carry, and the slower the disk, the less
//! they differ: with a sync of 1.7 ms, 64 clients could make 18,000 pairs with redb and 18,600 with
//! the log. That is not worth a recovery and a compaction of our own. redb is pure Rust, one file,
//! without threads or dependencies, checksums every page, and refuses all work after a failed
//! write. What it costs is a page a grant when grants end in another order than they began: with a
//! million held, 256 random ends write a megabyte.
//!
//! A million grants with 20-byte keys take 68 MiB of disk and 25 MiB of memory here; opening them,
//! with every page checked, takes 0.8 s.

mod database;
#[cfg(test)]
mod tests;

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};

use camino::{Utf8Path, Utf8PathBuf};

use self::database::{Grants, OpenDatabaseError};
use super::{Batch, BoxFuture, CommitError, Recovered, Store};

/// The lock that makes a folder one broker's (S8); it holds the owner's process id.
const LOCK_FILE: &str = "LOCK";
/// The database.
const DATABASE_FILE: &str = "grants.redb";
/// A database that is being made; it gets its name once it is whole.
const NEW_DATABASE_FILE: &str = "grants.redb.new";

/// Keeps grants on this machine's disk: each commit is one sync.
pub struct EmbeddedStore {
    grants: Grants,
    /// For errors.
    file: Utf8PathBuf,
    /// Released last: until the database is closed the folder is not free.
    _lock: File,
}

/// Why a data directory can't be used (S8).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has it.
    #[error(
        "the data directory {dir} is in use by another broker{owner}; stop that one, or give this \
         one another data_dir"
    )]
    InUse {
        /// The data directory.
        dir: Utf8PathBuf,
        /// ` (process 123)`, as far as it is known.
        owner: String,
    },
    /// The system refused something.
    #[error("cannot use the data directory {dir}: {what}: {source}{}", cure(.source))]
    Io {
        /// The data directory.
        dir: Utf8PathBuf,
        /// What was tried.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The file is not a broker's.
    #[error(
        "{file} is not a Ticketing database; move it away, or choose another data_dir ({reason})"
    )]
    Foreign {
        /// The file.
        file: Utf8PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A later version wrote it.
    #[error(
        "{file} has format {found}, this version reads format {supported}; run the version that \
         wrote it, or a later one"
    )]
    Newer {
        /// The file.
        file: Utf8PathBuf,
        /// The format it has.
        found: u64,
        /// The format that this version reads.
        supported: u64,
    },
    /// It is damaged.
    #[error(
        "{file} is damaged ({reason}); restore the data directory from a backup, or move it away \
         and wait out the longest lease before starting anew"
    )]
    Corrupt {
        /// The file.
        file: Utf8PathBuf,
        /// What was found.
        reason: String,
    },
}

/// What to do about the system's refusal.
fn cure(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::IsADirectory => {
            "; a folder is in the way, move it away or choose another data_dir"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; let the broker's user write there, or choose another data_dir"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; make room there, or choose another data_dir"
        }
        _ => "",
    }
}

impl EmbeddedStore {
    /// Opens the data directory `dir`, or makes it, and reads what it holds. Blocks.
    ///
    /// # Errors
    /// [`OpenError`]: in use, unreadable, foreign, newer or damaged.
    pub fn open(dir: &Utf8Path) -> Result<(Self, Recovered), OpenError> {
        let failed = |what| {
            move |source| OpenError::Io {
                dir: dir.to_owned(),
                what,
                source,
            }
        };
        make_dir(dir).map_err(failed("making it"))?;
        let lock = lock(dir)?;

        let file = dir.join(DATABASE_FILE);
        let of_database = |error| match error {
            OpenDatabaseError::Io(source) => failed("opening the database")(source),
            OpenDatabaseError::Foreign(reason) => OpenError::Foreign {
                file: file.clone(),
                reason,
            },
            OpenDatabaseError::Newer { found, supported } => OpenError::Newer {
                file: file.clone(),
                found,
                supported,
            },
            OpenDatabaseError::Corrupt(reason) => OpenError::Corrupt {
                file: file.clone(),
                reason,
            },
        };
        if !is_there(&file).map_err(failed("looking for the database"))? {
            // A crash must not leave half a database that the next start would refuse.
            let new = dir.join(NEW_DATABASE_FILE);
            remove_if_there(&new).map_err(failed("removing an unfinished database"))?;
            database::create(&new).map_err(of_database)?;
            std::fs::rename(&new, &file)
                .and_then(|()| sync_dir(dir))
                .map_err(failed("making the database"))?;
        }
        let database = database::open(&file).map_err(of_database)?;
        let (grants, recovered) = Grants::open(database).map_err(of_database)?;
        let store = EmbeddedStore {
            grants,
            file,
            _lock: lock,
        };
        Ok((store, recovered))
    }
}

impl Store for EmbeddedStore {
    fn commit(&mut self, mut batch: Batch) -> BoxFuture<'_, Result<Batch, CommitError>> {
        Box::pin(async move {
            // S7: after a failure the database writes nothing more, not even the mark of a clean end.
            self.grants.apply(&batch).map_err(|error| {
                let text = format!("{}: {error}", self.file);
                CommitError::Failed(io::Error::new(error.kind(), text))
            })?;
            batch.clear();
            Ok(batch)
        })
    }

    fn is_durable(&self) -> bool {
        true
    }
}

fn make_dir(dir: &Utf8Path) -> io::Result<()> {
    let is_missing = |dir: &&Utf8Path| !dir.as_str().is_empty() && !dir.is_dir();
    let missing = dir.ancestors().take_while(is_missing).count();
    std::fs::create_dir_all(dir).map_err(|error| match error.kind() {
        kind @ (io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory) => {
            io::Error::new(kind, "a file is in the way, choose another data_dir")
        }
        _ => error,
    })?;
    dir.ancestors()
        .skip(1)
        .take(missing)
        .try_for_each(|parent| {
            // The parent of a relative path's first part is the empty path.
            sync_dir(if parent.as_str().is_empty() {
                Utf8Path::new(".")
            } else {
                parent
            })
        })
}

/// Makes a new or renamed entry of `dir` survive a power cut.
fn sync_dir(dir: &Utf8Path) -> io::Result<()> {
    if cfg!(unix) {
        File::open(dir)?.sync_all()
    } else {
        Ok(())
    }
}

/// Whether there is a file of this name. A link to nothing is no reason to begin anew: what it
/// points to may not be mounted yet.
fn is_there(file: &Utf8Path) -> io::Result<bool> {
    match file.symlink_metadata() {
        Ok(found) if found.is_symlink() && !file.try_exists()? => Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("{file} is a link to nothing: mount what it points to, or remove the link"),
        )),
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn remove_if_there(file: &Utf8Path) -> io::Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Takes the folder for this process, as long as the returned file is open.
fn lock(dir: &Utf8Path) -> Result<File, OpenError> {
    let failed = |source| OpenError::Io {
        dir: dir.to_owned(),
        what: "locking it",
        source,
    };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(dir.join(LOCK_FILE))
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::Error(error)) => return Err(failed(error)),
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            let _ = file.read_to_string(&mut pid);
            let owner = match pid.trim().parse::<u32>() {
                Ok(pid) => format!(" (process {pid})"),
                Err(_) => String::new(),
            };
            return Err(OpenError::InUse {
                dir: dir.to_owned(),
                owner,
            });
        }
    }
    file.set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(failed)?;
    Ok(file)
}
