//! Digests of signatures, over the crates that the rest of the gateway signs with.
//!
//! Not the signatures themselves (<https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-authenticating-requests.html>).

use hmac::{Hmac, Mac};
use object_store::client::{
    CryptoProvider, DigestAlgorithm, DigestContext, HmacContext, Signer, SigningAlgorithm,
};
use object_store::{Error, Result};
use sha2::{Digest, Sha256};

/// Provider of SHA-256 and HMAC-SHA256.
#[derive(Debug)]
pub(super) struct SignatureDigests;

fn unsupported() -> Error {
    Error::NotSupported {
        source: "only SHA-256".into(),
    }
}

impl CryptoProvider for SignatureDigests {
    fn digest(&self, algorithm: DigestAlgorithm) -> Result<Box<dyn DigestContext>> {
        match algorithm {
            DigestAlgorithm::Sha256 => Ok(Box::new(Sha256Digest::default())),
            _ => Err(unsupported()),
        }
    }

    fn hmac(&self, algorithm: DigestAlgorithm, secret: &[u8]) -> Result<Box<dyn HmacContext>> {
        match algorithm {
            DigestAlgorithm::Sha256 => Ok(Box::new(Sha256Hmac {
                mac: Hmac::new_from_slice(secret).expect("a key of any length will do"),
                done: Vec::new(),
            })),
            _ => Err(unsupported()),
        }
    }

    fn sign(&self, _: SigningAlgorithm, _: &[u8]) -> Result<Box<dyn Signer>> {
        Err(unsupported())
    }
}

#[derive(Default)]
struct Sha256Digest {
    digest: Sha256,
    done: Vec<u8>,
}

impl DigestContext for Sha256Digest {
    fn update(&mut self, data: &[u8]) {
        self.digest.update(data);
    }

    fn finish(&mut self) -> Result<&[u8]> {
        self.done = self.digest.finalize_reset().to_vec();
        Ok(&self.done)
    }
}

struct Sha256Hmac {
    mac: Hmac<Sha256>,
    done: Vec<u8>,
}

impl HmacContext for Sha256Hmac {
    fn update(&mut self, data: &[u8]) {
        self.mac.update(data);
    }

    fn finish(&mut self) -> Result<&[u8]> {
        self.done = self.mac.clone().finalize().into_bytes().to_vec();
        Ok(&self.done)
    }
}
