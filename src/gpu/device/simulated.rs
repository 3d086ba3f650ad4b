//! Simulated cards: directories of page files, whose memory real processes take by locking pages.
//!
//! Only read here, so that a look disturbs nobody: `simulate` takes pages. `/proc/locks` lists the locks of all processes
//! of this pid namespace (<https://man7.org/linux/man-pages/man5/proc_locks.5.html>), by inode. At most 1,024 pages.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use infergate_core::vram::{DeviceId, DeviceInfo, DeviceKind, DeviceSample, HostTime, ProcessUse};
use serde::Deserialize;

use super::super::config::SimulatedCard;
use super::source::{DeviceError, DeviceSource};

/// Description of a card, in its directory.
const CARD_FILE: &str = "card.json";
/// Pages of a card that does not say how many.
const DEFAULT_PAGES: u32 = 256;
/// Pages a card may have.
const PAGES_MAX: u32 = 1024;
const LOCKS: &str = "/proc/locks";

/// The cards below one directory. A card is named as its own directory.
#[derive(Debug)]
pub struct SimulatedCards {
    directory: PathBuf,
}

/// Content of `card.json`.
#[derive(Deserialize)]
struct CardDescription {
    total_mib: u64,
    pages: Option<u32>,
}

impl CardDescription {
    fn pages(&self) -> u32 {
        self.pages.unwrap_or(DEFAULT_PAGES).clamp(1, PAGES_MAX)
    }

    fn page_mib(&self) -> u64 {
        self.total_mib / u64::from(self.pages())
    }

    fn info(&self, name: &str, index: u32) -> DeviceInfo {
        DeviceInfo {
            id: name.into(),
            index,
            name: "simulated".into(),
            total_mib: self.page_mib() * u64::from(self.pages()),
            kind: DeviceKind::Simulated,
        }
    }
}

impl SimulatedCards {
    /// Returns the cards below `directory`, which is read with each call.
    pub fn new(directory: &Path) -> SimulatedCards {
        SimulatedCards {
            directory: directory.to_owned(),
        }
    }

    fn describe(&self, name: &str) -> Result<Option<CardDescription>, DeviceError> {
        let file = self.directory.join(name).join(CARD_FILE);
        let text = match std::fs::read(&file) {
            Ok(text) => text,
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(failed(&file, &error)),
        };
        let described = serde_json::from_slice(&text).map_err(|error| failed(&file, &error))?;
        Ok(Some(described))
    }
}

impl DeviceSource for SimulatedCards {
    fn list(&self) -> Result<Vec<DeviceInfo>, DeviceError> {
        let entries =
            std::fs::read_dir(&self.directory).map_err(|error| failed(&self.directory, &error))?;
        let mut names = BTreeSet::new();
        for entry in entries {
            let entry = entry.map_err(|error| failed(&self.directory, &error))?;
            names.extend(entry.file_name().into_string().ok());
        }
        let mut devices = Vec::new();
        for name in names {
            if let Some(card) = self.describe(&name)? {
                let index = u32::try_from(devices.len()).unwrap_or(u32::MAX);
                devices.push(card.info(&name, index));
            }
        }
        Ok(devices)
    }

    fn sample(&self, device: &DeviceId, now: HostTime) -> Result<DeviceSample, DeviceError> {
        let card = self.describe(device.as_str())?;
        let directory = self.directory.join(device.as_str());
        let card = card.ok_or_else(|| failed(&directory, &"no card is there"))?;
        let mut pages = BTreeSet::new();
        for page in 0..card.pages() {
            let file = directory.join(format!("page-{page:04}"));
            match std::fs::metadata(&file) {
                Ok(metadata) => drop(pages.insert(metadata.ino())),
                // Made by the first process that takes it.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(failed(&file, &error)),
            }
        }
        let locks = std::fs::read_to_string(LOCKS);
        let locks = locks.map_err(|error| failed(Path::new(LOCKS), &error))?;
        let mut pages_of: BTreeMap<u32, u64> = BTreeMap::new();
        for (pid, inode) in locks.lines().filter_map(read_lock) {
            // A page counts once, whatever else has its inode's number on another file system.
            if pages.remove(&inode) {
                *pages_of.entry(pid).or_default() += 1;
            }
        }
        let page_mib = card.page_mib();
        let used: u64 = pages_of.values().sum();
        let processes = pages_of.iter().map(|(pid, pages)| ProcessUse {
            pid: *pid,
            holder_pid: None,
            used_mib: Some(pages * page_mib),
        });
        Ok(DeviceSample {
            used_mib: Some(used * page_mib),
            free_mib: None,
            processes: Some(processes.collect()),
            utilization_percent: None,
            taken_at: now,
        })
    }
}

/// Pid and inode of an exclusive lock: `3: FLOCK  ADVISORY  WRITE 16026 fe:00:10043394 0 EOF`. A process that waits for
/// a lock has `->` behind the number, and is no holder.
fn read_lock(line: &str) -> Option<(u32, u64)> {
    let mut words = line.split_whitespace().skip(1);
    if words.next() != Some("FLOCK") || words.nth(1) != Some("WRITE") {
        return None;
    }
    let pid = words.next()?.parse().ok()?;
    let inode = words.next()?.rsplit(':').next()?.parse().ok()?;
    Some((pid, inode))
}

/// Makes the folders of the cards of a configuration. A card that is there keeps its pages.
///
/// # Errors
/// A folder cannot be made.
pub fn make_cards(directory: &Path, cards: &[SimulatedCard]) -> Result<(), DeviceError> {
    for card in cards {
        let folder = directory.join(&*card.name);
        let file = folder.join(CARD_FILE);
        let described = serde_json::json!({ "total_mib": card.total_mib, "pages": card.pages });
        let made = std::fs::create_dir_all(&folder)
            .and_then(|()| std::fs::write(&file, described.to_string()));
        made.map_err(|error| failed(&file, &error))?;
    }
    Ok(())
}

/// Returns the cards of a configuration as they are listed once their folders are made.
pub fn described_cards(cards: &[SimulatedCard]) -> Vec<DeviceInfo> {
    let mut by_name: Vec<&SimulatedCard> = cards.iter().collect();
    by_name.sort_by_key(|card| Arc::clone(&card.name));
    let listed = by_name.into_iter().zip(0..).map(|(card, index)| {
        let described = CardDescription {
            total_mib: card.total_mib,
            pages: Some(card.pages),
        };
        described.info(&card.name, index)
    });
    listed.collect()
}

fn failed(what: &Path, why: &dyn std::fmt::Display) -> DeviceError {
    DeviceError {
        what: what.display().to_string(),
        why: why.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn cards() -> (tempfile::TempDir, SimulatedCards) {
        let dir = tempfile::tempdir().unwrap();
        for name in ["sim1", "sim0"] {
            let card = dir.path().join(name);
            std::fs::create_dir(&card).unwrap();
            std::fs::write(card.join(CARD_FILE), r#"{"total_mib":1000,"pages":10}"#).unwrap();
        }
        std::fs::create_dir(dir.path().join("no-card")).unwrap();
        let cards = SimulatedCards::new(dir.path());
        (dir, cards)
    }

    #[test]
    fn cards_are_listed_by_name_and_other_folders_are_none() {
        let (_dir, cards) = cards();
        let devices = cards.list().unwrap();
        let listed: Vec<_> = devices
            .iter()
            .map(|device| (device.id.as_str(), device.index, device.total_mib))
            .collect();
        assert_eq!(listed, [("sim0", 0, 1000), ("sim1", 1, 1000)]);
    }

    #[test]
    fn a_locked_page_is_used_by_the_process_that_has_it() {
        let (dir, cards) = cards();
        let page = |number: u32| {
            let path = dir.path().join("sim0").join(format!("page-{number:04}"));
            let file = File::create(path).unwrap();
            file.lock().unwrap();
            file
        };
        let taken = [page(0), page(7)];
        let sample = |name: &str| cards.sample(&name.into(), HostTime(5)).unwrap();
        let sampled = sample("sim0");
        assert_eq!(sampled.used_mib, Some(200));
        let processes = sampled.processes.unwrap();
        assert_eq!(processes[0].pid, std::process::id());
        assert_eq!(sample("sim1").used_mib, Some(0));
        drop(taken);
        assert_eq!(sample("sim0").used_mib, Some(0));
    }

    #[test]
    fn only_exclusive_locks_that_are_held_count() {
        let held = "3: FLOCK  ADVISORY  WRITE 16026 fe:00:10043394 0 EOF";
        assert_eq!(read_lock(held), Some((16026, 10043394)));
        for other in [
            "3: -> FLOCK  ADVISORY  WRITE 16026 fe:00:10043394 0 EOF",
            "2: POSIX  ADVISORY  READ 16026 fe:00:10043399 1073741826 1073742335",
            "4: FLOCK  ADVISORY  READ 1 fe:00:9 0 EOF",
            "",
        ] {
            assert_eq!(read_lock(other), None, "{other}");
        }
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let cards = SimulatedCards::new(Path::new("/no/such/cards"));
        let error = cards.list().unwrap_err().to_string();
        assert!(error.contains("/no/such/cards"), "{error}");
    }
}
