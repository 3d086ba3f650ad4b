//! Compiled components on disk: private to this host, authenticated, never distributed.
//!
//! wasmtime runs compiled code without checking it, so this file is the only one that hands it any. Accepted
//! are only bytes with this directory's own HMAC: header, key and body under a secret of mode 0600. Files
//! without it are deleted and compiled anew. At most [`FILES_MAX`] files.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::hash::{Hash, Hasher};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use wasmtime::Engine;
use wasmtime::component::Component;

/// Files kept; the oldest go first. A gateway has a few plugins in a few versions.
const FILES_MAX: usize = 128;
/// No compiled component is larger: one of the largest accepted file has 80 MB.
const FILE_MAX_BYTES: u64 = 512 << 20;
const MAGIC: &[u8; 8] = b"igate\0\0\x01";
const KEY_BYTES: usize = 32;
const TAG_BYTES: usize = 32;
const SECRET: &str = "secret";
const SUFFIX: &str = "compiled";

/// The directory of compiled components.
pub struct CodeCache {
    directory: PathBuf,
    secret: [u8; KEY_BYTES],
    counts: CacheCounts,
}

/// Results of look-ups.
#[derive(Debug, Default)]
pub struct CacheCounts {
    /// Found and authentic.
    pub hits: AtomicU64,
    /// Not there.
    pub misses: AtomicU64,
    /// Present, but damaged or without our HMAC: deleted.
    pub rejected: AtomicU64,
}

/// Digest of the component and of the compiler that made the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheKey([u8; KEY_BYTES]);

impl CacheKey {
    /// The key of a component under an engine: its digest, and all that the code depends on (version
    /// of wasmtime, target, features of the processor, settings).
    pub fn of(digest: &[u8], engine: &Engine) -> CacheKey {
        let mut hasher = Sha256Hasher(Sha256::new());
        hasher.0.update(digest);
        engine.precompile_compatibility_hash().hash(&mut hasher);
        CacheKey(hasher.0.finalize().into())
    }
}

struct Sha256Hasher(Sha256);

impl Hasher for Sha256Hasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        0
    }
}

impl CodeCache {
    /// Opens the directory, making it (mode 0700) and its secret (0600) where they are missing.
    ///
    /// # Errors
    /// A sentence, when another user could write there.
    pub fn open(directory: &Path) -> Result<CodeCache, String> {
        let failed = |what: &str, error: std::io::Error| format!("cannot {what}: {error}");
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(|error| failed("make it", error))?;
        let about = fs::metadata(directory).map_err(|error| failed("look at it", error))?;
        if !about.is_dir() {
            return Err("it is not a directory".into());
        }
        let me = rustix::process::geteuid().as_raw();
        if about.uid() != me {
            return Err(format!(
                "it belongs to user {}, not to user {me}, as whom this process runs",
                about.uid()
            ));
        }
        if about.mode() & 0o022 != 0 {
            return Err(
                "others may write there, and compiled code is believed: `chmod go-w` it".into(),
            );
        }
        let secret = secret(&directory.join(SECRET), me)
            .map_err(|error| failed("keep a secret there", error))?;
        Ok(CodeCache {
            directory: directory.to_owned(),
            secret,
            counts: CacheCounts::default(),
        })
    }

    /// Results of look-ups so far.
    pub fn counts(&self) -> &CacheCounts {
        &self.counts
    }

    /// The compiled component, when it is there and ours.
    pub fn get(&self, engine: &Engine, key: CacheKey) -> Option<Component> {
        let path = self.path(key);
        let bytes = match read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.counts.misses.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            Err(_) => return self.reject(&path),
        };
        let Some(code) = self.authentic(&bytes, key) else {
            return self.reject(&path);
        };
        match deserialize(engine, code) {
            Some(component) => {
                self.counts.hits.fetch_add(1, Ordering::Relaxed);
                Some(component)
            }
            None => self.reject(&path),
        }
    }

    /// Keeps a compiled component. A disk that is full costs compiling again, nothing else.
    pub fn put(&self, key: CacheKey, component: &Component) {
        let kept = component
            .serialize()
            .map_err(|error| format!("{error:#}"))
            .and_then(|code| self.write(key, &code).map_err(|error| error.to_string()));
        if let Err(problem) = kept {
            tracing::warn!(directory = %self.directory.display(), problem, "cannot keep a compiled plugin");
        }
        self.prune();
    }

    fn path(&self, key: CacheKey) -> PathBuf {
        self.directory
            .join(format!("{}.{SUFFIX}", hex::encode(key.0)))
    }

    fn reject(&self, path: &Path) -> Option<Component> {
        self.counts.rejected.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(file = %path.display(), "a compiled plugin is damaged or not ours: deleted");
        // Compiling it anew writes over it if it cannot be deleted.
        let _ = fs::remove_file(path);
        None
    }

    fn mac(&self, key: CacheKey, code: &[u8]) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.secret).expect("HMAC takes a key of any length");
        mac.update(MAGIC);
        mac.update(&key.0);
        mac.update(&(code.len() as u64).to_le_bytes());
        mac.update(code);
        mac
    }

    /// The code in a file, if the file is whole, of this key and bears our tag.
    fn authentic<'a>(&self, bytes: &'a [u8], key: CacheKey) -> Option<&'a [u8]> {
        let rest = bytes.strip_prefix(MAGIC)?.strip_prefix(&key.0)?;
        let (code, tag) = rest.split_at_checked(rest.len().checked_sub(TAG_BYTES)?)?;
        self.mac(key, code).verify_slice(tag).ok()?;
        Some(code)
    }

    fn write(&self, key: CacheKey, code: &[u8]) -> std::io::Result<()> {
        let path = self.path(key);
        let draft = path.with_extension("draft");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&draft)?;
        file.write_all(MAGIC)?;
        file.write_all(&key.0)?;
        file.write_all(code)?;
        file.write_all(&self.mac(key, code).finalize().into_bytes())?;
        drop(file);
        fs::rename(&draft, &path)
    }

    fn prune(&self) {
        let Ok(entries) = fs::read_dir(&self.directory) else {
            return;
        };
        let mut files: Vec<_> = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|suffix| suffix == SUFFIX))
            .filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path)))
            .collect();
        files.sort();
        let over = files.len().saturating_sub(FILES_MAX);
        for (_, path) in &files[..over] {
            // One that cannot be deleted now is tried at the next compilation.
            let _ = fs::remove_file(path);
        }
    }
}

/// The code that a compiler of this process's own has handed over by a pipe.
///
/// # Errors
/// The code is not for this engine: the program on the disk is another than this process's.
pub fn of_compiler(engine: &Engine, code: &[u8]) -> Result<Component, String> {
    deserialize(engine, code).ok_or_else(|| {
        "its compiler was another version of this program: restart the gateway".to_owned()
    })
}

/// The only place that loads compiled code.
#[allow(unsafe_code)]
fn deserialize(engine: &Engine, code: &[u8]) -> Option<Component> {
    // SAFETY: `code` is what `Component::serialize` of this wasmtime wrote, by this user. It is from a
    // file: the HMAC over it, its length and its key was verified under a secret that only this user can
    // read, and the key names the engine's version, target, processor features and settings. Or it is
    // from a pipe whose other end this process gave to a child that runs this process's own program.
    unsafe { Component::deserialize(engine, code) }.ok()
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut bytes = Vec::new();
    file.take(FILE_MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The directory's secret. A secret that others could have read is replaced, and all files with it.
fn secret(path: &Path, me: u32) -> std::io::Result<[u8; KEY_BYTES]> {
    match fs::symlink_metadata(path) {
        Ok(about) if about.is_file() && about.uid() == me && about.mode() & 0o077 == 0 => {
            if let Ok(known) = <[u8; KEY_BYTES]>::try_from(fs::read(path)?) {
                return Ok(known);
            }
            fs::remove_file(path)?;
        }
        Ok(_) => fs::remove_file(path)?,
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut secret = [0; KEY_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut secret)?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.write_all(&secret)?;
    Ok(secret)
}
