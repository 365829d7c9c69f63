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
use crate::manual::{CompletionsArgs, ManArgs};

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
    Cli::try_parse_from(words).map_err(|error| {
        let text = error.render().to_string();
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Failure::Help(text),
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Failure::Usage(
                "no command: try 'ticketing serve', 'ticketing demo' or 'ticketing --help'"
                    .to_owned(),
            ),
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
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse_words(line: &str) -> Result<Cli, Failure> {
        parse(line.split_whitespace().map(OsString::from))
    }

    fn serve(line: &str) -> Result<Config, Failure> {
        match parse_words(line)?.command {
            Command::Serve(args) => args.configuration(),
            other => panic!("{other:?}"),
        }
    }

    fn usage<T>(outcome: Result<T, Failure>) -> String {
        match outcome {
            Err(Failure::Usage(text)) => text,
            Err(other) => panic!("{other:?}"),
            Ok(_) => panic!("accepted"),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// The lines of a text that are a command, without the remark that may follow it.
    fn examples(text: &str) -> Vec<String> {
        let lines = text
            .lines()
            .map(str::trim)
            .filter(|line| line.starts_with("ticketing "));
        lines
            .map(|line| line.split("   ").next().unwrap_or(line).to_owned())
            .collect()
    }

    #[test]
    fn every_example_is_a_command_line() {
        let readme = include_str!("../../../README.md");
        for (text, least) in [
            (EXAMPLES, 3),
            (SERVE_EXAMPLES, 4),
            (DEMO_EXAMPLES, 3),
            (INIT_EXAMPLES, 2),
            (BENCH_EXAMPLES, 3),
            (readme, 1),
        ] {
            let examples = examples(text);
            assert!(examples.len() >= least, "{examples:?}");
            for line in examples {
                assert!(parse_words(&line).is_ok(), "{line}");
            }
        }
    }

    #[test]
    fn flags_override_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("broker.toml");
        let text = "listen = '127.0.0.1:1'\nmemory = true\ntoken_floor = 7\nlog = 'warn'\n\
            [tls]\ncert = 'c'\nkey = 'k'\n";
        std::fs::write(&file, text).unwrap();
        let file = file.to_str().unwrap();

        let config = serve(&format!("ticketing serve --config {file}")).unwrap();
        assert_eq!(
            (config.listen.port(), config.memory, config.token_floor),
            (1, true, 7)
        );
        let config = serve(&format!(
            "ticketing serve --config {file} --listen [::1]:2 --memory=false --token-floor 9 \
             --log debug --log-format json --data-dir d --tls-key x"
        ))
        .unwrap();
        assert_eq!(
            (config.listen.port(), config.memory, config.token_floor),
            (2, false, 9)
        );
        assert_eq!(
            (config.log.as_str(), config.log_format),
            ("debug", LogFormat::Json)
        );
        assert_eq!(config.data_dir, "d");
        assert_eq!(
            config.tls,
            Some(TlsConfig {
                cert: "c".into(),
                key: "x".into()
            })
        );
    }

    #[test]
    fn s9_only_loopback_may_go_without_tokens() {
        assert!(usage(serve("ticketing serve --listen 0.0.0.0:0")).contains("listen = 0.0.0.0:0"));
        let config = serve("ticketing serve --listen 0.0.0.0:0 --allow-unauthenticated").unwrap();
        assert!(config.allow_unauthenticated);
    }

    #[test]
    fn s10_a_bad_flag_is_named_with_what_is_allowed() {
        for (line, words) in [
            (
                "ticketing serve --listen nowhere",
                ["--listen", "127.0.0.1:5225"],
            ),
            (
                "ticketing serve --log-format xml",
                ["--log-format", "human, json"],
            ),
            (
                "ticketing serve --worker-threads 0",
                ["--worker-threads", "1..=1024"],
            ),
            ("ticketing serve --tls-cert c", ["tls.key", "--tls-key"]),
            ("ticketing serve --tls-key c", ["tls.cert", "--tls-cert"]),
            ("ticketing serve --memroy", ["--memroy", "--memory"]),
            (
                "ticketing serve --config nowhere.toml",
                ["nowhere.toml", "cannot read"],
            ),
            ("ticketing demo --accounts 2", ["--accounts", "3..=10000"]),
            ("ticketing", ["no command", "ticketing demo"]),
        ] {
            let text = match parse_words(line) {
                Ok(Cli {
                    command: Command::Serve(args),
                    ..
                }) => usage(args.configuration()),
                other => usage(other),
            };
            assert!(
                words.iter().all(|word| text.contains(word)),
                "{line}: {text}"
            );
            assert!(
                !text.contains('\n') && !text.contains("Usage"),
                "{line}: {text}"
            );
        }
    }

    #[test]
    fn the_readme_has_every_flag_and_key_of_serve() {
        let readme = include_str!("../../../README.md");
        let command = Cli::command();
        let serve = command.find_subcommand("serve").unwrap();
        for flag in serve.get_arguments().filter(|flag| !flag.is_hide_set()) {
            let name = flag.get_long().unwrap();
            assert!(
                readme.contains(&format!("`--{name}")) || name == "config",
                "--{name}"
            );
        }
    }

    #[test]
    fn the_help_tells_the_true_defaults() {
        let mut command = Cli::command();
        let serve = command.find_subcommand_mut("serve").unwrap();
        let help = serve.render_long_help().to_string();
        let defaults = Config::default();
        for (flag, default) in [
            ("listen", defaults.listen.to_string()),
            ("data-dir", defaults.data_dir.to_string()),
            ("token-floor", defaults.token_floor.to_string()),
            ("log", defaults.log),
            (
                "log-format",
                format!("{:?}", defaults.log_format).to_lowercase(),
            ),
        ] {
            let text = help.split(&format!("--{flag} <")).nth(1).unwrap();
            let text = text.split("\n      --").next().unwrap();
            assert!(
                text.contains(&format!("[default: {default}]")),
                "--{flag}: {text}"
            );
        }
    }
}
