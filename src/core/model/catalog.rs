//! The catalog: every model by every name, as one snapshot.
//!
//! Immutable; a reload builds another. A request keeps the catalog it started with.

use std::sync::Arc;

use hashbrown::HashMap;

use super::{AccountSpec, ModelSpec, shared_endpoints};
use crate::ModelId;

/// Access of an account to a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The account may use the model.
    Allowed,
    /// The account's own list leaves the model out.
    Denied,
    /// The model is private to other accounts: for this one it does not exist.
    Hidden,
}

/// The models of one configuration generation.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    models: Vec<Arc<ModelSpec>>,
    by_name: HashMap<ModelId, usize>,
}

impl Catalog {
    /// Indexes the models, those with a base on its endpoints. Duplicate names are the configuration's to refuse; here
    /// the first one wins.
    pub fn new(models: Vec<Arc<ModelSpec>>) -> Catalog {
        let models = shared_endpoints::resolve(models);
        let mut by_name = HashMap::with_capacity(models.len());
        for (index, model) in models.iter().enumerate() {
            for name in std::iter::once(&model.id).chain(&model.aliases) {
                by_name.entry(name.clone()).or_insert(index);
            }
        }
        Catalog { models, by_name }
    }

    /// Position and spec of the model called `name`, by id or alias. The position is stable
    /// within this catalog only.
    pub fn model(&self, name: &str) -> Option<(usize, &Arc<ModelSpec>)> {
        let index = *self.by_name.get(name)?;
        Some((index, &self.models[index]))
    }

    /// All models, in the file's order.
    pub fn models(&self) -> &[Arc<ModelSpec>] {
        &self.models
    }

    /// Returns the access of `account` to `model`: both lists must agree.
    pub fn access(account: &AccountSpec, model: &ModelSpec) -> Access {
        let listed =
            model.allowed_accounts.is_empty() || model.allowed_accounts.contains(&account.id);
        match (listed, account.allows(&model.id)) {
            (true, true) => Access::Allowed,
            (true, false) => Access::Denied,
            (false, _) => Access::Hidden,
        }
    }
}
