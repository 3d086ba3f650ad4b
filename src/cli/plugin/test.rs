//! `plugin test`: fixtures, each on a fresh guest and on one that has answered others before.
//!
//! Hidden state is a failure: a gateway gives an account the guest it used before, or another one, and
//! the answer must not depend on which. Fuel is counted on the fresh guest, where it is the same on every machine.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;

use clap::Args;
use serde_json::{Map, Value, json};

use super::outcome::CommandOutcome;
use super::target::{self, PluginSelector, PluginTarget};
use super::wording;
use crate::cli::tooling::host::{
    ConfiguredComponent, CostMeasure, FixtureDifference, FixtureRun, FixtureVerdict,
    OpenedComponent, PluginFixture, failure_json, is_same,
};

/// `--help` of it.
pub const EXAMPLES: &str = "\
A fixture is a JSON file, tests/NAME.json:
  {\"hook\": \"price\", \"args\": {…}, \"settings\": {…}, \"tables\": {\"book\": {…}},
   \"expect\": {…} or \"expect-error\": {\"class\": \"rejected\", \"pointer\": \"/prompt\"},
   \"max-fuel\": 100000}
Arguments and answers are spelled as in WIT (`infergate plugin doc`); bytes are {\"text\": \"…\"},
{\"json\": …} or {\"base64\": \"…\"}. Keys that are not expected are not compared. Classes of errors:
rejected, broken, trapped, deadline, memory, overrun, invalid. All grants are given here.

Exit codes: 0 all as expected, 1 not.

Examples:
  infergate plugin test                         the project in this folder
  infergate plugin test dist/my-prices.wasm     a component with NAME.tests beside it
  infergate plugin test --update                take what is answered as expected; look at the diff";

/// Differences shown of one fixture.
const DIFFERENCES_MAX: usize = 20;

/// Arguments of `plugin test`.
#[derive(Args, Debug)]
pub struct TestArgs {
    #[command(flatten)]
    which: PluginSelector,
    /// Write what is answered into the fixtures that expect something else or nothing.
    #[arg(long)]
    update: bool,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

impl TestArgs {
    /// Arguments of a test without any option.
    pub fn plain(which: PluginSelector) -> TestArgs {
        TestArgs {
            which,
            update: false,
            json: false,
        }
    }
}

/// Outcome of one fixture.
struct FixtureResult<'a> {
    fixture: &'a PluginFixture,
    fresh: FixtureRun,
    /// Differing answer of a used guest; none when it is the same.
    otherwise: Option<FixtureRun>,
    log: Vec<String>,
    verdict: FixtureVerdict,
    updated: bool,
}

impl FixtureResult<'_> {
    fn good(&self) -> bool {
        (self.verdict == FixtureVerdict::Good || self.updated) && self.otherwise.is_none()
    }
}

/// Runs it.
pub fn run(args: &TestArgs) -> Result<CommandOutcome, String> {
    let target = args.which.read()?;
    let fixtures = target.some_fixtures()?;
    let tools = target::tool_host(CostMeasure::Fuel)?;
    let opened = target.open(&tools)?;
    let mut tried = try_all(&opened, fixtures);
    if args.update {
        for one in &mut tried {
            one.updated = update(&target, one)?;
        }
    }
    let failed = tried.iter().filter(|one| !one.good()).count();
    let text = match args.json {
        true => {
            let fixtures: Vec<Value> = tried.iter().map(as_json).collect();
            let file = &target.file;
            format!(
                "{}\n",
                json!({ "ok": failed == 0, "file": file, "fixtures": fixtures })
            )
        }
        false => {
            let width = fixtures.iter().map(|one| one.name.chars().count()).max();
            let mut text: String = tried
                .iter()
                .map(|one| lines(one, width.unwrap_or(0)))
                .collect();
            let _ = writeln!(text, "{} passed, {failed} failed", tried.len() - failed);
            text
        }
    };
    Ok(CommandOutcome {
        text,
        good: failed == 0,
    })
}

/// Fixtures of the same settings and tables, by their places.
struct FixtureGroup {
    trial: ConfiguredComponent,
    members: Vec<usize>,
}

/// Fixtures of the same settings and tables share one guest, which is called twice by each.
fn try_all<'a>(opened: &OpenedComponent, fixtures: &'a [PluginFixture]) -> Vec<FixtureResult<'a>> {
    let mut groups: BTreeMap<String, FixtureGroup> = BTreeMap::new();
    for (at, fixture) in fixtures.iter().enumerate() {
        let key = format!("{} {:?}", json!(fixture.settings), fixture.tables);
        let group = groups.entry(key).or_insert_with(|| FixtureGroup {
            trial: opened.with_settings(&fixture.settings, &fixture.tables),
            members: Vec::new(),
        });
        group.members.push(at);
    }
    let mut tried: Vec<(usize, FixtureResult<'a>)> = Vec::new();
    for FixtureGroup { trial, members } in groups.values() {
        let mut used = trial.instance();
        for at in members {
            let fixture = &fixtures[*at];
            let fresh = trial.run(fixture);
            let log = trial.log();
            let mut otherwise = None;
            for _ in 0..2 {
                used = used.or_else(|| trial.instance());
                let Some(guest) = &mut used else { break };
                let again = guest.call(fixture);
                if is_fatal(&again) {
                    used = None;
                }
                if !is_same(&fresh, &again) {
                    otherwise = Some(again);
                }
            }
            trial.log();
            let verdict = fixture.verdict(&fresh);
            tried.push((
                *at,
                FixtureResult {
                    fixture,
                    fresh,
                    otherwise,
                    log,
                    verdict,
                    updated: false,
                },
            ));
        }
    }
    tried.sort_by_key(|(at, _)| *at);
    tried.into_iter().map(|(_, one)| one).collect()
}

/// Fixtures that a used guest answers otherwise than a fresh one.
pub fn hidden_state(opened: &OpenedComponent, fixtures: &[PluginFixture]) -> Vec<String> {
    let tried = try_all(opened, fixtures);
    let differing = tried.iter().filter(|one| one.otherwise.is_some());
    differing.map(|one| one.fixture.name.clone()).collect()
}

/// True when the guest is dead. An error that it reports does not kill it, but the gateway drops it too.
pub fn is_fatal(ran: &FixtureRun) -> bool {
    ran.answer
        .as_ref()
        .is_err_and(|failure| failure.class() != "rejected")
}

fn lines(tried: &FixtureResult<'_>, width: usize) -> String {
    let FixtureResult { fixture, fresh, .. } = tried;
    let word = match (tried.good(), tried.updated) {
        (true, true) => "new",
        (true, false) => "ok",
        (false, _) => "FAIL",
    };
    let fuel = fresh.fuel.map_or("not run".to_owned(), |fuel| {
        format!("fuel {}", wording::count(fuel))
    });
    let mut text = format!("{word:4}  {:width$}  {fuel}\n", fixture.name);
    if !tried.good() {
        text += &explained(tried);
    }
    if let Some(other) = &tried.otherwise {
        let _ = writeln!(
            text,
            "      a used guest answers otherwise: hidden state (a static, a cell, a global)\n        \
             fresh {}\n        used  {}",
            shown(fresh),
            shown(other)
        );
    }
    text
}

/// Reason for the failure: a pair of lines for each difference, the place of a crash, the log.
fn explained(tried: &FixtureResult<'_>) -> String {
    let mut text = String::new();
    match &tried.verdict {
        FixtureVerdict::Good => {}
        FixtureVerdict::NothingExpected => {
            text += &format!(
                "      nothing is expected; it answers {}; --update takes that\n",
                shown(&tried.fresh)
            )
        }
        FixtureVerdict::OverFuel { fuel, max } => {
            text += &format!(
                "      took {} fuel, `max-fuel` is {}: make it cheaper, or raise it by hand\n",
                wording::count(*fuel),
                wording::count(*max)
            )
        }
        FixtureVerdict::Otherwise => {
            let expected = match (&tried.fixture.expect, &tried.fixture.expect_error) {
                (Some(expected), _) => format!("an answer {expected}"),
                (None, error) => format!("the error {}", json!(error)),
            };
            text += &format!(
                "      expected {expected}\n      got      {}\n",
                shown(&tried.fresh)
            );
        }
        FixtureVerdict::Differs(differences) => text += &diff(differences),
    }
    for frame in frames(&tried.fresh) {
        text += &format!("        {frame}\n");
    }
    if let Some(hint) = hint(&tried.fresh) {
        text += &format!("      {hint}\n");
    }
    for line in &tried.log {
        text += &format!("      log  {line}\n");
    }
    text
}

/// The places that differ, each with both values under each other.
pub fn diff(differences: &[FixtureDifference]) -> String {
    let mut text = String::new();
    for FixtureDifference { at, expected, got } in differences.iter().take(DIFFERENCES_MAX) {
        let place = if at.is_empty() { "the answer" } else { at };
        let _ = writeln!(
            text,
            "      {place}\n        expected  {expected}\n        got       {got}"
        );
    }
    if differences.len() > DIFFERENCES_MAX {
        let _ = writeln!(
            text,
            "      and {} more",
            differences.len() - DIFFERENCES_MAX
        );
    }
    text
}

/// An answer in a line.
pub fn shown(ran: &FixtureRun) -> String {
    match &ran.answer {
        Ok(answer) => answer.to_string(),
        Err(failure) => {
            let (class, text) = (failure.class(), failure.to_string());
            match text.starts_with(class) {
                true => text,
                false => format!("{class}: {text}"),
            }
        }
    }
}

/// The backtrace, a line a frame.
pub fn frames(ran: &FixtureRun) -> Vec<String> {
    let mut frames: Vec<String> = Vec::new();
    for word in ran.backtrace.split(' ') {
        let is_number = word
            .strip_suffix(':')
            .is_some_and(|n| n.parse::<u32>().is_ok());
        match frames.last_mut() {
            Some(frame) if !is_number => {
                frame.push(' ');
                frame.push_str(word);
            }
            _ if word.is_empty() => {}
            _ => frames.push(word.to_owned()),
        }
    }
    frames
}

/// Advice for a backtrace without names.
pub fn hint(ran: &FixtureRun) -> Option<&'static str> {
    ran.backtrace.contains("<wasm function").then_some(
        "no names in it: in Rust, build with strip = \"debuginfo\"; in JavaScript, an exception that \
         is not the hook's own error ends like this: catch it, and throw its text as the hook's error",
    )
}

fn as_json(tried: &FixtureResult<'_>) -> Value {
    let fresh = &tried.fresh;
    let differences: Vec<Value> = match &tried.verdict {
        FixtureVerdict::Differs(differences) => differences
            .iter()
            .map(|one| json!({ "at": one.at, "expected": one.expected, "got": one.got }))
            .collect(),
        _ => Vec::new(),
    };
    let (answer, error) = match &fresh.answer {
        Ok(answer) => (answer.clone(), Value::Null),
        Err(failure) => (Value::Null, failure_json(failure)),
    };
    json!({
        "name": tried.fixture.name, "ok": tried.good(), "updated": tried.updated,
        "fuel": fresh.fuel, "memory_bytes": fresh.memory_bytes, "bytes_copied": fresh.bytes_copied,
        "answer": answer, "error": error, "differences": differences,
        "used_guest_differs": tried.otherwise.is_some(), "log": tried.log,
        "backtrace": frames(fresh),
    })
}

/// Writes what was answered into the fixture's file, where that is what is wrong with it.
fn update(target: &PluginTarget, tried: &FixtureResult<'_>) -> Result<bool, String> {
    let is_stale = matches!(
        tried.verdict,
        FixtureVerdict::NothingExpected | FixtureVerdict::Otherwise | FixtureVerdict::Differs(_)
    );
    let Some(folder) = target.folder.as_ref().filter(|_| is_stale) else {
        return Ok(false);
    };
    if folder.extension().is_some_and(|ending| ending == "tests") {
        return Err(format!(
            "{}: `plugin build` writes these; update those of the project: `infergate plugin test DIR --update`",
            folder.display()
        ));
    }
    let file = folder.join(format!("{}.json", tried.fixture.name));
    let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    let text = fs::read(&file).map_err(|error| wrong(&error))?;
    let mut json: Map<String, Value> =
        serde_json::from_slice(&text).map_err(|error| wrong(&error))?;
    json.shift_remove("expect");
    json.shift_remove("expect-error");
    let (key, value) = match &tried.fresh.answer {
        Ok(answer) => ("expect", readable(answer.clone())),
        Err(failure) => ("expect-error", failure_json(failure)),
    };
    json.insert(key.to_owned(), value);
    fs::write(&file, pretty(&json)).map_err(|error| wrong(&error))?;
    Ok(true)
}

/// A fixture as a file.
pub fn pretty(fixture: &Map<String, Value>) -> String {
    let text = serde_json::to_string_pretty(fixture).expect("JSON from JSON");
    text + "\n"
}

/// Bytes that hold a JSON object or list, as that instead of its text.
pub fn readable(value: Value) -> Value {
    match value {
        Value::Object(object) => {
            if let (1, Some(Value::String(text))) = (object.len(), object.get("text"))
                && let Ok(json @ (Value::Object(_) | Value::Array(_))) = serde_json::from_str(text)
            {
                return json!({ "json": json });
            }
            object
                .into_iter()
                .map(|(key, value)| (key, readable(value)))
                .collect()
        }
        Value::Array(items) => items.into_iter().map(readable).collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_with_json_are_written_as_json() {
        let answer =
            json!({ "edit": { "replace": { "text": "{\"a\":1}" } }, "state": { "text": "" } });
        let expected =
            json!({ "edit": { "replace": { "json": { "a": 1 } } }, "state": { "text": "" } });
        assert_eq!(readable(answer), expected);
    }

    #[test]
    fn a_difference_has_both_values_under_each_other() {
        let text = diff(&[FixtureDifference {
            at: "/total".into(),
            expected: json!(6.5),
            got: json!(7.5),
        }]);
        assert_eq!(
            text,
            "      /total\n        expected  6.5\n        got       7.5\n"
        );
    }
}
