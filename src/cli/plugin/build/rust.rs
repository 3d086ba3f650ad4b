//! Plugins in Rust: cargo for wasm32-unknown-unknown, then the component encoding of this binary.
//!
//! Needs cargo and rustup's target, and reads cargo's JSON output instead of guessing paths.

use std::ffi::OsString;
use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use super::result::{BuildError, CompilerOutput};
use crate::cli::plugin::wording::ProgressStep;
use crate::cli::tooling::encode;

const TARGET: &str = "wasm32-unknown-unknown";
/// A guest's stack stands before its data; 64 KiB of it instead of Rust's 1 MiB keeps the working set
/// within the pages that a pooled instance keeps resident.
const STACK: &str = "-Clink-arg=-zstack-size=65536";

/// Part of a workspace that is built.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum CargoSelection {
    /// The package of the folder, for cargo.
    Package,
    /// All of it, in one run of cargo.
    Workspace,
}

/// Builds the plugins of a folder and makes them components.
pub fn compile(dir: &Path, which: CargoSelection) -> Result<Vec<CompilerOutput>, BuildError> {
    if !dir.join("Cargo.toml").is_file() {
        return Err(BuildError::NoManifest(dir.to_owned()));
    }
    let workspace = CargoWorkspace::read(dir)?;
    let step = ProgressStep::begin(&format!(
        "compiling {} for {TARGET}; a first build compiles what it depends on, for about a minute",
        dir.display()
    ));
    let messages = build(dir, which)?;
    drop(step);
    let _step = ProgressStep::begin("making a component of it");
    let mut compiled = Vec::new();
    for message in messages.lines() {
        let Ok(message) = serde_json::from_str::<Value>(message) else {
            continue;
        };
        let Some((package, module)) = plugin_module(&message) else {
            continue;
        };
        compiled.push(workspace.component(package, &module)?);
    }
    Ok(compiled)
}

/// Error for code without a plugin in it.
pub fn no_plugin(dir: &Path) -> BuildError {
    BuildError::Manifest {
        file: dir.join("Cargo.toml"),
        message: "builds no plugin; add `[lib] crate-type = [\"cdylib\"]`".to_owned(),
    }
}

fn build(dir: &Path, which: CargoSelection) -> Result<String, BuildError> {
    let mut cargo = Command::new("cargo");
    cargo
        .current_dir(dir)
        .args(["build", "--release", "--target", TARGET])
        .arg("--message-format=json-render-diagnostics")
        .arg(format!("--config=target.{TARGET}.rustflags=[\"{STACK}\"]"));
    if which == CargoSelection::Workspace {
        cargo.arg("--workspace");
    }
    // On a terminal cargo shows its progress.
    if !std::io::stderr().is_terminal() {
        cargo.arg("--quiet");
    }
    // Flags in the environment win over those of any configuration, so they have to carry ours.
    if let Some(mut flags) = std::env::var_os("RUSTFLAGS") {
        flags.push(OsString::from(format!(" {STACK}")));
        cargo.env("RUSTFLAGS", flags);
    }
    let output = run(&mut cargo)?;
    if !output.status.success() {
        return Err(BuildError::Failed {
            program: "cargo build",
            advice: (!has_target()).then_some("run `rustup target add wasm32-unknown-unknown`"),
        });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn run(cargo: &mut Command) -> Result<Output, BuildError> {
    cargo
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|_| BuildError::NoProgram {
            program: "cargo",
            advice: "install Rust from https://rustup.rs",
        })
}

/// Is the standard library for the target installed?
fn has_target() -> bool {
    Command::new("rustc")
        .args(["--print", "target-libdir", "--target", TARGET])
        .output()
        .is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}

/// The package id and the module, when the message is about a plugin that was built.
fn plugin_module(message: &Value) -> Option<(&str, PathBuf)> {
    let kinds = message.pointer("/target/crate_types")?.as_array()?;
    if message.get("reason")? != "compiler-artifact" || !kinds.iter().any(|kind| kind == "cdylib") {
        return None;
    }
    let files = message.get("filenames")?.as_array()?;
    let module = files
        .iter()
        .filter_map(Value::as_str)
        .find(|file| file.ends_with(".wasm"))?;
    Some((message.get("package_id")?.as_str()?, module.into()))
}

/// Members of cargo's metadata of the workspace.
struct CargoWorkspace {
    root: PathBuf,
    packages: Vec<Value>,
}

impl CargoWorkspace {
    fn read(dir: &Path) -> Result<CargoWorkspace, BuildError> {
        let mut cargo = Command::new("cargo");
        cargo
            .current_dir(dir)
            .args(["metadata", "--no-deps", "--format-version=1"]);
        let failed = BuildError::Failed {
            program: "cargo metadata",
            advice: None,
        };
        let output = run(&mut cargo)?;
        let Ok(mut metadata) = serde_json::from_slice::<Value>(&output.stdout) else {
            return Err(failed);
        };
        let (Some(root), Value::Array(packages)) = (
            metadata["workspace_root"].as_str().map(PathBuf::from),
            metadata["packages"].take(),
        ) else {
            return Err(failed);
        };
        Ok(CargoWorkspace { root, packages })
    }

    fn component(&self, id: &str, module: &Path) -> Result<CompilerOutput, BuildError> {
        let package = self.packages.iter().find(|package| package["id"] == id);
        let name = package
            .and_then(|package| package["name"].as_str())
            .unwrap_or(id)
            .to_owned();
        let grants = package
            .and_then(|package| package.pointer("/metadata/infergate/grants")?.as_array())
            .map(|grants| grants.iter().filter_map(Value::as_str).map(str::to_owned));
        let fixtures = package
            .and_then(|package| Path::new(package["manifest_path"].as_str()?).parent())
            .map(|folder| folder.join("tests"));
        let module = fs::read(module).map_err(|error| BuildError::Io {
            path: module.to_owned(),
            error,
        })?;
        let component = encode::encode(&module).map_err(|error| BuildError::Encode {
            name: name.clone(),
            error,
        })?;
        Ok(CompilerOutput {
            name,
            component,
            grants: grants.map(Iterator::collect).unwrap_or_default(),
            folder: self.root.join("dist"),
            fixtures: fixtures.unwrap_or_default(),
        })
    }
}
