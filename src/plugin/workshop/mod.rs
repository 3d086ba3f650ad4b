//! Host for author tools: one component, opened without a configuration, called by fixtures.
//!
//! Serves no request and prints nothing. All imports are granted, so that a missing grant is reported by the
//! check and not by the linker; log lines are kept instead of logged. Memory and answers are held to what a
//! gateway grants. Where instructions are counted, which takes time, deadlines are ten times the gateway's.

mod anatomy;
mod dice;
mod keywords;
mod manual;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};
use wasmtime::component::Type;

use super::admit::{Admission, Checked, SETUP_DEADLINE_MS, folder_of, try_out};
use super::cache::Cache;
use super::compile::{Compilers, Patience, Source};
use super::engine::{Purpose, Runtime};
use super::fixture::Subject;
use super::grants::{Grants, Heard};
use super::judge;
use super::revision::{Code, Ground, Parts, Revision};
use super::rules::Identity;
use super::side::Side;
use super::spec::{Bounds, InstancePolicy, PluginLimits, PluginSpec, World};
use super::tables::Granted;
use crate::telemetry::Clock;

pub use super::admit::percentile;
pub use super::failure::Failure;
pub use super::fixture::{Fixture, HOOKS, Ran, Verdict};
pub use super::judge::Difference;
pub use super::schema::Schema;
pub use anatomy::{Anatomy, FILE_MAX_BYTES, Memory, Producer};
pub use dice::Dice;
pub use keywords::unknown_keywords;
pub use manual::{manual, world_text};

/// Guests alive at once: a fresh one, a used one, and one that is being made.
const SLOTS: u32 = 8;
/// Deadlines where instructions are counted, in deadlines of the gateway.
const PATIENCE: u32 = 10;

/// Measure of cost that the tools read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Instructions, the same on every machine. The code is slower for it.
    Fuel,
    /// Time, with the code that the gateway runs.
    Time,
}

/// An engine for authors.
pub struct Workshop {
    ground: Arc<Ground>,
    compilers: Compilers,
}

/// A component, compiled.
pub struct Opened {
    base: Revision,
}

/// A component with settings and tables.
pub struct Trial {
    revision: Revision,
}

/// A guest that is called more than once.
pub struct Guest<'a>(Subject<'a>);

impl Workshop {
    /// Starts an engine. Compiled code is kept below `cache`, where that can be trusted.
    ///
    /// # Errors
    /// When the operating system has no memory or thread for it.
    pub fn start(measure: Measure, cache: Option<&Path>) -> Result<Workshop, String> {
        let purpose = match measure {
            Measure::Fuel => Purpose::Tools,
            Measure::Time => Purpose::Serve,
        };
        let runtime = Runtime::start(SLOTS, purpose, Clock::start())?;
        let warm = Arc::default();
        Ok(Workshop {
            ground: Arc::new(Ground {
                runtime,
                side: Side::start().map_err(|why| format!("no thread: {why}"))?,
                warm,
                metrics: Arc::default(),
                captures: Arc::default(),
            }),
            compilers: Compilers::new(
                None,
                cache
                    .and_then(|folder| Cache::open(folder).ok())
                    .map(Arc::new),
                Arc::default(),
            ),
        })
    }

    /// Compiles a component for that world, to be held to these limits: what is left out is the world's
    /// default.
    ///
    /// # Errors
    /// Error text of the compiler or the linker.
    pub fn open(
        &self,
        anatomy: &Anatomy,
        world: World,
        limits: PluginLimits,
    ) -> Result<Opened, String> {
        let spec = spec(world, limits);
        let mut digest = [0; 32];
        hex::decode_to_slice(&anatomy.sha256, &mut digest).map_err(|error| error.to_string())?;
        let checked = Checked {
            bytes: anatomy.bytes.clone(),
            digest,
            granted: Granted::default(),
        };
        let source = Source {
            plugin: &spec.name,
            bytes: &checked.bytes,
            digest: &checked.digest,
        };
        let engine = &self.ground.runtime.engine;
        let component = self
            .compilers
            .component(engine, source, Patience::Whole)
            .map_err(|why| format!("it does not compile: {why}"))?
            .ok_or("it is not compiled")?;
        let admission = Admission {
            ground: &self.ground,
        };
        let grants = everything(&self.ground, &anatomy.sha256, Vec::new());
        let base = admission.untried(&spec, &checked, component, grants, "{}");
        let base = base.map_err(|wrong| {
            let said = wrong.into_iter().map(|(_, why)| why);
            said.collect::<Vec<_>>().join("; ")
        })?;
        Ok(Opened { base })
    }
}

impl Workshop {
    /// Microseconds of each of at most `runs` calls, sorted: the result of `call`, or how long it
    /// took. Ends early once there are so many calls, and so many microseconds have passed.
    pub fn times(
        &self,
        runs: usize,
        (runs_min, enough_us): (usize, u64),
        mut call: impl FnMut() -> Option<u64>,
    ) -> Vec<u64> {
        let clock = self.ground.runtime.clock;
        let began_us = clock.micros();
        let mut times = Vec::new();
        while times.len() < runs {
            let from_us = clock.micros();
            if times.len() >= runs_min && from_us.saturating_sub(began_us) > enough_us {
                break;
            }
            let said = call();
            times.push(said.unwrap_or_else(|| clock.micros().saturating_sub(from_us)));
        }
        times.sort_unstable();
        times
    }
}

impl Opened {
    /// The hooks it exports.
    pub fn hooks(&self) -> Vec<&'static str> {
        let hooks = HOOKS
            .iter()
            .filter(|(hook, of)| self.base.function(of, hook).is_some());
        hooks.map(|(hook, _)| *hook).collect()
    }

    /// The limits that the gateway would hold it to.
    pub fn bounds(&self) -> Bounds {
        self.base.parts.bounds
    }

    /// The component with these settings, and tables by name.
    pub fn trial(
        &self,
        settings: &Map<String, Value>,
        tables: &BTreeMap<Arc<str>, Map<String, Value>>,
    ) -> Trial {
        let of = &self.base.parts;
        let ground = self.base.ground();
        let attached = tables.values().map(super::tables::from_object).collect();
        let Bounds {
            deadline_ms,
            stream_deadline_ms,
            ..
        } = of.bounds;
        let patience = match ground.runtime.purpose {
            Purpose::Tools => PATIENCE,
            Purpose::Serve => 1,
        };
        let parts = Parts {
            identity: Identity::clone(&of.identity),
            fingerprint: of.fingerprint,
            world: of.world,
            code: Code::clone(&of.code),
            settings: super::fixture::settings_text(settings).into(),
            bounds: Bounds {
                deadline_ms: deadline_ms * patience,
                stream_deadline_ms: stream_deadline_ms * patience,
                ..of.bounds
            },
            policy: InstancePolicy::Fresh,
            grants: Arc::new(everything(ground, &of.identity.sha256, attached)),
        };
        Trial {
            revision: Revision::new(Arc::clone(ground), parts),
        }
    }

    /// Arguments of a hook as the gateway could give them, by chance.
    pub fn arguments(&self, hook: &str, dice: &mut Dice) -> Map<String, Value> {
        let params = self.parameters(hook).unwrap_or_default();
        dice.arguments(hook, &params)
    }

    /// Returns `args` with one place changed.
    pub fn changed(
        &self,
        hook: &str,
        args: &Map<String, Value>,
        dice: &mut Dice,
    ) -> Map<String, Value> {
        let params = self.parameters(hook).unwrap_or_default();
        dice.changed(hook, &params, args)
    }

    fn parameters(&self, hook: &str) -> Option<Vec<(String, Type)>> {
        let (_, interface) = HOOKS.iter().find(|(known, _)| *known == hook)?;
        self.base.parameters(interface, hook).ok()
    }
}

impl Trial {
    /// Makes, configures and describes a guest as the gateway does when it loads a plugin, its schemas
    /// compiled. Microseconds that making another one takes.
    ///
    /// # Errors
    /// Each thing that is wrong: key as under `plugins[]`, and why.
    pub fn begin(&self) -> Result<u32, Vec<(String, String)>> {
        try_out(&self.revision)?;
        let clock = self.revision.ground().runtime.clock;
        let began_us = clock.micros();
        drop(self.guest());
        let took_us = clock.micros().saturating_sub(began_us);
        Ok(u32::try_from(took_us).unwrap_or(u32::MAX))
    }

    /// Words in its schemas that no version of JSON Schema knows: which schema, and a sentence.
    pub fn unknown_keywords(&self) -> Vec<(&'static str, String)> {
        let Ok(described) = try_out(&self.revision) else {
            return Vec::new();
        };
        let schemas = [("input", described.input), ("output", described.output)];
        let mut found = Vec::new();
        for (which, schema) in schemas {
            let root = schema.and_then(|schema| serde_json::from_str(schema.text()).ok());
            let words = root.as_ref().map(unknown_keywords).unwrap_or_default();
            found.extend(words.into_iter().map(|word| (which, word)));
        }
        found
    }

    /// A fixture's call on a fresh guest.
    pub fn run(&self, fixture: &Fixture) -> Ran {
        match Subject::make(&self.revision, SETUP_DEADLINE_MS * PATIENCE) {
            Ok(mut subject) => subject.call(fixture),
            Err(crash) => Ran::unmade(*crash),
        }
    }

    /// A guest to be called again and again; none where it cannot be made, for which `run` gives the reason.
    pub fn guest(&self) -> Option<Guest<'_>> {
        let made = Subject::make(&self.revision, SETUP_DEADLINE_MS * PATIENCE);
        made.ok().map(Guest)
    }

    /// Returns the lines logged since the last call.
    pub fn log(&self) -> Vec<String> {
        let kept = self.revision.parts.grants.heard.kept.as_ref();
        kept.map(|kept| std::mem::take(&mut *kept.lock()))
            .unwrap_or_default()
    }
}

impl Guest<'_> {
    /// Calls it. After a failure that is no rejection it is dead and must be dropped.
    pub fn call(&mut self, fixture: &Fixture) -> Ran {
        self.0.call(fixture)
    }
}

/// A failure as `expect-error` spells it.
pub fn spelled(failure: &Failure) -> Value {
    judge::failure(failure)
}

/// A call of `describe`, which has no arguments.
pub fn asking_describe() -> Fixture {
    Fixture {
        name: "describe".into(),
        hook: "describe".into(),
        args: Map::new(),
        settings: Map::new(),
        tables: BTreeMap::new(),
        expect: None,
        expect_error: None,
        max_fuel: None,
        captured: None,
    }
}

/// Where the fixtures of a component lie: `NAME.tests` beside it, or `tests` when it is alone there.
pub fn fixtures_beside(file: &Path) -> Option<std::path::PathBuf> {
    folder_of(file)
}

/// True when two answers are the same: values, or classes and texts of failures.
pub fn is_same(one: &Ran, other: &Ran) -> bool {
    one.answer == other.answer
}

fn spec(world: World, limits: PluginLimits) -> PluginSpec {
    PluginSpec {
        name: "plugin".into(),
        world,
        file: Default::default(),
        sha256: None,
        dev: true,
        grants: Vec::new(),
        counters: Vec::new(),
        tables: BTreeMap::new(),
        settings: Map::new(),
        limits,
        on_failure: None,
        openai_answers: None,
        last_good: false,
        barred_sha256: Vec::new(),
        instance: InstancePolicy::Fresh,
        optional: false,
        mode: Default::default(),
    }
}

fn everything(ground: &Ground, sha256: &str, attached: Vec<super::grants::Table>) -> Grants {
    Grants {
        plugin: "plugin".into(),
        sha256: sha256.into(),
        log: true,
        counters: true,
        tables: true,
        declared: Vec::new(),
        attached,
        clock: ground.runtime.clock,
        metrics: ground.metrics.plugin("plugin"),
        heard: Heard::keeping(),
    }
}
