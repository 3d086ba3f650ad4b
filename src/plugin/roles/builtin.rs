//! Built-in tasks, formula and policies, behind the same traits as Wasm revisions.
//!
//! Decides nothing: tasks, formula and policies are the core's. Schemas of the built-in tasks are compiled
//! once a process.

use std::sync::{Arc, OnceLock};

use infergate_core::billing::{self, Charge, UsageReport};
use infergate_core::model::{Payload, Tariff, Task};
use infergate_core::routing::policy::{self, BuiltinPolicy};
use infergate_core::routing::{Candidate, Choice, Hints};
use infergate_core::task::{
    BuiltinTask, FinishResult, PrepareResult, StreamEvent, StreamResult, TaskBody, TaskDescription,
    TaskError, TaskRequest, TaskResponse,
};

use crate::plugin::failure::Failure;
use crate::plugin::json::schema::Schema;
use crate::plugin::roles::routing::slot::RoutingMode;
use crate::plugin::roles::traits::{
    BillingFormula, BodyView, FinishInput, PrepareInput, RoutingPolicy, TaskHandler,
};
use crate::plugin::runtime::call::Caller;
use crate::telemetry::event::PluginIdentity;

/// The name of the built-in formula.
pub(crate) const FORMULA: &str = "neurons";

/// A built-in task with its schemas compiled.
struct NativeTask {
    builtin: &'static BuiltinTask,
    input: Option<Schema>,
    output: Option<Schema>,
}

/// The built-in task for servers that are posted this payload; two objects a task and process.
pub(crate) fn task(task: Task, payload: Payload) -> Arc<dyn TaskHandler> {
    const TASKS: usize = Task::ALL.len();
    static SHAPING: [OnceLock<Arc<NativeTask>>; TASKS] = [const { OnceLock::new() }; TASKS];
    static CHECKING: [OnceLock<Arc<NativeTask>>; TASKS] = [const { OnceLock::new() }; TASKS];
    let cells = match payload {
        Payload::Task => &SHAPING,
        Payload::Protocol => &CHECKING,
    };
    let compile = |text: &Option<String>| {
        let compiled = text.as_deref().map(Schema::compile).transpose();
        compiled.expect("schemas of built-in tasks are checked by a test")
    };
    let at = Task::ALL.iter().position(|known| *known == task);
    let cell = &cells[at.expect("every task is in the list of all")];
    let native = cell.get_or_init(|| {
        let builtin = BuiltinTask::for_payload(task, payload);
        let description = builtin.description();
        Arc::new(NativeTask {
            builtin,
            input: compile(&description.input_schema),
            output: compile(&description.output_schema),
        })
    });
    Arc::<NativeTask>::clone(native)
}

/// The task of this name.
pub(crate) fn task_named(name: &str) -> Option<Task> {
    Task::ALL.into_iter().find(|task| task.slug() == name)
}

/// True when a name is a built-in one of that role.
pub(crate) fn is_builtin(role: &str, name: &str) -> bool {
    match role {
        "task" => task_named(name).is_some(),
        "billing" => name == FORMULA,
        _ => infergate_core::routing::policy::BuiltinPolicy::NAMES.contains(&name),
    }
}

fn view(seen: BodyView<'_>) -> TaskBody {
    match seen {
        BodyView::Whole(body) => TaskBody::Whole(body.to_vec()),
        BodyView::Fields(fields) => TaskBody::Fields(fields.to_vec()),
    }
}

fn task_failure(error: TaskError) -> Failure {
    match error {
        TaskError::Rejected(rejection) => Failure::Rejected(rejection),
        TaskError::Broken(message) => Failure::Broken(message),
    }
}

impl TaskHandler for NativeTask {
    fn description(&self) -> &TaskDescription {
        self.builtin.description()
    }

    fn input_schema(&self) -> Option<&Schema> {
        self.input.as_ref()
    }

    fn output_schema(&self) -> Option<&Schema> {
        self.output.as_ref()
    }

    fn identity(&self) -> Option<&Arc<PluginIdentity>> {
        None
    }

    fn is_available(&self) -> bool {
        true
    }

    fn count_skipped(&self) {}

    fn report_invalid(&self, _: Caller<'_>, hook: &'static str, rule: &'static str) {
        let task = self.builtin.description().slug.as_str();
        tracing::error!(task, hook, rule, "a built-in task broke a rule");
    }

    fn prepare(&self, _: Caller<'_>, input: &PrepareInput<'_>) -> Result<PrepareResult, Failure> {
        let request = TaskRequest {
            model: input.model.to_owned(),
            content_type: input.content_type.to_owned(),
            body: view(input.body),
            attributes: input.attributes.to_vec(),
        };
        self.builtin.prepare(&request).map_err(task_failure)
    }

    fn finish(&self, _: Caller<'_>, answered: &FinishInput<'_>) -> Result<FinishResult, Failure> {
        let response = TaskResponse {
            status: answered.status,
            content_type: answered.content_type.to_owned(),
            body: view(answered.body),
            state: answered.state.to_vec(),
        };
        self.builtin.finish(&response).map_err(task_failure)
    }

    fn push(
        &self,
        _: Caller<'_>,
        state: &[u8],
        events: &[StreamEvent],
    ) -> Result<StreamResult, Failure> {
        self.builtin.push(state, events).map_err(Failure::Broken)
    }

    fn close(&self, _: Caller<'_>, state: &[u8], cut: bool) -> Result<StreamResult, Failure> {
        self.builtin.close(state, cut).map_err(Failure::Broken)
    }
}

/// `cost_per_infer + Σ coefficient × metric`.
struct NativeFormula;

/// The built-in formula.
pub(crate) fn formula() -> Arc<dyn BillingFormula> {
    Arc::new(NativeFormula)
}

impl BillingFormula for NativeFormula {
    fn identity(&self) -> Option<&Arc<PluginIdentity>> {
        None
    }

    fn price(
        &self,
        _: Caller<'_>,
        tariff: &Tariff,
        report: &UsageReport<'_>,
    ) -> Result<Charge, Failure> {
        Ok(billing::price(tariff, report))
    }

    fn estimate(
        &self,
        _: Caller<'_>,
        input: &[u8],
        output: &[u8],
    ) -> Result<Vec<(String, f64)>, Failure> {
        Ok(billing::estimate(input, output))
    }
}

/// A built-in policy.
struct NativePolicy(BuiltinPolicy);

/// A policy with when to ask it.
type NamedPolicy = (Arc<dyn RoutingPolicy>, RoutingMode);

/// The built-in policy of this name with these settings.
///
/// # Errors
/// Key of the wrong setting, and why.
pub(crate) fn policy(
    name: &str,
    settings: &serde_json::Map<String, serde_json::Value>,
) -> Option<Result<NamedPolicy, Vec<(String, String)>>> {
    let made = BuiltinPolicy::named(name, settings)?;
    Some(match made {
        Ok(policy) => {
            let mode = match policy.is_per_request() {
                true => RoutingMode::PerRequest,
                false => RoutingMode::Cached,
            };
            Ok((Arc::new(NativePolicy(policy)), mode))
        }
        Err(problems) => Err(problems.into_iter().map(|p| (p.path, p.message)).collect()),
    })
}

impl RoutingPolicy for NativePolicy {
    fn identity(&self) -> Option<&Arc<PluginIdentity>> {
        None
    }

    fn rank(
        &self,
        _: Option<Caller<'_>>,
        hints: &Hints,
        candidates: &[Candidate],
    ) -> Result<Vec<Choice>, Failure> {
        let choices = self.0.rank(hints, candidates);
        Ok(policy::complete_ranking(&choices, candidates))
    }
}

/// No policy: by tier, in the order of the list.
struct TierOrder;

/// The order of a model without a policy.
pub(crate) fn tiers() -> Arc<dyn RoutingPolicy> {
    Arc::new(TierOrder)
}

impl RoutingPolicy for TierOrder {
    fn identity(&self) -> Option<&Arc<PluginIdentity>> {
        None
    }

    fn rank(
        &self,
        _: Option<Caller<'_>>,
        _: &Hints,
        candidates: &[Candidate],
    ) -> Result<Vec<Choice>, Failure> {
        let mut choices: Vec<Choice> = candidates
            .iter()
            .map(|candidate| Choice {
                id: candidate.id,
                step: candidate.tier,
            })
            .collect();
        choices.sort_by_key(|choice| choice.step);
        Ok(policy::complete_ranking(&choices, candidates))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schemas_of_every_built_in_task_compile() {
        for payload in [Payload::Task, Payload::Protocol] {
            for each in Task::ALL {
                assert_eq!(task(each, payload).description().slug, each.slug());
            }
        }
    }
}
