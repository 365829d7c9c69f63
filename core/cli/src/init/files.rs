//! Files that are written all or none, and never over others.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};

use camino::{Utf8Path, Utf8PathBuf};

use crate::failure::Failure;

/// A file to write.
pub(super) struct File {
    name: &'static str,
    text: String,
    mode: u32,
}

impl File {
    /// For its owner alone.
    pub(super) fn secret(name: &'static str, text: String) -> Self {
        let mode = 0o600;
        File { name, text, mode }
    }

    /// Readable by all.
    pub(super) fn public(name: &'static str, text: String) -> Self {
        let mode = 0o644;
        File { name, text, mode }
    }

    fn write(&self, path: &Utf8Path) -> io::Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(self.mode)
            .open(path)?;
        file.write_all(self.text.as_bytes())?;
        file.sync_all()
    }
}

/// What was made so far; removed again unless all of it is.
#[derive(Default)]
struct Made {
    files: Vec<Utf8PathBuf>,
    dir: Option<Utf8PathBuf>,
}

impl Drop for Made {
    fn drop(&mut self) {
        // What cannot be removed stays; the error that led here is told all the same.
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
        if let Some(dir) = &self.dir {
            let _ = std::fs::remove_dir(dir);
        }
    }
}

/// Writes `files` into `dir`, which is made, for its owner alone, if it is not there.
///
/// # Errors
/// One of them exists already, or cannot be written: then nothing has changed.
pub(super) fn write_all(dir: &Utf8Path, files: &[File]) -> Result<(), Failure> {
    for file in files {
        let path = dir.join(file.name);
        // A dangling link counts too.
        if path.symlink_metadata().is_ok() {
            return Err(Failure::Usage(format!(
                "{path} is there already, and nothing is overwritten; choose another folder"
            )));
        }
    }
    let mut made = Made::default();
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => made.dir = Some(dir.to_owned()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists && dir.is_dir() => {}
        Err(error) => {
            return Err(Failure::run(
                &format!("cannot make the folder {dir}"),
                error,
            ));
        }
    }
    for file in files {
        let path = dir.join(file.name);
        let written = file.write(&path);
        // Another's, made since the look above, is not ours to remove.
        if !matches!(&written, Err(error) if error.kind() == ErrorKind::AlreadyExists) {
            made.files.push(path.clone());
        }
        written.map_err(|error| Failure::run(&format!("cannot write {path}"), error))?;
    }
    std::mem::take(&mut made.files);
    made.dir = None;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_half_way_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(folder.path()).unwrap();
        let files = [
            File::secret("one", "1".to_owned()),
            File::public("no-such-folder/two", "2".to_owned()),
        ];
        let dir = folder.join("new");
        let failure = write_all(&dir, &files).unwrap_err().to_string();
        assert!(failure.contains("no-such-folder/two"), "{failure}");
        assert!(!dir.exists());

        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("theirs"), "").unwrap();
        write_all(&dir, &files).unwrap_err();
        let left: Vec<_> = std::fs::read_dir(&dir).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }
}
