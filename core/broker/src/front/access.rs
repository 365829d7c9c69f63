//! Who may connect, and how: client tokens and the TLS certificate (S9).

use std::fs;
use std::sync::Arc;

use camino::Utf8Path;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use ticketing_wire::{AUTH_LEN, Hello, Identity};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{self, InconsistentKeys, ServerConfig};

use crate::config::{ClientToken, Config, ConfigError, TlsConfig};

/// Why tokens or certificates are refused. Never holds a secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// The configuration contradicts itself or has a value out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A PEM file cannot be read, or does not hold what it should.
    #[error("tls.{field} = {path}: {reason}")]
    Pem {
        /// `cert` or `key`.
        field: &'static str,
        /// The file.
        path: camino::Utf8PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The certificate and the private key don't go together, or rustls can't use them.
    #[error("tls.cert = {cert} with tls.key = {key}: {}", reason(.source))]
    Certificate {
        /// The certificate's file.
        cert: camino::Utf8PathBuf,
        /// The private key's file.
        key: camino::Utf8PathBuf,
        /// What rustls says.
        source: rustls::Error,
    },
    /// TLS can't be turned on or off while the broker runs.
    #[error("[tls] was {}: that takes a restart", if *.added { "added" } else { "removed" })]
    TlsSwitched {
        /// Added, or removed.
        added: bool,
    },
}

fn reason(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            "the key is that of another certificate".to_owned()
        }
        other => other.to_string(),
    }
}

/// What a connection is checked against. Replaced as a whole by a reload.
pub(crate) struct Access {
    tokens: Vec<ClientToken>,
    identity: Identity,
    pub(crate) tls: Option<TlsAcceptor>,
}

impl Access {
    /// Checks `config` and loads its certificate.
    pub(crate) fn load(config: &Config) -> Result<Self, AccessError> {
        config.validate()?;
        Ok(Access {
            tokens: config.client_tokens.clone(),
            identity: Identity::single(),
            tls: config.tls.as_ref().map(acceptor).transpose()?,
        })
    }

    /// Whether `auth` answers `hello` with one of the tokens. Checks all of them, so that the time
    /// taken does not tell which one it was.
    pub(crate) fn admits(&self, hello: &Hello, auth: &[u8; AUTH_LEN]) -> bool {
        let mut admitted = self.tokens.is_empty();
        for entry in &self.tokens {
            admitted |= hello.verify(entry.token.expose(), &self.identity, auth);
        }
        admitted
    }
}

fn acceptor(tls: &TlsConfig) -> Result<TlsAcceptor, AccessError> {
    let certs = read_pem("cert", &tls.cert, |pem| {
        CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>()
    })?;
    if certs.is_empty() {
        return Err(AccessError::Pem {
            field: "cert",
            path: tls.cert.clone(),
            reason: "holds no certificate in PEM form".to_owned(),
        });
    }
    let key = read_pem("key", &tls.key, PrivateKeyDer::from_pem_slice)?;
    // The provider is named: a host program that links another one would make rustls panic.
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13, &TLS12])
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(certs, key))
        .map_err(|source| AccessError::Certificate {
            cert: tls.cert.clone(),
            key: tls.key.clone(),
            source,
        })?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn read_pem<T>(
    field: &'static str,
    path: &Utf8Path,
    parse: impl FnOnce(&[u8]) -> Result<T, rustls_pki_types::pem::Error>,
) -> Result<T, AccessError> {
    let error = |reason: String| AccessError::Pem {
        field,
        path: path.to_owned(),
        reason,
    };
    let pem = fs::read(path).map_err(|e| error(format!("cannot read it: {e}")))?;
    // The error's text would say which line is wrong, and a private key has only secret lines.
    parse(&pem).map_err(|e| match e {
        rustls_pki_types::pem::Error::NoItemsFound => {
            error(format!("holds no {field} in PEM form"))
        }
        _ => error("is not a valid PEM file".to_owned()),
    })
}
