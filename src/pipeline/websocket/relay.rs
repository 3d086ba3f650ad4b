//! Relay of a WebSocket, from the server's 101 to the end of both connections.
//!
//! Both directions are one future: no task, and nothing to give back but by drop. Waits end with bytes, with a limit of
//! time, with the account's quota, or with the process. The permit goes back as soon as the server is left.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use infergate_core::AccountId;
use infergate_core::billing::{MetricModes, MetricSource, Metrics};
use infergate_core::websocket::FrameSender;
use tokio::time::{Instant, sleep, sleep_until};

use super::end::WebSocketEnd;
use super::lane::{Lane, LaneStop};
use super::parting;
use crate::pipeline::context::RequestContext;
use crate::pipeline::downstream::{Downstream, ResponseHead};
use crate::pipeline::error::RequestError;
use crate::pipeline::relay::{RelayResult, ReleasePermit};
use crate::pipeline::respond;
use crate::state::header_filter::{ConnectionNamed, passes_to_client};
use crate::state::{Account, Shared};
use crate::telemetry::ConnectionEnd;
use crate::upstream::{ConnectionReport, Duplex, ResponseTransformer, Tunnel, UpstreamResponse};

/// Interval of looks at the account's day: each takes two locks for a moment.
const QUOTA_INTERVAL: Duration = Duration::from_secs(1);
/// Time between the close frames of both sides.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for the server's last report, behind the end of both connections: a permit may wait for longer, an event that is
/// read as it is written not.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// The same while the process drains, whose end waits for its last event.
const DRAINING_REPORT_TIMEOUT: Duration = Duration::from_millis(500);

/// Relays a WebSocket whose server has answered 101.
pub async fn relay(
    shared: &Shared,
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
    (response, transformer, report): (
        &mut UpstreamResponse,
        &mut ResponseTransformer,
        Option<Box<ConnectionReport>>,
    ),
    account: &Account,
    release: &mut ReleasePermit<'_>,
) -> Result<(), RequestError> {
    ctx.mark_sent();
    transformer.read_billing_headers(response.head().fields.iter());
    let head = client_head(ctx, response);
    let Ok(client) = downstream.switch(head).await else {
        ctx.record_client_gone();
        release(RelayResult::Abandoned, ctx);
        return Err(RequestError::Aborted);
    };
    let Some(model) = ctx.model.clone() else {
        return Err(RequestError::Aborted);
    };
    ctx.begin_connection();
    let (open, counted) = (
        model.metrics.open_websocket(),
        shared.drain.count_websocket(),
    );
    response.detach_head();
    let mut websocket = WebSocket::new(client, response.tunnel());
    let limits = ConnectionLimits::new(ctx, account);
    let end = {
        let metered = MeteredConnection {
            websocket: &mut websocket,
            ctx: &mut *ctx,
            transformer: &mut *transformer,
            began: limits.began,
        };
        metered.relay_and_leave(shared, &limits).await
    };
    let usage = websocket.usage(limits.began);
    ctx.record_connection_end(end.reason(), end.outcome());
    model.metrics.record_websocket_end(end.end);
    release(end.relayed(), ctx);
    ctx.release_concurrency();
    let lanes = (&mut websocket.upward, &mut websocket.downward);
    parting::leave_client(end, lanes, websocket.client).await;
    drop(open);
    if let Some(report) = report {
        parting::close_client(websocket.client).await;
        record_report(shared, ctx, (transformer, &usage), report).await;
    }
    // An end of all connections ends the wait for a report too.
    drop(counted);
    Ok(())
}

/// Waits for the server's last report about the connection, and adds it to the usage. A process that drains waits
/// for a moment only.
async fn record_report(
    shared: &Shared,
    ctx: &mut RequestContext,
    (transformer, usage): (&mut ResponseTransformer, &Metrics),
    mut report: Box<ConnectionReport>,
) {
    let drained = async {
        shared.drain.draining().await;
        sleep(DRAINING_REPORT_TIMEOUT).await;
    };
    let reported = tokio::select! {
        biased;
        reported = report.metrics(REPORT_TIMEOUT) => reported,
        () = drained => return,
        () = shared.drain.ending() => return,
    };
    if !reported.is_empty() {
        transformer.add_report(reported);
        ctx.record_connection(transformer, usage);
    }
}

/// A connection whose usage is recorded by drop: once its server is left, and where the process ends before.
struct MeteredConnection<'m, 'c, 's> {
    websocket: &'m mut WebSocket<'c, 's>,
    ctx: &'m mut RequestContext,
    transformer: &'m mut ResponseTransformer,
    began: Instant,
}

impl MeteredConnection<'_, '_, '_> {
    /// Relays until the connection ends, and leaves its server.
    async fn relay_and_leave(self, shared: &Shared, limits: &ConnectionLimits) -> WebSocketEnd {
        let websocket = &mut *self.websocket;
        let end = websocket
            .run(shared, self.ctx, self.transformer, limits)
            .await;
        parting::leave_server(end, &mut websocket.upward, websocket.server).await;
        end
    }
}

impl Drop for MeteredConnection<'_, '_, '_> {
    fn drop(&mut self) {
        let usage = self.websocket.usage(self.began);
        self.ctx.record_connection(self.transformer, &usage);
    }
}

/// Head of the 101 as the client gets it: that of the server, with what the gateway says of each request.
fn client_head(ctx: &RequestContext, response: &UpstreamResponse) -> ResponseHead {
    let fields = &response.head().fields;
    let named = ConnectionNamed::of(fields);
    let mut head = ResponseHead::new(101);
    head.append("connection", b"Upgrade");
    head.append("upgrade", b"websocket");
    for (name, value) in fields.lines() {
        let is_handshake = matches!(name, b"sec-websocket-accept" | b"sec-websocket-protocol");
        let passes = passes_to_client(name, &ctx.snapshot.headers_pass) && !named.contains(name);
        if is_handshake || passes {
            head.pass(name, value);
        }
    }
    respond::write_request_id(&mut head, ctx.dialect(), ctx.request_id());
    head.extend(ctx.page_origin.lines());
    head.extend(ctx.rate_lines().iter());
    if let Some(model) = ctx.substitute_model() {
        head.append("x-infergate-model", model.as_str().as_bytes());
    }
    head
}

/// ConnectionLimits of one connection.
struct ConnectionLimits {
    began: Instant,
    idle: Duration,
    ends_at: Instant,
    /// Neurons that the account has a day, where it is limited.
    per_day: Option<u64>,
    account: AccountId,
}

impl ConnectionLimits {
    fn new(ctx: &RequestContext, account: &Account) -> ConnectionLimits {
        let began = Instant::now();
        let spec = ctx.model.as_ref().map(|model| Arc::clone(&model.spec));
        let secs = spec.map(|spec| (spec.websocket_idle_secs, spec.max_connection_duration_secs));
        let (idle, duration) = secs.unwrap_or_default();
        ConnectionLimits {
            began,
            idle: Duration::from_secs(idle),
            ends_at: began + Duration::from_secs(duration),
            per_day: account.spec.neurons_per_day,
            account: account.spec.id.clone(),
        }
    }
}

/// Both directions.
struct WebSocket<'c, 's> {
    client: &'c mut dyn Duplex,
    server: &'s mut dyn Duplex,
    /// From the client to the server.
    upward: Lane,
    /// From the server to the client.
    downward: Lane,
    moved_at: Instant,
    /// Side that has closed first, and the moment until which the other one may answer.
    closed: Option<(ConnectionEnd, Instant)>,
}

/// Reason for which the relay looks up.
enum Look {
    Upward(LaneStop),
    Downward(LaneStop),
    Timer,
    Drain,
}

impl<'c, 's> WebSocket<'c, 's> {
    fn new(client: Tunnel<'c>, server: Tunnel<'s>) -> WebSocket<'c, 's> {
        WebSocket {
            client: client.stream,
            server: server.stream,
            upward: Lane::new(FrameSender::Client, client.received),
            downward: Lane::new(FrameSender::Server, server.received),
            moved_at: Instant::now(),
            closed: None,
        }
    }

    /// Relays until the connection ends.
    async fn run(
        &mut self,
        shared: &Shared,
        ctx: &mut RequestContext,
        transformer: &mut ResponseTransformer,
        limits: &ConnectionLimits,
    ) -> WebSocketEnd {
        let mut quota_at = limits.per_day.map(|_| Instant::now() + QUOTA_INTERVAL);
        loop {
            let until = self.next_look(limits, quota_at);
            let look = tokio::select! {
                biased;
                look = std::future::poll_fn(|cx| self.poll(cx, ctx)) => look,
                () = shared.drain.ending() => Look::Drain,
                () = sleep_until(until) => Look::Timer,
            };
            let ended = match look {
                Look::Drain => Some(ConnectionEnd::Drain.into()),
                Look::Timer => self.end_by_time(limits),
                Look::Upward(stop) => self.end_by(stop, FrameSender::Client),
                Look::Downward(stop) => self.end_by(stop, FrameSender::Server),
            };
            if let Some(end) = ended {
                return end;
            }
            let now = Instant::now();
            if quota_at.is_some_and(|at| at <= now) {
                quota_at = Some(now + QUOTA_INTERVAL);
                ctx.record_connection(transformer, &self.usage(limits.began));
                if ctx.has_spent_quota(&limits.account, limits.per_day) {
                    return ConnectionEnd::Quota.into();
                }
            }
        }
    }

    fn poll(&mut self, cx: &mut std::task::Context<'_>, ctx: &mut RequestContext) -> Poll<Look> {
        let upward = self.upward.poll(cx, self.client, self.server);
        let downward = match upward {
            Poll::Pending => self.downward.poll(cx, self.server, self.client),
            Poll::Ready(_) => Poll::Pending,
        };
        if self.downward.passed() > 0 {
            ctx.record_first_byte();
        }
        if self.upward.take_moved() | self.downward.take_moved() {
            self.moved_at = Instant::now();
        }
        match (upward, downward) {
            (Poll::Ready(stop), _) => Poll::Ready(Look::Upward(stop)),
            (_, Poll::Ready(stop)) => Poll::Ready(Look::Downward(stop)),
            _ => Poll::Pending,
        }
    }

    /// Returns the moment at which a limit may be reached.
    fn next_look(&self, limits: &ConnectionLimits, quota_at: Option<Instant>) -> Instant {
        let idle_at = self.moved_at + limits.idle;
        let reply_at = self.closed.map(|(_, until)| until);
        let others = [quota_at, reply_at].into_iter().flatten();
        others.fold(idle_at.min(limits.ends_at), Instant::min)
    }

    fn end_by_time(&self, limits: &ConnectionLimits) -> Option<WebSocketEnd> {
        let now = Instant::now();
        if let Some((end, until)) = self.closed
            && until <= now
        {
            return Some(end.into());
        }
        if limits.ends_at <= now {
            return Some(ConnectionEnd::Duration.into());
        }
        (self.moved_at + limits.idle <= now).then(|| ConnectionEnd::Idle.into())
    }

    /// Decides on the stop of a direction, whose frames are from `sender`.
    fn end_by(&mut self, stop: LaneStop, sender: FrameSender) -> Option<WebSocketEnd> {
        let is_client = sender == FrameSender::Client;
        let of = |client, server| if is_client { client } else { server };
        let gone = match stop {
            LaneStop::Closed => {
                let first = of(ConnectionEnd::Client, ConnectionEnd::Server);
                let until = Instant::now() + REPLY_TIMEOUT;
                let (first, _) = *self.closed.get_or_insert((first, until));
                let is_whole = self.upward.is_closed() && self.downward.is_closed();
                return is_whole.then(|| first.into());
            }
            LaneStop::Fault(fault) => {
                return Some(WebSocketEnd {
                    end: of(ConnectionEnd::ClientFault, ConnectionEnd::ServerFault),
                    fault: Some(fault),
                });
            }
            LaneStop::SenderGone => of(ConnectionEnd::ClientGone, ConnectionEnd::ServerGone),
            LaneStop::ReceiverGone => of(ConnectionEnd::ServerGone, ConnectionEnd::ClientGone),
        };
        // Behind a close frame the end of a connection is as good as the other one.
        Some(self.closed.map_or(gone, |(first, _)| first).into())
    }

    /// Usage so far, as metrics of the gateway's own knowledge.
    fn usage(&self, began: Instant) -> Metrics {
        let mut usage = Metrics::default();
        for (name, value) in [
            ("connection_secs", began.elapsed().as_secs_f64()),
            ("bytes_in", self.upward.passed() as f64),
            ("bytes_out", self.downward.passed() as f64),
        ] {
            usage.report(name, value, MetricSource::Derived, &MetricModes::new());
        }
        usage
    }
}
