//! A configuration checked where its secrets and its files are not, as `check --allow-missing` does.
//!
//! A configuration checked this way is never served. Files that exist are checked as ever; a
//! missing file becomes a warning.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

use crate::config::{self, LoadedConfig, Problem};
use crate::downstream::ClientTls;

/// Reads and checks `file`: with stand-ins for variables that are not set, and without files that are not there.
pub fn load_allowing_missing(file: &Path) -> Result<LoadedConfig, Vec<Problem>> {
    let unset = RefCell::new(BTreeSet::new());
    let env = |name: &str| {
        Some(std::env::var(name).unwrap_or_else(|_| {
            unset.borrow_mut().insert(name.to_owned());
            stand_in(name)
        }))
    };
    let mut loaded = config::load_with(file, &env)?;
    let warnings = unset.take().into_iter().map(|name| {
        Problem::of_file(format!(
            "environment variable {name} is not set: checked with a stand-in"
        ))
    });
    loaded.warnings.extend(warnings);
    let mut absent = remove_missing(&mut loaded);
    absent.sort_by_key(|warning| warning.line);
    loaded.warnings.extend(absent);
    Ok(loaded)
}

/// Long enough for every secret.
fn stand_in(name: &str) -> String {
    format!("stand-in-for-the-variable-{name}")
}

/// Takes files that are not there out of what is to be read.
fn remove_missing(loaded: &mut LoadedConfig) -> Vec<Problem> {
    let mut absent = Vec::new();
    let mut is_absent = |key: &str, path: &Path| {
        let is_absent = !path.exists();
        if is_absent {
            let message = format!("{} is not there: not checked", path.display());
            absent.push(loaded.places.problem(key, message));
        }
        is_absent
    };
    let config = &mut loaded.config;
    let mut without_peers = false;
    for (file, path) in config.listen.peers.iter().flat_map(|p| p.tls.files()) {
        without_peers |= is_absent(&format!("listen.peers.tls.{}", file.key()), path);
    }
    if without_peers {
        config.listen.peers = None;
    }
    for (at, listener) in config.listen.clients.iter_mut().enumerate() {
        let mut without = false;
        for (key, path) in listener.tls.iter().flat_map(ClientTls::files) {
            without |= is_absent(&format!("listen.clients[{at}].tls.{key}"), path);
        }
        if without {
            listener.tls = None;
        }
    }
    let mut without_admin = false;
    for (key, path) in config.listen.admin.tls.iter().flat_map(ClientTls::files) {
        without_admin |= is_absent(&format!("listen.admin.tls.{key}"), path);
    }
    if without_admin {
        config.listen.admin.tls = None;
    }
    if let Some(cluster) = &mut config.cluster {
        cluster.crl.take_if(|crl| is_absent("cluster.crl", crl));
    }
    for (at, model) in config.models.iter_mut().enumerate() {
        for (nth, endpoint) in model.endpoints.iter_mut().enumerate() {
            let key = format!("models[{at}].endpoints[{nth}].ca_file");
            endpoint.ca_file.take_if(|file| is_absent(&key, &file.path));
        }
    }
    for (at, plugin) in config.plugins.iter_mut().enumerate() {
        // What is optional is left out with a warning by the loader itself.
        if !plugin.optional && is_absent(&format!("plugins[{at}].file"), &plugin.file) {
            plugin.optional = true;
        }
        for (name, path) in &plugin.tables {
            if !plugin.optional && is_absent(&format!("plugins[{at}].tables.{name}"), path) {
                plugin.optional = true;
            }
        }
    }
    absent
}
