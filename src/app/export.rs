//! Exporter: sends recorded requests and GenAI histograms to an OTLP collector.
//!
//! No request waits for it: the pipeline leaves its trace in a bounded queue
//! ([`ExportQueue`](crate::telemetry::otlp::ExportQueue)), and what the collector does not take in time is
//! dropped and counted. Exports run one at a time, bounded by `tracing.otlp.timeout_ms`; a batch is given up
//! after [`TRIES_MAX`] failures.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout};

use crate::state::{ConfigSnapshot, Shared, TracingRuntime};
use crate::telemetry::clock::UnixOffset;
use crate::telemetry::otlp::{ExportSource, encode_metrics, encode_traces};
use crate::upstream::{ConnectTimings, OutboundRequest};

/// Attempts at sending one batch.
const TRIES_MAX: u32 = 3;
/// Pause after the first failure of a batch; doubles with the second.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Time for the last spans at the end of the process.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// Header lines of every export.
const HEADERS: &[u8] = concat!(
    "content-type: application/x-protobuf\r\nuser-agent: OTel-OTLP-Exporter-infergate/",
    env!("CARGO_PKG_VERSION"),
    "\r\n"
)
.as_bytes();

/// Result of one export call.
enum ExportResult {
    Accepted,
    /// Another attempt may succeed.
    Unavailable(String),
    /// The collector does not take this message.
    Refused(u16),
}

/// Exports until the process ends.
pub async fn export(shared: Arc<Shared>) {
    let mut swapped = shared.swapped.subscribe();
    let mut metrics_at = Instant::now();
    let mut is_failing = false;
    loop {
        swapped.mark_unchanged();
        let snapshot = shared.snapshot.load_full();
        let Some(tracing) = &snapshot.tracing else {
            // What was recorded under a former configuration has no collector any more.
            shared.exports.record_dropped(shared.exports.take().len());
            // The sender outlives this task.
            let _ = swapped.changed().await;
            continue;
        };
        if !shared.exports.is_filled() {
            let delay = Duration::from_millis(tracing.otlp.batch_delay_ms);
            // A full batch goes at once.
            let _ = timeout(delay, shared.exports.filled()).await;
        }
        let was_failing = is_failing;
        if let Some(exported) = export_batch(&shared, &snapshot, tracing, TRIES_MAX).await {
            is_failing = !exported;
        }
        let every = Duration::from_secs(tracing.otlp.metrics_interval_secs);
        if !every.is_zero() && metrics_at.elapsed() >= every {
            metrics_at = Instant::now();
            export_metrics(&shared, &snapshot, tracing).await;
        }
        if was_failing && !is_failing {
            tracing::info!("spans are exported again");
        }
    }
}

/// Sends what waits at the end of the process, once.
pub async fn flush(shared: &Shared) {
    let snapshot = shared.snapshot.load_full();
    let Some(tracing) = &snapshot.tracing else {
        return;
    };
    let all = async {
        while export_batch(shared, &snapshot, tracing, 1).await == Some(true) {}
        export_metrics(shared, &snapshot, tracing).await;
    };
    // Late spans are lost: the process does not wait for a collector.
    let _ = timeout(FLUSH_TIMEOUT, all).await;
}

/// Sends one batch. Returns whether the collector took it; none when nothing waits.
async fn export_batch(
    shared: &Shared,
    snapshot: &ConfigSnapshot,
    tracing: &TracingRuntime,
    tries: u32,
) -> Option<bool> {
    let batch = shared.exports.take();
    if batch.is_empty() {
        return None;
    }
    let mut spans = Vec::new();
    let offset = UnixOffset::now(shared.clock);
    batch
        .iter()
        .for_each(|trace| trace.render_spans(offset, &mut spans));
    let body = encode_traces(source(snapshot, tracing), spans);
    let mut pause = RETRY_PAUSE;
    for attempt in 1..=tries {
        match post(shared, tracing, "/v1/traces", &body).await {
            ExportResult::Accepted => {
                shared.exports.record_exported(batch.len());
                return Some(true);
            }
            ExportResult::Refused(status) => {
                shared.exports.record_failure();
                tracing::warn!(status, "the collector refuses spans: they are dropped");
                break;
            }
            ExportResult::Unavailable(cause) => {
                shared.exports.record_failure();
                if attempt == 1 {
                    tracing::warn!(cause, "spans cannot be exported");
                }
            }
        }
        if attempt < tries {
            sleep(pause).await;
            pause *= 2;
        }
    }
    shared.exports.record_dropped(batch.len());
    Some(false)
}

async fn export_metrics(shared: &Shared, snapshot: &ConfigSnapshot, tracing: &TracingRuntime) {
    let offset = UnixOffset::now(shared.clock);
    let now = offset.unix_nano(shared.clock.micros());
    let metrics = shared.gen_ai.render(offset.unix_nano(0), now);
    if metrics.is_empty() {
        return;
    }
    let body = encode_metrics(source(snapshot, tracing), metrics);
    // Counts are since the start: the next export has them as well.
    if !matches!(
        post(shared, tracing, "/v1/metrics", &body).await,
        ExportResult::Accepted
    ) {
        shared.exports.record_failure();
    }
}

fn source<'a>(snapshot: &'a ConfigSnapshot, tracing: &'a TracingRuntime) -> ExportSource<'a> {
    ExportSource {
        service_name: &tracing.config.service_name,
        node: &snapshot.node,
        site: &snapshot.site,
    }
}

async fn post(shared: &Shared, tracing: &TracingRuntime, path: &str, body: &Bytes) -> ExportResult {
    let limit = Duration::from_millis(tracing.otlp.timeout_ms);
    let sent = timeout(limit, post_once(shared, tracing, path, body)).await;
    if !matches!(sent, Ok(Ok(_))) {
        // The name may lead elsewhere by now; where it does not resolve, former addresses stay.
        let _ = timeout(limit, tracing.target.resolve()).await;
    }
    match sent {
        Ok(Ok(200..300)) => ExportResult::Accepted,
        // The codes that the OTLP specification allows to repeat.
        Ok(Ok(status @ (429 | 502 | 503 | 504))) => {
            ExportResult::Unavailable(format!("status {status}"))
        }
        Ok(Ok(status)) => ExportResult::Refused(status),
        Ok(Err(cause)) => ExportResult::Unavailable(cause.to_owned()),
        Err(_) => ExportResult::Unavailable("timeout".to_owned()),
    }
}

/// Posts a message; the status, or why there is none.
async fn post_once(
    shared: &Shared,
    tracing: &TracingRuntime,
    path: &str,
    body: &Bytes,
) -> Result<u16, &'static str> {
    let request = OutboundRequest {
        method: "POST",
        path,
        headers: HEADERS,
        body,
        fresh: false,
        is_upgrade: false,
        rest: None,
    };
    let mut timings = ConnectTimings::default();
    let sent = shared.client.send(&tracing.target, request, &mut timings);
    let mut response = sent.await.map_err(|error| error.cause())?;
    let status = response.head().status.as_u16();
    while let Ok(Some(_)) = response.chunk().await {}
    shared.client.finish(response).await;
    Ok(status)
}
