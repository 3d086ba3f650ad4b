//! Models that run on the endpoints of others: `base` and `trainer` name a model that is fit for it.
//!
//! Models that are not well-formed themselves are skipped.

use std::collections::{BTreeMap, HashMap, HashSet};

use infergate_core::model::EndpointSpec;

use super::models::ModelNames;
use crate::config::document::Cursor;
use crate::config::problem::Problems;
use crate::config::structure::nearest;
use crate::upstream::{Backend, backend};

/// Models by id.
type ModelCursors<'a, 'b> = HashMap<&'b str, &'b Cursor<'a>>;

/// Models that others run on, each with what has to be said of it once: its path, and why it has one permit.
type SinglePermits<'a, 'b> = BTreeMap<&'b str, (&'b Cursor<'a>, String)>;

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
    let (mut single, mut bases) = (SinglePermits::new(), HashSet::new());
    for model in &models {
        if let Some(trainer) = model.key("trainer") {
            check_trainer((model, &trainer), &by_id, names, problems);
            if let Some((id, found)) = trainer.text().and_then(|id| by_id.get_key_value(id)) {
                let reason = format!(
                    "is the trainer at `{}`, and its servers run one training at a time",
                    trainer.path
                );
                single.entry(id).or_insert((found, reason));
            }
            if root.key("jobs").is_none() {
                let missing =
                    "trainings are jobs, and none are kept: add `jobs: {}` to the configuration";
                warnings.add(trainer.problem(missing));
            }
        }
        if let Some(base) = model.key("base") {
            check_base((model, &base), &by_id, names, problems);
            let name = base.key("model");
            let name = name.as_ref().and_then(Cursor::text);
            if let Some((id, found)) = name.and_then(|id| by_id.get_key_value(id)) {
                check_shared_permits(found, &base, &mut bases, problems);
                let reason = format!(
                    "is the base at `{}`, and its servers exchange their weights between two requests",
                    base.path
                );
                single.entry(id).or_insert((found, reason));
            }
        }
    }
    for (found, reason) in single.values() {
        check_permits(found, reason, problems);
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
    let kind = found.text_of("backend").and_then(backend);
    if kind.is_some_and(Backend::names_runs) {
        problems.add(trainer.problem(
            "trainings are not posted to servers of backend `cog` yet: name a trainer of another backend",
        ));
    }
    let (own, other) = (model.text_of("id"), trainer.text());
    // A model may train itself; two that train each other are a mistake.
    if own != other && leads_to(found, own, by_id, |model| model.key("trainer")) {
        let (own, other) = (own.unwrap_or_default(), other.unwrap_or_default());
        problems.add(trainer.problem(format!(
            "a circle: the trainers of {other:?} lead to {own:?}, and this one leads back: remove one of them"
        )));
    }
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
}

/// Models with other weights share the permits of their base.
fn check_shared_permits(
    found: &Cursor<'_>,
    base: &Cursor<'_>,
    checked: &mut HashSet<String>,
    problems: &mut Problems,
) {
    if !checked.insert(found.path.clone()) {
        return;
    }
    for endpoint in &found.list("endpoints") {
        if endpoint.text_of("permits") == Some("model")
            && let Some(key) = endpoint.key("permits")
        {
            problems.add(key.problem(format!(
                "this model is the base at `{}`, whose models share the permit: remove the key",
                base.path
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

#[cfg(test)]
mod tests {
    use crate::config::parse;

    /// Returns the faults of these models and the warnings about them, by place.
    fn found(models: &[&str], more: &str) -> Vec<(String, String)> {
        let head = "listen: { clients: [{ address: \"127.0.0.1:8080\" }] }\nanonymous: allow\n";
        let models: String = models
            .iter()
            .map(|model| match model.contains("task:") {
                true => format!("  - {{ {model} }}\n"),
                false => format!("  - {{ task: dumb-pipe, {model} }}\n"),
            })
            .collect();
        let parsed = parse(&format!("{head}{more}models:\n{models}"), &|_: &str| None);
        let found = match parsed {
            Ok(loaded) => loaded.warnings,
            Err(problems) => problems,
        };
        // Short names will do here.
        let others = found
            .iter()
            .filter(|it| !it.message.contains("by version id only"));
        let pair = |problem: &crate::config::Problem| (problem.path.clone(), problem.to_string());
        others.map(pair).collect()
    }

    const ONE: &str =
        "backend: http, endpoints: [{ url: \"http://a:1\", max_concurrent_requests: 1 }]";
    const OTHER: &str =
        "backend: http, endpoints: [{ url: \"http://b:1\", max_concurrent_requests: 1 }]";
    const WEIGHTS: &str = "backend: http, base: { model: b, weights: w }";

    fn has(models: &[&str], path: &str, words: &str) {
        let found = found(models, "jobs: {}\n");
        let is_found = |(at, text): &(String, String)| at == path && text.contains(words);
        assert!(
            found.iter().any(is_found),
            "no {path}: {words} in {found:?}"
        );
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn weights_and_trainings_on_servers_of_one_permit_are_fine() {
        let models = [
            &format!("id: b, {ONE}, trainer: b"),
            &format!("id: s, {WEIGHTS}, trainer: t"),
            &format!("id: t, {OTHER}"),
        ];
        let models = models.map(String::as_str);
        assert_eq!(found(&models, "jobs: {}\n"), []);
        let without = found(&models, "");
        assert_eq!(without.len(), 2, "{without:?}");
        assert_eq!(without[0].0, "models[0].trainer");
    }

    #[test]
    fn a_trainer_is_a_model_that_is_known_and_not_trained_in_turn() {
        let alias = format!("id: t, aliases: [u], {ONE}");
        let trained = |by: &str| format!("id: m, {OTHER}, trainer: {by}");
        has(
            &[&alias, &trained("x")],
            "models[1].trainer",
            "no model is called",
        );
        has(&[&alias, &trained("u")], "models[1].trainer", "is an alias");
        let back = format!("id: t, {ONE}, trainer: m");
        let circle = found(&[&back, &trained("t")], "jobs: {}\n");
        assert!(
            circle.iter().all(|(_, text)| text.contains("a circle")),
            "{circle:?}"
        );
        assert_eq!(circle.len(), 2);
    }

    #[test]
    fn a_base_is_a_model_with_endpoints_of_one_permit_each() {
        let weights = format!("id: s, {WEIGHTS}");
        let more = format!("id: r, {WEIGHTS}");
        let base = |endpoint: &str| {
            format!("id: b, backend: http, endpoints: [{{ url: \"http://a:1\"{endpoint} }}]")
        };
        has(
            &[&weights, &format!("id: c, {ONE}")],
            "models[0].base.model",
            "no model is called",
        );
        let all = [&*weights, &*more, &*base("")];
        has(&all, "models[2].endpoints[0]", "4 permits");
        let all = [&*weights, &*more, &*base(", max_concurrent_requests: 2")];
        has(
            &all,
            "models[2].endpoints[0].max_concurrent_requests",
            "2 permits",
        );
        let all = [
            &*weights,
            &*more,
            &*base(", max_concurrent_requests: 1, permits: model"),
        ];
        has(&all, "models[2].endpoints[0].permits", "share the permit");
        let one = format!("id: b, {ONE}");
        let own = format!("{weights}, endpoints: []");
        has(
            &[&one, &own],
            "models[1].endpoints",
            "the endpoints of its base",
        );
        let text = |id: &str, backend: &str| format!("task: text-generation, id: {id}, {backend}");
        let base = text("b", &ONE.replace("backend: http", "backend: openai"));
        let speaks = text("s", &WEIGHTS.replace("backend: http", "backend: tgi"));
        has(
            &[&base, &speaks],
            "models[1].backend",
            "the base speak `openai`",
        );
        let chain = "id: r, backend: http, base: { model: s, weights: v }";
        has(
            &[&one, &weights, chain],
            "models[2].base.model",
            "has a base itself",
        );
        let own = "id: s, backend: http, base: { model: s, weights: v }";
        has(&[&one, own], "models[1].base.model", "a circle");
    }
}
