//! Named task: a name that clients use as that of a model, with the models that may serve it.
//!
//! Not the kind of work that a model does, which is [`Task`](super::Task). A named task has no queue and no permits:
//! its requests go to its candidates.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Parameters;
use crate::{Millis, ModelId};

/// Most candidates of a named task.
pub const CANDIDATES_MAX: usize = 9;

/// Time for which a model stays loaded after a request, when that is another one than its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeepLoaded {
    /// So long while idle.
    For(Millis),
    /// Until other models need the room.
    Always,
}

impl KeepLoaded {
    /// Reads `keep_alive_secs`, of which -1 means always.
    pub fn of_secs(secs: i64) -> KeepLoaded {
        match u64::try_from(secs) {
            Ok(secs) => KeepLoaded::For(Millis::from_secs(secs)),
            Err(_) => KeepLoaded::Always,
        }
    }
}

/// Task by a name of its own. Permissions are those of its candidates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedTask {
    /// The name clients use, where they would name a model.
    pub id: ModelId,
    /// Ids of the models that may serve it, in order, all of one task. The second takes the place of the first as
    /// `models[].fallbacks` do, and while the first is not loaded and the second is.
    #[schemars(length(min = 1, max = 9))]
    pub candidates: Vec<ModelId>,
    /// Seconds for queue, load and run together, in place of the model's `timeout_secs` and of
    /// `timeouts.model_floor_secs`; not above `timeouts.ceiling_secs`. The model's own time when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400))]
    pub budget_secs: Option<u64>,
    /// Seconds that the model which served stays loaded while idle, in place of its own; -1 means always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1, max = 31_536_000))]
    pub keep_alive_secs: Option<i64>,
    /// Waits for the first candidate although a later one is loaded; others are for failures only.
    #[serde(default)]
    pub pin_primary: bool,
    /// Request parameters that are filled in, as `models[].parameters.default`; those of the model come after them.
    #[serde(default)]
    pub defaults: Arc<Defaults>,
}

/// Request parameters that are filled in where a request has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "Map<String, Value>", into = "Map<String, Value>")]
#[schemars(with = "Map<String, Value>")]
pub struct Defaults(Parameters);

impl Defaults {
    /// The same as parameters of a model.
    pub fn parameters(&self) -> &Parameters {
        &self.0
    }
}

impl From<Map<String, Value>> for Defaults {
    fn from(default: Map<String, Value>) -> Defaults {
        Defaults(Parameters {
            default,
            ..Parameters::default()
        })
    }
}

impl From<Defaults> for Map<String, Value> {
    fn from(defaults: Defaults) -> Map<String, Value> {
        defaults.0.default
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_written_as_it_is_read() {
        let text = r#"{"id":"chat","candidates":["a","b"],"budget_secs":20,"keep_alive_secs":-1,"pin_primary":true,"defaults":{"temperature":0}}"#;
        let task: NamedTask = serde_json::from_str(text).unwrap();
        assert_eq!(task.defaults.parameters().default["temperature"], 0);
        assert_eq!(serde_json::to_string(&task).unwrap(), text);
    }

    #[test]
    fn minus_one_keeps_a_model_for_ever() {
        assert_eq!(KeepLoaded::of_secs(-1), KeepLoaded::Always);
        assert_eq!(KeepLoaded::of_secs(0), KeepLoaded::For(Millis::ZERO));
        assert!(KeepLoaded::For(Millis(u64::MAX)) < KeepLoaded::Always);
    }
}
