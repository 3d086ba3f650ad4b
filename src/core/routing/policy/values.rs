//! The values a policy is asked with and answers with: numbers only.
//!
//! They are those of the plugin interface `infergate:plugin/routing`. Nothing is decided here.

/// Candidates of one ranking; real deployments have fewer.
pub const CANDIDATES_MAX: usize = 1024;
/// A share that is whole: affinities are told in thousandths.
pub const WHOLE: u16 = 1000;

/// The number of another site's name, the same on every node and after every restart: 32 bits of FNV-1a
/// (<https://datatracker.ietf.org/doc/html/draft-eastlake-fnv>), and 1 instead of 0. Two names with one
/// number are one site to a policy.
pub fn site_number(name: &str) -> u32 {
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    hash.max(1)
}

/// One place a request could go: an endpoint of this node, or a site with all its nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its position in the caller's list; the only thing an answer may name.
    pub id: u32,
    /// The site it stands in: 0 is this one, others have the [`site_number`] of their names.
    pub site: u32,
    /// The node it stands behind; none for an endpoint of this node, and for a site as a whole.
    pub node: Option<u32>,
    /// Whether it is fit.
    pub health: crate::routing::Health,
    /// Free permits.
    pub permits_free: u32,
    /// All its permits.
    pub permits_total: u32,
    /// Requests that wait there.
    pub queue_len: u32,
    /// Microseconds of a round trip; 0 when not measured.
    pub rtt_us: u32,
    /// Microseconds to the first token, smoothed; 0 when not measured.
    pub ttft_us: u32,
    /// Microseconds of a whole answer, smoothed; 0 when not measured.
    pub latency_us: u32,
    /// Failed answers per million, smoothed.
    pub error_ppm: u32,
    /// 0 to [`WHOLE`]: the adapter is resident.
    pub lora_affinity: u16,
    /// 0 to [`WHOLE`]: share of the prompt's prefix believed cached there.
    pub prefix_affinity: u16,
    /// `priority` of the endpoint.
    pub tier: u8,
    /// Out-of-capacity answers in a row.
    pub ooc: u8,
}

/// What is known of the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// The model, by the caller's numbering.
    pub model: u32,
    /// The site it entered by; 0 is this one.
    pub source_site: u32,
    /// Size of its body.
    pub body_bytes: u32,
    /// Tries before this one.
    pub attempt: u8,
    /// It wants a stream.
    pub streaming: bool,
    /// 0 is first, 9 last.
    pub priority: u8,
    /// Milliseconds until its deadline.
    pub deadline_ms: Option<u32>,
    /// The adapter it wants, as a number of its name.
    pub lora: Option<u32>,
    /// The site it must go to.
    pub forced_site: Option<u32>,
    /// Chance, for policies that spread.
    pub seed: u64,
}

/// A candidate's place. Equal steps are one tier: load is spread inside it, and the next is used
/// only when it is exhausted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// [`Candidate::id`].
    pub id: u32,
    /// 0 is best.
    pub step: u8,
}
