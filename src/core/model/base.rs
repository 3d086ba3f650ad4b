//! `models[].base`: the model on whose endpoints another one runs, and the weights it runs with.
//!
//! Not the endpoints themselves, which a catalog fills in.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ModelId;

/// Parameter that names the weights to servers which take a task's payload: Cog's word.
pub const WEIGHTS_PARAMETER: &str = "replicate_weights";

/// Base whose servers exchange their weights for those of the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BaseSpec {
    /// Id of the model whose endpoints serve this one. Each of them has one permit.
    pub model: ModelId,
    /// Name of the weights there. Servers with an OpenAI interface get it as `model`, those of backend `http` as
    /// `replicate_weights` in the body.
    #[schemars(length(min = 1, max = 2048))]
    pub weights: Arc<str>,
}
