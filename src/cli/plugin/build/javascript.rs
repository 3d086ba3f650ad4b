//! Plugins in JavaScript: componentize-qjs from npm, which puts QuickJS and the script in a component.
//!
//! `package.json` names the script (`main`), the world (`infergate.world`) and the grants. Without
//! `--sync` the component would use the asynchronous ABI, without `--stub-wasi` it would import WASI;
//! the gateway takes neither.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::result::{BuildError, CompilerOutput};
use crate::cli::plugin::wording::ProgressStep;
use crate::plugin::wit;

const TOOL: &str = "node_modules/.bin/componentize-qjs";
const FLAGS: [&str; 4] = ["--sync", "--stub-wasi", "--opt-size", "--minify"];

/// Builds the plugin of a folder.
pub fn compile(dir: &Path) -> Result<CompilerOutput, BuildError> {
    let manifest = PackageJson::read(&dir.join("package.json"))?;
    if !dir.join(TOOL).exists() {
        let _step = ProgressStep::begin("fetching componentize-qjs with npm");
        install(dir)?;
    }
    let work = dir.join("node_modules/.infergate");
    let component = work.join("plugin.wasm");
    let io = |path: &Path| {
        let path = path.to_owned();
        move |error| BuildError::Io { path, error }
    };
    fs::create_dir_all(&work).map_err(io(&work))?;
    let own = dir.join("wit");
    let interfaces = match own.is_dir() {
        true => PathBuf::from("wit"),
        false => {
            let folder = work.join("wit");
            // Anew: files of a former release would be read too.
            let _ = fs::remove_dir_all(&folder);
            wit::write(&folder).map_err(io(&folder))?;
            PathBuf::from("node_modules/.infergate/wit")
        }
    };
    let step = ProgressStep::begin(&format!(
        "putting {} and QuickJS into a component",
        manifest.script
    ));
    let output = Command::new(Path::new(".").join(TOOL))
        .current_dir(dir)
        .arg("--wit")
        .arg(interfaces)
        .args(["--world", &manifest.world, "--js", &manifest.script])
        .args(FLAGS)
        .args(["--output", "node_modules/.infergate/plugin.wasm"])
        .stdin(Stdio::null())
        .output();
    drop(step);
    match output {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            // Its output is of use only now.
            let _ = std::io::stderr().write_all(&[output.stdout, output.stderr].concat());
            return Err(BuildError::Failed {
                program: "componentize-qjs",
                advice: None,
            });
        }
        Err(_) => {
            return Err(BuildError::NoProgram {
                program: "componentize-qjs",
                advice: "it is a program of node: install node 18 or later",
            });
        }
    }
    Ok(CompilerOutput {
        name: manifest.name,
        component: fs::read(&component).map_err(io(&component))?,
        grants: manifest.grants,
        folder: dir.join("dist"),
        fixtures: dir.join("tests"),
    })
}

/// Fetches the tool, as the lock file says when there is one.
fn install(dir: &Path) -> Result<(), BuildError> {
    let verb = match dir.join("package-lock.json").is_file() {
        true => "ci",
        false => "install",
    };
    let status = Command::new("npm")
        .current_dir(dir)
        .args([verb, "--no-audit", "--no-fund", "--loglevel=error"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .map_err(|_| BuildError::NoProgram {
            program: "npm",
            advice: "install node 18 or later",
        })?;
    match status.success() && dir.join(TOOL).exists() {
        true => Ok(()),
        false => Err(BuildError::Failed {
            program: "npm",
            advice: Some("package.json must have `componentize-qjs` under devDependencies"),
        }),
    }
}

/// Members of a plugin's `package.json`.
struct PackageJson {
    name: String,
    script: String,
    world: String,
    grants: Vec<String>,
}

impl PackageJson {
    fn read(file: &Path) -> Result<PackageJson, BuildError> {
        let problem = |message: String| BuildError::Manifest {
            file: file.to_owned(),
            message,
        };
        let text = fs::read_to_string(file).map_err(|error| BuildError::Io {
            path: file.to_owned(),
            error,
        })?;
        let json: Value =
            serde_json::from_str(&text).map_err(|error| problem(error.to_string()))?;
        let text = |pointer: &str| json.pointer(pointer)?.as_str().map(str::to_owned);
        let world = text("/infergate/world").ok_or_else(|| {
            problem("name the world: \"infergate\": {\"world\": \"billing-formula\"}".to_owned())
        })?;
        let name = text("/name").ok_or_else(|| problem("has no \"name\"".to_owned()))?;
        let grants = json.pointer("/infergate/grants").and_then(Value::as_array);
        Ok(PackageJson {
            name,
            script: text("/main").unwrap_or_else(|| "plugin.js".to_owned()),
            world,
            grants: grants
                .into_iter()
                .flatten()
                .filter_map(|grant| grant.as_str().map(str::to_owned))
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_without_a_world_is_told_what_to_write() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("package.json");
        fs::write(&file, r#"{"name": "prices"}"#).unwrap();
        let error = PackageJson::read(&file)
            .map(|m| m.name)
            .unwrap_err()
            .to_string();
        assert!(error.contains("billing-formula"), "{error}");
        fs::write(
            &file,
            r#"{"name": "prices", "infergate": {"world": "billing-formula"}}"#,
        )
        .unwrap();
        let manifest = PackageJson::read(&file).unwrap();
        assert_eq!(
            (manifest.script.as_str(), manifest.grants.len()),
            ("plugin.js", 0)
        );
    }
}
