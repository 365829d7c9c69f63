//! A broker's configuration: the keys of its TOML file, their defaults and allowed values.
//!
//! The program's flags have the same names in kebab-case; it reads a file with [`Config::load`],
//! overlays the flags and calls [`Config::validate`].

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Deserializer, de};
use ticketing_wire::DEFAULT_PORT;

/// Everything a broker can be told. The default is a durable broker on loopback.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct Config {
    /// The address to listen on. Port 0 takes a free one. Default `127.0.0.1:5225`.
    #[serde(deserialize_with = "address")]
    pub listen: SocketAddr,
    /// The tokens that authenticate a client (S9). Empty: any client is let in.
    #[serde(deserialize_with = "client_tokens")]
    pub client_tokens: Vec<ClientToken>,
    /// Allows an empty `client_tokens` on an address that others can reach (S9).
    pub allow_unauthenticated: bool,
    /// The folder of the durable store. Default `./ticketing-data`.
    pub data_dir: Utf8PathBuf,
    /// Keeps nothing on disk (S7).
    pub memory: bool,
    /// Tokens start above this: for use after a lost store (S3).
    pub token_floor: u64,
    /// Which events are logged, as `tracing` filters say it. Default `info`.
    pub log: String,
    /// How they are written.
    pub log_format: LogFormat,
    /// Serves TLS when present.
    pub tls: Option<TlsConfig>,
    /// Bounds on what clients can make the broker hold (S6).
    pub limits: Limits,
}

/// How log lines are written to standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Human,
    /// One JSON object a line.
    Json,
}

/// The `[tls]` table.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// PEM file with the server's certificate, then its chain.
    pub cert: Utf8PathBuf,
    /// PEM file with the certificate's private key.
    pub key: Utf8PathBuf,
}

/// The `[limits]` table (S6).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct Limits {
    /// Waiters in the line of one key. Default 1024.
    pub waiters_per_key: usize,
    /// Waiters in all. Default 65,536.
    pub waiters: usize,
    /// Keys held in all. Default 1,000,000.
    pub grants: usize,
    /// Open connections. Default 10,000.
    pub connections: usize,
    /// How long a client may take to authenticate; whole seconds in the file. Default 10 s.
    #[serde(deserialize_with = "seconds")]
    pub auth_timeout: Duration,
    /// Bytes of replies that a client may leave unread. Default 524,288, which is all the
    /// replies that 16,384 outstanding acquires can get.
    pub unsent_replies: usize,
}

/// A token that authenticates clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientToken {
    /// Shown as the holder in the status.
    pub name: Option<String>,
    /// The token itself.
    pub token: Secret,
}

/// Text that is never shown (C29).
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The text, for the one place that needs it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Secret(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), DEFAULT_PORT),
            client_tokens: Vec::new(),
            allow_unauthenticated: false,
            data_dir: "./ticketing-data".into(),
            memory: false,
            token_floor: 0,
            log: "info".to_owned(),
            log_format: LogFormat::Human,
            tls: None,
            limits: Limits::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            waiters_per_key: 1024,
            waiters: 65_536,
            grants: 1_000_000,
            connections: 10_000,
            auth_timeout: Duration::from_secs(10),
            unsent_replies: 512 * 1024,
        }
    }
}

/// Why a configuration is refused: one line that names the key, the bad value and what is
/// allowed. It never holds a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

impl Config {
    /// A broker inside a test: nothing on disk, a free port of 127.0.0.1.
    #[must_use]
    pub fn for_test() -> Self {
        Config {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
            memory: true,
            ..Config::default()
        }
    }

    /// Reads a TOML file. Does not [`validate`](Config::validate): flags may still change it.
    ///
    /// # Errors
    /// An unreadable file, a syntax error, an unknown key or a value of a wrong kind.
    pub fn load(path: &Utf8Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| ConfigError(format!("cannot read the configuration {path}: {e}")))?;
        Self::from_toml(&text)
            .map_err(|ConfigError(reason)| ConfigError(format!("{path}, {reason}")))
    }

    /// Reads TOML text. Does not [`validate`](Config::validate): flags may still change it.
    ///
    /// # Errors
    /// A syntax error, an unknown key or a value of a wrong kind.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        let at_line = |error: &toml::de::Error| {
            let start = error.span().map_or(0, |span| span.start.min(text.len()));
            1 + text.as_bytes()[..start]
                .iter()
                .filter(|b| **b == b'\n')
                .count()
        };
        // `message` and not `Display`: the latter shows the source line, which may hold a token.
        let one_line = |error: &toml::de::Error| error.message().replace('\n', "; ");
        let document = toml::Deserializer::parse(text).map_err(|error| {
            ConfigError(format!(
                "line {}: not TOML: {}",
                at_line(&error),
                one_line(&error)
            ))
        })?;
        serde_path_to_error::deserialize(document).map_err(|error| {
            let key = error.path().to_string();
            let reason = one_line(error.inner());
            let allowed = allowed(&key).map_or(String::new(), |a| format!("; allowed: {a}"));
            ConfigError(format!(
                "line {}: {key}: {reason}{allowed}",
                at_line(error.inner())
            ))
        })
    }

    /// Checks every value and that they go together.
    ///
    /// # Errors
    /// The first bad value.
    pub fn validate(&self) -> Result<(), ConfigError> {
        for (name, range, value) in [
            ("token_floor", TOKEN_FLOOR, self.token_floor),
            (
                "limits.waiters_per_key",
                COUNT,
                self.limits.waiters_per_key as u64,
            ),
            ("limits.waiters", COUNT, self.limits.waiters as u64),
            ("limits.grants", COUNT, self.limits.grants as u64),
            ("limits.connections", COUNT, self.limits.connections as u64),
            (
                "limits.auth_timeout",
                AUTH_TIMEOUT,
                self.limits.auth_timeout.as_secs(),
            ),
            (
                "limits.unsent_replies",
                UNSENT_REPLIES,
                self.limits.unsent_replies as u64,
            ),
        ] {
            if !range.contains(&value) {
                let allowed = allowed(name).expect("every range has its text");
                return Err(ConfigError(format!("{name} = {value}; allowed: {allowed}")));
            }
        }
        for (index, entry) in self.client_tokens.iter().enumerate() {
            if entry.token.expose().is_empty() {
                return Err(ConfigError(format!(
                    "client_tokens[{index}] is empty and would let in every client that has no \
                     token; give it a token, or remove it"
                )));
            }
        }
        if !self.memory && self.data_dir.as_str().is_empty() {
            return Err(ConfigError(
                "data_dir = \"\"; allowed: a folder's path".to_owned(),
            ));
        }
        if let Some(unknown) = unknown_level(&self.log) {
            return Err(ConfigError(format!(
                "log = {:?}: {unknown:?} is no level; allowed: off, error, warn, info, debug, \
                 trace, or a tracing filter like ticketing_broker=debug",
                self.log
            )));
        }
        let reachable = !self.listen.ip().to_canonical().is_loopback();
        if reachable && self.client_tokens.is_empty() && !self.allow_unauthenticated {
            return Err(ConfigError(format!(
                "listen = {}: without client_tokens, allowed on loopback addresses alone; set \
                 client_tokens in the configuration file, or allow_unauthenticated = true",
                self.listen
            )));
        }
        Ok(())
    }
}

/// A lone word of a filter that is not a level. As a filter it would be the name of a target, and a
/// typing error in a level would silence everything.
fn unknown_level(filter: &str) -> Option<&str> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let is_level = |word: &str| {
        LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word))
            || matches!(word, "0" | "1" | "2" | "3" | "4" | "5")
    };
    // Within brackets a comma separates fields, not directives.
    let words = filter.split(',').map(str::trim);
    let mut lone = words.filter(|word| !word.is_empty() && !word.contains('='));
    lone.find(|word| !filter.contains('[') && !is_level(word))
}

/// Tokens stay below 2^63 (S3): half of that for the floor leaves room for every clock.
const TOKEN_FLOOR: RangeInclusive<u64> = 0..=1 << 62;
const COUNT: RangeInclusive<u64> = 1..=100_000_000;
const AUTH_TIMEOUT: RangeInclusive<u64> = 1..=300;
/// One reply has at most 19 bytes, so that even the least bound holds some hundred replies.
const UNSENT_REPLIES: RangeInclusive<u64> = 4096..=1 << 30;

/// What a key allows, for its error message.
fn allowed(key: &str) -> Option<String> {
    let range = |range: RangeInclusive<u64>, unit: &str| {
        Some(format!("{} to {}{unit}", range.start(), range.end()))
    };
    match key {
        "listen" => Some("an IP address and a port, like 127.0.0.1:5225 or [::1]:5225".to_owned()),
        "allow_unauthenticated" | "memory" => Some("true or false".to_owned()),
        "data_dir" | "tls.cert" | "tls.key" => Some("a path".to_owned()),
        "tls" => Some("a table with cert and key".to_owned()),
        "token_floor" => range(TOKEN_FLOOR, ""),
        "limits.waiters_per_key" | "limits.waiters" | "limits.grants" | "limits.connections" => {
            range(COUNT, "")
        }
        "limits.auth_timeout" => range(AUTH_TIMEOUT, " (seconds)"),
        "limits.unsent_replies" => range(UNSENT_REPLIES, " (bytes)"),
        _ => None,
    }
}

fn address<'de, D: Deserializer<'de>>(from: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(from)?;
    text.parse()
        .map_err(|_| de::Error::custom(format!("{text:?} is not an address")))
}

fn seconds<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    u64::deserialize(from).map(Duration::from_secs)
}

/// Reads the list by hand, because serde's own errors would quote the tokens (C29).
fn client_tokens<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<ClientToken>, D::Error> {
    let toml::Value::Array(entries) = toml::Value::deserialize(from)? else {
        return Err(de::Error::custom("must be a list"));
    };
    let read = |(index, entry): (usize, toml::Value)| {
        client_token(entry).ok_or_else(|| {
            de::Error::custom(format!(
                "entry {index} must be a string, or a table with the strings token and, if you \
                 like, name"
            ))
        })
    };
    entries.into_iter().enumerate().map(read).collect()
}

fn client_token(entry: toml::Value) -> Option<ClientToken> {
    let string = |value| {
        if let toml::Value::String(text) = value {
            Some(text)
        } else {
            None
        }
    };
    let mut fields = match entry {
        toml::Value::Table(fields) => fields,
        other => {
            return Some(ClientToken {
                name: None,
                token: Secret(string(other)?),
            });
        }
    };
    let token = Secret(string(fields.remove("token")?)?);
    let name = match fields.remove("name") {
        Some(name) => Some(string(name)?),
        None => None,
    };
    fields.is_empty().then_some(ClientToken { name, token })
}
