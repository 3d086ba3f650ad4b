//! `events` of the configuration: the file, the socket, the share of each that is written.
//!
//! Values only.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::telemetry::rotating_file::FileSettings;

/// `events` of the configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EventsConfig {
    /// File of inference events, one JSON object a line; when absent, none are written.
    pub file: Option<EventFileConfig>,
    /// Socket in the file system that gets the same lines; when absent, none are sent.
    pub unix_socket: Option<EventSocketConfig>,
    /// Share of the events that sinks other than the file get, chosen at random. Each line tells its inverse as
    /// `sample_interval`.
    #[schemars(range(min = 0.000001, max = 1))]
    pub sample: f64,
    /// Moment at which an event counts as written.
    pub durability: Durability,
}

impl Default for EventsConfig {
    fn default() -> EventsConfig {
        EventsConfig {
            file: None,
            unix_socket: None,
            sample: ALL,
            durability: Durability::default(),
        }
    }
}

/// Share of a sink that gets every event.
const ALL: f64 = 1.0;

/// `events.file` of the configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventFileConfig {
    /// The current file; rotated ones stand beside it as `path.1`, `path.2` and so on.
    #[schemars(length(min = 1))]
    pub path: PathBuf,
    /// The file is rotated before it grows beyond this.
    #[serde(default = "EventFileConfig::default_max_size_mib")]
    #[schemars(range(min = 1, max = 1048576))]
    pub max_size_mib: u64,
    /// Rotated files kept; the oldest goes.
    #[serde(default = "EventFileConfig::default_keep")]
    #[schemars(range(max = 1000))]
    pub keep: u32,
    /// Share of the events that the file gets. Below 1 the file is no record of what is billed.
    #[serde(default = "EventFileConfig::default_sample")]
    #[schemars(range(min = 0.000001, max = 1))]
    pub sample: f64,
}

impl EventFileConfig {
    /// A file of every line, for lines of any kind.
    pub fn whole(path: PathBuf, max_size_mib: u64, keep: u32) -> EventFileConfig {
        EventFileConfig {
            path,
            max_size_mib,
            keep,
            sample: ALL,
        }
    }

    fn default_max_size_mib() -> u64 {
        256
    }

    fn default_keep() -> u32 {
        8
    }

    fn default_sample() -> f64 {
        ALL
    }

    pub(super) fn settings(&self) -> FileSettings {
        FileSettings {
            path: self.path.clone(),
            size_max_bytes: self.max_size_mib.saturating_mul(1024 * 1024),
            keep: self.keep,
        }
    }
}

/// `events.unix_socket` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventSocketConfig {
    /// Path of the socket at which the receiver listens.
    #[schemars(length(min = 1, max = 107))]
    pub path: PathBuf,
    /// Kind of the socket.
    #[serde(default)]
    pub transport: SocketTransport,
}

/// Kind of a socket for events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SocketTransport {
    /// A connection of lines.
    #[default]
    Stream,
    /// A line a datagram.
    Datagram,
}

/// Moment at which an event counts as written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// Within 100 ms of the response's end.
    #[default]
    Buffered,
    /// On the disk before the client gets the last byte.
    BeforeLastByte,
}
