//! Loading of one plugin: from its file to a revision, every check in order.
//!
//! Publishes nothing: the revision it makes serves no call yet. Bytes, digest, validity, world, imports,
//! tables, compilation, `configure`, `describe`, schemas, fixtures. Blocks for as long as compiling takes;
//! never runs on a worker. A revision whose every part is as in the former configuration is that very
//! revision.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use wasmtime::component::Component;

use crate::plugin::failure::Failure;
use crate::plugin::file::open_regular;
use crate::plugin::json::schema::Schema;
use crate::plugin::loading::component_type::{ComponentType, FILE_MAX_BYTES};
use crate::plugin::loading::fixtures::fixture::{
    FixtureInstance, FixtureRun, PluginFixture, settings_text, tables_of,
};
use crate::plugin::loading::grants;
use crate::plugin::loading::grants::{KeyProblem, ResolvedGrants};
use crate::plugin::roles::task::guest;
use crate::plugin::roles::validate_output::advice;
use crate::plugin::runtime::context::HostContext;
use crate::plugin::runtime::identity::RevisionIdentity;
use crate::plugin::runtime::imports::{GrantUsage, GrantedCounter, Grants, LookupTable};
use crate::plugin::runtime::revision::{CompiledDescription, LinkedCode, Revision, RevisionParts};
use crate::plugin::runtime::store::{CallError, ExportIndices};
use crate::plugin::spec::{OnFailure, PluginSpec, World};

/// Milliseconds that `configure` and `describe` may take while a plugin is loaded.
pub const SETUP_DEADLINE_MS: u32 = 500;

/// Bytes of fixtures that a revision keeps, to be tried again when it is in doubt.
const FIXTURES_KEPT_BYTES: usize = 1 << 20;

/// Making a guest that decides in the middle of a request should take less. A task's caller waits for
/// the model anyway.
const SETUP_SLOW_US: u32 = 5_000;

/// A plugin's file, read and found fit for its world.
pub struct CheckedComponent {
    pub bytes: Vec<u8>,
    pub digest: [u8; 32],
    pub granted: ResolvedGrants,
}

/// State shared by all revisions of one load.
pub struct RevisionLoader<'a> {
    pub context: &'a Arc<HostContext>,
}

/// Checks everything that can be checked without running the plugin. Problems are keys under the plugin.
pub fn check(spec: &PluginSpec) -> Result<CheckedComponent, Vec<KeyProblem>> {
    let mut wrong = Vec::new();
    let is_task = spec.world.role() == "task";
    if !is_task
        && spec
            .on_failure
            .is_some_and(|policy| policy != OnFailure::Builtin)
    {
        let why = "billing and routing fall back to what is built in: only `builtin` fits here";
        wrong.push(("on_failure".into(), why.into()));
    }
    let granted = grants::read(&spec.grants, &spec.counters, &spec.tables, &mut wrong);
    let bytes = match read(&spec.file) {
        Ok(bytes) => bytes,
        Err(problem) => {
            wrong.push(("file".into(), problem));
            return Err(wrong);
        }
    };
    let digest: [u8; 32] = Sha256::digest(&bytes).into();
    check_digest(spec, &digest, &mut wrong);
    // Bytes that are not the ones meant are not looked at.
    if !wrong.is_empty() {
        return Err(wrong);
    }
    match ComponentType::of(&bytes) {
        Ok(shape) => {
            wrong.extend(
                shape
                    .missing_exports(spec.world)
                    .into_iter()
                    .map(|why| ("world".into(), why)),
            );
            let ungranted = shape.ungranted_imports(&spec.grants);
            wrong.extend(ungranted.into_iter().map(|why| ("grants".into(), why)));
            if wrong.is_empty() {
                return Ok(CheckedComponent {
                    bytes,
                    digest,
                    granted,
                });
            }
        }
        Err(problem) => wrong.push(("file".into(), problem)),
    }
    Err(wrong)
}

/// The bytes of a component's file, at most [`FILE_MAX_BYTES`].
pub fn read(path: &Path) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let unreadable = |error: std::io::Error| format!("cannot read `{shown}`: {error}");
    let file = open_regular(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(FILE_MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if bytes.len() as u64 > FILE_MAX_BYTES {
        return Err(format!(
            "`{shown}` is larger than {} MiB",
            FILE_MAX_BYTES >> 20
        ));
    }
    Ok(bytes)
}

fn check_digest(spec: &PluginSpec, digest: &[u8; 32], wrong: &mut Vec<KeyProblem>) {
    let found = hex::encode(digest);
    match &spec.sha256 {
        Some(meant) if meant.eq_ignore_ascii_case(&found) => {}
        _ if spec.dev => {}
        Some(_) => wrong.push((
            "sha256".into(),
            format!("the file has {found}: not the one meant, or it has been changed"),
        )),
        None => wrong.push((
            "sha256".into(),
            format!("required: the file has {found} (`dev: true` takes any)"),
        )),
    }
}

/// A digest of everything a revision is made of, and one of its settings alone.
pub fn fingerprint(
    spec: &PluginSpec,
    checked: &CheckedComponent,
    settings: &str,
) -> ([u8; 32], Arc<str>) {
    let config: [u8; 32] = Sha256::digest(settings).into();
    let mut all = Sha256::new();
    let mut part = |bytes: &[u8]| {
        all.update((bytes.len() as u64).to_le_bytes());
        all.update(bytes);
    };
    part(spec.name.as_bytes());
    part(spec.world.name().as_bytes());
    part(&checked.digest);
    part(&config);
    part(format!("{:?} {:?}", spec.bounds(), spec.instance).as_bytes());
    part(&[
        u8::from(checked.granted.log),
        u8::from(checked.granted.counters),
    ]);
    for counter in &spec.counters {
        part(counter.as_bytes());
    }
    for (name, table) in &checked.granted.tables {
        part(name.as_bytes());
        let mut rows: Vec<_> = table.iter().collect();
        rows.sort();
        for (key, value) in rows {
            part(key.as_bytes());
            part(value);
        }
    }
    (all.finalize().into(), hex::encode(config).into())
}

impl RevisionLoader<'_> {
    /// Links a component with its grants.
    fn code(&self, component: Component, grants: &Grants) -> Result<LinkedCode, Vec<KeyProblem>> {
        let engine = &self.context.runtime.engine;
        let wrong = |why: String| vec![("file".to_owned(), why)];
        let pre = grants
            .linker(engine)
            .and_then(|linker| linker.instantiate_pre(&component))
            .map_err(|why| wrong(format!("it cannot be linked: {why:#}")))?;
        let indices = ExportIndices::of(&pre);
        Ok(LinkedCode {
            component,
            pre,
            indices,
        })
    }

    /// A revision with these settings, configured, described and tried.
    pub fn revision(
        &self,
        spec: &PluginSpec,
        checked: &CheckedComponent,
        component: Component,
        settings: &str,
    ) -> Result<Revision, Vec<KeyProblem>> {
        let grants = grants(self.context, spec, checked);
        let mut revision = self.linked_revision(spec, checked, component, grants, settings)?;
        revision.described = configure_and_describe(&revision)?;
        revision.fixtures = self.fixtures(spec, &revision)?;
        Ok(revision)
    }

    /// Revision with these settings, linked but not configured.
    pub fn linked_revision(
        &self,
        spec: &PluginSpec,
        checked: &CheckedComponent,
        component: Component,
        grants: Grants,
        settings: &str,
    ) -> Result<Revision, Vec<KeyProblem>> {
        let (fingerprint, config) = fingerprint(spec, checked, settings);
        let parts = RevisionParts {
            identity: RevisionIdentity {
                name: Arc::clone(&spec.name),
                sha256: Arc::clone(&grants.sha256),
                config,
            },
            fingerprint,
            world: spec.world,
            code: self.code(component, &grants)?,
            settings: settings.into(),
            bounds: spec.bounds(),
            policy: spec.instance,
            grants: Arc::new(grants),
        };
        Ok(Revision::new(Arc::clone(self.context), parts))
    }

    /// Runs the plugin's own fixtures, where it has some beside it.
    fn fixtures(
        &self,
        spec: &PluginSpec,
        revision: &Revision,
    ) -> Result<Vec<PluginFixture>, Vec<KeyProblem>> {
        let Some(folder) = fixtures_folder(&spec.file) else {
            return Ok(Vec::new());
        };
        let wrong = |why: String| vec![("file".to_owned(), why)];
        let fixtures = PluginFixture::folder(&folder).map_err(wrong)?;
        let mut took_us = Vec::new();
        for fixture in &fixtures {
            let ran = run_fixture(revision, fixture);
            if let Some(difference) = fixture.difference(&ran) {
                return Err(wrong(format!(
                    "its fixture `{}`: {difference}",
                    fixture.name
                )));
            }
            if ran.elapsed_us > 0 {
                took_us.push(ran.elapsed_us);
            }
            revision
                .tally
                .peak_bytes
                .fetch_max(ran.memory_bytes as u64, Ordering::Relaxed);
        }
        took_us.sort_unstable();
        if let (Some(p50), Some(p99)) = (percentile(&took_us, 50), percentile(&took_us, 99)) {
            revision.tally.fixture_p50_us.store(p50, Ordering::Relaxed);
            revision.tally.fixture_p99_us.store(p99, Ordering::Relaxed);
            revision
                .tally
                .mean_us
                .store(u32::try_from(p50).unwrap_or(u32::MAX), Ordering::Relaxed);
        }
        // As many as are worth keeping for a check while it serves.
        let mut kept_bytes = 0;
        Ok(fixtures
            .into_iter()
            .take_while(|fixture| {
                kept_bytes += fixture.bytes();
                kept_bytes <= FIXTURES_KEPT_BYTES
            })
            .collect())
    }
}

/// Calls a fixture on a guest of its own.
pub fn run_fixture(revision: &Revision, fixture: &PluginFixture) -> FixtureRun {
    let variant = with_fixture_settings(revision, fixture);
    match FixtureInstance::make(&variant, SETUP_DEADLINE_MS) {
        Ok(mut subject) => subject.call(fixture),
        Err(crash) => FixtureRun::not_made(*crash),
    }
}

/// The same code with a fixture's settings and tables.
pub fn with_fixture_settings(revision: &Revision, fixture: &PluginFixture) -> Revision {
    let of = &revision.parts;
    let grants = Grants {
        plugin: Arc::clone(&of.grants.plugin),
        sha256: Arc::clone(&of.grants.sha256),
        log: of.grants.log,
        counters: of.grants.counters,
        tables: of.grants.tables,
        declared: Vec::new(),
        attached: tables_of(fixture),
        clock: of.grants.clock,
        usage: GrantUsage::default(),
        metrics: Arc::clone(&of.grants.metrics),
    };
    let parts = RevisionParts {
        identity: of.identity.clone(),
        fingerprint: of.fingerprint,
        world: of.world,
        code: of.code.clone(),
        settings: settings_text(&fixture.settings).into(),
        bounds: of.bounds,
        policy: of.policy,
        grants: Arc::new(grants),
    };
    Revision::new(Arc::clone(revision.context()), parts)
}

/// `configure` and `describe` on a first guest, and what making a second one takes.
pub fn configure_and_describe(revision: &Revision) -> Result<CompiledDescription, Vec<KeyProblem>> {
    let mut first = revision
        .make_instance(SETUP_DEADLINE_MS)
        .map_err(|crash| setup_problems(&crash))?;
    first.arm(SETUP_DEADLINE_MS);
    let description = guest::describe(&mut first).map_err(|crash| setup_problems(&crash))?;
    drop(first);
    let clock = revision.context().runtime.clock;
    let began_us = clock.micros();
    drop(
        revision
            .make_instance(SETUP_DEADLINE_MS)
            .map_err(|crash| setup_problems(&crash))?,
    );
    let setup_us = clock.micros().saturating_sub(began_us);
    let taken_us = u32::try_from(setup_us).unwrap_or(u32::MAX);
    revision.tally.setup_us.store(taken_us, Ordering::Relaxed);
    let world = revision.parts.world;
    if taken_us > SETUP_SLOW_US && world != World::TaskSchema {
        tracing::warn!(
            plugin = &*revision.parts.identity.name,
            world = world.name(),
            setup_us = taken_us,
            "a guest of this plugin is long in the making: each account's first call waits for it, do less in `configure`"
        );
    }
    let compiled = |text: &Option<String>, which: &str| {
        let schema = text.as_deref().map(Schema::compile).transpose();
        schema.map_err(|why| vec![("file".to_owned(), format!("its {which} schema: {why}"))])
    };
    Ok(CompiledDescription {
        input: compiled(&description.input_schema, "input")?,
        output: compiled(&description.output_schema, "output")?,
        description,
    })
}

/// `configure` names places under the settings; everything else is the file's.
fn setup_problems(crash: &CallError) -> Vec<KeyProblem> {
    if !crash.problems.is_empty() {
        let below = |path: &str| match path.trim_start_matches(['.', '/']) {
            "" => "settings".to_owned(),
            path => format!("settings.{}", path.replace('/', ".")),
        };
        let problems = crash.problems.iter();
        return problems
            .map(|(path, why)| (below(path), why.clone()))
            .collect();
    }
    let at = match crash.backtrace.as_str() {
        "" => String::new(),
        frames => format!(" at {frames}"),
    };
    let why = match &crash.failure {
        Failure::Memory => {
            "it wants more memory to begin with than `limits.memory_mib` grants".to_owned()
        }
        Failure::Invalid(rule) if !advice(rule).is_empty() => {
            format!("what it says about itself breaks a rule: {}", advice(rule))
        }
        other => format!("it does not start: {other}{at}"),
    };
    vec![("file".to_owned(), why)]
}

fn grants(ground: &HostContext, spec: &PluginSpec, checked: &CheckedComponent) -> Grants {
    let tables: Vec<LookupTable> = checked
        .granted
        .tables
        .iter()
        .map(|(_, table)| table.clone())
        .collect();
    let metrics = ground.metrics.plugin(&spec.name);
    Grants {
        plugin: Arc::clone(&spec.name),
        sha256: hex::encode(checked.digest).into(),
        log: checked.granted.log,
        counters: checked.granted.counters,
        tables: !tables.is_empty(),
        declared: spec
            .counters
            .iter()
            .map(|name| GrantedCounter {
                name: Arc::clone(name),
                series: metrics.counter(name),
                value: AtomicU64::new(0),
            })
            .collect(),
        attached: tables,
        clock: ground.runtime.clock,
        usage: GrantUsage::default(),
        metrics,
    }
}

/// Where a plugin's fixtures are: `<name>.tests`, or `tests` or `fixtures` when it is the only plugin
/// in its folder.
pub fn fixtures_folder(file: &Path) -> Option<PathBuf> {
    let own = file.with_extension("tests");
    if own.is_dir() {
        return Some(own);
    }
    let folder = file.parent()?;
    let is_wasm = |path: &Path| path.extension().is_some_and(|ending| ending == "wasm");
    let others = std::fs::read_dir(if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    })
    .ok()?
    .flatten()
    .filter(|entry| is_wasm(&entry.path()))
    .count();
    let shared = ["tests", "fixtures"].map(|name| folder.join(name));
    shared
        .into_iter()
        .find(|folder| others == 1 && folder.is_dir())
}

/// The value that so many of a hundred do not exceed; none of none.
pub fn percentile(sorted: &[u64], percent: usize) -> Option<u64> {
    let at = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(at).copied()
}

/// A model's own settings over the plugin's, as JSON text.
pub fn merged_settings(spec: &PluginSpec, of_model: &Map<String, Value>) -> String {
    if spec.world != World::RoutingPolicy || of_model.is_empty() {
        return settings_text(&spec.settings);
    }
    let mut settings = spec.settings.clone();
    for (key, value) in of_model {
        settings.insert(key.clone(), value.clone());
    }
    settings_text(&settings)
}
