//! Certificates made by the test that needs them.

use std::net::IpAddr;

use camino::Utf8PathBuf;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType, date_time_ymd,
};
use tempfile::TempDir;
use ticketing_client::TlsMode;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A certificate authority, a root or one below it.
pub struct Ca {
    pub pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A server's certificate, the chain that it sends, and its key.
pub struct Server {
    pub chain_pem: String,
    pub key_pem: String,
}

impl Ca {
    pub fn new(name: &str) -> Self {
        let (params, key) = (ca_params(name), KeyPair::generate().unwrap());
        let pem = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        Ca { pem, issuer }
    }

    pub fn intermediate(&self, name: &str) -> Ca {
        let (params, key) = (ca_params(name), KeyPair::generate().unwrap());
        let pem = params.signed_by(&key, &self.issuer).unwrap().pem();
        let issuer = Issuer::new(params, key);
        Ca { pem, issuer }
    }

    /// A certificate for a DNS name or an IP address.
    pub fn server(&self, name: &str) -> Server {
        self.sign(server_params(name))
    }

    pub fn expired(&self, name: &str) -> Server {
        let mut params = server_params(name);
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
        self.sign(params)
    }

    fn sign(&self, params: CertificateParams) -> Server {
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        Server {
            chain_pem: cert.pem(),
            key_pem: key.serialize_pem(),
        }
    }
}

impl Server {
    /// The server sends `ca` after its own certificate.
    pub fn with_chain(mut self, ca: &Ca) -> Self {
        self.chain_pem.push_str(&ca.pem);
        self
    }

    pub fn config(&self) -> ServerConfig {
        let chain: Result<Vec<_>, _> =
            CertificateDer::pem_slice_iter(self.chain_pem.as_bytes()).collect();
        let key = PrivateKeyDer::from_pem_slice(self.key_pem.as_bytes()).unwrap();
        ServerConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain.unwrap(), key)
            .unwrap()
    }
}

fn ca_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

fn server_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![match name.parse::<IpAddr>() {
        Ok(ip) => SanType::IpAddress(ip),
        Err(_) => SanType::DnsName(name.try_into().unwrap()),
    }];
    params
}

/// A CA file in a folder that lives as long as it.
pub struct CaFile {
    _dir: TempDir,
    pub path: Utf8PathBuf,
}

impl CaFile {
    pub fn new(text: impl AsRef<[u8]>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(dir.path().join("ca.pem")).unwrap();
        std::fs::write(&path, text).unwrap();
        CaFile { _dir: dir, path }
    }

    pub fn mode(&self) -> TlsMode {
        TlsMode::Ca(self.path.clone())
    }
}
