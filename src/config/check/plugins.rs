//! `plugins`, and the names of them under `models[].plugins`.
//!
//! No file is opened: whether a component exists, has its digest and fits its world shows when it
//! is loaded.

use std::collections::HashMap;

use infergate_core::model::Task;
use infergate_core::routing::policy::BuiltinPolicy;

use crate::config::document::{Cursor, NodeData};
use crate::config::problem::Problems;
use crate::config::structure::nearest;
use crate::config::unsupported::word;
use crate::plugin::{COUNTERS_MAX, OnFailure, World};

/// A name travels in events, metric labels and log lines.
const NAME_BYTES_MAX: usize = 64;

/// Capabilities a plugin may be granted; tables are granted one by one, as `tables:<name>`.
const GRANTS: &[&str] = &["log", "counters"];

/// Built-in prices. Built-in tasks are called as the tasks are.
const BUILTIN_BILLING: &[&str] = &["neurons"];

/// Declared plugins, for checks of models.
#[derive(Default)]
pub struct PluginNames {
    /// In the file's order; the world is none where the file gives none that exists.
    list: Vec<(String, Option<World>)>,
}

impl PluginNames {
    fn world(&self, name: &str) -> Option<&Option<World>> {
        let found = self.list.iter().find(|(known, _)| known == name);
        found.map(|(_, world)| world)
    }

    /// Names that may stand at `models[].plugins.{role}`, declared ones first.
    fn of_role(&self, role: &str) -> Vec<&str> {
        let declared = self
            .list
            .iter()
            .filter(|(_, world)| world.is_some_and(|world| world.role() == role));
        let mut names: Vec<&str> = declared.map(|(name, _)| name.as_str()).collect();
        for builtin in builtins(role) {
            if !names.contains(&builtin) {
                names.push(builtin);
            }
        }
        names
    }
}

fn builtins(role: &str) -> Vec<&'static str> {
    match role {
        "task" => Task::ALL.iter().map(|task| task.slug()).collect(),
        "billing" => BUILTIN_BILLING.to_vec(),
        "routing" => BuiltinPolicy::NAMES.to_vec(),
        _ => Vec::new(),
    }
}

/// Every declared plugin.
pub fn check(root: &Cursor<'_>, problems: &mut Problems, warnings: &mut Problems) -> PluginNames {
    let mut names = PluginNames::default();
    let mut taken: HashMap<&str, String> = HashMap::new();
    for plugin in root.list("plugins") {
        let world = plugin
            .text_of("world")
            .and_then(|text| World::ALL.into_iter().find(|world| world.name() == text));
        if let Some(name) = plugin.key("name")
            && let Some(text) = name.text()
        {
            if let Some(fault) = name_fault(text) {
                problems.add(name.problem(fault));
            } else if let Some(first) = taken.get(text) {
                problems.add(name.problem(format!(
                    "{text:?} is already the name of `{first}`: give each plugin its own"
                )));
            } else {
                taken.insert(text, plugin.path.clone());
                names.list.push((text.to_owned(), world));
            }
        }
        check_file(&plugin, problems, warnings);
        check_grants(&plugin, problems, warnings);
        check_counters(&plugin, problems);
        check_tables(&plugin, problems);
        if let Some(world) = world {
            check_world(&plugin, world, problems);
        }
    }
    names
}

fn check_file(plugin: &Cursor<'_>, problems: &mut Problems, warnings: &mut Problems) {
    if let Some(file) = plugin.key("file")
        && file.text() == Some("")
    {
        problems.add(file.problem("must not be empty: the path of the component, a .wasm file"));
    }
    let is_dev = plugin
        .key("dev")
        .is_some_and(|dev| matches!(dev.node.data, NodeData::Bool(true)));
    let Some(digest) = plugin.key("sha256") else {
        if !is_dev {
            let path = format!("{}.sha256", plugin.path);
            problems.add(crate::config::Problem::new(
                path,
                plugin.place,
                "`sha256` is required: `sha256sum FILE` and `infergate plugin inspect FILE` print it; `dev: true` takes the file whatever its digest",
            ));
        }
        return;
    };
    let Some(text) = digest.text() else { return };
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        problems.add(digest.problem(format!(
            "expected the 64 hex digits of the file's SHA-256, found {}: `sha256sum FILE` prints them",
            digest.shown()
        )));
    } else if is_dev {
        warnings
            .add(digest.problem("not compared: `dev: true` takes the file whatever its digest"));
    }
}

fn check_grants(plugin: &Cursor<'_>, problems: &mut Problems, warnings: &mut Problems) {
    let tables = plugin.entries("tables");
    let mut granted: Vec<&str> = Vec::new();
    for grant in plugin.list("grants") {
        let Some(text) = grant.text() else { continue };
        if granted.contains(&text) {
            problems.add(grant.problem(format!("{text:?} already stands above: remove one")));
            continue;
        }
        granted.push(text);
        match text.strip_prefix("tables:") {
            Some(table) if tables.iter().any(|(name, _)| *name == table) => {}
            Some(table) => problems.add(grant.problem(format!(
                "no table is called {table:?}: add it under `{}.tables`, or correct the name",
                plugin.path
            ))),
            None if GRANTS.contains(&text) => {}
            None => problems.add(grant.problem(unknown_grant(text))),
        }
    }
    for (name, table) in tables {
        if !granted.contains(&&*format!("tables:{name}")) {
            problems.add(table.problem(format!(
                "not granted: add \"tables:{name}\" to `{}.grants`, or remove it",
                plugin.path
            )));
        }
    }
    if let Some(counters) = plugin.key("counters")
        && !counters.node.is_empty_list()
        && !granted.contains(&"counters")
    {
        warnings.add(counters.problem(format!(
            "never counted: add \"counters\" to `{}.grants`",
            plugin.path
        )));
    }
}

fn unknown_grant(text: &str) -> String {
    let expected = "a plugin may be granted log, counters and tables:<name>, nothing else";
    match nearest(text, GRANTS.iter().copied()) {
        Some(near) => format!("unknown grant {text:?}: did you mean `{near}`?"),
        None if text == "tables" => {
            format!("{expected}: tables are granted one by one, as in \"tables:price_book\"")
        }
        None => format!("unknown grant {text:?}: {expected}"),
    }
}

fn check_counters(plugin: &Cursor<'_>, problems: &mut Problems) {
    let counters = plugin.list("counters");
    if counters.len() > COUNTERS_MAX
        && let Some(list) = plugin.key("counters")
    {
        problems.add(list.problem(format!(
            "{} counters: a plugin may have at most {COUNTERS_MAX}",
            counters.len()
        )));
        return;
    }
    let mut seen: Vec<&str> = Vec::new();
    for counter in counters {
        let Some(text) = counter.text() else { continue };
        if let Some(fault) = name_fault(text) {
            problems.add(counter.problem(fault));
        } else if seen.contains(&text) {
            problems.add(counter.problem(format!("{text:?} already stands above: remove one")));
        }
        seen.push(text);
    }
}

fn check_tables(plugin: &Cursor<'_>, problems: &mut Problems) {
    for (name, table) in plugin.entries("tables") {
        if let Some(fault) = name_fault(name) {
            problems.add(table.problem(fault));
        } else if table.text() == Some("") {
            problems.add(table.problem("must not be empty: the path of a JSON file"));
        }
    }
}

/// Keys that only some worlds have.
fn check_world(plugin: &Cursor<'_>, world: World, problems: &mut Problems) {
    let role = world.role();
    if let Some(policy) = plugin.key("on_failure")
        && role != "task"
        && let Some(text) = policy.text()
        && text != word(OnFailure::Builtin)
        && [OnFailure::Closed, OnFailure::Passthrough, OnFailure::Cut]
            .iter()
            .any(|other| text == word(other))
    {
        problems.add(policy.problem(format!(
            "{text:?} is for tasks: when a {role} plugin fails the built-in one always answers, write builtin or remove the key"
        )));
    }
    if let Some(answers) = plugin.key("openai_answers")
        && role != "task"
    {
        problems.add(answers.problem(format!(
            "only tasks shape answers, and the world is {}: remove the key",
            world.name()
        )));
    }
    if let Some(mode) = plugin.key("mode")
        && role != "routing"
    {
        problems.add(mode.problem(format!(
            "only routing policies have a mode, and the world is {}: remove the key",
            world.name()
        )));
    }
}

/// Names under `models[].plugins`; returns those declared plugins that are named.
pub fn check_models(
    root: &Cursor<'_>,
    names: &PluginNames,
    problems: &mut Problems,
    warnings: &mut Problems,
) {
    let mut used: Vec<&str> = Vec::new();
    for model in root.list("models") {
        let named = model.key("plugins");
        for role in ["task", "billing", "routing"] {
            let Some(key) = named.as_ref().and_then(|named| named.key(role)) else {
                continue;
            };
            let Some(text) = key.text() else { continue };
            used.push(text);
            if let Err(fault) = resolve(&model, role, text, names) {
                problems.add(key.problem(fault));
            }
        }
        let has_policy = named.is_some_and(|named| named.key("routing").is_some());
        if let Some(parameters) = model.key("routing")
            && !has_policy
            && matches!(&parameters.node.data, NodeData::Map(entries) if !entries.is_empty())
        {
            warnings.add(parameters.problem(format!(
                "never used: name the policy these are for at `{}.plugins.routing`",
                model.path
            )));
        }
    }
    for plugin in root.list("plugins") {
        if let Some(name) = plugin.text_of("name")
            && !used.contains(&name)
        {
            warnings.add(plugin.problem("never used: no model names it under `plugins`"));
        }
    }
}

fn resolve(model: &Cursor<'_>, role: &str, name: &str, names: &PluginNames) -> Result<(), String> {
    if let Some(world) = names.world(name) {
        return match world {
            Some(world) if world.role() != role => Err(format!(
                "{name:?} is declared with the world {}, which decides about {}: {}",
                world.name(),
                world.role(),
                known(role, names)
            )),
            _ => Ok(()),
        };
    }
    let task = model.text_of("task").unwrap_or_default();
    if role == "task" && builtins("task").contains(&name) {
        let is_task = Task::ALL.iter().any(|known| known.slug() == task);
        return match is_task && name != task {
            true => Err(format!(
                "the built-in {name:?} is for models of that task, and this one's is {task}: write {task}, or remove the key"
            )),
            false => Ok(()),
        };
    }
    if builtins(role).contains(&name) {
        return Ok(());
    }
    let near = nearest(name, names.of_role(role).into_iter());
    Err(match near {
        Some(near) => {
            format!("no plugin and no built-in is called {name:?}: did you mean `{near}`?")
        }
        None => format!(
            "no plugin and no built-in is called {name:?}: {}",
            known(role, names)
        ),
    })
}

fn known(role: &str, names: &PluginNames) -> String {
    format!(
        "declare it under `plugins`, or use one of {}",
        names.of_role(role).join(", ")
    )
}

/// Fault that makes `name` unfit for a plugin, a counter, a table or a metric, if any.
pub fn name_fault(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("must not be empty".to_owned());
    }
    if name.len() > NAME_BYTES_MAX {
        return Some(format!("longer than {NAME_BYTES_MAX} bytes"));
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.chars()
        .find(|c| !fits(*c))
        .map(|bad| format!("{bad:?} cannot stand in a name: use letters, digits and -_."))
}
