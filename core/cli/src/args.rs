//! The command line. Flags of `serve` have the names of the configuration file's keys.

use std::ffi::OsString;
use std::net::SocketAddr;

use camino::Utf8PathBuf;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};
use ticketing_broker::config::{Config, LogFormat, TlsConfig};

use crate::bench::BenchArgs;
use crate::demo::bank::Transfer;
use crate::failure::Failure;
use crate::init::InitArgs;
use crate::leader::LeaderArgs;
use crate::manual::{CompletionsArgs, ManArgs};
use crate::run::{self, RunArgs};

const EXAMPLES: &str = "\
Examples:
  ticketing serve                           a durable broker on 127.0.0.1:5225
  ticketing serve --config broker.toml      the same, told by a file
  ticketing demo                            what its tokens are for, in fifteen seconds";

const SERVE_EXAMPLES: &str = "\
Examples:
  ticketing serve
  ticketing serve --memory --listen 127.0.0.1:0
  ticketing serve --data-dir state --log debug --log-format json
  ticketing serve --config broker.toml --tls-cert cert.pem --tls-key key.pem

The first line on standard output is 'listening on ADDRESS'; logs go to standard error.
SIGTERM and SIGINT stop the broker cleanly; SIGHUP reloads client_tokens and the certificate.
Exit code 2: the configuration is wrong. 1: the store or the listener failed.";

const DEMO_EXAMPLES: &str = "\
Examples:
  ticketing demo
  ticketing demo --workers 8 --accounts 4 --transfers 500
  ticketing demo --keep demo-files

Exit code 0: all of it held. 1: something did not, and the table says what.";

const INIT_EXAMPLES: &str = "\
Examples:
  ticketing init /etc/ticketing
  ticketing init --tls --name broker.example --listen 0.0.0.0:5225 /etc/ticketing

Nothing is ever overwritten, and the key of the CA is kept nowhere. Prints how to start the broker
and how to connect. Exit code 2: a file is there already, or a word is wrong. 1: cannot write.";

const RUN_EXAMPLES: &str = "\
Examples:
  ticketing run --key nightly-report -- ./report.sh
  ticketing run --key account-1 --key account-2 --wait 30 --lease 120 -- ./settle --fast
  ticketing run --key hourly --wait 0 --lease 250 --keep -- ./once-in-a-while

The command finds its keys in TICKETING_KEY (several separated by one space) and the fencing token
in TICKETING_TOKEN; how to connect is taken out of its environment. It runs in a process group of
its own, to which signals are forwarded. Before the lease ends the group gets TERM, then KILL. The
command is killed too when this program is; what it has started itself is not. The ticket is released
when the command itself ends, whatever it leaves running. The terminal stays with this program: a
command that reads from one is stopped. Signals ignored at the start stay so. Stopped (Ctrl-Z) and
continued past the lease, the group is killed before it runs on; after a SIGSTOP of this program,
which nobody can catch, the command runs on until it is continued. Only a write that is fenced with
the token is safe from all of this.

Exit code: the command's own, or 128 + the number of the signal that ended it; 126 and 127: it could
not be started, is not there. Otherwise 75: not granted in time, or the broker or this client is at
its limit. 74: not known whether it was granted. 76: the lease ran out, or would not have sufficed.
69: not connected. 77: the client token was rejected. 64: wrong usage. 70: anything else.";

const LEADER_EXAMPLES: &str = "\
Examples:
  ticketing leader --name scheduler -- ./scheduler
  ticketing leader --name scheduler --lease 10 -- ./scheduler --verbose

It stands until it leads, then runs the command, with the name in TICKETING_KEY and the fencing
token of the first term in TICKETING_TOKEN. It leads from term to term as long as the broker grants
the next one in time; before the end of the last the command gets TERM, then KILL. When the command
ends, it resigns. To stand again after that, have a service manager start it anew.

Exit code: the command's own, or 128 + the number of the signal that ended it; 76: the leadership
was lost. 77: the client token was rejected. 2: wrong usage. All else as 'ticketing run --help'
has it, as with signals, Ctrl-Z and what the command has started itself.";

const BENCH_EXAMPLES: &str = "\
Examples:
  ticketing bench
  ticketing bench --tasks 512 --keys 512 --ops 200000
  ticketing bench --addr broker.example:5225 --client-token-file token --tls ca:ca.pem --json

Exit code 0: exclusion held, and the tokens of every key rose. 1: not so, or the run broke off.";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  ticketing completions bash > /etc/bash_completion.d/ticketing
  ticketing completions zsh > ~/.zfunc/_ticketing";

const MAN_EXAMPLES: &str = "\
Examples:
  ticketing man | man -l -
  ticketing man /usr/local/share/man/man1";

/// A distributed lock service whose tokens let your database refuse a late holder's write.
#[derive(Debug, Parser)]
#[command(name = "ticketing", version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Ends when the process with this id, the parent, ends.
    #[arg(long, global = true, hide = true, value_name = "PID")]
    pub(crate) die_with_parent: Option<u32>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs a broker.
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(Box<ServeArgs>),
    /// Moves money between accounts under tickets, and shows what a late write does.
    #[command(after_help = DEMO_EXAMPLES)]
    Demo(DemoArgs),
    /// Writes the files that a broker and its clients need: configuration, token, certificates.
    #[command(after_help = INIT_EXAMPLES)]
    Init(InitArgs),
    /// Runs a command while holding a ticket.
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// Runs a command while leading, one leader of a name at a time.
    #[command(after_help = LEADER_EXAMPLES)]
    Leader(LeaderArgs),
    /// Puts a running broker under load and checks exclusion and token order.
    #[command(after_help = BENCH_EXAMPLES)]
    Bench(BenchArgs),
    /// Prints the completions of a shell.
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions(CompletionsArgs),
    /// Prints the manual page, or writes those of all commands into a folder.
    #[command(after_help = MAN_EXAMPLES)]
    Man(ManArgs),
    #[command(hide = true)]
    Exec(ExecArgs),
    #[command(hide = true)]
    DemoWorker(WorkerArgs),
    #[command(hide = true)]
    DemoLate(LateArgs),
    #[command(hide = true)]
    DemoCleaner(CleanerArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// TOML file; flags override it. It may also hold client_tokens and limits.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<Utf8PathBuf>,
    /// Address and port; port 0 takes a free one [default: 127.0.0.1:5225]
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    listen: Option<SocketAddr>,
    /// Folder of the durable store [default: ./ticketing-data]
    #[arg(long, value_name = "FOLDER")]
    data_dir: Option<Utf8PathBuf>,
    /// Keep nothing on disk
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    memory: Option<bool>,
    /// Start tokens above this, after a lost store [default: 0]
    #[arg(long, value_name = "TOKEN")]
    token_floor: Option<u64>,
    /// Allow an empty client_tokens beyond loopback
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    allow_unauthenticated: Option<bool>,
    /// PEM file with the server's certificate, then its chain
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<Utf8PathBuf>,
    /// PEM file with the certificate's private key
    #[arg(long, value_name = "FILE")]
    tls_key: Option<Utf8PathBuf>,
    /// Which events are logged, as a tracing filter [default: info]
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
    /// How they are written [default: human]
    #[arg(long, value_name = "FORMAT", value_parser = log_format())]
    log_format: Option<LogFormat>,
    /// Threads that serve connections [default: one a core]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) worker_threads: Option<u16>,
}

impl ServeArgs {
    /// The file, if any, overlaid with the flags, and checked.
    pub(crate) fn configuration(&self) -> Result<Config, Failure> {
        let usage = |error: &dyn std::fmt::Display| Failure::Usage(error.to_string());
        let mut config = match &self.config {
            Some(file) => Config::load(file).map_err(|error| usage(&error))?,
            None => Config::default(),
        };
        fn overlay<T: Clone>(value: &mut T, flag: Option<&T>) {
            if let Some(flag) = flag {
                value.clone_from(flag);
            }
        }
        overlay(&mut config.listen, self.listen.as_ref());
        overlay(&mut config.data_dir, self.data_dir.as_ref());
        overlay(&mut config.memory, self.memory.as_ref());
        overlay(&mut config.token_floor, self.token_floor.as_ref());
        overlay(
            &mut config.allow_unauthenticated,
            self.allow_unauthenticated.as_ref(),
        );
        overlay(&mut config.log, self.log.as_ref());
        overlay(&mut config.log_format, self.log_format.as_ref());
        let (cert, key) = config.tls.take().map(|tls| (tls.cert, tls.key)).unzip();
        config.tls = match (self.tls_cert.clone().or(cert), self.tls_key.clone().or(key)) {
            (Some(cert), Some(key)) => Some(TlsConfig { cert, key }),
            (None, None) => None,
            (Some(_), None) => {
                return Err(Failure::Usage(
                    "tls.key is missing: give --tls-key too".to_owned(),
                ));
            }
            (None, Some(_)) => {
                return Err(Failure::Usage(
                    "tls.cert is missing: give --tls-cert too".to_owned(),
                ));
            }
        };
        config.validate().map_err(|error| usage(&error))?;
        Ok(config)
    }
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Processes that move money
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) workers: u16,
    /// Transfers in all
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) transfers: u32,
    /// Accounts that they move it between
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u32).range(3..=10_000))]
    pub(crate) accounts: u32,
    /// Milliseconds of work under each ticket, besides the transaction
    #[arg(long, value_name = "MS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=1000))]
    pub(crate) work: u64,
    /// Which accounts and amounts are chosen
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Keep the databases in this new folder, to look at afterwards
    #[arg(long, value_name = "FOLDER")]
    pub(crate) keep: Option<Utf8PathBuf>,
}

/// Becomes another program, started by `run`.
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    #[arg(required = true, last = true)]
    pub(crate) command: Vec<OsString>,
}

/// A process that moves money, started by `demo`.
#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    #[arg(long)]
    pub(crate) broker: String,
    #[arg(long)]
    pub(crate) database: Utf8PathBuf,
    #[arg(long)]
    pub(crate) accounts: u32,
    #[arg(long)]
    pub(crate) transfers: u32,
    #[arg(long)]
    pub(crate) work: u64,
    #[arg(long)]
    pub(crate) seed: u64,
    /// The same transfer each time.
    #[arg(long)]
    pub(crate) only: Option<Transfer>,
}

/// The process that is stopped past its lease, started by `demo`.
#[derive(Debug, Args)]
pub(crate) struct LateArgs {
    #[arg(long)]
    pub(crate) broker: String,
    #[arg(long)]
    pub(crate) database: Utf8PathBuf,
    #[arg(long)]
    pub(crate) transfer: Transfer,
    #[arg(long, value_name = "BOOL", num_args = 1, default_value_t = false, action = clap::ArgAction::Set)]
    pub(crate) unfenced: bool,
}

/// The process that removes the demo's files, started by `demo`.
#[derive(Debug, Args)]
pub(crate) struct CleanerArgs {
    #[arg(long)]
    pub(crate) folder: Utf8PathBuf,
}

/// Reads a command line.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Cli, Failure> {
    let words: Vec<OsString> = words.into_iter().collect();
    let is_run = words.get(1).is_some_and(|word| word == "run");
    Cli::try_parse_from(words).map_err(|error| {
        let text = error.render().to_string();
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Failure::Help(text),
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Failure::Usage(
                "no command: try 'ticketing serve', 'ticketing demo' or 'ticketing --help'"
                    .to_owned(),
            ),
            _ if is_run => Failure::Exit(run::USAGE, reason(&text)),
            _ => Failure::Usage(reason(&text)),
        }
    })
}

/// What is wrong, without the usage that clap puts below it.
fn reason(text: &str) -> String {
    let lines = text.lines().map(str::trim);
    let lines =
        lines.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let lines: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
    let reason = lines.join("; ").replace(":; ", ": ");
    format!(
        "{}; see 'ticketing --help'",
        reason.trim_start_matches("error: ")
    )
}

pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    let allowed = "allowed: an IP address and a port, like 127.0.0.1:5225 or [::1]:5225";
    text.parse().map_err(|_| allowed.to_owned())
}

fn log_format() -> impl TypedValueParser<Value = LogFormat> {
    PossibleValuesParser::new(["human", "json"]).map(|name| {
        if name == "json" {
            LogFormat::Json
        } else {
            LogFormat::Human
        }
    })
}

#[cfg(test)]
mod tests;
