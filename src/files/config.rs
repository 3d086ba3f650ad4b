//! `files` of the configuration: where files are, how large and how long they are kept.
//!
//! Not the store itself.

use std::path::{Path, PathBuf};

use infergate_core::model::Secret;
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
    /// Store that speaks S3, instead of `local`. What it has is known to this node alone, by records in `state_dir`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub s3: Option<S3FilesConfig>,
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
            s3: None,
            file_max_mib: 512,
            account_max_mib: 10_240,
            expires_secs: 86_400,
        }
    }
}

impl FilesConfig {
    /// Returns the folder of the local store, and of the records of any store.
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

/// Store that speaks S3.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct S3FilesConfig {
    /// Bucket, which is there already. A change takes a restart.
    #[schemars(length(min = 1, max = 255))]
    pub bucket: String,
    /// URL of the store, `http://host:port` or `https://host`; Amazon's of the region when absent. A change takes a
    /// restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Region in signatures. A change takes a restart.
    #[serde(default = "S3FilesConfig::default_region")]
    #[schemars(length(min = 1, max = 255))]
    pub region: String,
    /// Name of the key; requests are not signed when absent. A change takes a restart.
    #[serde(default, skip_serializing)]
    pub access_key: Option<Secret>,
    /// Secret of the key, usually `"${SOME_SECRET}"`. A change takes a restart.
    #[serde(default, skip_serializing)]
    pub secret_key: Option<Secret>,
    /// The bucket stands in the path of URLs, not in the host. A change takes a restart.
    #[serde(default)]
    pub path_style: bool,
    /// Beginning of the names of objects, such as `infergate/`. A change takes a restart.
    #[serde(default)]
    #[schemars(length(max = 255))]
    pub prefix: String,
}

impl S3FilesConfig {
    fn default_region() -> String {
        "us-east-1".to_owned()
    }
}
