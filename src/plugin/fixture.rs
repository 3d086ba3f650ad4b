//! Fixtures: a call with its expected answer, as files beside a plugin. Fixtures serve as a plugin's tests,
//! as its benches and as the check before it is loaded.
//!
//! Checks one call at a time, on a fresh or a used guest. A file is one JSON object:
//!
//! ```json
//! { "hook": "price", "args": { "tariff": { … }, "usage": { … } }, "settings": {}, "tables": { "0": {} },
//!   "expect": { … }, "max-fuel": 100000 }
//! ```
//!
//! `args` are the function's parameters by name, in the spelling of `values.rs`. Instead of `expect`
//! there may be `expect-error`: `{"class": "rejected", …}`, whose other keys are compared too where
//! they stand. `tables` are by name. A file has at most [`FILE_MAX_BYTES`], a plugin [`FILES_MAX`].

use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{ComponentExportIndex, Type, Val};

use super::failure::Failure;
use super::file::open_regular;
use super::hook::HookCall;
use super::judge::{self, FixtureDifference};
use super::revision::Revision;
use super::store::{CallError, GuestInstance};
use super::values;

/// A fixture of a 1 MiB picture in base64 fits.
pub const FILE_MAX_BYTES: u64 = 4 << 20;
/// Fixtures of one plugin.
pub const FILES_MAX: usize = 1000;
/// Calls in one file of captured ones, and its bytes: as much as a gateway captures at a time.
pub const CALLS_MAX: usize = 1000;
const CALLS_FILE_MAX_BYTES: u64 = 64 << 20;

/// How a failure begins that is the fixture's own, and never an expected one.
const FIXTURE_WRONG: &str = "the fixture is wrong";

/// The functions that fixtures may call, with the interface they stand in.
pub const HOOKS: [(&str, &str); 8] = [
    ("describe", "task"),
    ("prepare", "task"),
    ("finish", "task"),
    ("push", "task-stream"),
    ("close", "task-stream"),
    ("price", "billing"),
    ("estimate", "estimator"),
    ("rank", "routing"),
];

/// Call with its expected answer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PluginFixture {
    /// The file's name without its ending.
    #[serde(skip)]
    pub name: String,
    /// Name out of [`HOOKS`].
    pub hook: String,
    /// Its parameters, by name.
    #[serde(default)]
    pub args: Map<String, Value>,
    /// Given to `configure`.
    #[serde(default)]
    pub settings: Map<String, Value>,
    /// Tables by name; a table's index is its place in the order of names.
    #[serde(default)]
    pub tables: std::collections::BTreeMap<Arc<str>, Map<String, Value>>,
    /// The answer.
    #[serde(default)]
    pub expect: Option<Value>,
    /// The failure: its class, and what else of it matters.
    #[serde(default)]
    pub expect_error: Option<Map<String, Value>>,
    /// Instructions, about, that a fresh guest may take; counted by the tools' engine only.
    #[serde(default)]
    pub max_fuel: Option<u64>,
    /// Where and when it was captured, for people.
    #[serde(default)]
    pub captured: Option<Map<String, Value>>,
}

/// How a call went.
#[derive(Clone, Debug)]
pub struct FixtureRun {
    /// Answer of the guest, or its failure. Answers have passed the host's checks.
    pub answer: Result<Value, Failure>,
    /// Fuel used, where the engine counts.
    pub fuel: Option<u64>,
    /// The call alone, without making the guest.
    pub elapsed_us: u64,
    /// Memory of the guest after it.
    pub memory_bytes: usize,
    /// Where it crashed, innermost first.
    pub backtrace: String,
    /// Copied into the guest and out of it, by the canonical ABI's own sizes.
    pub bytes_copied: usize,
}

impl FixtureRun {
    /// No guest could be made, which a fixture may expect: settings that `configure` refuses.
    pub(super) fn not_made(crash: CallError) -> FixtureRun {
        FixtureRun {
            answer: Err(crash.failure),
            fuel: None,
            elapsed_us: 0,
            memory_bytes: crash.memory_bytes,
            backtrace: crash.backtrace,
            bytes_copied: 0,
        }
    }
}

impl PluginFixture {
    /// Reads one.
    ///
    /// # Errors
    /// Problem of the file.
    pub fn parse(name: &str, text: &[u8]) -> Result<PluginFixture, String> {
        let fixture: PluginFixture =
            serde_json::from_slice(text).map_err(|error| format!("{name}: {error}"))?;
        fixture.named(name)
    }

    /// Reads calls that stand one after the other, as a gateway captures them: at most
    /// [`CALLS_MAX`].
    ///
    /// # Errors
    /// Problem of the file, and its line.
    pub fn calls(path: &Path) -> Result<Vec<PluginFixture>, String> {
        let text = read(path, CALLS_FILE_MAX_BYTES)?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let mut calls = Vec::new();
        for call in serde_json::Deserializer::from_slice(&text).into_iter::<PluginFixture>() {
            let call = call.map_err(|error| format!("{name}: {error}"))?;
            if calls.len() == CALLS_MAX {
                return Err(format!("{name}: more than {CALLS_MAX} calls"));
            }
            calls.push(call.named(&name)?);
        }
        match calls.is_empty() {
            true => Err(format!("{name}: no call in it")),
            false => Ok(calls),
        }
    }

    /// Checked, under its name.
    fn named(mut self, name: &str) -> Result<PluginFixture, String> {
        let fixture = &self;
        if !HOOKS.iter().any(|(hook, _)| *hook == fixture.hook) {
            let known: Vec<&str> = HOOKS.iter().map(|(hook, _)| *hook).collect();
            return Err(format!(
                "{name}: `hook` must be one of {}",
                known.join(", ")
            ));
        }
        if fixture.expect.is_some() && fixture.expect_error.is_some() {
            return Err(format!(
                "{name}: either `expect` or `expect-error`, not both"
            ));
        }
        self.name = name.to_owned();
        Ok(self)
    }

    /// Every `.json` file of a folder, in the order of names.
    ///
    /// # Errors
    /// The first file that is no fixture.
    pub fn folder(path: &Path) -> Result<Vec<PluginFixture>, String> {
        let entries = fs::read_dir(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut files: Vec<_> = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|ending| ending == "json"))
            .collect();
        files.sort();
        if files.len() > FILES_MAX {
            return Err(format!(
                "{}: more than {FILES_MAX} fixtures",
                path.display()
            ));
        }
        files.iter().map(|file| PluginFixture::file(file)).collect()
    }

    /// Reads one file.
    ///
    /// # Errors
    /// Problem of the file.
    pub fn file(path: &Path) -> Result<PluginFixture, String> {
        let text = read(path, FILE_MAX_BYTES)?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        PluginFixture::parse(&name, &text)
    }

    /// Bytes of its arguments and of what it expects, about.
    pub fn bytes(&self) -> usize {
        let expected = self
            .expect
            .as_ref()
            .map_or(0, |value| value.to_string().len());
        expected + settings_text(&self.args).len() + settings_text(&self.settings).len()
    }

    /// Interface of its hook.
    pub fn interface(&self) -> &'static str {
        let hook = HOOKS.iter().find(|(hook, _)| *hook == self.hook);
        hook.map_or("", |(_, interface)| interface)
    }

    /// How what happened compares with what was expected.
    pub fn verdict(&self, ran: &FixtureRun) -> FixtureVerdict {
        if let (Some(max), Some(fuel)) = (self.max_fuel, ran.fuel)
            && fuel > max
        {
            return FixtureVerdict::OverFuel { fuel, max };
        }
        let (expected, happened) = match (&self.expect, &self.expect_error, &ran.answer) {
            (None, None, _) => return FixtureVerdict::NothingExpected,
            (Some(expected), _, Ok(answer)) => (expected.clone(), answer.clone()),
            (_, _, Err(Failure::Broken(said))) if said.starts_with(FIXTURE_WRONG) => {
                return FixtureVerdict::Otherwise;
            }
            (_, Some(expected), Err(failure)) => {
                (Value::Object(expected.clone()), judge::failure(failure))
            }
            _ => return FixtureVerdict::Otherwise,
        };
        match judge::differences(&expected, &happened) {
            differences if differences.is_empty() => FixtureVerdict::Good,
            differences => FixtureVerdict::Differs(differences),
        }
    }

    /// Describes in a line how the answer differs from the expectation; none when it does not.
    pub fn difference(&self, ran: &FixtureRun) -> Option<String> {
        match (self.verdict(ran), &ran.answer) {
            (FixtureVerdict::Good | FixtureVerdict::NothingExpected, _) => None,
            (FixtureVerdict::OverFuel { fuel, max }, _) => {
                Some(format!("took {fuel} fuel, `max-fuel` is {max}"))
            }
            (FixtureVerdict::Differs(differences), _) => {
                differences.first().map(ToString::to_string)
            }
            (FixtureVerdict::Otherwise, Ok(answer)) => {
                Some(format!("expected a failure, it answered {answer}"))
            }
            (FixtureVerdict::Otherwise, Err(failure)) => Some(format!(
                "expected an answer, it failed: {failure} {}",
                ran.backtrace
            )),
        }
    }
}

fn read(path: &Path, max_bytes: u64) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let about = fs::metadata(path).map_err(|error| format!("{shown}: {error}"))?;
    if about.len() > max_bytes {
        return Err(format!("{shown}: more than {} MiB", max_bytes >> 20));
    }
    let mut text = Vec::new();
    open_regular(path)
        .and_then(|file| file.take(max_bytes).read_to_end(&mut text))
        .map_err(|error| format!("{shown}: {error}"))?;
    Ok(text)
}

/// Result of comparing a call with its fixture.
#[derive(Clone, Debug, PartialEq)]
pub enum FixtureVerdict {
    /// As expected.
    Good,
    /// The fixture expects nothing: whatever happened is taken.
    NothingExpected,
    /// As expected or not, it took too long.
    OverFuel {
        /// Instructions, about.
        fuel: u64,
        /// `max-fuel`.
        max: u64,
    },
    /// A failure instead of an answer, or the other way round.
    Otherwise,
    /// Another answer or another failure.
    Differs(Vec<FixtureDifference>),
}

/// Guest of a revision for fixtures: made once, called until it fails.
pub(super) struct FixtureInstance<'a> {
    revision: &'a Revision,
    instance: GuestInstance,
}

impl<'a> FixtureInstance<'a> {
    /// A fresh guest of a revision.
    pub fn make(
        revision: &'a Revision,
        setup_ms: u32,
    ) -> Result<FixtureInstance<'a>, Box<CallError>> {
        let instance = revision.make_instance(setup_ms)?;
        Ok(FixtureInstance { revision, instance })
    }

    /// Calls the fixture's hook. After a failure the guest is dead and must be dropped.
    pub fn call(&mut self, fixture: &PluginFixture) -> FixtureRun {
        let bounds = &self.revision.parts.bounds;
        let deadline_ms = match fixture.interface() {
            "task-stream" => bounds.stream_deadline_ms,
            _ => bounds.deadline_ms,
        };
        let hook = HookCall {
            name: "",
            deadline_ms,
            input_bytes: 0,
        };
        // A task's input may be a picture.
        let hook = match fixture.interface() {
            "task" => hook.with_input(settings_text(&fixture.args).len()),
            _ => hook,
        };
        self.instance.arm(hook.deadline_ms);
        let full = self.instance.store.get_fuel().ok();
        let mut elapsed_us = 0;
        let ended = self.enter(fixture, &mut elapsed_us);
        let left = self.instance.store.get_fuel().ok();
        let memory_bytes = self.instance.store.data().limits.memory_bytes;
        let (answer, backtrace, bytes_copied) = match ended {
            Ok((answer, bytes)) => (answer, String::new(), bytes),
            Err(crash) => (Err(crash.failure), crash.backtrace, 0),
        };
        FixtureRun {
            answer,
            fuel: full.zip(left).map(|(full, left)| full - left),
            elapsed_us,
            memory_bytes,
            backtrace,
            bytes_copied,
        }
    }

    /// Answer of the guest, and the number of bytes that were copied.
    fn enter(
        &mut self,
        fixture: &PluginFixture,
        elapsed_us: &mut u64,
    ) -> Result<(Result<Value, Failure>, usize), Box<CallError>> {
        let clock = self.revision.context().runtime.clock;
        let GuestInstance { store, raw, .. } = &mut self.instance;
        let wrong = |message: String| {
            CallError::without_trace(Failure::Broken(format!("{FIXTURE_WRONG}: {message}")), 0)
        };
        let index = self.revision.function(fixture.interface(), &fixture.hook);
        let function = index.and_then(|index| raw.get_func(&mut *store, index));
        let Some(function) = function else {
            return Err(wrong(format!(
                "the plugin does not export `{}`",
                fixture.hook
            )));
        };
        let ty = function.ty(&*store);
        let mut args = Vec::new();
        for (name, ty) in ty.params() {
            let value = fixture.args.get(name).unwrap_or(&Value::Null);
            args.push(values::from_json(value, &ty, &format!("args.{name}")).map_err(wrong)?);
        }
        let known: Vec<&str> = ty.params().map(|(name, _)| name).collect();
        if let Some(key) = fixture
            .args
            .keys()
            .find(|key| !known.contains(&key.as_str()))
        {
            return Err(wrong(format!(
                "args.{key}: the parameters are {}",
                known.join(", ")
            )));
        }
        let results: Vec<Type> = ty.results().collect();
        let mut answers = vec![Val::Bool(false); results.len()];
        let began_us = clock.micros();
        let called = function.call(&mut *store, &args, &mut answers);
        *elapsed_us = clock.micros().saturating_sub(began_us).max(1);
        called.map_err(|error| CallError::of(&error, store))?;
        let answer = match (answers.first(), results.first()) {
            (Some(answer), Some(ty)) => values::to_json(answer, ty),
            _ => Value::Null,
        };
        let bytes = args.iter().chain(&answers).map(values::size).sum();
        let output_max = self.revision.parts.bounds.output_bytes;
        Ok((judge::validated(fixture, answer, output_max), bytes))
    }
}

impl Revision {
    /// Where a function is, whatever the version of its interface.
    pub(super) fn function(&self, interface: &str, function: &str) -> Option<ComponentExportIndex> {
        let component = &self.parts.code.component;
        let name = format!("infergate:plugin/{interface}@1.0.0");
        let (item, of) = component.get_export(None, &name)?;
        matches!(item, ComponentItem::ComponentInstance(_)).then_some(())?;
        component.get_export_index(Some(&of), function)
    }
}

impl Revision {
    /// The parameters of a function, by name.
    pub(super) fn parameters(
        &self,
        interface: &str,
        function: &str,
    ) -> Result<Vec<(String, Type)>, String> {
        let absent = || format!("the plugin does not export `{function}`");
        let component = &self.parts.code.component;
        let item = component.get_export(None, format!("infergate:plugin/{interface}@1.0.0"));
        let (_, of) = item.ok_or_else(absent)?;
        match component.get_export(Some(&of), function) {
            Some((ComponentItem::ComponentFunc(ty), _)) => Ok(ty
                .params()
                .map(|(name, ty)| (name.to_owned(), ty))
                .collect()),
            _ => Err(absent()),
        }
    }
}

/// A fixture's tables, in the order of names.
pub(super) fn tables_of(fixture: &PluginFixture) -> Vec<super::grants::LookupTable> {
    fixture
        .tables
        .values()
        .map(super::tables::from_object)
        .collect()
}

/// Settings as the text that `configure` gets.
pub(super) fn settings_text(settings: &Map<String, Value>) -> String {
    json!(settings).to_string()
}
