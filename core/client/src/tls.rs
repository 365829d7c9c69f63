//! TLS for the client (C28).

use std::io::ErrorKind;
use std::sync::Arc;

use camino::Utf8PathBuf;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{self, CryptoProvider};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::TicketError;

/// How a connection is protected. The broker alone presents a certificate; its name or address
/// is verified against the certificate's subject alternative names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum TlsMode {
    /// No TLS.
    #[default]
    Off,
    /// The system's root certificates.
    SystemRoots,
    /// The certificates of one PEM file, which may hold several.
    Ca(Utf8PathBuf),
    /// TLS without verification: for tests alone, since anybody may be at the other end.
    InsecureSkipVerify,
}

/// A ready TLS set-up, or none.
#[derive(Clone)]
pub(crate) struct TlsClient(pub(crate) Option<Arc<ClientConfig>>);

impl TlsClient {
    pub(crate) fn new(mode: &TlsMode) -> Result<Self, TicketError> {
        let provider = Arc::new(crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|e| TicketError::Tls {
                detail: e.to_string(),
            })?;
        let config = match mode {
            TlsMode::Off => return Ok(TlsClient(None)),
            TlsMode::SystemRoots => builder.with_root_certificates(system_roots()?),
            TlsMode::Ca(path) => builder.with_root_certificates(ca_file(path)?),
            TlsMode::InsecureSkipVerify => {
                tracing::warn!(
                    "TLS certificates are not verified (InsecureSkipVerify): for tests alone"
                );
                builder
                    .dangerous()
                    .with_custom_certificate_verifier(Arc::new(AcceptAny(provider)))
            }
        };
        Ok(TlsClient(Some(Arc::new(config.with_no_client_auth()))))
    }
}

fn system_roots() -> Result<RootCertStore, TicketError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found
            .errors
            .first()
            .map_or_else(String::new, |e| format!(" ({e})"));
        return Err(TicketError::Tls {
            detail: format!("no system root certificate was found{why}; install ca-certificates"),
        });
    }
    Ok(roots)
}

fn ca_file(path: &Utf8PathBuf) -> Result<RootCertStore, TicketError> {
    let io = |kind: ErrorKind| TicketError::Io {
        detail: format!("CA file {path}: {kind}"),
    };
    let none = |why: &str| TicketError::Tls {
        detail: format!("CA file {path} {why}"),
    };
    let bytes = std::fs::read(path).map_err(|e| io(e.kind()))?;
    let mut roots = RootCertStore::empty();
    for cert in CertificateDer::pem_slice_iter(&bytes) {
        let cert = cert.map_err(|e: pem::Error| none(&format!("is not PEM: {e}")))?;
        roots
            .add(cert)
            .map_err(|e| none(&format!("holds a certificate that is no CA: {e}")))?;
    }
    if roots.is_empty() {
        return Err(none("holds no certificate"));
    }
    Ok(roots)
}

/// Accepts any certificate, but still checks that the peer has its key.
#[derive(Debug)]
struct AcceptAny(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
