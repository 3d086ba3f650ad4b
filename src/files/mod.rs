//! Files of accounts: uploads, large inputs and outputs of jobs, and their signed downloads.
//!
//! Not an API and not a job: callers know only [`Files`]. Names, paths and content types of users never reach the
//! file system.

mod config;
mod disk;
mod file_id;
mod index;
mod key;
mod local;
mod records;
mod s3;
mod service;
mod store;
mod upload;
mod urls;

pub use config::FilesConfig;
pub use file_id::FileId;
pub use index::FilePlace;
pub use records::{FileOrigin, FileRecord};
pub use service::Files;
pub use upload::{NewFile, Upload};
pub use urls::{file_in_url, file_url};
