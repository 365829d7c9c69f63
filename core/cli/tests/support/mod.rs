//! What the tests of the program share: running it, and waiting for what it does.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses its own part of it"
)]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use ticketing_wire::{ACCEPTED, HELLO_LEN, Hello, Identity};

/// How long anything is waited for before the test fails. Far more than it takes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The program, without input.
pub fn ticketing<S: AsRef<str>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ticketing"));
    command.args(args.into_iter().map(|arg| arg.as_ref().to_owned()));
    command.stdin(Stdio::null());
    command
}

/// A running program. Killed when dropped.
pub struct Running {
    child: Child,
    output: Receiver<String>,
    errors: Receiver<String>,
}

impl Running {
    pub fn start(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let output = lines(child.stdout.take().expect("piped"));
        let errors = lines(child.stderr.take().expect("piped"));
        Running {
            child,
            output,
            errors,
        }
    }

    /// Starts a broker on a free port and gives its address. `args` come after `serve`.
    pub fn serve<S: AsRef<str>>(args: impl IntoIterator<Item = S>) -> (Self, String) {
        let mut command = ticketing(["serve", "--listen", "127.0.0.1:0"]);
        command.args(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        Self::listening(command)
    }

    /// Starts a broker and gives its address.
    pub fn listening(command: Command) -> (Self, String) {
        let running = Self::start(command);
        let line = running.line();
        let address = line.strip_prefix("listening on ").expect("the first line");
        let address = address.to_owned();
        (running, address)
    }

    /// The next line of standard output.
    #[track_caller]
    pub fn line(&self) -> String {
        self.output.recv_timeout(PATIENCE).unwrap_or_else(|error| {
            panic!(
                "no line: {error}; standard error: {:?}",
                self.errors.try_iter().collect::<Vec<_>>()
            )
        })
    }

    /// Waits for a line on standard error that has `words` in it.
    #[track_caller]
    pub fn logs(&self, words: &str) -> String {
        let until = Instant::now() + PATIENCE;
        let mut seen = Vec::new();
        loop {
            match self
                .errors
                .recv_timeout(until.saturating_duration_since(Instant::now()))
            {
                Ok(line) if line.contains(words) => return line,
                Ok(line) => seen.push(line),
                Err(error) => panic!("no {words:?} on standard error: {error}; {seen:?}"),
            }
        }
    }

    /// Fails the test when it has ended, with what it said.
    #[track_caller]
    pub fn must_run(&mut self) {
        if let Some(status) = self.child.try_wait().expect("a child") {
            panic!("{status}: {:?}", self.errors.try_iter().collect::<Vec<_>>());
        }
    }

    pub fn id(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.id(), signal).expect("it runs");
    }

    /// Waits until it has ended; gives its exit code and the rest of its output and errors.
    #[track_caller]
    pub fn end(mut self) -> (ExitStatus, Vec<String>, Vec<String>) {
        let status = eventually("the program ends", || {
            self.child.try_wait().expect("a child")
        });
        let rest = |lines: &Receiver<String>| {
            let mut rest = Vec::new();
            loop {
                match lines.recv_timeout(PATIENCE) {
                    Ok(line) => rest.push(line),
                    Err(RecvTimeoutError::Disconnected) => return rest,
                    Err(RecvTimeoutError::Timeout) => panic!("somebody holds its output: {rest:?}"),
                }
            }
        };
        (status, rest(&self.output), rest(&self.errors))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (tell, lines) = channel();
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if tell.send(line).is_err() {
                break;
            }
        }
    });
    lines
}

/// Waits until `look` gives something.
#[track_caller]
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A process of this machine.
#[derive(Debug)]
pub struct Seen {
    pub command: String,
    pub is_stopped: bool,
}

/// The processes whose command line names `folder`, which is one test's own.
pub fn processes_of(folder: &Path) -> Vec<Seen> {
    let folder = folder.to_str().expect("a UTF-8 path");
    let all = std::fs::read_dir("/proc")
        .expect("Linux")
        .filter_map(Result::ok);
    all.filter_map(|process| {
        let command = std::fs::read_to_string(process.path().join("cmdline")).ok()?;
        let state = std::fs::read_to_string(process.path().join("status")).ok()?;
        let is_stopped = state.contains("State:\tT");
        command.contains(folder).then(|| Seen {
            command: command.replace('\0', " "),
            is_stopped,
        })
    })
    .collect()
}

/// Whether the process has a handler for TERM.
pub fn listens(process: Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.as_raw_nonzero()))
        .expect("it runs");
    let caught = status
        .lines()
        .find_map(|line| line.strip_prefix("SigCgt:\t"));
    let caught = u64::from_str_radix(caught.expect("a line"), 16).expect("hex");
    caught & 1 << (Signal::TERM.as_raw() - 1) != 0
}

/// A connection to a broker without client tokens, past its handshake.
pub fn authenticated(address: &str) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut hello = [0; HELLO_LEN];
    stream.read_exact(&mut hello)?;
    let hello = Hello::decode(&hello).expect("a broker");
    stream.write_all(&hello.auth("", &Identity::single()))?;
    let mut result = [0];
    stream.read_exact(&mut result)?;
    assert_eq!(result, [ACCEPTED]);
    Ok(stream)
}
