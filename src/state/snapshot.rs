//! Snapshot of everything that a request reads and a reload can change.
//!
//! Immutable: a reload makes the next one. A request keeps the world it began with.

use std::sync::Arc;
use std::time::Duration;

use http::header::HeaderName;
use infergate_core::admission::bodies::BodyLimits;
use infergate_core::client_address::{ClientAddress, TrustedProxies};
use infergate_core::deadline::DeadlineRule;
use infergate_core::model::{
    AccountSpec, Catalog, ClientProfile, ClientProfiles, ModelSpec, NamedTask,
};
use infergate_core::{AccountId, Millis};

use super::accounts::Accounts;
use super::cors::CorsRules;
use super::{Cors, Headers, Limits, Readiness, Timeouts};
use crate::plugin::PluginSnapshot;
use crate::state::TracingRuntime;
use crate::telemetry::otlp::TracingConfig;
use crate::telemetry::{Clock, Metrics};
use crate::upstream::ModelRuntimes;

/// Parts of a snapshot, as the configuration gives them.
pub struct SnapshotParts {
    /// Counts configurations that took effect, from 1.
    pub generation: u64,
    /// `node.id`.
    pub node: Arc<str>,
    /// `node.site`.
    pub site: Arc<str>,
    /// All models.
    pub models: Vec<Arc<ModelSpec>>,
    /// Named tasks.
    pub tasks: Vec<Arc<NamedTask>>,
    /// Client profiles.
    pub clients: Vec<ClientProfile>,
    /// Plugins of the models.
    pub plugins: PluginSnapshot,
    /// All accounts.
    pub accounts: Vec<AccountSpec>,
    /// Requests without a key are served.
    pub anonymous_allowed: bool,
    /// `trusted_proxies`.
    pub trusted_proxies: Option<TrustedProxies>,
    /// `limits`.
    pub limits: Limits,
    /// `timeouts`.
    pub timeouts: Timeouts,
    /// `headers`.
    pub headers: Headers,
    /// `cors`.
    pub cors: Cors,
    /// `readiness`.
    pub readiness: Readiness,
    /// An answer's last byte waits until its event is on the disk.
    pub event_before_last_byte: bool,
    /// `tracing`.
    pub tracing: TracingConfig,
}

/// Configuration generation that is ready to serve.
#[derive(Default)]
pub struct ConfigSnapshot {
    /// Counts configurations that took effect, from 1; 0 is the empty world before the first.
    pub generation: u64,
    /// `node.site`.
    pub site: Arc<str>,
    /// `node.id`.
    pub node: Arc<str>,
    /// `site/node`: where every request of this node has been.
    pub path: Arc<[Arc<str>]>,
    pub catalog: Catalog,
    /// Client profiles; none without any.
    pub clients: Option<Arc<ClientProfiles>>,
    /// All models.
    pub models: ModelRuntimes,
    /// Plugins of the models.
    pub plugins: PluginSnapshot,
    pub accounts: Arc<Accounts>,
    /// Proxies that are believed; none without any, which is all that a request then looks at.
    pub trusted_proxies: Option<Arc<TrustedProxies>>,
    /// `limits`.
    pub limits: Limits,
    /// `timeouts`.
    pub timeouts: Timeouts,
    /// `readiness`.
    pub readiness: Readiness,
    /// `headers.pass`.
    pub headers_pass: Arc<[HeaderName]>,
    pub cors: Arc<CorsRules>,
    pub deadline: DeadlineRule,
    pub event_before_last_byte: bool,
    /// Recording and export of traces; none without a collector.
    pub tracing: Option<Arc<TracingRuntime>>,
}

impl ConfigSnapshot {
    /// The limit of an account whose neurons are counted here.
    pub fn limit_of(&self, account: &AccountId) -> Option<u64> {
        self.accounts.known(account)?.spec.neurons_per_day
    }

    /// Accounts with a limit a minute of which requests have passed here, and how many.
    pub fn requests_passed(&self) -> impl Iterator<Item = (&AccountId, u64)> {
        self.accounts.requests_passed()
    }

    /// Counts requests of an account that have passed at another node.
    pub fn count_remote_requests(&self, account: &AccountId, count: u64, now: Millis) {
        self.accounts.count_remote_requests(account, count, now);
    }

    /// Returns whether some client means another model by a name.
    pub fn may_replace(&self, name: &str) -> bool {
        let clients = self.clients.as_ref();
        clients.is_some_and(|clients| clients.may_replace(name))
    }

    /// Returns whether the other side of a connection is a proxy that is believed.
    pub fn is_trusted_proxy(&self, other: ClientAddress) -> bool {
        let trusted = self.trusted_proxies.as_ref();
        trusted.is_some_and(|trusted| trusted.trusts(other))
    }

    /// Bounds of the memory for request bodies.
    pub fn body_limits(&self) -> BodyLimits {
        self.limits.bodies(self.accounts.is_single())
    }

    /// The world of the next generation. Gates, permits, waiters and paces go over into it.
    pub fn next_generation(
        &self,
        plan: SnapshotParts,
        clock: Clock,
        metrics: &Metrics,
    ) -> ConfigSnapshot {
        let connect_timeout = Duration::from_millis(plan.timeouts.connect_ms);
        let catalog = Catalog::with_tasks(plan.models, plan.tasks);
        let models =
            self.models
                .next_generation(&catalog, &plan.plugins, connect_timeout, clock, metrics);
        let accounts =
            self.accounts
                .next_generation(&plan.accounts, plan.anonymous_allowed, clock.now());
        let headers_pass = plan.headers.names();
        let here: Arc<str> = format!("{}/{}", plan.site, plan.node).into();
        ConfigSnapshot {
            generation: plan.generation,
            site: plan.site,
            node: plan.node,
            path: Arc::from([here]),
            catalog,
            clients: ClientProfiles::new(&plan.clients).map(Arc::new),
            models,
            plugins: plan.plugins,
            accounts: Arc::new(accounts),
            deadline: plan.timeouts.deadline_rule(),
            cors: Arc::new(CorsRules::new(&plan.cors, &headers_pass)),
            headers_pass,
            trusted_proxies: plan.trusted_proxies.map(Arc::new),
            limits: plan.limits,
            timeouts: plan.timeouts,
            readiness: plan.readiness,
            event_before_last_byte: plan.event_before_last_byte,
            tracing: TracingRuntime::new(&plan.tracing).map(Arc::new),
        }
    }

    /// The same world with other endpoints of its models: what a configuration says besides stays,
    /// and so does its generation.
    pub fn with_models(
        &self,
        models: Vec<Arc<ModelSpec>>,
        clock: Clock,
        metrics: &Metrics,
    ) -> ConfigSnapshot {
        let connect_timeout = Duration::from_millis(self.timeouts.connect_ms);
        let catalog = Catalog::with_tasks(models, self.catalog.named_tasks().to_vec());
        let models =
            self.models
                .next_generation(&catalog, &self.plugins, connect_timeout, clock, metrics);
        ConfigSnapshot {
            generation: self.generation,
            site: Arc::clone(&self.site),
            node: Arc::clone(&self.node),
            path: Arc::clone(&self.path),
            catalog,
            clients: self.clients.clone(),
            models,
            plugins: self.plugins.clone(),
            accounts: Arc::clone(&self.accounts),
            deadline: self.timeouts.deadline_rule(),
            headers_pass: Arc::clone(&self.headers_pass),
            cors: Arc::clone(&self.cors),
            trusted_proxies: self.trusted_proxies.clone(),
            limits: self.limits.clone(),
            timeouts: self.timeouts.clone(),
            readiness: self.readiness.clone(),
            event_before_last_byte: self.event_before_last_byte,
            tracing: self.tracing.clone(),
        }
    }
}
