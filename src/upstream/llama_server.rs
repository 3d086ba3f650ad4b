//! llama.cpp's `llama-server`: the OpenAI shape with a name of its own for one parameter, and a
//! health path that distinguishes loading from ready.
//!
//! The native `/completion` path is not used. The server defers instead of refusing for load;
//! permits keep its slots from piling up.

use infergate_core::Refusal;
use infergate_core::api::Call;
use infergate_core::model::Task;

use super::backend::{Backend, Probe, UpstreamRequest, answers_200};
use super::openai;
use super::response::ResponseTransformer;

/// The kind `llama-server`.
pub(super) struct LlamaServer;

impl Backend for LlamaServer {
    fn name(&self) -> &'static str {
        "llama-server"
    }

    fn encode(
        &self,
        call: &Call,
        task: Task,
        backend_model: &str,
    ) -> Result<UpstreamRequest, Refusal> {
        openai::shape(call, task, backend_model, |name| match name {
            "repetition_penalty" => "repeat_penalty",
            name => name,
        })
    }

    fn decoder(&self, call: &Call, task: Task) -> ResponseTransformer {
        openai::read(call, task)
    }

    fn probe(&self) -> Probe {
        // 503 while the model is loading.
        Probe {
            path: "/health",
            healthy: answers_200,
        }
    }
}
