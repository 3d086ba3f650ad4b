//! Loading of one revision: from a component's file to a revision that may serve, every check in order.
//!
//! Publishes nothing: the revision serves no call yet. Blocks for as long as compiling takes; never runs on a
//! worker. A revision whose every part is as in the former configuration is that very revision
//! ([`fingerprint`]); the caller looks for it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use wasmtime::component::Component;

use crate::plugin::loading::compile::{CompileInput, CompileWait, Compilers};
use crate::plugin::loading::component_file::{CheckedComponent, fingerprint};
use crate::plugin::loading::fixtures::run::check_fixtures;
use crate::plugin::loading::grants::KeyProblem;
use crate::plugin::loading::setup::configure_and_describe;
use crate::plugin::runtime::context::HostContext;
use crate::plugin::runtime::grants::{GrantUsage, GrantedCounter, Grants, LookupTable};
use crate::plugin::runtime::imports::linker;
use crate::plugin::runtime::revision::{LinkedCode, Revision, RevisionParts};
use crate::plugin::runtime::store::ExportIndices;
use crate::plugin::spec::PluginSpec;
use crate::telemetry::event::PluginIdentity;

/// State shared by all revisions of one load.
pub struct RevisionLoader<'a> {
    pub context: &'a Arc<HostContext>,
    pub compilers: &'a Compilers,
}

impl RevisionLoader<'_> {
    /// Loads one revision of a component whose file, type and grants have been checked
    /// ([`check`](crate::plugin::loading::component_file::check)): compile → link → configure and describe →
    /// fixtures. None while its component is compiled for longer than `wait`.
    ///
    /// # Errors
    /// Problems as keys under the plugin; nothing has been published.
    pub fn load(
        &self,
        spec: &PluginSpec,
        checked: &CheckedComponent,
        settings: &str,
        wait: CompileWait,
    ) -> Result<Option<Arc<Revision>>, Vec<KeyProblem>> {
        let Some(component) = self.compile(spec, checked, wait)? else {
            return Ok(None);
        };
        let grants = grants_of(self.context, spec, checked);
        let mut revision = self.link(spec, checked, component, grants, settings)?;
        revision.described = configure_and_describe(&revision)?;
        revision.self_check = check_fixtures(spec, &revision)?;
        Ok(Some(revision.into_shared()))
    }

    /// Compiles a component; none where it takes longer than `wait`.
    ///
    /// # Errors
    /// Error text of the compiler.
    pub fn compile(
        &self,
        spec: &PluginSpec,
        checked: &CheckedComponent,
        wait: CompileWait,
    ) -> Result<Option<Component>, Vec<KeyProblem>> {
        let input = CompileInput {
            plugin: &spec.name,
            bytes: &checked.bytes,
            digest: &checked.digest,
        };
        self.compilers
            .component(&self.context.runtime.engine, input, wait)
            .map_err(|why| file_problem(format!("it does not compile: {why}")))
    }

    /// Links a component: a revision with these settings and grants, not configured yet.
    ///
    /// # Errors
    /// A component that imports more than its grants.
    pub fn link(
        &self,
        spec: &PluginSpec,
        checked: &CheckedComponent,
        component: Component,
        grants: Grants,
        settings: &str,
    ) -> Result<Revision, Vec<KeyProblem>> {
        let (fingerprint, config) = fingerprint(spec, checked, settings);
        let pre = linker(&grants, &self.context.runtime.engine)
            .and_then(|linker| linker.instantiate_pre(&component))
            .map_err(|why| file_problem(format!("it cannot be linked: {why:#}")))?;
        let indices = ExportIndices::of(&pre);
        let parts = RevisionParts {
            identity: Arc::new(PluginIdentity::new(
                Arc::clone(&spec.name),
                Arc::clone(&grants.sha256),
                config,
            )),
            fingerprint,
            world: spec.world,
            code: LinkedCode {
                component,
                pre,
                indices,
            },
            settings: settings.into(),
            bounds: spec.bounds(),
            policy: spec.instance,
            grants: Arc::new(grants),
        };
        Ok(Revision::new(Arc::clone(self.context), parts))
    }
}

fn file_problem(why: String) -> Vec<KeyProblem> {
    vec![("file".to_owned(), why)]
}

fn grants_of(context: &HostContext, spec: &PluginSpec, checked: &CheckedComponent) -> Grants {
    let tables: Vec<LookupTable> = checked
        .granted
        .tables
        .iter()
        .map(|(_, table)| table.clone())
        .collect();
    let metrics = context.metrics.plugin(&spec.name);
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
        clock: context.runtime.clock,
        usage: GrantUsage::default(),
        metrics,
    }
}
