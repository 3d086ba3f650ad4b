//! Step 9 of the request pipeline: a permit here, a node that has one, a place in the queue, or a refusal.
//!
//! Not the order of the queue and not the choice among nodes. While it waits it listens to four others: the
//! deadline, the client, news of other nodes, and, on streams that want it, the time for a sign of life.

pub mod heartbeat;
pub mod interim;
pub mod recheck;

use std::sync::Arc;

use infergate_core::admission::PermitRequest;
use infergate_core::routing::cluster::{Need, NodeQuery};
use infergate_core::{Millis, Refusal};
use tokio::time::sleep_until;

use crate::peer::CapacityWatch;
use crate::pipeline::admission::heartbeat::Heartbeat;
use crate::pipeline::context::RequestContext;
use crate::pipeline::downstream::Downstream;
use crate::pipeline::error::RequestError;
use crate::pipeline::forwarding::{ForwardPlan, excluded, visited, visited_by_waiter};
use crate::pipeline::respond::SignOfLife;
use crate::pipeline::upstream::{GrantedUpstream, Upstream};
use crate::state::Shared;
use crate::telemetry::AdmissionResult;
use crate::trace::WaitEnd;
use crate::upstream::{GateEntry, ModelRuntime, Waiter};

/// `Retry-After` of a request that is bound to one full site, until that site's next report.
const FORCED_SITE_RETRY_AFTER: Millis = Millis::from_secs(1);

/// Waits for a permit of the model, or for a node that has one. `now_us` was read just now.
///
/// # Errors
/// The turnstile's refusal where no other node has room either, the deadline, or the client left.
pub async fn admit(
    shared: &Shared,
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
    model: &Arc<ModelRuntime>,
    request: &PermitRequest,
    heartbeat: &mut Heartbeat,
    now_us: u64,
) -> Result<GrantedUpstream, RequestError> {
    interim::check_awaited(shared, downstream, ctx)?;
    if !ctx.may_stay() {
        let refusal = Refusal::QueueFull {
            retry_after: FORCED_SITE_RETRY_AFTER,
        };
        return Ok(find_peer_or_refuse(
            shared,
            ctx,
            model,
            refusal,
            request.no_wait,
        )?);
    }
    // A node that failed this request already comes after nodes that have not.
    let all_tried = !request.avoid.is_empty() && !model.gate.has_untried(&request.avoid);
    if all_tried && let Some(plan) = select_peer(shared, ctx, model, Need::Permit, Millis::ZERO) {
        return Ok(Upstream::Peer(plan));
    }
    // Other nodes come before waiting for endpoints to come back.
    let mut first_request = request.clone();
    first_request.has_alternative |= ctx.in_cluster;
    let mut entry = request_permit(ctx, model, first_request, now_us);
    if let Err(refusal) = entry {
        let refusal = match find_peer_or_refuse(shared, ctx, model, refusal, request.no_wait) {
            Ok(grant) => return Ok(grant),
            Err(refusal) => refusal,
        };
        let is_first = ctx.in_cluster && ctx.can.may_queue;
        let waits = refusal == Refusal::NoHealthyEndpoint && !request.has_alternative && is_first;
        if !waits {
            return Err(refusal.into());
        }
        entry = request_permit(ctx, model, request.clone(), now_us);
    }
    let waiter = match entry? {
        GateEntry::Leased(permit) => return Ok(Upstream::Local(permit)),
        GateEntry::Queued(waiter) => waiter,
    };
    ctx.record_queue_length(waiter.waiting_before);
    let has_found_cold = waiter.has_found_cold;
    let place = QueuedRequest::new(shared, ctx, model, &waiter);
    let grant = place.wait(downstream, ctx, waiter, heartbeat).await;
    let end_us = shared.clock.recent_micros();
    let waited_us = end_us.saturating_sub(now_us);
    model.metrics.record_class_wait(request.class, waited_us);
    ctx.trace.end_wait(end_us, wait_end(&grant));
    if has_found_cold && grant.is_err() {
        // Refused, or its client left, before a process was ready or had a permit.
        ctx.trace.times.record_load_wait(waited_us);
    }
    grant
}

fn wait_end(grant: &Result<GrantedUpstream, RequestError>) -> WaitEnd {
    match grant {
        Ok(granted) => match granted.local() {
            Some(permit) => WaitEnd::Granted(permit.turn),
            None => WaitEnd::Forwarded,
        },
        Err(RequestError::Refused(refusal)) => WaitEnd::Refused(refusal.cause()),
        Err(RequestError::Aborted) => WaitEnd::Aborted,
    }
}

/// Asks at the gate here.
fn request_permit(
    ctx: &mut RequestContext,
    model: &ModelRuntime,
    request: PermitRequest,
    now_us: u64,
) -> Result<GateEntry, Refusal> {
    let (found, entry) = model.gate.request_permit_at(request, now_us);
    let waiting = found.gauges.depth;
    let entry = limit_forwarded_wait(ctx, entry);
    if found.cold.is_some() && entry.is_err() {
        ctx.trace.times.record_load_wait(0);
    }
    model.metrics.record_admission(match &entry {
        Ok(GateEntry::Leased(_)) => AdmissionResult::Leased,
        Ok(GateEntry::Queued(_)) => AdmissionResult::Queued,
        Err(refusal) => AdmissionResult::NoSlots(refusal),
    });
    ctx.trace.record_admission(found, &entry);
    entry.inspect_err(|_| ctx.record_queue_length(waiting))
}

/// A request that another node forwards waits no longer than that node allows.
fn limit_forwarded_wait(
    ctx: &RequestContext,
    entry: Result<GateEntry, Refusal>,
) -> Result<GateEntry, Refusal> {
    let Some(forwarding) = ctx
        .forwarding
        .as_ref()
        .filter(|forwarding| !forwarding.is_from_client())
    else {
        return entry;
    };
    match entry {
        Ok(GateEntry::Queued(waiter)) if waiter.expected_wait > forwarding.hops.wait_max => {
            let retry_after = waiter.expected_wait;
            Err(Refusal::QueueFull { retry_after })
        }
        entry => entry,
    }
}

/// Selects another node that has a permit, or a queue with one in sight, where this node has no room.
fn find_peer_or_refuse(
    shared: &Shared,
    ctx: &mut RequestContext,
    model: &ModelRuntime,
    refusal: Refusal,
    no_wait: bool,
) -> Result<GrantedUpstream, Refusal> {
    if !ctx.in_cluster || !refusal.is_out_of_capacity() {
        return Err(refusal);
    }
    let left = ctx.deadline.since(shared.clock.recent());
    let (is_first, may_stay) = (ctx.can.may_queue, ctx.may_stay());
    // Who forwarded it sees more of its way than this node: it waits nowhere else but comes back.
    let may_wait = is_first && !no_wait;
    let wait_max = match may_wait {
        true => ctx.forward_wait_max(left),
        false => Millis::ZERO,
    };
    let permit = select_peer(shared, ctx, model, Need::Permit, wait_max);
    let line = Need::Queue {
        wait_max: left,
        crowded: !may_stay || model.spec.endpoints.is_empty(),
    };
    let plan = permit.or_else(|| {
        let line = may_wait.then(|| select_peer(shared, ctx, model, line, left));
        line.flatten()
    });
    match plan {
        Some(plan) => Ok(Upstream::Peer(plan)),
        None => {
            if is_first {
                shared.cluster.record_refusal(&model.spec.id);
            }
            Err(refusal)
        }
    }
}

/// Returns whether another node has a permit for the request now.
pub fn has_peer_with_permit(
    shared: &Shared,
    ctx: &mut RequestContext,
    model: &ModelRuntime,
) -> bool {
    select_peer(shared, ctx, model, Need::Permit, Millis::ZERO).is_some()
}

/// Returns whether the request may still be served, after nodes that do not serve such a one. The model has servers here,
/// or at another node, with room or without.
pub fn may_serve_elsewhere(shared: &Shared, ctx: &RequestContext, model: &ModelRuntime) -> bool {
    let query = NodeQuery {
        model: model.spec.id.as_str(),
        visited: excluded(ctx.forwarding.as_deref(), &ctx.snapshot.node),
        forced_site: ctx.forced_site.as_deref(),
        site_order: None,
        need: Need::Permit,
    };
    let has_servers = !model.spec.endpoints.is_empty();
    has_servers || (ctx.has_hops_left() && shared.cluster.serves(&query))
}

/// The node that has what is wanted now.
fn select_peer(
    shared: &Shared,
    ctx: &mut RequestContext,
    model: &ModelRuntime,
    need: Need,
    wait_max: Millis,
) -> Option<ForwardPlan> {
    if !ctx.has_hops_left() {
        return None;
    }
    let sites = model
        .routing
        .sites(ctx.ranking_class, shared.clock.recent());
    let query = NodeQuery {
        model: model.spec.id.as_str(),
        visited: visited(ctx.forwarding.as_deref(), &ctx.snapshot.node),
        forced_site: ctx.forced_site.as_deref(),
        site_order: sites.as_ref().map(|ranking| &ranking.order),
        need,
    };
    let chosen = shared.cluster.next_target(&query);
    ctx.trace.record_peer_selection(
        &shared.cluster,
        shared.clock.recent_micros(),
        &query,
        sites.as_ref(),
        chosen.as_ref(),
    );
    let chosen = chosen?;
    Some(ForwardPlan {
        target: chosen,
        wait_max,
    })
}

/// A place in the line here, for as long as nothing better is seen.
struct QueuedRequest<'a> {
    shared: &'a Shared,
    model: &'a ModelRuntime,
    /// None without a cluster to forward to.
    capacity_watch: Option<CapacityWatch>,
    /// Expected moment of its grant, estimated when it joined.
    expected_at: Millis,
}

impl<'a> QueuedRequest<'a> {
    fn new(
        shared: &'a Shared,
        ctx: &RequestContext,
        model: &'a ModelRuntime,
        waiter: &Waiter,
    ) -> QueuedRequest<'a> {
        let (cluster, counts_demand) = (&shared.cluster, ctx.can.counts_demand);
        let watch = || cluster.watch_capacity(&model.spec.id, counts_demand);
        QueuedRequest {
            shared,
            model,
            capacity_watch: ctx.has_hops_left().then(watch),
            expected_at: shared.clock.recent() + waiter.expected_wait,
        }
    }

    async fn wait(
        &self,
        downstream: &mut impl Downstream,
        ctx: &mut RequestContext,
        mut waiter: Waiter,
        heartbeat: &mut Heartbeat,
    ) -> Result<GrantedUpstream, RequestError> {
        if let Some(plan) = self.select_peer(ctx) {
            return Ok(Upstream::Peer(plan));
        }
        let late = self.shared.clock.instant(ctx.deadline).into();
        let deadline = sleep_until(late);
        tokio::pin!(deadline);
        loop {
            tokio::select! {
                biased;
                grant = waiter.granted() => return grant.map(Upstream::Local).map_err(RequestError::Refused),
                () = downstream.closed() => {
                    ctx.record_client_gone();
                    return Err(RequestError::Aborted);
                }
                () = &mut deadline => return Err(self.model.gate.late_refusal(&waiter).into()),
                () = self.capacity_changed() => {
                    if let Some(plan) = self.select_peer(ctx) {
                        return Ok(Upstream::Peer(plan));
                    }
                }
                // Boxed: most requests get their permit before a heartbeat is due.
                () = heartbeat.due() => {
                    let sign = SignOfLife::of_wait(ctx, self.model, &waiter);
                    Box::pin(heartbeat.send(self.shared, downstream, ctx, sign, late)).await?;
                }
            }
        }
    }

    async fn capacity_changed(&self) {
        match &self.capacity_watch {
            Some(watch) => watch.changed().await,
            None => std::future::pending().await,
        }
    }

    /// Selects a node that is better than waiting; notifies the next waiter unless there is no capacity.
    fn select_peer(&self, ctx: &mut RequestContext) -> Option<ForwardPlan> {
        let watch = self.capacity_watch.as_ref()?;
        let now = self.shared.clock.recent();
        let sites = self.model.routing.sites(ctx.ranking_class, now);
        let query = NodeQuery {
            model: self.model.spec.id.as_str(),
            visited: visited_by_waiter(ctx.forwarding.as_deref(), &ctx.snapshot.node),
            forced_site: ctx.forced_site.as_deref(),
            site_order: sites.as_ref().map(|ranking| &ranking.order),
            need: Need::Permit,
        };
        let others = &self.shared.cluster;
        let chosen = others.next_target(&query)?;
        watch.pass_on();
        // Who should have had its turn already is as one who comes now.
        let gate = &self.model.gate;
        let wait = match self.expected_at > now {
            // The return of an endpoint cannot be foreseen.
            _ if gate.gauges().usable_endpoints == 0 => Millis::MAX,
            true => self.expected_at.since(now),
            false => gate.expected_wait(),
        };
        if others.worth_waiting_here(wait, &chosen) {
            return None;
        }
        let now_us = self.shared.clock.recent_micros();
        let trace = &mut ctx.trace;
        trace.record_peer_selection(others, now_us, &query, sites.as_ref(), Some(&chosen));
        let wait_max = Millis::ZERO;
        Some(ForwardPlan {
            target: chosen,
            wait_max,
        })
    }
}

/// Takes back what was charged ahead for a permit that came to no answer.
pub fn refund_tokens(model: &ModelRuntime, request: &PermitRequest) {
    let charged = u64::from(request.tokens);
    model
        .gate
        .correct_tokens(&request.account, request.weight, charged, 0);
}
