//! Own certificate with its private key, as it is presented to others.
//!
//! Whether others trust it is checked by [`MutualTls`](super::MutualTls). A new file makes a new value.

use std::sync::Arc;

use rustls::InconsistentKeys;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::sign::{CertifiedKey, SingleCertAndKey};

use super::names::CertificateNames;
use super::pem::{certificates, private_key};

/// File of credentials, by its configuration key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialFile {
    /// Own certificate, then those between it and the authority's.
    Certificate,
    /// Its private key.
    PrivateKey,
    /// Authority of those that connect.
    ClientCa,
    /// Revoked certificates.
    Crl,
}

impl CredentialFile {
    /// Key in the configuration.
    pub fn key(self) -> &'static str {
        match self {
            CredentialFile::Certificate => "certificate",
            CredentialFile::PrivateKey => "private_key",
            CredentialFile::ClientCa => "client_ca",
            CredentialFile::Crl => "crl",
        }
    }
}

/// Fault of a file, for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialFault {
    /// The file.
    pub file: CredentialFile,
    /// One sentence.
    pub message: String,
}

impl CredentialFault {
    /// Fault of `file`.
    pub fn new(file: CredentialFile, message: String) -> CredentialFault {
        CredentialFault { file, message }
    }
}

/// Own certificate, with those between it and the authority's, and its private key.
pub struct OwnCertificate {
    certified_key: Arc<CertifiedKey>,
    names: CertificateNames,
}

impl OwnCertificate {
    /// Reads a certificate and the key that belongs to it.
    ///
    /// # Errors
    /// The first fault, with its file.
    pub fn from_pem(
        certificate: &[u8],
        private_key_pem: &[u8],
    ) -> Result<OwnCertificate, CredentialFault> {
        let of_certificate = |fault| CredentialFault::new(CredentialFile::Certificate, fault);
        let of_key = |fault| CredentialFault::new(CredentialFile::PrivateKey, fault);
        let chain = certificates(certificate).map_err(of_certificate)?;
        let names = CertificateNames::read(&chain[0]).map_err(of_certificate)?;
        let key = private_key(private_key_pem).map_err(of_key)?;
        let key = ring::default_provider().key_provider.load_private_key(key);
        let key = key.map_err(|error| {
            of_key(format!(
                "its key cannot be used: {error}; expected ECDSA with P-256 or P-384, Ed25519, or RSA from 2048 bits"
            ))
        })?;
        let certified_key = CertifiedKey::new(chain, key);
        if let Err(error) = match_keys(&certified_key) {
            return Err(match position_of_key(&certified_key) {
                Some(at) => of_certificate(format!(
                    "certificate {at} is that of `private_key`, and has to be the first of the file"
                )),
                None => of_key(format!(
                    "does not go with `certificate`: {error}; renew both files together"
                )),
            });
        }
        Ok(OwnCertificate {
            certified_key: Arc::new(certified_key),
            names,
        })
    }

    /// Names in it.
    pub fn names(&self) -> &CertificateNames {
        &self.names
    }

    /// The certificate with its key.
    pub(super) fn certified_key(&self) -> &Arc<CertifiedKey> {
        &self.certified_key
    }

    /// Certificates in the order of the file, the own one first.
    pub(super) fn chain(&self) -> &[CertificateDer<'static>] {
        &self.certified_key.cert
    }

    /// Presents it in every handshake of a configuration.
    pub(super) fn resolver(&self) -> Arc<SingleCertAndKey> {
        Arc::new(SingleCertAndKey::from(Arc::clone(&self.certified_key)))
    }
}

/// Checks that the key is that of the first certificate, where that can be told.
fn match_keys(certified_key: &CertifiedKey) -> Result<(), rustls::Error> {
    match certified_key.keys_match() {
        Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(()),
        matched => matched,
    }
}

/// Position of the certificate that the key belongs to, from 1.
fn position_of_key(certified_key: &CertifiedKey) -> Option<usize> {
    let is_its = |certificate: &CertificateDer<'static>| {
        let key = Arc::clone(&certified_key.key);
        let alone = CertifiedKey::new(vec![certificate.clone()], key);
        alone.keys_match().is_ok()
    };
    let at = certified_key.cert.iter().position(is_its)?;
    Some(at + 1)
}
