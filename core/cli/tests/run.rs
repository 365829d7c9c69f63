//! `ticketing run`: real commands under real tickets.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use support::{PATIENCE, Running, eventually, listens, processes_of, ticketing};

fn broker() -> (Running, String) {
    Running::serve(["--memory"])
}

/// `ticketing run` with these options, and a shell script as its command.
fn run(address: &str, options: &[&str], script: &str) -> Command {
    let mut command = ticketing([&["run", "--addr", address], options].concat());
    command.args(["--", "sh", "-c", script]);
    command
}

/// Its exit code, its output and its errors.
fn outcome(command: Command) -> (i32, String, String) {
    let (status, output, errors) = Running::start(command).end();
    let code = status.code().expect("it ends by itself");
    (code, output.join("\n"), errors.join("\n"))
}

/// The exit code of a try to take the key at once.
fn taken(address: &str, key: &str) -> bool {
    let (code, _, errors) = outcome(run(address, &["--key", key, "--wait", "0"], "true"));
    assert!([0, 75].contains(&code), "{errors}");
    code == 75
}

#[test]
fn the_command_is_told_of_its_ticket_and_not_of_the_connection() {
    let (_broker, address) = broker();
    let folder = tempfile::tempdir().unwrap();
    let token_file = folder.path().join("token");
    fs::write(&token_file, "any").unwrap();
    let script = "echo \"$TICKETING_KEY|$TICKETING_TOKEN\"; env | grep -c ^TICKETING_";
    let mut command = ticketing(["run", "--key", "b", "--key", "a", "--key", "b"]);
    command.args(["--", "sh", "-c", script]);
    command.env("TICKETING_ADDRS", &address);
    command.env("TICKETING_CLIENT_TOKEN_FILE", &token_file);
    command
        .env("TICKETING_TLS", "off")
        .env("TICKETING_CLUSTER", "default");
    let (code, output, errors) = outcome(command);
    assert_eq!((code, errors.as_str()), (0, ""));
    let (ticket, count) = output.split_once('\n').unwrap();
    let (keys, token) = ticket.split_once('|').unwrap();
    assert_eq!((keys, count), ("a b", "2"));
    assert!(token.parse::<u64>().unwrap() > 1 << 50, "{token}");
}

#[test]
fn the_exit_code_is_the_commands_own() {
    let (_broker, address) = broker();
    for (script, code) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("kill -KILL $$", 137),
        ("kill -USR1 $$", 138),
    ] {
        let found = outcome(run(&address, &["--key", "k"], script));
        assert_eq!(found, (code, String::new(), String::new()), "{script}");
    }
    for (program, code) in [("/no/such/program", 127), ("/etc/passwd", 126)] {
        let mut command = ticketing(["run", "--addr", &address, "--key", "k", "--", program]);
        command.arg("argument");
        let (found, output, errors) = outcome(command);
        assert_eq!((found, output.as_str()), (code, ""), "{errors}");
        assert!(errors.contains(program), "{errors}");
    }
}

#[test]
fn input_and_output_are_the_commands() {
    let (_broker, address) = broker();
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("input");
    fs::write(&input, "hello\n").unwrap();
    let mut command = run(&address, &["--key", "k"], "cat; echo oops >&2");
    command.stdin(fs::File::open(&input).unwrap());
    assert_eq!(outcome(command), (0, "hello".into(), "oops".into()));
}

#[test]
fn what_hinders_it_has_an_exit_code() {
    let (_broker, address) = broker();
    let holder = Running::start(run(&address, &["--key", "held"], "echo up; exec sleep 600"));
    assert_eq!(holder.line(), "up");
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = gone.local_addr().unwrap().to_string();
    drop(gone);
    for (address, options, code) in [
        (&address, vec!["--key", "held", "--wait", "0"], 75),
        (&nobody, vec!["--key", "k", "--wait", "1"], 69),
        (&address, vec!["--key", "k", "--min-work", "30"], 76),
        (&address, vec!["--key", "k", "--lease", "251"], 64),
        (&address, vec!["--key", "a key"], 64),
        (&address, vec!["--key", "k", "--wait", "-1"], 64),
        (&address, vec!["--key", "k", "--tls", "maybe"], 64),
        (&address, vec![], 64),
    ] {
        let (found, output, errors) = outcome(run(address, &options, "echo no"));
        assert_eq!(
            (found, output.as_str()),
            (code, ""),
            "{options:?}: {errors}"
        );
        assert_eq!(errors.lines().count(), 1, "{options:?}: {errors}");
    }
    holder.signal(Signal::TERM);
    assert_eq!(holder.end().0.code(), Some(143));
}

#[test]
fn s9_a_rejected_token_is_77() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("broker.toml");
    fs::write(&config, "memory = true\nclient_tokens = ['right']\n").unwrap();
    let (_broker, address) = Running::serve(["--config", config.to_str().unwrap()]);
    let token = folder.path().join("token");
    for (text, code) in [("wrong", 77), ("right", 0)] {
        fs::write(&token, text).unwrap();
        let options = ["--client-token-file", token.to_str().unwrap(), "--key", "k"];
        let (found, _, errors) = outcome(run(&address, &options, "true"));
        assert_eq!(found, code, "{errors}");
        assert!(!errors.contains("wrong"), "{errors}");
    }
}

#[test]
fn the_key_is_free_afterwards_unless_it_is_kept() {
    let (_broker, address) = broker();
    let kept = ["--key", "kept", "--keep", "--lease", "100"];
    assert_eq!(outcome(run(&address, &kept, "exit 3")).0, 3);
    assert!(taken(&address, "kept"));
    assert_eq!(outcome(run(&address, &["--key", "free"], "exit 3")).0, 3);
    assert!(!taken(&address, "free"));
}

#[test]
fn two_of_one_key_run_one_after_the_other() {
    let (_broker, address) = broker();
    let folder = tempfile::tempdir().unwrap();
    let lock = folder.path().join("lock");
    // `mkdir` fails if the folder is there.
    let script = format!("mkdir {0} && rmdir {0}", lock.display());
    let all: Vec<_> = (0..8)
        .map(|_| {
            Running::start(run(
                &address,
                &["--key", "k", "--wait", "60", "--lease", "120"],
                &script,
            ))
        })
        .collect();
    for one in all {
        let (status, _, errors) = one.end();
        assert!(status.success(), "{errors:?}");
    }
}

#[test]
fn signals_reach_the_whole_group_of_the_command() {
    let (_broker, address) = broker();
    // Not INT, which a shell has what it starts with `&` ignore, nor HUP: these tests may run under
    // `nohup`.
    for (signal, name) in [
        (Signal::TERM, "TERM"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ] {
        let script = format!(
            "trap 'echo parent; wait; exit 9' {name}
             (trap 'echo child; exit' {name}; echo ready; while :; do sleep 0.02; done) &
             wait; exit 1"
        );
        let running = Running::start(run(&address, &["--key", name], &script));
        assert_eq!(running.line(), "ready");
        running.signal(signal);
        let mut told = [running.line(), running.line()];
        told.sort();
        assert_eq!(told, ["child", "parent"], "{name}");
        assert_eq!(running.end().0.code(), Some(9), "{name}");
    }
}

#[test]
fn an_ignored_signal_stays_ignored() {
    let (_broker, address) = broker();
    let script = "trap 'exit 9' USR1; echo up; while :; do sleep 0.02; done";
    let wrapper = run(&address, &["--key", "k", "--lease", "200"], script);
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]);
    command.arg(wrapper.get_program()).args(wrapper.get_args());
    let running = Running::start(command);
    assert_eq!(running.line(), "up");
    // A forwarded HUP would go out first, and end the shell.
    running.signal(Signal::HUP);
    running.signal(Signal::USR1);
    assert_eq!(running.end().0.code(), Some(9));
}

#[test]
fn a_signal_in_the_line_withdraws_the_waiter() {
    let (_broker, address) = broker();
    let holder = Running::start(run(
        &address,
        &["--key", "k", "--lease", "200"],
        "echo up; exec sleep 600",
    ));
    assert_eq!(holder.line(), "up");
    let options = ["--key", "k", "--wait", "100", "--lease", "200"];
    let waiting = Running::start(run(&address, &options, "echo no"));
    // It listens to signals before it asks: once it does, it is in the line or on its way there.
    eventually("it listens to signals", || {
        listens(waiting.id()).then_some(())
    });
    waiting.signal(Signal::TERM);
    let (status, output, errors) = waiting.end();
    assert_eq!((status.code(), output.len()), (Some(143), 0), "{errors:?}");
    holder.signal(Signal::TERM);
    holder.end();
    assert!(!taken(&address, "k"), "nobody is in the line");
}

#[test]
fn c16_the_command_is_told_to_end_before_the_lease_does_and_then_killed() {
    let (_broker, address) = broker();
    let begun = Instant::now();
    let options = ["--key", "a", "--lease", "2", "--margin", "1"];
    let script = "trap 'echo told; exit 0' TERM; echo up; while :; do sleep 0.02; done";
    let (code, output, errors) = outcome(run(&address, &options, script));
    assert_eq!((code, output.as_str()), (76, "up\ntold"), "{errors}");
    assert!(errors.contains("lease ran out"), "{errors}");
    assert!(
        begun.elapsed() >= Duration::from_secs(1),
        "not before the margin"
    );

    let begun = Instant::now();
    let script = "trap '' TERM; echo up; while :; do sleep 0.02; done";
    let (code, output, errors) = outcome(run(&address, &options, script));
    assert_eq!((code, output.as_str()), (76, "up"), "{errors}");
    assert!(
        begun.elapsed() >= Duration::from_millis(1500),
        "not before half of it"
    );
    assert!(!taken(&address, "a"), "released after it was dead");
}

#[test]
fn the_command_ends_when_the_wrapper_is_killed() {
    let (_broker, address) = broker();
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("mark");
    let script = format!("echo up; exec tail -f /dev/null {}", mark.display());
    fs::write(&mark, "").unwrap();
    let running = Running::start(run(&address, &["--key", "k"], &script));
    assert_eq!(running.line(), "up");
    running.signal(Signal::KILL);
    running.end();
    eventually("the command is gone", || {
        processes_of(folder.path()).is_empty().then_some(())
    });
}

/// The command's process, once the shell has become it.
fn command_of(folder: &Path) -> Option<support::Seen> {
    let all = processes_of(folder);
    all.into_iter()
        .find(|seen| seen.command.starts_with("tail"))
}

fn stopped(folder: &Path, stopped: bool) {
    eventually("it is stopped, or runs", || {
        (command_of(folder)?.is_stopped == stopped).then_some(())
    });
}

/// A wrapper in a group of its own, as a shell with job control starts it, and what it runs.
fn in_the_foreground(address: &str, folder: &Path, options: &[&str]) -> Running {
    let mark = folder.join("mark");
    fs::write(&mark, "").unwrap();
    let script = format!("exec tail -f /dev/null {}", mark.display());
    let mut command = run(address, options, &script);
    command.process_group(0);
    let running = Running::start(command);
    stopped(folder, false);
    running
}

#[test]
fn stopped_and_continued_within_the_lease_the_command_goes_on() {
    let (_broker, address) = broker();
    let folder = tempfile::tempdir().unwrap();
    let running = in_the_foreground(&address, folder.path(), &["--key", "k", "--lease", "200"]);
    for _ in 0..3 {
        running.signal(Signal::TSTP);
        stopped(folder.path(), true);
        eventually("the wrapper has stopped too", || {
            is_stopped(running.id()).then_some(())
        });
        kill_process_group(running.id(), Signal::CONT).unwrap();
        stopped(folder.path(), false);
    }
    running.signal(Signal::TERM);
    assert_eq!(running.end().0.code(), Some(143));
}

fn is_stopped(process: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", process.as_raw_nonzero())).unwrap();
    status.contains("State:\tT")
}

#[test]
fn continued_past_the_lease_the_command_is_killed_before_it_runs_on() {
    let (_broker, address) = broker();
    let folder = tempfile::tempdir().unwrap();
    let begun = Instant::now();
    let options = ["--key", "k", "--lease", "2"];
    let running = in_the_foreground(&address, folder.path(), &options);
    running.signal(Signal::TSTP);
    eventually("the wrapper has stopped", || {
        is_stopped(running.id()).then_some(())
    });
    stopped(folder.path(), true);
    eventually("the lease is over", || {
        (begun.elapsed() > Duration::from_secs(2)).then_some(())
    });
    assert!(begun.elapsed() < PATIENCE);
    assert!(command_of(folder.path()).unwrap().is_stopped);
    kill_process_group(running.id(), Signal::CONT).unwrap();
    assert_eq!(running.end().0.code(), Some(76));
    assert!(command_of(folder.path()).is_none());
}

/// The process number that the command has told.
fn told(running: &Running) -> Pid {
    Pid::from_raw(running.line().parse().unwrap()).unwrap()
}

#[test]
fn c16_a_command_that_stops_itself_is_still_watched() {
    let (_broker, address) = broker();
    // Another process of the group runs on, and would do so past the lease.
    let script = "trap '' TERM; (while :; do sleep 0.02; done) & echo $!; kill -STOP $$; exit 3";
    let options = ["--key", "k", "--lease", "2", "--margin", "1"];
    let running = Running::start(run(&address, &options, script));
    let other = told(&running);
    assert_eq!(running.end().0.code(), Some(76));
    eventually("the whole group is gone", || is_gone(other).then_some(()));
}

#[test]
fn c16_what_a_terminal_stops_takes_its_group_and_the_wrapper_along() {
    let (_broker, address) = broker();
    let script = "(while :; do sleep 0.02; done) & echo $!; kill -TTIN $$; kill $!; exit 3";
    let mut command = run(&address, &["--key", "k", "--lease", "200"], script);
    command.process_group(0);
    let running = Running::start(command);
    let other = told(&running);
    eventually("the wrapper has stopped", || {
        is_stopped(running.id()).then_some(())
    });
    eventually("so has the rest", || is_stopped(other).then_some(()));
    running.signal(Signal::CONT);
    assert_eq!(running.end().0.code(), Some(3));
}

#[test]
fn c16_a_wrapper_stopped_past_the_lease_kills_once_it_is_continued() {
    let (_broker, address) = broker();
    let script = "echo $$; exec sleep 600";
    let begun = Instant::now();
    let options = ["--key", "k", "--lease", "2"];
    let running = Running::start(run(&address, &options, script));
    let child = told(&running);
    running.signal(Signal::STOP);
    eventually("the lease is over", || {
        (begun.elapsed() > Duration::from_millis(2500)).then_some(())
    });
    assert!(!is_gone(child), "nobody was there to end it");
    running.signal(Signal::CONT);
    assert_eq!(running.end().0.code(), Some(76));
    assert!(is_gone(child));
}

/// Whether no process has this number, or one that only waits for its parent to look.
fn is_gone(process: Pid) -> bool {
    fs::read_to_string(format!("/proc/{}/status", process.as_raw_nonzero()))
        .map_or(true, |status| status.contains("State:\tZ"))
}
