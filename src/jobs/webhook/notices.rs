//! News of a running job for its receiver: `start` and `output`, while the run goes on and not after it.
//!
//! No promise: a notification that fails is not repeated, and one in flight is cut when the run ends, before the end
//! is written. A job has at most one in flight; a kind at most every 500 ms, by the core's throttle. It waits for its turn
//! in the order of all deliveries, and tells what is so when its turn comes.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use infergate_core::Millis;
use infergate_core::job::webhook::{
    IntermediateNotification, IntermediateThrottle, WebhookEvent, WebhookFilter,
};
use infergate_core::job::{JobState, TakenJob};

use super::client::{WebhookClient, WebhookMessage};
use crate::jobs::live::LiveOutput;
use crate::jobs::object::{ShownStatus, replicate_object};
use crate::jobs::request::{JobResult, StoredRequest};
use crate::jobs::store::StoredJob;
use crate::jobs::store_clock::StoreClock;

/// Numbers of one epoch: ids of notifications differ where a job is run again.
const NUMBERS_PER_EPOCH: u64 = 1_000_000;

/// Notifications of one run.
pub struct JobNotices {
    client: Arc<WebhookClient>,
    clock: StoreClock,
    url: Arc<str>,
    traceparent: Option<Arc<str>>,
    job: StoredJob,
    throttle: IntermediateThrottle,
    live: Arc<LiveOutput>,
}

impl JobNotices {
    /// Returns the notifications of a run; none where its receiver wants to hear of the end alone.
    pub fn of(
        client: &Arc<WebhookClient>,
        clock: StoreClock,
        (taken, request): (&TakenJob, &StoredRequest),
        live: Arc<LiveOutput>,
    ) -> Option<JobNotices> {
        let url = Arc::clone(request.webhook.as_ref()?);
        let events = request.webhook_events.iter().flatten();
        let filter = WebhookFilter::parse(events.map(|event| &**event)).ok()?;
        let mut kinds = filter.events();
        kinds.find(|event| matches!(event, WebhookEvent::Start | WebhookEvent::Output))?;
        let mut throttle = IntermediateThrottle::new(filter);
        if taken.progress.epoch <= 1 {
            throttle.offer(WebhookEvent::Start, Millis(clock.now().0));
        }
        Some(JobNotices {
            client: Arc::clone(client),
            clock,
            url,
            traceparent: request.traceparent.clone(),
            job: StoredJob {
                place: 0,
                definition: (*taken.definition).clone(),
                progress: taken.progress.clone(),
                state: JobState::Running,
                reason: None,
                ended: None,
                payload: request.to_payload().into(),
                result: None,
                is_data_removed: false,
            },
            throttle,
            live,
        })
    }

    /// Sends notifications while `run` goes on, and cuts the one in flight when it ends.
    pub async fn during<T>(notices: Option<JobNotices>, run: impl Future<Output = T>) -> T {
        let Some(notices) = notices else {
            return run.await;
        };
        tokio::select! {
            ended = run => ended,
            never = notices.send_all() => match never {},
        }
    }

    async fn send_all(mut self) -> Infallible {
        let live = Arc::clone(&self.live);
        let changed = live.changed.notified();
        tokio::pin!(changed);
        // Registered at all times: a change during a send is not missed.
        changed.as_mut().enable();
        loop {
            let now = Millis(self.clock.now().0);
            if let Some(notice) = self.throttle.take(now) {
                self.send(notice).await;
                self.throttle.finish();
                continue;
            }
            let rest = self.throttle.next_due().map(|due| due.since(now).0);
            let due = async {
                match rest {
                    Some(rest) => tokio::time::sleep(Duration::from_millis(rest)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = changed.as_mut() => {
                    changed.set(live.changed.notified());
                    changed.as_mut().enable();
                    let now = Millis(self.clock.now().0);
                    self.throttle.offer(WebhookEvent::Output, now);
                }
                () = due => {}
            }
        }
    }

    async fn send(&self, notice: IntermediateNotification) {
        let definition = &self.job.definition;
        let receiver = self.client.receiver_key(&self.url);
        let deliveries = &self.client.deliveries;
        let turn = deliveries.notice_turn(&receiver, &definition.account);
        let Some(mut turn) = turn.await else {
            return;
        };
        let epoch = u64::from(self.job.progress.epoch.saturating_sub(1));
        let number = epoch * NUMBERS_PER_EPOCH + notice.number;
        let id = notice.event.webhook_id(definition.id.as_str(), number);
        let message = WebhookMessage {
            account: &definition.account,
            url: &self.url,
            id: &id,
            event: notice.event,
            body: self.body().into(),
            traceparent: self.traceparent.as_deref(),
        };
        // Whatever came of it, the next one has newer news.
        turn.record(self.client.deliver(message).await.result);
    }

    /// Object as it is now, with the output so far.
    fn body(&self) -> Vec<u8> {
        let pieces = self.live.pieces();
        let result = (!pieces.is_empty()).then(|| JobResult::partial(&pieces));
        let job = StoredJob {
            result: result.map(|result| result.to_bytes().into()),
            ..self.job.clone()
        };
        replicate_object(&self.client.choices(), &job, ShownStatus::Present)
    }
}
