//! Target of a command: a component, its world and its fixtures.
//!
//! Builds nothing: a folder's component must have been built, and one that is older than its source is
//! reported. Reads files; prints a warning to standard error.

use std::fs;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::Args;
use serde_json::{Map, Value};

use super::manifest::PluginManifest;
use crate::cli::tooling::host::{
    ComponentInfo, CostMeasure, OpenedComponent, PluginFixture, ToolHost, fixtures_beside,
};
use crate::plugin::{PluginLimits, World};
use crate::telemetry::printable;

/// Folders upwards in which `dist` is looked for: a plugin in a workspace has it at the workspace's.
const PARENTS_MAX: usize = 4;

/// Selection of a plugin.
#[derive(Args, Clone, Debug)]
pub struct PluginSelector {
    /// The component (.wasm), or the folder of a project that was built.
    #[arg(default_value = ".", value_name = "FILE|DIR")]
    pub target: PathBuf,
    /// The world it is for, where it exports several.
    #[arg(long, value_name = "WORLD", value_parser = world)]
    pub world: Option<World>,
    /// Folder of its fixtures; by default `tests` of a project, or `NAME.tests` beside a component.
    #[arg(long, value_name = "DIR")]
    pub fixtures: Option<PathBuf>,
    /// Limits it will be configured with, as under `plugins[].limits`: `{"memory_mib": 64}`. Absent limits
    /// are the world's defaults.
    #[arg(long, value_name = "JSON", value_parser = limits)]
    pub limits: Option<PluginLimits>,
}

/// Plugin, with the facts that commands need.
pub struct PluginTarget {
    /// Its component.
    pub file: PathBuf,
    /// Facts about the component.
    pub info: ComponentInfo,
    /// World of the plugin.
    pub world: World,
    /// Folder of the fixtures, if there is one.
    pub folder: Option<PathBuf>,
    /// Its fixtures, in the order of names.
    pub fixtures: Vec<PluginFixture>,
    /// Limits of the plugin.
    pub limits: PluginLimits,
}

/// A world by its name.
pub fn world(name: &str) -> Result<World, String> {
    let known = World::ALL.into_iter().find(|world| world.name() == name);
    known.ok_or_else(|| {
        let names = World::ALL.map(World::name);
        format!("the worlds are {}", names.join(", "))
    })
}

/// Limits as the configuration spells them.
fn limits(text: &str) -> Result<PluginLimits, String> {
    serde_json::from_str(text).map_err(|error| format!("not as under `plugins[].limits`: {error}"))
}

/// The component that is meant, its project's folder, and what the project says.
pub struct FoundPlugin {
    pub file: PathBuf,
    pub project: Option<(PathBuf, PluginManifest)>,
}

impl PluginSelector {
    /// Finds the component.
    pub fn find(&self) -> Result<FoundPlugin, String> {
        let path = &self.target;
        let shown = path.display();
        if path.is_file() {
            return Ok(FoundPlugin {
                file: path.clone(),
                project: None,
            });
        }
        if !path.is_dir() {
            return Err(format!("{shown}: there is no such file or folder"));
        }
        let Some(manifest) = PluginManifest::read(path)? else {
            return match components(path).as_slice() {
                [only] => Ok(FoundPlugin {
                    file: only.clone(),
                    project: None,
                }),
                [] => Err(format!(
                    "{shown}: no Cargo.toml, no package.json and no .wasm file in it"
                )),
                many => Err(format!("{shown}: {} components; name one", many.len())),
            };
        };
        let built = format!("dist/{}.wasm", manifest.name);
        let absolute = fs::canonicalize(path).unwrap_or_else(|_| path.clone());
        let own = match path == Path::new(".") {
            true => PathBuf::from(&built),
            false => path.join(&built),
        };
        let above = absolute.ancestors().skip(1).take(PARENTS_MAX);
        let mut places = std::iter::once(own).chain(above.map(|folder| folder.join(&built)));
        let Some(file) = places.find(|file| file.is_file()) else {
            return Err(format!(
                "{shown}: not built yet: run `infergate plugin build {shown}`"
            ));
        };
        if let Some(source) = newer_source(path, &file) {
            warn(&format!(
                "{} is older than {}: run `infergate plugin build {shown}`",
                file.display(),
                source.display()
            ));
        }
        Ok(FoundPlugin {
            file,
            project: Some((path.clone(), manifest)),
        })
    }

    /// Finds and reads everything.
    pub fn read(&self) -> Result<PluginTarget, String> {
        let found = self.find()?;
        let file = found.file;
        let info =
            ComponentInfo::of_file(&file).map_err(|why| format!("{}: {why}", file.display()))?;
        let declared = found
            .project
            .as_ref()
            .and_then(|(_, manifest)| manifest.world);
        let world = choose(&info, self.world.or(declared))
            .map_err(|why| format!("{}: {why}", file.display()))?;
        let of_project = found
            .project
            .as_ref()
            .map(|(folder, _)| folder.join("tests"));
        let folder = match (&self.fixtures, of_project) {
            (Some(folder), _) => Some(folder.clone()),
            (None, Some(folder)) => folder.is_dir().then_some(folder),
            (None, None) => fixtures_beside(&file),
        };
        let fixtures = folder
            .as_deref()
            .map_or(Ok(Vec::new()), PluginFixture::folder)?;
        Ok(PluginTarget {
            file,
            info,
            world,
            folder,
            fixtures,
            limits: self.limits.unwrap_or_default(),
        })
    }
}

impl PluginTarget {
    /// Compiles it.
    pub fn open(&self, tool_host: &ToolHost) -> Result<OpenedComponent, String> {
        progress(&format!("compiling {}", self.file.display()));
        let opened = tool_host.open(&self.info, self.world, self.limits);
        opened.map_err(|why| format!("{}: {why}", self.file.display()))
    }

    /// The fixtures, of which there must be some.
    pub fn some_fixtures(&self) -> Result<&[PluginFixture], String> {
        match (self.fixtures.is_empty(), &self.folder) {
            (false, _) => Ok(&self.fixtures),
            (true, Some(folder)) => Err(format!("{}: no .json file in it", folder.display())),
            (true, None) => Err(format!(
                "{}: no fixtures: put calls with their expected answers into tests/*.json of the \
                 project, {} beside the component, or give --fixtures",
                self.file.display(),
                self.file.with_extension("tests").display()
            )),
        }
    }

    /// Settings to begin with: those given, none, or where it does not begin with none, those of the
    /// first fixture that expects an answer, with its name.
    pub fn settings(
        &self,
        opened: &OpenedComponent,
        given: Option<&str>,
    ) -> Result<(Map<String, Value>, Option<&PluginFixture>), String> {
        if let Some(text) = given {
            return Ok((json_object(text)?, None));
        }
        let none = Map::new();
        let begins = opened
            .with_settings(&none, &Default::default())
            .try_setup()
            .is_ok();
        let with_answer = self
            .fixtures
            .iter()
            .find(|fixture| fixture.expect.is_some());
        match with_answer.filter(|_| !begins) {
            Some(fixture) => Ok((fixture.settings.clone(), Some(fixture))),
            None => Ok((none, None)),
        }
    }
}

/// An engine for the tools. Compiled code is kept in the user's cache folder, so that a large guest is
/// compiled once.
pub fn tool_host(measure: CostMeasure) -> Result<ToolHost, String> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let folder = base.map(|base| base.join("infergate/plugins"));
    ToolHost::start(measure, folder.as_deref())
}

/// `{"a": 1}`, or `@FILE` with that.
fn json_object(text: &str) -> Result<Map<String, Value>, String> {
    let read;
    let text = match text.strip_prefix('@') {
        None => text,
        Some(file) => {
            read = fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
            &read
        }
    };
    serde_json::from_str(text).map_err(|error| format!("--settings: not a JSON object: {error}"))
}

/// The world that is meant, when the component is complete for it.
pub fn choose(info: &ComponentInfo, requested: Option<World>) -> Result<World, String> {
    if let Some(world) = requested {
        let lacks = info.missing_exports(world);
        return match lacks.is_empty() {
            true => Ok(world),
            false => Err(lacks.join("; ")),
        };
    }
    match info.worlds().as_slice() {
        [only] => Ok(*only),
        [] => {
            let exports = match info.exports.as_slice() {
                [] => "nothing".to_owned(),
                exports => exports.join(", "),
            };
            let names = World::ALL.map(World::name);
            Err(format!(
                "it is no plugin of any world: it exports {exports}; the worlds are {}, and \
                 `infergate plugin new` begins one",
                names.join(", ")
            ))
        }
        several => {
            let names: Vec<&str> = several.iter().map(|world| world.name()).collect();
            Err(format!(
                "it is a plugin of {}: say which with --world",
                names.join(" and ")
            ))
        }
    }
}

/// Every component of a folder, in the order of names.
pub fn components(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "wasm"))
        .collect();
    files.sort();
    files
}

/// A source file that was changed after the component was made.
fn newer_source(project: &Path, component: &Path) -> Option<PathBuf> {
    let changed = |path: &Path| fs::metadata(path).and_then(|about| about.modified()).ok();
    let made: SystemTime = changed(component)?;
    let own = ["Cargo.toml", "package.json", "plugin.js"].map(|name| project.join(name));
    let src = fs::read_dir(project.join("src"))
        .into_iter()
        .flatten()
        .flatten();
    let mut sources = own.into_iter().chain(src.map(|entry| entry.path()));
    sources.find(|path| changed(path).is_some_and(|at| at > made))
}

/// Line of progress on a terminal; a pipe gets none.
pub fn progress(text: &str) {
    let mut stderr = std::io::stderr();
    if stderr.is_terminal() {
        let _ = writeln!(stderr, "{} …", printable(text));
    }
}

/// A line on standard error.
pub fn warn(text: &str) {
    let _ = writeln!(std::io::stderr(), "warning: {}", printable(text));
}
