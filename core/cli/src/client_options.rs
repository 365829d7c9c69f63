//! How a client command reaches the broker: flags, or the environment in their place.

use camino::{Utf8Path, Utf8PathBuf};
use clap::Args;
use ticketing_client::{TicketBroker, TicketError, TlsMode};

use crate::failure::Failure;

/// The environment variables that say the same as the flags.
pub(crate) const ADDRS: &str = "TICKETING_ADDRS";
pub(crate) const CLIENT_TOKEN_FILE: &str = "TICKETING_CLIENT_TOKEN_FILE";
pub(crate) const TLS: &str = "TICKETING_TLS";
pub(crate) const CLUSTER: &str = "TICKETING_CLUSTER";

/// The options of every client command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct ClientOptions {
    /// The broker, host:port; given several times, the nodes of a cluster in slot order. In the
    /// environment separated by commas
    #[arg(long = "addr", value_name = "ADDRESS", env = ADDRS, value_delimiter = ',', default_value = "127.0.0.1:5225")]
    addrs: Vec<String>,
    /// File whose content is the client token; a line end after it does not count
    #[arg(long, value_name = "FILE", env = CLIENT_TOKEN_FILE)]
    client_token_file: Option<Utf8PathBuf>,
    /// off, system-roots, ca:FILE (PEM), or insecure-skip-verify (for tests alone)
    #[arg(long, value_name = "MODE", env = TLS, default_value = "off", value_parser = tls_mode)]
    tls: TlsMode,
    /// Name of the cluster
    #[arg(long, value_name = "NAME", env = CLUSTER, default_value = "default")]
    cluster: String,
}

impl ClientOptions {
    /// Makes the broker object, inside a tokio runtime; does not wait for a connection.
    ///
    /// # Errors
    /// [`Failure::Usage`]: an address, the token file or the CA file is wrong.
    pub(crate) fn connect(&self) -> Result<TicketBroker, Failure> {
        let mut builder = TicketBroker::builder()
            .addrs(&self.addrs)
            .tls(self.tls.clone())
            .cluster(&self.cluster);
        if let Some(file) = &self.client_token_file {
            builder = builder.token(client_token(file)?);
        }
        builder.connect().map_err(|error| match error {
            TicketError::Internal { .. } => Failure::run("cannot start", error),
            error => Failure::Usage(error.to_string()),
        })
    }
}

/// The token in `file`. No error says what the file holds (C29).
fn client_token(file: &Utf8Path) -> Result<String, Failure> {
    let wrong = |why: &str| Failure::Usage(format!("--client-token-file {file}: {why}"));
    let text = std::fs::read_to_string(file).map_err(|error| wrong(&error.to_string()))?;
    let token = text.trim_end_matches(['\r', '\n']);
    if token.is_empty() {
        return Err(wrong("it is empty; it has to hold a client token"));
    }
    Ok(token.to_owned())
}

fn tls_mode(text: &str) -> Result<TlsMode, String> {
    match (text, text.strip_prefix("ca:")) {
        ("off", _) => Ok(TlsMode::Off),
        ("system-roots", _) => Ok(TlsMode::SystemRoots),
        ("insecure-skip-verify", _) => Ok(TlsMode::InsecureSkipVerify),
        (_, Some(file)) if !file.is_empty() => Ok(TlsMode::Ca(file.into())),
        _ => Err("allowed: off, system-roots, ca:FILE, insecure-skip-verify".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        client: ClientOptions,
    }

    fn options(line: &str) -> Result<ClientOptions, clap::Error> {
        Cli::try_parse_from(line.split_whitespace()).map(|cli| cli.client)
    }

    #[test]
    fn every_tls_mode_has_one_spelling() {
        for (text, mode) in [
            ("off", TlsMode::Off),
            ("system-roots", TlsMode::SystemRoots),
            ("insecure-skip-verify", TlsMode::InsecureSkipVerify),
            ("ca:off", TlsMode::Ca("off".into())),
            ("ca:/etc/ca.pem", TlsMode::Ca("/etc/ca.pem".into())),
        ] {
            assert_eq!(options(&format!("x --tls {text}")).unwrap().tls, mode);
        }
        for text in ["on", "ca:", "/etc/ca.pem"] {
            let error = options(&format!("x --tls {text}")).unwrap_err().to_string();
            assert!(error.contains("ca:FILE"), "{error}");
        }
    }

    #[test]
    fn addresses_are_repeated_or_separated_by_commas() {
        let addrs = |line| options(line).unwrap().addrs;
        assert_eq!(addrs("x"), ["127.0.0.1:5225"]);
        assert_eq!(addrs("x --addr a:1 --addr b:2"), ["a:1", "b:2"]);
        assert_eq!(addrs("x --addr a:1,b:2"), ["a:1", "b:2"]);
    }

    #[tokio::test]
    async fn a_wrong_option_is_a_usage_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("empty");
        std::fs::write(&empty, "\n").unwrap();
        for (line, words) in [
            ("x --addr nowhere".to_owned(), "nowhere"),
            ("x --client-token-file /nowhere/t".to_owned(), "/nowhere/t"),
            (
                format!("x --client-token-file {}", empty.display()),
                "is empty",
            ),
            ("x --tls ca:/nowhere/ca.pem".to_owned(), "/nowhere/ca.pem"),
        ] {
            match options(&line).unwrap().connect() {
                Err(Failure::Usage(text)) => assert!(text.contains(words), "{line}: {text}"),
                Err(other) => panic!("{line}: {other:?}"),
                Ok(_) => panic!("{line}: accepted"),
            }
        }
    }

    #[test]
    fn c29_only_the_line_end_is_cut_from_a_token() {
        let folder = tempfile::tempdir().unwrap();
        let file = Utf8PathBuf::try_from(folder.path().join("token")).unwrap();
        for (text, token) in [("s3cret", "s3cret"), (" a b \r\n", " a b "), ("x\n\n", "x")] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(client_token(&file).unwrap(), token);
        }
    }
}
