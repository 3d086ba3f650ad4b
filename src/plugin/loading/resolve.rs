//! Resolves names in `models[].plugins` to slots: a declared plugin first, then a built-in one.
//!
//! Loads nothing. The last good revision of a model's plugin is the latest one in force for that model with a
//! good record. A revision that merely has not failed yet has no such record.

use std::collections::HashMap;
use std::sync::Arc;

use infergate_core::model::{ModelSpec, Payload, Task};

use crate::plugin::loading::settings::merged_settings;
use crate::plugin::loading::snapshot::{
    ModelSlots, PluginProblem, PluginSnapshot, native_routing, native_task, no_routing,
};
use crate::plugin::roles::billing::slot::BillingSlot;
use crate::plugin::roles::builtin;
use crate::plugin::roles::chain::FallbackChain;
use crate::plugin::roles::routing::slot::{RoutingMode, RoutingSlot};
use crate::plugin::roles::task::slot::TaskSlot;
use crate::plugin::roles::traits::{BillingFormula, RoutingPolicy, TaskHandler};
use crate::plugin::runtime::breaker::BreakerState;
use crate::plugin::runtime::revision::Revision;
use crate::plugin::spec::{PluginSpec, RankMode};
use crate::telemetry::event::PluginIdentity;

/// Resolves the models of one configuration.
pub struct Resolver<'a> {
    pub former: &'a PluginSnapshot,
    pub specs: &'a [PluginSpec],
    /// By plugin and settings.
    pub ready: &'a HashMap<(Arc<str>, String), Arc<Revision>>,
}

impl Resolver<'_> {
    /// Resolves the slots of a model.
    pub fn model(
        &self,
        at: usize,
        model: &ModelSpec,
        problems: &mut Vec<PluginProblem>,
    ) -> ModelSlots {
        let mut revisions = HashMap::new();
        let names = &model.plugins;
        let mut of = |role: &'static str, name: Option<&Arc<str>>| {
            let found = name.and_then(|name| self.revisions_of(role, name, model));
            if let Some((_, chain)) = &found {
                revisions.insert(role, chain.clone());
            }
            found
        };
        let (task, billing) = (
            of("task", names.task.as_ref()),
            of("billing", names.billing.as_ref()),
        );
        let routing = of("routing", names.routing.as_ref());
        problems.extend(task.as_ref().and_then(|(spec, chain)| {
            let place = self.specs.iter().position(|one| one.name == spec.name)?;
            missing_openai_decision(place, spec, chain.first()?, model)
        }));
        let openai = task.as_ref().and_then(|(spec, _)| spec.openai_answers);
        let task = task.map_or_else(
            || FallbackChain::native(native_task(model)),
            |(spec, chain)| FallbackChain {
                revisions: chain
                    .into_iter()
                    .map(|one| one as Arc<dyn TaskHandler>)
                    .collect(),
                builtin: builtin::task(model.task, model.backend.payload()),
                on_failure: spec.failure_policy(),
            },
        );
        let billing: FallbackChain<dyn BillingFormula> = billing.map_or_else(
            || FallbackChain::native(builtin::formula()),
            |(spec, chain)| FallbackChain {
                revisions: chain
                    .into_iter()
                    .map(|one| one as Arc<dyn BillingFormula>)
                    .collect(),
                builtin: builtin::formula(),
                on_failure: spec.failure_policy(),
            },
        );
        let routing = match routing {
            Some((spec, chain)) => plugin_routing(spec, chain, model),
            None => native_routing(model).unwrap_or_else(|wrong| {
                problems.extend(wrong.into_iter().map(|(path, message)| PluginProblem {
                    key: format!("models[{at}].routing.{path}"),
                    message,
                }));
                no_routing()
            }),
        };
        ModelSlots {
            task: TaskSlot::new(Arc::new(task), model).for_openai(openai),
            billing: BillingSlot {
                chain: Arc::new(billing),
            },
            routing,
            revisions,
        }
    }

    /// The declared plugin of that name and role, with its revisions in the order of the chain.
    fn revisions_of(
        &self,
        role: &'static str,
        name: &Arc<str>,
        model: &ModelSpec,
    ) -> Option<(&PluginSpec, Vec<Arc<Revision>>)> {
        let spec = self
            .specs
            .iter()
            .find(|spec| spec.name == *name && spec.world.role() == role)?;
        let own = match role {
            "routing" => merged_settings(spec, &model.routing),
            _ => merged_settings(spec, &serde_json::Map::new()),
        };
        // Absent: optional, and left out.
        let current = self.ready.get(&(Arc::clone(name), own))?;
        let mut chain = vec![Arc::clone(current)];
        let former = self.former.inner.models.get(&model.id);
        let before = former.and_then(|slots| slots.revisions.get(role));
        chain.extend(before.and_then(|before| last_good(spec, current, before)));
        Some((spec, chain))
    }
}

/// A task that shapes or counts answers, at a model whose OpenAI answers have no configured choice.
fn missing_openai_decision(
    place: usize,
    spec: &PluginSpec,
    current: &Revision,
    model: &ModelSpec,
) -> Option<PluginProblem> {
    let active = current.described.description.active;
    let hook = match (active.finish, active.events) {
        (true, _) => "`finish`",
        (false, true) => "`push` and `close`",
        (false, false) => return None,
    };
    let is_open = spec.openai_answers.is_none() && has_openai_api(model);
    is_open.then(|| PluginProblem {
        key: format!("plugins[{place}].openai_answers"),
        message: format!(
            "`{}` has {hook}, and clients reach the model `{}` by the OpenAI API too: write \
             `openai_answers: shape` where the plugin knows those answers, or \
             `openai_answers: pass` to have them neither edited nor counted by it",
            spec.name, model.id
        ),
    })
}

/// True when clients reach a model by the OpenAI API and not by `/ai/run` alone.
fn has_openai_api(model: &ModelSpec) -> bool {
    let is_of_tokens = matches!(model.task, Task::TextGeneration | Task::TextEmbeddings);
    is_of_tokens && model.backend.payload() == Payload::Protocol
}

/// The revision that stands in for `current`, of those the model had before.
fn last_good(
    spec: &PluginSpec,
    current: &Arc<Revision>,
    before: &[Arc<Revision>],
) -> Option<Arc<Revision>> {
    if !spec.last_good {
        return None;
    }
    let may_stand_in = |one: &&Arc<Revision>| {
        let PluginIdentity { name, sha256, .. } = &*one.parts.identity;
        let is_barred = |barred: &Arc<str>| barred.eq_ignore_ascii_case(sha256);
        *name == current.parts.identity.name && !spec.barred_sha256.iter().any(is_barred)
    };
    let others = before.iter().filter(|one| !Arc::ptr_eq(one, current));
    others
        .filter(may_stand_in)
        .find(|one| one.breaker_state() == BreakerState::Closed && one.has_good_record())
        .cloned()
}

fn plugin_routing(spec: &PluginSpec, chain: Vec<Arc<Revision>>, model: &ModelSpec) -> RoutingSlot {
    // A plugin that bears a built-in policy's name is replaced by that policy, as far as the settings
    // are its own; any other by the order of tiers.
    let builtin = match builtin::policy(&spec.name, &model.routing) {
        Some(Ok((ranker, _))) => ranker,
        _ => builtin::tiers(),
    };
    RoutingSlot {
        chain: Arc::new(FallbackChain {
            revisions: chain
                .into_iter()
                .map(|one| one as Arc<dyn RoutingPolicy>)
                .collect(),
            builtin,
            on_failure: spec.failure_policy(),
        }),
        mode: match spec.mode {
            RankMode::Cached => RoutingMode::Cached,
            RankMode::PerRequest => RoutingMode::PerRequest,
        },
    }
}
