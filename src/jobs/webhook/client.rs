//! Client of receivers: one attempt from a URL to its result, by the present configuration.
//!
//! Not the schedule of attempts. A message bears the wall clock's time at its attempt: receivers compare it with their
//! own, and a clock that is set is followed. A request carries its content type, our user agent, its signature and the trace
//! context of the job's submit, and nothing else of the submit.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use infergate_core::AccountId;
use infergate_core::job::StoreTime;
use infergate_core::job::receiver_url::{ReceiverUrl, ReceiverUrlError};
use infergate_core::job::receivers::ReceiverLimits;
use infergate_core::job::webhook::{DeliveryResult, WebhookEvent};
use infergate_core::trace_context::TRACEPARENT;
use tokio::time::timeout;

use super::delivery_queue::DeliveryQueue;
use super::exchange::{AttemptFault, WebhookRequest, discard, exchange};
use super::guard::{HostResolver, ReceiverGuard};
use super::signing::{SignedMessage, SigningKeys};
use crate::jobs::config::JobChoices;
use crate::telemetry::job_metrics::JobMetrics;
use crate::upstream::{HttpClient, UpstreamResponse};

/// Reader of the store's clock.
pub type StoreNow = Arc<dyn Fn() -> StoreTime + Send + Sync>;

/// Reader of the wall clock, seconds since 1970.
pub type UnixNow = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Clocks of deliveries.
#[derive(Clone)]
pub struct WebhookClocks {
    /// Orders attempts.
    pub store: StoreNow,
    /// Stamps messages.
    pub unix_secs: UnixNow,
}

/// Message to a receiver.
#[derive(Clone, Debug)]
pub struct WebhookMessage<'a> {
    /// Account whose key signs it.
    pub account: &'a AccountId,
    /// URL as it was submitted.
    pub url: &'a str,
    /// `webhook-id`.
    pub id: &'a str,
    /// Event that it tells.
    pub event: WebhookEvent,
    /// Body.
    pub body: Bytes,
    /// `traceparent` of the submit.
    pub traceparent: Option<&'a str>,
}

/// Result of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptReport {
    /// Meaning for the schedule.
    pub result: DeliveryResult,
    /// Text for operators.
    pub text: Arc<str>,
}

/// Client of one process.
pub struct WebhookClient {
    http: HttpClient,
    guard: ReceiverGuard,
    keys: SigningKeys,
    choices: ArcSwap<JobChoices>,
    /// Authorities of receivers, as PEM; none for the public ones.
    authorities: Option<Arc<[u8]>>,
    unix_secs: UnixNow,
    metrics: Arc<JobMetrics>,
    /// Turns of all deliveries.
    pub deliveries: DeliveryQueue,
}

impl WebhookClient {
    /// Creates the client of a configuration; `folder` keeps the secret where none is configured.
    pub fn new(
        folder: &Path,
        choices: JobChoices,
        resolver: Box<dyn HostResolver>,
        authorities: Option<Arc<[u8]>>,
        clocks: WebhookClocks,
        metrics: Arc<JobMetrics>,
    ) -> WebhookClient {
        let limits = ReceiverLimits {
            pending_max_per_account: choices.jobs.webhooks.pending_max_per_account,
            ..ReceiverLimits::default()
        };
        WebhookClient {
            http: HttpClient::default(),
            guard: ReceiverGuard::new(&choices, resolver),
            keys: SigningKeys::new(folder, &choices.jobs.webhooks),
            choices: ArcSwap::from_pointee(choices),
            authorities,
            unix_secs: clocks.unix_secs,
            metrics,
            deliveries: DeliveryQueue::new(limits, clocks.store),
        }
    }

    /// Applies another configuration.
    pub fn configure(&self, choices: &JobChoices) {
        self.guard.configure(choices);
        self.keys.configure(&choices.jobs.webhooks);
        self.choices.store(Arc::new(choices.clone()));
    }

    /// Returns the choices of the configuration.
    pub fn choices(&self) -> Arc<JobChoices> {
        self.choices.load_full()
    }

    /// Parses the URL of a receiver by the present rules. A name is not resolved.
    ///
    /// # Errors
    /// The reason for the caller.
    pub fn parse(&self, url: &str) -> Result<ReceiverUrl, ReceiverUrlError> {
        self.guard.parse(url)
    }

    /// Returns the key of an account as its owner gets to see it.
    ///
    /// # Errors
    /// No secret is configured, and none can be kept.
    pub fn shown_key(&self, account: &AccountId) -> std::io::Result<String> {
        self.keys.shown_key(account)
    }

    /// Returns the receiver of a URL, for the order of deliveries. A URL that the present rules refuse is one of its own.
    pub fn receiver_key(&self, url: &Arc<str>) -> Arc<str> {
        match self.parse(url) {
            Ok(parsed) => Arc::clone(parsed.receiver_key()),
            Err(_) => Arc::clone(url),
        }
    }

    /// Makes one attempt to deliver.
    pub async fn deliver(&self, message: WebhookMessage<'_>) -> AttemptReport {
        let limit = Duration::from_secs(self.choices.load().jobs.webhooks.timeout_secs);
        let sent = timeout(limit, self.send(&message)).await;
        let sent = sent.unwrap_or(Err(AttemptFault::Timeout));
        let result = match &sent {
            Ok((result, _)) => answer_name(result),
            Err(fault) => fault.name(),
        };
        self.metrics
            .webhooks
            .record_sent(message.event.as_str(), result);
        match sent {
            Ok((result, answer)) => {
                let text = answer.head().status.as_u16().to_string().into();
                discard(answer).await;
                AttemptReport { result, text }
            }
            Err(fault) => {
                tracing::debug!(id = message.id, %fault, "a webhook was not delivered");
                AttemptReport {
                    result: DeliveryResult::Failed {
                        status: None,
                        retry_after: None,
                    },
                    text: fault.to_string().into(),
                }
            }
        }
    }

    async fn send(
        &self,
        message: &WebhookMessage<'_>,
    ) -> Result<(DeliveryResult, UpstreamResponse), AttemptFault> {
        let url = self.guard.parse(message.url).map_err(AttemptFault::Url)?;
        let addresses = self.guard.addresses(&url).await?;
        let timestamp = (self.unix_secs)();
        let signed = SignedMessage {
            id: message.id,
            timestamp,
            body: &message.body,
        };
        let signature = self.keys.sign(message.account, signed);
        let signature = signature.map_err(|_| AttemptFault::Unsigned)?;
        let mut headers = format!(
            "content-type: application/json\r\nuser-agent: infergate/{version}\r\nconnection: close\r\n\
             webhook-id: {id}\r\nwebhook-timestamp: {timestamp}\r\nwebhook-signature: {signature}\r\n",
            version = env!("CARGO_PKG_VERSION"),
            id = message.id,
        );
        if let Some(context) = message.traceparent {
            headers.push_str(&format!("{TRACEPARENT}: {context}\r\n"));
        }
        let request = WebhookRequest {
            url: &url,
            addresses: &addresses,
            authorities: self.authorities.as_deref(),
            headers: headers.as_bytes(),
            body: &message.body,
            now_unix_secs: timestamp,
        };
        exchange(&self.http, request).await
    }
}

/// Name of an answer in metrics.
fn answer_name(result: &DeliveryResult) -> &'static str {
    match result {
        DeliveryResult::Accepted => "accepted",
        DeliveryResult::Gone => "gone",
        DeliveryResult::Failed { .. } => "refused",
    }
}
