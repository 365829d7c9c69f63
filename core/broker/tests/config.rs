//! The configuration file: its defaults, its errors, its secrets.

use ticketing_broker::config::{Config, LogFormat, Secret};

fn error(toml: &str) -> String {
    let text = match Config::from_toml(toml) {
        Err(error) => error.to_string(),
        Ok(config) => config.validate().expect_err(toml).to_string(),
    };
    assert!(!text.contains('\n'), "one line: {text}");
    text
}

#[test]
fn nothing_said_is_a_durable_broker_on_loopback() {
    let config = Config::from_toml("").unwrap();
    config.validate().unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.1:5225");
    assert_eq!(config.data_dir, "./ticketing-data");
    assert!(!config.memory && !config.allow_unauthenticated);
    assert_eq!(config.limits.waiters_per_key, 1024);
    assert_eq!(config.limits.waiters, 65_536);
    assert_eq!(config.limits.grants, 1_000_000);
    assert_eq!(config.limits.connections, 10_000);
    assert_eq!(config.limits.auth_timeout.as_secs(), 10);
}

#[test]
fn every_key_is_read() {
    let config = Config::from_toml(
        r#"
        listen = "[::]:0"
        client_tokens = ["alpha", { name = "billing", token = "beta" }, { token = "gamma" }]
        allow_unauthenticated = true
        data_dir = "/var/lib/ticketing"
        memory = true
        token_floor = 4611686018427387904
        log = "debug"
        log_format = "json"
        [tls]
        cert = "server.pem"
        key = "server.key"
        [limits]
        waiters_per_key = 1
        waiters = 2
        grants = 3
        connections = 4
        auth_timeout = 5
        unsent_replies = 4096
        "#,
    )
    .unwrap();
    config.validate().unwrap();
    assert_eq!(config.listen.to_string(), "[::]:0");
    let tokens: Vec<_> = config
        .client_tokens
        .iter()
        .map(|t| (t.name.as_deref(), t.token.expose()))
        .collect();
    assert_eq!(
        tokens,
        [(None, "alpha"), (Some("billing"), "beta"), (None, "gamma")]
    );
    assert_eq!(config.token_floor, 1 << 62);
    assert_eq!(
        (config.log.as_str(), config.log_format),
        ("debug", LogFormat::Json)
    );
    assert_eq!(config.tls.unwrap().key, "server.key");
    assert_eq!(config.limits.waiters_per_key, 1);
    assert_eq!(config.limits.auth_timeout.as_secs(), 5);
}

#[test]
fn filters_of_logs_are_taken_as_tracing_has_them() {
    for filter in [
        "",
        "WARN",
        "3",
        "info,redb=warn",
        "ticketing_broker=debug, off",
        "off,[span{a=1,b=2}]=info",
    ] {
        let mut config = Config::default();
        config.log = filter.to_owned();
        config.validate().expect(filter);
    }
}

/// Each line says the key, the bad value and what is allowed.
#[test]
fn s10_a_bad_configuration_is_one_line_with_key_value_and_range() {
    for (toml, parts) in [
        ("lisen = 1", &["line 1", "lisen", "unknown", "listen"][..]),
        (
            "\n[limits]\nwaiter = 1",
            &["line 3", "limits.waiter", "unknown"],
        ),
        (
            "listen = \"localhost\"",
            &["listen", "localhost", "127.0.0.1:5225"],
        ),
        ("listen = 5225", &["listen", "5225", "127.0.0.1:5225"]),
        ("memory = \"yes\"", &["memory", "yes", "true or false"]),
        (
            "log_format = \"xml\"",
            &["log_format", "xml", "human", "json"],
        ),
        (
            "token_floor = -1",
            &["token_floor", "-1", "0 to 4611686018427387904"],
        ),
        (
            "token_floor = 4611686018427387905",
            &["token_floor", "4611686018427387905", "0 to"],
        ),
        (
            "[limits]\ngrants = -1",
            &["limits.grants", "-1", "1 to 100000000"],
        ),
        (
            "[limits]\ngrants = \"many\"",
            &["limits.grants", "many", "1 to 100000000"],
        ),
        (
            "limits.waiters = 0",
            &["limits.waiters", "0", "1 to 100000000"],
        ),
        (
            "limits.waiters_per_key = 0",
            &["limits.waiters_per_key", "0", "1 to"],
        ),
        (
            "limits.connections = 0",
            &["limits.connections", "0", "1 to"],
        ),
        (
            "limits.auth_timeout = 301",
            &["limits.auth_timeout", "301", "1 to 300 (seconds)"],
        ),
        (
            "limits.unsent_replies = 9",
            &["limits.unsent_replies", "9", "4096 to 1073741824"],
        ),
        (
            "log = \"redb=warn, wran\"",
            &["log = ", "\"wran\"", "warn, info"],
        ),
        (
            "[tls]\ncert = \"a.pem\"",
            &["tls", "key", "missing", "cert and key"],
        ),
        ("data_dir = \"\"", &["data_dir", "path"]),
        (
            "client_tokens = [\"a\", \"\"]",
            &["client_tokens[1]", "empty"],
        ),
        ("listen = ", &["line 1", "not TOML"]),
    ] {
        let error = error(toml);
        for part in parts {
            assert!(error.contains(part), "{toml:?}: {error:?} lacks {part:?}");
        }
    }
}

#[test]
fn s9_without_tokens_only_loopback_is_served_unless_allowed() {
    for open in [
        "0.0.0.0:5225",
        "[::]:1",
        "192.0.2.7:5225",
        "[::ffff:192.0.2.7]:1",
    ] {
        let listen = format!("listen = \"{open}\"\n");
        let refused = error(&listen);
        assert!(
            refused.contains("client_tokens") && refused.contains(open),
            "{refused}"
        );
        for cure in ["client_tokens = [\"t\"]", "allow_unauthenticated = true"] {
            Config::from_toml(&format!("{listen}{cure}"))
                .unwrap()
                .validate()
                .unwrap();
        }
    }
    for loopback in [
        "127.0.0.1:1",
        "127.9.9.9:1",
        "[::1]:1",
        "[::ffff:127.0.0.1]:1",
    ] {
        Config::from_toml(&format!("listen = \"{loopback}\""))
            .unwrap()
            .validate()
            .unwrap();
    }
}

/// C29: neither debug output nor any error shows a token.
#[test]
fn c29_tokens_are_shown_nowhere() {
    let config = Config::from_toml("client_tokens = [\"hunter2\"]").unwrap();
    assert!(!format!("{config:?}").contains("hunter2"));
    assert!(!format!("{:?}", Secret::from("hunter2".to_owned())).contains("hunter2"));
    for toml in [
        "client_tokens = \"hunter2\"",
        "client_tokens = { token = \"hunter2\" }",
        "client_tokens = [[\"hunter2\"]]",
        "client_tokens = [{ token = [\"hunter2\"] }]",
        "client_tokens = [{ name = 1, token = \"hunter2\" }]",
        "client_tokens = [{ tokn = \"hunter2\" }]",
        "client_tokens = [{ token = \"hunter2\", more = \"hunter2\" }]",
        "client_tokens = [\"hunter2\" \"hunter2\"]",
        "client_tokens = [\"hunter2\"",
        "client_tokens = [hunter2]",
        "client_tokens = [\"hunter2\n\"]",
    ] {
        let error = error(toml);
        assert!(!error.contains("hunter2"), "{toml:?}: {error}");
        assert!(error.starts_with("line "), "{toml:?}: {error}");
    }
}
