//! Tables and grants as the configuration names them, read and checked.
//!
//! Grants nothing that is not named twice: a table is attached under `tables` and granted under `grants`. A
//! table's file has at most [`TABLE_FILE_MAX_BYTES`].

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::plugin::runtime::grants::LookupTable;
use crate::regular_file::open_regular;

/// A price list of a hundred thousand rows has less.
pub const TABLE_FILE_MAX_BYTES: u64 = 16 << 20;
/// Counters one plugin may declare: each is a series in `/metrics`.
pub const COUNTERS_MAX: usize = 32;

/// Key under the plugin, and what is wrong there.
pub type KeyProblem = (String, String);

/// Result of a plugin's `grants`, `counters` and `tables`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvedGrants {
    pub log: bool,
    pub counters: bool,
    /// By name; a table's index is its place here.
    pub tables: Vec<(Arc<str>, LookupTable)>,
}

/// Reads and checks them.
pub fn read(
    grants: &[Arc<str>],
    counters: &[Arc<str>],
    tables: &BTreeMap<Arc<str>, PathBuf>,
    wrong: &mut Vec<KeyProblem>,
) -> ResolvedGrants {
    let mut granted = ResolvedGrants::default();
    for (at, grant) in grants.iter().enumerate() {
        match grant.split_once(':') {
            None if &**grant == "log" => granted.log = true,
            None if &**grant == "counters" => granted.counters = true,
            Some(("tables", name)) if tables.contains_key(name) => {}
            Some(("tables", name)) => wrong.push((
                format!("grants[{at}]"),
                format!("there is no table `{name}`: add it under `tables`"),
            )),
            _ => wrong.push((
                format!("grants[{at}]"),
                format!("`{grant}` is no grant: expected log, counters or tables:<name>"),
            )),
        }
    }
    if counters.len() > COUNTERS_MAX {
        wrong.push((
            "counters".into(),
            format!("at most {COUNTERS_MAX} counters"),
        ));
    }
    for (name, path) in tables {
        if !grants
            .iter()
            .any(|grant| grant.strip_prefix("tables:") == Some(name))
        {
            wrong.push((
                format!("tables.{name}"),
                format!("not granted: add `tables:{name}` to `grants`, or remove it"),
            ));
        }
        match table(path) {
            Ok(table) => granted.tables.push((Arc::clone(name), table)),
            Err(problem) => wrong.push((format!("tables.{name}"), problem)),
        }
    }
    granted
}

fn table(path: &Path) -> Result<LookupTable, String> {
    let shown = path.display();
    let file = open_regular(path).map_err(|error| format!("cannot read `{shown}`: {error}"))?;
    let mut text = Vec::new();
    file.take(TABLE_FILE_MAX_BYTES + 1)
        .read_to_end(&mut text)
        .map_err(|error| format!("cannot read `{shown}`: {error}"))?;
    if text.len() as u64 > TABLE_FILE_MAX_BYTES {
        return Err(format!(
            "`{shown}` has more than {} MiB",
            TABLE_FILE_MAX_BYTES >> 20
        ));
    }
    let object: Map<String, Value> = serde_json::from_slice(&text)
        .map_err(|error| format!("`{shown}` is no JSON object: {error}"))?;
    Ok(from_object(&object))
}

/// An object's keys with the JSON text of their values.
pub fn from_object(object: &Map<String, Value>) -> LookupTable {
    object
        .iter()
        .map(|(key, value)| (key.clone(), value.to_string().into_bytes()))
        .collect()
}
