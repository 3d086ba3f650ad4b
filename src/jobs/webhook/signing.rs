//! Signatures of webhooks (<https://www.standardwebhooks.com>), and the keys they are made with.
//!
//! Not the requests. An account's key follows from the configured secret; without one a random secret is made and
//! kept in `state_dir`, so that keys outlast a restart.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use infergate_core::AccountId;
use infergate_core::model::Secret;
use sha2::Sha256;

use crate::jobs::config::WebhooksConfig;

/// Name of the kept secret in the folder of the store.
const FILE: &str = "webhook-secret";
/// Bytes of a secret that is made.
const SECRET_BYTES: usize = 32;
/// Longest kept secret that is read, bytes.
const SECRET_BYTES_MAX: u64 = 4096;

/// Signed part of a request.
#[derive(Clone, Copy, Debug)]
pub struct SignedMessage<'a> {
    /// `webhook-id`.
    pub id: &'a str,
    /// `webhook-timestamp`, seconds since 1970.
    pub timestamp: u64,
    /// Body.
    pub body: &'a [u8],
}

impl SignedMessage<'_> {
    /// Returns the signature with `key`, as one word of `webhook-signature`.
    pub fn signature(&self, key: &[u8]) -> String {
        let head = format!("{}.{}.", self.id, self.timestamp);
        let digest = keyed_digest(key, &[head.as_bytes(), self.body]);
        format!("v1,{}", STANDARD.encode(digest))
    }
}

/// Secrets of the configuration.
#[derive(Debug, Default)]
struct ConfiguredSecrets {
    current: Option<Secret>,
    previous: Vec<Secret>,
}

/// Keys of all accounts.
pub struct SigningKeys {
    folder: PathBuf,
    configured: ArcSwap<ConfiguredSecrets>,
    kept: OnceLock<Arc<str>>,
}

impl SigningKeys {
    /// Creates the keys of a configuration; `folder` has the secret that is made where none is configured.
    pub fn new(folder: &Path, config: &WebhooksConfig) -> SigningKeys {
        let keys = SigningKeys {
            folder: folder.to_owned(),
            configured: ArcSwap::default(),
            kept: OnceLock::new(),
        };
        keys.configure(config);
        keys
    }

    /// Applies another configuration.
    pub fn configure(&self, config: &WebhooksConfig) {
        self.configured.store(Arc::new(ConfiguredSecrets {
            current: config.secret.clone(),
            previous: config.previous_secrets.clone(),
        }));
        if config.secret.is_none()
            && let Err(error) = self.kept_secret()
        {
            tracing::warn!(%error, "no secret for webhooks can be kept yet: none is sent until then");
        }
    }

    /// Returns the key of an account as its owner gets to see it.
    ///
    /// # Errors
    /// No secret is configured, and none can be kept.
    pub fn shown_key(&self, account: &AccountId) -> io::Result<String> {
        let key = match &self.configured.load().current {
            Some(secret) => account_key(secret.reveal(), account),
            None => account_key(&self.kept_secret()?, account),
        };
        Ok(format!("whsec_{}", STANDARD.encode(key)))
    }

    /// Returns the header `webhook-signature`: one signature for the present secret and each former one.
    ///
    /// # Errors
    /// As [`SigningKeys::shown_key`].
    pub fn sign(&self, account: &AccountId, message: SignedMessage<'_>) -> io::Result<String> {
        let configured = self.configured.load();
        let sign = |secret: &str| message.signature(&account_key(secret, account));
        let mut signatures = match &configured.current {
            Some(secret) => sign(secret.reveal()),
            None => sign(&self.kept_secret()?),
        };
        for secret in &configured.previous {
            signatures.push(' ');
            signatures.push_str(&sign(secret.reveal()));
        }
        Ok(signatures)
    }

    /// Secret of the file, which is made where there is none.
    fn kept_secret(&self) -> io::Result<Arc<str>> {
        if let Some(kept) = self.kept.get() {
            return Ok(Arc::clone(kept));
        }
        let secret = match read_secret(&self.folder.join(FILE))? {
            Some(secret) => secret,
            None => make_secret(&self.folder)?,
        };
        Ok(Arc::clone(self.kept.get_or_init(|| secret)))
    }
}

/// Key of an account: it cannot be used to find the secret or the key of another.
fn account_key(secret: &str, account: &AccountId) -> [u8; 32] {
    let name = account.as_str().as_bytes();
    keyed_digest(secret.as_bytes(), &[b"webhook:", name])
}

fn keyed_digest(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut digest: Hmac<Sha256> =
        Hmac::new_from_slice(key).expect("HMAC takes keys of any length");
    for part in parts {
        digest.update(part);
    }
    digest.finalize().into_bytes().into()
}

fn read_secret(path: &Path) -> io::Result<Option<Arc<str>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = String::new();
    file.take(SECRET_BYTES_MAX).read_to_string(&mut text)?;
    match text.trim() {
        "" => Err(io::Error::other(format!("{} is empty", path.display()))),
        secret => Ok(Some(secret.into())),
    }
}

/// Makes a secret of the system's randomness. Written beside and renamed, so that the file is whole or not there.
fn make_secret(folder: &Path) -> io::Result<Arc<str>> {
    let mut random = [0; SECRET_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    let secret = hex::encode(random);
    let beside = folder.join(format!("{FILE}.new"));
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&beside)?;
    writeln!(file, "{secret}")?;
    file.sync_all()?;
    fs::rename(&beside, folder.join(FILE))?;
    File::open(folder)?.sync_all()?;
    Ok(secret.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// The vector of <https://docs.svix.com/receiving/verifying-payloads/how-manual>.
    #[test]
    fn a_signature_is_the_one_of_standard_webhooks() {
        let key = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let message = SignedMessage {
            id: "msg_p5jXN8AQM9LWM0D4loKWxJek",
            timestamp: 1_614_265_330,
            body: br#"{"test": 2432232314}"#,
        };
        let expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(message.signature(&key), expected);
    }

    #[test]
    fn a_secret_that_is_made_is_its_owners_alone_and_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let config = WebhooksConfig::default();
        let shown = |account: &str| {
            let keys = SigningKeys::new(folder.path(), &config);
            keys.shown_key(&AccountId::from(account)).unwrap()
        };
        let first = shown("a");
        assert!(first.starts_with("whsec_"));
        assert_eq!(shown("a"), first);
        assert_ne!(shown("b"), first);
        let file = fs::metadata(folder.path().join(FILE)).unwrap();
        assert_eq!((file.permissions().mode() & 0o777, file.len()), (0o600, 65));
    }

    #[test]
    fn each_former_secret_signs_too_and_the_present_one_first() {
        let folder = tempfile::tempdir().unwrap();
        let keys = |secret: &str, previous: &[&str]| {
            let config = WebhooksConfig {
                secret: Some(secret.into()),
                previous_secrets: previous.iter().map(|secret| (*secret).into()).collect(),
                ..WebhooksConfig::default()
            };
            SigningKeys::new(folder.path(), &config)
        };
        let account = AccountId::from("a");
        let message = SignedMessage {
            id: "i",
            timestamp: 1,
            body: b"{}",
        };
        let sign = |keys: SigningKeys| keys.sign(&account, message).unwrap();
        let both = sign(keys("new-secret", &["old-secret"]));
        let one_each = [sign(keys("new-secret", &[])), sign(keys("old-secret", &[]))];
        assert_eq!(both, one_each.join(" "));
        assert!(!folder.path().join(FILE).exists());
    }
}
