//! `models[].finetunes`: names that each account can tell apart, accounts that exist, and servers with adapters.
//!
//! Files are looked at when the configuration is loaded, and for each request that names their finetune.

use std::collections::{HashMap, HashSet};

use infergate_core::model::Task;

use super::models::check_account_list;
use super::names::anonymous_allowed;
use crate::config::document::Cursor;
use crate::config::problem::Problems;
use crate::upstream::{BACKENDS, backend};

/// An id or a name that is taken.
struct TakenName<'a> {
    path: String,
    is_id: bool,
    accounts: Vec<&'a str>,
}

pub fn check(
    root: &Cursor<'_>,
    accounts: &HashSet<String>,
    problems: &mut Problems,
    warnings: &mut Problems,
) {
    let is_anonymous_allowed = anonymous_allowed(root);
    for model in root.list("models") {
        let finetunes = model.list("finetunes");
        if finetunes.is_empty() {
            continue;
        }
        check_backend(&model, problems);
        check_names(&finetunes, problems);
        for finetune in &finetunes {
            check_texts(finetune, problems);
            check_loaded(&model, finetune, warnings);
            check_account_list(
                (finetune, "accounts"),
                accounts,
                is_anonymous_allowed,
                problems,
                warnings,
            );
        }
    }
}

/// Servers of some kinds have no adapters that a request could choose.
fn check_backend(model: &Cursor<'_>, problems: &mut Problems) {
    let found = model.text_of("backend").and_then(backend);
    let (Some(found), Some(key)) = (found, model.key("finetunes")) else {
        return;
    };
    if model.text_of("task") == Some(Task::DumbPipe.slug()) {
        problems.add(key.problem(
            "requests to a `dumb-pipe` name none, for nobody reads them: remove it, or name the task",
        ));
        return;
    }
    if found.adapter_form.is_none() {
        let fit = BACKENDS.iter().filter(|row| row.adapter_form.is_some());
        let fit: Vec<&str> = fit.map(|row| row.name).collect();
        problems.add(key.problem(format!(
            "requests cannot choose an adapter by its name at backend `{}`: remove it, or use {}",
            found.name,
            fit.join(" or ")
        )));
    }
}

/// For each account an id or a name is that of one finetune.
fn check_names(finetunes: &[Cursor<'_>], problems: &mut Problems) {
    let mut taken: HashMap<&str, Vec<TakenName<'_>>> = HashMap::new();
    for finetune in finetunes {
        let accounts = finetune.list("accounts");
        let accounts: Vec<&str> = accounts.iter().filter_map(Cursor::text).collect();
        let id = finetune.text_of("id");
        for (key, is_id) in [("id", true), ("name", false)] {
            let Some(key) = finetune.key(key) else {
                continue;
            };
            let Some(text) = key.text().filter(|text| is_id || Some(*text) != id) else {
                continue;
            };
            let others = taken.entry(text).or_default();
            let meets = |other: &&TakenName<'_>| {
                (is_id && other.is_id) || have_common(&accounts, &other.accounts)
            };
            if let Some(first) = others.iter().find(meets) {
                problems.add(key.problem(format!(
                    "{text:?} already stands at `{}`: an id or a name is that of one finetune, for each account",
                    first.path
                )));
                continue;
            }
            others.push(TakenName {
                path: key.path.clone(),
                is_id,
                accounts: accounts.clone(),
            });
        }
    }
}

/// Returns whether an account may be in both lists, of which an empty one means every account.
fn have_common(one: &[&str], other: &[&str]) -> bool {
    one.is_empty() || other.is_empty() || one.iter().any(|account| other.contains(account))
}

fn check_texts(finetune: &Cursor<'_>, problems: &mut Problems) {
    let files = finetune.list("files");
    let names = ["id", "name", "adapter"].map(|key| finetune.key(key));
    for text in names.iter().flatten().chain(&files) {
        if text.text() == Some("") {
            problems.add(text.problem("must not be empty: remove it, or write what it stands for"));
        }
    }
}

/// A process loads the adapters that it is given, and no other.
fn check_loaded(model: &Cursor<'_>, finetune: &Cursor<'_>, warnings: &mut Problems) {
    let Some(process) = model.key("process") else {
        return;
    };
    // What a command loads is not known.
    if process.key("preset").is_none() {
        return;
    }
    let mut names = ["adapter", "name", "id"].into_iter();
    let Some(adapter) = names.find_map(|key| finetune.text_of(key)) else {
        return;
    };
    let loaded = process.list("adapters");
    if !loaded
        .iter()
        .any(|one| one.text_of("name") == Some(adapter))
    {
        warnings.add(finetune.problem(format!(
            "the process loads no adapter {adapter:?}: add it under `process.adapters`"
        )));
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Problem, parse};

    const BASE: &str = r#"
listen: { clients: [{ address: "127.0.0.1:8080" }] }
accounts: [{ id: a }, { id: b }]
models:
  - id: m
    task: text-generation
    endpoints: [{ url: "http://127.0.0.1:9001" }]
"#;

    fn found(backend: &str, finetunes: &str) -> (Vec<Problem>, Vec<Problem>) {
        found_in(BASE, backend, finetunes)
    }

    fn found_in(base: &str, backend: &str, finetunes: &str) -> (Vec<Problem>, Vec<Problem>) {
        let text = format!("{base}    backend: {backend}\n    finetunes: [{finetunes}]\n");
        match parse(&text, &|_: &str| None) {
            Ok(loaded) => (Vec::new(), loaded.warnings),
            Err(problems) => (problems, Vec::new()),
        }
    }

    fn paths(found: &[Problem]) -> Vec<&str> {
        let paths = found.iter().map(|one| one.path.as_str());
        paths
            .filter_map(|path| path.strip_prefix("models[0].finetunes"))
            .collect()
    }

    fn faults(finetunes: &str) -> Vec<String> {
        let (problems, _) = found("vllm", finetunes);
        paths(&problems).into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn an_id_or_a_name_is_that_of_one_finetune_for_each_account() {
        let none: [&str; 0] = [];
        for good in [
            "{ id: f }",
            "{ id: f, name: f }, { id: g, name: h }",
            "{ id: f, name: tone, accounts: [a] }, { id: g, name: tone, accounts: [b] }",
            "{ id: f, name: g, accounts: [a] }, { id: g, accounts: [b] }",
        ] {
            assert_eq!(faults(good), none, "{good}");
        }
        for (bad, path) in [
            ("{ id: f }, { id: f }", "[1].id"),
            (
                "{ id: f, accounts: [a] }, { id: f, accounts: [b] }",
                "[1].id",
            ),
            ("{ id: f, name: n }, { id: g, name: n }", "[1].name"),
            (
                "{ id: f, name: n, accounts: [a] }, { id: g, name: n }",
                "[1].name",
            ),
            ("{ id: f }, { id: g, name: f }", "[1].name"),
            ("{ id: f, name: g }, { id: g }", "[1].id"),
        ] {
            assert_eq!(faults(bad), [path], "{bad}");
        }
    }

    #[test]
    fn texts_are_not_empty_and_accounts_exist() {
        for (bad, path) in [
            ("{ id: \"\" }", "[0].id"),
            ("{ name: n }", "[0].id"),
            ("{ id: f, name: \"\" }", "[0].name"),
            ("{ id: f, adapter: \"\" }", "[0].adapter"),
            ("{ id: f, files: [\"\"] }", "[0].files[0]"),
            ("{ id: f, accounts: [c] }", "[0].accounts[0]"),
            ("{ id: f, path: x }", "[0].path"),
        ] {
            assert_eq!(faults(bad), [path], "{bad}");
        }
    }

    #[test]
    fn backends_whose_requests_choose_no_adapter_are_named() {
        let (problems, _) = found("llama-server", "{ id: f }");
        assert_eq!(paths(&problems), [""]);
        assert!(
            problems[0].message.contains("vllm or sglang"),
            "{problems:?}"
        );
        for good in ["openai", "vllm", "sglang", "tgi", "triton", "cog", "http"] {
            assert_eq!(paths(&found(good, "{ id: f }").0), [""; 0], "{good}");
        }
        for unread in ["triton", "cog", "http"] {
            let base = BASE.replace("text-generation", "dumb-pipe");
            assert_eq!(
                paths(&found_in(&base, unread, "{ id: f }").0),
                [""],
                "{unread}"
            );
        }
    }

    #[test]
    fn a_process_has_to_load_the_adapter() {
        let with = |adapters: &str| {
            let process = format!(
                "    process: {{ preset: vllm, model_path: m, adapters: [{adapters}] }}\n    vram: {{ mib: 1000 }}\n"
            );
            let base = BASE.replace(
                "    endpoints: [{ url: \"http://127.0.0.1:9001\" }]\n",
                &process,
            );
            let text =
                format!("{base}    backend: vllm\n    finetunes: [{{ id: f, adapter: x }}]\n");
            parse(&text, &|_: &str| None).unwrap().warnings
        };
        assert_eq!(paths(&with("{ name: x, path: p }")), [""; 0]);
        assert_eq!(paths(&with("{ name: f, path: p }")), ["[0]"]);
    }
}
