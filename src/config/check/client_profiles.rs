//! `clients`: profiles by `x_client_id`, and the models that take the place of names.
//!
//! An account's permission for a model shows with the request.

use super::models::ModelNames;
use super::named_tasks::check_defaults;
use crate::config::document::Cursor;
use crate::config::problem::Problems;
use crate::config::structure::nearest;
use crate::state::Timeouts;

/// Members beside [`RESERVED`](infergate_core::model::RESERVED) that no profile fills in: the request itself, and what
/// the gateway reads for itself.
const NOT_DEFAULTS: [&str; 3] = ["messages", "x_client_id", "x_priority"];

pub fn check(
    root: &Cursor<'_>,
    names: &ModelNames,
    problems: &mut Problems,
    warnings: &mut Problems,
) {
    let tasks = root.list("tasks");
    let tasks: Vec<&str> = tasks.iter().filter_map(|task| task.text_of("id")).collect();
    let ceiling = root
        .key("timeouts")
        .and_then(|timeouts| timeouts.number_of("ceiling_secs"))
        .unwrap_or(Timeouts::default().ceiling_secs);
    let models = root.list("models");
    let has_processes = models.iter().any(|model| model.key("process").is_some());
    let mut former: Vec<(String, String)> = Vec::new();
    for profile in root.list("clients") {
        check_pattern(&profile, &mut former, problems, warnings);
        check_models(&profile, names, &tasks, problems);
        check_defaults(&profile, "defaults", problems);
        for (name, value) in profile.entries("defaults") {
            if NOT_DEFAULTS.contains(&name) {
                problems.add(value.problem(format!(
                    "`{name}` is the request's own: it cannot be a parameter"
                )));
            }
        }
        let secs = profile.number_of("timeout_secs");
        if let Some(timeout) = profile.key("timeout_secs")
            && secs.is_some_and(|secs| secs >= ceiling)
        {
            warnings.add(timeout.problem(format!(
                "has no effect: timeouts.ceiling_secs ({ceiling}) ends requests by then"
            )));
        }
        for key in ["cooldown_secs", "keep_alive_secs"] {
            if let Some(value) = profile.key(key).filter(|_| !has_processes) {
                warnings.add(value.problem("has no effect: no model has a `process`"));
            }
        }
    }
}

fn check_pattern(
    profile: &Cursor<'_>,
    former: &mut Vec<(String, String)>,
    problems: &mut Problems,
    warnings: &mut Problems,
) {
    let Some(pattern) = profile.key("client_id") else {
        return;
    };
    let Some(text) = pattern.text() else { return };
    let stem = text.strip_suffix('*').unwrap_or(text);
    if stem.contains('*') {
        problems.add(pattern.problem(format!(
            "{text:?}: a glob `*` may stand at the end only, as in \"tagger*\""
        )));
        return;
    }
    let covers = |own: &str| match own.strip_suffix('*') {
        Some(prefix) => stem.starts_with(prefix),
        None => false,
    };
    if let Some((_, path)) = former.iter().find(|(own, _)| own == text) {
        problems.add(pattern.problem(format!(
            "{text:?} already stands at `{path}`: remove one of them"
        )));
    } else if let Some((own, path)) = former.iter().find(|(own, _)| covers(own)) {
        warnings.add(pattern.problem(format!(
            "never used: {own:?} at `{path}` matches first; move this one before it"
        )));
    }
    former.push((text.to_owned(), pattern.path.clone()));
}

fn check_models(profile: &Cursor<'_>, names: &ModelNames, tasks: &[&str], problems: &mut Problems) {
    for (name, model) in profile.entries("model") {
        let Some(text) = model.text() else { continue };
        let fault = if name.is_empty() {
            "a name must not be empty: write the one that clients use".to_owned()
        } else if name == text {
            format!("{text:?} stands for itself: remove it, or name another model")
        } else if let Some(id) = names.id_of_alias(text) {
            format!("{text:?} is an alias: write the model's id, {id:?}")
        } else if names.has(text) || tasks.contains(&text) {
            continue;
        } else {
            let known = names.ids().chain(tasks.iter().copied());
            match nearest(text, known) {
                Some(near) => format!("no model is called {text:?}: did you mean {near:?}?"),
                None => format!(
                    "no model is called {text:?}: add it under `models`, or correct the name"
                ),
            }
        };
        problems.add(model.problem(fault));
    }
}

#[cfg(test)]
mod tests {
    use crate::config::parse;

    const MODELS: &str = r#"
listen: { clients: [{ address: "127.0.0.1:8080" }] }
anonymous: allow
models:
  - { id: a, task: text-generation, backend: openai, aliases: [first], endpoints: [{ url: "http://127.0.0.1:1" }] }
  - { id: b, task: text-generation, backend: openai, endpoints: [{ url: "http://127.0.0.1:2" }] }
tasks: [{ id: chat, candidates: [a, b] }]
"#;

    /// Paths of problems and of warnings.
    fn found(clients: &str) -> (Vec<String>, Vec<String>) {
        let paths = |found: Vec<crate::config::Problem>| {
            let paths = found.into_iter().map(|problem| problem.path);
            paths.collect::<Vec<String>>()
        };
        match parse(&format!("{MODELS}clients: [{clients}]\n"), &|_: &str| None) {
            Ok(loaded) => (Vec::new(), paths(loaded.warnings)),
            Err(problems) => (paths(problems), Vec::new()),
        }
    }

    #[test]
    fn a_profile_names_models_and_tasks_and_has_a_pattern_of_its_own() {
        let good = "{ client_id: 'tagger*', model: { gpt-4: a, x/y: chat, a: b }, priority: 9, defaults: { temperature: 0 }, timeout_secs: 20 }, { client_id: '*' }";
        assert_eq!(found(good), (Vec::new(), Vec::new()));
        for (profile, at) in [
            ("{ priority: 1 }", "client_id"),
            ("{ client_id: '' }", "client_id"),
            ("{ client_id: 't*x' }", "client_id"),
            ("{ client_id: '**' }", "client_id"),
            ("{ client_id: t, model: { x: none } }", "model.x"),
            ("{ client_id: t, model: { x: first } }", "model.x"),
            ("{ client_id: t, model: { a: a } }", "model.a"),
            ("{ client_id: t, model: { '': a } }", "model[\"\"]"),
            ("{ client_id: t, priority: 10 }", "priority"),
            ("{ client_id: t, timeout_secs: 0 }", "timeout_secs"),
            ("{ client_id: t, keep_alive_secs: -2 }", "keep_alive_secs"),
            ("{ client_id: t, cooldown_secs: 0 }", "cooldown_secs"),
            ("{ client_id: t, timeout: 5 }", "timeout"),
            ("{ client_id: t, defaults: { model: x } }", "defaults.model"),
            (
                "{ client_id: t, defaults: { messages: [] } }",
                "defaults.messages",
            ),
            (
                "{ client_id: t, defaults: { stream: true } }",
                "defaults.stream",
            ),
            (
                "{ client_id: t, defaults: { x_priority: 0 } }",
                "defaults.x_priority",
            ),
        ] {
            let (problems, _) = found(profile);
            assert_eq!(problems, [format!("clients[0].{at}")], "{profile}");
        }
        let (problems, _) = found("{ client_id: 't*' }, { client_id: u }, { client_id: 't*' }");
        assert_eq!(problems, ["clients[2].client_id"]);
    }

    #[test]
    fn what_has_no_effect_is_a_warning() {
        for (profiles, at) in [
            (
                "{ client_id: 't*' }, { client_id: tagger }",
                "clients[1].client_id",
            ),
            (
                "{ client_id: '*' }, { client_id: 't*' }",
                "clients[1].client_id",
            ),
            (
                "{ client_id: t, timeout_secs: 240 }",
                "clients[0].timeout_secs",
            ),
            (
                "{ client_id: t, cooldown_secs: 60 }",
                "clients[0].cooldown_secs",
            ),
            (
                "{ client_id: t, keep_alive_secs: 1 }",
                "clients[0].keep_alive_secs",
            ),
        ] {
            assert_eq!(
                found(profiles),
                (Vec::new(), vec![at.to_owned()]),
                "{profiles}"
            );
        }
    }
}
