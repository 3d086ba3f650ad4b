//! Place of the bucket: the origin that requests go to.
//!
//! Not the names of objects.

use crate::files::config::S3FilesConfig;

/// Origin of a store and how its bucket is named there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BucketPlace {
    /// Endpoint as signatures expect it: the bucket's own, or the store's with its path.
    pub(super) endpoint: String,
    /// Scheme, host and port.
    pub(super) origin: String,
}

impl BucketPlace {
    /// Returns the place of the configured bucket.
    pub(super) fn of(config: &S3FilesConfig) -> BucketPlace {
        let amazon = || format!("https://s3.{}.amazonaws.com", config.region);
        let base = config.endpoint.clone().unwrap_or_else(amazon);
        let base = base.trim_end_matches('/');
        let (scheme, rest) = base.split_once("://").unwrap_or(("https", base));
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        // A port that the scheme has anyway is not part of what is signed.
        let usual = if scheme == "https" { ":443" } else { ":80" };
        let authority = authority.strip_suffix(usual).unwrap_or(authority);
        let origin = match config.path_style {
            true => format!("{scheme}://{authority}"),
            false => format!("{scheme}://{}.{authority}", config.bucket),
        };
        BucketPlace {
            endpoint: format!("{origin}{path}"),
            origin,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_stands_in_the_host_or_in_the_path() {
        let place = |text: &str| BucketPlace::of(&serde_json::from_str(text).unwrap()).endpoint;
        assert_eq!(
            place(r#"{"bucket":"b"}"#),
            "https://b.s3.us-east-1.amazonaws.com"
        );
        assert_eq!(
            place(r#"{"bucket":"b","endpoint":"http://h:80/","path_style":true}"#),
            "http://h"
        );
        assert_eq!(
            place(r#"{"bucket":"b","endpoint":"http://h:9000/x"}"#),
            "http://b.h:9000/x"
        );
    }
}
