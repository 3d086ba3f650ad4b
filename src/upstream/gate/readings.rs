//! Readings of a gate: numbers for metrics, state for operators, candidates for policies, load for other nodes.
//!
//! Decides and changes nothing. Each takes the gate's lock for the length of one copy; none visits the
//! waiters but [`AdmissionGate::state`].

use std::sync::Arc;

use infergate_core::Millis;
use infergate_core::admission::{AdmissionGauges, AdmissionState, EndpointId, Readiness};
use infergate_core::routing::cluster::ModelLoad;
use infergate_core::routing::policy::{CANDIDATES_MAX, WHOLE};
use infergate_core::routing::{Candidate, FailureCause, Health};

use super::AdmissionGate;
use crate::upstream::open_work::OpenWorkState;
use crate::upstream::target::Target;

/// An endpoint's health as `/state` shows it.
pub struct EndpointHealth {
    /// Health of the endpoint.
    pub health: Health,
    /// Moment at which it may serve again, while ejected or paused.
    pub ejected_until: Option<Millis>,
    /// Since when it is so; none of one that drains.
    pub since: Option<Millis>,
    /// The latest failure and when it was.
    pub last_error: Option<(FailureCause, Millis)>,
    /// State of a slot that is not ready: `cold`, `loading`, `asleep`, `failed` and the like.
    pub slot: Option<&'static str>,
    /// Logs that the server shows while it can serve nothing.
    pub setup_logs: Option<Arc<String>>,
    /// Work that goes on after its response, of a server that reports its end.
    pub work: Option<OpenWorkState>,
}

impl AdmissionGate {
    /// Permits used and allowed, and the depth of the queue.
    pub fn gauges(&self) -> AdmissionGauges {
        self.inner.lock().turnstile.gauges()
    }

    /// State of the model as `/state` shows it, with the health of each endpoint URL.
    pub fn state(&self) -> (AdmissionState, Vec<EndpointHealth>) {
        let now = self.clock.now();
        let inner = self.inner.lock();
        let state = inner.turnstile.state(now);
        let health = state
            .endpoints
            .iter()
            .map(|endpoint| {
                let id = inner.turnstile.endpoint(&endpoint.url);
                let target = id.and_then(|id| inner.targets.get(id.0 as usize)?.as_ref());
                (endpoint, target)
            })
            .map(|(endpoint, target)| EndpointHealth {
                health: match endpoint.draining {
                    true => Health::Draining,
                    false => inner.ejector.health(&endpoint.url),
                },
                ejected_until: inner.ejector.ejected_until(&endpoint.url),
                since: inner.ejector.since(&endpoint.url),
                last_error: inner.ejector.last_error(&endpoint.url),
                slot: inner.slots.word(&endpoint.url),
                setup_logs: target.and_then(|target| target.setup_logs()),
                work: target.and_then(|target| target.open_work()),
            })
            .collect();
        (state, health)
    }

    /// The health of every configured endpoint and its open work, without a look at the waiters: for scrapes.
    pub fn health(&self) -> Vec<(Arc<str>, Health, Option<OpenWorkState>)> {
        let inner = self.inner.lock();
        let health = |target: &Arc<Target>| {
            let url = Arc::clone(&target.url);
            let health = inner.ejector.health(&url);
            (url, health, target.open_work())
        };
        inner.targets.iter().flatten().map(health).collect()
    }

    /// Every endpoint's target, and whether it is healthy at the moment.
    pub fn targets(&self) -> Vec<(Arc<Target>, bool)> {
        let inner = self.inner.lock();
        let well = |target: &Target| inner.ejector.health(&target.url) == Health::Healthy;
        let targets = inner.targets.iter().flatten();
        targets
            .map(|target| (Arc::clone(target), well(target)))
            .collect()
    }

    /// Every configured endpoint with its URL, as a routing policy sees it for requests of the adapter `lora`:
    /// `id` is its place in the list. The affinity is that of adapters that servers report; further ones are
    /// the caller's to fill in.
    pub fn candidates(&self, lora: Option<u32>) -> Vec<(EndpointId, Arc<str>, Candidate)> {
        let inner = self.inner.lock();
        let mut candidates = Vec::with_capacity(inner.targets.len().min(CANDIDATES_MAX));
        for (index, target) in inner.targets.iter().enumerate() {
            let id = EndpointId(u32::try_from(index).unwrap_or(u32::MAX));
            let Some(target) = target else { continue };
            let Some((used, limit)) = inner.turnstile.permits(id) else {
                continue;
            };
            if candidates.len() == CANDIDATES_MAX {
                break;
            }
            let load = *target.load.lock();
            let candidate = Candidate {
                id: u32::try_from(candidates.len()).unwrap_or(u32::MAX),
                site: 0,
                node: None,
                health: inner.ejector.health(&target.url),
                permits_free: limit.saturating_sub(used),
                permits_total: limit,
                queue_len: load.queue_len,
                rtt_us: load.rtt_us,
                ttft_us: load.ttft_us,
                latency_us: load.latency_us,
                error_ppm: load.error_ppm,
                lora_affinity: match lora.is_some_and(|lora| target.has_adapter(lora)) {
                    true => WHOLE,
                    false => 0,
                },
                prefix_affinity: 0,
                tier: target.tier,
                ooc: load.ooc,
            };
            candidates.push((id, Arc::clone(&target.url), candidate));
        }
        candidates
    }

    /// Load of the model at this node as other nodes see it, with the endpoints that are in use.
    /// Waiters that look for permits elsewhere are not counted here.
    pub fn model_load(&self) -> ModelLoad {
        let now = self.clock.now();
        let inner = self.inner.lock();
        let mut load = ModelLoad {
            queued: in_u32(inner.turnstile.gauges().depth),
            queue_room: in_u32(inner.turnstile.free_slots()),
            wait_ms: u32::try_from(inner.turnstile.expected_wait(now).0).unwrap_or(u32::MAX),
            ..ModelLoad::default()
        };
        for (index, target) in inner.targets.iter().enumerate() {
            let id = EndpointId(in_u32(index));
            let Some(target) = target else { continue };
            let health = inner.ejector.health(&target.url);
            let Some((used, limit)) = inner.turnstile.permits(id) else {
                continue;
            };
            if !matches!(health, Health::Healthy | Health::Degraded) {
                continue;
            }
            load.permits = load.permits.saturating_add(limit);
            load.free = load.free.saturating_add(limit.saturating_sub(used));
            let ttft_us = target.load.lock().ttft_us;
            if ttft_us > 0 && (load.ttft_us == 0 || ttft_us < load.ttft_us) {
                load.ttft_us = ttft_us;
            }
        }
        let cold = inner.turnstile.cold_readiness();
        let awaits_load = cold.is_some_and(|readiness| readiness != Readiness::Never);
        if load.permits == 0 && !awaits_load {
            // Requests queued here wait for an endpoint to recover: no other node's are to join them. Those that wait
            // for a load are served, and the wait that is published includes it.
            load.queue_room = 0;
        }
        load
    }

    /// Expected time until a request that comes now has its turn.
    pub fn expected_wait(&self) -> Millis {
        let now = self.clock.now();
        self.inner.lock().turnstile.expected_wait(now)
    }
}

pub(super) fn in_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
