//! `tasks`: names of their own, whose candidates are models of one task.
//!
//! Found in the order of the file. Whether a candidate is loaded shows while running.

use std::collections::HashMap;

use infergate_core::model::RESERVED;

use super::models::ModelNames;
use super::names::name_fault;
use crate::config::document::Cursor;
use crate::config::problem::Problems;
use crate::config::structure::nearest;
use crate::state::Timeouts;

pub fn check(
    root: &Cursor<'_>,
    names: &ModelNames,
    problems: &mut Problems,
    warnings: &mut Problems,
) {
    let ceiling = root
        .key("timeouts")
        .and_then(|timeouts| timeouts.number_of("ceiling_secs"))
        .unwrap_or(Timeouts::default().ceiling_secs);
    let kinds: HashMap<String, String> = root
        .list("models")
        .iter()
        .filter_map(|model| Some((model.text_of("id")?.into(), model.text_of("task")?.into())))
        .collect();
    let mut taken: HashMap<String, String> = HashMap::new();
    for task in root.list("tasks") {
        check_id(&task, names, &mut taken, problems);
        check_candidates(&task, names, &kinds, problems);
        check_defaults(&task, "defaults", problems);
        if let Some(budget) = task.key("budget_secs")
            && task
                .number_of("budget_secs")
                .is_some_and(|secs| secs > ceiling)
        {
            warnings.add(budget.problem(format!(
                "above timeouts.ceiling_secs ({ceiling}): requests end at the ceiling"
            )));
        }
    }
}

fn check_id(
    task: &Cursor<'_>,
    names: &ModelNames,
    taken: &mut HashMap<String, String>,
    problems: &mut Problems,
) {
    let Some(id) = task.key("id") else { return };
    let Some(text) = id.text() else { return };
    if let Some(fault) = name_fault(text, &['*', '?', '#', '%']) {
        problems.add(id.problem(fault));
    } else if names.has(text) {
        problems.add(id.problem(format!(
            "a model has the id {text:?} already: clients could not tell them apart, rename one"
        )));
    } else if let Some(of) = names.id_of_alias(text) {
        problems.add(id.problem(format!(
            "{text:?} is an alias of {of:?} already: remove the alias, or rename the task"
        )));
    } else if let Some(first) = taken.insert(text.to_owned(), id.path.clone()) {
        problems.add(id.problem(format!("{text:?} already stands at `{first}`: rename one")));
    }
}

fn check_candidates(
    task: &Cursor<'_>,
    names: &ModelNames,
    kinds: &HashMap<String, String>,
    problems: &mut Problems,
) {
    let candidates = task.list("candidates");
    let known: Vec<&str> = candidates.iter().filter_map(Cursor::text).collect();
    let kind = known.iter().find_map(|id| kinds.get(*id));
    for (at, candidate) in candidates.iter().enumerate() {
        let Some(text) = candidate.text() else {
            continue;
        };
        let own = kinds.get(text);
        let fault = if let Some(id) = names.id_of_alias(text) {
            format!("{text:?} is an alias: write the model's id, {id:?}")
        } else if !names.has(text) {
            unknown(text, names)
        } else if known[..at.min(known.len())].contains(&text) {
            format!("{text:?} is a candidate already: remove one of them")
        } else if let (Some(own), Some(kind)) = (own, kind)
            && own != kind
        {
            format!("{text:?} does {own} and the candidates before it {kind}: all do the same")
        } else {
            continue;
        };
        problems.add(candidate.problem(fault));
    }
}

fn unknown(text: &str, names: &ModelNames) -> String {
    match nearest(text, names.ids()) {
        Some(near) => format!("no model is called {text:?}: did you mean {near:?}?"),
        None => format!("no model is called {text:?}: add it under `models`, or correct the name"),
    }
}

/// Defaults are the caller's to send; what the gateway reads and writes itself is not among them.
pub(super) fn check_defaults(of: &Cursor<'_>, key: &str, problems: &mut Problems) {
    for (name, value) in of.entries(key) {
        if RESERVED.contains(&name) {
            problems.add(value.problem(format!(
                "`{name}` is written by the gateway: it cannot be a parameter"
            )));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::parse;

    fn problems(tasks: &str) -> Vec<String> {
        let text = format!(
            r#"
listen: {{ clients: [{{ address: "127.0.0.1:8080" }}] }}
anonymous: allow
models:
  - {{ id: a, task: text-generation, backend: openai, aliases: [first], endpoints: [{{ url: "http://127.0.0.1:1" }}] }}
  - {{ id: b, task: text-generation, backend: openai, endpoints: [{{ url: "http://127.0.0.1:2" }}] }}
  - {{ id: e, task: text-embeddings, backend: openai, endpoints: [{{ url: "http://127.0.0.1:3" }}] }}
tasks: [{tasks}]
"#
        );
        match parse(&text, &|_: &str| None) {
            Ok(_) => Vec::new(),
            Err(found) => found.into_iter().map(|problem| problem.path).collect(),
        }
    }

    #[test]
    fn candidates_are_models_of_one_task_and_names_are_taken_once() {
        let good = "{ id: chat, candidates: [a, b], budget_secs: 20, keep_alive_secs: -1, pin_primary: true, defaults: { temperature: 0 } }, { id: one, candidates: [e] }";
        assert_eq!(problems(good), Vec::<String>::new());
        for (task, paths) in [
            ("{ id: a, candidates: [b] }", &["id"][..]),
            ("{ id: first, candidates: [b] }", &["id"]),
            ("{ id: 'a b', candidates: [b] }", &["id"]),
            ("{ id: c, candidates: [] }", &["candidates"]),
            ("{ id: c }", &["candidates"]),
            ("{ id: c, candidates: [x] }", &["candidates[0]"]),
            ("{ id: c, candidates: [first] }", &["candidates[0]"]),
            ("{ id: c, candidates: [a, a] }", &["candidates[1]"]),
            ("{ id: c, candidates: [a, e] }", &["candidates[1]"]),
            (
                "{ id: c, candidates: [a], defaults: { stream: true } }",
                &["defaults.stream"],
            ),
            (
                "{ id: c, candidates: [a], budget_secs: 0 }",
                &["budget_secs"],
            ),
        ] {
            let expected: Vec<String> = paths.iter().map(|at| format!("tasks[0].{at}")).collect();
            assert_eq!(problems(task), expected, "{task}");
        }
        let twice = "{ id: c, candidates: [a] }, { id: c, candidates: [b] }";
        assert_eq!(problems(twice), ["tasks[1].id"]);
    }
}
