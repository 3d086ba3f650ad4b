//! Adapter of a request: its `lora` as one of the model's finetunes, in the form of the model's servers.
//!
//! Not the choice, which is the core's. A request without `lora` costs two comparisons, and where the model has finetunes a
//! look at the members of its body.

use std::sync::Arc;

use infergate_core::api::{Barred, BarredFault, Call, body};
use infergate_core::model::{FinetuneSpec, LoraChoice, choose_lora};
use infergate_core::{AccountId, Refusal};
use serde_json::{Value, json};

use crate::pipeline::task::PreparedRequest;
use crate::state::LARGE_BYTES;
use crate::telemetry::off_the_worker;
use crate::upstream::{AdapterForm, ModelRuntime};

/// Member by which clients name an adapter.
const MEMBER: &str = "lora";

/// Adapter that a request may have.
pub struct RequestAdapter {
    /// Name at the servers.
    name: Arc<str>,
    /// For the member for it, of servers that have one: what the configuration says of a finetune with files.
    config: Option<Value>,
    form: AdapterForm,
}

/// Returns the adapter that a request names, if `account` may use it and its files are there.
///
/// # Errors
/// [`Refusal::NoSuchFinetune`], [`Refusal::FinetuneIncomplete`], [`Refusal::BadRequest`].
pub fn find_adapter(
    account: &AccountId,
    model: &ModelRuntime,
    call: &Call,
) -> Result<Option<RequestAdapter>, Refusal> {
    match model.spec.finetunes.is_empty() && !call.has_lora() {
        true => Ok(None),
        false => find_named(account, model, call),
    }
}

fn find_named(
    account: &AccountId,
    model: &ModelRuntime,
    call: &Call,
) -> Result<Option<RequestAdapter>, Refusal> {
    let (spec, form) = (&model.spec, model.backend.adapter_form);
    if let Some(form) = form.filter(|_| !spec.finetunes.is_empty()) {
        check_barred(call, form)?;
    }
    if !call.has_lora() {
        return Ok(None);
    }
    let Some(lora) = call.lora() else {
        // A member of another kind is the model's own, where the task has no adapters.
        let is_own = spec.finetunes.is_empty() && !spec.task.has_adapters();
        return is_own.then_some(None).ok_or_else(|| Refusal::BadRequest {
            pointer: "/lora".into(),
            message: "expected the id or the name of a finetune of this model".into(),
        });
    };
    let (name, config) = match choose_lora(spec, &lora, account) {
        LoraChoice::Member => return Ok(None),
        LoraChoice::Unknown => return Err(Refusal::NoSuchFinetune),
        LoraChoice::Loaded(adapter) => (&adapter.name, None),
        LoraChoice::Finetune(place, finetune) => {
            // Where another node has the servers, it has the files too.
            if !spec.endpoints.is_empty() && !model.finetune_files.are_present(place) {
                return Err(Refusal::FinetuneIncomplete);
            }
            (finetune.adapter(), config_of(finetune))
        }
    };
    let form = form.ok_or(Refusal::NoSuchFinetune)?;
    Ok(Some(RequestAdapter {
        name: Arc::clone(name),
        config,
        form,
    }))
}

/// Refuses what would name an adapter at the servers without a look at the finetunes.
fn check_barred(call: &Call, form: AdapterForm) -> Result<(), Refusal> {
    let is_large = call.body.len() >= LARGE_BYTES;
    let Some(Barred { pointer, fault }) = off_the_worker(is_large, || form.barred.find(call))
    else {
        return Ok(());
    };
    let message = match fault {
        BarredFault::Name(name) => format!(
            "`{name}` is not taken from clients: a finetune of this model is named by `lora`, in JSON to /ai/run/{}",
            call.model
        ),
        BarredFault::Unreadable => {
            "must be JSON as RFC 8259 has it, with names without U+0000: it could name an adapter"
                .to_owned()
        }
        BarredFault::Repeated => "`lora` stands twice in the body".to_owned(),
    };
    Err(Refusal::BadRequest { pointer, message })
}

/// Returns what a server is given beside the name of a finetune with files.
fn config_of(finetune: &FinetuneSpec) -> Option<Value> {
    let files = finetune.files.iter().map(|file| file.to_string_lossy());
    let files: Vec<_> = files.collect();
    let config = || json!({ "id": finetune.id, "name": finetune.name(), "files": files });
    (!files.is_empty()).then(config)
}

impl RequestAdapter {
    /// Puts the adapter where the model's servers take it, in place of `lora`.
    ///
    /// # Errors
    /// The body does not fit any more.
    pub fn apply(self, prepared: PreparedRequest) -> Result<PreparedRequest, Refusal> {
        let quoted = |member: &str, value: &Value| format!("{}:{value}", Value::from(member));
        let mut added: Vec<String> = Vec::new();
        if let Some(member) = self.form.member {
            added.push(quoted(member, &Value::from(&*self.name)));
        }
        if let (Some(member), Some(config)) = (self.form.config_member, &self.config) {
            added.push(quoted(member, config));
        }
        let before = prepared.call.body.as_ptr();
        let call = body::exchange_member(prepared.call, MEMBER, &added.join(","))?;
        let copied_bytes = match call.body.as_ptr() == before {
            true => prepared.copied_bytes,
            false => call.body.len() as u64,
        };
        Ok(PreparedRequest {
            call,
            copied_bytes,
            adapter: Some(self.name),
            ..prepared
        })
    }
}
