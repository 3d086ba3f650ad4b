//! Snapshot of a gate as a request found it, for its trace: endpoints, permits and the queue.
//!
//! No decision reads it. Copied under the gate's lock right after the decision, so it is exact and
//! costs at most [`SNAPSHOT_ENDPOINTS_MAX`] look-ups; names are shared, so nothing is allocated.

use std::sync::Arc;

use infergate_core::admission::{
    AdmissionGauges, AdmissionQueue, EndpointId, EndpointOrder, Readiness,
};
use infergate_core::routing::{Ejector, Health};
use infergate_core::vram::ChallengerName;

use crate::upstream::target::Target;

/// Endpoints in a snapshot. A model with more of them records only the endpoint of a permit granted
/// at once, so that the cost does not grow with the number of endpoints.
pub const SNAPSHOT_ENDPOINTS_MAX: usize = 8;

/// URLs by endpoint, for as long as the configuration is the same; none where nothing is placed.
pub(super) type EndpointUrls = Arc<[Option<Arc<str>>]>;

/// The gate as a request found it.
#[derive(Clone, Debug)]
pub struct AdmissionSnapshot {
    /// Microseconds on the clock.
    pub at_us: u64,
    /// Sums over the model: a permit granted at once counts, and so does the request itself when it
    /// waits.
    pub gauges: AdmissionGauges,
    /// State of a model none of whose slots was ready; none of any other model.
    pub cold: Option<Box<ColdState>>,
    urls: EndpointUrls,
    entries: [SnapshotEntry; SNAPSHOT_ENDPOINTS_MAX],
    listed: u8,
}

#[derive(Clone, Copy, Debug)]
struct SnapshotEntry {
    endpoint: EndpointId,
    used: u32,
    limit: u32,
    rank: Option<u8>,
    health: Health,
    avoided: bool,
}

/// Place of a model among all that wait for memory, as the owner of the slots said last.
#[derive(Clone, Debug)]
pub struct ColdPlace {
    /// The first of those that wait, in the order in which they are considered.
    pub front: Arc<[ChallengerName]>,
    /// Needs that come before the model.
    pub ahead: usize,
    /// Debt of the model for each second of its load, request-seconds.
    pub debt_per_load_sec: f64,
}

/// State of a model none of whose slots is ready, as a request found it.
#[derive(Clone, Debug)]
pub struct ColdState {
    /// State of the slot that is nearest to being ready, in a word.
    pub slot: &'static str,
    /// Reason for which it is not ready, as the owner of the slots said last; none before it was asked for.
    pub reason: Option<&'static str>,
    /// Place among those that wait; none before it was asked for, and once it is chosen.
    pub place: Option<ColdPlace>,
    /// Expectation that the owner of the slots has set.
    pub readiness: Readiness,
}

/// Endpoint as a request found it.
#[derive(Clone, Copy, Debug)]
pub struct EndpointSnapshot<'a> {
    /// Its URL in the configuration.
    pub url: &'a str,
    /// Permits out.
    pub used: u32,
    /// Permits it has.
    pub limit: u32,
    /// Its step in the policy's order, or its tier without one; none when the order is too long to
    /// look it up.
    pub rank: Option<u8>,
    /// Its condition.
    pub health: Health,
    /// The request has tried it already.
    pub avoided: bool,
}

/// Parts of a gate that [`AdmissionSnapshot`] is copied from.
pub(super) struct GateView<'a> {
    pub turnstile: &'a AdmissionQueue,
    pub ejector: &'a Ejector,
    pub targets: &'a [Option<Arc<Target>>],
    pub urls: &'a EndpointUrls,
}

impl GateView<'_> {
    /// Copies. `taken` is the endpoint of a permit that was granted at once.
    pub fn snapshot(
        &self,
        at_us: u64,
        order: Option<&EndpointOrder>,
        avoid: &[EndpointId],
        taken: Option<EndpointId>,
    ) -> AdmissionSnapshot {
        const NONE: SnapshotEntry = SnapshotEntry {
            endpoint: EndpointId(u32::MAX),
            used: 0,
            limit: 0,
            rank: None,
            health: Health::Healthy,
            avoided: false,
        };
        let mut found = AdmissionSnapshot {
            at_us,
            gauges: self.turnstile.gauges(),
            cold: None,
            urls: Arc::clone(self.urls),
            entries: [NONE; SNAPSHOT_ENDPOINTS_MAX],
            listed: 0,
        };
        let many = found.gauges.endpoints as usize > SNAPSHOT_ENDPOINTS_MAX;
        match (order, taken.filter(|_| many)) {
            (order, Some(taken)) => {
                let tier = self.tier(taken).filter(|_| order.is_none());
                self.list(&mut found, std::iter::once((tier, taken)), avoid);
            }
            (Some(order), None) => {
                let ranked = order.ranked().iter().map(|&(step, id)| (Some(step), id));
                self.list(&mut found, ranked, avoid);
            }
            (None, None) => {
                let all = (0..self.targets.len() as u32).map(EndpointId);
                self.list(&mut found, all.map(|id| (self.tier(id), id)), avoid);
            }
        }
        found
    }

    fn list(
        &self,
        found: &mut AdmissionSnapshot,
        endpoints: impl Iterator<Item = (Option<u8>, EndpointId)>,
        avoid: &[EndpointId],
    ) {
        let seats = endpoints.filter_map(|(rank, endpoint)| {
            let target = self.target(endpoint)?;
            let (used, limit) = self.turnstile.permits(endpoint)?;
            Some(SnapshotEntry {
                endpoint,
                used,
                limit,
                rank,
                health: self.ejector.health(&target.url),
                avoided: avoid.contains(&endpoint),
            })
        });
        for (place, seat) in found.entries.iter_mut().zip(seats) {
            *place = seat;
            found.listed += 1;
        }
    }

    fn target(&self, id: EndpointId) -> Option<&Target> {
        self.targets.get(id.0 as usize)?.as_deref()
    }

    fn tier(&self, id: EndpointId) -> Option<u8> {
        self.target(id).map(|target| target.tier)
    }
}

impl AdmissionSnapshot {
    /// The recorded endpoints: in the order's sequence, or in that of the gate.
    pub fn endpoints(&self) -> impl Iterator<Item = EndpointSnapshot<'_>> {
        let seats = &self.entries[..usize::from(self.listed)];
        seats.iter().filter_map(|seat| {
            let name = self.urls.get(seat.endpoint.0 as usize)?;
            Some(EndpointSnapshot {
                url: name.as_deref()?,
                used: seat.used,
                limit: seat.limit,
                rank: seat.rank,
                health: seat.health,
                avoided: seat.avoided,
            })
        })
    }

    /// Configured endpoints that are not recorded.
    pub fn omitted(&self) -> u32 {
        self.gauges.endpoints.saturating_sub(u32::from(self.listed))
    }
}
