//! Parts of the context for a WebSocket: what it uses, what that costs so far, and how it ended.
//!
//! Other requests never come here.

use infergate_core::AccountId;
use infergate_core::billing::Metrics;

use super::RequestContext;
use crate::telemetry::RequestOutcome;
use crate::upstream::ResponseTransformer;

/// Status of a connection that has left HTTP.
const SWITCHED: u16 = 101;

impl RequestContext {
    /// The client has the head of the 101.
    pub fn begin_connection(&mut self) {
        self.response_started = true;
        self.status = SWITCHED;
        self.is_streaming = true;
        self.billing.mark_connected();
    }

    /// Records what the server has reported in its head, and what the gateway has measured so far.
    pub fn record_connection(&mut self, transformer: &ResponseTransformer, measured: &Metrics) {
        if let Some(model) = &self.model {
            self.billing.record_connection(transformer, model, measured);
        }
    }

    /// Holds what the connection has cost so far; returns whether that, with all that the account has used, is as much
    /// as its day has.
    pub fn has_spent_quota(&mut self, account: &AccountId, per_day: Option<u64>) -> bool {
        let (Some(per_day), Some(model)) = (per_day, &self.model) else {
            return false;
        };
        let cost = self.billing.hold_running_cost(model);
        self.shared.quota.used_by_all(account) + cost >= per_day as f64
    }

    /// Records how the connection ended.
    pub fn record_connection_end(&mut self, reason: Option<&'static str>, outcome: RequestOutcome) {
        match outcome {
            RequestOutcome::CutByClient => self.record_client_gone(),
            RequestOutcome::CutByBackend => {
                self.record_refusal(&infergate_core::Refusal::UpstreamLost, outcome);
            }
            outcome => self.set_outcome(outcome),
        }
        if reason.is_some() {
            self.facts.reason = reason;
        }
    }
}
