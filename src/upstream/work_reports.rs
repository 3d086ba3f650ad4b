//! Streams on which servers report the end of work that went on after its response.
//!
//! Not the permits held for that work, which [`OpenWork`] has. Each server with such reports has one stream, which is
//! opened again when it ends. Called by the app's housekeeping, about once a second.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{AbortHandle, Abortable, BoxFuture};
use futures_util::stream::{FuturesUnordered, StreamExt};
use infergate_core::Millis;
use infergate_core::admission::reconnect_pause;
use infergate_core::api::loopback::WorkReport;
use infergate_core::api::sse::EventSplitter;
use tokio::time::{sleep, timeout};

use super::client::{HttpClient, UpstreamResponse};
use super::connect_timings::ConnectTimings;
use super::model::ModelRuntime;
use super::open_work::OpenWork;
use super::outbound::OutboundRequest;
use super::target::Target;
use crate::telemetry::Clock;

/// Streams that are open at once; leases alone end the work of further servers.
const STREAMS_MAX: usize = 4096;

/// A stream that has lasted so long was a good one: the next pause is the shortest again.
const STREAM_LASTS: Millis = Millis::from_secs(10);

/// Streams in a row of which the log has the begin, while none of them lasts.
const FAILURES_LOGGED: u32 = 2;

/// Time for the head of a stream.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest report: an id, and some metrics.
const REPORT_BYTES_MAX: usize = 64 * 1024;

const HEADERS: &[u8] = b"accept: text/event-stream\r\n";

/// The streams of all servers that report the end of work.
pub struct WorkReports<'a> {
    client: &'a HttpClient,
    clock: Clock,
    followed: Vec<ReportStream>,
    streams: FuturesUnordered<BoxFuture<'a, ()>>,
}

/// Server whose reports are followed.
struct ReportStream {
    target: Arc<Target>,
    work: Arc<OpenWork>,
    stream: AbortHandle,
}

impl<'a> WorkReports<'a> {
    /// Creates the streams; none is open.
    pub fn new(client: &'a HttpClient, clock: Clock) -> WorkReports<'a> {
        WorkReports {
            client,
            clock,
            followed: Vec::new(),
            streams: FuturesUnordered::new(),
        }
    }

    /// Follows the servers of these models and no others, and releases permits whose leases are over.
    pub fn look<'m>(&mut self, models: impl Iterator<Item = &'m Arc<ModelRuntime>>) {
        let mut present = Vec::new();
        let has_reports = |model: &&Arc<ModelRuntime>| {
            let mut endpoints = model.spec.endpoints.iter();
            endpoints.any(|endpoint| endpoint.loopback.is_some())
        };
        for model in models.filter(has_reports) {
            let targets = model.gate.targets().into_iter();
            present.extend(targets.filter_map(|(target, _)| {
                let work = Arc::clone(target.work.as_ref()?);
                Some((target, work))
            }));
        }
        self.followed.retain(|followed| followed.stays(&present));
        for (target, work) in present {
            expire(&target, &work, self.clock);
            if self.followed.len() < STREAMS_MAX {
                self.follow(target, work);
            }
        }
    }

    /// Reads the streams, for ever.
    pub async fn run(&mut self) {
        loop {
            if self.streams.next().await.is_none() {
                // None is open before the next look.
                std::future::pending::<()>().await;
            }
        }
    }

    fn follow(&mut self, target: Arc<Target>, work: Arc<OpenWork>) {
        let is_same = |followed: &ReportStream| Arc::ptr_eq(&followed.target, &target);
        if self.followed.iter().any(is_same) {
            return;
        }
        let (stream, registration) = AbortHandle::new_pair();
        let (client, clock) = (self.client, self.clock);
        let reading = (Arc::clone(&target), Arc::clone(&work));
        let reading = async move {
            let (target, work) = reading;
            read_reports(client, clock, &target, &work).await;
        };
        let reading = Abortable::new(reading, registration);
        self.streams.push(Box::pin(async move {
            // It ends by being aborted.
            let _ = reading.await;
        }));
        self.followed.push(ReportStream {
            target,
            work,
            stream,
        });
    }
}

impl ReportStream {
    /// Returns whether the server is among the `present` ones; ends its stream where it is not, and its work where no
    /// other description of the server has taken that over.
    fn stays(&self, present: &[(Arc<Target>, Arc<OpenWork>)]) -> bool {
        let mut targets = present.iter();
        if targets.any(|(target, _)| Arc::ptr_eq(target, &self.target)) {
            return true;
        }
        self.stream.abort();
        self.work.set_reporting(false);
        let mut works = present.iter();
        if !works.any(|(_, work)| Arc::ptr_eq(work, &self.work)) {
            self.work.close();
        }
        false
    }
}

/// Releases permits whose leases are over.
fn expire(target: &Target, work: &OpenWork, clock: Clock) {
    let now = clock.now();
    let count = work.expire(now);
    if count > 0
        && let Some(repeated) = work.warnings.due(now)
    {
        tracing::warn!(
            url = &*target.url,
            count,
            repeated,
            "a model server has not reported the end of its work within `loopback.lease_secs`"
        );
    }
}

/// Reads the reports of a server, for ever.
async fn read_reports(client: &HttpClient, clock: Clock, target: &Target, work: &OpenWork) {
    let mut failures = 0_u32;
    // A stream before this one may have been ended with its reader, and its work goes on here.
    work.set_reporting(false);
    loop {
        let cause = match open_stream(client, target, work).await {
            Ok(response) => {
                let begin = clock.now();
                if failures <= FAILURES_LOGGED {
                    tracing::info!(
                        url = &*target.url,
                        "a model server reports the end of its work"
                    );
                }
                work.set_reporting(true);
                let cause = read_stream(response, work).await;
                if clock.now().since(begin) >= STREAM_LASTS {
                    failures = 0;
                }
                cause
            }
            Err(cause) => cause,
        };
        work.set_reporting(false);
        failures = failures.saturating_add(1);
        if let Some(repeated) = target.warnings.due(clock.now()) {
            tracing::warn!(
                url = &*target.url,
                path = &*work.spec().path,
                cause,
                repeated,
                "a model server does not report the end of its work"
            );
        }
        let pause = reconnect_pause(failures, fastrand::u64(..));
        sleep(Duration::from_millis(pause.0)).await;
    }
}

/// Opens the stream of a server. The error says why there is none.
async fn open_stream(
    client: &HttpClient,
    target: &Target,
    work: &OpenWork,
) -> Result<UpstreamResponse, &'static str> {
    let request = OutboundRequest {
        method: "GET",
        path: &work.spec().path,
        headers: HEADERS,
        body: &Bytes::new(),
        // Kept connections are for requests.
        fresh: true,
        is_upgrade: false,
        rest: None,
    };
    let mut unmeasured = ConnectTimings::default();
    let response = match timeout(HEAD_TIMEOUT, client.send(target, request, &mut unmeasured)).await
    {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => return Err(error.cause()),
        Err(_) => return Err("no answer in time"),
    };
    let head = response.head();
    let kind = head.fields.text_of("content-type").unwrap_or_default();
    match (head.status.as_u16(), kind.starts_with("text/event-stream")) {
        (200, true) => Ok(response),
        (200, false) => Err("no stream of events"),
        _ => Err("another status than 200"),
    }
}

/// Reads a stream to its end; returns its cause.
async fn read_stream(mut response: UpstreamResponse, work: &OpenWork) -> &'static str {
    let mut events = EventSplitter::with_limit(REPORT_BYTES_MAX);
    loop {
        let chunk = match response.chunk().await {
            Ok(Some(chunk)) => chunk,
            Ok(None) => return "the stream ended",
            Err(_) => return "the stream broke off",
        };
        let read = events.push(&chunk, &mut |event: &[u8]| {
            if let Some(report) = WorkReport::read(event) {
                work.report(report);
            }
        });
        if read.is_err() {
            return "an event is too long";
        }
    }
}
