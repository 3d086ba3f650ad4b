//! Host for author tools: one component, opened without a configuration, called by fixtures.
//!
//! Serves no request and prints nothing. All imports are granted, so that a missing grant is reported by the
//! check and not by the linker; log lines are kept instead of logged. Memory and answers are held to what a
//! gateway grants. Deadlines are ten times the gateway's if instructions are counted, which takes time.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};
use wasmtime::component::Type;

use crate::plugin::loading::compile::{CompileWait, Compilers};
use crate::plugin::loading::component_file::CheckedComponent;
use crate::plugin::loading::fixtures::fixture::fixtures_folder;
use crate::plugin::loading::fixtures::run::FixtureInstance;
use crate::plugin::loading::grants::{KeyProblem, ResolvedGrants, from_object};
use crate::plugin::loading::load::RevisionLoader;
use crate::plugin::loading::settings::settings_text;
use crate::plugin::loading::setup::{SETUP_DEADLINE_MS, configure_and_describe};
use crate::plugin::runtime::background::BackgroundQueue;
use crate::plugin::runtime::code_cache::CodeCache;
use crate::plugin::runtime::context::HostContext;
use crate::plugin::runtime::engine::{EnginePurpose, WasmRuntime};
use crate::plugin::runtime::grants::{GrantUsage, Grants, LookupTable};
use crate::plugin::runtime::revision::{LinkedCode, Revision, RevisionParts};
use crate::plugin::spec::{Bounds, InstancePolicy, PluginLimits, PluginSpec, World};
use crate::telemetry::Clock;

pub use crate::cli::tooling::arg_generator::ArgGenerator;
pub use crate::cli::tooling::component_info::{ComponentInfo, FILE_MAX_BYTES};
pub use crate::cli::tooling::keywords::unknown_keywords;
pub use crate::cli::tooling::wit_docs::{wit_docs, world_text};
pub use crate::plugin::failure::Failure;
pub use crate::plugin::json::schema::Schema;
pub use crate::plugin::loading::fixtures::diff::FixtureDifference;
pub use crate::plugin::loading::fixtures::fixture::{
    FixtureRun, FixtureVerdict, HOOKS, PluginFixture,
};
pub use crate::plugin::runtime::call_stats::percentile;

/// Guests alive at once: a fresh one, a used one, and one that is being made.
const SLOTS: u32 = 8;
/// Deadlines where instructions are counted, in deadlines of the gateway.
const PATIENCE: u32 = 10;

/// Measure of cost that the tools read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostMeasure {
    /// Instructions, the same on every machine. The code is slower for it.
    Fuel,
    /// Time, with the code that the gateway runs.
    Time,
}

/// An engine for authors.
pub struct ToolHost {
    context: Arc<HostContext>,
    compilers: Compilers,
}

/// A component, compiled.
pub struct OpenedComponent {
    base: Revision,
}

/// A component with settings and tables.
pub struct ConfiguredComponent {
    revision: Revision,
}

/// A guest that is called more than once.
pub struct ToolInstance<'a>(FixtureInstance<'a>);

impl ToolHost {
    /// Starts an engine. Compiled code is kept below `cache`, where that can be trusted.
    ///
    /// # Errors
    /// The operating system has no memory or thread for it.
    pub fn start(measure: CostMeasure, cache: Option<&Path>) -> Result<ToolHost, String> {
        let purpose = match measure {
            CostMeasure::Fuel => EnginePurpose::Tools,
            CostMeasure::Time => EnginePurpose::Serve,
        };
        let runtime = WasmRuntime::start(SLOTS, purpose, Clock::start())?;
        let pool = Arc::default();
        Ok(ToolHost {
            context: Arc::new(HostContext {
                runtime,
                background: BackgroundQueue::start().map_err(|why| format!("no thread: {why}"))?,
                pool,
                metrics: Arc::default(),
                captures: Arc::default(),
            }),
            compilers: Compilers::new(
                None,
                cache
                    .and_then(|folder| CodeCache::open(folder).ok())
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
        info: &ComponentInfo,
        world: World,
        limits: PluginLimits,
    ) -> Result<OpenedComponent, String> {
        let spec = spec(world, limits);
        let mut digest = [0; 32];
        hex::decode_to_slice(&info.sha256, &mut digest).map_err(|error| error.to_string())?;
        let checked = CheckedComponent {
            bytes: info.bytes.clone(),
            digest,
            granted: ResolvedGrants::default(),
        };
        let loader = RevisionLoader {
            context: &self.context,
            compilers: &self.compilers,
        };
        let joined = |problems: Vec<KeyProblem>| {
            let reasons = problems.into_iter().map(|(_, why)| why);
            reasons.collect::<Vec<_>>().join("; ")
        };
        let component = loader.compile(&spec, &checked, CompileWait::Whole);
        let component = component.map_err(joined)?.ok_or("it is not compiled")?;
        let grants = all_grants(&self.context, &info.sha256, Vec::new());
        let base = loader.link(&spec, &checked, component, grants, "{}");
        let base = base.map_err(joined)?;
        Ok(OpenedComponent { base })
    }
}

impl ToolHost {
    /// Microseconds of each of at most `runs` calls, sorted: the result of `call`, or how long it
    /// took. Ends early once there are so many calls, and so many microseconds have passed.
    pub fn times(
        &self,
        runs: usize,
        (runs_min, enough_us): (usize, u64),
        mut call: impl FnMut() -> Option<u64>,
    ) -> Vec<u64> {
        let clock = self.context.runtime.clock;
        let began_us = clock.micros();
        let mut times = Vec::new();
        while times.len() < runs {
            let from_us = clock.micros();
            if times.len() >= runs_min && from_us.saturating_sub(began_us) > enough_us {
                break;
            }
            let measured = call();
            times.push(measured.unwrap_or_else(|| clock.micros().saturating_sub(from_us)));
        }
        times.sort_unstable();
        times
    }
}

impl OpenedComponent {
    /// The hooks it exports.
    pub fn hooks(&self) -> Vec<&'static str> {
        let hooks = HOOKS
            .iter()
            .filter(|(hook, of)| self.base.has_hook(of, hook));
        hooks.map(|(hook, _)| *hook).collect()
    }

    /// The limits that the gateway would hold it to.
    pub fn bounds(&self) -> Bounds {
        self.base.parts.bounds
    }

    /// The component with these settings, and tables by name.
    pub fn with_settings(
        &self,
        settings: &Map<String, Value>,
        tables: &BTreeMap<Arc<str>, Map<String, Value>>,
    ) -> ConfiguredComponent {
        let of = &self.base.parts;
        let context = self.base.context();
        let attached = tables.values().map(from_object).collect();
        let Bounds {
            deadline_ms,
            stream_deadline_ms,
            ..
        } = of.bounds;
        let patience = match context.runtime.purpose {
            EnginePurpose::Tools => PATIENCE,
            EnginePurpose::Serve => 1,
        };
        let parts = RevisionParts {
            identity: Arc::clone(&of.identity),
            fingerprint: of.fingerprint,
            world: of.world,
            code: LinkedCode::clone(&of.code),
            settings: settings_text(settings).into(),
            bounds: Bounds {
                deadline_ms: deadline_ms * patience,
                stream_deadline_ms: stream_deadline_ms * patience,
                ..of.bounds
            },
            policy: InstancePolicy::Fresh,
            grants: Arc::new(all_grants(context, &of.identity.sha256, attached)),
        };
        ConfiguredComponent {
            revision: Revision::new(Arc::clone(context), parts),
        }
    }

    /// Arguments of a hook as the gateway could give them, by chance.
    pub fn arguments(&self, hook: &str, generator: &mut ArgGenerator) -> Map<String, Value> {
        let params = self.parameters(hook).unwrap_or_default();
        generator.arguments(hook, &params)
    }

    /// Returns `args` with one place changed.
    pub fn changed(
        &self,
        hook: &str,
        args: &Map<String, Value>,
        generator: &mut ArgGenerator,
    ) -> Map<String, Value> {
        let params = self.parameters(hook).unwrap_or_default();
        generator.changed(hook, &params, args)
    }

    fn parameters(&self, hook: &str) -> Option<Vec<(String, Type)>> {
        let (_, interface) = HOOKS.iter().find(|(known, _)| *known == hook)?;
        self.base.parameters(interface, hook).ok()
    }
}

impl ConfiguredComponent {
    /// Makes, configures and describes a guest as the gateway does when it loads a plugin, its schemas
    /// compiled. Microseconds that making another one takes.
    ///
    /// # Errors
    /// Each thing that is wrong: key as under `plugins[]`, and why.
    pub fn try_setup(&self) -> Result<u32, Vec<(String, String)>> {
        configure_and_describe(&self.revision)?;
        let clock = self.revision.context().runtime.clock;
        let began_us = clock.micros();
        drop(self.instance());
        let took_us = clock.micros().saturating_sub(began_us);
        Ok(u32::try_from(took_us).unwrap_or(u32::MAX))
    }

    /// Words in its schemas that no version of JSON Schema knows: which schema, and a sentence.
    pub fn unknown_keywords(&self) -> Vec<(&'static str, String)> {
        let Ok(described) = configure_and_describe(&self.revision) else {
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
    pub fn run(&self, fixture: &PluginFixture) -> FixtureRun {
        match FixtureInstance::make(&self.revision, SETUP_DEADLINE_MS * PATIENCE) {
            Ok(mut subject) => subject.call(fixture),
            Err(call_error) => FixtureRun::not_made(*call_error),
        }
    }

    /// A guest to be called again and again; none where it cannot be made, for which `run` gives the reason.
    pub fn instance(&self) -> Option<ToolInstance<'_>> {
        let made = FixtureInstance::make(&self.revision, SETUP_DEADLINE_MS * PATIENCE);
        made.ok().map(ToolInstance)
    }

    /// Returns the lines logged since the last call.
    pub fn log(&self) -> Vec<String> {
        let kept = self.revision.parts.grants.usage.kept.as_ref();
        kept.map(|kept| std::mem::take(&mut *kept.lock()))
            .unwrap_or_default()
    }
}

impl ToolInstance<'_> {
    /// Calls it. After a failure that is no rejection it is dead and must be dropped.
    pub fn call(&mut self, fixture: &PluginFixture) -> FixtureRun {
        self.0.call(fixture)
    }
}

/// A failure as `expect-error` spells it.
pub fn failure_json(failure: &Failure) -> Value {
    failure.expectation()
}

/// A call of `describe`, which has no arguments.
pub fn describe_call() -> PluginFixture {
    PluginFixture {
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

/// Folder of a component's fixtures: `NAME.tests` beside it, or `tests` when it is alone there.
pub fn fixtures_beside(file: &Path) -> Option<std::path::PathBuf> {
    fixtures_folder(file)
}

/// True when two answers are the same: values, or classes and texts of failures.
pub fn is_same(one: &FixtureRun, other: &FixtureRun) -> bool {
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

fn all_grants(context: &HostContext, sha256: &str, attached: Vec<LookupTable>) -> Grants {
    Grants {
        plugin: "plugin".into(),
        sha256: sha256.into(),
        log: true,
        counters: true,
        tables: true,
        declared: Vec::new(),
        attached,
        clock: context.runtime.clock,
        metrics: context.metrics.plugin("plugin"),
        usage: GrantUsage::with_kept_lines(),
    }
}
