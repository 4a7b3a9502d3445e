//! Keys, certificates and the token, in files that only their owner can read.

use std::io::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use rand::TryRngCore as _;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::Error;

const CA_DAYS: i64 = 3650;
const SERVER_DAYS: i64 = 365;
/// A certificate with less than this left is replaced.
const RENEW_DAYS: i64 = 30;

/// The authority that signs the server's certificates.
pub(crate) struct Authority {
    pub certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A server certificate with its key.
pub(crate) struct Identity {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
    pub renew_at: Timestamp,
}

pub(crate) fn private_dir(path: &Path) -> Result<(), Error> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| Error::Directory { path: path.to_owned(), source })
}

/// Replaces a file in one step; nobody but its owner can read it at any time.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> Result<(), Error> {
    let fail = |source| Error::File { path: path.to_owned(), source };
    let next = path.with_extension(format!("new-{}", std::process::id()));
    let _ = std::fs::remove_file(&next);
    let mut file =
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&next).map_err(fail)?;
    file.write_all(content).and_then(|()| file.sync_all()).map_err(fail)?;
    std::fs::rename(&next, path).map_err(fail)
}

/// The bearer token of this server, made when first needed.
pub(crate) fn token(path: &Path) -> Result<String, Error> {
    match std::fs::read_to_string(path) {
        Ok(token) if token.trim().len() >= 43 => return Ok(token.trim().to_owned()),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(source) => return Err(Error::File { path: path.to_owned(), source }),
    }
    let mut secret = [0; 32];
    rand::rngs::OsRng
        .try_fill_bytes(&mut secret)
        .map_err(|error| Error::Setup { what: "the token".into(), message: error.to_string() })?;
    let token = URL_SAFE_NO_PAD.encode(secret);
    write_private(path, token.as_bytes())?;
    Ok(token)
}

impl Authority {
    /// Reads the authority kept in `dir`, or makes a new one when there is none or it is about to expire.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        private_dir(dir)?;
        let (certificate, key) = (dir.join("ca.crt"), dir.join("ca.key"));
        if let (Ok(pem), Ok(key)) = (std::fs::read_to_string(&certificate), std::fs::read_to_string(&key))
            && let (Some(ends), Ok(key)) = (expiry(&pem), KeyPair::from_pem(&key))
            && ends - SignedDuration::from_hours(24 * RENEW_DAYS) > Timestamp::now()
        {
            return Ok(Self { certificate_pem: pem, issuer: Issuer::new(ca_params(), key) });
        }
        let pair = KeyPair::generate().map_err(Error::Certificate)?;
        let params = ca_params();
        let pem = params.self_signed(&pair).map_err(Error::Certificate)?.pem();
        write_private(&key, pair.serialize_pem().as_bytes())?;
        write_private(&certificate, pem.as_bytes())?;
        Ok(Self { certificate_pem: pem, issuer: Issuer::new(params, pair) })
    }

    /// The certificate kept in `dir` while it is good for this address, else a new one.
    pub fn server_identity(&self, dir: &Path, address: IpAddr) -> Result<Identity, Error> {
        let (certificate, key) = (dir.join("server.crt"), dir.join("server.key"));
        let (authority, named) = (dir.join("server.ca"), dir.join("server.names"));
        let names = names(address);
        if let (Ok(pem), Ok(key), Ok(signer), Ok(kept)) = (
            std::fs::read_to_string(&certificate),
            PrivateKeyDer::from_pem_file(&key),
            std::fs::read_to_string(&authority),
            std::fs::read_to_string(&named),
        ) && signer == self.certificate_pem
            && kept.lines().eq(&names)
            && let (Some(ends), Ok(der)) = (expiry(&pem), CertificateDer::from_pem_slice(pem.as_bytes()))
            && ends - SignedDuration::from_hours(24 * RENEW_DAYS) > Timestamp::now()
        {
            let renew_at = ends - SignedDuration::from_hours(24 * RENEW_DAYS);
            return Ok(Identity { chain: vec![der], key, renew_at });
        }
        let pair = KeyPair::generate().map_err(Error::Certificate)?;
        // First, so that no crash leaves the new names beside the old certificate.
        let _ = std::fs::remove_file(&named);
        let mut params = CertificateParams::new(names.clone()).map_err(Error::Certificate)?;
        params.distinguished_name.push(DnType::CommonName, "agent-sandbox-apiserver");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        validity(&mut params, SERVER_DAYS);
        let signed = params.signed_by(&pair, &self.issuer).map_err(Error::Certificate)?;
        write_private(&key, pair.serialize_pem().as_bytes())?;
        write_private(&certificate, signed.pem().as_bytes())?;
        write_private(&authority, self.certificate_pem.as_bytes())?;
        write_private(&named, names.join("\n").as_bytes())?;
        Ok(Identity {
            chain: vec![signed.der().clone()],
            key: PrivatePkcs8KeyDer::from(pair.serialize_der()).into(),
            renew_at: Timestamp::now() + SignedDuration::from_hours(24 * (SERVER_DAYS - RENEW_DAYS)),
        })
    }
}

/// What clients call a server that listens at this address.
fn names(address: IpAddr) -> Vec<String> {
    let mut names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
    let own = address.to_string();
    if !address.is_unspecified() && !names.contains(&own) {
        names.push(own);
    }
    names
}

fn ca_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "agent-sandbox-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    validity(&mut params, CA_DAYS);
    params
}

fn validity(params: &mut CertificateParams, days: i64) {
    let day = |offset: i64| {
        let date =
            (Timestamp::now() + SignedDuration::from_hours(24 * offset)).to_zoned(jiff::tz::TimeZone::UTC);
        rcgen::date_time_ymd(i32::from(date.year()), date.month() as u8, date.day() as u8)
    };
    // A day early, for clocks that are behind.
    params.not_before = day(-1);
    params.not_after = day(days);
}

/// When a certificate ends: the second time of its Validity, found by walking the DER.
fn expiry(pem: &str) -> Option<Timestamp> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
    let (_, certificate, _) = element(&der)?;
    let (_, mut body, _) = element(certificate)?;
    // version, serial, algorithm and issuer come before the validity.
    for _ in 0..4 {
        body = element(body)?.2;
    }
    let (_, validity, _) = element(body)?;
    let (_, _, rest) = element(validity)?;
    let (tag, text, _) = element(rest)?;
    let text = std::str::from_utf8(text).ok()?;
    // UTCTime has a two-digit year that means 2000 to 2049 in certificates made today.
    let text = if tag == 0x17 { format!("20{text}") } else { text.to_owned() };
    jiff::civil::DateTime::strptime("%Y%m%d%H%M%SZ", &text)
        .ok()?
        .to_zoned(jiff::tz::TimeZone::UTC)
        .ok()
        .map(|z| z.timestamp())
}

/// Splits off one DER element: its tag, its content and what follows.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = der.split_first()?;
    let (first, mut rest) = rest.split_first()?;
    let mut length = usize::from(*first);
    if length >= 0x80 {
        let (bytes, after) = rest.split_at_checked(length & 0x7f)?;
        length = bytes.iter().fold(0, |sum, byte| (sum << 8) | usize::from(*byte));
        rest = after;
    }
    let (content, after) = rest.split_at_checked(length)?;
    Some((*tag, content, after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::os::unix::fs::PermissionsExt as _;

    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn the_certificate_names_the_address_that_the_server_listens_at() {
        let dir = tempfile::tempdir().expect("a directory");
        let authority = Authority::open(dir.path()).expect("made");
        let of = |address: &str| {
            let address = address.parse().expect("an address");
            authority.server_identity(dir.path(), address).expect("made").chain
        };
        let local = of("127.0.0.1");
        assert_eq!(of("0.0.0.0"), local, "clients of the kubeconfig use loopback");
        let other = of("192.0.2.2");
        assert_ne!(other, local);
        assert!(
            other[0].windows(4).any(|bytes| bytes == [192, 0, 2, 2]),
            "the address is in the certificate"
        );
        assert_eq!(of("192.0.2.2"), other, "it is kept");
        assert_ne!(of("::1"), other, "an address that is gone is no name any more");
    }

    #[test]
    fn the_authority_is_kept_and_its_end_is_known() {
        let dir = tempfile::tempdir().expect("a directory");
        let first = Authority::open(dir.path()).expect("made");
        let days = (expiry(&first.certificate_pem).expect("an end").as_second()
            - Timestamp::now().as_second())
            / 86_400;
        assert!((CA_DAYS - 2..=CA_DAYS).contains(&days), "{days}");
        let identity = first.server_identity(dir.path(), LOOPBACK).expect("made");
        let second = Authority::open(dir.path()).expect("read");
        assert_eq!(first.certificate_pem, second.certificate_pem);
        assert_eq!(second.server_identity(dir.path(), LOOPBACK).expect("read").chain, identity.chain);
        for file in ["ca.key", "server.key"] {
            let mode = std::fs::metadata(dir.path().join(file)).expect("there").permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
    }

    #[test]
    fn a_certificate_of_another_authority_is_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let old =
            Authority::open(dir.path()).expect("made").server_identity(dir.path(), LOOPBACK).expect("made");
        std::fs::remove_file(dir.path().join("ca.crt")).expect("there");
        let new =
            Authority::open(dir.path()).expect("made").server_identity(dir.path(), LOOPBACK).expect("made");
        assert_ne!(old.chain, new.chain);
    }
}
