//! How the program ends when it does not succeed: one line on standard error and an exit code.

use std::fmt::{self, Display, Formatter};
use std::io::{Write, stderr, stdout};
use std::process::ExitCode;

/// Why the program ends without success.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line or the configuration is wrong: exit code 2 (S10).
    Usage(String),
    /// Something failed while it ran: exit code 1.
    Run(String),
    /// Text for whoever asked for help: standard output, exit code 0.
    Help(String),
    /// Ended by a signal: exit code 128 + its number, as shells have it.
    Signal(u8),
    /// Something failed, and the command has an exit code for it.
    Exit(u8, String),
    /// The exit code of another program, which has said what there was to say.
    Code(u8),
}

impl Failure {
    /// A failure at run time, with what was being done.
    pub(crate) fn run(doing: &str, why: impl Display) -> Self {
        Failure::Run(format!("{doing}: {why}"))
    }

    /// Says what there is to say and gives the exit code.
    pub(crate) fn report(self) -> ExitCode {
        // Nobody may be there to read it: the exit code is the same.
        let code = match &self {
            Failure::Help(text) => {
                let _ = stdout().write_all(text.as_bytes());
                return ExitCode::SUCCESS;
            }
            Failure::Signal(number) => return ExitCode::from(128 + number),
            Failure::Code(code) => return ExitCode::from(*code),
            Failure::Exit(code, _) => *code,
            Failure::Usage(_) => 2,
            Failure::Run(_) => 1,
        };
        let _ = writeln!(stderr(), "error: {self}");
        ExitCode::from(code)
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(text)
            | Failure::Run(text)
            | Failure::Help(text)
            | Failure::Exit(_, text) => f.write_str(&one_line(text)),
            Failure::Code(code) => write!(f, "ended with exit code {code}"),
            Failure::Signal(number) => write!(f, "ended by signal {number}"),
        }
    }
}

/// The text with every run of white space made one space.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::Failure;

    #[test]
    fn a_failure_is_one_line() {
        let failure = Failure::Usage("bad\n  thing:\tx ".to_owned());
        assert_eq!(failure.to_string(), "bad thing: x");
    }
}
