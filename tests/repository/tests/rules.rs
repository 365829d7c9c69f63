//! The rules of the repository, applied to its files.

use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;
use ticketing_repository::{File, clauses, docs, files, packages, root, source};

static FILES: LazyLock<Vec<File>> = LazyLock::new(|| files(&root()));

fn text(path: &str) -> &'static str {
    let file = FILES.iter().find(|file| file.path == path);
    &file.unwrap_or_else(|| panic!("{path} is missing")).text
}

/// Fails with one line for each offence and with `fix`, what to do about them.
#[track_caller]
fn assert_none(offences: Vec<String>, fix: &str) {
    assert!(offences.is_empty(), "{fix}:\n  {}", offences.join("\n  "));
}

#[test]
fn no_package_of_ours_comes_from_a_registry() {
    assert!(
        text("Cargo.lock").contains("name = \"ticketing-wire\""),
        "the rule sees the lock file"
    );
    assert_none(
        packages::ours_from_a_registry(&FILES),
        "give these a path in the workspace",
    );
}

#[test]
fn licences_and_sources_are_those_of_deny_toml() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([
        "metadata",
        "--format-version=1",
        "--locked",
        "--all-features",
    ]);
    let output = cargo.current_dir(root()).output().expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata = serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON");
    let offences = packages::not_allowed(text("deny.toml"), &metadata);
    assert_none(
        offences,
        "do without these packages, or let them in by deny.toml",
    );
}

#[test]
fn modules_are_short() {
    assert_none(source::long_modules(&FILES), "split these modules");
}

#[test]
fn every_crate_forbids_unsafe_code() {
    assert_none(
        source::unsafe_allowed(&FILES),
        "begin these with #![forbid(unsafe_code)]",
    );
}

#[test]
fn every_crate_takes_its_metadata_from_the_workspace() {
    assert_none(source::manifests(&FILES), "take these from the workspace");
}

#[test]
fn no_file_names_a_path_of_one_machine() {
    assert_none(
        source::personal_paths(&FILES),
        "use paths that exist everywhere",
    );
}

#[test]
fn every_clause_is_named_by_a_test() {
    let mut untested = clauses::untested(text("docs/semantics.md"), &FILES);
    // The cluster is not built yet.
    untested.retain(|clause| clause != "s11");
    assert_none(
        untested,
        "name a test after each of these clauses of docs/semantics.md",
    );
}

#[test]
fn every_clause_that_is_named_exists() {
    let offences = clauses::unknown(text("docs/semantics.md"), &FILES);
    assert_none(offences, "docs/semantics.md does not define these clauses");
}

#[test]
fn every_link_in_the_pages_leads_somewhere() {
    assert_none(docs::dead_links(&FILES), "mend these links");
}

#[test]
fn the_readme_says_what_to_do_about_every_outcome() {
    let kinds = docs::error_kinds(text("docs/semantics.md"));
    assert!(
        kinds.contains(&"Indeterminate"),
        "the rule sees the list of errors"
    );
    let outcomes = ["Released", "NotCurrent", "Stale"];
    let missing = docs::missing(text("README.md"), kinds.into_iter().chain(outcomes));
    let missing = missing.into_iter().map(str::to_owned).collect();
    assert_none(missing, "add these to the table of outcomes in README.md");
}

#[test]
fn every_page_is_listed_in_the_index() {
    let index = text("docs/README.md");
    let pages = FILES
        .iter()
        .filter(|file| Path::new(&file.path).starts_with("docs"));
    let missing = pages
        .filter(|page| page.path != "docs/README.md")
        .filter(|page| !index.contains(&format!("]({})", page.name())))
        .map(|page| page.path.clone())
        .collect();
    assert_none(missing, "list these pages in docs/README.md");
}
