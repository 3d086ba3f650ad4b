//! Object of a file.
//!
//! Not its bytes, which have a URL of their own.

use serde_json::{Map, Value, json};

/// File as clients see it. Times are RFC 3339 in UTC with six decimals.
#[derive(Clone, Debug)]
pub struct FileView<'a> {
    /// Id.
    pub id: String,
    /// Name that the client gave it.
    pub name: &'a str,
    /// Content type.
    pub content_type: &'a str,
    /// Bytes.
    pub size: u64,
    /// SHA-256, hex.
    pub sha256: &'a str,
    /// MD5, hex.
    pub md5: &'a str,
    /// Object that came with it.
    pub metadata: &'a Map<String, Value>,
    /// Moment of the upload.
    pub created_at: String,
    /// Moment of its end.
    pub expires_at: String,
    /// URL that shows it.
    pub get: String,
    /// URL by which anyone may download it.
    pub download: String,
}

impl FileView<'_> {
    /// Returns the object.
    pub fn to_bytes(&self) -> Vec<u8> {
        let object = json!({
            "id": self.id,
            "name": self.name,
            "content_type": self.content_type,
            "size": self.size,
            "etag": self.md5,
            "checksums": { "sha256": self.sha256, "md5": self.md5 },
            "metadata": self.metadata,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "urls": { "get": self.get, "download": self.download },
        });
        object.to_string().into_bytes()
    }
}
