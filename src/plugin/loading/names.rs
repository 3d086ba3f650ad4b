//! Names of plugins in a configuration: declared once, and used in their own role.
//!
//! Reads no file; a name that is not declared may be a built-in one.

use std::sync::Arc;

use infergate_core::model::ModelSpec;

use crate::plugin::loading::snapshot::PluginProblem;
use crate::plugin::roles::builtin::is_builtin;
use crate::plugin::spec::PluginSpec;

/// Names that are declared twice or not at all, and plugins of another role.
pub fn problems(specs: &[PluginSpec], models: &[Arc<ModelSpec>]) -> Vec<PluginProblem> {
    let mut problems = Vec::new();
    for (at, spec) in specs.iter().enumerate() {
        if specs[..at].iter().any(|earlier| earlier.name == spec.name) {
            problems.push(PluginProblem {
                key: format!("plugins[{at}].name"),
                message: format!("there is another plugin called `{}`", spec.name),
            });
        }
    }
    for (at, model) in models.iter().enumerate() {
        let names = &model.plugins;
        let roles = [
            ("task", &names.task),
            ("billing", &names.billing),
            ("routing", &names.routing),
        ];
        for (role, name) in roles {
            if let Some(why) = name.as_ref().and_then(|name| wrong(role, name, specs)) {
                problems.push(PluginProblem {
                    key: format!("models[{at}].plugins.{role}"),
                    message: why,
                });
            }
        }
    }
    problems
}

fn wrong(role: &str, name: &str, specs: &[PluginSpec]) -> Option<String> {
    match specs.iter().find(|spec| &*spec.name == name) {
        Some(spec) if spec.world.role() == role => None,
        // A built-in one of that name is meant.
        Some(_) if is_builtin(role, name) => None,
        Some(spec) => Some(format!(
            "the plugin `{name}` is a `{}`: it belongs under `{}`",
            spec.world.name(),
            spec.world.role()
        )),
        None if is_builtin(role, name) => None,
        None => Some(format!(
            "no plugin and no built-in {role} is called `{name}`"
        )),
    }
}
