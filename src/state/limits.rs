//! `limits`: how much one request, one client and all requests together may take.
//!
//! Not the counters, which the pipeline keeps. Units stand in the keys, bounds beside them.

use infergate_core::admission::bodies::BodyLimits;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Sizes and counts a client cannot exceed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Largest request body, MiB; a larger one is refused with 413.
    #[schemars(range(min = 1, max = 1024))]
    pub request_body_mib: u64,
    /// Memory for the request bodies of all requests together, MiB; above it a request gets 503.
    #[schemars(range(min = 1, max = 1048576))]
    pub buffered_bodies_mib: u64,
    /// Percent of `buffered_bodies_mib` that one account may hold while another account holds bodies,
    /// one body at least; an account alone leaves as much free for the others.
    #[schemars(range(min = 1, max = 100))]
    pub body_share_percent: u64,
    /// Slowest request body, KiB/s over `timeouts.request_body_idle_secs`; a slower one is refused with
    /// 408. 0 is no floor.
    #[schemars(range(max = 1048576))]
    pub body_min_kib_per_sec: u64,
    /// Largest request header section, KiB; a larger one is refused with 431.
    #[schemars(range(min = 1, max = 1024))]
    pub request_headers_kib: u64,
    /// Seconds from the first byte of a request to the end of its header section, in all and not
    /// per read.
    #[schemars(range(min = 1, max = 3600))]
    pub header_timeout_secs: u64,
    /// Open connections of all clients together; one more gets 503.
    #[schemars(range(min = 1, max = 1000000))]
    pub connections: u32,
    /// Open connections from one client address; one more gets 503. Behind a balancer all clients have its address, but
    /// for `proxy_protocol` and `trusted_proxies`: requests of a trusted proxy count for their client while they run.
    #[schemars(range(min = 1, max = 1000000))]
    pub connections_per_client: u32,
    /// TLS handshakes of clients under way at a time; another cuts that which has waited longest.
    #[schemars(range(min = 1, max = 65536))]
    pub handshakes: u32,
    /// TLS handshakes of clients a second, after a burst of as many. Others wait for up to `handshake_timeout_secs`, then
    /// they are closed. 0 is no bound: cores and keys decide how many there can be.
    #[schemars(range(max = 1000000))]
    pub handshakes_per_second: u32,
    /// Seconds for a client's TLS handshake, and for the header of the PROXY protocol.
    #[schemars(range(min = 1, max = 60))]
    pub handshake_timeout_secs: u64,
    /// Slowest rate at which a client takes a response, KiB per second over `timeouts.stream_idle_secs`;
    /// a slower client is cut off. Applies once the 8 MiB that are kept of the response (64 MiB of all
    /// together) are full. 0 is no floor.
    #[schemars(range(max = 1048576))]
    pub reader_min_kib_per_sec: u64,
    /// Memory that waiting guests of plugins may keep together, MiB; above it the plugin that keeps most
    /// gives up its longest waiting guest. 0 keeps none. A guest not asked for 60 seconds goes anyway.
    #[schemars(range(max = 65536))]
    pub warm_guests_mib: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            request_body_mib: 32,
            buffered_bodies_mib: 512,
            body_share_percent: 25,
            body_min_kib_per_sec: 1,
            request_headers_kib: 64,
            header_timeout_secs: 10,
            connections: 16384,
            connections_per_client: 1024,
            handshakes: 256,
            handshakes_per_second: 0,
            handshake_timeout_secs: 5,
            reader_min_kib_per_sec: 1,
            warm_guests_mib: 256,
        }
    }
}

impl Limits {
    /// [`Limits::reader_min_kib_per_sec`] in bytes.
    pub fn reader_min_bytes_per_sec(&self) -> u64 {
        self.reader_min_kib_per_sec.saturating_mul(1 << 10)
    }

    /// [`Limits::request_body_mib`] in bytes.
    pub fn request_body_bytes(&self) -> u64 {
        self.request_body_mib.saturating_mul(1 << 20)
    }

    /// Bounds of the memory for request bodies, where `is_alone` says that there is one account only.
    pub fn bodies(&self, is_alone: bool) -> BodyLimits {
        let total_bytes = self.buffered_bodies_mib.saturating_mul(1 << 20);
        BodyLimits {
            total_bytes,
            share_bytes: total_bytes.saturating_mul(self.body_share_percent) / 100,
            one_body_bytes: self.request_body_bytes(),
            is_alone,
        }
    }

    /// [`Limits::request_headers_kib`] in bytes.
    pub fn request_headers_bytes(&self) -> u64 {
        self.request_headers_kib.saturating_mul(1 << 10)
    }
}
