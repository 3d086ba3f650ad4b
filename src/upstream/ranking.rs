//! Routing of a model's requests by its policy: the ranking as an [`EndpointOrder`] for admission, and an
//! order of other sites for the cluster.
//!
//! The policy decides, and permits are taken elsewhere. A `cached` policy is called off the request
//! path, once for each class of request in use, and the path reads a table. A class that no request asked for
//! since its last ranking keeps that ranking: an idle model costs nothing. A `per-request` policy
//! is called on the path, with what is known of the prompt. Sites are ranked off the path in both
//! modes. Without a policy there is no order: tier and load decide, and the distance of sites.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use hashbrown::HashSet;
use infergate_core::admission::{EndpointId, EndpointOrder};
use infergate_core::model::EndpointSpec;
use infergate_core::routing::affinity::{
    AdapterMemory, BLOCKS_REMEMBERED, BlockHashes, PrefixMemory, block_hashes, lora_number,
};
use infergate_core::routing::{Candidate, Hints};
use infergate_core::{AccountId, Millis};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::gate::AdmissionGate;
use crate::plugin::{Caller, RoutingMode, RoutingSlot};
use crate::telemetry::event::PluginUse;

mod demand;
mod sites;
#[cfg(test)]
mod tests;

pub use demand::{RankingDemand, ranking_requested, request_ranking};
use sites::SiteTable;
pub use sites::{Site, SiteRanking};

/// Interval at which a ranking that requests ask for is made anew.
pub const RANKING_TICK: Duration = Duration::from_millis(50);
/// Interval at which sites are ranked while no request asks: half of [`STALE_AFTER`].
pub const SITES_TICK: Duration = Duration::from_millis(250);
/// Time from the first request that asks for a ranking, by which it has to be made anew: later ones do
/// not use it. Age above which an order of sites is not used.
const STALE_AFTER: Millis = Millis(500);
/// Age above which a ranking is not used even by the first request that asks for it again. A class that was
/// used once must not be ranked for ever: after this time without a request it is forgotten.
const FORGOTTEN_AFTER: Millis = Millis::from_secs(60);
/// Classes ranked for one model: streaming or not, ten priorities and a few adapters. The requests
/// of further classes go by tier and load.
const CLASSES_MAX: usize = 64;
/// Endpoints of an order that traces show: bounds the result of one moment, since a trace keeps it
/// alive.
const EXPLAINED_ENDPOINTS_MAX: usize = 16;
/// Class of requests: the properties a cached policy may distinguish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankingClass {
    /// The client requested a stream.
    pub streaming: bool,
    /// 0 is first, 9 last.
    pub priority: u8,
    /// Number of the name of the requested adapter.
    pub lora: Option<u32>,
    /// Site the request must be served at.
    pub forced_site: Option<u32>,
}

/// Fingerprint of a request that endpoints are remembered to have seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct PromptFingerprint {
    blocks: BlockHashes,
    lora: Option<u32>,
}

/// Request as a policy sees it.
pub struct RankingRequest<'a> {
    /// Account of the request.
    pub account: &'a AccountId,
    /// Its id.
    pub request_id: &'a str,
    /// Its class.
    pub class: RankingClass,
    /// Bytes of its body.
    pub body_bytes: usize,
    /// Milliseconds until its deadline.
    pub deadline_ms: u32,
    /// Fingerprint of its prompt.
    pub prompt: &'a PromptFingerprint,
    /// Endpoint of the permit that it came with: no load of another request.
    pub held: Option<EndpointId>,
}

/// A ranking, ready for admission.
pub struct EndpointRanking {
    /// For the turnstile.
    pub order: Arc<EndpointOrder>,
    /// Inputs and result of the policy call.
    pub result: Arc<RankingResult>,
    /// The order of other sites for the class; none where there is nothing to order.
    sites: Option<Arc<SiteRanking>>,
    /// Moment of the first request that asked for it, milliseconds; [`UNASKED`] before.
    asked_at: AtomicU64,
}

/// Use of a ranking for a request that asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RankingAge {
    /// The request may use it.
    is_fresh: bool,
    /// A round is to be requested.
    wants_round: bool,
}

/// No request has asked for a ranking yet.
const UNASKED: u64 = u64::MAX;

/// Inputs and result of a call of the policy, for traces.
#[derive(Debug)]
pub struct RankingResult {
    /// Moment at which the policy was called.
    pub at: Millis,
    /// The plugins that ranked; none for a built-in policy.
    pub uses: Vec<PluginUse>,
    /// URL, step and measurements of the first `EXPLAINED_ENDPOINTS_MAX` endpoints, the best one first.
    pub ranked: Vec<(Arc<str>, u8, Candidate)>,
    /// Endpoints behind these.
    pub omitted: usize,
}

#[derive(Default)]
struct RankingTable {
    at: Millis,
    rankings: Vec<(RankingClass, Arc<EndpointRanking>)>,
    /// For requests of classes that are not in it.
    sites: SiteTable,
    /// A request asked for an order of sites since this table was made.
    is_asked_for_sites: AtomicBool,
}

/// Memory of what was sent where, and of the classes in use: alive as long as the model is
/// configured.
struct RankingMemory {
    prefixes: PrefixMemory,
    adapters: AdapterMemory,
    /// With the last moment at which a request is known to have asked for it.
    classes: Vec<(RankingClass, Millis)>,
}

/// The routing of one model.
pub struct Ranking {
    slot: RoutingSlot,
    table: ArcSwap<RankingTable>,
    /// Shared by the generations of the model. Held for a look-up by requests of a per-request
    /// policy, by those of a new class, and by the refresher.
    memory: Arc<Mutex<RankingMemory>>,
}

impl PromptFingerprint {
    /// Number of the name of the requested adapter.
    pub fn lora(&self) -> Option<u32> {
        self.lora
    }
}

impl Ranking {
    /// The routing of a new generation with these endpoints. Prompts and adapters sent to endpoints
    /// that stay are remembered, those sent to endpoints that left are forgotten.
    pub fn next_generation(
        slot: RoutingSlot,
        former: Option<&Ranking>,
        endpoints: &[EndpointSpec],
    ) -> Ranking {
        let memory = former.map(|former| Arc::clone(&former.memory));
        if let Some(memory) = &memory {
            let urls: HashSet<&str> = endpoints.iter().map(|endpoint| &*endpoint.url).collect();
            let mut memory = memory.lock();
            memory.prefixes.retain(|url| urls.contains(url));
            memory.adapters.retain(|url| urls.contains(url));
        }
        Ranking {
            slot,
            table: ArcSwap::default(),
            memory: memory.unwrap_or_else(|| {
                Arc::new(Mutex::new(RankingMemory {
                    prefixes: PrefixMemory::new(BLOCKS_REMEMBERED),
                    adapters: AdapterMemory::default(),
                    classes: Vec::new(),
                }))
            }),
        }
    }

    /// Mode of calls to the policy.
    pub fn mode(&self) -> RoutingMode {
        self.slot.mode()
    }

    /// Fingerprint of a body that requests the adapter `lora`. The body is not read for a policy
    /// that is not called per request.
    pub fn prompt(&self, body: &[u8], lora: Option<&str>) -> PromptFingerprint {
        let lora = lora.map(lora_number);
        if self.slot.mode() != RoutingMode::PerRequest {
            return PromptFingerprint {
                lora,
                ..PromptFingerprint::default()
            };
        }
        // A body that is no JSON object has no prompt to share.
        let body: PromptBody<'_> = serde_json::from_slice(body).unwrap_or_default();
        let places = [body.messages, body.prompt, body.input, body.text];
        let prompt = places.into_iter().flatten().next();
        PromptFingerprint {
            blocks: block_hashes(prompt.map_or(b"", |raw| raw.get().as_bytes())),
            lora,
        }
    }

    /// Ranks the endpoints for a request; none where tier and load decide.
    pub fn rank_endpoints(
        &self,
        gate: &AdmissionGate,
        request: &RankingRequest<'_>,
        now: Millis,
    ) -> Option<Arc<EndpointRanking>> {
        match self.slot.mode() {
            RoutingMode::None => None,
            RoutingMode::Cached => self.look_up(request.class, now),
            RoutingMode::PerRequest => Some(Arc::new(self.rank_for_request(gate, request, now))),
        }
    }

    fn rank_for_request(
        &self,
        gate: &AdmissionGate,
        request: &RankingRequest<'_>,
        now: Millis,
    ) -> EndpointRanking {
        let lora = request.prompt.lora;
        let hints = Hints {
            body_bytes: u32::try_from(request.body_bytes).unwrap_or(u32::MAX),
            deadline_ms: Some(request.deadline_ms),
            lora,
            ..hints(request.class)
        };
        let mut candidates = gate.candidates(lora);
        let memory = self.memory.lock();
        for (id, url, candidate) in &mut candidates {
            if request.held == Some(*id) {
                candidate.permits_free += 1;
            }
            candidate.prefix_affinity = memory.prefixes.share(url, &request.prompt.blocks);
            let remembered = memory.adapters.affinity(url, lora);
            candidate.lora_affinity = candidate.lora_affinity.max(remembered);
        }
        drop(memory);
        let caller = Caller {
            account: request.account,
            request_id: request.request_id,
        };
        self.rank(Some(caller), hints, &candidates, now)
    }

    /// Records that a request has been sent to an endpoint.
    pub fn record_sent(&self, url: &Arc<str>, prompt: &PromptFingerprint) {
        if self.slot.mode() != RoutingMode::PerRequest {
            return;
        }
        let mut memory = self.memory.lock();
        memory.prefixes.remember(url, &prompt.blocks);
        if let Some(lora) = prompt.lora {
            memory.adapters.remember(url, lora);
        }
    }

    /// Ranks every class that requests asked for since its last ranking, off the request path. Where there are
    /// several `sites`, ranks them, and every class in use. Yields to requests after each class. A class that
    /// no request has used lately is forgotten. Returns when the next call is due.
    pub async fn refresh(
        &self,
        gate: &AdmissionGate,
        sites: &[Site],
        now: Millis,
    ) -> RankingDemand {
        let classes = match self.slot.mode() {
            RoutingMode::Cached => self.classes_in_use(now),
            // Endpoints are ranked when a request comes.
            RoutingMode::PerRequest => Vec::new(),
            RoutingMode::None => return RankingDemand::None,
        };
        let former = self.table.load_full();
        let has_sites = sites::worth_ranking(sites);
        let is_due =
            |class: &RankingClass| former.find(*class).is_none_or(|ranked| ranked.is_asked());
        let is_asked = classes.iter().any(is_due)
            || (has_sites && former.is_asked_for_sites.load(Ordering::Relaxed));
        let demand = RankingDemand::of(is_asked, has_sites);
        let has_left = classes.len() < former.rankings.len();
        if demand == RankingDemand::None && former.sites.is_empty() && !has_left {
            return demand;
        }
        let candidates = match classes.is_empty() {
            true => Vec::new(),
            false => gate.candidates(None),
        };
        let mut ranking = Vec::with_capacity(classes.len());
        for class in classes {
            // The order of sites in a ranking is as old as the ranking.
            let kept = former.find(class).filter(|ranked| !ranked.is_asked());
            if let Some(kept) = kept.filter(|kept| !has_sites && kept.sites.is_none()) {
                ranking.push((class, Arc::clone(kept)));
                continue;
            }
            let of_adapter = class.lora.map(|lora| gate.candidates(Some(lora)));
            let candidates = of_adapter.as_ref().unwrap_or(&candidates);
            let mut ranked = self.rank(None, hints(class), candidates, now);
            ranked.sites = self.rank_sites(class, sites, now);
            ranking.push((class, Arc::new(ranked)));
            tokio::task::yield_now().await;
        }
        self.table.store(Arc::new(RankingTable {
            at: now,
            rankings: ranking,
            sites: SiteTable::of(|class| self.rank_sites(class, sites, now)),
            is_asked_for_sites: AtomicBool::new(false),
        }));
        demand
    }

    /// The policy's order of other sites for requests of a class; none where their distance decides.
    pub fn sites(&self, class: RankingClass, now: Millis) -> Option<Arc<SiteRanking>> {
        if self.slot.mode() == RoutingMode::None {
            return None;
        }
        let table = self.table.load();
        table.ask_for_sites();
        if now.since(table.at) > STALE_AFTER {
            return None;
        }
        let sites = match table.find(class) {
            Some(ranking) => ranking.sites.as_ref(),
            None => table.sites.of_class(class),
        };
        sites.cloned()
    }

    /// Classes that requests asked for within [`FORGOTTEN_AFTER`]. One that has no ranking yet counts as asked
    /// for now.
    fn classes_in_use(&self, now: Millis) -> Vec<RankingClass> {
        let table = self.table.load();
        let classes = &mut self.memory.lock().classes;
        classes.retain_mut(|(class, used_at)| {
            *used_at = match table.find(*class) {
                Some(ranking) => ranking.asked_at().unwrap_or(*used_at),
                None => now,
            };
            now.since(*used_at) < FORGOTTEN_AFTER
        });
        classes.iter().map(|(class, _)| *class).collect()
    }

    fn look_up(&self, class: RankingClass, now: Millis) -> Option<Arc<EndpointRanking>> {
        let table = self.table.load();
        if let Some(ranking) = table.find(class) {
            let answer = ranking.ask(now);
            if answer.wants_round {
                request_ranking();
            }
            return answer.is_fresh.then(|| Arc::clone(ranking));
        }
        if self.remember_class(class, now) {
            // Also for a known class: a round that was asked for before a reload may have ranked for the former
            // generation, and a table that was never made must not stay so.
            request_ranking();
        }
        None
    }

    /// Returns whether the next round ranks the class: false where there are too many of them.
    fn remember_class(&self, class: RankingClass, now: Millis) -> bool {
        let classes = &mut self.memory.lock().classes;
        if classes.iter().any(|(known, _)| *known == class) {
            return true;
        }
        let has_room = classes.len() < CLASSES_MAX;
        if has_room {
            classes.push((class, now));
        }
        has_room
    }

    fn rank(
        &self,
        caller: Option<Caller<'_>>,
        hints: Hints,
        candidates: &[(EndpointId, Arc<str>, Candidate)],
        now: Millis,
    ) -> EndpointRanking {
        let list: Vec<Candidate> = candidates.iter().map(|(_, _, c)| *c).collect();
        let ranked = self.slot.rank(caller, &hints, &list);
        let places = ranked.choices.iter().filter_map(|choice| {
            let (id, _, _) = candidates.get(choice.id as usize)?;
            Some((choice.step, *id))
        });
        let explained = ranked
            .choices
            .iter()
            .take(EXPLAINED_ENDPOINTS_MAX)
            .filter_map(|choice| {
                let (_, url, candidate) = candidates.get(choice.id as usize)?;
                Some((Arc::clone(url), choice.step, *candidate))
            });
        EndpointRanking {
            order: Arc::new(EndpointOrder::new(places)),
            result: Arc::new(RankingResult {
                at: now,
                ranked: explained.collect(),
                omitted: ranked.choices.len().saturating_sub(EXPLAINED_ENDPOINTS_MAX),
                uses: ranked.uses,
            }),
            sites: None,
            asked_at: AtomicU64::new(UNASKED),
        }
    }
}

impl RankingTable {
    fn find(&self, class: RankingClass) -> Option<&Arc<EndpointRanking>> {
        let ranking = self.rankings.iter().find(|(of, _)| *of == class);
        ranking.map(|(_, ranking)| ranking)
    }

    /// Records that a request asks for an order of sites, and requests the next one.
    fn ask_for_sites(&self) {
        let asked = &self.is_asked_for_sites;
        if !self.sites.is_empty() && !asked.load(Ordering::Relaxed) {
            asked.store(true, Ordering::Relaxed);
            request_ranking();
        }
    }
}

impl EndpointRanking {
    /// Records that a request asks for it.
    fn ask(&self, now: Millis) -> RankingAge {
        let order = Ordering::Relaxed;
        let mut asked_at = self.asked_at.load(order);
        let is_first = asked_at == UNASKED;
        if is_first {
            let first = self.asked_at.compare_exchange(UNASKED, now.0, order, order);
            asked_at = first.err().unwrap_or(now.0);
        }
        let is_due = now.since(Millis(asked_at)) > STALE_AFTER;
        RankingAge {
            is_fresh: !is_due && now.since(self.result.at) <= FORGOTTEN_AFTER,
            // A round that should have replaced it did not: it is asked for until one does.
            wants_round: is_first || is_due,
        }
    }

    fn asked_at(&self) -> Option<Millis> {
        let asked_at = self.asked_at.load(Ordering::Relaxed);
        (asked_at != UNASKED).then_some(Millis(asked_at))
    }

    fn is_asked(&self) -> bool {
        self.asked_at().is_some()
    }
}

fn hints(class: RankingClass) -> Hints {
    Hints {
        streaming: class.streaming,
        priority: class.priority,
        lora: class.lora,
        forced_site: class.forced_site,
        seed: fastrand::u64(..),
        ..Hints::default()
    }
}

/// Members that may hold a prompt, in the order of the search.
#[derive(Default, Deserialize)]
struct PromptBody<'a> {
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt: Option<&'a RawValue>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
}
