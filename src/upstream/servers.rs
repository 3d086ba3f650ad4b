//! Servers by address: the permits that the gates of several models share, and which gate gets a freed one.
//!
//! The decision is [`ServerPermits`]'s; a permit freed under one gate's lock is carried to another
//! gate after that lock was released. No two gates are ever locked at once. A server is known while
//! a model has an endpoint there or a permit of it is out. A model that returns, also under another
//! name, finds its permits still counted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use hashbrown::HashMap;
use infergate_core::ModelId;
use infergate_core::admission::{GateId, Handoff, ServerPermits};
use infergate_core::model::{Catalog, EndpointSpec, PermitScope};
use parking_lot::Mutex;

/// Receiver of permits that were freed at a server it takes part in: a model's gate.
pub(super) trait HandoffReceiver: Send + Sync {
    /// Takes a freed permit; returns those that it passes on.
    fn accept(&self, handoff: Handoff) -> Vec<Handoff>;
}

/// Another process with permits at servers, also at those that are made later.
pub(super) trait ServerClaims: Send + Sync {
    /// Counts its permits at a server that is new.
    fn claim(&self, name: &str, server: &Arc<ServerPermits>);

    /// Permits that it has at a server.
    fn count(&self, name: &str) -> u32;

    /// Lets it have further permits at a server, or none.
    fn set_open(&self, name: &str, is_open: bool);
}

/// All servers and the gates that have endpoints there.
#[derive(Default)]
pub struct SharedServers {
    /// Guards the table. Held by reloads, and for a look-up by the thread that delivers a handoff; inside it
    /// nothing is locked but the servers' own leaf locks.
    table: Mutex<SharedServerTable>,
    /// Another process has had permits here: until then nobody asks for its share.
    was_shared: AtomicBool,
}

#[derive(Default)]
struct SharedServerTable {
    permits: HashMap<PermitKey, Arc<ServerPermits>>,
    gates: HashMap<GateId, Weak<dyn HandoffReceiver>>,
    /// At most two: the processes before and after this one.
    claims: Vec<Weak<dyn ServerClaims>>,
    latest: u64,
}

impl SharedServerTable {
    /// Makes a server whose first permits may be somebody's already.
    fn add(&mut self, key: PermitKey, limit: u32) -> Arc<ServerPermits> {
        let server = ServerPermits::new(limit);
        let claims = self.claims.iter().filter_map(Weak::upgrade);
        claims.for_each(|it| it.claim(&key.name(), &server));
        self.permits.insert(key, Arc::clone(&server));
        server
    }
}

/// Scope that permits belong to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum PermitKey {
    /// Scheme, host and port.
    Server(String),
    /// A single model at a single URL.
    Model(ModelId, Arc<str>),
}

impl PermitKey {
    /// Name that is the same in every process with the same configuration.
    fn name(&self) -> String {
        match self {
            PermitKey::Server(server) => server.clone(),
            PermitKey::Model(model, url) => format!("{url} {model}"),
        }
    }

    fn of(model: &ModelId, endpoint: &EndpointSpec) -> PermitKey {
        match endpoint.permits {
            PermitScope::Server => PermitKey::Server(endpoint.server()),
            PermitScope::Model => PermitKey::Model(model.clone(), Arc::clone(&endpoint.url)),
        }
    }
}

impl SharedServers {
    /// Takes over the limits of a new configuration, and forgets servers that nothing uses. The
    /// lowest limit counts if discovered endpoints disagree about their server. Returns the
    /// permits that higher limits added where requests wait.
    pub(super) fn configure(&self, catalog: &Catalog) -> Vec<Handoff> {
        let mut limits: HashMap<PermitKey, u32> = HashMap::new();
        for model in catalog.models() {
            for endpoint in &model.endpoints {
                let own = endpoint.max_concurrent_requests;
                let limit = limits
                    .entry(PermitKey::of(&model.id, endpoint))
                    .or_insert(own);
                *limit = own.min(*limit);
            }
        }
        let mut table = self.table.lock();
        table.claims.retain(|claims| claims.strong_count() > 0);
        let SharedServerTable { permits, gates, .. } = &mut *table;
        permits.retain(|key, server| limits.contains_key(key) || Arc::strong_count(server) > 1);
        gates.retain(|_, gate| gate.strong_count() > 0);
        let mut handoffs = Vec::new();
        for (key, limit) in limits {
            match table.permits.get(&key) {
                Some(server) if server.limit() == limit => {}
                Some(server) => handoffs.extend(server.set_limit(limit)),
                None => {
                    table.add(key, limit);
                }
            }
        }
        handoffs
    }

    /// The permits that an endpoint of `model` takes part in.
    pub(super) fn permits(&self, model: &ModelId, endpoint: &EndpointSpec) -> Arc<ServerPermits> {
        let mut table = self.table.lock();
        let key = PermitKey::of(model, endpoint);
        match table.permits.get(&key) {
            Some(server) => Arc::clone(server),
            None => table.add(key, endpoint.max_concurrent_requests),
        }
    }

    /// Servers that are made from now on may have permits of `claims`.
    pub(super) fn add_claims(&self, claims: Weak<dyn ServerClaims>) {
        self.table.lock().claims.push(claims);
        self.was_shared.store(true, Ordering::Release);
    }

    /// Returns whether another process has permits here, or had some.
    pub(super) fn was_shared(&self) -> bool {
        self.was_shared.load(Ordering::Acquire)
    }

    /// Permits that other processes have at an endpoint of `model` whose permits are its own.
    pub(super) fn count_elsewhere(&self, model: &ModelId, url: &str) -> u32 {
        let name = PermitKey::Model(model.clone(), url.into()).name();
        let claims = self.claims().into_iter();
        claims.map(|claims| claims.count(&name)).sum()
    }

    /// Lets other processes have further permits at such an endpoint, or none.
    pub(super) fn set_open_elsewhere(&self, model: &ModelId, url: &str, is_open: bool) {
        let claims = self.claims();
        if !claims.is_empty() {
            let name = PermitKey::Model(model.clone(), url.into()).name();
            claims.iter().for_each(|it| it.set_open(&name, is_open));
        }
    }

    fn claims(&self) -> Vec<Arc<dyn ServerClaims>> {
        let table = self.table.lock();
        table.claims.iter().filter_map(Weak::upgrade).collect()
    }

    /// All servers with the names of their permits.
    pub(super) fn all(&self) -> Vec<(String, Arc<ServerPermits>)> {
        let table = self.table.lock();
        let all = table.permits.iter();
        all.map(|(key, server)| (key.name(), Arc::clone(server)))
            .collect()
    }

    /// A number for a gate that is about to be made.
    pub(super) fn next_gate_id(&self) -> GateId {
        let mut table = self.table.lock();
        table.latest += 1;
        GateId(table.latest)
    }

    /// Handoffs to `id` go to `gate` from now on.
    pub(super) fn register(&self, id: GateId, gate: Weak<dyn HandoffReceiver>) {
        self.table.lock().gates.insert(id, gate);
    }

    /// Brings freed permits to the gates they are meant for; those that cannot use theirs pass them
    /// on. No lock may be held by the caller.
    pub(super) fn deliver(&self, mut handoffs: Vec<Handoff>) {
        while let Some(handoff) = handoffs.pop() {
            let gate = self.table.lock().gates.get(&handoff.gate()).cloned();
            match gate.and_then(|gate| gate.upgrade()) {
                Some(gate) => handoffs.extend(gate.accept(handoff)),
                None => handoffs.extend(handoff.decline()),
            }
        }
    }
}
