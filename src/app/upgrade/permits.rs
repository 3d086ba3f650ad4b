//! Exchange of permits between a process and its successor, for as long as both live.
//!
//! Counts are [`ProcessPermits`]'s. A report is made every [`EXCHANGE_INTERVAL`] while there is
//! something to say; the end of the other process gives everything back.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::time::{MissedTickBehavior, interval};

use super::messages::{PredecessorMessage, SuccessorMessage, receive, send};
use crate::upstream::{PermitReport, PermitSide, ProcessPermits};

/// Interval of reports: a freed permit lies idle for as long at most.
const EXCHANGE_INTERVAL: Duration = Duration::from_millis(10);

/// Exchanges permits until the other process has ended.
pub async fn exchange_permits(
    mut stream: UnixStream,
    permits: Arc<ProcessPermits>,
    side: PermitSide,
) {
    let (reader, writer) = stream.split();
    let ended = match side {
        PermitSide::Ending => {
            let theirs = |message| match message {
                SuccessorMessage::Permits(report) => Some(report),
                _ => None,
            };
            tokio::select! {
                ended = take_reports(reader, &permits, theirs) => ended,
                ended = send_reports(writer, &permits, PredecessorMessage::Permits) => ended,
            }
        }
        PermitSide::Beginning => {
            let theirs = |message| match message {
                PredecessorMessage::Permits(report) => Some(report),
                PredecessorMessage::Begin { .. } => None,
            };
            tokio::select! {
                ended = take_reports(reader, &permits, theirs) => ended,
                ended = send_reports(writer, &permits, SuccessorMessage::Permits) => ended,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "the exchange of permits with the other process has ended");
    }
    permits.take_all();
}

async fn take_reports<T: DeserializeOwned>(
    mut reader: impl AsyncRead + Unpin,
    permits: &ProcessPermits,
    report_of: impl Fn(T) -> Option<PermitReport>,
) -> io::Result<()> {
    loop {
        if let Some(report) = report_of(receive(&mut reader).await?) {
            permits.take(&report);
        }
    }
}

async fn send_reports<T: Serialize>(
    mut writer: impl AsyncWrite + Unpin,
    permits: &ProcessPermits,
    message: impl Fn(PermitReport) -> T,
) -> io::Result<()> {
    let mut ticks = interval(EXCHANGE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first one is waited for.
    let mut is_awaited = true;
    loop {
        ticks.tick().await;
        let report = permits.report();
        if std::mem::take(&mut is_awaited) || !report.is_empty() {
            send(&mut writer, &message(report)).await?;
        }
    }
}
