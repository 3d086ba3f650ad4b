//! The catalog: every model by every name, as one snapshot.
//!
//! Immutable; a reload builds another. A request keeps the catalog it started with.

use std::sync::Arc;

use hashbrown::HashMap;

use super::{AccountSpec, ModelSpec, NamedTask, Task, shared_endpoints};
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
    tasks: Vec<Arc<NamedTask>>,
}

impl Catalog {
    /// Indexes the models, those with a base on its endpoints. Duplicate names are the configuration's to refuse; here
    /// the first one wins.
    pub fn new(models: Vec<Arc<ModelSpec>>) -> Catalog {
        Catalog::with_tasks(models, Vec::new())
    }

    /// Indexes the models, and the named tasks that they serve.
    pub fn with_tasks(models: Vec<Arc<ModelSpec>>, tasks: Vec<Arc<NamedTask>>) -> Catalog {
        let models = shared_endpoints::resolve(models);
        let mut by_name = HashMap::with_capacity(models.len());
        for (index, model) in models.iter().enumerate() {
            for name in std::iter::once(&model.id).chain(&model.aliases) {
                by_name.entry(name.clone()).or_insert(index);
            }
        }
        Catalog {
            models,
            by_name,
            tasks,
        }
    }

    /// Position and spec of the model called `name`, by id or alias. The position is stable
    /// within this catalog only.
    pub fn model(&self, name: &str) -> Option<(usize, &Arc<ModelSpec>)> {
        let index = *self.by_name.get(name)?;
        Some((index, &self.models[index]))
    }

    /// Returns the task of a model, or that of the candidates of a named task.
    pub fn task_of(&self, name: &str) -> Option<Task> {
        let found = self.model(name);
        let found = found.or_else(|| self.candidates(self.named_task(name)?).next());
        found.map(|(_, spec)| spec.task)
    }

    /// Returns the named task of this name, which no model has.
    pub fn named_task(&self, name: &str) -> Option<&Arc<NamedTask>> {
        self.tasks.iter().find(|task| task.id.as_str() == name)
    }

    /// All named tasks, in the file's order.
    pub fn named_tasks(&self) -> &[Arc<NamedTask>] {
        &self.tasks
    }

    /// Positions and specs of the candidates of a named task, in order.
    pub fn candidates<'a>(
        &'a self,
        task: &'a NamedTask,
    ) -> impl Iterator<Item = (usize, &'a Arc<ModelSpec>)> {
        task.candidates
            .iter()
            .filter_map(|id| self.model(id.as_str()))
    }

    /// Returns the model called `name`, or the first one that `account` may use of the named task that is called so.
    ///
    /// # Errors
    /// The access that the account has instead.
    pub fn model_for(
        &self,
        name: &str,
        account: &AccountSpec,
    ) -> Result<(usize, &Arc<ModelSpec>), Access> {
        if let Some((index, spec)) = self.model(name) {
            return match Catalog::access(account, spec) {
                Access::Allowed => Ok((index, spec)),
                access => Err(access),
            };
        }
        let task = self.named_task(name).ok_or(Access::Hidden)?;
        let mut best = Access::Hidden;
        for (index, spec) in self.candidates(task) {
            match Catalog::access(account, spec) {
                Access::Allowed => return Ok((index, spec)),
                Access::Denied => best = Access::Denied,
                Access::Hidden => {}
            }
        }
        Err(best)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::BackendName;

    fn model(id: &str, accounts: &[&str]) -> Arc<ModelSpec> {
        let new = ModelSpec::new(id.into(), Task::TextGeneration, BackendName::from("openai"));
        let accounts = accounts.iter().map(|name| (*name).into());
        Arc::new(ModelSpec {
            allowed_accounts: accounts.collect(),
            ..new
        })
    }

    #[test]
    fn a_task_is_as_open_to_an_account_as_its_candidates_are() {
        let task = |id: &str, candidates: &[&str]| -> Arc<NamedTask> {
            let task = serde_json::json!({ "id": id, "candidates": candidates });
            Arc::new(serde_json::from_value(task).unwrap())
        };
        let models = vec![
            model("private", &["other"]),
            model("a", &[]),
            model("b", &[]),
        ];
        let tasks = vec![
            task("chat", &["private", "a", "b"]),
            task("hidden", &["private"]),
            task("denied", &["private", "a"]),
        ];
        let catalog = Catalog::with_tasks(models, tasks);
        let account = |patterns: &[&str]| AccountSpec {
            models: patterns.iter().map(|pattern| (*pattern).into()).collect(),
            ..AccountSpec::anonymous()
        };
        let found = |name: &str, patterns: &[&str]| {
            let found = catalog.model_for(name, &account(patterns));
            found.map(|(_, spec)| spec.id.as_str().to_owned())
        };
        assert_eq!(found("chat", &["*"]), Ok("a".to_owned()));
        assert_eq!(found("chat", &["b"]), Ok("b".to_owned()));
        assert_eq!(found("a", &["*"]), Ok("a".to_owned()));
        assert_eq!(found("hidden", &["*"]), Err(Access::Hidden));
        assert_eq!(found("denied", &["b"]), Err(Access::Denied));
        assert_eq!(found("none", &["*"]), Err(Access::Hidden));
    }
}
