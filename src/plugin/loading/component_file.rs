//! File of a component: read, with its digest, its type and its grants checked.
//!
//! Neither compiles nor runs it; its code is validated before it is compiled. A problem is a key under the plugin, and why.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::plugin::loading::component_type::{ComponentType, FILE_MAX_BYTES};
use crate::plugin::loading::grants::{self, KeyProblem, ResolvedGrants};
use crate::plugin::spec::{OnFailure, PluginSpec};
use crate::regular_file::open_regular;

/// A plugin's file, read and found fit for its world.
pub struct CheckedComponent {
    pub bytes: Vec<u8>,
    pub digest: [u8; 32],
    pub granted: ResolvedGrants,
}

/// Checks everything that can be checked without running the plugin. Problems are keys under the plugin.
pub fn check(spec: &PluginSpec) -> Result<CheckedComponent, Vec<KeyProblem>> {
    let mut wrong = Vec::new();
    let is_task = spec.world.role() == "task";
    if !is_task
        && spec
            .on_failure
            .is_some_and(|policy| policy != OnFailure::Builtin)
    {
        let why = "billing and routing fall back to what is built in: only `builtin` fits here";
        wrong.push(("on_failure".into(), why.into()));
    }
    let granted = grants::read(&spec.grants, &spec.counters, &spec.tables, &mut wrong);
    let bytes = match read(&spec.file) {
        Ok(bytes) => bytes,
        Err(problem) => {
            wrong.push(("file".into(), problem));
            return Err(wrong);
        }
    };
    let digest: [u8; 32] = Sha256::digest(&bytes).into();
    check_digest(spec, &digest, &mut wrong);
    // Bytes that are not the ones meant are not looked at.
    if !wrong.is_empty() {
        return Err(wrong);
    }
    match ComponentType::read(&bytes) {
        Ok(shape) => {
            wrong.extend(
                shape
                    .missing_exports(spec.world)
                    .into_iter()
                    .map(|why| ("world".into(), why)),
            );
            let ungranted = shape.ungranted_imports(&spec.grants);
            wrong.extend(ungranted.into_iter().map(|why| ("grants".into(), why)));
            if wrong.is_empty() {
                return Ok(CheckedComponent {
                    bytes,
                    digest,
                    granted,
                });
            }
        }
        Err(problem) => wrong.push(("file".into(), problem)),
    }
    Err(wrong)
}

/// The bytes of a component's file, at most [`FILE_MAX_BYTES`].
pub fn read(path: &Path) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let unreadable = |error: std::io::Error| format!("cannot read `{shown}`: {error}");
    let file = open_regular(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(FILE_MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if bytes.len() as u64 > FILE_MAX_BYTES {
        return Err(format!(
            "`{shown}` is larger than {} MiB",
            FILE_MAX_BYTES >> 20
        ));
    }
    Ok(bytes)
}

fn check_digest(spec: &PluginSpec, digest: &[u8; 32], wrong: &mut Vec<KeyProblem>) {
    let found = hex::encode(digest);
    match &spec.sha256 {
        Some(meant) if meant.eq_ignore_ascii_case(&found) => {}
        _ if spec.dev => {}
        Some(_) => wrong.push((
            "sha256".into(),
            format!("the file has {found}: not the one meant, or it has been changed"),
        )),
        None => wrong.push((
            "sha256".into(),
            format!("required: the file has {found} (`dev: true` takes any)"),
        )),
    }
}

/// A digest of everything a revision is made of, and one of its settings alone.
pub fn fingerprint(
    spec: &PluginSpec,
    checked: &CheckedComponent,
    settings: &str,
) -> ([u8; 32], Arc<str>) {
    let config: [u8; 32] = Sha256::digest(settings).into();
    let mut all = Sha256::new();
    let mut part = |bytes: &[u8]| {
        all.update((bytes.len() as u64).to_le_bytes());
        all.update(bytes);
    };
    part(spec.name.as_bytes());
    part(spec.world.name().as_bytes());
    part(&checked.digest);
    part(&config);
    part(format!("{:?} {:?}", spec.bounds(), spec.instance).as_bytes());
    part(&[
        u8::from(checked.granted.log),
        u8::from(checked.granted.counters),
    ]);
    for counter in &spec.counters {
        part(counter.as_bytes());
    }
    for (name, table) in &checked.granted.tables {
        part(name.as_bytes());
        let mut rows: Vec<_> = table.iter().collect();
        rows.sort();
        for (key, value) in rows {
            part(key.as_bytes());
            part(value);
        }
    }
    (all.finalize().into(), hex::encode(config).into())
}
