//! The ledger of this host as a file, changed under a kernel lock: the lock is free again when its process ends.
//!
//! Not a service: every process that leases memory opens the same directory. A change reads, decides, writes a new file
//! and renames it, so that readers need no lock and a kill leaves the former state or the next one. No sync is needed: the
//! file is named for the boot, so what a crash of the host tears is never read. A lock that is not had within
//! [`LOCK_WAIT_MAX`] is an error.

use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use infergate_core::Millis;
use infergate_core::vram::{HostTime, Ledger, LedgerError};
use parking_lot::Mutex;
use thiserror::Error;

use crate::gpu::holder::LeaseHost;

const LOCK_FILE: &str = "lock";
/// Beginning and end of the ledger's name, around the identity of the boot.
const LEDGER_PREFIX: &str = "ledger-";
const LEDGER_SUFFIX: &str = ".json";
/// The next state, until it is renamed. Only the process with the lock writes it.
const NEXT_FILE: &str = "next";
/// A directory of all users of the host.
const SYSTEM_DIRECTORY: &str = "/run/infergate/gpu";
/// Longest wait for the lock: a change takes milliseconds, so a process that has it for longer stands still.
const LOCK_WAIT_MAX: Millis = Millis::from_secs(10);
/// Between two tries for the lock.
const LOCK_TICK: Duration = Duration::from_millis(1);

/// Reason why the ledger cannot be read or changed. No lease is granted then.
#[derive(Debug, Error)]
pub enum LedgerStoreError {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// File.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The file is no ledger of this version.
    #[error("{}: {source}; remove it once no lease is in use", path.display())]
    Content {
        /// File.
        path: PathBuf,
        /// Error of the reader.
        source: LedgerError,
    },
    /// Another process has the lock and does not go on.
    #[error("{}: another process has had the lock for 10 s", .0.display())]
    Locked(PathBuf),
    /// Another user leases in the directory that commands share, and this one may not.
    #[error(
        "{}: {source}: the memory of this host is leased there; be that user or root, or name a directory with --ledger",
        path.display()
    )]
    Foreign {
        /// File.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// No directory for the ledger is known.
    #[error(
        "no directory for the ledger: neither {SYSTEM_DIRECTORY} nor $XDG_RUNTIME_DIR can be written"
    )]
    NoDirectory,
}

/// The ledger's directory, opened.
#[derive(Debug)]
pub struct HostLedger {
    place: LedgerPlace,
    host: LeaseHost,
}

/// Place of a ledger.
#[derive(Debug)]
enum LedgerPlace {
    /// A directory that all processes of the host share, and its file of this boot.
    Files { directory: PathBuf, file: PathBuf },
    /// Memory of this process: no other one leases on these devices. Held while a verb runs.
    Memory(Mutex<Ledger>),
}

impl HostLedger {
    /// Opens the ledger in `directory`, which is made where only its parent is there.
    ///
    /// # Errors
    /// The directory cannot be made, or `/proc` is not there.
    pub fn open(directory: &Path) -> Result<HostLedger, LedgerStoreError> {
        match std::fs::create_dir(directory) {
            Err(source) if source.kind() != ErrorKind::AlreadyExists => {
                return Err(at(directory, source));
            }
            _ => {}
        }
        let host = LeaseHost::read().map_err(|source| at(Path::new("/proc"), source))?;
        let file = format!("{LEDGER_PREFIX}{}{LEDGER_SUFFIX}", host.boot_id());
        remove_former(directory, &file);
        Ok(HostLedger {
            place: LedgerPlace::Files {
                file: directory.join(file),
                directory: directory.to_owned(),
            },
            host,
        })
    }

    /// Opens a ledger of this process alone, which ends with it.
    ///
    /// # Errors
    /// `/proc` is not there.
    pub fn in_memory() -> Result<HostLedger, LedgerStoreError> {
        let host = LeaseHost::read().map_err(|source| at(Path::new("/proc"), source))?;
        let ledger = Ledger::new(host.boot_id(), host.now());
        Ok(HostLedger {
            place: LedgerPlace::Memory(Mutex::new(ledger)),
            host,
        })
    }

    /// The host of the ledger.
    pub fn host(&self) -> &LeaseHost {
        &self.host
    }

    /// Reads the ledger as the latest change has left it.
    ///
    /// # Errors
    /// The file is not readable, or no ledger.
    pub fn read(&self) -> Result<Ledger, LedgerStoreError> {
        let path = match &self.place {
            LedgerPlace::Files { file, .. } => file.clone(),
            LedgerPlace::Memory(ledger) => return Ok(ledger.lock().clone()),
        };
        let (boot_id, now) = (self.host.boot_id(), self.host.now());
        match std::fs::read(&path) {
            Ok(text) => Ledger::from_json(&text, boot_id, now)
                .map_err(|source| LedgerStoreError::Content { path, source }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Ledger::new(boot_id, now)),
            Err(source) => Err(at(&path, source)),
        }
    }

    /// Runs one verb on the ledger while no other process can, and keeps its result.
    ///
    /// Holders that are gone are freed before. A verb that fails changes nothing, so that its result is kept all the
    /// same.
    ///
    /// # Errors
    /// The ledger cannot be locked, read or written: nothing has changed.
    pub fn change<T>(
        &self,
        verb: impl FnOnce(&mut Ledger, HostTime) -> T,
    ) -> Result<T, LedgerStoreError> {
        let (directory, file) = match &self.place {
            LedgerPlace::Files { directory, file } => (directory, file),
            LedgerPlace::Memory(ledger) => {
                let mut ledger = ledger.lock();
                ledger.expire(self.host.now(), |holder| self.host.life(holder));
                return Ok(verb(&mut ledger, self.host.now()));
            }
        };
        let _lock = self.lock(directory)?;
        let mut ledger = self.read()?;
        let before = ledger.generation();
        ledger.expire(self.host.now(), |holder| self.host.life(holder));
        let result = verb(&mut ledger, self.host.now());
        if ledger.generation() != before {
            write(&ledger, directory, file)?;
        }
        Ok(result)
    }

    fn lock(&self, directory: &Path) -> Result<File, LedgerStoreError> {
        let path = directory.join(LOCK_FILE);
        let file = open_lock(directory).map_err(|source| at(&path, source))?;
        let begin = self.host.now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::Error(source)) => return Err(at(&path, source)),
                Err(TryLockError::WouldBlock) => {}
            }
            if self.host.now().since(begin) > LOCK_WAIT_MAX {
                return Err(LedgerStoreError::Locked(path));
            }
            std::thread::sleep(LOCK_TICK);
        }
    }
}

fn write(ledger: &Ledger, directory: &Path, file: &Path) -> Result<(), LedgerStoreError> {
    let next = directory.join(NEXT_FILE);
    let text = serde_json::to_vec(ledger).expect("a ledger is plain JSON");
    let write = || {
        // Left by a process that was killed: perhaps of another user, who alone may write it.
        match std::fs::remove_file(&next) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut written = File::create_new(&next)?;
        share(&written, directory)?;
        written.write_all(&text)?;
        std::fs::rename(&next, file)
    };
    write().map_err(|source| at(&next, source))
}

/// Gives a file to those who may use its directory, whatever the umask of its maker: who may write there shares the ledger.
fn share(file: &File, directory: &Path) -> io::Result<()> {
    let of = std::fs::metadata(directory)?;
    // The superuser may give it to the directory's owner, a member to its group. Others keep it.
    let _ = fchown(file, Some(of.uid()), Some(of.gid()))
        .or_else(|_| fchown(file, None, Some(of.gid())));
    file.set_permissions(Permissions::from_mode(of.mode() & 0o666))
}

/// Opens the lock of a directory, which is made where it is not there.
fn open_lock(directory: &Path) -> io::Result<File> {
    let path = directory.join(LOCK_FILE);
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    match options.clone().create_new(true).open(&path) {
        Ok(file) => share(&file, directory).map(|()| file),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => options.open(&path),
        Err(error) => Err(error),
    }
}

/// Removes the ledgers of former boots: whoever had a lease then is gone. A file that stays does no harm.
fn remove_former(directory: &Path, present: &str) {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_ledger = name.starts_with(LEDGER_PREFIX) && name.ends_with(LEDGER_SUFFIX);
        if is_ledger && name != present {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Returns the directory of the ledger that commands of this user share: that of the host where it may be written, else
/// that of the user.
///
/// # Errors
/// There is neither, or others lease in that of the host.
pub fn default_directory() -> Result<PathBuf, LedgerStoreError> {
    let of_user = std::env::var_os("XDG_RUNTIME_DIR");
    let of_user = of_user.map(|directory| Path::new(&directory).join("infergate/gpu"));
    let candidates = [Some(PathBuf::from(SYSTEM_DIRECTORY)), of_user];
    first_usable(candidates.into_iter().flatten())
}

fn first_usable(candidates: impl Iterator<Item = PathBuf>) -> Result<PathBuf, LedgerStoreError> {
    for directory in candidates {
        if std::fs::create_dir_all(&directory).is_err() {
            continue;
        }
        let Err(source) = open_lock(&directory) else {
            return Ok(directory);
        };
        let path = directory.join(LOCK_FILE);
        // A second ledger would promise the memory again that stands in this one.
        if !matches!(path.try_exists(), Ok(false)) {
            return Err(LedgerStoreError::Foreign { path, source });
        }
    }
    Err(LedgerStoreError::NoDirectory)
}

fn at(path: &Path, source: io::Error) -> LedgerStoreError {
    LedgerStoreError::File {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use infergate_core::vram::{
        DeviceInfo, DeviceKind, DeviceSample, DeviceShare, DeviceView, Holder,
    };

    use super::*;

    fn view(now: HostTime) -> DeviceView {
        DeviceView {
            info: DeviceInfo {
                id: "sim0".into(),
                index: 0,
                name: "simulated".into(),
                total_mib: 1000,
                kind: DeviceKind::Simulated,
            },
            reserve_mib: 0,
            sample: Some(DeviceSample {
                used_mib: Some(0),
                free_mib: None,
                processes: Some(Vec::new()),
                utilization_percent: None,
                taken_at: now,
            }),
        }
    }

    fn acquire(store: &HostLedger, holder: &Holder, mib: u64) -> bool {
        let share = DeviceShare {
            device: "sim0".into(),
            mib,
        };
        let granted = store.change(|ledger, now| {
            ledger
                .acquire(holder, 5, std::slice::from_ref(&share), &[view(now)], now)
                .is_ok()
        });
        granted.unwrap()
    }

    #[test]
    fn changes_of_several_threads_are_one_after_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let begin = Barrier::new(4);
        let granted: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let store = HostLedger::open(dir.path()).unwrap();
                        let holder = store.host().job_holder("test").unwrap();
                        begin.wait();
                        (0..10).filter(|_| acquire(&store, &holder, 100)).count()
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).sum()
        });
        assert_eq!(granted, 10, "1,000 MiB hold ten leases of 100");
        let store = HostLedger::open(dir.path()).unwrap();
        assert_eq!(store.read().unwrap().leases().len(), 10);
    }

    #[test]
    fn leases_of_a_process_that_is_gone_are_freed_by_the_next_change() {
        let dir = tempfile::tempdir().unwrap();
        let store = HostLedger::open(dir.path()).unwrap();
        let holder = store.host().job_holder("test").unwrap();
        let former = Holder {
            start: holder.start - 1,
            ..holder.clone()
        };
        assert!(acquire(&store, &former, 1000));
        assert!(acquire(&store, &holder, 1000));
    }

    #[test]
    fn a_ledger_in_memory_grants_as_one_of_files_does() {
        let store = HostLedger::in_memory().unwrap();
        let holder = store.host().job_holder("test").unwrap();
        let former = Holder {
            start: holder.start - 1,
            ..holder.clone()
        };
        assert!(acquire(&store, &former, 1000));
        assert!(acquire(&store, &holder, 1000), "a dead holder is freed");
        assert!(!acquire(&store, &holder, 1));
        assert_eq!(store.read().unwrap().leases().len(), 1);
    }

    #[test]
    fn a_torn_ledger_grants_nothing_and_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let store = HostLedger::open(dir.path()).unwrap();
        let LedgerPlace::Files { file, .. } = &store.place else {
            panic!("it has a file");
        };
        std::fs::write(file, "{\"version\":1,").unwrap();
        let error = store.change(|_, _| ()).unwrap_err().to_string();
        assert!(error.contains(".json: not a ledger"), "{error}");
    }

    #[test]
    fn files_are_those_of_their_directory_whoever_makes_them() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o770)).unwrap();
        let store = HostLedger::open(dir.path()).unwrap();
        let holder = store.host().job_holder("test").unwrap();
        // As a process leaves it that is killed while it writes, and nobody can open it.
        std::os::unix::fs::symlink("/proc/none/there", dir.path().join(NEXT_FILE)).unwrap();
        assert!(acquire(&store, &holder, 100));
        let LedgerPlace::Files { file, .. } = &store.place else {
            panic!("it has a file");
        };
        for path in [file, &dir.path().join(LOCK_FILE)] {
            let mode = std::fs::metadata(path).unwrap().mode() & 0o777;
            assert_eq!(mode, 0o660, "{}: {mode:o}", path.display());
        }
    }

    #[test]
    fn a_ledger_of_others_is_no_reason_for_a_second_one() {
        let dir = tempfile::tempdir().unwrap();
        let (of_host, of_user) = (dir.path().join("host"), dir.path().join("user"));
        let chosen = || first_usable([of_host.clone(), of_user.clone()].into_iter());
        assert_eq!(chosen().unwrap(), of_host);
        std::fs::remove_file(of_host.join(LOCK_FILE)).unwrap();
        // A folder: it cannot be opened by the superuser either, as whom tests may run.
        std::fs::create_dir(of_host.join(LOCK_FILE)).unwrap();
        let error = chosen().unwrap_err().to_string();
        assert!(
            error.contains("host/lock") && error.contains("--ledger"),
            "{error}"
        );
        std::fs::remove_dir_all(&of_host).unwrap();
        std::fs::write(&of_host, "").unwrap();
        assert_eq!(chosen().unwrap(), of_user, "none can be made");
    }

    #[test]
    fn ledgers_of_former_boots_go_and_other_files_stay() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["ledger-former.json", "notes.json"] {
            std::fs::write(dir.path().join(name), "{").unwrap();
        }
        HostLedger::open(dir.path()).unwrap();
        assert!(!dir.path().join("ledger-former.json").exists());
        assert!(dir.path().join("notes.json").exists());
    }
}
