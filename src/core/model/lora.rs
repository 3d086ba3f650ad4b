//! Adapter of a request: which finetune of the model its `lora` names, if the account may use that.
//!
//! Files are not looked at: the shell refuses a finetune that lacks one. Called for requests with a `lora` alone.

use super::finetune::FinetuneSpec;
use super::process::AdapterSpec;
use super::spec::ModelSpec;
use crate::AccountId;

/// Adapter that a request's `lora` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoraChoice<'a> {
    /// A finetune, with its place among those of the model.
    Finetune(usize, &'a FinetuneSpec),
    /// An adapter that the model's process loads, of a model without finetunes.
    Loaded(&'a AdapterSpec),
    /// A member like any other: the model has no finetunes, and its task no adapters.
    Member,
    /// No adapter that the account may use; that of another account is as good as none.
    Unknown,
}

/// Returns what `lora` of a request of `account` names at a model. An id goes before a name.
pub fn choose_lora<'a>(model: &'a ModelSpec, lora: &str, account: &AccountId) -> LoraChoice<'a> {
    let open = || {
        let all = model.finetunes.iter().enumerate();
        all.filter(move |(_, finetune)| finetune.is_open_to(account))
    };
    let by_id = open().find(|(_, finetune)| *finetune.id == *lora);
    let found = by_id.or_else(|| open().find(|(_, finetune)| **finetune.name() == *lora));
    if let Some((place, finetune)) = found {
        return LoraChoice::Finetune(place, finetune);
    }
    if !model.finetunes.is_empty() {
        return LoraChoice::Unknown;
    }
    let mut loaded = model.process.iter().flat_map(|process| &process.adapters);
    match loaded.find(|adapter| *adapter.name == *lora) {
        Some(adapter) => LoraChoice::Loaded(adapter),
        None if model.task.has_adapters() => LoraChoice::Unknown,
        None => LoraChoice::Member,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn model(task: &str, more: &Value) -> ModelSpec {
        let mut spec = json!({ "id": "m", "task": task, "backend": "vllm" });
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        serde_json::from_value(spec).unwrap()
    }

    fn adapter(model: &ModelSpec, lora: &str, account: &str) -> Option<String> {
        match choose_lora(model, lora, &account.into()) {
            LoraChoice::Finetune(place, finetune) => {
                assert_eq!(model.finetunes[place], *finetune);
                Some(finetune.adapter().to_string())
            }
            LoraChoice::Loaded(adapter) => Some(adapter.name.to_string()),
            LoraChoice::Member | LoraChoice::Unknown => None,
        }
    }

    #[test]
    fn a_finetune_is_found_by_id_or_name_by_accounts_that_may_use_it() {
        let model = model(
            "text-generation",
            &json!({ "finetunes": [
                { "id": "f-1", "name": "sql", "adapter": "sql-v2" },
                { "id": "f-2", "name": "tone", "accounts": ["a"] },
                { "id": "f-3", "name": "tone", "adapter": "tone-of-b", "accounts": ["b"] },
                { "id": "f-4" },
            ] }),
        );
        for (lora, account, expected) in [
            ("f-1", "a", Some("sql-v2")),
            ("sql", "b", Some("sql-v2")),
            ("f-2", "a", Some("tone")),
            ("tone", "a", Some("tone")),
            ("tone", "b", Some("tone-of-b")),
            ("f-4", "c", Some("f-4")),
            // Of others, and none at all.
            ("f-2", "b", None),
            ("f-3", "a", None),
            ("tone", "c", None),
            ("sql-v2", "a", None),
            ("SQL", "a", None),
            ("", "a", None),
        ] {
            assert_eq!(
                adapter(&model, lora, account).as_deref(),
                expected,
                "{lora} of {account}"
            );
            let is_unknown = choose_lora(&model, lora, &account.into()) == LoraChoice::Unknown;
            assert_eq!(is_unknown, expected.is_none(), "{lora} of {account}");
        }
    }

    #[test]
    fn an_id_goes_before_a_name() {
        let model = model(
            "text-generation",
            &json!({ "finetunes": [
                { "id": "one", "name": "two", "accounts": ["a"] },
                { "id": "two", "name": "three" },
            ] }),
        );
        assert_eq!(adapter(&model, "two", "a").as_deref(), Some("three"));
    }

    #[test]
    fn adapters_of_a_process_are_for_everyone_where_no_finetune_is_listed() {
        let process = json!({ "preset": "vllm", "adapters": [{ "name": "chat", "path": "p" }] });
        let plain = model("text-generation", &json!({ "process": process.clone() }));
        assert_eq!(adapter(&plain, "chat", "a").as_deref(), Some("chat"));
        assert_eq!(adapter(&plain, "other", "a"), None);
        let finetunes = json!([{ "id": "f", "adapter": "chat", "accounts": ["a"] }]);
        let listed = model(
            "text-generation",
            &json!({ "process": process, "finetunes": finetunes }),
        );
        assert_eq!(adapter(&listed, "chat", "a"), None);
        assert_eq!(adapter(&listed, "f", "a").as_deref(), Some("chat"));
    }

    #[test]
    fn a_model_without_any_refuses_it_where_its_task_has_adapters() {
        let choice = |task: &str, more: &Value| {
            choose_lora(&model(task, more), "x", &"a".into()) == LoraChoice::Unknown
        };
        let none = json!({});
        assert!(choice("text-generation", &none) && choice("image-text-to-text", &none));
        assert!(!choice("text-to-image", &none) && !choice("dumb-pipe", &none));
        assert!(choice(
            "text-to-image",
            &json!({ "finetunes": [{ "id": "f" }] })
        ));
    }
}
