//! Cancels of runs that are left at servers of Cog, until their slots are free. Their permits are held meanwhile.
//!
//! The core decides what a reply means. A task of the app works the queue off. Times are those of the gate's clock.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, FuturesUnordered, StreamExt};
use infergate_core::api::cog::{CogState, read_health};
use infergate_core::routing::{CancelReply, LeftWork, LeftWorkStep, SlotReport};
use tokio::time::{sleep, timeout};

use super::client::{HttpClient, SendError};
use super::connect_timings::ConnectTimings;
use super::health::{PAGE_MAX_BYTES, get};
use super::left_runs::{LeftRun, LeftWorkQueue};
use super::outbound::OutboundRequest;
use super::target::Target;

/// Runs that are canceled at once, each with a request at a time.
const AT_ONCE_MAX: usize = 1024;

/// Limit of one request to a server.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// Path of the state of a server.
const HEALTH: &str = "/health-check";

/// Cancels what is left in `queue`, for the life of the process.
pub async fn cancel_left_work(queue: &LeftWorkQueue, client: &HttpClient) {
    let mut open = FuturesUnordered::new();
    loop {
        tokio::select! {
            left = queue.next(), if open.len() < AT_ONCE_MAX => open.push(end_run(left, client)),
            Some(()) = open.next() => {}
        }
    }
}

/// Cancels once what still waits in `queue`, before the process ends.
pub async fn cancel_waiting_work(queue: &LeftWorkQueue, client: &HttpClient) {
    stream::iter(queue.take_all())
        .for_each_concurrent(AT_ONCE_MAX, |left| async move {
            cancel(client, &left.target, &left.path).await;
        })
        .await;
}

/// Cancels a run until its slot is free, then releases its permit.
async fn end_run(left: LeftRun, client: &HttpClient) {
    let (target, clock) = (&*left.target, left.clock);
    let mut work = LeftWork::new(clock.now());
    loop {
        let reply = cancel(client, target, &left.path).await;
        let report = slots(client, target).await;
        match work.look(reply, report, clock.now()) {
            LeftWorkStep::Free => return,
            LeftWorkStep::Again(pause) => sleep(Duration::from_millis(pause.0)).await,
            LeftWorkStep::GiveUp => {
                tracing::error!(
                    url = &*target.url,
                    "a model server does not end canceled work: it gets no requests until it has a free slot"
                );
                target.record_stuck();
                return;
            }
        }
    }
}

async fn cancel(client: &HttpClient, target: &Target, path: &str) -> CancelReply {
    let asked = async {
        let path = format!("{path}/cancel");
        let request = OutboundRequest {
            method: "POST",
            path: &path,
            headers: b"",
            body: &Bytes::new(),
            fresh: false,
            is_upgrade: false,
            rest: None,
        };
        let mut unmeasured = ConnectTimings::default();
        let mut response = match client.send(target, request, &mut unmeasured).await {
            Ok(response) => response,
            Err(error @ SendError::Connect(_)) if error.cause() == "refused" => {
                return CancelReply::NoServer;
            }
            Err(_) => return CancelReply::Unclear,
        };
        let status = response.head().status.as_u16();
        while let Ok(Some(_)) = response.chunk().await {}
        client.finish(response).await;
        match status {
            200..300 => CancelReply::Accepted,
            404 => CancelReply::Unknown,
            _ => CancelReply::Unclear,
        }
    };
    let reply = timeout(REPLY_TIMEOUT, asked).await;
    reply.unwrap_or(CancelReply::Unclear)
}

async fn slots(client: &HttpClient, target: &Target) -> SlotReport {
    let asked = timeout(REPLY_TIMEOUT, get(client, target, HEALTH, PAGE_MAX_BYTES)).await;
    let health = match asked {
        Ok(Ok((200, body))) => read_health(&body),
        _ => None,
    };
    match health.map(|health| health.state) {
        Some(CogState::Ready) => SlotReport::Free,
        Some(CogState::Busy) => SlotReport::Busy,
        Some(CogState::Unknown) | None => SlotReport::Unclear,
        Some(_) => SlotReport::Down,
    }
}
