//! Certificates that somebody else keeps in files: which files they are.

use std::path::{Path, PathBuf};

use crate::certificate::Pair;

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
/// Holds both when the usual two are absent.
const COMBINED: &str = "cert.pem";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "{0} is missing; put the webhook's certificate there, or let this program manage it (--manage-webhook-certs)"
    )]
    Missing(PathBuf),
    #[error("{0} must be a regular file")]
    NotAFile(PathBuf),
    #[error("failed to read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

/// The certificate and the key in `dir`. A missing default pair may be one file, `cert.pem`, that holds both.
pub(crate) fn resolve(dir: &Path, certificate: &str, key: &str) -> Result<(PathBuf, PathBuf), Error> {
    let pair = (dir.join(certificate), dir.join(key));
    let usual = certificate == CERTIFICATE && key == KEY;
    if usual && !pair.0.exists() && !pair.1.exists() {
        let combined = dir.join(COMBINED);
        if combined.exists() {
            return Ok((regular(combined.clone())?, combined));
        }
    }
    Ok((regular(pair.0)?, regular(pair.1)?))
}

fn regular(path: PathBuf) -> Result<PathBuf, Error> {
    match std::fs::metadata(&path) {
        Ok(found) if found.is_file() => Ok(path),
        Ok(_) => Err(Error::NotAFile(path)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Error::Missing(path)),
        Err(source) => Err(Error::Read { path, source }),
    }
}

/// Reads both. Nothing is known about the authority: whoever wrote the files also tells the API server.
pub(crate) fn read(dir: &Path, certificate: &str, key: &str) -> Result<Pair, Error> {
    let (certificate, key) = resolve(dir, certificate, key)?;
    let text = |path: PathBuf| std::fs::read_to_string(&path).map_err(|source| Error::Read { path, source });
    Ok(Pair { authorities: String::new(), certificate: text(certificate)?, key: text(key)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate;

    fn dir(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            std::fs::write(dir.path().join(name), content).unwrap();
        }
        dir
    }

    fn resolved(dir: &tempfile::TempDir, certificate: &str, key: &str) -> Result<[String; 2], Error> {
        let name = |path: PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
        resolve(dir.path(), certificate, key).map(|(certificate, key)| [name(certificate), name(key)])
    }

    /// MG-23
    #[test]
    fn files_are_found_by_name_and_cert_pem_stands_in_for_an_absent_default_pair() {
        let usual = dir(&[("tls.crt", ""), ("tls.key", ""), ("cert.pem", "")]);
        assert_eq!(resolved(&usual, "tls.crt", "tls.key").unwrap(), ["tls.crt", "tls.key"]);
        let custom = dir(&[("a.crt", ""), ("a.key", "")]);
        assert_eq!(resolved(&custom, "a.crt", "a.key").unwrap(), ["a.crt", "a.key"]);
        let combined = dir(&[("cert.pem", "")]);
        assert_eq!(resolved(&combined, "cert.pem", "cert.pem").unwrap(), ["cert.pem", "cert.pem"]);
        assert_eq!(resolved(&combined, "tls.crt", "tls.key").unwrap(), ["cert.pem", "cert.pem"]);
        assert!(matches!(resolved(&combined, "a.crt", "a.key"), Err(Error::Missing(_))), "custom names");
        let half = dir(&[("tls.crt", ""), ("cert.pem", "")]);
        assert!(
            matches!(resolved(&half, "tls.crt", "tls.key"), Err(Error::Missing(_))),
            "only one is missing"
        );
        let folder = dir(&[("tls.key", "")]);
        std::fs::create_dir(folder.path().join("tls.crt")).unwrap();
        assert!(matches!(resolved(&folder, "tls.crt", "tls.key"), Err(Error::NotAFile(_))));
    }

    /// MG-23
    #[test]
    fn a_combined_file_is_a_certificate_with_its_key() {
        let names = certificate::names("svc", "ns", "cluster.local");
        let pair = certificate::issue(&names, jiff::Timestamp::now(), certificate::LIFE).unwrap();
        for text in [format!("{}{}", pair.certificate, pair.key), format!("{}{}", pair.key, pair.certificate)]
        {
            let dir = dir(&[("cert.pem", &text)]);
            let read = read(dir.path(), "tls.crt", "tls.key").unwrap();
            assert!(certificate::certified_key(&read).is_ok());
        }
    }
}
