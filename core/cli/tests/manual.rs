//! Completions and manual pages know every command.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use support::{Running, ticketing};

fn output(args: &[&str]) -> String {
    let (status, output, errors) = Running::start(ticketing(args)).end();
    assert!(status.success(), "{args:?}: {errors:?}");
    output.join("\n")
}

/// The commands that the help lists.
fn commands() -> Vec<String> {
    let help = output(&["--help"]);
    let list = help.split("Commands:\n").nth(1).unwrap();
    let list = list.lines().take_while(|line| !line.is_empty());
    let names = list.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    let names: Vec<_> = names.filter(|n| *n != "help").map(str::to_owned).collect();
    assert!(names.iter().any(|name| name == "serve"), "{names:?}");
    names
}

#[test]
fn every_shell_completes_every_command() {
    let commands = commands();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = output(&["completions", shell]);
        for command in &commands {
            assert!(script.contains(command.as_str()), "{shell}: {command}");
        }
        assert!(script.contains("data-dir"), "{shell}");
        assert!(!script.contains("demo-worker"), "{shell}: it is hidden");
    }
}

#[test]
fn bash_takes_the_completions() {
    let script = output(&["completions", "bash"]);
    let status = std::process::Command::new("bash")
        .args([
            "-c",
            "eval \"$1\" && complete -p ticketing",
            "bash",
            &script,
        ])
        .stdout(std::process::Stdio::null())
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn the_manual_has_a_page_for_every_command() {
    let page = output(&["man"]);
    assert!(page.contains(".TH ticketing 1"), "{page}");
    let folder = tempfile::tempdir().unwrap();
    output(&["man", folder.path().to_str().unwrap()]);
    for command in commands() {
        let page = folder.path().join(format!("ticketing-{command}.1"));
        let page = std::fs::read_to_string(&page).unwrap();
        assert!(
            page.contains("EXAMPLES") || page.contains("Examples"),
            "{command}: {page}"
        );
    }
    assert!(!folder.path().join("ticketing-demo-worker.1").exists());
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let (status, _, errors) = Running::start(ticketing(["man", "/nowhere/at/all"])).end();
    assert_eq!(status.code(), Some(1));
    assert!(errors[0].contains("/nowhere/at/all"), "{errors:?}");
}
