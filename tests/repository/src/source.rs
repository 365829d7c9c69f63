//! The source files: size, `unsafe`, manifests.

use crate::File;
use toml::{Table, Value};

/// A module is split once it has more lines than this, its tests and empty lines included.
pub const MAX_LINES: usize = 500;

/// Rust files above [`MAX_LINES`], as `path: lines`.
pub fn long_modules(files: &[File]) -> Vec<String> {
    let rust = files.iter().filter(|file| file.path.ends_with(".rs"));
    rust.map(|file| (file, file.text.lines().count()))
        .filter(|(_, lines)| *lines > MAX_LINES)
        .map(|(file, lines)| format!("{}: {lines} lines, at most {MAX_LINES}", file.path))
        .collect()
}

/// Crates whose root does not forbid `unsafe`. `core/ffi` alone may need it, for the C ABI.
pub fn unsafe_allowed(files: &[File]) -> Vec<String> {
    let mut offences = Vec::new();
    for folder in crates(files).filter(|folder| folder != "core/ffi") {
        let roots = ["src/lib.rs", "src/main.rs"].map(|root| format!("{folder}/{root}"));
        let roots: Vec<_> = files
            .iter()
            .filter(|file| roots.contains(&file.path))
            .collect();
        if roots.is_empty() {
            offences.push(format!("{folder}: neither src/lib.rs nor src/main.rs"));
        }
        for root in roots {
            if !root
                .text
                .lines()
                .any(|line| line == "#![forbid(unsafe_code)]")
            {
                offences.push(format!("{}: no #![forbid(unsafe_code)]", root.path));
            }
        }
    }
    offences
}

/// Crates that do not take licence, version, lints and "never published" from the workspace.
pub fn manifests(files: &[File]) -> Vec<String> {
    let mut offences = Vec::new();
    for folder in crates(files) {
        let path = format!("{folder}/Cargo.toml");
        let text = &files
            .iter()
            .find(|file| file.path == path)
            .expect("crates() found it")
            .text;
        let Ok(manifest) = text.parse::<Table>() else {
            offences.push(format!("{path}: not TOML"));
            continue;
        };
        let inherits = |value: Option<&Value>| {
            value
                .and_then(|value| value.get("workspace"))
                .and_then(Value::as_bool)
                == Some(true)
        };
        let package = manifest.get("package");
        for key in [
            "version",
            "edition",
            "rust-version",
            "license",
            "authors",
            "publish",
        ] {
            if !inherits(package.and_then(|package| package.get(key))) {
                offences.push(format!("{path}: no {key}.workspace = true"));
            }
        }
        if !inherits(manifest.get("lints")) {
            offences.push(format!("{path}: no [lints] workspace = true"));
        }
    }
    offences
}

/// Paths that exist on one person's machine only, as `file: path`.
pub fn personal_paths(files: &[File]) -> Vec<String> {
    const PERSONAL: [&str; 3] = ["root", "home", "Users"];
    let mut offences = Vec::new();
    for file in files {
        for folder in PERSONAL {
            let path = format!("/{folder}/");
            let found = file.text.match_indices(&path).any(|(at, _)| {
                // `x/home/y` is part of a longer path, a URL's say.
                !file.text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '.' || c == '}')
            });
            if found {
                offences.push(format!("{}: {path}", file.path));
            }
        }
    }
    offences
}

/// The folders of the workspace's crates.
fn crates(files: &[File]) -> impl Iterator<Item = String> {
    files
        .iter()
        .filter_map(|file| file.path.strip_suffix("/Cargo.toml"))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_module_is_found() {
        let files = [
            File::new("core/a.rs", &"x\n\n".repeat(MAX_LINES / 2)),
            File::new("core/b.rs", &"\n".repeat(MAX_LINES + 1)),
            File::new("c.md", &"x\n".repeat(MAX_LINES + 1)),
        ];
        assert_eq!(long_modules(&files), ["core/b.rs: 501 lines, at most 500"]);
    }

    #[test]
    fn a_crate_that_may_use_unsafe_is_found() {
        let files = [
            File::new("core/a/Cargo.toml", ""),
            File::new("core/a/src/lib.rs", "//! A.\n#![forbid(unsafe_code)]\n"),
            File::new("core/b/Cargo.toml", ""),
            File::new("core/b/src/main.rs", "// #![forbid(unsafe_code)]\n"),
            File::new("core/ffi/Cargo.toml", ""),
            File::new("tests/c/Cargo.toml", ""),
        ];
        let expected = [
            "core/b/src/main.rs: no #![forbid(unsafe_code)]",
            "tests/c: neither src/lib.rs nor src/main.rs",
        ];
        assert_eq!(unsafe_allowed(&files), expected);
    }

    #[test]
    fn a_manifest_with_its_own_licence_is_found() {
        let text = "[package]\nversion.workspace = true\nedition.workspace = true\n\
            rust-version.workspace = true\nlicense = 'GPL-3.0'\nauthors.workspace = true\n";
        let expected = [
            "a/Cargo.toml: no license.workspace = true",
            "a/Cargo.toml: no publish.workspace = true",
            "a/Cargo.toml: no [lints] workspace = true",
        ];
        assert_eq!(manifests(&[File::new("a/Cargo.toml", text)]), expected);
    }

    #[test]
    fn a_personal_path_is_found() {
        let files = [
            File::new("a", &["cd /", "root/x"].concat()),
            File::new("b", &["https://x.y/", "home/z"].concat()),
        ];
        assert_eq!(personal_paths(&files), [["a: /", "root/"].concat()]);
    }
}
