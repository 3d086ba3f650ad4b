//! Models that run on the endpoints of others: `base` and `trainer` name a model that is fit for it.
//!
//! Models that are not well-formed themselves are skipped.

use std::collections::HashMap;

use infergate_core::model::EndpointSpec;

use super::models::ModelNames;
use crate::config::document::Cursor;
use crate::config::problem::Problems;
use crate::config::structure::nearest;

/// Models by id.
type ModelCursors<'a, 'b> = HashMap<&'b str, &'b Cursor<'a>>;

pub fn check(
    root: &Cursor<'_>,
    names: &ModelNames,
    problems: &mut Problems,
    warnings: &mut Problems,
) {
    let models = root.list("models");
    let named = models
        .iter()
        .filter_map(|model| Some((model.text_of("id")?, model)));
    let by_id: ModelCursors<'_, '_> = named.collect();
    for model in &models {
        if let Some(trainer) = model.key("trainer") {
            check_trainer((model, &trainer), &by_id, names, problems);
            if root.key("jobs").is_none() {
                let missing =
                    "trainings are jobs, and none are kept: add `jobs: {}` to the configuration";
                warnings.add(trainer.problem(missing));
            }
        }
        if let Some(base) = model.key("base") {
            check_base((model, &base), &by_id, names, problems);
        }
    }
}

/// Finds the model that `named` names by its id.
fn find<'a, 'b>(
    named: &Cursor<'_>,
    by_id: &ModelCursors<'a, 'b>,
    names: &ModelNames,
    problems: &mut Problems,
) -> Option<&'b Cursor<'a>> {
    let text = named.text()?;
    if let Some(found) = by_id.get(text) {
        return Some(found);
    }
    let fault = match (
        names.id_of_alias(text),
        nearest(text, by_id.keys().copied()),
    ) {
        (Some(id), _) => format!("{text:?} is an alias: write the model's id, {id:?}"),
        (None, Some(near)) => format!("no model is called {text:?}: did you mean {near:?}?"),
        (None, None) => {
            format!("no model is called {text:?}: add it under `models`, or correct the name")
        }
    };
    problems.add(named.problem(fault));
    None
}

fn check_trainer(
    (model, trainer): (&Cursor<'_>, &Cursor<'_>),
    by_id: &ModelCursors<'_, '_>,
    names: &ModelNames,
    problems: &mut Problems,
) {
    let Some(found) = find(trainer, by_id, names, problems) else {
        return;
    };
    let (own, other) = (model.text_of("id"), trainer.text());
    // A model may train itself; two that train each other are a mistake.
    if own != other && leads_to(found, own, by_id, |model| model.key("trainer")) {
        let (own, other) = (own.unwrap_or_default(), other.unwrap_or_default());
        problems.add(trainer.problem(format!(
            "a circle: the trainers of {other:?} lead to {own:?}, and this one leads back: remove one of them"
        )));
    }
    let reason = format!(
        "is the trainer at `{}`, and its servers run one training at a time",
        trainer.path
    );
    check_permits(found, &reason, problems);
}

fn check_base(
    (model, base): (&Cursor<'_>, &Cursor<'_>),
    by_id: &ModelCursors<'_, '_>,
    names: &ModelNames,
    problems: &mut Problems,
) {
    for key in ["endpoints", "discovery"] {
        if let Some(own) = model.key(key) {
            problems.add(own.problem(
                "a model with `base` runs on the endpoints of its base: remove this key, or `base`",
            ));
        }
    }
    let Some(name) = base.key("model") else {
        return;
    };
    let Some(found) = find(&name, by_id, names, problems) else {
        return;
    };
    let own = model.text_of("id");
    if found.key("base").is_some() {
        let fault = match leads_to(found, own, by_id, |model| model.key("base")?.key("model")) {
            true => {
                "a circle: a model is not the base of its own base: name a model with endpoints"
            }
            false => "this model has a base itself: name the one with the endpoints",
        };
        problems.add(name.problem(fault));
        return;
    }
    if let (Some(wanted), Some(has)) = (found.text_of("backend"), model.text_of("backend"))
        && wanted != has
        && let Some(key) = model.key("backend")
    {
        problems.add(key.problem(format!(
            "the servers of the base speak `{wanted}`: write that here too"
        )));
    }
    let reason = format!(
        "is the base at `{}`, and its servers exchange their weights between two requests",
        base.path
    );
    check_permits(found, &reason, problems);
    for endpoint in &found.list("endpoints") {
        if endpoint.text_of("permits") == Some("model")
            && let Some(key) = endpoint.key("permits")
        {
            problems.add(key.problem(format!(
                "this model {reason}: models with other weights have to share the permit: remove the key"
            )));
        }
    }
}

/// Every endpoint of the model has one permit.
fn check_permits(model: &Cursor<'_>, reason: &str, problems: &mut Problems) {
    let default = u64::from(EndpointSpec::default_max_concurrent_requests());
    let discovery = model.key("discovery");
    for place in model.list("endpoints").iter().chain(&discovery) {
        let permits = place
            .number_of("max_concurrent_requests")
            .unwrap_or(default);
        if permits != 1 {
            let key = place.key("max_concurrent_requests");
            problems.add(key.as_ref().unwrap_or(place).problem(format!(
                "{permits} permits, but this model {reason}: write `max_concurrent_requests: 1`"
            )));
        }
    }
}

/// Returns whether a chain of models leads from one to the model `to`. Each is looked at once.
fn leads_to<'a>(
    from: &Cursor<'a>,
    to: Option<&str>,
    by_id: &ModelCursors<'a, '_>,
    next: impl Fn(&Cursor<'a>) -> Option<Cursor<'a>>,
) -> bool {
    let mut at = from.text_of("id");
    let mut steps = 0;
    while let Some(id) = at
        && steps <= by_id.len()
    {
        if Some(id) == to {
            return true;
        }
        steps += 1;
        let named = by_id.get(id).and_then(|model| next(model));
        at = named
            .as_ref()
            .and_then(Cursor::text)
            .and_then(|id| by_id.get_key_value(id))
            .map(|(id, _)| *id);
    }
    false
}
