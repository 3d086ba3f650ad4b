//! Answers of Text Embeddings Inference to a rerank, in the form that clients of `/v1/rerank` read.
//!
//! Collected whole, up to [`RESPONSE_BYTES_MAX`](super::bounds::RESPONSE_BYTES_MAX). Forms are the core's.

use bytes::BytesMut;
use infergate_core::api::Call;
use infergate_core::api::passed::{RerankRequest, write_rerank};
use infergate_core::billing::Usage;

use super::decoder::{
    Body, BodyMode, DecoderContext, DecoderHead, PushOutput, ResponseDecoder, collect, without_bom,
};
use super::error::ResponseError;

/// Decoder of the answer to a rerank.
pub struct RerankAnswer {
    body: BytesMut,
    model: String,
    top_n: usize,
}

impl RerankAnswer {
    /// A decoder of the answer to `call`.
    pub fn decoder(call: &Call) -> Box<dyn ResponseDecoder> {
        let request = RerankRequest::read(&call.body);
        Box::new(RerankAnswer {
            body: BytesMut::new(),
            model: call.model.clone(),
            top_n: request.map_or(usize::MAX, |request| request.top_n),
        })
    }
}

impl ResponseDecoder for RerankAnswer {
    fn head(&mut self, head: &DecoderHead<'_, '_>, cx: &mut DecoderContext<'_>) -> Body {
        let tokens = (head.header)("x-compute-tokens");
        cx.stats.usage = tokens.and_then(Usage::from_input_header);
        Body {
            mode: BodyMode::Collected,
            keeps_content_type: false,
        }
    }

    fn push(
        &mut self,
        chunk: &[u8],
        cx: &mut DecoderContext<'_>,
        _: &mut BytesMut,
    ) -> Result<PushOutput, ResponseError> {
        collect(chunk, &mut self.body, cx.stats)
    }

    fn finish(
        &mut self,
        cx: &mut DecoderContext<'_>,
        out: &mut BytesMut,
    ) -> Result<(), ResponseError> {
        let tokens = cx.stats.usage.map_or(0, |usage| usage.input_tokens);
        let asked = (&*self.model, self.top_n);
        let written = write_rerank(without_bom(&self.body), asked, tokens, out);
        written.ok_or(ResponseError::Malformed)
    }
}
