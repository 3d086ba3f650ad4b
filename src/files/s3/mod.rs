//! Blobs in a store that speaks S3, over the gateway's own client: docs/decisions/038-object-store-for-s3.md
//!
//! ```text
//! blobs, bucket (objects, cleaning)   writer (parts)   connector (requests)   digests (signatures)   faults (errors)
//! ```

mod blobs;
mod bucket;
mod connector;
mod digests;
mod faults;
mod place;
mod writer;

pub use blobs::S3Blobs;
