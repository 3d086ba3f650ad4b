//! The task that calls routing policies outside requests: cached ones rank endpoints, all of them rank other sites.
//!
//! No order is used here. Without a request that asks for a ranking and without other sites, the task rests.

use std::sync::Arc;

use tokio::time::{Instant, sleep_until, timeout};

use crate::plugin::RoutingMode;
use crate::state::Shared;
use crate::upstream::{RANKING_TICK, RankingDemand, SITES_TICK, ranking_requested};

/// Ranks for the life of the process.
pub async fn rank(shared: Arc<Shared>, is_clustered: bool) {
    loop {
        let began = Instant::now();
        match rank_models(&shared).await {
            RankingDemand::Requests => sleep_until(began + RANKING_TICK).await,
            // A node of another site may appear.
            demand if is_clustered || demand == RankingDemand::Sites => {
                let _ = timeout(SITES_TICK, ranking_requested()).await;
            }
            _ => ranking_requested().await,
        }
    }
}

/// A round over all models.
async fn rank_models(shared: &Shared) -> RankingDemand {
    let snapshot = shared.snapshot.load_full();
    let mut demand = RankingDemand::None;
    for model in snapshot.models.iter() {
        let routing = &model.routing;
        let sites = match routing.mode() {
            RoutingMode::None => continue,
            RoutingMode::Cached | RoutingMode::PerRequest => {
                shared.cluster.site_candidates(&model.spec.id)
            }
        };
        let now = shared.clock.now();
        demand = demand.max(routing.refresh(&model.gate, &sites, now).await);
    }
    demand
}
