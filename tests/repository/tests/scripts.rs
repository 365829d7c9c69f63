//! `scripts/test` with made-up tools: what it counts, and what it says when something is missing.
#![allow(
    clippy::unwrap_used,
    reason = "a test says by its line where it failed"
)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;
use ticketing_repository::root;

/// What the scripts may use besides what each test makes up.
const TOOLS: [&str; 14] = [
    "awk", "bash", "cat", "cut", "dirname", "env", "grep", "head", "id", "mktemp", "rm", "sed",
    "sort", "tee",
];

/// A folder that is the whole PATH of a script: [`TOOLS`], a compiler, PostgreSQL, OpenSSL, and `tools`
/// as name and shell text.
fn tools(tools: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for tool in TOOLS {
        symlink(found(tool), folder.path().join(tool)).unwrap();
    }
    let always = [
        ("cc", "exit 0"),
        ("make", "exit 0"),
        ("initdb", "exit 0"),
        ("openssl", "exit 0"),
        ("shellcheck", "exit 0"),
    ];
    for (name, text) in always.iter().chain(tools) {
        let file = folder.path().join(name);
        fs::write(&file, format!("#!/usr/bin/env bash\n{text}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    folder
}

fn found(tool: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    let mut files = std::env::split_paths(&path).map(|folder| folder.join(tool));
    files
        .find(|file| file.is_file())
        .unwrap_or_else(|| panic!("{tool} is not in PATH"))
}

/// Runs a script from another folder, without input: did it succeed, and its lines.
fn run(script: &str, args: &[&str], path: &Path) -> (bool, Vec<String>) {
    let mut command = Command::new(path.join("bash"));
    command
        .arg(root().join(script))
        .args(args)
        .env("PATH", path);
    command.current_dir("/").stdin(Stdio::null());
    let output = command.output().unwrap();
    let lines = [output.stdout, output.stderr].concat();
    let lines = String::from_utf8(lines)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect();
    (output.status.success(), lines)
}

/// A cargo whose `cargo test` runs `text`; all else succeeds, and so does a build of the tests.
fn cargo(text: &str) -> String {
    format!("case \"$*\" in *--no-run*) exit 0 ;; test\\ *) {text} ;; esac")
}

const RUSTC: (&str, &str) = ("rustc", "echo 'rustc 1.95.0 (x)'");

/// The last line of `scripts/test rust`, and whether it succeeded, with such a cargo.
fn verdict(cargo: &str) -> (bool, String) {
    let tools = tools(&[RUSTC, ("cargo", cargo)]);
    let (success, lines) = run("scripts/test", &["rust"], tools.path());
    (success, lines.last().unwrap().clone())
}

/// Formatting, clippy, the build, the packages and the documentation.
const CHECKS: u32 = 5;

#[test]
fn the_last_line_sums_up_what_ran() {
    let text = "echo 'test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured'
        echo 'test tests::x ... ok'
        echo 'test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured'";
    assert_eq!(
        verdict(&cargo(text)),
        (true, format!("{} passed, 0 failed", 7 + CHECKS))
    );
}

#[test]
fn a_test_that_fails_is_counted_and_fails_the_run() {
    let text = "echo 'test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured'
        echo 'test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured'
        exit 101";
    assert_eq!(
        verdict(&cargo(text)),
        (false, format!("{} passed, 2 failed", 4 + CHECKS))
    );
}

#[test]
fn a_run_that_ends_without_a_failed_test_is_a_failure_all_the_same() {
    let text = "echo 'test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured'; exit 101";
    assert_eq!(
        verdict(&cargo(text)),
        (false, format!("{} passed, 1 failed", 3 + CHECKS))
    );
}

#[test]
fn a_run_without_a_test_is_a_failure() {
    assert_eq!(
        verdict(&cargo("exit 0")),
        (false, format!("{CHECKS} passed, 1 failed"))
    );
}

#[test]
fn a_check_that_fails_is_counted_and_the_rest_goes_on() {
    let text = "[ \"$1\" = clippy ] && [ \"$2\" != --version ] && exit 1
        [ \"$1\" = test ] && echo 'test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured'
        exit 0";
    assert_eq!(
        verdict(text),
        (false, format!("{} passed, 1 failed", 3 + CHECKS - 1))
    );
}

#[test]
fn a_missing_or_old_toolchain_is_named_and_fails() {
    for script in ["scripts/test", "scripts/demo", ".ci/run"] {
        let nothing = tools(&[]);
        let (success, lines) = run(script, &[], nothing.path());
        assert!(!success && lines.len() == 1, "{script}: {lines:?}");
        assert!(
            lines[0].contains("'cargo' is missing") && lines[0].contains("rustup"),
            "{lines:?}"
        );

        let old = tools(&[("cargo", "exit 0"), ("rustc", "echo 'rustc 1.63.0 (x)'")]);
        let (success, lines) = run(script, &[], old.path());
        assert!(!success && lines.len() == 1, "{script}: {lines:?}");
        assert!(
            lines[0].contains("1.63.0 is too old: install Rust 1.95"),
            "{lines:?}"
        );
    }
    let tools = tools(&[RUSTC, ("cargo", "[ \"$1\" != clippy ]")]);
    let (success, lines) = run("scripts/test", &[], tools.path());
    assert!(
        !success && lines[0].contains("rustup component add clippy"),
        "{lines:?}"
    );
}

#[test]
fn a_part_that_does_not_exist_is_refused_with_those_that_do() {
    let tools = tools(&[]);
    let (success, lines) = run("scripts/test", &["rsut"], tools.path());
    assert!(!success && lines[0].contains("'rsut'"), "{lines:?}");
    assert!(
        lines[0].contains("rust, python, conformance, scripts"),
        "{lines:?}"
    );
}

/// Bash leaves a function at an error of its own, such as a number that is none, and goes on.
#[test]
fn a_part_that_ends_early_is_a_failure() {
    let text = fs::read_to_string(root().join("scripts/test")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let scripts = folder.path().join("scripts");
    fs::create_dir(&scripts).unwrap();
    let early = text.replace("part_rust() {", "part_rust() {\n  passed=$((passed + 1 1))");
    assert!(early != text);
    fs::write(scripts.join("test"), early).unwrap();
    fs::copy(root().join("scripts/lib.sh"), scripts.join("lib.sh")).unwrap();
    fs::copy(root().join("Cargo.toml"), folder.path().join("Cargo.toml")).unwrap();
    let tools = tools(&[RUSTC, ("cargo", "exit 0")]);
    let mut command = Command::new(tools.path().join("bash"));
    command.arg(scripts.join("test")).arg("rust");
    let output = command.env("PATH", tools.path()).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(!output.status.success(), "{said}");
    assert_eq!(said.lines().last(), Some("0 passed, 1 failed"), "{said}");
}

#[test]
fn the_demo_gets_the_options() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("ci")).unwrap();
    let program = folder.path().join("ci/ticketing");
    fs::write(&program, "#!/usr/bin/env bash\necho \"ran $*\"\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let tools = tools(&[RUSTC, ("cargo", "exit 0")]);
    let mut command = Command::new(tools.path().join("bash"));
    command
        .arg(root().join("scripts/demo"))
        .args(["--seed", "7"])
        .env("PATH", tools.path());
    command.env("CARGO_TARGET_DIR", folder.path());
    let output = command.output().unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "ran demo --seed 7\n"
    );
}

#[test]
fn the_tests_are_told_that_they_may_be_long() {
    let cargo = cargo(
        "echo \"long: $TICKETING_LONG\"; echo 'test result: ok. 1 passed; 0 failed; 0 ignored'",
    );
    let tools = tools(&[RUSTC, ("cargo", &cargo)]);
    let (success, lines) = run("scripts/test", &["--long", "rust"], tools.path());
    assert!(success, "{lines:?}");
    assert!(lines.iter().any(|line| line == "long: 1"), "{lines:?}");
}
