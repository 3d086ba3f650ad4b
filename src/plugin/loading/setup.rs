//! First calls of a revision: `configure` and `describe`, as they are made before it serves.
//!
//! Measures the making of an instance. Not on the request path.

use std::sync::atomic::Ordering;

use crate::plugin::failure::Failure;
use crate::plugin::json::schema::Schema;
use crate::plugin::loading::grants::KeyProblem;
use crate::plugin::roles::task::guest;
use crate::plugin::roles::validate_output::advice;
use crate::plugin::runtime::revision::{CompiledDescription, Revision};
use crate::plugin::runtime::store::CallError;
use crate::plugin::spec::World;

/// Milliseconds that `configure` and `describe` may take while a plugin is loaded.
pub const SETUP_DEADLINE_MS: u32 = 500;
/// Making a guest that decides in the middle of a request should take less. A task's caller waits for
/// the model anyway.
const SETUP_SLOW_US: u32 = 5_000;

/// `configure` and `describe` on a first guest, and what making a second one takes.
pub fn configure_and_describe(revision: &Revision) -> Result<CompiledDescription, Vec<KeyProblem>> {
    let mut first = revision
        .make_instance(SETUP_DEADLINE_MS)
        .map_err(|call_error| setup_problems(&call_error))?;
    first.arm(SETUP_DEADLINE_MS);
    let description =
        guest::describe(&mut first).map_err(|call_error| setup_problems(&call_error))?;
    drop(first);
    let clock = revision.context().runtime.clock;
    let began_us = clock.micros();
    drop(
        revision
            .make_instance(SETUP_DEADLINE_MS)
            .map_err(|call_error| setup_problems(&call_error))?,
    );
    let setup_us = clock.micros().saturating_sub(began_us);
    let taken_us = u32::try_from(setup_us).unwrap_or(u32::MAX);
    revision.tally.setup_us.store(taken_us, Ordering::Relaxed);
    let world = revision.parts.world;
    if taken_us > SETUP_SLOW_US && world != World::TaskSchema {
        tracing::warn!(
            plugin = &*revision.parts.identity.name,
            world = world.name(),
            setup_us = taken_us,
            "a guest of this plugin is long in the making: each account's first call waits for it, do less in `configure`"
        );
    }
    let compiled = |text: &Option<String>, which: &str| {
        let schema = text.as_deref().map(Schema::compile).transpose();
        schema.map_err(|why| vec![("file".to_owned(), format!("its {which} schema: {why}"))])
    };
    Ok(CompiledDescription {
        input: compiled(&description.input_schema, "input")?,
        output: compiled(&description.output_schema, "output")?,
        description,
    })
}

/// `configure` names places under the settings; everything else is the file's.
fn setup_problems(call_error: &CallError) -> Vec<KeyProblem> {
    if !call_error.problems.is_empty() {
        let below = |path: &str| match path.trim_start_matches(['.', '/']) {
            "" => "settings".to_owned(),
            path => format!("settings.{}", path.replace('/', ".")),
        };
        let problems = call_error.problems.iter();
        return problems
            .map(|(path, why)| (below(path), why.clone()))
            .collect();
    }
    let at = match call_error.backtrace.as_str() {
        "" => String::new(),
        frames => format!(" at {frames}"),
    };
    let why = match &call_error.failure {
        Failure::Memory => {
            "it wants more memory to begin with than `limits.memory_mib` grants".to_owned()
        }
        Failure::Invalid(rule) if !advice(rule).is_empty() => {
            format!("what it says about itself breaks a rule: {}", advice(rule))
        }
        other => format!("it does not start: {other}{at}"),
    };
    vec![("file".to_owned(), why)]
}
