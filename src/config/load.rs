//! From a file to a checked configuration: read, parse, substitute, check, deserialise.
//!
//! The file is not watched, and nothing is kept. Start, `check` and reload all come through here,
//! so a file that starts a node also reloads one.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::env::{self, EnvLookup};
use super::problem::{Problem, Problems};
use super::{Config, KeyPositions, Listen, check, structure, unsupported, yaml};
use crate::regular_file::open_regular;

/// A larger file is not a configuration; 100,000 accounts fit.
pub const FILE_BYTES_MAX: u64 = 32 << 20;

/// SHA-256 of a file's content: distinguishes a changed file from a touched one.
pub type ContentHash = [u8; 32];

/// A configuration that may be used.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    /// The whole file, with defaults.
    pub config: Config,
    /// Probable mistakes that are not errors, in the file's order.
    pub warnings: Vec<Problem>,
    /// The content this came from.
    pub content: ContentHash,
    /// Positions of its keys, for problems found later.
    pub places: KeyPositions,
}

/// Loads the file at `path`; `${NAME}` comes from the process environment, and files that
/// it names are looked for from the folder of `path`.
pub fn load(path: &Path) -> Result<LoadedConfig, Vec<Problem>> {
    load_with(path, &|name| std::env::var(name).ok())
}

/// The same with another environment.
pub fn load_with(path: &Path, env: EnvLookup<'_>) -> Result<LoadedConfig, Vec<Problem>> {
    let bytes = read(path).map_err(|problem| vec![problem])?;
    let content = content_hash(&bytes);
    let text = std::str::from_utf8(&bytes).map_err(|error| vec![not_utf8(&bytes, &error)])?;
    let mut loaded = parse(text, env)?;
    if let Some(folder) = path.parent() {
        resolve(&mut loaded.config, folder);
    }
    Ok(LoadedConfig { content, ..loaded })
}

/// Makes paths of files absolute: the configuration file gives them relative to its own folder.
fn resolve(config: &mut Config, folder: &Path) {
    each_path(config, |path| *path = folder.join(&*path));
}

/// Makes paths of files relative again, as in a configuration file in `folder`.
pub(super) fn unresolve(config: &mut Config, folder: &Path) {
    each_path(config, |path| {
        if let Ok(below) = path.strip_prefix(folder) {
            *path = below.to_owned();
        }
    });
}

fn each_path(config: &mut Config, mut edit: impl FnMut(&mut PathBuf)) {
    let Listen { clients, admin, .. } = &mut config.listen;
    let listeners = clients.iter_mut().map(|listener| &mut listener.tls);
    for tls in listeners.chain([&mut admin.tls]).flatten() {
        tls.files_mut().for_each(&mut edit);
    }
    if let Some(peers) = &mut config.listen.peers {
        peers.tls.files_mut().into_iter().for_each(&mut edit);
    }
    if let Some(crl) = config.cluster.as_mut().and_then(|c| c.crl.as_mut()) {
        edit(crl);
    }
    for model in &mut config.models {
        let files = model.endpoints.iter_mut();
        for file in files.filter_map(|endpoint| endpoint.ca_file.as_mut()) {
            edit(&mut file.path);
        }
        let finetunes = model.finetunes.iter_mut();
        for file in finetunes.flat_map(|finetune| &mut finetune.files) {
            edit(file);
        }
        if let Some(process) = &mut model.process {
            let adapters = process.adapters.iter_mut();
            let paths = adapters.map(|adapter| &mut adapter.path);
            paths.chain(&mut process.model_path).for_each(&mut edit);
            if !process.working_directory.as_os_str().is_empty() {
                edit(&mut process.working_directory);
            }
        }
        let Some(discovery) = &mut model.discovery else {
            continue;
        };
        let kubernetes = discovery.kubernetes.as_mut();
        let secrets = kubernetes.map(|k| [k.token_file.as_mut(), k.ca_file.as_mut()]);
        let secrets = secrets.into_iter().flatten();
        for file in secrets.chain([discovery.file.as_mut()]).flatten() {
            edit(file);
        }
    }
    for plugin in &mut config.plugins {
        edit(&mut plugin.file);
        plugin.tables.values_mut().for_each(&mut edit);
    }
}

/// Checks `text` as a whole: all errors at once, or the configuration.
pub fn parse(text: &str, env: EnvLookup<'_>) -> Result<LoadedConfig, Vec<Problem>> {
    let mut problems = Problems::default();
    let mut warnings = Problems::default();
    let Some(mut root) = yaml::read(text, &mut problems) else {
        return Err(problems.into_vec());
    };
    env::substitute(&mut root, env, &mut problems);
    unsupported::refuse(&mut root, &mut problems);
    structure::check(&root, &mut problems);
    check::check(&root, &mut problems, &mut warnings);
    if !problems.is_empty() {
        return Err(problems.into_vec());
    }
    match serde_json::from_value::<Config>(root.to_value()) {
        Ok(config) => {
            let content = content_hash(text.as_bytes());
            Ok(LoadedConfig {
                config,
                warnings: warnings.into_vec(),
                content,
                places: KeyPositions::of(&root),
            })
        }
        // The schema is made from the same structs, so that only what it cannot express ends here.
        Err(error) => Err(vec![Problem::of_file(format!(
            "does not fit the schema: {error}"
        ))]),
    }
}

/// The hash by which [`LoadedConfig::content`] is compared.
pub fn content_hash(bytes: &[u8]) -> ContentHash {
    Sha256::digest(bytes).into()
}

/// The bytes of the file, at most [`FILE_BYTES_MAX`].
pub(super) fn read(path: &Path) -> Result<Vec<u8>, Problem> {
    bounded(
        File::open(path).map_err(|error| unreadable(path, &error))?,
        path,
    )
}

/// The bytes of a regular file that the configuration names: one that is watched must not be able to
/// hang the watch, as a pipe would.
pub(super) fn read_regular(path: &Path) -> Result<Vec<u8>, Problem> {
    bounded(
        open_regular(path).map_err(|error| unreadable(path, &error))?,
        path,
    )
}

fn unreadable(path: &Path, error: &std::io::Error) -> Problem {
    Problem::of_file(format!("cannot read {}: {error}", path.display()))
}

fn bounded(file: File, path: &Path) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| unreadable(path, &error))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(Problem::of_file(format!(
            "{} is larger than {} MiB: it cannot be a configuration",
            path.display(),
            FILE_BYTES_MAX >> 20
        )));
    }
    Ok(bytes)
}

fn not_utf8(bytes: &[u8], error: &std::str::Utf8Error) -> Problem {
    let good = &bytes[..error.valid_up_to()];
    let line = 1 + good.iter().filter(|&&byte| byte == b'\n').count();
    Problem {
        path: String::new(),
        line: u32::try_from(line).unwrap_or(u32::MAX),
        column: 0,
        message: "not UTF-8 here: save the file as UTF-8".to_owned(),
    }
}
