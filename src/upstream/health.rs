//! Active health checks: probes every model server and reports to its gate.
//!
//! Ejection is decided by the gate's ejector, which counts the results. Called by the app's prober
//! once a tick.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use infergate_core::routing::{EndpointSignal, FailureCause};
use tokio::time::timeout;

use super::backends::{MetricsPage, Probe, ServerMetrics, backend};
use super::client::HttpClient;
use super::connect_timings::ConnectTimings;
use super::gate::AdmissionGate;
use super::model::ModelRuntime;
use super::outbound::OutboundRequest;
use super::target::{Target, saturated};

/// Interval between probes of servers that are not healthy: a recovered one serves again within
/// three.
pub const PROBE_TICK: Duration = Duration::from_millis(500);
/// Ticks in a second. Healthy servers are probed every `health.interval_secs`; their traffic shows
/// failures anyway.
const TICKS_A_SECOND: u64 = 2;
/// Limit of one probe; a server that needs longer is not healthy.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Health answers are a line; more is not read.
const PROBE_BODY_MAX_BYTES: usize = 64 * 1024;
/// Limit of reading a page of metrics, which is not urgent.
const METRICS_TIMEOUT: Duration = Duration::from_millis(500);
/// A page of vLLM with all its histograms is a tenth of it.
const METRICS_MAX_BYTES: usize = 1 << 20;
/// Most bytes of a page about a model: one with counts of a thousand batch sizes is a third of it.
pub(super) const PAGE_MAX_BYTES: usize = 1 << 20;
/// Probes in flight at once, so that a large cluster does not starve the traffic of its workers.
const PROBES_IN_FLIGHT_MAX: usize = 32;

/// Probes what is due in `rounds`, which come every [`PROBE_TICK`], and lets the gates' time-driven decisions
/// happen. Servers that are not healthy are due even in no round.
pub async fn probe_round(
    client: &HttpClient,
    models: impl Iterator<Item = Arc<ModelRuntime>>,
    rounds: Range<u64>,
) {
    let mut due = Vec::new();
    for model in models {
        model.gate.tick();
        for (target, well) in model.gate.targets() {
            let every = target.health.interval_secs.saturating_mul(TICKS_A_SECOND);
            let is_due = !well || rounds.clone().any(|round| round.is_multiple_of(every));
            if is_due && target.may_probe(model.gate.clock.now()) {
                due.push((Arc::clone(&model.gate), target, well, model.backend.probe));
            }
        }
    }
    stream::iter(due)
        .for_each_concurrent(
            PROBES_IN_FLIGHT_MAX,
            |(gate, target, well, probe)| async move {
                probe_target(client, &gate, (&target, well), &probe).await;
            },
        )
        .await;
}

async fn probe_target(
    client: &HttpClient,
    gate: &AdmissionGate,
    (target, was_well): (&Target, bool),
    probe: &Probe,
) {
    // A server that is back has to accept connections: one that was kept says nothing about the next request.
    let is_fresh = !was_well;
    let began_us = gate.clock.micros();
    let well = timeout(PROBE_TIMEOUT, async {
        // A container behind a name may have moved; a name that no longer resolves is a failed
        // probe, and one that resolves slowly must not hold up the round.
        if target.resolve().await.is_err() {
            return Err(FailureCause::Check(Some("name does not resolve")));
        }
        check(client, target, probe, is_fresh).await
    });
    let well = well.await.unwrap_or(Err(FailureCause::Check(None)));
    let is_well = well.is_ok();
    if is_well {
        let took_us = gate.clock.micros().saturating_sub(began_us);
        target.load.lock().record_probe(saturated(took_us));
    }
    let signal = match well {
        Ok(()) => EndpointSignal::Success,
        Err(_) => EndpointSignal::Failure,
    };
    gate.record_check(&target.url, signal, well.err());
    if let Some(page) = &probe.metrics {
        let report = match is_well {
            true => timeout(METRICS_TIMEOUT, read_metrics(client, target, page)).await,
            false => Ok(None),
        };
        gate.record_report(target, report.ok().flatten());
    }
}

async fn check(
    client: &HttpClient,
    target: &Target,
    probe: &Probe,
    is_fresh: bool,
) -> Result<(), FailureCause> {
    let own_path = target.health.path.as_deref();
    let path: Cow<'_, str> = match own_path {
        Some(path) => Cow::Borrowed(path),
        None => probe.path_of(&target.backend_model),
    };
    let report = probe.report.filter(|_| own_path.is_none());
    // Such an answer carries the logs of the server's start.
    let bytes_max = match report {
        Some(_) => PAGE_MAX_BYTES,
        None => PROBE_BODY_MAX_BYTES,
    };
    let (status, body) = get_over(client, target, &path, bytes_max, is_fresh).await?;
    if let Some(read) = report.filter(|_| status == 200) {
        let usable = target.record_probe_report(read(&body));
        return usable.map_err(|fault| FailureCause::Check(Some(fault)));
    }
    let is_well = match own_path {
        Some(_) => (200..300).contains(&status),
        None => (probe.is_healthy)(status, &body),
    };
    match is_well {
        true => Ok(()),
        false => Err(FailureCause::CheckStatus(status)),
    }
}

/// The load that the server reports; none where the page cannot be read, which says nothing about its health.
async fn read_metrics(
    client: &HttpClient,
    target: &Target,
    page: &MetricsPage,
) -> Option<ServerMetrics> {
    let (status, body) = get(client, target, page.path, METRICS_MAX_BYTES)
        .await
        .ok()?;
    match status {
        200 => (page.read)(std::str::from_utf8(&body).ok()?),
        _ => None,
    }
}

/// Status and body of `path`, up to `bytes_max`.
pub(super) async fn get(
    client: &HttpClient,
    target: &Target,
    path: &str,
    bytes_max: usize,
) -> Result<(u16, Vec<u8>), FailureCause> {
    get_over(client, target, path, bytes_max, false).await
}

/// The same over a new connection where `is_fresh`, else over a kept one if there is one.
async fn get_over(
    client: &HttpClient,
    target: &Target,
    path: &str,
    bytes_max: usize,
    is_fresh: bool,
) -> Result<(u16, Vec<u8>), FailureCause> {
    let request = OutboundRequest {
        method: "GET",
        path,
        headers: b"",
        body: &Bytes::new(),
        fresh: is_fresh,
        is_upgrade: false,
        rest: None,
    };
    let mut unmeasured = ConnectTimings::default();
    let sent = client.send(target, request, &mut unmeasured).await;
    let mut response = sent.map_err(|error| FailureCause::Check(Some(error.cause())))?;
    let status = response.head().status.as_u16();
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if body.len() + chunk.len() <= bytes_max => {
                body.extend_from_slice(&chunk);
            }
            Ok(None) => break,
            _ => return Err(FailureCause::Check(Some("broken answer"))),
        }
    }
    client.finish(response).await;
    Ok((status, body))
}

/// Returns whether the server of a target is ready: its `path` answers 200, or its backend's probe is good.
pub async fn probe_ready(
    client: &HttpClient,
    target: &Target,
    kind: &str,
    path: Option<&str>,
) -> bool {
    let asked = async {
        match (path, backend(kind)) {
            (Some(path), _) => {
                let answer = get(client, target, path, PROBE_BODY_MAX_BYTES).await;
                answer.is_ok_and(|(status, _)| status == 200)
            }
            (None, Some(backend)) => check(client, target, &backend.probe, false).await.is_ok(),
            (None, None) => false,
        }
    };
    timeout(PROBE_TIMEOUT, asked).await.unwrap_or(false)
}

/// Returns the JSON that a server answers on a path; none without a good answer.
pub async fn read_json(
    client: &HttpClient,
    target: &Target,
    path: &str,
) -> Option<serde_json::Value> {
    let read = timeout(
        PROBE_TIMEOUT,
        get(client, target, path, PROBE_BODY_MAX_BYTES),
    );
    match read.await {
        Ok(Ok((200, body))) => serde_json::from_slice(&body).ok(),
        _ => None,
    }
}

/// Returns status and body of a page that a server shows of a model, of at most a mebibyte; none where it does not come
/// in time.
pub async fn read_page(client: &HttpClient, target: &Target, path: &str) -> Option<(u16, Vec<u8>)> {
    let read = get(client, target, path, PAGE_MAX_BYTES);
    timeout(PROBE_TIMEOUT, read).await.ok()?.ok()
}

/// Request of the gateway itself to a server: its warm-up, its sleep.
#[derive(Debug)]
pub struct ServerPost<'a> {
    /// Path that is posted to.
    pub path: &'a str,
    /// JSON, or nothing.
    pub body: Bytes,
    /// Longest time.
    pub timeout: Duration,
}

/// Sends a request of the gateway itself to a server, whose answer is read and dropped.
///
/// # Errors
/// A sentence: no good answer came in time.
pub async fn post(
    client: &HttpClient,
    target: &Target,
    request: ServerPost<'_>,
) -> Result<(), String> {
    let sending = async {
        let outbound = OutboundRequest {
            method: "POST",
            path: request.path,
            headers: match request.body.is_empty() {
                true => b"",
                false => b"content-type: application/json\r\n",
            },
            body: &request.body,
            // One that went to a kept connection that was just closed would not be sent again.
            fresh: true,
            is_upgrade: false,
            rest: None,
        };
        let mut unmeasured = ConnectTimings::default();
        let sent = client.send(target, outbound, &mut unmeasured).await;
        let mut response = sent.map_err(|error| error.to_string())?;
        let status = response.head().status.as_u16();
        while let Ok(Some(_)) = response.chunk().await {}
        client.finish(response).await;
        match status {
            200..300 => Ok(()),
            status => Err(format!("status {status}")),
        }
    };
    match timeout(request.timeout, sending).await {
        Ok(result) => result,
        Err(_) => Err("no answer in time".to_owned()),
    }
}
