//! Demand for rankings, from requests to the task that ranks.
//!
//! No policy is called here, and requests that come together are one.

use tokio::sync::Notify;

/// Notified when a ranking is asked for the first time since it was made. A single one for all models: a
/// round costs the others a look at their classes.
static RANKING_REQUESTED: Notify = Notify::const_new();

/// Requests a round of rankings: by a request that asks for one, and once a new configuration is in force, whose
/// tables are empty.
pub fn request_ranking() {
    RANKING_REQUESTED.notify_one();
}

/// Waits until rankings are to be made.
pub async fn ranking_requested() {
    RANKING_REQUESTED.notified().await;
}

/// The next round of rankings that a model needs; the larger one wins over several models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RankingDemand {
    /// None until a request asks.
    None,
    /// Sites, which are ranked ahead of requests.
    Sites,
    /// Requests asked since the last round.
    Requests,
}

impl RankingDemand {
    pub(super) fn of(is_asked: bool, has_sites: bool) -> RankingDemand {
        match (is_asked, has_sites) {
            (true, _) => RankingDemand::Requests,
            (false, true) => RankingDemand::Sites,
            (false, false) => RankingDemand::None,
        }
    }
}
