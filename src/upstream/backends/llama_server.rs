//! llama.cpp's `llama-server`: the OpenAI shape with a name of its own for one parameter, and a
//! health path that distinguishes loading from ready.
//!
//! The native `/completion` path is not used. The server defers instead of refusing for load;
//! permits keep its slots from piling up.

use infergate_core::api::passed::PassedApi;
use infergate_core::model::Task;

use super::descriptor::{Backend, Probe, answers_200};
use super::openai::{self, OPENAI};

/// The row of llama.cpp's server.
pub(super) static LLAMA_SERVER: Backend = Backend {
    name: "llama-server",
    about: "llama.cpp's `llama-server`",
    tasks: &[
        Task::TextGeneration,
        Task::TextEmbeddings,
        Task::TextClassification,
    ],
    passed: &[PassedApi::Responses, PassedApi::Rerank],
    // Numbers, not names, and all apply to a request that names none.
    adapter_form: None,
    encode: |call, task, model| {
        openai::encode(call, task, model, |name| match name {
            "repetition_penalty" => "repeat_penalty",
            name => name,
        })
    },
    probe: Probe {
        // 503 while the model is loading.
        path: "/health",
        is_healthy: answers_200,
        metrics: None,
        report: None,
    },
    ..OPENAI
};
