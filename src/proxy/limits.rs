//! `limits`: how much one request, one client and all requests together may take.
//!
//! It does not count anything; the proxy does. Units stand in the keys, bounds beside them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Sizes and counts a client cannot exceed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Largest request body, MiB; a larger one is refused with 413.
    #[schemars(range(min = 1, max = 1024))]
    pub request_body_mib: u64,
    /// Memory for the request bodies of all requests together, MiB; above it a request gets 503
    /// before its body is read.
    #[schemars(range(min = 1, max = 1048576))]
    pub buffered_bodies_mib: u64,
    /// Largest request header section, KiB; a larger one is refused with 431.
    #[schemars(range(min = 1, max = 1024))]
    pub request_headers_kib: u64,
    /// Seconds from the first byte of a request to the end of its header section, in all and not
    /// per read.
    #[schemars(range(min = 1, max = 3600))]
    pub header_timeout_secs: u64,
    /// Open connections from one client address.
    #[schemars(range(min = 1, max = 1000000))]
    pub connections_per_client: u32,
    /// Memory that waiting guests of plugins may keep together, MiB; above it the plugin that keeps most
    /// gives up its longest waiting guest. 0 keeps none. One not asked for 60 seconds goes anyway.
    #[schemars(range(max = 65536))]
    pub warm_guests_mib: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            request_body_mib: 32,
            buffered_bodies_mib: 512,
            request_headers_kib: 64,
            header_timeout_secs: 10,
            connections_per_client: 1024,
            warm_guests_mib: 256,
        }
    }
}

impl Limits {
    /// [`Limits::request_body_mib`] in bytes.
    pub fn request_body_bytes(&self) -> u64 {
        self.request_body_mib.saturating_mul(1 << 20)
    }

    /// [`Limits::buffered_bodies_mib`] in bytes.
    pub fn buffered_bodies_bytes(&self) -> u64 {
        self.buffered_bodies_mib.saturating_mul(1 << 20)
    }

    /// [`Limits::request_headers_kib`] in bytes.
    pub fn request_headers_bytes(&self) -> u64 {
        self.request_headers_kib.saturating_mul(1 << 10)
    }
}
