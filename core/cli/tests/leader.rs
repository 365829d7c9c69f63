//! `ticketing leader`: one at a time runs its command.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::process::Command;

use rustix::process::Signal;
use support::{Running, ticketing};

fn leader(address: &str, options: &[&str], script: &str) -> Command {
    let mut command = ticketing([&["leader", "--addr", address, "--name", "n"], options].concat());
    command.args(["--", "sh", "-c", script]);
    command
}

const UNTIL_TOLD: &str = "echo \"$TICKETING_KEY $TICKETING_TOKEN\"; exec sleep 600";

/// The name and the token that a leader's command prints.
fn elected(running: &Running) -> u64 {
    let line = running.line();
    let (name, token) = line.split_once(' ').unwrap();
    assert_eq!(name, "n");
    token.parse().unwrap()
}

#[test]
fn one_leads_and_the_other_follows_with_a_higher_token() {
    let (_broker, address) = Running::serve(["--memory"]);
    let first = Running::start(leader(&address, &[], UNTIL_TOLD));
    let token = elected(&first);
    let second = Running::start(leader(&address, &[], UNTIL_TOLD));
    first.signal(Signal::TERM);
    let (status, output, errors) = first.end();
    assert_eq!((status.code(), output.len()), (Some(143), 0), "{errors:?}");
    assert!(elected(&second) > token);
    second.signal(Signal::USR1);
    assert_eq!(second.end().0.code(), Some(138));
}

#[test]
fn it_leads_from_term_to_term() {
    let (_broker, address) = Running::serve(["--memory"]);
    // Two and a half terms long.
    let script = "sleep 5; exit 4";
    let (status, _, errors) = Running::start(leader(&address, &["--lease", "2"], script)).end();
    assert_eq!((status.code(), errors.len()), (Some(4), 0), "{errors:?}");
}

#[test]
fn without_a_broker_the_command_is_told_to_end() {
    let (broker, address) = Running::serve(["--memory"]);
    let script = "trap 'echo told; exit 0' TERM; echo up; while :; do sleep 0.02; done";
    let running = Running::start(leader(&address, &["--lease", "3"], script));
    assert_eq!(running.line(), "up");
    drop(broker);
    let (status, output, errors) = running.end();
    assert_eq!(status.code(), Some(76), "{errors:?}");
    assert_eq!(output, ["told"]);
    assert!(
        errors.last().unwrap().contains("leadership was lost"),
        "{errors:?}"
    );
}

#[test]
fn a_signal_while_it_stands_ends_it() {
    let (_broker, address) = Running::serve(["--memory"]);
    let first = Running::start(leader(&address, &[], UNTIL_TOLD));
    elected(&first);
    let second = Running::start(leader(&address, &[], "echo no"));
    support::eventually("it listens to signals", || {
        support::listens(second.id()).then_some(())
    });
    second.signal(Signal::TERM);
    let (status, output, errors) = second.end();
    assert_eq!((status.code(), output.len()), (Some(143), 0), "{errors:?}");
}

#[test]
fn wrong_usage_is_2() {
    let (_broker, address) = Running::serve(["--memory"]);
    for options in [["--lease", "251"], ["--margin", "20"], ["--lease", "-1"]] {
        let (status, output, errors) = Running::start(leader(&address, &options, "echo no")).end();
        assert_eq!(
            (status.code(), output.len()),
            (Some(2), 0),
            "{options:?}: {errors:?}"
        );
        assert_eq!(errors.len(), 1, "{options:?}: {errors:?}");
    }
}
