//! Finetune of a model: an adapter that requests name by `lora`, its files, and the accounts that may use it.
//!
//! Neither the choice of a request, which is `lora`'s, nor a look at the files, which is the shell's. The fields are the
//! keys under `models[].finetunes[]`.

use std::path::PathBuf;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::AccountId;

/// Finetune of a model: an adapter (LoRA) that its servers have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FinetuneSpec {
    /// Id, by which requests name it in `lora`.
    #[schemars(length(min = 1))]
    pub id: Arc<str>,
    /// Another name for requests; the id when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Arc<str>>,
    /// Name of the adapter at the model's servers; that of the finetune when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<Arc<str>>,
    /// Files of the adapter, seen from the folder of this file. While one is missing, requests are refused.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub files: Vec<PathBuf>,
    /// Accounts that may use it; empty means every account that may use the model.
    #[serde(default)]
    pub accounts: Vec<AccountId>,
}

impl FinetuneSpec {
    /// Name for people.
    pub fn name(&self) -> &Arc<str> {
        self.name.as_ref().unwrap_or(&self.id)
    }

    /// Name of the adapter at the servers.
    pub fn adapter(&self) -> &Arc<str> {
        self.adapter.as_ref().unwrap_or_else(|| self.name())
    }

    /// Returns whether every account that may use the model may use it.
    pub fn is_public(&self) -> bool {
        self.accounts.is_empty()
    }

    /// Returns whether an account that may use the model may use it.
    pub fn is_open_to(&self, account: &AccountId) -> bool {
        self.is_public() || self.accounts.contains(account)
    }
}
