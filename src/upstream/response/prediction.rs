//! Answers of Cog: the output of a prediction becomes a result, or the events of a text.
//!
//! Collected whole, up to [`RESPONSE_BYTES_MAX`](super::bounds::RESPONSE_BYTES_MAX). A model that failed is told to
//! the client; a worker that crashed is its server's failure.

use bytes::BytesMut;
use infergate_core::Refusal;
use infergate_core::api::cog::{PredictionError, joined_text, read_prediction, text_pieces};
use infergate_core::api::workers_ai;
use infergate_core::model::Task;
use serde_json::value::RawValue;

use super::convert::{ConvertedEvents, Delta, FormatDecoder};
use super::decoder::{
    Body, BodyMode, DecoderContext, DecoderHead, PushOutput, ResponseDecoder, collect, json_value,
    without_bom,
};
use super::error::ResponseError;

const JSON: &str = "application/json";
const END_MARK: &[u8] = b"data: [DONE]\n\n";

/// Events that are made of the pieces of a text.
static PIECES: FormatDecoder = FormatDecoder {
    json: |_, _, _| Err(ResponseError::Malformed),
    event: |data| {
        let text: &RawValue = serde_json::from_slice(data).map_err(|_| ResponseError::Malformed)?;
        Ok(Delta {
            text: Some(text),
            ..Delta::default()
        })
    },
    input_tokens_header: None,
};

impl From<PredictionError> for ResponseError {
    fn from(error: PredictionError) -> ResponseError {
        match error {
            PredictionError::Malformed => ResponseError::Malformed,
            PredictionError::Failed(message) => {
                ResponseError::refused(Refusal::ModelFailed { message })
            }
            PredictionError::Crashed => ResponseError::ServerCrashed,
        }
    }
}

/// Decoder of the answer to a prediction.
pub struct PredictionResult {
    body: BytesMut,
    /// The client gets events.
    is_streamed: bool,
    /// A list of texts is one text in pieces.
    is_text: bool,
}

impl PredictionResult {
    /// A decoder for a model with this task; the client gets events where `is_streamed`.
    pub fn decoder(is_streamed: bool, task: Task) -> Box<dyn ResponseDecoder> {
        let is_text = matches!(
            task,
            Task::TextGeneration
                | Task::ImageTextToText
                | Task::ImageToText
                | Task::Summarization
                | Task::Translation
                | Task::AutomaticSpeechRecognition
        );
        Box::new(PredictionResult {
            body: BytesMut::new(),
            is_streamed,
            is_text,
        })
    }
}

impl ResponseDecoder for PredictionResult {
    fn head(&mut self, _: &DecoderHead<'_, '_>, _: &mut DecoderContext<'_>) -> Body {
        Body {
            mode: match self.is_streamed {
                true => BodyMode::Events,
                false => BodyMode::Collected,
            },
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
        let prediction = read_prediction(without_bom(&self.body))?;
        cx.stats.costs.add_all(&prediction.costs);
        if self.is_streamed {
            let pieces = text_pieces(prediction.output);
            let pieces = pieces.ok_or_else(|| ResponseError::refused(Refusal::InvalidResponse))?;
            let mut events = ConvertedEvents::new(&PIECES);
            for piece in pieces {
                let event = ["data: ", piece.get(), "\n\n"].concat();
                events.push(event.as_bytes(), cx.stats, out)?;
            }
            return events.push(END_MARK, cx.stats, out);
        }
        let joined = self.is_text.then(|| joined_text(prediction.output));
        let joined = joined.flatten();
        let output = joined.as_deref().unwrap_or(prediction.output).as_bytes();
        let shaped = cx.shape(JSON, output)?;
        let result = json_value(shaped.as_deref().unwrap_or(output))?;
        cx.stats.keep_whole(result);
        workers_ai::write_result(result, out);
        Ok(())
    }
}
