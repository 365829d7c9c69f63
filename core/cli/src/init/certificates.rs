//! A private CA and the broker's certificate.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls_pki_types::ServerName;

use crate::failure::Failure;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// For so long they are valid.
pub(super) const VALID_DAYS: u32 = 3650;
/// Clocks of clients may be behind.
const EARLIER_DAYS: u32 = 1;
/// By these the broker's own machine reaches it.
const LOCAL: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// All in PEM. The CA's key is dropped once it has signed: nobody can take it.
pub(super) struct Certificates {
    pub(super) ca: String,
    pub(super) cert: String,
    pub(super) key: String,
}

impl Certificates {
    /// For localhost, and for `names`.
    pub(super) fn make(names: &[String]) -> Result<Self, Failure> {
        make(names).map_err(|error| Failure::run("cannot make a certificate", error))
    }
}

fn make(names: &[String]) -> Result<Certificates, rcgen::Error> {
    let mut ca = params(Vec::new(), "Ticketing private CA")?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let ca_key = KeyPair::generate()?;
    let ca_pem = ca.self_signed(&ca_key)?.pem();

    let mut all: Vec<String> = LOCAL.map(str::to_owned).to_vec();
    all.extend(
        names
            .iter()
            .filter(|n| !LOCAL.contains(&n.as_str()))
            .cloned(),
    );
    let mut server = params(all, "Ticketing broker")?;
    server.is_ca = IsCa::ExplicitNoCa;
    server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    server.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    let cert = server.signed_by(&key, &Issuer::new(ca, ca_key))?.pem();
    Ok(Certificates {
        ca: ca_pem,
        cert,
        key: key.serialize_pem(),
    })
}

fn params(names: Vec<String>, common_name: &str) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let now = date_time_ymd(1970, 1, 1) + now;
    params.not_before = now - DAY * EARLIER_DAYS;
    params.not_after = now + DAY * VALID_DAYS;
    Ok(params)
}

/// A name that a certificate can hold and a client can ask for.
pub(super) fn name(text: &str) -> Result<String, String> {
    ServerName::try_from(text)
        .map(|_| text.to_owned())
        .map_err(|_| "allowed: a host name or an IP address, without a port".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_host_or_an_address() {
        for good in ["b.example", "localhost", "10.0.0.1", "fd00::1"] {
            assert_eq!(name(good).unwrap(), good);
        }
        for bad in [
            "",
            "a b",
            "b.example:5225",
            "*.example",
            "[::1]",
            "bücher.example",
        ] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }
}
