//! The head of an answer: what of the server's passes, and what the gateway says itself.
//!
//! Not the body.

use crate::pipeline::downstream::{Downstream, ResponseHead};
use crate::pipeline::error::RequestError;
use crate::pipeline::relay::Relay;
use crate::pipeline::respond;
use crate::state::header_filter::{self, ConnectionNamed};

/// Metrics in the head of a response: names.
const METRIC_NAMES: [&str; 16] = [
    "cf-ai-cost-metric-name-1",
    "cf-ai-cost-metric-name-2",
    "cf-ai-cost-metric-name-3",
    "cf-ai-cost-metric-name-4",
    "cf-ai-cost-metric-name-5",
    "cf-ai-cost-metric-name-6",
    "cf-ai-cost-metric-name-7",
    "cf-ai-cost-metric-name-8",
    "cf-ai-cost-metric-name-9",
    "cf-ai-cost-metric-name-10",
    "cf-ai-cost-metric-name-11",
    "cf-ai-cost-metric-name-12",
    "cf-ai-cost-metric-name-13",
    "cf-ai-cost-metric-name-14",
    "cf-ai-cost-metric-name-15",
    "cf-ai-cost-metric-name-16",
];
/// Their quantities.
const METRIC_VALUES: [&str; 16] = [
    "cf-ai-cost-metric-value-1",
    "cf-ai-cost-metric-value-2",
    "cf-ai-cost-metric-value-3",
    "cf-ai-cost-metric-value-4",
    "cf-ai-cost-metric-value-5",
    "cf-ai-cost-metric-value-6",
    "cf-ai-cost-metric-value-7",
    "cf-ai-cost-metric-value-8",
    "cf-ai-cost-metric-value-9",
    "cf-ai-cost-metric-value-10",
    "cf-ai-cost-metric-value-11",
    "cf-ai-cost-metric-value-12",
    "cf-ai-cost-metric-value-13",
    "cf-ai-cost-metric-value-14",
    "cf-ai-cost-metric-value-15",
    "cf-ai-cost-metric-value-16",
];

impl<D: Downstream> Relay<'_, D> {
    /// Begins the response to the client.
    pub(super) async fn write_head(&mut self, head: ResponseHead) -> Result<(), RequestError> {
        let status = head.status.as_u16();
        let started = self.downstream.start(head).await;
        started.map_err(|_| RequestError::Aborted)?;
        self.ctx.response_started = true;
        self.ctx.status = status;
        Ok(())
    }

    /// The server's own type of its response.
    pub(super) fn own_content_type(&self) -> Option<&[u8]> {
        self.response.head().fields.get("content-type")
    }

    /// The head as the client gets it.
    pub(super) fn head(
        &self,
        status: u16,
        content_type: &[u8],
        length: Option<u64>,
    ) -> ResponseHead {
        let from = self.response.head();
        let mut head = ResponseHead::new(status);
        let named = ConnectionNamed::of(&from.fields);
        // The server may have begun: what a client library repeats would be worked twice.
        let never_retry = matches!(status, 502 | 504);
        let own = self.ctx.rate_lines();
        for (name, value) in from.fields.lines() {
            let passes = header_filter::passes_to_client(name, &self.ctx.snapshot.headers_pass)
                && (self.verbatim || !header_filter::describes_bytes(name));
            if !passes || named.contains(name) {
                continue;
            }
            let is_replaced = match name {
                b"content-type" => true,
                b"retry-after" | b"x-should-retry" => never_retry,
                name => own.iter().any(|(own, _)| own.as_bytes() == name),
            };
            if !is_replaced {
                head.pass(name, value);
            }
        }
        head.append("content-type", content_type);
        if let Some(length) = length {
            head.set_length(length);
        }
        if never_retry {
            head.append("x-should-retry", b"false");
        }
        head.extend(own.iter());
        self.add_gateway_headers(&mut head);
        head
    }

    /// Adds the gateway's own fields. Usage and price of a whole response that is sent at once are known
    /// by now.
    fn add_gateway_headers(&self, head: &mut ResponseHead) {
        respond::write_request_id(head, self.ctx.dialect(), self.ctx.request_id());
        head.extend(self.ctx.page_origin.lines());
        if let Some(model) = self.ctx.substitute_model() {
            head.append("x-infergate-model", model.as_str().as_bytes());
        }
        if let Some(ms) = self.ctx.load_ms() {
            head.append(respond::LOAD_MS, ms.to_string().as_bytes());
        }
        let Some(charge) = self.ctx.charge() else {
            return;
        };
        let mut number = String::new();
        head.append("cf-ai-neurons", float(charge.total, &mut number));
        let lines = charge.lines.iter();
        let lines = lines.filter(|line| charge.visible.contains(&line.metric));
        let names = METRIC_NAMES.iter().zip(METRIC_VALUES);
        for ((name, value), line) in names.zip(lines) {
            head.append(name, line.metric.as_bytes());
            head.append(value, float(line.quantity, &mut number));
        }
    }
}

/// A number as text, in a buffer that is used for all of them.
fn float(value: f64, text: &mut String) -> &[u8] {
    use std::fmt::Write;
    text.clear();
    // Writing to a string cannot fail.
    let _ = write!(text, "{value}");
    text.as_bytes()
}
