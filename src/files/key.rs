//! Key of signed downloads: made once, kept in `state_dir`.
//!
//! Signatures are HMAC-SHA256 (<https://www.rfc-editor.org/rfc/rfc2104>) over id, owner and moment of the end.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use hmac::{Hmac, Mac};
use infergate_core::AccountId;
use sha2::{Digest, Sha256};

use super::disk::{create_folder, create_new, remove};
use super::file_id::FileId;

/// Name of the file in `state_dir`.
const FILE: &str = "files.key";
const KEY_BYTES: usize = 32;
/// Bytes of an owner's digest.
const OWNER_BYTES: usize = 8;

/// Key of signed downloads.
pub struct DownloadKey([u8; KEY_BYTES]);

impl DownloadKey {
    /// Reads the key, or makes one where there is none.
    ///
    /// # Errors
    /// The system's, and a file that is no key.
    pub fn open(state_dir: &Path) -> io::Result<DownloadKey> {
        let path = state_dir.join(FILE);
        match fs::read(&path) {
            Ok(bytes) => {
                let key = bytes.try_into();
                key.map(DownloadKey)
                    .map_err(|_| io::Error::other(format!("{FILE} is no key: remove it")))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => DownloadKey::create(state_dir),
            Err(error) => Err(error),
        }
    }

    fn create(state_dir: &Path) -> io::Result<DownloadKey> {
        let mut key = [0; KEY_BYTES];
        File::open("/dev/urandom")?.read_exact(&mut key)?;
        create_folder(state_dir)?;
        let part = state_dir.join(format!("{FILE}.part"));
        remove(&part)?;
        let mut file = create_new(&part)?;
        file.write_all(&key)?;
        file.sync_data()?;
        fs::rename(part, state_dir.join(FILE))?;
        Ok(DownloadKey(key))
    }

    fn mac(&self, id: FileId, owner: &str, expiry_secs: u64) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of any length will do");
        mac.update(format!("{id} {owner} {expiry_secs}").as_bytes());
        mac
    }

    /// Returns the signature of a download, hex.
    pub fn sign(&self, id: FileId, owner: &str, expiry_secs: u64) -> String {
        hex::encode(self.mac(id, owner, expiry_secs).finalize().into_bytes())
    }

    /// Returns whether a signature is right; the time it takes says nothing about it.
    pub fn is_signed(&self, id: FileId, owner: &str, expiry_secs: u64, signature: &str) -> bool {
        let Ok(signature) = hex::decode(signature) else {
            return false;
        };
        let mac = self.mac(id, owner, expiry_secs);
        mac.verify_slice(&signature).is_ok()
    }
}

/// Name of an account in URLs, which does not show its id.
pub fn owner_of(account: &AccountId) -> String {
    hex::encode(&Sha256::digest(account.as_str())[..OWNER_BYTES])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_of_one_file_one_owner_and_one_moment() {
        let dir = tempfile::tempdir().unwrap();
        let key = DownloadKey::open(dir.path()).unwrap();
        let (id, other) = (FileId::random(), FileId::random());
        let signature = key.sign(id, "o", 7);
        assert!(key.is_signed(id, "o", 7, &signature));
        assert!(!key.is_signed(other, "o", 7, &signature));
        assert!(!key.is_signed(id, "p", 7, &signature));
        assert!(!key.is_signed(id, "o", 8, &signature));
        assert!(!key.is_signed(id, "o", 7, &signature[..62]));
        assert!(!key.is_signed(id, "o", 7, "é"));
        let again = DownloadKey::open(dir.path()).unwrap();
        assert_eq!(again.sign(id, "o", 7), signature);
    }
}
