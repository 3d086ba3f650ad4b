//! `plugin fuzz`: arguments by chance, until a guest traps, breaks a rule, takes too long or remembers.
//!
//! Half of the calls are made up from the types, half are fixtures with a place changed. A plugin that
//! refuses (a rejection, or an error of its own) is fine. The same seed makes the same calls.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value, json};

use super::outcome::CommandOutcome;
use super::target::{self, PluginSelector, PluginTarget, progress};
use super::test::{frames, is_fatal, pretty, shown};
use super::wording;
use crate::cli::tooling::host::{
    ArgGenerator, ConfiguredComponent, CostMeasure, Failure, FixtureRun, OpenedComponent,
    PluginFixture, Schema, ToolInstance, describe_call, is_same,
};

/// `--help` of it.
pub const EXAMPLES: &str = "\
A finding is printed as a fixture: put it into tests/ and mend the plugin until `plugin test` passes.
Bodies that the task's own input schema refuses never reach a plugin and are not tried.

Exit codes: 0 nothing found, 1 something.

Examples:
  infergate plugin fuzz my-prices
  infergate plugin fuzz my-prices --runs 100000 --seed 7 --out my-prices/tests";

/// Instructions that fit in a millisecond of a slow core.
const FUEL_PER_MS: u64 = 1_000_000;
/// Attempts at a body that the input schema takes.
const BODIES_MAX: usize = 20;
/// Runs between two lines of progress.
const PROGRESS_RUNS: u32 = 5000;

/// Arguments of `plugin fuzz`.
#[derive(Args, Debug)]
pub struct FuzzArgs {
    #[command(flatten)]
    which: PluginSelector,
    /// Calls.
    #[arg(long, value_name = "N", default_value_t = 2000)]
    runs: u32,
    /// Seed of the random inputs; a finding names its own.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Only this hook.
    #[arg(long, value_name = "HOOK")]
    hook: Option<String>,
    /// Fuel of one call; a million for each millisecond of the world's deadline by default.
    #[arg(long, value_name = "FUEL")]
    max_fuel: Option<u64>,
    /// JSON for `configure`, or @FILE.
    #[arg(long, value_name = "JSON")]
    settings: Option<String>,
    /// Write a finding into this folder as well.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// State shared by all calls of a run.
struct FuzzSearch<'a> {
    opened: &'a OpenedComponent,
    trial: &'a ConfiguredComponent,
    seeds: Vec<&'a PluginFixture>,
    settings: Map<String, Value>,
    tables: std::collections::BTreeMap<std::sync::Arc<str>, Map<String, Value>>,
    hooks: Vec<&'static str>,
    schema: Option<Schema>,
    max_fuel: u64,
}

/// Runs it.
pub fn run(args: &FuzzArgs) -> Result<CommandOutcome, String> {
    let target = args.which.read()?;
    let tools = target::tool_host(CostMeasure::Fuel)?;
    let opened = target.open(&tools)?;
    let (settings, of) = target.settings(&opened, args.settings.as_deref())?;
    let tables = of.map(|fixture| fixture.tables.clone()).unwrap_or_default();
    let trial = opened.with_settings(&settings, &tables);
    let described = describe(&target, &opened, &trial)?;
    let fuzz = FuzzSearch {
        hooks: hooks(&opened, args.hook.as_deref())?,
        opened: &opened,
        trial: &trial,
        seeds: target
            .fixtures
            .iter()
            .filter(|seed| is_seed(seed))
            .collect(),
        settings,
        tables,
        schema: described["input-schema"]
            .as_str()
            .and_then(|text| Schema::compile(text).ok()),
        max_fuel: args
            .max_fuel
            .unwrap_or(u64::from(opened.bounds().deadline_ms) * FUEL_PER_MS),
    };
    let wants = described["wants"].as_array().into_iter().flatten();
    let wants = wants
        .filter_map(|want| want.as_str().map(str::to_owned))
        .collect();
    let found = fuzz.search(args.runs, &mut ArgGenerator::new(args.seed, wants));
    let Some((at, fixture, why)) = found else {
        let text = format!(
            "{} calls of {} with seed {}: no trap, no broken rule, at most {} fuel, nothing remembered\n",
            wording::count(args.runs.into()),
            fuzz.hooks.join(", "),
            args.seed,
            wording::count(fuzz.max_fuel)
        );
        return Ok(CommandOutcome { text, good: true });
    };
    report(args, at, &fixture, &why)
}

fn report(
    args: &FuzzArgs,
    at: u32,
    fixture: &PluginFixture,
    why: &str,
) -> Result<CommandOutcome, String> {
    let mut call = json!({
        "hook": fixture.hook, "args": fixture.args, "settings": fixture.settings,
    });
    if !fixture.tables.is_empty() {
        call["tables"] = json!(fixture.tables);
    }
    let call = pretty(call.as_object().expect("it is an object"));
    let mut text = format!("call {at} of seed {}: {why}\n{call}", args.seed);
    if let Some(folder) = &args.out {
        let file = folder.join(format!("fuzz-{}-{at}.json", args.seed));
        let wrote = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&file, &call));
        wrote.map_err(|error| format!("{}: {error}", file.display()))?;
        text += &format!(
            "written to {}: `infergate plugin replay` runs it\n",
            file.display()
        );
    }
    Ok(CommandOutcome { text, good: false })
}

/// True when changes of the fixture are worth a try: not those of a call that is meant to fail.
fn is_seed(fixture: &PluginFixture) -> bool {
    let expected = fixture.expect_error.as_ref();
    let class = expected.and_then(|error| error.get("class")?.as_str());
    class.is_none_or(|class| matches!(class, "rejected" | "broken"))
}

/// Description of a task; null for other worlds.
fn describe(
    target: &PluginTarget,
    opened: &OpenedComponent,
    trial: &ConfiguredComponent,
) -> Result<Value, String> {
    let ran = match opened.hooks().contains(&"describe") {
        true => trial.run(&describe_call()),
        false => {
            let began = trial.try_setup().map(|_| Value::Null);
            return began.map_err(|wrong| {
                let returned: Vec<String> = wrong
                    .into_iter()
                    .map(|(key, why)| format!("{key}: {why}"))
                    .collect();
                format!(
                    "{}: {}; --settings gives others",
                    target.file.display(),
                    returned.join("; ")
                )
            });
        }
    };
    ran.answer
        .map_err(|failure| format!("{}: describe: {failure}", target.file.display()))
}

fn hooks(opened: &OpenedComponent, only: Option<&str>) -> Result<Vec<&'static str>, String> {
    let hooks = opened.hooks();
    let called = hooks.iter().copied().filter(|hook| *hook != "describe");
    match only {
        None => Ok(called.collect()),
        Some(name) => match called.clone().find(|hook| *hook == name) {
            Some(hook) => Ok(vec![hook]),
            None => Err(format!(
                "--hook {name}: it has {}",
                called.collect::<Vec<_>>().join(", ")
            )),
        },
    }
}

impl FuzzSearch<'_> {
    /// The first call that must not be, with its number and what is wrong.
    fn search(
        &self,
        runs: u32,
        generator: &mut ArgGenerator,
    ) -> Option<(u32, PluginFixture, String)> {
        let mut used: Option<ToolInstance<'_>> = None;
        for at in 1..=runs {
            if at % PROGRESS_RUNS == 0 {
                progress(&format!("{} calls", wording::count(at.into())));
            }
            let fixture = self.call(generator);
            let fresh = self.trial.run(&fixture);
            let mut why = self.wrong(&fresh);
            used = used.or_else(|| self.trial.instance());
            if let Some(guest) = &mut used {
                let again = guest.call(&fixture);
                if is_fatal(&again) {
                    used = None;
                }
                if why.is_none() && !is_same(&fresh, &again) {
                    why = Some(format!(
                        "a used guest answers otherwise: {} instead of {}",
                        shown(&again),
                        shown(&fresh)
                    ));
                }
            }
            self.trial.log();
            if let Some(why) = why {
                return Some((at, fixture, why));
            }
        }
        None
    }

    fn call(&self, generator: &mut ArgGenerator) -> PluginFixture {
        let mut fixture = self.generated(generator);
        for _ in 0..BODIES_MAX {
            if self.reaches(&fixture) {
                break;
            }
            fixture = self.generated(generator);
        }
        fixture
    }

    fn generated(&self, generator: &mut ArgGenerator) -> PluginFixture {
        let hook = generator.pick(&self.hooks).copied().unwrap_or_default();
        let of_hook: Vec<&PluginFixture> = self
            .seeds
            .iter()
            .copied()
            .filter(|seed| seed.hook == hook)
            .collect();
        let args = match generator.pick(&of_hook).filter(|_| !generator.one_in(2)) {
            Some(seed) => {
                let mut args = self.opened.changed(hook, &seed.args, generator);
                while generator.one_in(2) {
                    args = self.opened.changed(hook, &args, generator);
                }
                args
            }
            None => self.opened.arguments(hook, generator),
        };
        PluginFixture {
            hook: hook.to_owned(),
            args,
            settings: self.settings.clone(),
            tables: self.tables.clone(),
            ..describe_call()
        }
    }

    /// True when the gateway would make this call: its body passes the task's own schema.
    fn reaches(&self, fixture: &PluginFixture) -> bool {
        let (Some(schema), "prepare") = (&self.schema, fixture.hook.as_str()) else {
            return true;
        };
        let whole = fixture
            .args
            .get("request")
            .map(|request| &request["body"]["whole"]);
        match whole {
            Some(Value::Object(body)) => match (body.get("json"), body.get("text")) {
                (Some(json), _) => schema.fits(json),
                (None, Some(Value::String(text))) => {
                    serde_json::from_str(text).is_ok_and(|json: Value| schema.fits(&json))
                }
                _ => false,
            },
            _ => true,
        }
    }

    fn wrong(&self, ran: &FixtureRun) -> Option<String> {
        let returned = match &ran.answer {
            Ok(_) | Err(Failure::Rejected(_) | Failure::Broken(_)) => {
                let fuel = ran.fuel.unwrap_or(0);
                return (fuel > self.max_fuel).then(|| {
                    format!(
                        "took {} fuel of {}",
                        wording::count(fuel),
                        wording::count(self.max_fuel)
                    )
                });
            }
            Err(failure) => failure.to_string(),
        };
        let frames = frames(ran);
        Some(match frames.is_empty() {
            true => returned,
            false => format!("{returned}\n  {}", frames.join("\n  ")),
        })
    }
}
