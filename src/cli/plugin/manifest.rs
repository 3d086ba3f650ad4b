//! Manifest of a plugin's project: name, world, grants.
//!
//! Reads as much of a manifest as the tools need; cargo and npm read it whole.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::plugin::World;

/// Manifest of a project.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginManifest {
    /// Its package's name.
    pub name: String,
    /// The world, where the manifest names one.
    pub world: Option<World>,
    /// `log`, `counters`, `tables`.
    pub grants: Vec<String>,
}

impl PluginManifest {
    /// The manifest of a folder; none where it has none.
    pub fn read(folder: &Path) -> Result<Option<PluginManifest>, String> {
        let (javascript, rust) = (folder.join("package.json"), folder.join("Cargo.toml"));
        let read = |file: &Path| {
            fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))
        };
        let manifest = if javascript.is_file() {
            of_javascript(&read(&javascript)?)
                .map_err(|why| format!("{}: {why}", javascript.display()))?
        } else if rust.is_file() {
            of_rust(&read(&rust)?)
        } else {
            return Ok(None);
        };
        match manifest.name.is_empty() {
            true => Err(format!("{}: its manifest has no name", folder.display())),
            false => Ok(Some(manifest)),
        }
    }
}

fn of_javascript(text: &str) -> Result<PluginManifest, String> {
    let json: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let world = json.pointer("/infergate/world").and_then(Value::as_str);
    let grants = json.pointer("/infergate/grants").and_then(Value::as_array);
    Ok(PluginManifest {
        name: json["name"].as_str().unwrap_or_default().to_owned(),
        world: world.map(super::target::world).transpose()?,
        grants: grants
            .into_iter()
            .flatten()
            .filter_map(|grant| grant.as_str().map(str::to_owned))
            .collect(),
    })
}

/// Two keys of two tables, written in one line each, as cargo writes them.
fn of_rust(text: &str) -> PluginManifest {
    let mut manifest = PluginManifest::default();
    let mut table = "";
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            table = line;
            continue;
        }
        let Some((key, value)) = line.split_once('=') else {
            continue;
        };
        let words = value.split('"').skip(1).step_by(2).map(str::to_owned);
        match (table, key.trim()) {
            ("[package]", "name") => manifest.name = words.take(1).collect(),
            ("[package.metadata.infergate]", "grants") => manifest.grants = words.collect(),
            _ => {}
        }
    }
    manifest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_and_grants_are_read_from_either_manifest() {
        let text = "[package]\nname = \"prices\" # mine\n\n[package.metadata.infergate]\ngrants = [\"log\", \"tables\"]\n\n[dependencies]\nname = \"x\"\n";
        let manifest = of_rust(text);
        assert_eq!(manifest.name, "prices");
        assert_eq!(manifest.grants, ["log", "tables"]);
        let text = r#"{"name": "prices", "infergate": {"world": "billing-formula"}}"#;
        let manifest = of_javascript(text).unwrap();
        assert_eq!(manifest.world, Some(World::BillingFormula));
        assert!(of_javascript(r#"{"name": "p", "infergate": {"world": "x"}}"#).is_err());
    }
}
