//! `plugin check`: everything that would keep a gateway from loading a component, each with what to do.
//!
//! Compares no fresh instance with a used one; `plugin test` does. Beyond reading the file it compiles it,
//! makes an instance and runs the fixtures, all of it under the limits of a gateway.

use std::path::Path;

use clap::Args;
use serde_json::json;

use super::outcome::CommandOutcome;
use super::target::{self, PluginSelector, PluginTarget};
use super::wording::{self, Finding, FindingLevel};
use crate::cli::tooling::host::{ComponentInfo, CostMeasure, FILE_MAX_BYTES, OpenedComponent};
use crate::telemetry::printable;

/// `--help` of it.
pub const EXAMPLES: &str = "\
What a component imports is all that it can reach, and a gateway offers no WASI. Code in it may call
WASI all the same where its toolchain has put stubs in between: `wasi` names what leads to stubs.
A stub that leaves no name behind cannot be distinguished from code that calls no WASI; neither reaches anything.

Exit codes: 0 a gateway takes it, 1 it does not.

Examples:
  infergate plugin check dist/my-prices.wasm
  infergate plugin check dist/my-prices.wasm --grant log --grant tables:prices
  infergate plugin check my-prices --settings '{\"minimum\": 1}'";

/// Arguments of `plugin check`.
#[derive(Args, Debug)]
pub struct CheckArgs {
    #[command(flatten)]
    which: PluginSelector,
    /// Grants of the configuration: log, counters, tables:NAME. A project's own manifest counts too.
    #[arg(long = "grant", value_name = "GRANT")]
    grants: Vec<String>,
    /// JSON for `configure`, or @FILE.
    #[arg(long, value_name = "JSON")]
    settings: Option<String>,
    /// Print the findings as JSON.
    #[arg(long)]
    json: bool,
}

impl CheckArgs {
    /// Arguments of a check without any option.
    pub fn plain(which: PluginSelector) -> CheckArgs {
        CheckArgs {
            which,
            grants: Vec::new(),
            settings: None,
            json: false,
        }
    }
}

/// Runs it.
pub fn run(args: &CheckArgs) -> Result<CommandOutcome, String> {
    let found = args.which.find()?;
    let file = &found.file;
    let mut findings = Vec::new();
    match ComponentInfo::of_file(file) {
        Err(why) => findings.push(fail("file", why)),
        Ok(info) => outside(args, &found, &info, &mut findings),
    }
    let is_good = |findings: &[Finding]| findings.iter().all(|one| one.level != FindingLevel::Fail);
    // What has a wrong outside is not run.
    if is_good(&findings) {
        let target = args.which.read()?;
        inside(args, &target, &mut findings)?;
    }
    let good = is_good(&findings);
    let text = match args.json {
        true => format!(
            "{}\n",
            json!({ "ok": good, "file": file, "findings": findings })
        ),
        false => table(file, &findings),
    };
    Ok(CommandOutcome { text, good })
}

fn table(file: &Path, findings: &[Finding]) -> String {
    let failed = findings
        .iter()
        .filter(|one| one.level == FindingLevel::Fail)
        .count();
    let mut text = format!("{}\n", file.display());
    for Finding {
        level,
        about,
        message,
    } in findings
    {
        text += &format!("  {:4}  {about:8}  {message}\n", level.word());
    }
    text += &match failed {
        0 => "good: a gateway takes it\n".to_owned(),
        failed => format!(
            "{}: a gateway does not take it\n",
            wording::some(failed, "problem")
        ),
    };
    text
}

fn outside(
    args: &CheckArgs,
    found: &target::FoundPlugin,
    info: &ComponentInfo,
    findings: &mut Vec<Finding>,
) {
    let bytes = info.bytes.len() as u64;
    let (size, max) = (wording::size(bytes), wording::size(FILE_MAX_BYTES));
    findings.push(ok("size", format!("{size} of at most {max}")));
    findings.push(ok(
        "valid",
        "a component, without features that are off here".into(),
    ));
    let declared = found
        .project
        .as_ref()
        .and_then(|(_, manifest)| manifest.world);
    match target::choose(info, args.which.world.or(declared)) {
        Ok(world) => findings.push(ok("world", format!("{}, infergate:plugin 1", world.name()))),
        Err(why) => findings.push(fail("world", why)),
    }
    let of_project = found
        .project
        .iter()
        .flat_map(|(_, manifest)| &manifest.grants);
    let grants: Vec<String> = args.grants.iter().chain(of_project).cloned().collect();
    let ungranted = info.ungranted_imports(&grants);
    if ungranted.is_empty() {
        findings.push(ok(
            "imports",
            match info.imports.as_slice() {
                [] => "none".into(),
                imports => format!("{}, all granted", imports.join(", ")),
            },
        ));
    }
    findings.extend(ungranted.into_iter().map(|why| fail("imports", why)));
    stubs(&info.stubbed_wasi, findings);
    exports(info, findings);
    if !info.has_names {
        let what = "no names of functions in it, so backtraces will not help: in Cargo.toml, \
                    [profile.release] strip = \"debuginfo\" instead of true";
        findings.push(note("names", what.into()));
    }
}

/// Interfaces of WASI that are named in the list; the others are counted.
const STUBS_SHOWN: usize = 3;

fn stubs(wasi: &[String], findings: &mut Vec<Finding>) {
    if wasi.is_empty() {
        return;
    }
    let shown = wasi.iter().take(STUBS_SHOWN).map(String::as_str);
    let mut names = shown.collect::<Vec<_>>().join(", ");
    if wasi.len() > STUBS_SHOWN {
        names += &format!(" and {} more", wasi.len() - STUBS_SHOWN);
    }
    findings.push(note(
        "wasi",
        format!(
            "stubbed inside it: {names}; clocks, chance, files and output are not there, and code \
             that asks for them traps or gets nothing"
        ),
    ));
}

/// Interfaces of WASI are exported by programs; what else is not ours is never called.
fn exports(info: &ComponentInfo, findings: &mut Vec<Finding>) {
    let foreign = info
        .exports
        .iter()
        .filter(|name| !name.starts_with("infergate:plugin/"));
    let (wasi, other): (Vec<&String>, Vec<&String>) =
        foreign.partition(|name| name.starts_with("wasi:"));
    for name in wasi {
        findings.push(fail(
            "exports",
            format!(
                "exports {name}: a plugin is a library, not a program; build a cdylib, without main"
            ),
        ));
    }
    if !other.is_empty() {
        let names: Vec<&str> = other.into_iter().map(String::as_str).collect();
        findings.push(note(
            "exports",
            format!("{}: never called", names.join(", ")),
        ));
    }
}

fn inside(
    args: &CheckArgs,
    target: &PluginTarget,
    findings: &mut Vec<Finding>,
) -> Result<(), String> {
    let tools = target::tool_host(CostMeasure::Time)?;
    let opened = match tools.open(&target.info, target.world, target.limits) {
        Ok(opened) => opened,
        Err(why) => {
            findings.push(fail("compile", why));
            return Ok(());
        }
    };
    let (settings, of) = target.settings(&opened, args.settings.as_deref())?;
    let tables = of.map(|fixture| fixture.tables.clone()).unwrap_or_default();
    let trial = opened.with_settings(&settings, &tables);
    let with = of.map_or(String::new(), |fixture| {
        format!(", with the settings of its fixture `{}`", fixture.name)
    });
    match trial.try_setup() {
        Ok(us) => findings.push(ok(
            "starts",
            format!(
                "configured and described; an instance takes {}{with}",
                wording::micros(us.into())
            ),
        )),
        Err(wrong) => findings.extend(wrong.into_iter().map(|(key, why)| match key.as_str() {
            "file" => fail("starts", why),
            key => fail("starts", format!("{key}: {why}; --settings gives others")),
        })),
    }
    for line in trial.log() {
        findings.push(note("log", line));
    }
    for (which, word) in trial.unknown_keywords() {
        findings.push(note("schema", format!("{which}: {word}")));
    }
    fixtures(target, &opened, findings);
    Ok(())
}

/// Fixtures that fail and are named; the others are counted.
const FIXTURES_SHOWN: usize = 5;

/// As a gateway runs them before it lets the plugin in.
fn fixtures(target: &PluginTarget, opened: &OpenedComponent, findings: &mut Vec<Finding>) {
    if target.fixtures.is_empty() {
        let none = "none: put calls with their expected answers into tests/*.json";
        findings.push(note("fixtures", none.into()));
        return;
    }
    let mut wrong = Vec::new();
    for fixture in &target.fixtures {
        let ran = opened
            .with_settings(&fixture.settings, &fixture.tables)
            .run(fixture);
        if let Some(difference) = fixture.difference(&ran) {
            wrong.push(format!("`{}`: {difference}", fixture.name));
        }
    }
    let all = wording::some(target.fixtures.len(), "file");
    if wrong.is_empty() {
        findings.push(ok("fixtures", format!("{all}, all as expected")));
        return;
    }
    let more = wrong.len().saturating_sub(FIXTURES_SHOWN);
    for why in wrong.into_iter().take(FIXTURES_SHOWN) {
        findings.push(fail("fixtures", why));
    }
    if more > 0 {
        let rest = format!("{more} more; `infergate plugin test` shows them all");
        findings.push(fail("fixtures", rest));
    }
}

fn ok(about: &'static str, message: String) -> Finding {
    finding(FindingLevel::Ok, about, message)
}

fn note(about: &'static str, message: String) -> Finding {
    finding(FindingLevel::Note, about, message)
}

fn fail(about: &'static str, message: String) -> Finding {
    finding(FindingLevel::Fail, about, message)
}

fn finding(level: FindingLevel, about: &'static str, message: String) -> Finding {
    Finding {
        level,
        about,
        message: printable(&message).into_owned(),
    }
}
