//! `plugin new`: a project that builds at once, with a working hook, two fixtures and the interfaces.
//!
//! Builds and fetches nothing. A Rust project gets the SDK's sources as a crate of its own: hooks are methods
//! of a trait, settings are checked, and nothing has to be published. `--sdk-only` brings the sources up to
//! date. The same fixtures hold for either language.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::files::{self, ProjectFile};
use crate::cli::plugin::outcome::CommandOutcome;
use crate::cli::plugin::target::world;
use crate::plugin::{World, wit};

/// `--help` of it.
pub const EXAMPLES: &str = "\
Worlds:
  task-schema             checks input, shapes payload and answer of a model
  task-schema-streaming   the same, and shapes the events of a stream
  billing-formula         turns metrics into neurons
  billing-estimator       the same, and counts tokens for models that are not trusted
  routing-policy          orders the endpoints of a request

Examples:
  infergate plugin new my-prices --world billing-formula
  infergate plugin new my-prices --world billing-formula --lang js
  infergate plugin new my-prices --sdk-only      the SDK and the interfaces of this version, again";

/// Longest name: it becomes a file's and a package's.
const NAME_MAX_BYTES: usize = 64;

/// Arguments of `plugin new`.
#[derive(Args, Debug)]
pub struct NewArgs {
    /// The folder to make; its last part is the plugin's name.
    #[arg(value_name = "NAME")]
    folder: PathBuf,
    /// World of the plugin: what it decides.
    #[arg(long, value_name = "WORLD", value_parser = world, required_unless_present = "sdk_only")]
    world: Option<World>,
    /// Language of the source.
    #[arg(long, value_enum, default_value_t = Language::Rust)]
    lang: Language,
    /// Only write the SDK and the interfaces into a Rust project that exists.
    #[arg(long, conflicts_with_all = ["world", "lang"])]
    sdk_only: bool,
}

/// Languages; the hidden ones have no template: the command explains how to do without a project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Language {
    Rust,
    Js,
    #[value(hide = true)]
    Python,
    #[value(hide = true)]
    C,
}

/// Runs it.
pub fn run(args: &NewArgs) -> Result<CommandOutcome, String> {
    let folder = &args.folder;
    if args.sdk_only {
        return sdk_only(folder);
    }
    let Some(world) = args.world else {
        return Err("give --world".to_owned());
    };
    let name = name_of(folder)?;
    let files = match args.lang {
        Language::Rust => files::rust(&name, world),
        Language::Js => files::javascript(&name, world),
        Language::Python => {
            return Err(
                "--lang python: no project is made for it, because its components have 18 MiB and more \
                 memory than a plugin gets by default; componentize-py makes one from \
                 `infergate plugin wit --out wit`, and `plugin check` judges it"
                    .to_owned(),
            );
        }
        Language::C => {
            return Err(
                "--lang c: no project is made for it; wit-bindgen makes C headers from \
                 `infergate plugin wit --out wit`, and `plugin check` judges the component"
                    .to_owned(),
            );
        }
    };
    if fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some()) || folder.is_file() {
        return Err(format!(
            "{}: is there already, and not empty",
            folder.display()
        ));
    }
    write(folder, &files)?;
    let shown = folder.display();
    let source = match args.lang {
        Language::Js => "plugin.js",
        _ => "src/lib.rs",
    };
    Ok(CommandOutcome {
        text: format!(
            "{shown}: {}, in {shown}/{source}\n\nnext:\n  infergate plugin build {shown}\n  \
             infergate plugin test {shown}\n",
            world.name()
        ),
        good: true,
    })
}

fn sdk_only(folder: &Path) -> Result<CommandOutcome, String> {
    if !folder.join("Cargo.toml").is_file() {
        return Err(format!(
            "{}: no Rust project: no Cargo.toml in it",
            folder.display()
        ));
    }
    write(folder, &files::sdk())?;
    Ok(CommandOutcome {
        text: format!(
            "{}: vendor/infergate-sdk, vendor/infergate-tasks and wit are of this version\n",
            folder.display()
        ),
        good: true,
    })
}

fn name_of(folder: &Path) -> Result<String, String> {
    let name = folder
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let begins = name.starts_with(|c: char| c.is_ascii_lowercase());
    match begins && name.len() <= NAME_MAX_BYTES && name.chars().all(is_plain) {
        true => Ok(name),
        false => Err(format!(
            "{}: a plugin's name has small letters, digits and `-`, and begins with a letter: my-prices",
            folder.display()
        )),
    }
}

fn write(folder: &Path, files: &[ProjectFile]) -> Result<(), String> {
    let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    for (path, text) in files {
        let path = folder.join(path);
        let parent = path.parent().unwrap_or(folder);
        fs::create_dir_all(parent).map_err(|error| failed(parent, error))?;
        fs::write(&path, text).map_err(|error| failed(&path, error))?;
    }
    let interfaces = folder.join("wit");
    wit::write(&interfaces).map_err(|error| failed(&interfaces, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(folder: PathBuf, world: World, lang: Language) -> Result<CommandOutcome, String> {
        run(&NewArgs {
            folder,
            world: Some(world),
            lang,
            sdk_only: false,
        })
    }

    #[test]
    fn every_world_has_a_project_in_either_language_with_a_good_and_a_refusing_fixture() {
        let dir = tempfile::tempdir().unwrap();
        for world in World::ALL {
            for (lang, source) in [(Language::Rust, "src/lib.rs"), (Language::Js, "plugin.js")] {
                let folder = dir
                    .path()
                    .join(format!("p-{}-{lang:?}", world.name()).to_lowercase());
                new(folder.clone(), world, lang).unwrap();
                let fixtures =
                    crate::cli::tooling::host::PluginFixture::folder(&folder.join("tests"))
                        .unwrap();
                assert!(fixtures.iter().any(|one| one.expect.is_some()));
                assert!(fixtures.iter().any(|one| one.expect_error.is_some()));
                let text = fs::read_to_string(folder.join(source)).unwrap();
                assert!(text.contains("p-") && !text.contains("@NAME@"), "{text}");
                assert!(folder.join("wit/deps/host/host.wit").is_file());
                assert!(folder.join(".github/workflows/plugin.yml").is_file());
                for (path, _) in files::rust("p", world) {
                    let there = folder.join(&path).is_file();
                    assert!(there || lang == Language::Js, "{path}");
                }
            }
        }
    }

    #[test]
    fn nothing_is_written_over_and_names_are_plain() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("mine"), "x").unwrap();
        let error = new(dir.path().join("mine"), World::RoutingPolicy, Language::Js)
            .err()
            .unwrap();
        assert!(error.contains("there already"), "{error}");
        for name in ["My-Prices", "9lives", "a b", "a_b"] {
            let error = new(dir.path().join(name), World::RoutingPolicy, Language::Js)
                .err()
                .unwrap();
            assert!(error.contains("small letters"), "{name}: {error}");
        }
        for lang in [Language::Python, Language::C] {
            let error = new(dir.path().join("p"), World::RoutingPolicy, lang)
                .err()
                .unwrap();
            assert!(error.contains("plugin wit --out"), "{error}");
        }
    }
}
