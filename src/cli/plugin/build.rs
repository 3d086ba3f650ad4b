//! Building a plugin: its own compiler, then component encoding, then a look at what it imports.
//!
//! Checks no behaviour; `plugin check` and `plugin test` do. The file is written whole and then renamed into
//! place, so that a gateway that follows it never reads half of one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::outcome::CommandOutcome;
use super::wording::ProgressStep;
use crate::cli::tooling::encode;
use crate::plugin::ComponentType;

mod javascript;
mod result;
mod rust;

pub use result::{BuildError, CompilerOutput};

/// `--help` of it.
pub const EXAMPLES: &str = "\
A folder with a Cargo.toml is built for wasm32-unknown-unknown and made a component; that needs rustup \
and nothing else. A folder with a package.json is built with componentize-qjs from npm. The result is \
dist/NAME.wasm in the workspace's folder, and the fixtures of the plugin beside it as dist/NAME.tests. \
Each step and how long it took is printed to standard error.

Examples:
  infergate plugin build my-prices                     one plugin
  infergate plugin build plugins --all                 every plugin of a cargo workspace
  infergate plugin build my-prices --out prices.wasm   to another place";

/// Imports that a gateway can grant stand in this package.
const GRANTABLE: &str = "infergate:host/";

/// A plugin that was built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildOutput {
    /// Its package's name.
    pub name: String,
    /// Path of the component.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// Interfaces it imports.
    pub imports: Vec<String>,
    /// Lower-case hexadecimal: what `plugins[].sha256` takes.
    pub sha256: String,
}

/// Runs it: prints size, imports and digest of each plugin.
pub fn run(dir: &Path, out: Option<&Path>, all: bool) -> Result<CommandOutcome, String> {
    let built = match all {
        true => build_all(dir, out),
        false => build(dir, out).map(|built| vec![built]),
    };
    let built = built.map_err(|error| error.to_string())?;
    let width = built.iter().map(|one| one.name.len()).max().unwrap_or(0);
    Ok(CommandOutcome {
        text: built.iter().map(|one| line(one, width)).collect(),
        good: true,
    })
}

/// `neurons  38.1 KiB  no imports  sha256 …  plugins/dist/neurons.wasm`
fn line(built: &BuildOutput, width: usize) -> String {
    let imports = match built.imports.as_slice() {
        [] => "no imports".to_owned(),
        imports => format!("imports {}", imports.join(", ")),
    };
    let here = std::env::current_dir().unwrap_or_default();
    let shown = built.path.strip_prefix(here).unwrap_or(&built.path);
    format!(
        "{:width$}  {:>7.1} KiB  {imports}  sha256 {}  {}\n",
        built.name,
        built.bytes as f64 / 1024.0,
        built.sha256,
        shown.display()
    )
}

/// Builds the plugin of a folder into `out`, or into `dist/NAME.wasm` of its workspace.
pub fn build(dir: &Path, out: Option<&Path>) -> Result<BuildOutput, BuildError> {
    if dir.join("package.json").is_file() {
        return finish(javascript::compile(dir)?, out);
    }
    let mut compiled = rust::compile(dir, rust::CargoSelection::Package)?;
    match (compiled.pop(), compiled.pop()) {
        (Some(only), None) => finish(only, out),
        (None, _) => Err(rust::no_plugin(dir)),
        _ => Err(BuildError::Manifest {
            file: dir.join("Cargo.toml"),
            message: "there are several plugins; name one's folder, or give --all".to_owned(),
        }),
    }
}

/// Builds every Rust plugin of a cargo workspace into the folder `out`, or `dist`, in the order of
/// their names.
pub fn build_all(dir: &Path, out: Option<&Path>) -> Result<Vec<BuildOutput>, BuildError> {
    let mut compiled = rust::compile(dir, rust::CargoSelection::Workspace)?;
    if compiled.is_empty() {
        return Err(rust::no_plugin(dir));
    }
    compiled.sort_by(|a, b| a.name.cmp(&b.name));
    compiled
        .into_iter()
        .map(|one| {
            let out = out.map(|folder| folder.join(format!("{}.wasm", one.name)));
            finish(one, out.as_deref())
        })
        .collect()
}

fn finish(compiled: CompilerOutput, out: Option<&Path>) -> Result<BuildOutput, BuildError> {
    let CompilerOutput {
        name,
        component,
        grants,
        folder,
        fixtures,
    } = compiled;
    let _step = ProgressStep::begin(&format!("checking {name} and writing it with its fixtures"));
    let imports = encode::imports(&component).map_err(|error| BuildError::Encode {
        name: name.clone(),
        error,
    })?;
    if let Some((import, advice)) = imports
        .iter()
        .find_map(|import| Some((import, undeclared(import, &grants)?)))
    {
        let import = import.clone();
        return Err(BuildError::Import {
            name,
            import,
            advice,
        });
    }
    if let Some(why) = no_plugin(&component) {
        return Err(BuildError::NoPlugin { name, why });
    }
    let path = out.map_or_else(|| folder.join(format!("{name}.wasm")), Path::to_owned);
    let io = |error| BuildError::Io {
        path: path.clone(),
        error,
    };
    write(&path, &component).map_err(io)?;
    copy_fixtures(&fixtures, &path.with_extension("tests")).map_err(io)?;
    Ok(BuildOutput {
        name,
        path,
        bytes: component.len() as u64,
        imports,
        sha256: hex::encode(Sha256::digest(&component)),
    })
}

/// Reason for which no gateway could load the component; none when one could.
fn no_plugin(component: &[u8]) -> Option<String> {
    match ComponentType::of(component) {
        Err(why) => Some(why),
        Ok(shape) if !shape.worlds().is_empty() => None,
        Ok(shape) => {
            let exports = match shape.exports.as_slice() {
                [] => "nothing".to_owned(),
                exports => exports.join(", "),
            };
            Some(format!(
                "it exports {exports}, which is no world of a plugin: in Rust the macro `export_…!` of the \
                 SDK says what is exported, in JavaScript `export const` does"
            ))
        }
    }
}

/// Advice for an import that the manifest does not declare.
fn undeclared(import: &str, grants: &[String]) -> Option<String> {
    let Some(interface) = import.strip_prefix(GRANTABLE) else {
        return Some("a gateway offers infergate:host/log, counters and tables only".to_owned());
    };
    let grant = interface.split('@').next().unwrap_or(interface);
    if grants.iter().any(|declared| declared == grant) {
        return None;
    }
    Some(format!(
        "declare it: `grants = [\"{grant}\"]` under [package.metadata.infergate] in Cargo.toml, \
         \"infergate\": {{\"grants\": [\"{grant}\"]}} in package.json"
    ))
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    fs::create_dir_all(folder.unwrap_or(Path::new(".")))?;
    let partial = path.with_extension("wasm.partial");
    fs::write(&partial, bytes)?;
    fs::rename(&partial, path)
}

/// Puts the fixtures beside the component, where the gateway looks for them before it lets it in. Fixtures of
/// a former build are removed first.
fn copy_fixtures(from: &Path, to: &Path) -> io::Result<()> {
    // Only what a build has put there: the folder may hold other files.
    let old = fs::read_dir(to).into_iter().flatten().flatten();
    for file in old.map(|entry| entry.path()) {
        if file.extension().is_some_and(|ending| ending == "json") {
            fs::remove_file(file)?;
        }
    }
    let _ = fs::remove_dir(to);
    let Ok(entries) = fs::read_dir(from) else {
        return Ok(());
    };
    let files = entries.flatten().map(|entry| entry.path());
    for file in files.filter(|file| file.extension().is_some_and(|ending| ending == "json")) {
        fs::create_dir_all(to)?;
        fs::copy(&file, to.join(file.file_name().unwrap_or_default()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_import_needs_a_declared_grant_and_wasi_never_gets_one() {
        let grants = ["log".to_owned()];
        assert_eq!(undeclared("infergate:host/log@1.0.0", &grants), None);
        let advice = undeclared("infergate:host/tables@1.0.0", &grants).unwrap();
        assert!(advice.contains("grants = [\"tables\"]"), "{advice}");
        assert!(undeclared("wasi:cli/stdout@0.2.0", &grants).is_some());
    }

    #[test]
    fn a_component_that_exports_nothing_is_not_built() {
        let why = no_plugin(&wat::parse_str("(component)").unwrap()).unwrap();
        assert!(why.contains("exports nothing"), "{why}");
    }

    #[test]
    fn a_folder_without_a_manifest_is_told_so() {
        let folder = tempfile::tempdir().unwrap();
        let error = build(folder.path(), None).unwrap_err().to_string();
        assert!(error.contains("no Cargo.toml"), "{error}");
    }

    #[test]
    fn fixtures_go_with_the_component_and_old_ones_do_not_stay() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("tests"), folder.path().join("a.tests"));
        for path in [&from, &to] {
            fs::create_dir(path).unwrap();
        }
        fs::write(from.join("new.json"), "{}").unwrap();
        fs::write(from.join("notes.md"), "").unwrap();
        fs::write(to.join("old.json"), "{}").unwrap();
        copy_fixtures(&from, &to).unwrap();
        let names: Vec<_> = fs::read_dir(&to)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["new.json"]);
        fs::remove_dir_all(&from).unwrap();
        copy_fixtures(&from, &to).unwrap();
        assert!(!to.exists());
    }

    #[test]
    fn what_is_written_is_whole_and_leaves_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dist/a.wasm");
        write(&path, b"first").unwrap();
        write(&path, b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }
}
