//! The head of an answer: what of the server's passes, and what the gateway says itself.
//!
//! Not the body.

use http::{HeaderValue, header};
use infergate_core::Refusal;
use pingora_http::ResponseHeader;

use crate::pipeline::context::RequestError;
use crate::pipeline::relay::Relay;
use crate::pipeline::respond;
use crate::state::header_filter;

/// Metrics told in an answer's head, `cf-ai-cost-metric-name-1` to `-16`.
const HEADER_METRICS_MAX: usize = 16;

impl Relay<'_> {
    pub(super) async fn write_head(
        &mut self,
        status: u16,
        content_type: HeaderValue,
        length: Option<HeaderValue>,
    ) -> Result<(), RequestError> {
        let is_http11 = self.session.req_header().version == http::Version::HTTP_11;
        if length.is_none() && !is_http11 {
            // The close is what ends the answer, so nothing else is promised.
            self.session.set_keepalive(None);
        }
        let head = self
            .head(status, content_type, length)
            .map_err(|_| Refusal::Internal)?;
        self.session
            .write_response_header(Box::new(head))
            .await
            .map_err(|_| RequestError::Aborted)?;
        self.ctx.response_started = true;
        self.ctx.event().status = status;
        Ok(())
    }

    fn head(
        &self,
        status: u16,
        content_type: HeaderValue,
        length: Option<HeaderValue>,
    ) -> pingora_error::Result<ResponseHeader> {
        let from = self.exchange.encode_head();
        let mut head = ResponseHeader::build_no_case(status, Some(from.headers.len() + 4))?;
        let named = header_filter::connection_named(&from.headers);
        for (name, value) in &from.headers {
            let passes = header_filter::passes_to_client(name, &self.ctx.snapshot.headers_pass)
                && !named.contains(name)
                && (self.verbatim || !header_filter::describes_bytes(name));
            if *name != header::CONTENT_TYPE && passes {
                head.append_header(name.clone(), value.clone())?;
            }
        }
        head.insert_header(header::CONTENT_TYPE, content_type)?;
        match length {
            Some(length) => head.insert_header(header::CONTENT_LENGTH, length)?,
            None if self.session.req_header().version == http::Version::HTTP_11 => {
                head.insert_header(header::TRANSFER_ENCODING, "chunked")?;
            }
            // An older client reads until the connection closes.
            None => {}
        }
        if matches!(status, 502 | 504) {
            // The server may have begun: what a client library repeats would be worked twice.
            head.remove_header(&header::RETRY_AFTER);
            head.insert_header("x-should-retry", "false")?;
        }
        self.add_gateway_headers(&mut head)?;
        Ok(head)
    }

    /// The gateway's own words in the head. Where a whole answer is sent at once, all that it
    /// reports is known by now.
    fn add_gateway_headers(&self, head: &mut ResponseHeader) -> pingora_error::Result<()> {
        respond::write_request_id(head, self.ctx.dialect(), self.ctx.request_id())?;
        self.ctx.page_origin.write(head)?;
        for (name, value) in self.ctx.rate_lines() {
            head.insert_header(name, value)?;
        }
        if let Some(model) = self.ctx.substitute_model() {
            head.insert_header("x-infergate-model", model.as_str())?;
        }
        let Some(charge) = self.ctx.charge() else {
            return Ok(());
        };
        head.insert_header("cf-ai-neurons", charge.total.to_string())?;
        let told = charge.lines.iter();
        let told = told.filter(|line| charge.visible.contains(&line.metric));
        for (number, line) in (1..=HEADER_METRICS_MAX).zip(told) {
            let name = format!("cf-ai-cost-metric-name-{number}");
            let value = format!("cf-ai-cost-metric-value-{number}");
            head.insert_header(name, &*line.metric)?;
            head.insert_header(value, line.quantity.to_string())?;
        }
        Ok(())
    }
}
