//! `plugin lock` and `plugin verify`: which bytes are meant, by their digests.
//!
//! A lock file is what `sha256sum` writes and `sha256sum -c` reads. Configurations are never edited: a
//! snippet to paste is printed.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use sha2::{Digest, Sha256};

use super::outcome::CommandOutcome;
use super::target::components;
use crate::config;

/// `--help` of lock.
pub const LOCK_EXAMPLES: &str = "\
Without --write it prints; with it, it writes FOLDER/plugins.lock and nothing else. A lock file has the
form of sha256sum, so `sha256sum -c plugins.lock` checks it too.

Examples:
  infergate plugin lock                         every component in dist, or in this folder
  infergate plugin lock plugins/dist --write    writes plugins/dist/plugins.lock
  infergate plugin lock infergate.yaml          `sha256:` for each plugin of a configuration, to paste";
/// `--help` of verify.
pub const VERIFY_EXAMPLES: &str = "\
Exit codes: 0 all are the ones meant, 1 one is changed, missing or not locked.

Examples:
  infergate plugin verify                       dist/plugins.lock, or plugins.lock in this folder
  infergate plugin verify plugins/dist          plugins.lock in that folder
  infergate plugin verify infergate.yaml        the `sha256:` of a configuration's plugins";

const LOCK: &str = "plugins.lock";

/// Arguments of `plugin lock`.
#[derive(Args, Debug)]
pub struct LockArgs {
    /// A folder of components, or a configuration file.
    #[arg(default_value = ".", value_name = "DIR|CONFIG")]
    of: PathBuf,
    /// Write the lock file.
    #[arg(long)]
    write: bool,
}

/// Arguments of `plugin verify`.
#[derive(Args, Debug)]
pub struct VerifyArgs {
    /// A lock file, a folder with one, or a configuration file.
    #[arg(default_value = ".", value_name = "LOCK|DIR|CONFIG")]
    of: PathBuf,
}

/// Runs lock.
pub fn run(args: &LockArgs) -> Result<CommandOutcome, String> {
    if args.of.is_dir() {
        return folder(&folder_of(&args.of), args.write);
    }
    if !args.of.is_file() {
        return Err(format!(
            "{}: there is no such file or folder",
            args.of.display()
        ));
    }
    let plugins = plugins_of(&args.of)?;
    if args.write {
        let beside = args.of.parent().unwrap_or(Path::new("."));
        let mut text = String::new();
        for plugin in &plugins {
            let name = plugin.file.strip_prefix(beside).unwrap_or(&plugin.file);
            let _ = writeln!(text, "{}  {}", plugin.found.clone()?, name.display());
        }
        return write(&beside.join(LOCK), &text);
    }
    let mut text = String::from("plugins:\n");
    for plugin in &plugins {
        let digest = plugin.found.clone()?;
        let note = match &plugin.meant {
            Some(meant) if meant.eq_ignore_ascii_case(&digest) => "   # as it is",
            Some(_) => "   # another one stands there",
            None => "",
        };
        let _ = writeln!(
            text,
            "  - name: {}\n    sha256: \"{digest}\"{note}",
            plugin.name
        );
    }
    Ok(CommandOutcome { text, good: true })
}

/// Runs verify.
pub fn verify(args: &VerifyArgs) -> Result<CommandOutcome, String> {
    let of = &args.of;
    let findings = match of.is_dir() {
        true => locked(&folder_of(of).join(LOCK))?,
        false if of.extension().is_some_and(|ending| ending == "lock") => locked(of)?,
        false if !of.exists() => {
            return Err(format!("{}: there is no such file or folder", of.display()));
        }
        false => configured(of)?,
    };
    let good = findings.iter().all(|(good, _)| *good);
    let lines = findings
        .iter()
        .map(|(good, line)| format!("{:4}  {line}\n", if *good { "ok" } else { "FAIL" }));
    Ok(CommandOutcome {
        text: lines.collect(),
        good,
    })
}

/// `dist` of a project, or the folder itself.
fn folder_of(path: &Path) -> PathBuf {
    let dist = path.join("dist");
    if components(path).is_empty() && dist.is_dir() {
        return dist;
    }
    path.to_owned()
}

fn folder(folder: &Path, is_written: bool) -> Result<CommandOutcome, String> {
    let files = components(folder);
    if files.is_empty() {
        return Err(format!("{}: no .wasm file in it", folder.display()));
    }
    let mut text = String::new();
    for file in &files {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let _ = writeln!(text, "{}  {name}", digest(file)?);
    }
    match is_written {
        true => write(&folder.join(LOCK), &text),
        false => Ok(CommandOutcome { text, good: true }),
    }
}

fn write(file: &Path, text: &str) -> Result<CommandOutcome, String> {
    fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    let text = format!("{}: {} locked\n", file.display(), text.lines().count());
    Ok(CommandOutcome { text, good: true })
}

fn digest(file: &Path) -> Result<String, String> {
    let bytes = fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(hex::encode(Sha256::digest(bytes)))
}

/// A plugin of a configuration.
struct ConfiguredPlugin {
    name: String,
    file: PathBuf,
    meant: Option<String>,
    dev: bool,
    found: Result<String, String>,
}

fn plugins_of(file: &Path) -> Result<Vec<ConfiguredPlugin>, String> {
    let loaded = config::load(file).map_err(|problems| {
        let lines = problems.iter().map(|problem| format!("\n  {problem}"));
        format!("{}: {}", file.display(), lines.collect::<String>())
    })?;
    let plugins: Vec<ConfiguredPlugin> = loaded
        .config
        .plugins
        .into_iter()
        .map(|plugin| ConfiguredPlugin {
            name: plugin.name.to_string(),
            found: digest(&plugin.file),
            file: plugin.file,
            meant: plugin.sha256.map(|meant| meant.to_string()),
            dev: plugin.dev,
        })
        .collect();
    match plugins.is_empty() {
        true => Err(format!("{}: it declares no plugins", file.display())),
        false => Ok(plugins),
    }
}

fn configured(file: &Path) -> Result<Vec<(bool, String)>, String> {
    let line = |plugin: ConfiguredPlugin| {
        let name = &plugin.name;
        match (plugin.found, plugin.meant) {
            (Err(why), _) => (false, format!("{name}: {why}")),
            (Ok(found), Some(meant)) if found.eq_ignore_ascii_case(&meant) => {
                (true, format!("{name}: {}", plugin.file.display()))
            }
            (Ok(found), Some(_)) => (
                false,
                format!(
                    "{name}: {} has {found}: not the one meant, or it has been changed",
                    plugin.file.display()
                ),
            ),
            (Ok(_), None) if plugin.dev => (true, format!("{name}: dev, any bytes are taken")),
            (Ok(found), None) => (false, format!("{name}: no `sha256`; the file has {found}")),
        }
    };
    Ok(plugins_of(file)?.into_iter().map(line).collect())
}

fn locked(lock: &Path) -> Result<Vec<(bool, String)>, String> {
    let wrong = |what: &dyn std::fmt::Display| format!("{}: {what}", lock.display());
    let text = fs::read_to_string(lock).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            wrong(&"there is none; `infergate plugin lock --write` writes it")
        }
        _ => wrong(&error),
    })?;
    let folder = lock.parent().unwrap_or(Path::new("."));
    let mut findings = Vec::new();
    let mut known = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let Some((meant, name)) = line.split_once("  ") else {
            return Err(wrong(&format!("line {}: expected `DIGEST  FILE`", at + 1)));
        };
        let file = folder.join(name);
        findings.push(match digest(&file) {
            Ok(found) if found.eq_ignore_ascii_case(meant) => (true, name.to_owned()),
            Ok(found) => (false, format!("{name} has {found}: it has been changed")),
            Err(why) => (false, why),
        });
        known.push(file);
    }
    for file in components(folder) {
        if !known.contains(&file) {
            findings.push((false, format!("{} is not locked", file.display())));
        }
    }
    Ok(findings)
}
