//! Certificates: making them, and judging whether one still serves. Pure but for the randomness of keys.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SerialNumber,
};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

/// How long a certificate lasts.
pub const LIFE: SignedDuration = SignedDuration::from_hours(365 * 24);
/// A certificate starts this much in the past, for clocks that are behind.
const EARLY: SignedDuration = SignedDuration::from_hours(1);
const NO_AUTHORITY: &str = "ca.crt holds no PEM certificate";
const NO_CERTIFICATE: &str = "tls.crt holds no PEM certificate";
const AUTHORITY: &str = "agent-sandbox-conversion-webhook-ca";

/// A server certificate with its key, and the authorities that clients should trust; all as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Pair {
    pub authorities: String,
    pub certificate: String,
    pub key: String,
}

/// What to do about a certificate.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Keep,
    /// It still works: its successor can be introduced without haste.
    Renew(Why),
    /// No client accepts it: there is nothing to be careful about.
    Replace(Why),
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    #[error("less than a third of its life is left")]
    NearExpiry,
    #[error("it has expired")]
    Expired,
    #[error("it is not valid yet")]
    NotYetValid,
    #[error("it was not issued for {0}")]
    OtherName(String),
    #[error("it was not issued by its authority")]
    OtherAuthority,
    #[error("its key is another one")]
    OtherKey,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("invalid certificate data: {0}")]
    Invalid(&'static str),
    #[error("failed to make a certificate")]
    Issue(#[from] rcgen::Error),
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// The names that an API server may call the webhook's Service by.
pub fn names(service: &str, namespace: &str, cluster_domain: &str) -> [String; 4] {
    let full = format!("{service}.{namespace}.svc");
    [service.to_owned(), format!("{service}.{namespace}"), full.clone(), format!("{full}.{cluster_domain}")]
}

/// Makes an authority and a certificate signed by it. The authority's key is thrown away: it signs nothing else.
pub fn issue(names: &[String; 4], now: Timestamp, life: SignedDuration) -> Result<Pair, Error> {
    let authority_key = KeyPair::generate()?;
    let mut authority = params(AUTHORITY, 1, now, life);
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let authorities = authority.self_signed(&authority_key)?.pem();
    let issuer = Issuer::new(authority, authority_key);

    let key = KeyPair::generate()?;
    let mut server = params(&names[2], 2, now, life);
    for name in names {
        server.subject_alt_names.push(rcgen::SanType::DnsName(name.as_str().try_into()?));
    }
    server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    server.use_authority_key_identifier_extension = true;
    let certificate = server.signed_by(&key, &issuer)?.pem();
    Ok(Pair { authorities, certificate, key: key.serialize_pem() })
}

fn params(name: &str, serial: u64, now: Timestamp, life: SignedDuration) -> CertificateParams {
    let at = |time: Timestamp| {
        let seconds = u64::try_from(time.as_second()).unwrap_or_default();
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds)
    };
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.serial_number = Some(SerialNumber::from(serial));
    params.not_before = at(now - EARLY);
    params.not_after = at(now + life);
    params
}

/// Whether a pair serves these names. An error means that it cannot be read at all.
pub fn judge(pair: &Pair, names: &[String; 4], now: Timestamp) -> Result<Verdict, Error> {
    if certified_key(pair).is_err() {
        // Readable but not matching, or not readable: `parts` tells.
        parts(pair)?;
        return Ok(Verdict::Replace(Why::OtherKey));
    }
    let chain = certificates(&pair.certificate, NO_CERTIFICATE)?;
    let authorities = certificates(&pair.authorities, NO_AUTHORITY)?;
    let server = parse(&chain[0])?;
    let mut signer = None;
    for authority in &authorities {
        let authority = parse(authority)?;
        if server.verify_signature(Some(authority.public_key())).is_ok() {
            signer = Some(authority.validity().clone());
        }
    }
    let Some(signer) = signer else { return Ok(Verdict::Replace(Why::OtherAuthority)) };
    let starts = server.validity().not_before.timestamp().max(signer.not_before.timestamp());
    let ends = server.validity().not_after.timestamp().min(signer.not_after.timestamp());
    let now = now.as_second();
    let known = dns_names(&server);
    let missing = |name: &&String| !known.contains(&name.as_str());
    // The name by which API servers call a Service; the others are for people.
    let called = &names[2];
    Ok(match () {
        () if now < starts => Verdict::Replace(Why::NotYetValid),
        () if now >= ends => Verdict::Replace(Why::Expired),
        () if missing(&called) => Verdict::Replace(Why::OtherName(called.clone())),
        () if ends - now < (ends - starts) / 3 => Verdict::Renew(Why::NearExpiry),
        () => match names.iter().find(missing) {
            Some(name) => Verdict::Renew(Why::OtherName(name.clone())),
            None => Verdict::Keep,
        },
    })
}

/// The pair in the form that the TLS server takes.
pub(crate) fn certified_key(pair: &Pair) -> Result<CertifiedKey, Error> {
    let (chain, key) = parts(pair)?;
    // Named, never the process default: another part of the program may have none or a different one.
    let provider = rustls::crypto::ring::default_provider();
    CertifiedKey::from_der(chain, key, &provider)
        .map_err(|_| Error::Invalid("tls.key does not belong to tls.crt"))
}

fn parts(pair: &Pair) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), Error> {
    let chain = certificates(&pair.certificate, NO_CERTIFICATE)?;
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes());
    Ok((chain, key.map_err(|_| Error::Invalid("tls.key holds no PEM key"))?))
}

/// The authorities of `pem` that have not expired, at most as many as rotations may leave behind.
pub(crate) fn living(pem: &str, now: Timestamp) -> Vec<String> {
    const MOST: usize = 3;
    let certificates = certificates(pem, NO_AUTHORITY).unwrap_or_default();
    let living = certificates.iter().filter(|der| {
        parse(der).is_ok_and(|certificate| certificate.validity().not_after.timestamp() > now.as_second())
    });
    living.take(MOST).map(|der| encode(der)).collect()
}

fn encode(der: &CertificateDer<'_>) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap_or_default()).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

fn certificates(pem: &str, missing: &'static str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    found.ok().filter(|certificates| !certificates.is_empty()).ok_or(Error::Invalid(missing))
}

fn parse<'a>(der: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, Error> {
    let parsed = X509Certificate::from_der(der);
    parsed.map(|(_, certificate)| certificate).map_err(|_| Error::Invalid("a certificate is not X.509"))
}

fn dns_names<'a>(certificate: &'a X509Certificate<'_>) -> Vec<&'a str> {
    let extension = certificate.subject_alternative_name().ok().flatten();
    let names = extension.into_iter().flat_map(|extension| &extension.value.general_names);
    names.filter_map(|name| if let GeneralName::DNSName(name) = name { Some(*name) } else { None }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: SignedDuration = SignedDuration::from_hours(24);

    fn names() -> [String; 4] {
        super::names("svc", "ns", "example.org")
    }

    fn now() -> Timestamp {
        "2026-11-16T00:00:00Z".parse().unwrap()
    }

    fn issued() -> Pair {
        issue(&names(), now(), LIFE).unwrap()
    }

    /// MG-20
    #[test]
    fn a_fresh_certificate_is_for_exactly_the_four_names_of_the_service() {
        let pair = issued();
        let chain = certificates(&pair.certificate, "").unwrap();
        let server = parse(&chain[0]).unwrap();
        assert_eq!(dns_names(&server), ["svc", "svc.ns", "svc.ns.svc", "svc.ns.svc.example.org"]);
        assert_eq!(server.subject().to_string(), "CN=svc.ns.svc");
        assert_eq!(server.issuer().to_string(), "CN=agent-sandbox-conversion-webhook-ca");
        assert_eq!(server.raw_serial(), [2]);
        assert_eq!(server.validity().not_before.timestamp(), (now() - EARLY).as_second());
        assert_eq!(server.validity().not_after.timestamp(), (now() + LIFE).as_second());
        let authorities = certificates(&pair.authorities, "").unwrap();
        let authority = parse(&authorities[0]).unwrap();
        assert!(authority.is_ca() && authority.raw_serial() == [1]);
    }

    #[test]
    fn a_certificate_is_judged_by_its_life_names_authority_and_key() {
        let (pair, other) = (issued(), issued());
        let verdict = |pair: &Pair, names: &[String; 4], now| judge(pair, names, now).unwrap();
        assert_eq!(verdict(&pair, &names(), now()), Verdict::Keep);
        assert_eq!(verdict(&pair, &names(), now() + DAY * 243), Verdict::Keep);
        assert_eq!(verdict(&pair, &names(), now() + DAY * 244), Verdict::Renew(Why::NearExpiry));
        assert_eq!(verdict(&pair, &names(), now() + LIFE), Verdict::Replace(Why::Expired));
        assert_eq!(verdict(&pair, &names(), now() - DAY), Verdict::Replace(Why::NotYetValid));
        let renamed = super::names("svc", "elsewhere", "example.org");
        let why = Why::OtherName("svc.elsewhere.svc".into());
        assert_eq!(verdict(&pair, &renamed, now()), Verdict::Replace(why));
        let another_domain = super::names("svc", "ns", "example.com");
        let why = Why::OtherName("svc.ns.svc.example.com".into());
        assert_eq!(
            verdict(&pair, &another_domain, now()),
            Verdict::Renew(why),
            "API servers still accept it"
        );
        let foreign = Pair { authorities: other.authorities.clone(), ..pair.clone() };
        assert_eq!(verdict(&foreign, &names(), now()), Verdict::Replace(Why::OtherAuthority));
        let wrong_key = Pair { key: other.key.clone(), ..pair.clone() };
        assert_eq!(verdict(&wrong_key, &names(), now()), Verdict::Replace(Why::OtherKey));
        let both = Pair { authorities: other.authorities + &pair.authorities, ..pair };
        assert_eq!(verdict(&both, &names(), now()), Verdict::Keep, "one of several authorities is enough");
    }

    /// MG-21
    #[test]
    fn what_is_no_certificate_is_an_error() {
        let pair = issued();
        for broken in [
            Pair { authorities: "x".into(), ..pair.clone() },
            Pair { certificate: "x".into(), ..pair.clone() },
            Pair { key: "x".into(), ..pair.clone() },
        ] {
            let error = judge(&broken, &names(), now()).unwrap_err();
            assert!(error.to_string().contains("invalid certificate data"), "{error}");
        }
    }

    #[test]
    fn expired_authorities_are_left_behind() {
        let (old, new) = (issued(), issue(&names(), now() + DAY, LIFE).unwrap());
        let both = format!("{}{}", new.authorities, old.authorities);
        assert_eq!(living(&both, now()).len(), 2);
        assert_eq!(
            certificates(&living(&both, now() + LIFE).concat(), "").unwrap(),
            certificates(&new.authorities, "").unwrap()
        );
    }

    #[test]
    fn a_key_is_never_printed() {
        let pair = issued();
        assert!(!format!("{pair:?}").contains("PRIVATE KEY"));
    }
}
