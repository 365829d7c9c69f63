//! The licences of what is linked into the library, as each package must carry them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// UniFFI's packages come without their licence's text.
const MPL: &str = include_str!("MPL-2.0.txt");

const LIBRARY: &str = "ticketing-ffi";

/// One text for a package: a list of what is linked, then each licence text once.
pub(crate) fn of_the_library() -> Result<String> {
    let tree = ["tree", "--edges=normal", "--prefix=none", "--format={p}"];
    let tree = cargo(&[&tree[..], &["--package", LIBRARY]].concat())?;
    // `name v1.2.3`, and where that is for a package of ours.
    let linked: BTreeSet<(&str, &str)> = tree
        .lines()
        .filter_map(|line| line.split_once(" v"))
        .map(|(name, rest)| (name, rest.split(' ').next().unwrap_or(rest)))
        .collect();
    let metadata = cargo(&["metadata", "--format-version=1"])?;
    let metadata: Value = serde_json::from_str(&metadata).context("reading cargo metadata")?;
    document(&packages(&metadata, &linked))
}

fn cargo(arguments: &[&str]) -> Result<String> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    let output = command.args(arguments).arg("--locked").output();
    let output = output.context("running cargo")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "cargo {} failed: {said}",
        arguments[0]
    );
    Ok(String::from_utf8(output.stdout)?)
}

struct Package {
    name: String,
    version: String,
    licence: String,
    folder: String,
}

/// What is linked of others, in order of name.
fn packages(metadata: &Value, linked: &BTreeSet<(&str, &str)>) -> Vec<Package> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = metadata["packages"].as_array().into_iter().flatten();
    let others = all
        .filter(|package| !package["source"].is_null())
        .map(|package| Package {
            name: text(&package["name"]),
            version: text(&package["version"]),
            licence: text(&package["license"]),
            folder: text(&package["manifest_path"]).replace("Cargo.toml", ""),
        });
    let mut others: Vec<_> = others
        .filter(|package| linked.contains(&(package.name.as_str(), package.version.as_str())))
        .collect();
    others.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    others
}

fn document(packages: &[Package]) -> Result<String> {
    let mut out = String::from("Linked into this package's library, and under which licence:\n\n");
    let mut texts: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for package in packages {
        let Package {
            name,
            version,
            licence,
            ..
        } = package;
        writeln!(out, "  {name} {version}: {licence}")?;
        let mut own = licence_files(Path::new(&package.folder))?;
        if own.is_empty() && licence.contains("MPL-2.0") {
            own.push(MPL.to_owned());
        }
        // One that offers a choice and has no text of its own is taken under the Apache licence,
        // whose text others bring along.
        if own.is_empty() && !licence.contains("Apache-2.0") {
            bail!("{name} {version} has no licence text: add one for {licence:?}");
        }
        for text in own {
            texts.entry(text).or_default().push(name);
        }
    }
    for (text, names) in texts {
        let names = names.join(", ");
        write!(out, "\n{:=<80}\n{names}\n\n{}\n", "", text.trim_end())?;
    }
    Ok(out)
}

fn licence_files(folder: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_ascii_uppercase();
        let is_licence = ["LICENSE", "LICENCE", "COPYING", "NOTICE"];
        if is_licence.iter().any(|begin| name.starts_with(begin)) && entry.file_type()?.is_file() {
            let bytes = fs::read(entry.path())?;
            found.push(String::from_utf8_lossy(&bytes).replace("\r\n", "\n"));
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_names_what_is_linked_and_has_each_text() {
        let document = of_the_library().unwrap();
        for linked in [
            "\n  tokio 1",
            "\n  rustls 0",
            "\n  uniffi_core 0.32",
            "\n  ring 0",
        ] {
            assert!(document.contains(linked), "{linked}");
        }
        // Neither a test's nor the generator's own.
        for absent in ["proptest", "shuttle", "uniffi_bindgen"] {
            assert!(!document.contains(&format!("\n  {absent} ")), "{absent}");
        }
        for text in [
            "Mozilla Public License Version 2.0",
            "Apache License",
            "Permission is hereby",
        ] {
            assert!(document.contains(text), "{text}");
        }
    }
}
