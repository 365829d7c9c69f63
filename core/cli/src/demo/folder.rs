//! Where the demo's files are, and who removes them.

use std::io::{ErrorKind, copy, sink, stdin};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};

use crate::args::CleanerArgs;
use crate::failure::Failure;

/// A folder for the demo's files: removed when this is dropped, or kept.
pub(crate) struct Folder {
    pub(crate) path: Utf8PathBuf,
    /// Dropped in this order: the cleaner finds nothing left to do.
    _removed: Option<tempfile::TempDir>,
    _cleaner: Option<Cleaner>,
}

impl Folder {
    /// Makes the folder `keep`, or a temporary one.
    pub(crate) fn new(keep: Option<&Utf8Path>) -> Result<Self, Failure> {
        if let Some(path) = keep {
            std::fs::create_dir(path)
                .map_err(|error| Failure::run(&format!("--keep {path}: cannot make it"), error))?;
            return Ok(Folder {
                path: path.to_owned(),
                _removed: None,
                _cleaner: None,
            });
        }
        let fail = |error: &dyn std::fmt::Display| {
            Failure::run(
                "cannot make a folder for temporary files, set TMPDIR to another",
                error,
            )
        };
        let folder = tempfile::Builder::new()
            .prefix("ticketing-demo-")
            .tempdir()
            .map_err(|error| fail(&error))?;
        let path = Utf8PathBuf::try_from(folder.path().to_owned()).map_err(|error| fail(&error))?;
        let cleaner = Cleaner::start(&path)?;
        Ok(Folder {
            path,
            _removed: Some(folder),
            _cleaner: Some(cleaner),
        })
    }
}

/// A process that removes the folder when this one ends, also killed.
struct Cleaner {
    child: Child,
    /// Closed by this process's end.
    alive: Option<ChildStdin>,
}

impl Cleaner {
    fn start(folder: &Utf8Path) -> Result<Self, Failure> {
        let fail = |error| Failure::run("cannot start the demo's cleaner", error);
        let mut child = Command::new(std::env::current_exe().map_err(fail)?)
            .arg("demo-cleaner")
            .arg(format!("--folder={folder}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Whoever interrupts the demo at a terminal does not mean this.
            .process_group(0)
            .spawn()
            .map_err(fail)?;
        let alive = child.stdin.take();
        Ok(Cleaner { child, alive })
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        drop(self.alive.take());
        let _ = self.child.wait();
    }
}

/// Waits for the end of the demo, then removes its folder.
pub(crate) fn clean(args: &CleanerArgs) -> Result<(), Failure> {
    const TRIES: u32 = 100;
    let _ = copy(&mut stdin().lock(), &mut sink());
    for _ in 0..TRIES {
        match std::fs::remove_dir_all(&args.folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            // The demo's processes, killed with it, may have written once more.
            _ => sleep(Duration::from_millis(20)),
        }
    }
    Err(Failure::Run(format!("cannot remove {}", args.folder)))
}
