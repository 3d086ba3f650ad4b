//! Authorities that are trusted: the public ones, which are compiled in, or those of a file.
//!
//! Nothing is checked by them here. The file takes the place of the public ones (docs/decisions/017).

use std::path::Path;
use std::sync::{Arc, LazyLock};

use rustls::RootCertStore;

use super::pem::{certificates, read_pem};

/// Authorities of `webpki-roots`: those that Mozilla trusts.
static PUBLIC: LazyLock<Arc<RootCertStore>> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    Arc::new(roots)
});

/// Returns the public authorities.
pub(super) fn public_roots() -> Arc<RootCertStore> {
    Arc::clone(&PUBLIC)
}

/// Returns all certificates of a PEM file as authorities.
///
/// # Errors
/// A certificate in it is of no use, or there is none.
pub(super) fn roots_of(pem: &[u8]) -> Result<Arc<RootCertStore>, String> {
    let mut roots = RootCertStore::empty();
    for (at, certificate) in certificates(pem)?.into_iter().enumerate() {
        let number = at + 1;
        roots
            .add(certificate)
            .map_err(|error| format!("certificate {number} is of no use: {error}"))?;
    }
    Ok(Arc::new(roots))
}

/// Reads the certificates in the PEM file at `path`, and checks that they can be authorities.
///
/// # Errors
/// Reason for which the file is of no use, for the operator.
pub fn read_ca_file(path: &Path) -> Result<Arc<[u8]>, String> {
    let pem = read_pem(path)?;
    match roots_of(&pem) {
        Ok(_) => Ok(pem.into()),
        Err(fault) => Err(format!("{}: {fault}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_certificates_is_of_no_use_and_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        let fault = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read_ca_file(&path).unwrap_err()
        };
        assert!(fault("").contains("no certificate in it"));
        assert!(fault("no PEM at all").contains("no certificate in it"));
        let torn = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(fault(torn).contains("certificate 1"));
        assert!(
            read_ca_file(&dir.path().join("none"))
                .unwrap_err()
                .contains("cannot read")
        );
    }
}
