//! The rules of this repository that no compiler checks. Each rule is a function from the files to
//! the list of its offences, so that its own test can show it a bad file; `tests/rules.rs` applies
//! all of them to the real files.

#![forbid(unsafe_code)]

pub mod clauses;
pub mod docs;
pub mod packages;
pub mod source;

use std::fs;
use std::path::{Path, PathBuf};

/// A text file of the repository.
#[derive(Debug, Clone)]
pub struct File {
    /// Path from the root, with `/` between folders.
    pub path: String,
    /// The whole text.
    pub text: String,
}

impl File {
    /// A file as a test makes one up.
    pub fn new(path: &str, text: &str) -> Self {
        File {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    /// The name without its folders.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

/// The repository's top folder.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors()
        .nth(2)
        .expect("this crate is two folders below the root")
        .to_owned()
}

/// Every text file below `folder`, without what builds and runs leave behind, sorted by path.
///
/// # Panics
/// When a folder or file can't be read.
pub fn files(folder: &Path) -> Vec<File> {
    const LEFT_BEHIND: [&str; 5] = ["target", "dist", "ticketing-data", "__pycache__", ".git"];
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).expect("a folder of the repository is readable") {
            let entry = entry.expect("a folder entry is readable");
            let kind = entry.file_type().expect("an entry has a type");
            if LEFT_BEHIND.contains(&entry.file_name().to_string_lossy().as_ref()) {
                continue;
            }
            if kind.is_dir() {
                open.push(entry.path());
            } else if kind.is_file()
                && let Ok(text) = fs::read_to_string(entry.path())
            {
                let path = entry.path();
                let path = path
                    .strip_prefix(folder)
                    .expect("it was found below the folder");
                let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
                found.push(File {
                    path: parts.join("/"),
                    text,
                });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}
