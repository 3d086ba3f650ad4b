//! The Open Inference Protocol: `/v2` paths, requests of tensors in JSON or in binary or of a text to go on with, and
//! answers without what reports costs.
//!
//! Neither a connection nor a server's choice is here, and no tensor is read but those of costs. Specifications:
//! <https://github.com/kserve/open-inference-protocol> and
//! <https://github.com/triton-inference-server/server/tree/main/docs/protocol>.

mod answer;
mod cost;
mod descriptor;
mod error;
mod generate;
mod page_route;
mod pages;
mod request;
mod routes;
mod task_inputs;
mod task_results;
#[cfg(test)]
mod tests;

pub use super::tensor_request::{JSON_BYTES_HEADER, TensorRequest};
pub use answer::{AnswerEdit, MalformedAnswer, TensorSpan, TensorUse, edit_answer};
pub use cost::{CostSum, ReportedCosts};
pub(in crate::api) use descriptor::OpenInference;
pub use generate::{EditedPiece, edit_generated};
pub use page_route::{ModelPage, OpenInferenceRoute, VersionedModel};
pub use pages::{ListedModel, client_page, index, server_page, wants_ready_only};
pub use task_inputs::{generate_body, infer_body};
pub use task_results::{GeneratedPiece, generated_piece, task_result};
