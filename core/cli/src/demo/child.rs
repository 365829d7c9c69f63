//! A process of the demo: this program again, in another role.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::failure::Failure;

/// How long a line or an end is waited for. Far more than it takes: a demo that hangs must end.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running process. Dropped, it is killed, also when it is stopped.
pub(crate) struct Process {
    role: String,
    child: Child,
    input: ChildStdin,
    lines: mpsc::UnboundedReceiver<String>,
    last_words: Option<JoinHandle<String>>,
}

impl Process {
    /// Starts this program with `args`. `role` names it in messages; `on_line` is called for each
    /// line of its standard output, when it is read.
    pub(crate) fn start<S: AsRef<str>>(
        role: &str,
        args: &[S],
        on_line: impl Fn() + Send + 'static,
    ) -> Result<Self, Failure> {
        let fail = |error| Failure::run(&format!("cannot start the {role}"), error);
        let mut command = Command::new(std::env::current_exe().map_err(fail)?);
        command
            .arg("--die-with-parent")
            .arg(std::process::id().to_string());
        command.args(args.iter().map(AsRef::as_ref));
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().map_err(fail)?;
        let input = child.stdin.take().expect("it is piped");
        let (tell, lines) = mpsc::unbounded_channel();
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                on_line();
                if tell.send(line).is_err() {
                    break;
                }
            }
        });
        let errors = BufReader::new(child.stderr.take().expect("it is piped"));
        let last_words = Some(thread::spawn(move || {
            errors
                .lines()
                .map_while(Result::ok)
                .last()
                .unwrap_or_default()
        }));
        Ok(Process {
            role: role.to_owned(),
            child,
            input,
            lines,
            last_words,
        })
    }

    /// The next line of its standard output.
    pub(crate) async fn line(&mut self) -> Result<String, Failure> {
        match timeout(PATIENCE, self.lines.recv()).await {
            Ok(Some(line)) => Ok(line),
            Ok(None) => Err(self.failed("ended early")),
            Err(_) => Err(self.failed("says nothing any more")),
        }
    }

    /// Waits until it has ended with success.
    pub(crate) async fn end(&mut self) -> Result<(), Failure> {
        while timeout(PATIENCE, self.lines.recv())
            .await
            .map_err(|_| self.failed("does not end"))?
            .is_some()
        {}
        // Its standard output is closed: it ends now.
        match self.child.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(self.failed(&status.to_string())),
            Err(error) => Err(self.failed(&error.to_string())),
        }
    }

    /// Stops it (SIGSTOP) and waits until it has stopped.
    pub(crate) fn stop(&mut self) -> Result<(), Failure> {
        self.signal(Signal::STOP)?;
        match waitpid(Some(self.id()), WaitOptions::UNTRACED) {
            Ok(Some((_, status))) if status.stopped() => Ok(()),
            Ok(_) => Err(self.failed("ended instead of stopping")),
            Err(error) => Err(self.failed(&error.to_string())),
        }
    }

    /// Lets it go on (SIGCONT).
    pub(crate) fn go_on(&mut self) -> Result<(), Failure> {
        self.signal(Signal::CONT)
    }

    /// Writes a line to its standard input.
    pub(crate) fn tell(&mut self, line: &str) -> Result<(), Failure> {
        writeln!(self.input, "{line}").map_err(|error| self.failed(&error.to_string()))
    }

    fn signal(&mut self, signal: Signal) -> Result<(), Failure> {
        kill_process(self.id(), signal).map_err(|error| self.failed(&error.to_string()))
    }

    fn id(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// It did not do what the demo needs: ends it, and says how it failed and what it said last.
    fn failed(&mut self, how: &str) -> Failure {
        self.kill();
        let said = self
            .last_words
            .take()
            .map(|words| words.join().unwrap_or_default());
        Failure::run(
            &format!("the {} {how}", self.role),
            said.unwrap_or_default(),
        )
    }

    fn kill(&mut self) {
        // It may have ended by itself, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
