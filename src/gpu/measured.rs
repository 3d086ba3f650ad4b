//! Measured memory of model processes, kept from one start of the gateway to the next.
//!
//! Not the measuring. A single file, replaced whole; at most [`ENTRIES_MAX`] entries, the oldest of which make room. A file of
//! another version, or one that cannot be read, counts as none. Each change blocks for as long as the disk takes.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use infergate_core::model::ModelSpec;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::model_files::files_digest;
use super::settings_digest::process_digest;

/// Version of the file's layout.
const VERSION: u32 = 1;
/// Entries of the file: more than a host has models, devices and settings that are tried.
const ENTRIES_MAX: usize = 1024;
/// Good loads that an entry remembers.
const LOADS_MAX: usize = 5;
const FILE: &str = "gpu/measured.json";

/// Settings of a process on a device that its memory depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredSettings {
    /// Model, for people.
    pub model: String,
    /// Digest of the model's files: paths, sizes and times; empty without files.
    pub files: String,
    /// Tokens of one request.
    pub context: u32,
    /// Requests at a time.
    pub parallel: u32,
    /// Name of the device.
    pub device: String,
    /// Version of its driver.
    #[serde(default)]
    pub driver: Option<String>,
}

impl MeasuredSettings {
    /// Returns the settings of a model's process on a device; none of a model without a process. Reads the files' times.
    pub fn of(spec: &ModelSpec, device: &str, driver: Option<&str>) -> Option<MeasuredSettings> {
        let process = spec.process.as_ref()?;
        let path = process.model_path.as_deref();
        Some(MeasuredSettings {
            model: spec.id.as_str().to_owned(),
            files: path.and_then(files_digest).unwrap_or_default(),
            context: process.context,
            parallel: process.parallel,
            device: device.to_owned(),
            driver: driver.map(str::to_owned),
        })
    }

    /// Returns the key of these settings with all that decides the process, before port and device stand in its command.
    pub fn key(&self, spec: &ModelSpec) -> String {
        let process = spec.process.as_ref().map(process_digest);
        let driver = self.driver.as_deref().unwrap_or("");
        let mut digest = Sha256::new();
        for text in [
            process.as_deref().unwrap_or(""),
            &self.files,
            &self.device,
            driver,
        ] {
            digest.update((text.len() as u64).to_le_bytes());
            digest.update(text.as_bytes());
        }
        hex::encode(digest.finalize())
    }
}

/// Peaks of the good loads of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct MeasuredEntry {
    key: String,
    #[serde(flatten)]
    settings: MeasuredSettings,
    /// Oldest first, MiB.
    peaks_mib: Vec<u64>,
}

/// Content of the file, the entries with the oldest measurement first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct MeasuredFile {
    version: u32,
    entries: Vec<MeasuredEntry>,
}

/// Measurements of a gateway.
#[derive(Debug)]
pub struct MeasuredStore {
    path: PathBuf,
    /// Held while the file is written, so that the latest state is on the disk last.
    entries: Mutex<Vec<MeasuredEntry>>,
}

impl MeasuredStore {
    /// Reads the measurements below the directory of a gateway's state.
    pub fn open(state_dir: &Path) -> Arc<MeasuredStore> {
        let path = state_dir.join(FILE);
        let entries = match read(&path) {
            Ok(entries) => entries,
            Err(error) => {
                tracing::warn!(
                    "{}: {error}: measured memory is forgotten; remove the file",
                    path.display()
                );
                Vec::new()
            }
        };
        Arc::new(MeasuredStore {
            path,
            entries: Mutex::new(entries),
        })
    }

    /// Returns the peaks of the latest good loads of a key, oldest first, MiB.
    pub fn peaks_mib(&self, key: &str) -> Vec<u64> {
        let entries = self.entries.lock();
        let found = entries.iter().find(|entry| entry.key == key);
        found.map_or_else(Vec::new, |entry| entry.peaks_mib.clone())
    }

    /// Returns the peaks of all processes with these files, tokens and requests, whatever else their command line says.
    pub fn peaks_of_files(&self, files: &str, context: u64, parallel: u64) -> Vec<u64> {
        let entries = self.entries.lock();
        let is_meant = |entry: &&MeasuredEntry| {
            let own = &entry.settings;
            let run = (u64::from(own.context), u64::from(own.parallel));
            own.files == files && run == (context, parallel)
        };
        let found = entries.iter().filter(is_meant);
        found
            .flat_map(|entry| entry.peaks_mib.iter().copied())
            .collect()
    }

    /// Keeps the peak of a good load.
    ///
    /// # Errors
    /// The file cannot be written: the peak counts until the gateway ends.
    pub fn record(&self, key: &str, settings: MeasuredSettings, peak_mib: u64) -> io::Result<()> {
        let mut entries = self.entries.lock();
        let former = entries.iter().position(|entry| entry.key == key);
        let mut peaks_mib = former.map_or_else(Vec::new, |at| entries.remove(at).peaks_mib);
        peaks_mib.push(peak_mib);
        let surplus = peaks_mib.len().saturating_sub(LOADS_MAX);
        peaks_mib.drain(..surplus);
        entries.push(MeasuredEntry {
            key: key.to_owned(),
            settings,
            peaks_mib,
        });
        let surplus = entries.len().saturating_sub(ENTRIES_MAX);
        entries.drain(..surplus);
        self.write(&entries)
    }

    fn write(&self, entries: &[MeasuredEntry]) -> io::Result<()> {
        let content = MeasuredFile {
            version: VERSION,
            entries: entries.to_vec(),
        };
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let next = self.path.with_extension("json.next");
        let mut file = File::create(&next)?;
        file.write_all(&serde_json::to_vec_pretty(&content)?)?;
        file.sync_all()?;
        std::fs::rename(&next, &self.path)
    }
}

/// Entries of the file; none without it, or of another version.
fn read(path: &Path) -> io::Result<Vec<MeasuredEntry>> {
    /// The part that every version has.
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let Versioned { version } = serde_json::from_slice(&text)?;
    if version != VERSION {
        return Ok(Vec::new());
    }
    let file: MeasuredFile = serde_json::from_slice(&text)?;
    Ok(file.entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(json: &str) -> ModelSpec {
        let text = format!(
            r#"{{"id":"m","task":"text-generation","backend":"openai","process":{{{json}}}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn settings(device: &str) -> MeasuredSettings {
        let spec = spec(r#""command":["serve"],"context":4096"#);
        MeasuredSettings::of(&spec, device, Some("550")).unwrap()
    }

    #[test]
    fn the_last_five_loads_of_a_key_are_kept_over_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let store = MeasuredStore::open(dir.path());
        for peak in 1..=7 {
            store.record("k", settings("card"), peak).unwrap();
        }
        let again = MeasuredStore::open(dir.path());
        assert_eq!(again.peaks_mib("k"), [3, 4, 5, 6, 7]);
        assert_eq!(again.peaks_of_files("", 4096, 4).len(), 5);
        assert!(again.peaks_of_files("", 8192, 4).is_empty());
        assert!(again.peaks_mib("other").is_empty());
    }

    #[test]
    fn the_oldest_entry_makes_room() {
        let dir = tempfile::tempdir().unwrap();
        let store = MeasuredStore::open(dir.path());
        let mut entries = store.entries.lock();
        entries.extend((0..ENTRIES_MAX).map(|nth| MeasuredEntry {
            key: format!("k{nth}"),
            settings: settings("card"),
            peaks_mib: vec![1],
        }));
        drop(entries);
        store.record("new", settings("card"), 2).unwrap();
        store.record("k1", settings("card"), 2).unwrap();
        assert_eq!(store.entries.lock().len(), ENTRIES_MAX);
        assert!(store.peaks_mib("k0").is_empty());
        assert_eq!(store.peaks_mib("k1"), [1, 2]);
    }

    #[test]
    fn a_file_of_another_version_or_a_torn_one_counts_as_none_and_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("gpu")).unwrap();
        for text in [r#"{"version":9,"entries":"other"}"#, r#"{"version":1,"#] {
            std::fs::write(dir.path().join(FILE), text).unwrap();
            let store = MeasuredStore::open(dir.path());
            assert!(store.peaks_of_files("", 4096, 4).is_empty());
            store.record("k", settings("card"), 5).unwrap();
            assert_eq!(MeasuredStore::open(dir.path()).peaks_mib("k"), [5]);
        }
    }

    #[test]
    fn a_key_changes_with_whatever_changes_the_memory_and_not_with_the_lease() {
        let base = spec(r#""command":["serve","{port}"],"context":4096"#);
        let key = |spec: &ModelSpec, device: &str, driver: &str| {
            let settings = MeasuredSettings::of(spec, device, Some(driver)).unwrap();
            settings.key(spec)
        };
        let own = key(&base, "card", "550");
        assert_eq!(own, key(&base.clone(), "card", "550"));
        let other = spec(r#""command":["serve","{port}","-x"],"context":4096"#);
        let parallel = spec(r#""command":["serve","{port}"],"context":4096,"parallel":2"#);
        let cached = spec(
            r#""command":["serve","{port}"],"context":4096,"environment":{"CACHE_TYPE":"q8"}"#,
        );
        let adapted = spec(
            r#""command":["serve","{port}"],"context":4096,"adapters":[{"name":"a","path":"/a"}]"#,
        );
        let changed = [
            key(&cached, "card", "550"),
            key(&adapted, "card", "550"),
            key(&base, "other", "550"),
            key(&base, "card", "560"),
            key(&other, "card", "550"),
            key(&parallel, "card", "550"),
        ];
        assert!(changed.iter().all(|key| *key != own), "{changed:?}");
    }
}
