//! `files` of the configuration: where files are, how large and how long they are kept.
//!
//! Not the store itself.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Folder of the local store in `state_dir`, where none is configured.
const FOLDER: &str = "files";

/// Files of accounts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FilesConfig {
    /// Store on a disk of this node.
    pub local: LocalFilesConfig,
    /// MiB of one file.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub file_max_mib: u64,
    /// MiB of all files of an account; each counts as 16 KiB at least.
    #[schemars(range(min = 1, max = 1_073_741_824))]
    pub account_max_mib: u64,
    /// Seconds that a file is kept.
    #[schemars(range(min = 1, max = 31_536_000))]
    pub expires_secs: u64,
}

impl Default for FilesConfig {
    fn default() -> Self {
        FilesConfig {
            local: LocalFilesConfig::default(),
            file_max_mib: 512,
            account_max_mib: 10_240,
            expires_secs: 86_400,
        }
    }
}

impl FilesConfig {
    /// Returns the folder of the local store.
    pub fn folder(&self, state_dir: &Path) -> PathBuf {
        let own = self.local.dir.clone();
        own.unwrap_or_else(|| state_dir.join(FOLDER))
    }
}

/// Store on a disk of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LocalFilesConfig {
    /// Directory of the files; `files` in `state_dir` when absent. A change takes a restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub dir: Option<PathBuf>,
}
