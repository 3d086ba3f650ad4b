//! Exchange of permits between a process and its successor, for as long as both live.
//!
//! Counts are [`ProcessPermits`]'s. A report is made every [`EXCHANGE_INTERVAL`] while there is
//! something to say; the end of the other process gives everything back. The process that ends loads no model any more: those
//! that its requests wait for are demand of the other one.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use infergate_core::AccountId;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::messages::{PredecessorMessage, SuccessorMessage, receive, send};
use crate::state::Shared;
use crate::upstream::{PermitReport, PermitSide, ProcessPermits};

/// Interval of reports: a freed permit lies idle for as long at most.
const EXCHANGE_INTERVAL: Duration = Duration::from_millis(10);
/// Interval at which models are named that requests wait for.
const DEMAND_INTERVAL: Duration = Duration::from_millis(250);
/// Account of demand at another process.
const ELSEWHERE: &str = "";

/// Whether the process that begins has the models of this host: it says so once.
pub(super) type ModelsTaken = Arc<watch::Sender<bool>>;

/// Exchanges permits until the other process has ended.
pub async fn exchange_permits(
    mut stream: UnixStream,
    permits: Arc<ProcessPermits>,
    side: PermitSide,
    (shared, models): (Arc<Shared>, ModelsTaken),
) {
    let (reader, writer) = stream.split();
    let ended = match side {
        PermitSide::Ending => {
            let theirs = |message| match message {
                SuccessorMessage::Permits(report) => Some(report),
                _ => None,
            };
            let take = |report: PermitReport| {
                permits.take(&report);
                if report.has_models {
                    models.send_replace(true);
                }
            };
            let mut asked_at = Instant::now();
            let own = || {
                let mut report = permits.report();
                if asked_at.elapsed() >= DEMAND_INTERVAL {
                    asked_at = Instant::now();
                    report.cold = cold_demand(&shared);
                }
                report
            };
            tokio::select! {
                ended = take_reports(reader, theirs, take) => ended,
                ended = send_reports(writer, own, PredecessorMessage::Permits) => ended,
            }
        }
        PermitSide::Beginning => {
            let theirs = |message| match message {
                PredecessorMessage::Permits(report) => Some(report),
                PredecessorMessage::Begin { .. } => None,
            };
            let take = |report: PermitReport| {
                permits.take(&report);
                record_demand(&shared, &report.cold);
            };
            let mut are_named = false;
            let own = || {
                let mut report = permits.report();
                report.has_models =
                    !std::mem::replace(&mut are_named, *models.borrow()) && are_named;
                report
            };
            tokio::select! {
                ended = take_reports(reader, theirs, take) => ended,
                ended = send_reports(writer, own, SuccessorMessage::Permits) => ended,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "the exchange of permits with the other process has ended");
    }
    permits.take_all();
}

fn cold_demand(shared: &Shared) -> Vec<String> {
    let cold = shared.snapshot.load().models.take_cold_demand();
    cold.iter().map(|model| model.as_str().to_owned()).collect()
}

/// Has models loaded that requests of the other process wait for.
fn record_demand(shared: &Shared, cold: &[String]) {
    if cold.is_empty() {
        return;
    }
    let snapshot = shared.snapshot.load();
    let asked = snapshot.models.iter();
    for model in asked.filter(|model| cold.iter().any(|id| id == model.spec.id.as_str())) {
        model
            .gate
            .record_cold_demand(&AccountId::from(ELSEWHERE), None);
    }
}

async fn take_reports<T: DeserializeOwned>(
    mut reader: impl AsyncRead + Unpin,
    report_of: impl Fn(T) -> Option<PermitReport>,
    take: impl Fn(PermitReport),
) -> io::Result<()> {
    loop {
        if let Some(report) = report_of(receive(&mut reader).await?) {
            take(report);
        }
    }
}

async fn send_reports<T: Serialize>(
    mut writer: impl AsyncWrite + Unpin,
    mut next: impl FnMut() -> PermitReport,
    message: impl Fn(PermitReport) -> T,
) -> io::Result<()> {
    let mut ticks = interval(EXCHANGE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first one is waited for.
    let mut is_awaited = true;
    loop {
        ticks.tick().await;
        let report = next();
        if std::mem::take(&mut is_awaited) || !report.is_empty() {
            send(&mut writer, &message(report)).await?;
        }
    }
}
