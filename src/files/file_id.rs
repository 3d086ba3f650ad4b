//! Id of a file: 16 random bytes, written as 32 hex digits.
//!
//! The only part of a name on the disk. Upper case is not an id, so that one file has one name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Id of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FileId([u8; 16]);

impl FileId {
    /// Makes an id that no other file has.
    pub fn random() -> FileId {
        FileId(fastrand::u128(..).to_be_bytes())
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// Text that is no id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not 32 lower-case hex digits")]
pub struct BadFileId;

impl FromStr for FileId {
    type Err = BadFileId;

    fn from_str(text: &str) -> Result<FileId, BadFileId> {
        let mut bytes = [0; 16];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| BadFileId)?;
        match text.bytes().any(|byte| byte.is_ascii_uppercase()) {
            true => Err(BadFileId),
            false => Ok(FileId(bytes)),
        }
    }
}

impl TryFrom<String> for FileId {
    type Error = BadFileId;

    fn try_from(text: String) -> Result<FileId, BadFileId> {
        text.parse()
    }
}

impl From<FileId> for String {
    fn from(id: FileId) -> String {
        id.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_is_written_and_nothing_else_is_one() {
        let id = FileId::random();
        assert_eq!(id.to_string().parse(), Ok(id));
        for text in [
            "",
            "..",
            "../../../../etc/passwd",
            &"A".repeat(32),
            &"a".repeat(33),
        ] {
            assert_eq!(text.parse::<FileId>(), Err(BadFileId), "{text}");
        }
    }
}
