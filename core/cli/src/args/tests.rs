//! The command line, and what the help and the README say of it.

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
    let readme = include_str!("../../../../README.md");
    for (text, least) in [
        (EXAMPLES, 3),
        (SERVE_EXAMPLES, 4),
        (DEMO_EXAMPLES, 3),
        (INIT_EXAMPLES, 2),
        (RUN_EXAMPLES, 3),
        (LEADER_EXAMPLES, 2),
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
    let readme = include_str!("../../../../README.md");
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
