//! Records of instances in the run directory: what a later gateway needs to take an instance over or to end it.
//!
//! A record is a file beside the keeper's socket, for the owner alone, replaced whole, there from before the
//! process starts until no process of the instance is left. At most 64 KiB each and 4,096 in a directory are read.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use infergate_core::vram::HostTime;
use rustix::fs::{CWD, Mode, OFlags, openat};
use serde::{Deserialize, Serialize};

use super::identity::InstanceId;
use super::protocol::InstanceSpec;
use crate::gpu::processes::ProcessId;
use crate::telemetry::host_time;

/// Version of the records.
const VERSION: u32 = 1;
/// Bytes of a record.
const BYTES_MAX: u64 = 64 * 1024;
/// Records of a directory.
const RECORDS_MAX: usize = 4096;
/// Files of a directory: of each instance its record, the next one, the keeper's socket and some of the server.
const ENTRIES_MAX: usize = RECORDS_MAX * 8;
/// Only the owner may read keys and speak to keepers.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
const RECORD_SUFFIX: &str = ".json";
const SOCKET_SUFFIX: &str = ".sock";
/// Ending of the socket that an instance's server makes for itself.
const SERVER_SUFFIX: &str = ".uds";
/// Bytes of the path of a socket, without the zero behind it: <https://man7.org/linux/man-pages/man7/unix.7.html>.
const SOCKET_PATH_MAX: usize = 107;
/// Bytes that a server may add to the path for each of its parts, as TGI does: `-` and three digits.
const SERVER_PART_BYTES: usize = 4;
/// A record until it is renamed.
const NEXT_SUFFIX: &str = ".next";

/// Returns the directory of sockets and records of a gateway.
pub fn run_directory(state_dir: &Path) -> PathBuf {
    state_dir.join("gpu/run")
}

/// Returns the path of the socket that the server of an instance may make; none where the directory's path leaves no room
/// for one. The keeper removes what stands there with the record.
pub fn server_socket(run_directory: &Path, instance: &InstanceId) -> Option<PathBuf> {
    // The server has a working directory of its own.
    let directory = std::path::absolute(run_directory).ok()?;
    let path = directory.join(server_socket_name(instance));
    let bytes = path.as_os_str().len() + SERVER_PART_BYTES;
    Some(path).filter(|_| bytes <= SOCKET_PATH_MAX)
}

fn server_socket_name(instance: &InstanceId) -> String {
    format!("{}{SERVER_SUFFIX}", instance.short_stem())
}

/// Returns whether the keeper of an instance runs. Until it ends, it writes what the instance puts out.
pub fn has_keeper(run_directory: &Path, instance: &InstanceId) -> bool {
    match read_record(run_directory, instance) {
        Ok(record) => record.is_of_this_boot() && record.keeper.is_alive(),
        // A record that is not readable says nothing.
        Err(error) => error.kind() != ErrorKind::NotFound,
    }
}

/// Reads the record of an instance in a run directory.
///
/// # Errors
/// There is none, or it is not readable.
pub fn read_record(run_directory: &Path, instance: &InstanceId) -> io::Result<InstanceRecord> {
    RunDirectory::open(run_directory)?.read(instance)
}

/// Reads all records of a run directory that are readable; none where there is no directory.
pub fn read_records(run_directory: &Path) -> Vec<InstanceRecord> {
    let records = RunDirectory::open(run_directory).and_then(|directory| directory.records());
    records.into_iter().flatten().flatten().collect()
}

/// Record of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceRecord {
    /// Version of the record.
    pub version: u32,
    /// Identity.
    pub instance: InstanceId,
    /// Boot in which it was started.
    pub boot_id: String,
    /// Time of the start.
    pub started_ms: HostTime,
    /// The keeper, which is the first of the session of all processes.
    pub keeper: ProcessId,
    /// The process, which is the first of its group; none until it has been started.
    pub main: Option<ProcessId>,
    /// Port of the server.
    pub port: u16,
    /// Devices.
    pub devices: Vec<String>,
    /// Generation of the ledger at the grant of the leases.
    pub lease_epoch: u64,
    /// Digest of the settings that the process was started with.
    pub configuration_digest: String,
    /// State of the model's files before the start.
    #[serde(default)]
    pub files: Option<u64>,
    /// Key that the server asks of its clients.
    pub api_key: String,
    /// Control group.
    pub cgroup: Option<PathBuf>,
    /// Ring of the output.
    pub log_file: PathBuf,
}

impl InstanceRecord {
    /// Returns the record of an instance that is about to be started by `keeper`.
    ///
    /// # Errors
    /// `/proc` is not there.
    pub fn new(
        spec: &InstanceSpec,
        keeper: ProcessId,
        log_file: PathBuf,
    ) -> io::Result<InstanceRecord> {
        Ok(InstanceRecord {
            version: VERSION,
            instance: spec.instance.clone(),
            boot_id: boot_id()?,
            started_ms: host_time(),
            keeper,
            main: None,
            port: spec.port,
            devices: spec.devices.clone(),
            lease_epoch: spec.lease_epoch,
            configuration_digest: spec.configuration_digest.clone(),
            files: spec.files,
            api_key: spec.api_key.clone(),
            cgroup: spec.cgroup.clone(),
            log_file,
        })
    }

    /// Returns whether the instance was started since the host was.
    pub fn is_of_this_boot(&self) -> bool {
        boot_id().is_ok_and(|boot_id| boot_id == self.boot_id)
    }
}

fn boot_id() -> io::Result<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(text.trim().to_owned())
}

/// The directory of sockets and records, opened.
#[derive(Debug)]
pub struct RunDirectory {
    path: PathBuf,
    /// Names the directory in the paths of sockets, which are short.
    opened: File,
}

impl RunDirectory {
    /// Opens the directory, which is made for its owner alone where it is not there.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn create(path: &Path) -> io::Result<RunDirectory> {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(DIRECTORY_MODE).create(path)?;
        RunDirectory::open(path)
    }

    /// Opens the directory.
    ///
    /// # Errors
    /// The directory is not there.
    pub fn open(path: &Path) -> io::Result<RunDirectory> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(CWD, path, flags, Mode::empty())?;
        Ok(RunDirectory {
            path: path.to_owned(),
            opened: opened.into(),
        })
    }

    /// Listens at the socket of an instance, for the owner alone.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn listen(&self, instance: &InstanceId) -> io::Result<UnixListener> {
        let stem = instance.file_stem();
        remove(&self.path.join(format!("{stem}{SOCKET_SUFFIX}")))?;
        let listener = UnixListener::bind(self.socket(&stem))?;
        // The directory is its owner's alone until the mode is set.
        let path = self.path.join(format!("{stem}{SOCKET_SUFFIX}"));
        let mode = std::os::unix::fs::PermissionsExt::from_mode(FILE_MODE);
        std::fs::set_permissions(path, mode)?;
        Ok(listener)
    }

    /// Connects to the keeper of an instance.
    ///
    /// # Errors
    /// No keeper listens.
    pub fn connect(&self, instance: &InstanceId) -> io::Result<UnixStream> {
        UnixStream::connect(self.socket(&instance.file_stem()))
    }

    /// A path of at most 108 bytes, wherever the directory is.
    fn socket(&self, stem: &str) -> PathBuf {
        let directory = self.opened.as_raw_fd();
        PathBuf::from(format!("/proc/self/fd/{directory}/{stem}{SOCKET_SUFFIX}"))
    }

    /// Puts a record in place of the former one.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn write(&self, record: &InstanceRecord) -> io::Result<()> {
        let stem = record.instance.file_stem();
        let next = self.path.join(format!("{stem}{NEXT_SUFFIX}"));
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        let mut file = options.mode(FILE_MODE).open(&next)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        std::fs::rename(&next, self.path.join(format!("{stem}{RECORD_SUFFIX}")))
    }

    /// Reads the record of an instance.
    ///
    /// # Errors
    /// There is none, or it is not readable.
    pub fn read(&self, instance: &InstanceId) -> io::Result<InstanceRecord> {
        let name = format!("{}{RECORD_SUFFIX}", instance.file_stem());
        read_file(&self.path.join(name))
    }

    /// Reads all records. A record that cannot be read is an error of its own, with its path.
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub fn records(&self) -> io::Result<Vec<Result<InstanceRecord, (PathBuf, io::Error)>>> {
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(&self.path)?.take(ENTRIES_MAX) {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            if name.is_some_and(|name| name.ends_with(RECORD_SUFFIX)) {
                paths.push(path);
            }
        }
        paths.sort();
        paths.truncate(RECORDS_MAX);
        let read = |path: PathBuf| match read_file(&path) {
            Ok(record) => Some(Ok(record)),
            // Ended while the directory was listed.
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => Some(Err((path, error))),
        };
        Ok(paths.into_iter().filter_map(read).collect())
    }

    /// Removes sockets and record of an instance.
    ///
    /// # Errors
    /// A file that is there cannot be removed.
    pub fn remove(&self, instance: &InstanceId) -> io::Result<()> {
        let stem = instance.file_stem();
        let of_server = server_socket_name(instance);
        let entries = std::fs::read_dir(&self.path).into_iter().flatten();
        for entry in entries.take(ENTRIES_MAX).flatten() {
            if entry
                .file_name()
                .as_encoded_bytes()
                .starts_with(of_server.as_bytes())
            {
                remove(&entry.path())?;
            }
        }
        for suffix in [SOCKET_SUFFIX, NEXT_SUFFIX, RECORD_SUFFIX] {
            remove(&self.path.join(format!("{stem}{suffix}")))?;
        }
        Ok(())
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn read_file(path: &Path) -> io::Result<InstanceRecord> {
    let mut text = Vec::new();
    File::open(path)?.take(BYTES_MAX).read_to_end(&mut text)?;
    let record: InstanceRecord = serde_json::from_slice(&text)?;
    match record.version {
        VERSION => Ok(record),
        other => Err(io::Error::new(
            ErrorKind::InvalidData,
            format!("version {other} of the records is not known here"),
        )),
    }
}

#[cfg(test)]
pub mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Record of an instance whose keeper and process are the given ones.
    pub fn record(instance: &InstanceId, keeper: ProcessId, main: ProcessId) -> InstanceRecord {
        InstanceRecord {
            version: VERSION,
            instance: instance.clone(),
            boot_id: "boot".to_owned(),
            started_ms: HostTime(1),
            keeper,
            main: Some(main),
            port: 20_000,
            devices: vec!["sim0".to_owned()],
            lease_epoch: 7,
            configuration_digest: "d".to_owned(),
            files: None,
            api_key: "k".to_owned(),
            cgroup: None,
            log_file: PathBuf::from("/tmp/log"),
        }
    }

    #[test]
    fn records_come_back_and_a_damaged_one_is_named_alone() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDirectory::create(&dir.path().join("gpu/run")).unwrap();
        let instance = InstanceId::new("m#0", 1).unwrap();
        let process = ProcessId { pid: 5, start: 6 };
        let record = record(&instance, process, process);
        run.write(&record).unwrap();
        std::fs::write(run.path.join("torn.json"), "{").unwrap();
        assert_eq!(run.read(&instance).unwrap(), record);
        let all = run.records().unwrap();
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].as_ref().unwrap(), &record);
        assert!(all[1].as_ref().unwrap_err().0.ends_with("torn.json"));
        assert!(!has_keeper(&run.path, &instance), "of another boot");
        let own = ProcessId::of(std::process::id()).unwrap();
        let present = InstanceRecord {
            boot_id: boot_id().unwrap(),
            keeper: own,
            ..record
        };
        run.write(&present).unwrap();
        assert!(has_keeper(&run.path, &instance));
        run.remove(&instance).unwrap();
        assert!(run.read(&instance).is_err());
        assert!(!has_keeper(&run.path, &instance));
    }

    #[test]
    fn sockets_of_a_server_go_with_its_record_and_those_of_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDirectory::create(dir.path()).unwrap();
        let path = |slot: &str| {
            let instance = InstanceId::new(slot, 1).unwrap();
            server_socket(dir.path(), &instance).unwrap()
        };
        let second = PathBuf::from(format!("{}-1", path("m#0").display()));
        let of_other = path("m#1");
        let _listeners = [&path("m#0"), &second, &of_other].map(UnixListener::bind);
        assert!(second.exists() && of_other.exists());
        run.remove(&InstanceId::new("m#0", 1).unwrap()).unwrap();
        assert!(!path("m#0").exists() && !second.exists() && of_other.exists());
    }

    #[test]
    fn a_server_has_a_socket_below_a_path_of_80_bytes_however_long_its_slot_is_named() {
        let directory = |bytes: usize| PathBuf::from(format!("/{}", "d".repeat(bytes - 1)));
        let instance = InstanceId::new(&"m".repeat(300), 1).unwrap();
        let path = server_socket(&directory(80), &instance).unwrap();
        assert!(path.as_os_str().len() + "-999".len() <= 107);
        assert_eq!(server_socket(&directory(90), &instance), None);
    }

    #[test]
    fn files_are_their_owners_alone_and_a_long_path_has_a_socket() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("d".repeat(120));
        let run = RunDirectory::create(&deep).unwrap();
        let instance = InstanceId::new("m#0", 1).unwrap();
        let _listener = run.listen(&instance).unwrap();
        run.connect(&instance).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let socket = deep.join("m#0-00000001.sock");
        assert_eq!((mode(&deep), mode(&socket)), (0o700, 0o600));
    }
}
