//! Messages between a gateway and a keeper: JSON lines of at most [`LINE_BYTES_MAX`] bytes, each with its version.
//!
//! Not their effect, which is the keeper's. Unknown members are passed over, so that gateways of two versions can end
//! each other's instances. Times are milliseconds.

use std::io;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::identity::InstanceId;
use crate::gpu::processes::ProcessId;

/// Version of the messages.
const VERSION: u32 = 1;
/// Bytes of a line: arguments and environment of a command, or the last lines of its output as JSON.
pub const LINE_BYTES_MAX: usize = 256 * 1024;

/// Specification of an instance: all that its keeper has to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceSpec {
    /// Identity.
    pub instance: InstanceId,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The whole environment, in which the last of two values counts.
    pub environment: Vec<(String, String)>,
    /// Directory in which the program runs; the gateway's where there is none.
    pub working_directory: Option<PathBuf>,
    /// Directory of sockets and records.
    pub run_directory: PathBuf,
    /// Directory of the output's rings.
    pub log_directory: PathBuf,
    /// Size of the output's ring, bytes.
    pub log_bytes: u64,
    /// Limits of the process.
    pub limits: ProcessLimits,
    /// Control group of the instance, made by the gateway.
    pub cgroup: Option<PathBuf>,
    /// Time for another gateway to take over after the end of the gateway.
    pub orphan_grace_ms: u64,
    /// Time from SIGTERM to SIGKILL.
    pub stop_timeout_ms: u64,
    /// Port of the server.
    pub port: u16,
    /// Devices of the instance.
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
}

/// Limits of a process; 0 is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessLimits {
    /// Memory of the host, MiB.
    pub memory_mib: u64,
    /// Processes and threads, where there is a control group.
    pub pids: u64,
    /// Open files.
    pub open_files: u64,
    /// Niceness, -20 to 19.
    pub nice: i32,
}

/// Command to a keeper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum KeeperCommand {
    /// Starts the instance: the first message of a keeper's first connection, and no other's.
    Start(Box<InstanceSpec>),
    /// Makes the connection a life line.
    Adopt,
    /// Asks for the state.
    Status,
    /// Ends the instance: SIGTERM, its time to stop, SIGKILL.
    Stop,
    /// Ends the instance at once.
    Kill,
}

/// Message of a keeper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum KeeperEvent {
    /// The process has been started.
    Started {
        /// The process, which is the first of its group.
        main: ProcessId,
    },
    /// The process has ended. Others of the instance may still be there.
    Exited(ExitReport),
    /// No process of the instance is left, and the keeper ends.
    Gone,
    /// Answer to [`KeeperCommand::Status`] and [`KeeperCommand::Adopt`].
    Status(KeeperStatus),
    /// The command cannot be followed.
    Rejected {
        /// Reason, for people.
        reason: String,
    },
}

/// End of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitReport {
    /// Exit status, unless a signal has ended it.
    pub code: Option<i32>,
    /// Signal that has ended it.
    pub signal: Option<i32>,
    /// Beginning of the last lines of its output, at most 20 KiB.
    pub last_lines: String,
}

/// State of an instance, as its keeper knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperStatus {
    /// Identity.
    pub instance: InstanceId,
    /// The process.
    pub main: ProcessId,
    /// Its end, where it has ended.
    pub exit: Option<ExitReport>,
    /// The instance is being ended.
    pub is_stopping: bool,
    /// Other connections that are life lines.
    pub life_lines: u32,
    /// Bytes of output that could not be kept.
    pub dropped_log_bytes: u64,
}

/// Message with the version that its sender speaks.
#[derive(Serialize, Deserialize)]
struct VersionedMessage<T> {
    v: u32,
    #[serde(flatten)]
    message: T,
}

/// Renders a message as a line.
///
/// # Errors
/// The message is too long.
pub fn encode<T: Serialize>(message: T) -> io::Result<Vec<u8>> {
    let message = VersionedMessage {
        v: VERSION,
        message,
    };
    let mut line = serde_json::to_vec(&message)?;
    line.push(b'\n');
    match line.len() <= LINE_BYTES_MAX {
        true => Ok(line),
        false => Err(invalid("the message is too long")),
    }
}

/// Reads a line as a message.
///
/// # Errors
/// The line is of another version, or no message.
pub fn decode<T: DeserializeOwned>(line: &[u8]) -> io::Result<T> {
    #[derive(Deserialize)]
    struct MessageVersion {
        v: u32,
    }
    let MessageVersion { v } = serde_json::from_slice(line)?;
    if v != VERSION {
        return Err(invalid(&format!(
            "version {v} of the messages is not known here"
        )));
    }
    Ok(serde_json::from_slice::<VersionedMessage<T>>(line)?.message)
}

/// Bytes that have come, until they are whole lines.
#[derive(Debug, Default)]
pub struct LineBuffer {
    bytes: Vec<u8>,
}

impl LineBuffer {
    /// Takes bytes in.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next whole line without its end.
    ///
    /// # Errors
    /// A line is longer than [`LINE_BYTES_MAX`].
    pub fn next_line(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(end) = memchr::memchr(b'\n', &self.bytes) else {
            return match self.bytes.len() < LINE_BYTES_MAX {
                true => Ok(None),
                false => Err(invalid("a line is too long")),
            };
        };
        let rest = self.bytes.split_off(end + 1);
        let mut line = std::mem::replace(&mut self.bytes, rest);
        line.truncate(end);
        Ok(Some(line))
    }
}

fn invalid(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_as_they_were_sent_and_unknown_members_are_passed_over() {
        let event = KeeperEvent::Exited(ExitReport {
            signal: Some(9),
            ..ExitReport::default()
        });
        let line = encode(&event).unwrap();
        assert_eq!(decode::<KeeperEvent>(&line).unwrap(), event);
        let stop: KeeperCommand = decode(br#"{"v":1,"do":"stop","later":1}"#).unwrap();
        assert_eq!(stop, KeeperCommand::Stop);
    }

    #[test]
    fn another_version_is_named_and_garbage_is_an_error() {
        let later = decode::<KeeperCommand>(br#"{"v":2,"do":"stop"}"#).unwrap_err();
        assert!(later.to_string().contains("version 2"), "{later}");
        for line in [&b"{}"[..], b"", b"stop", br#"{"v":1,"do":"sing"}"#] {
            assert!(decode::<KeeperCommand>(line).is_err());
        }
    }

    #[test]
    fn lines_are_cut_where_they_end_and_bounded() {
        let mut lines = LineBuffer::default();
        lines.push(b"one\ntw");
        assert_eq!(lines.next_line().unwrap().unwrap(), b"one");
        assert_eq!(lines.next_line().unwrap(), None);
        lines.push(b"o\n");
        assert_eq!(lines.next_line().unwrap().unwrap(), b"two");
        lines.push(&vec![b'x'; LINE_BYTES_MAX]);
        assert!(lines.next_line().is_err());
    }
}
