//! The head of an answer: what of the server's passes, and what the gateway says itself.
//!
//! Not the body.

use http::{HeaderName, HeaderValue, header};

use crate::pipeline::downstream::{Downstream, ResponseHead};
use crate::pipeline::error::RequestError;
use crate::pipeline::relay::Relay;
use crate::pipeline::respond;
use crate::state::header_filter;

/// Metrics in the head of a response, `cf-ai-cost-metric-name-1` to `-16`.
const HEADER_METRICS_MAX: usize = 16;

impl<D: Downstream> Relay<'_, D> {
    pub(super) async fn write_head(
        &mut self,
        status: u16,
        content_type: HeaderValue,
        length: Option<HeaderValue>,
    ) -> Result<(), RequestError> {
        let head = self.head(status, content_type, length);
        let started = self.downstream.start(head).await;
        started.map_err(|_| RequestError::Aborted)?;
        self.ctx.response_started = true;
        self.ctx.status = status;
        Ok(())
    }

    fn head(
        &self,
        status: u16,
        content_type: HeaderValue,
        length: Option<HeaderValue>,
    ) -> ResponseHead {
        let from = self.response.head();
        let mut head = ResponseHead::new(status, from.headers.len() + 4);
        let named = header_filter::connection_named(&from.headers);
        for (name, value) in &from.headers {
            let passes = header_filter::passes_to_client(name, &self.ctx.snapshot.headers_pass)
                && !named.contains(name)
                && (self.verbatim || !header_filter::describes_bytes(name));
            if *name != header::CONTENT_TYPE && passes {
                head.headers.append(name.clone(), value.clone());
            }
        }
        head.headers.insert(header::CONTENT_TYPE, content_type);
        if let Some(length) = length {
            head.headers.insert(header::CONTENT_LENGTH, length);
        }
        if matches!(status, 502 | 504) {
            // The server may have begun: what a client library repeats would be worked twice.
            head.headers.remove(header::RETRY_AFTER);
            head.set("x-should-retry", "false");
        }
        self.add_gateway_headers(&mut head);
        head
    }

    /// Adds the gateway's own fields. Usage and price of a whole response that is sent at once are known
    /// by now.
    fn add_gateway_headers(&self, head: &mut ResponseHead) {
        respond::write_request_id(head, self.ctx.dialect(), self.ctx.request_id());
        self.ctx.page_origin.write(&mut head.headers);
        for (name, value) in self.ctx.rate_lines() {
            head.set(name, &value);
        }
        if let Some(model) = self.ctx.substitute_model() {
            head.set("x-infergate-model", model.as_str());
        }
        let Some(charge) = self.ctx.charge() else {
            return;
        };
        head.set("cf-ai-neurons", &charge.total.to_string());
        let lines = charge.lines.iter();
        let lines = lines.filter(|line| charge.visible.contains(&line.metric));
        for (number, line) in (1..=HEADER_METRICS_MAX).zip(lines) {
            let quantity = line.quantity.to_string();
            for (part, value) in [("name", &*line.metric), ("value", quantity.as_str())] {
                let name = HeaderName::try_from(format!("cf-ai-cost-metric-{part}-{number}"));
                if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(value)) {
                    head.headers.insert(name, value);
                }
            }
        }
    }
}
