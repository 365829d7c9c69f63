//! The command's process: a group of its own, and an end when this process ends.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::client_options;
use crate::failure::Failure;

/// What the hidden command is called that turns into CMD.
pub(crate) const SHIM: &str = "exec";

/// What the environment of a command says of its ticket.
pub(crate) struct Environment {
    /// The keys, separated by one space, which no key contains.
    pub(crate) keys: String,
    pub(crate) token: u64,
}

/// A running command.
pub(crate) struct Supervised {
    child: Child,
    group: Pid,
}

impl Supervised {
    /// Starts `command` through a shim, which makes sure that the command ends with this process.
    /// Call it on a thread that lives as long as the process: the system watches the thread.
    pub(crate) fn start(command: &[OsString], environment: &Environment) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::run("cannot start a process", error);
        let mut shim = Command::new(std::env::current_exe().map_err(failed)?);
        shim.arg("--die-with-parent")
            .arg(std::process::id().to_string())
            .args([SHIM, "--"])
            .args(command)
            .env("TICKETING_KEY", &environment.keys)
            .env("TICKETING_TOKEN", environment.token.to_string())
            .process_group(0);
        // The command has no business with the connection.
        for name in [
            client_options::ADDRS,
            client_options::CLIENT_TOKEN_FILE,
            client_options::TLS,
            client_options::CLUSTER,
        ] {
            shim.env_remove(name);
        }
        let child = shim.spawn().map_err(failed)?;
        let group = Pid::from_child(&child);
        Ok(Supervised { child, group })
    }

    /// Sends `signal` to the command and all that is left in its group.
    pub(crate) fn send(&self, signal: Signal) {
        // It fails only when nobody is left there.
        let _ = kill_process_group(self.group, signal);
    }

    /// Whether a terminal has stopped the command since this was last asked. A SIGSTOP does not
    /// count: whoever sent it may continue the command alone, and the lease still has to be watched.
    pub(crate) fn terminal_stopped_it(&self) -> bool {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        let Ok(Some(status)) = waitid(WaitId::Pid(self.group), options) else {
            return false;
        };
        let by = status.stopping_signal();
        [Signal::TSTP, Signal::TTIN, Signal::TTOU]
            .iter()
            .any(|signal| by == Some(signal.as_raw()))
    }

    /// Whether the command has ended. Its number stays its own until [`wait`](Self::wait).
    pub(crate) fn has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        matches!(waitid(WaitId::Pid(self.group), options), Ok(Some(_)))
    }

    /// The exit code as a shell has it, once the command has ended.
    pub(crate) fn wait(mut self) -> Result<u8, Failure> {
        let status = self
            .child
            .wait()
            .map_err(|error| Failure::run("cannot wait for the command", error))?;
        Ok(exit_code(status))
    }
}

/// The code, or 128 + the signal's number.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .or_else(|| status.signal().map(|number| 128 + number));
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(u8::MAX)
}

/// Turns this process into `command`; comes back only if that fails, with a shell's exit code.
pub(crate) fn exec(command: &[OsString]) -> Failure {
    let (program, args) = command.split_first().expect("clap demands one");
    let error = Command::new(program).args(args).exec();
    let code = match error.kind() {
        io::ErrorKind::NotFound => 127,
        _ => 126,
    };
    Failure::Exit(code, format!("{}: {error}", program.display()))
}
