//! The cluster by example and by a hundred random scenarios.

mod choice;
mod membership;
mod random;
mod stampede;

use std::sync::Arc;

use super::*;
use crate::{Millis, ModelId};

const MODEL: &str = "llama";

fn id(name: &str, generation: u64) -> NodeId {
    NodeId {
        name: name.into(),
        generation,
    }
}

/// Node `a` of site `fra`, which knows no other node.
fn alone() -> ClusterView {
    ClusterView::new(id("a", 1), "fra".into(), ClusterRule::default())
}

/// Eight permits.
fn load(free: u32) -> ModelLoad {
    ModelLoad {
        permits: 8,
        free,
        queued: 0,
        queue_room: 16,
        wait_ms: 0,
        unmet_demand: 0,
        ttft_us: 0,
    }
}

fn report(name: &str, site: &str, version: u64, load: ModelLoad) -> NodeReport {
    NodeReport {
        node: id(name, 1),
        site: site.into(),
        address: format!("{name}:7070").into(),
        draining: false,
        models: vec![(ModelId::from(MODEL), load)],
        version,
        made: Millis(version),
    }
}

fn seek() -> NodeQuery<'static> {
    NodeQuery {
        model: MODEL,
        visited: &[],
        forced_site: None,
        site_order: None,
        need: Need::Permit,
    }
}

fn name_of(chosen: Option<ForwardTarget>) -> Option<Arc<str>> {
    chosen.map(|chosen| chosen.node.name)
}

/// Returns the nodes selected within a hundred random draws, sorted.
fn ever(fleet: &mut ClusterView, seek: &NodeQuery<'_>, now: Millis) -> Vec<Arc<str>> {
    let lots = 0..100;
    let mut names: Vec<Arc<str>> = lots
        .filter_map(|lot| name_of(fleet.next_target(seek, lot, now)))
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}
