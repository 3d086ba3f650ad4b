//! Ways of reports and lifecycle events out of the gateway: files of JSON lines, and posts to a receiver.
//!
//! Never holds up the driver: what does not fit in a queue is dropped and counted. Files rotate by size.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use infergate_core::model::EndpointSpec;
use infergate_core::vram::SetupReport;
use serde::Serialize;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::time::{sleep, timeout};

use crate::gpu::{GpuConfig, ReportsConfig};
use crate::state::Shared;
use crate::telemetry::event_sink::{EventFileConfig, EventSink, EventsConfig};
use crate::telemetry::{Clock, printable};
use crate::upstream::{ConnectTimings, OutboundRequest, Target};

/// Reports that may wait for the receiver, and lines that may wait for each file.
const QUEUE_MAX: usize = 1000;
/// Size at which a file is rotated, and rotated files that are kept.
const FILE_MIB: u64 = 64;
const FILES_KEPT: u32 = 2;
/// Attempts to post a report.
const TRIES_MAX: u32 = 3;
/// Pause after the first failed attempt; doubles with each.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Time for one attempt, and for its connection.
const POST_MAX: Duration = Duration::from_secs(10);
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Time for the last lines of a file at the end of the process.
const CLOSE_MAX: Duration = Duration::from_millis(500);
const HEADERS: &[u8] = concat!(
    "content-type: application/json\r\nuser-agent: infergate/",
    env!("CARGO_PKG_VERSION"),
    "\r\n"
)
.as_bytes();

/// Setup report with the instance that it is about.
#[derive(Debug, Serialize)]
pub(super) struct SetupLine {
    pub report: &'static str,
    pub deployment_key: String,
    pub instance_id: Option<String>,
    #[serde(flatten)]
    pub content: SetupReport,
}

/// Report on its way to a receiver.
pub(super) struct Post {
    target: Arc<Target>,
    body: Bytes,
}

/// The ways out.
pub(super) struct ReportOutlets {
    clock: Clock,
    reports: LineFile,
    events: LineFile,
    /// Settings that the receiver was made from.
    config: ReportsConfig,
    receiver: Option<Arc<Target>>,
    posts: Sender<Post>,
    /// Reports that no receiver has got.
    unsent: Arc<AtomicU64>,
}

/// File of lines with its writer, which is started once a file is configured.
struct LineFile {
    what: &'static str,
    path: PathBuf,
    sink: Option<EventSink>,
}

impl LineFile {
    fn new(what: &'static str) -> LineFile {
        LineFile {
            what,
            path: PathBuf::new(),
            sink: None,
        }
    }

    fn configure(&mut self, path: &Path, clock: Clock) {
        if self.path == path {
            return;
        }
        self.path = path.to_owned();
        let is_named = !path.as_os_str().is_empty();
        let config = EventsConfig {
            file: is_named.then(|| EventFileConfig::whole(path.to_owned(), FILE_MIB, FILES_KEPT)),
            ..EventsConfig::default()
        };
        if let Some(sink) = &self.sink {
            sink.reconfigure(&config);
            return;
        }
        match EventSink::start_lines(self.what, &config, clock, QUEUE_MAX) {
            Ok(sink) => self.sink = Some(sink),
            Err(error) => tracing::warn!(%error, "{} cannot be written", self.what),
        }
    }

    fn is_open(&self) -> bool {
        self.sink.is_some() && !self.path.as_os_str().is_empty()
    }

    fn write(&self, mut line: Vec<u8>) {
        if let Some(sink) = self.sink.as_ref().filter(|_| self.is_open()) {
            line.push(b'\n');
            sink.write_line(line.into());
        }
    }
}

impl ReportOutlets {
    /// Creates ways to nowhere, and the end at which [`post_reports`] takes what is to be posted.
    pub fn new(clock: Clock) -> (ReportOutlets, Receiver<Post>) {
        let (posts, posted) = mpsc::channel(QUEUE_MAX);
        let outlets = ReportOutlets {
            clock,
            reports: LineFile::new("reports of instances"),
            events: LineFile::new("lifecycle events"),
            config: ReportsConfig::default(),
            receiver: None,
            posts,
            unsent: Arc::default(),
        };
        (outlets, posted)
    }

    /// Takes over the settings. Reports that wait still go to the former receiver.
    pub fn configure(&mut self, gpu: &GpuConfig) {
        self.reports.configure(&gpu.reports.file, self.clock);
        self.events.configure(&gpu.events.file, self.clock);
        if self.config == gpu.reports {
            return;
        }
        self.config = gpu.reports.clone();
        self.receiver = receiver(&self.config);
        if self.receiver.is_none() && !self.config.url.is_empty() {
            let url = printable(&self.config.url);
            tracing::warn!(%url, "gpu.reports.url is no URL: no report is posted");
        }
    }

    /// Returns whether a report would go anywhere.
    pub fn has_reports(&self) -> bool {
        self.receiver.is_some() || self.reports.is_open()
    }

    /// Returns whether a lifecycle event would go anywhere.
    pub fn has_events(&self) -> bool {
        self.events.is_open()
    }

    /// Sends a report to the file and the receiver.
    pub fn send_report(&self, report: &impl Serialize) {
        let Ok(line) = serde_json::to_vec(report) else {
            return;
        };
        if let Some(target) = &self.receiver {
            let post = Post {
                target: Arc::clone(target),
                body: line.clone().into(),
            };
            if self.posts.try_send(post).is_err() {
                self.unsent.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.reports.write(line);
    }

    /// Sends a lifecycle event to its file.
    pub fn send_event(&self, event: &impl Serialize) {
        if let Ok(line) = serde_json::to_vec(event) {
            self.events.write(line);
        }
    }

    /// Count of the reports that were not sent, which [`post_reports`] raises too.
    pub fn unsent(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.unsent)
    }

    /// Reports that could not be sent or written since the start.
    pub fn dropped(&self) -> u64 {
        let file = self.reports.sink.as_ref();
        let unwritten = file.map_or(0, |sink| sink.counts().dropped);
        self.unsent.load(Ordering::Relaxed) + unwritten
    }

    /// Writes the last lines.
    pub fn close(&self) {
        for sink in [&self.reports.sink, &self.events.sink]
            .into_iter()
            .flatten()
        {
            if !sink.close(CLOSE_MAX) {
                tracing::warn!("the last reports could not be written in time");
            }
        }
    }
}

fn receiver(config: &ReportsConfig) -> Option<Arc<Target>> {
    let spec = EndpointSpec {
        url: Arc::clone(&config.url),
        api_key: config.token.clone(),
        ..EndpointSpec::default()
    };
    Target::new(&spec, "", CONNECT_MAX).map(Arc::new)
}

/// Posts reports, one after the other. A trouble is said once.
pub(super) async fn post_reports(
    shared: Arc<Shared>,
    mut posted: Receiver<Post>,
    unsent: Arc<AtomicU64>,
) {
    let mut is_failing = false;
    while let Some(post) = posted.recv().await {
        let sent = post_with_retries(&shared, &post).await;
        match sent {
            Ok(()) if is_failing => tracing::info!("reports are taken again"),
            Ok(()) => {}
            Err(cause) => {
                unsent.fetch_add(1, Ordering::Relaxed);
                if !is_failing {
                    tracing::warn!(cause, "reports cannot be posted: they are dropped");
                }
                is_failing = true;
                continue;
            }
        }
        is_failing = false;
    }
}

async fn post_with_retries(shared: &Shared, post: &Post) -> Result<(), String> {
    let mut pause = RETRY_PAUSE;
    let mut tries = 1;
    loop {
        let sent = timeout(POST_MAX, post_once(shared, post)).await;
        let cause = match sent {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(cause)) => cause,
            Err(_) => "timeout".to_owned(),
        };
        if tries >= TRIES_MAX {
            return Err(cause);
        }
        // The name may lead elsewhere by now.
        let _ = timeout(CONNECT_MAX, post.target.resolve()).await;
        sleep(pause).await;
        pause *= 2;
        tries += 1;
    }
}

async fn post_once(shared: &Shared, post: &Post) -> Result<(), String> {
    let request = OutboundRequest {
        method: "POST",
        path: "",
        headers: HEADERS,
        body: &post.body,
        fresh: false,
        is_upgrade: false,
        rest: None,
    };
    let mut timings = ConnectTimings::default();
    let sent = shared.client.send(&post.target, request, &mut timings);
    let mut response = sent.await.map_err(|error| error.cause().to_owned())?;
    let status = response.head().status.as_u16();
    while let Ok(Some(_)) = response.chunk().await {}
    shared.client.finish(response).await;
    match status {
        200..300 => Ok(()),
        other => Err(format!("status {other}")),
    }
}
