//! What a task says about itself: its schemas, and whether it shapes bodies or only checks them.
//!
//! The setting `shape` is false for models whose server speaks a protocol of its own (OpenAI, TGI, …):
//! the gateway itself builds payload and result there, and the task is its schemas only.

use infergate_sdk::{Description, Hooks, Settings};

use crate::json::{Members, member, object};

/// The texts of a task's schemas, JSON Schema 2020-12.
pub struct Schemas {
    /// Of the input.
    pub input: &'static str,
    /// Of the result.
    pub output: &'static str,
}

/// These hooks, or none with the setting `shape: false`.
pub fn hooks(settings: &mut Settings, hooks: Hooks) -> Hooks {
    match settings.switch("shape", true) {
        true => hooks,
        false => Hooks::empty(),
    }
}

/// The description of a task that sees whole bodies.
pub fn describe(slug: &str, schemas: Option<Schemas>, active: Hooks) -> Description {
    let (input, output) = schemas.map(|both| (both.input, both.output)).unzip();
    Description {
        slug: slug.into(),
        input_schema: input.map(str::to_owned),
        output_schema: output.map(str::to_owned),
        wants: Vec::new(),
        active,
    }
}

/// Members of the input that have a `default` in its schema, each with its JSON. Plugins have them as
/// constants, since they are configured anew for each instance; their tests compare the two.
pub fn defaults(schema: &str) -> Vec<(String, String)> {
    let properties = Members::parse(schema.as_bytes())
        .and_then(|schema| Some(schema.get("properties")?.to_owned()))
        .unwrap_or_default();
    let properties = object(&properties).unwrap_or_default();
    let default = |(name, property): (&str, &str)| {
        Some((name.to_owned(), member(property, "default")?.to_owned()))
    };
    properties.iter().filter_map(default).collect()
}
