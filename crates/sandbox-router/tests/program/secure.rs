//! TLS, certificates that change, certificates of clients.

use std::path::{Path, PathBuf};
use std::process::Command;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use crate::world::{Cluster, Program, eventually, program, said};

/// An authority with the files of what it signed.
struct Authority {
    dir: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "test authority");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.crt"), issuer.pem()).unwrap();
        Self { dir, issuer }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Signs a certificate and writes it with its key into a directory.
    fn sign(&self, common_name: &str, dir: &Path) {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, common_name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::create_dir_all(dir).unwrap();
        // The key first: what is read between the two does not fit, and must change nothing.
        std::fs::write(dir.join("tls.key"), key.serialize_pem()).unwrap();
        std::fs::write(dir.join("tls.crt"), certificate.pem()).unwrap();
    }
}

/// What curl says, and the subject of the server's certificate.
fn curl(authority: &Authority, program: &Program, more: &[&str]) -> (bool, String, String) {
    let port = program.address("https").rsplit_once(':').unwrap().1.to_owned();
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--verbose", "--http1.1", "--cacert"])
        .arg(authority.path("ca.crt"))
        .args(["--resolve", &format!("localhost:{port}:127.0.0.1")])
        .args(more)
        .arg(format!("https://localhost:{port}/echo"))
        .output()
        .expect("curl can be started");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let subject =
        told.lines().find_map(|line| line.split_once("subject: ")).map(|(_, it)| it.trim().to_owned());
    let body = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.success(), format!("{body}{told}"), subject.unwrap_or_default())
}

fn flags(certificates: &Path, more: &[String]) -> Vec<String> {
    let file = |flag: &str, name: &str| format!("--{flag}={}", certificates.join(name).display());
    let mut flags = vec![
        "--authz-mode=allow-all".to_owned(),
        "--https-bind-address=127.0.0.1:0".to_owned(),
        file("tls-cert-file", "tls.crt"),
        file("tls-key-file", "tls.key"),
    ];
    flags.extend_from_slice(more);
    flags
}

fn start(cluster: &Cluster, certificates: &Path, more: &[String]) -> Program {
    let flags = flags(certificates, more);
    cluster.program(&flags.iter().map(String::as_str).collect::<Vec<_>>())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_replaced_without_a_restart() {
    let cluster = Cluster::start().await;
    let authority = Authority::new();
    let mounted = authority.path("mounted");
    // As a kubelet mounts a Secret: files lead through `..data` into a directory of one version.
    authority.sign("first", &mounted.join("..v1"));
    std::os::unix::fs::symlink("..v1", mounted.join("..data")).unwrap();
    for name in ["tls.crt", "tls.key"] {
        std::os::unix::fs::symlink(format!("..data/{name}"), mounted.join(name)).unwrap();
    }
    let program = start(&cluster, &mounted, &[]);
    let sandbox = ["--header", "X-Sandbox-ID: web", "--header", &format!("X-Sandbox-Port: {}", cluster.port)];
    let (works, told, subject) = curl(&authority, &program, &sandbox);
    assert!(works && subject.contains("first"), "{told}");
    assert!(told.contains("x-forwarded-proto: https"), "{told}");

    authority.sign("second", &mounted.join("..v2"));
    std::os::unix::fs::symlink("..v2", mounted.join("..next")).unwrap();
    std::fs::rename(mounted.join("..next"), mounted.join("..data")).unwrap();
    eventually("the second is shown", || curl(&authority, &program, &sandbox).2.contains("second"));

    let reloads = |outcome: &str| {
        let page = program.get("metrics", "/metrics").body;
        let name = format!("sandbox_router_cert_reloads_total{{outcome=\"{outcome}\"}} ");
        page.lines().find_map(|line| line.strip_prefix(&name).map(str::to_owned)).unwrap_or_default()
    };
    assert_eq!(reloads("success"), "2");
    // What cannot be used changes nothing.
    std::fs::write(mounted.join("..v2/tls.crt"), "no certificate").unwrap();
    std::os::unix::fs::symlink("..v2", mounted.join("..next")).unwrap();
    std::fs::rename(mounted.join("..next"), mounted.join("..data")).unwrap();
    eventually("the failure is counted", || !reloads("failure").is_empty());
    assert!(curl(&authority, &program, &sandbox).2.contains("second"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_show_certificates_when_they_must_and_only_good_ones() {
    let cluster = Cluster::start().await;
    let authority = Authority::new();
    let certificates = authority.path("server");
    authority.sign("server", &certificates);
    authority.sign("client", &authority.path("client"));
    let stranger = Authority::new();
    stranger.sign("stranger", &stranger.path("client"));
    let shows = |authority: &Authority| {
        let file = |name: &str| authority.path("client").join(name).display().to_string();
        ["--cert".to_owned(), file("tls.crt"), "--key".to_owned(), file("tls.key")]
    };
    for (mode, without, with_bad) in
        [("off", true, true), ("optional", true, false), ("required", false, false)]
    {
        let authorities = format!("--tls-client-ca-file={}", authority.path("ca.crt").display());
        let mut more = vec![format!("--mtls-mode={mode}")];
        more.extend((mode != "off").then_some(authorities));
        let program = start(&cluster, &certificates, &more);
        let works = |certificate: &[String]| {
            let flags: Vec<&str> = certificate.iter().map(String::as_str).collect();
            curl(&authority, &program, &flags).0
        };
        assert_eq!(works(&[]), without, "{mode}: without a certificate");
        assert!(works(&shows(&authority)), "{mode}: with a good one");
        assert_eq!(works(&shows(&stranger)), with_bad, "{mode}: with one of another authority");
    }
}

#[test]
fn files_that_hold_nothing_usable_are_named() {
    let authority = Authority::new();
    let certificates = authority.path("server");
    authority.sign("server", &certificates);
    let empty = authority.path("empty.crt");
    std::fs::write(&empty, "").unwrap();
    let authorities = |path: &Path| {
        vec!["--mtls-mode=required".to_owned(), format!("--tls-client-ca-file={}", path.display())]
    };
    for (dir, more, names) in [
        (authority.path("missing"), vec![], "--tls-cert-file"),
        (certificates.clone(), authorities(&empty), "--tls-client-ca-file"),
        (certificates.clone(), authorities(&authority.path("gone")), "--tls-client-ca-file"),
        (certificates.clone(), authorities(&certificates.join("tls.key")), "--tls-client-ca-file"),
    ] {
        let (output, said) = said(program().args(flags(&dir, &more)).arg("--http-bind-address=127.0.0.1:0"));
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(names), "{names}: {said}");
    }
}
