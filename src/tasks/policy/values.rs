//! Arguments and results of a routing policy: numbers only, no logic.
//!
//! The same values as in the plugin interface `infergate:plugin/routing`.

use alloc::vec::Vec;

use serde::Serialize;

/// Candidates of one ranking; real deployments have fewer.
pub const CANDIDATES_MAX: usize = 1024;
/// The full share: affinities are given in thousandths.
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

/// Condition of a candidate in one word, as `/state` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    /// In use, and nothing is wrong.
    Healthy,
    /// In use, and failing now and then or coming back from an ejection.
    Degraded,
    /// Not in use for a time, because requests failed there.
    Ejected,
    /// Not configured any more, finishing its requests. Set by the shell, which knows permits.
    Draining,
    /// Not in use, because health checks fail.
    Down,
}

impl Health {
    /// Every condition, in the order of the metric's series and from fit to unfit.
    pub const ALL: [Health; 5] = [
        Health::Healthy,
        Health::Degraded,
        Health::Ejected,
        Health::Draining,
        Health::Down,
    ];

    /// The word.
    pub const fn name(self) -> &'static str {
        match self {
            Health::Healthy => "healthy",
            Health::Degraded => "degraded",
            Health::Ejected => "ejected",
            Health::Draining => "draining",
            Health::Down => "down",
        }
    }

    /// Class of fitness, the fittest is 0: policies order within a class, never across.
    pub const fn fitness(self) -> u8 {
        match self {
            Health::Healthy => 0,
            Health::Degraded => 1,
            Health::Ejected => 2,
            Health::Draining => 3,
            Health::Down => 4,
        }
    }

    /// Returns whether requests should go there at all.
    pub const fn is_fit(self) -> bool {
        matches!(self, Health::Healthy | Health::Degraded)
    }
}

/// A possible target of a request: an endpoint of this node, or a site with all its nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Position in the caller's list; results refer to candidates by it.
    pub id: u32,
    /// Site: 0 is this one, others have the [`site_number`] of their names.
    pub site: u32,
    /// Node; none for an endpoint of this node, and for a site as a whole.
    pub node: Option<u32>,
    /// State of health.
    pub health: Health,
    /// Free permits.
    pub permits_free: u32,
    /// All permits.
    pub permits_total: u32,
    /// Requests waiting there.
    pub queue_len: u32,
    /// Microseconds of a round trip; 0 when not measured.
    pub rtt_us: u32,
    /// Microseconds to the first token, smoothed; 0 when not measured.
    pub ttft_us: u32,
    /// Microseconds of a whole response, smoothed; 0 when not measured.
    pub latency_us: u32,
    /// Failed responses per million, smoothed.
    pub error_ppm: u32,
    /// 0 to [`WHOLE`]: the adapter is resident.
    pub lora_affinity: u16,
    /// 0 to [`WHOLE`]: share of the prompt's prefix believed cached there.
    pub prefix_affinity: u16,
    /// `priority` of the endpoint.
    pub tier: u8,
    /// Consecutive out-of-capacity responses.
    pub ooc: u8,
}

/// Facts about the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// The model, by the caller's numbering.
    pub model: u32,
    /// Site by which the request entered; 0 is this one.
    pub source_site: u32,
    /// Size of its body.
    pub body_bytes: u32,
    /// Attempts before this one.
    pub attempt: u8,
    /// The response is to be a stream.
    pub streaming: bool,
    /// 0 is first, 9 last.
    pub priority: u8,
    /// Milliseconds until its deadline.
    pub deadline_ms: Option<u32>,
    /// Number of the LoRA adapter's name.
    pub lora: Option<u32>,
    /// The required site.
    pub forced_site: Option<u32>,
    /// Random number, for policies that spread.
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

/// A policy with its settings.
pub trait RankCandidates {
    /// Ranks the candidates, best first.
    fn rank(&self, hints: &Hints, candidates: &[Candidate]) -> Vec<Choice>;
}
