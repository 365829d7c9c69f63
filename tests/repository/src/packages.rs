//! Where packages come from and under which licence.

use crate::File;
use serde_json::Value as Json;
use std::collections::BTreeSet;
use toml::{Table, Value};

/// Packages of ours that a lock file takes from a registry or that a manifest asks one for: public
/// registries may carry others' packages under our names.
pub fn ours_from_a_registry(files: &[File]) -> Vec<String> {
    let mut offences = Vec::new();
    for file in files {
        let is_lock = file.name() == "Cargo.lock";
        if !is_lock && file.name() != "Cargo.toml" {
            continue;
        }
        let Ok(table) = file.text.parse::<Table>() else {
            offences.push(format!("{}: not TOML", file.path));
            continue;
        };
        if is_lock {
            let packages = table.get("package").and_then(Value::as_array);
            for package in packages.into_iter().flatten() {
                let name = package
                    .get("name")
                    .and_then(Value::as_str)
                    .unwrap_or_default();
                if is_ours(name) && package.get("source").is_some() {
                    offences.push(format!("{}: {name} has a source", file.path));
                }
            }
        } else {
            for (name, dependency) in dependencies(&table) {
                let package = dependency
                    .get("package")
                    .and_then(Value::as_str)
                    .unwrap_or(&name);
                let local =
                    dependency.get("path").is_some() || dependency.get("workspace").is_some();
                if is_ours(package) && !local {
                    offences.push(format!("{}: {package} has no path", file.path));
                }
            }
        }
    }
    offences
}

/// Packages in cargo's `metadata` that `deny` (the text of `deny.toml`) does not let in.
///
/// # Panics
/// When `deny` is not TOML or has no list of licences.
pub fn not_allowed(deny: &str, metadata: &Json) -> Vec<String> {
    let deny: Table = deny.parse().expect("deny.toml is TOML");
    let strings = |section: &str, key: &str| -> BTreeSet<String> {
        let list = deny.get(section).and_then(|section| section.get(key));
        let list = list.and_then(Value::as_array).into_iter().flatten();
        list.filter_map(|item| item.as_str().or(item.get("crate").and_then(Value::as_str)))
            .map(str::to_owned)
            .collect()
    };
    let licences = strings("licenses", "allow");
    assert!(
        !licences.is_empty(),
        "deny.toml has a list [licenses] allow"
    );
    let banned = strings("bans", "deny");

    let mut offences = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        if banned.contains(name) {
            offences.push(format!("{name}: banned"));
        }
        match package["source"].as_str() {
            None | Some("registry+https://github.com/rust-lang/crates.io-index") => {}
            Some(source) => offences.push(format!("{name}: source {source}")),
        }
        let licence = package["license"].as_str().unwrap_or_default();
        // Old manifests write `MIT/Apache-2.0`.
        let allowed = spdx::Expression::parse_mode(licence, spdx::ParseMode::LAX)
            .is_ok_and(|licence| licence.evaluate(|part| licences.contains(&part.to_string())));
        if !allowed {
            offences.push(format!("{name}: licence '{licence}'"));
        }
    }
    offences
}

/// Every dependency of a manifest, also of `[workspace]` and `[target.…]`.
fn dependencies(manifest: &Table) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for (key, value) in manifest {
        let Some(table) = value.as_table() else {
            continue;
        };
        if key.ends_with("dependencies") {
            found.extend(table.clone());
        } else if matches!(key.as_str(), "workspace" | "target") || key.starts_with("cfg(") {
            found.extend(dependencies(table));
        }
    }
    found
}

fn is_ours(name: &str) -> bool {
    name.starts_with("ticketing") || name.starts_with("saro")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_package_of_ours_from_a_registry_is_found() {
        let lock = "[[package]]\nname = 'ticketing-wire'\nversion = '1.0.0'\n\
            [[package]]\nname = 'ticketing-client'\nversion = '1.0.0'\nsource = 'registry+x'\n\
            [[package]]\nname = 'tokio'\nversion = '1.0.0'\nsource = 'registry+x'\n";
        let manifest = "[workspace.dependencies]\nticketing-wire = { path = 'core/wire' }\n\
            wire = { package = 'ticketing-wire', version = '1' }\n\
            [target.'cfg(unix)'.dev-dependencies]\nticketing = '1'\ntokio = '1'\n";
        let files = [
            File::new("Cargo.lock", lock),
            File::new("x/Cargo.toml", manifest),
        ];
        let mut found = ours_from_a_registry(&files);
        found.sort();
        let expected = [
            "Cargo.lock: ticketing-client has a source",
            "x/Cargo.toml: ticketing has no path",
            "x/Cargo.toml: ticketing-wire has no path",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_package_with_another_licence_or_source_is_found() {
        let deny = "[licenses]\nallow = ['MIT', 'Apache-2.0 WITH LLVM-exception']\n\
            [bans]\ndeny = [{ crate = 'bad' }]\n";
        let crates_io = "registry+https://github.com/rust-lang/crates.io-index";
        let metadata = json!({ "packages": [
            { "name": "a", "license": "MIT OR GPL-3.0", "source": crates_io },
            { "name": "b", "license": "MIT/Apache-2.0", "source": null },
            { "name": "c", "license": "Apache-2.0 WITH LLVM-exception", "source": crates_io },
            { "name": "d", "license": "MIT AND ISC", "source": crates_io },
            { "name": "e", "license": "MIT", "source": "git+https://x.y/z" },
            { "name": "f", "license": null, "source": null },
            { "name": "bad", "license": "MIT", "source": crates_io },
        ]});
        let expected = [
            "d: licence 'MIT AND ISC'",
            "e: source git+https://x.y/z",
            "f: licence ''",
            "bad: banned",
        ];
        assert_eq!(not_allowed(deny, &metadata), expected);
    }
}
