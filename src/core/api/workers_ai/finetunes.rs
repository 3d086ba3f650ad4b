//! Finetunes in the Workers AI API: those that an account may name by `lora`.
//!
//! Access to models is decided elsewhere: the caller hands in those that the account may use. A list does not tell of
//! absent files, which are the operator's to mend.

use serde::Serialize;

use super::catalog::envelope;
use crate::AccountId;
use crate::model::ModelSpec;

/// Finetunes that are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinetuneScope {
    /// All that the account may use.
    OfAccount,
    /// Finetunes that every account may use, of these.
    Public,
}

#[derive(Serialize)]
struct ListedFinetune<'a> {
    id: &'a str,
    model: &'a str,
    name: &'a str,
    description: &'static str,
    public: bool,
    created_at: &'a str,
    modified_at: &'a str,
}

/// `GET …/ai/finetunes`: finetunes of `models` for `account`, as of the moment `since`.
pub fn finetunes<'a>(
    models: impl Iterator<Item = &'a ModelSpec>,
    account: &AccountId,
    scope: FinetuneScope,
    since: &str,
) -> Vec<u8> {
    let of_model = |model: &'a ModelSpec| {
        let open = model.finetunes.iter().filter(|finetune| match scope {
            FinetuneScope::OfAccount => finetune.is_open_to(account),
            FinetuneScope::Public => finetune.is_public(),
        });
        let listed = open.map(|finetune| ListedFinetune {
            id: &finetune.id,
            model: model.id.as_str(),
            name: finetune.name(),
            description: "",
            public: finetune.is_public(),
            created_at: since,
            modified_at: since,
        });
        listed.collect::<Vec<_>>()
    };
    let result: Vec<_> = models.flat_map(of_model).collect();
    envelope(result, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn an_account_sees_its_own_and_the_public_ones() {
        let model = |id: &str, finetunes: Value| -> ModelSpec {
            let task = "text-generation";
            let spec = json!({ "id": id, "task": task, "backend": "vllm", "finetunes": finetunes });
            serde_json::from_value(spec).unwrap()
        };
        let models = [
            model(
                "one",
                json!([{ "id": "f", "name": "sql" }, { "id": "g", "accounts": ["a"] },
                       { "id": "h", "accounts": ["b"] }]),
            ),
            model("two", json!([{ "id": "f", "accounts": ["a", "b"] }])),
        ];
        let listed = |account: &str, scope| {
            let page = finetunes(
                models.iter(),
                &account.into(),
                scope,
                "2026-01-01T00:00:00Z",
            );
            let page: Value = serde_json::from_slice(&page).unwrap();
            assert_eq!(page["success"], true);
            let result = page["result"].as_array().unwrap().iter();
            let named = result.map(|one| format!("{}/{}", one["model"], one["name"]));
            named.collect::<Vec<_>>().join(" ").replace('"', "")
        };
        let own = FinetuneScope::OfAccount;
        assert_eq!(listed("a", own), "one/sql one/g two/f");
        assert_eq!(listed("b", own), "one/sql one/h two/f");
        assert_eq!(listed("c", own), "one/sql");
        assert_eq!(listed("a", FinetuneScope::Public), "one/sql");
        let page = finetunes(models.iter(), &"c".into(), own, "2026-01-01T00:00:00Z");
        let page: Value = serde_json::from_slice(&page).unwrap();
        assert_eq!(
            page["result"][0],
            json!({ "id": "f", "model": "one", "name": "sql", "description": "", "public": true,
                    "created_at": "2026-01-01T00:00:00Z", "modified_at": "2026-01-01T00:00:00Z" })
        );
    }
}
