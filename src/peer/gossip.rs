//! Gossip between nodes: publishes this node's state and polls that of the others.
//!
//! No node is judged here: reports go to [`ClusterHandle`](super::ClusterHandle), and loss is decided by
//! chitchat's failure detector. chitchat is known here and in `gossip/datagram.rs` only
//! (docs/decisions/018-gossip.md); its one task runs for as long as the [`Gossip`] lives.
//!
//! ```text
//! key            value                                                            written
//! node           version, when made, draining, address, site                      with every report, last
//! model/<id>     permits, free, queued, queue_room, wait_ms, unmet_demand, ttft   when other than before
//! usage/<id>     day, millionths of a neuron                                      when other than before
//! requests/<id>  requests of an account with a limit a minute                     when other than before
//! config         digests of accounts, models and tariffs                          when other than before
//! since          generation of the node, where its process has followed another   first
//! ```
//!
//! A node's keys arrive in the order in which they were written, so that a reader of its `node` of a
//! version has all that was published before. Bounds: [`MODELS_MAX`] models and [`ACCOUNTS_MAX`] accounts
//! of a node, [`NODES_MAX`] nodes.

mod codec;
mod datagram;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use chitchat::{
    ChitchatConfig, ChitchatHandle, ChitchatId, FailureDetectorConfig, NodeState, spawn_chitchat,
};
use infergate_core::billing::QuotaSnapshot;
use infergate_core::routing::cluster::{MODELS_MAX, ModelLoad, NODES_MAX, NodeId, NodeReport};
use infergate_core::routing::hops::is_node_name;
use infergate_core::{AccountId, ModelId};
use tokio::net::UdpSocket;

use super::drift::ConfigDigests;
use super::protocol::{IncompatibleNode, PROTOCOL_VERSION};
use super::settings::Cluster;
use crate::telemetry::Clock;
use crate::telemetry::metrics::GossipRefused;
pub use codec::AccountUsage;
#[cfg(any(test, fuzzing))]
pub use codec::check_gossip_value;
use codec::{KeySubject, NODE_KEY, NodeRecord};
#[cfg(any(test, fuzzing))]
pub use datagram::check_gossip_datagram;
use datagram::{PendingContacts, RejectionCounts, SignedTransport, Signer};

/// Interval of gossip rounds. Permits turn over in hundreds of milliseconds: a view that is older
/// sends requests to where there is no room any more. A round of three nodes is six small
/// datagrams.
const ROUND: Duration = Duration::from_millis(100);

/// Nodes of another program do not mix. The same in all versions, so that a node of another one is recognised:
/// each value begins with the version of the protocol ([`PROTOCOL_VERSION`]).
const CLUSTER_ID: &str = "infergate-1";

/// A node is lost after a silence of [`PHI`] times the mean of its last [`WINDOW`] intervals and
/// five of [`USUAL_INTERVAL`]. Two seconds where updates come often, three at one a round, more
/// from a slow machine.
const PHI: f64 = 20.0;
/// As above. Few, so that the constant decides: how often updates of a node come depends on the number
/// of nodes.
const WINDOW: usize = 10;
/// As above.
const USUAL_INTERVAL: Duration = Duration::from_millis(300);
/// A longer silence says nothing about the pace of a node.
const INTERVAL_MAX: Duration = Duration::from_secs(2);
/// A lost node is contacted for so long; then only seeds find it again.
const LOST_KEPT: Duration = Duration::from_secs(300);
/// A deleted key is remembered for so long; a node silent for longer gets the whole state anew.
const DELETED_KEPT: Duration = Duration::from_secs(60);

/// Accounts whose sums a node publishes, the first ones that come: 4,096 sums are a hundred
/// kilobytes.
pub const ACCOUNTS_MAX: usize = 4096;

/// A bound address for gossip.
pub struct GossipSocket(UdpSocket);

impl GossipSocket {
    /// Takes a socket that another process has bound, and reads no more.
    ///
    /// # Errors
    /// The socket is none for datagrams.
    pub fn inherited(socket: OwnedFd) -> Result<GossipSocket, String> {
        let socket = std::net::UdpSocket::from(socket);
        let taken = socket
            .set_nonblocking(true)
            .and_then(|()| UdpSocket::from_std(socket));
        taken
            .map(GossipSocket)
            .map_err(|error| format!("the socket for gossip that was handed over: {error}"))
    }

    /// Returns the bound address.
    #[cfg(test)]
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

impl AsFd for GossipSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Binds an address for gossip.
///
/// # Errors
/// A sentence that names the address and what to do.
pub async fn bind(address: SocketAddr) -> Result<GossipSocket, String> {
    let bound = UdpSocket::bind(address).await;
    bound.map(GossipSocket).map_err(|error| {
        format!(
            "cannot gossip on {address}: {error}; is another process using it? change `cluster.gossip`"
        )
    })
}

/// Changes since the last poll.
#[derive(Debug, Default)]
pub struct GossipUpdate {
    /// Reports of live nodes that have published something.
    pub reports: Vec<NodeReport>,
    /// Nodes that lived and do not any more.
    pub lost: Vec<Arc<str>>,
    /// Usage of accounts at other nodes: node, account, sum.
    pub usage: Vec<(NodeId, AccountId, AccountUsage)>,
    /// Requests of accounts that have passed at other nodes: node, account, since its process began.
    pub passed: Vec<(NodeId, AccountId, u64)>,
    /// Digests of the configurations of other nodes.
    pub configs: Vec<(NodeId, ConfigDigests)>,
    /// All live nodes of another version of the protocol, at each poll.
    pub incompatible: Vec<IncompatibleNode>,
    /// Another process that lives has the name of this node.
    pub namesake: Option<SocketAddr>,
}

/// Identity of a process in the gossip. To other nodes a process that follows another one is the same node: what they have
/// sent to its predecessor is not lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GossipIdentity {
    /// The node.
    pub here: NodeId,
    /// Number of this process, later than those of its predecessors: the node's generation, where there are none.
    pub incarnation: u64,
}

impl GossipIdentity {
    /// Returns whether others tell of this process, or of one before it, which they do until they count it as lost.
    fn was(&self, id: &ChitchatId) -> bool {
        (self.here.generation..=self.incarnation).contains(&id.generation_id)
    }
}

impl From<NodeId> for GossipIdentity {
    /// Identity of a process without a predecessor.
    fn from(here: NodeId) -> GossipIdentity {
        GossipIdentity {
            incarnation: here.generation,
            here,
        }
    }
}

/// Gossip of this node. Dropping it ends publishing.
pub struct Gossip {
    handle: ChitchatHandle,
    identity: GossipIdentity,
    published_models: HashMap<ModelId, ModelLoad>,
    published_usage: HashMap<AccountId, AccountUsage>,
    published_passed: HashMap<AccountId, u64>,
    published_config: Option<ConfigDigests>,
    peers: HashMap<Arc<str>, PeerState>,
    refused: Arc<RejectionCounts>,
    pending: Arc<PendingContacts>,
}

/// State of another node at the last poll.
struct PeerState {
    id: NodeId,
    /// Number of its process.
    incarnation: u64,
    is_alive: bool,
    /// Version of chitchat's state: unchanged while no key is.
    max_version: u64,
    /// Version of its last report.
    version: u64,
    /// Its models in the order of their keys: what is not new is not read again.
    models: Vec<(ModelId, ModelLoad)>,
    /// Version of the protocol in its record; none until that has come.
    protocol: Option<u32>,
}

impl Gossip {
    /// Starts publishing and receiving. Spawns chitchat's task: to be called by `app`.
    ///
    /// # Errors
    /// A sentence, when the socket cannot be used.
    pub async fn start(
        bound: GossipSocket,
        cluster: &Cluster,
        identity: GossipIdentity,
        clock: Clock,
    ) -> Result<Gossip, String> {
        let secret = cluster.secret.as_ref().map_or("", |secret| secret.reveal());
        let refused = Arc::new(RejectionCounts::default());
        let pending = Arc::new(PendingContacts::default());
        let counts = (refused.clone(), pending.clone());
        let transport = SignedTransport::new(bound.0, Signer::new(secret), counts, clock);
        let here = &identity.here;
        let name = Arc::clone(&here.name);
        let since = (here.generation != identity.incarnation).then(|| {
            let generation = codec::write_since(here.generation);
            (codec::SINCE_KEY.to_owned(), generation)
        });
        let config = ChitchatConfig {
            chitchat_id: ChitchatId::new(name, identity.incarnation, cluster.advertised()),
            cluster_id: CLUSTER_ID.to_owned(),
            gossip_interval: ROUND,
            listen_addr: cluster.gossip,
            // chitchat would look them up once; `greet` takes them as they come.
            seed_nodes: Vec::new(),
            failure_detector_config: FailureDetectorConfig {
                phi_threshold: PHI,
                sampling_window_size: WINDOW,
                max_interval: INTERVAL_MAX,
                initial_interval: USUAL_INTERVAL,
                dead_node_grace_period: LOST_KEPT,
            },
            marked_for_deletion_grace_period: DELETED_KEPT,
            catchup_callback: None,
            extra_liveness_predicate: None,
        };
        let first = since.into_iter().collect();
        let started = spawn_chitchat(config, first, &transport).await;
        Ok(Gossip {
            handle: started.map_err(|error| format!("gossip cannot start: {error}"))?,
            identity,
            published_models: HashMap::new(),
            published_usage: HashMap::new(),
            published_passed: HashMap::new(),
            published_config: None,
            peers: HashMap::new(),
            refused,
            pending,
        })
    }

    /// Contacts nodes at these addresses, whichever they are. An address is skipped while a message
    /// to it is pending: chitchat's queue of them has no bound of its own.
    pub fn contact_seeds(&self, addresses: impl IntoIterator<Item = SocketAddr>) {
        for address in addresses {
            if !self.pending.begin(address) {
                continue;
            }
            // Fails only once the task has ended, which `over` reports.
            let _ = self.handle.gossip(address);
        }
    }

    /// Sends to every live node at once, not at the next round.
    pub async fn flush(&self) {
        let chitchat = self.handle.chitchat();
        let chitchat = chitchat.lock().await;
        let others = chitchat.live_nodes().filter(|id| !self.is_here(id));
        let others: Vec<SocketAddr> = others.map(|id| id.gossip_advertise_addr).collect();
        drop(chitchat);
        self.contact_seeds(others);
    }

    /// Returns whether the models of `report` are published as they are in it.
    pub fn has_published(&self, report: &NodeReport) -> bool {
        let mut models = report.models.iter().take(MODELS_MAX);
        self.published_models.len() == models.len()
            && models.all(|(model, load)| self.published_models.get(model) == Some(load))
    }

    /// Publishes `report`: the models that changed, then the node.
    pub async fn publish(&mut self, report: &NodeReport) {
        let chitchat = self.handle.chitchat();
        let mut chitchat = chitchat.lock().await;
        let state = chitchat.self_node_state();
        let models = || report.models.iter().take(MODELS_MAX);
        for (model, load) in models() {
            if self.published_models.get(model) != Some(load) {
                state.set(codec::model_key(model), codec::write_model(load));
                self.published_models.insert(model.clone(), *load);
            }
        }
        if self.published_models.len() > models().count() {
            self.published_models.retain(|model, _| {
                let stays = models().any(|(named, _)| named == model);
                if !stays {
                    state.delete(&codec::model_key(model));
                }
                stays
            });
        }
        let update = NodeRecord {
            version: report.version,
            made: report.made,
            draining: report.draining,
            address: Arc::clone(&report.address),
            site: Arc::clone(&report.site),
        };
        state.set(NODE_KEY, codec::write_node(&update));
    }

    /// Publishes the digests of this node's configuration, when they changed.
    pub async fn publish_config(&mut self, digests: ConfigDigests) {
        if self.published_config != Some(digests) {
            let chitchat = self.handle.chitchat();
            let mut chitchat = chitchat.lock().await;
            let text = codec::write_digests(&digests);
            chitchat.self_node_state().set(codec::CONFIG_KEY, text);
            self.published_config = Some(digests);
        }
    }

    /// Publishes today's usage of accounts, of the first [`ACCOUNTS_MAX`] that came; a published
    /// account stays so while it is used. Returns the number of accounts left out.
    pub async fn publish_usage(&mut self, usage: &QuotaSnapshot) -> usize {
        let chitchat = self.handle.chitchat();
        let mut chitchat = chitchat.lock().await;
        let state = chitchat.self_node_state();
        let day = usage.day;
        let used: HashMap<_, _> = usage.used_micro.iter().map(|(id, sum)| (id, sum)).collect();
        self.published_usage.retain(|account, sum| {
            let stays = sum.day == day || used.contains_key(account);
            if !stays {
                state.delete(&codec::account_key(account));
            }
            stays
        });
        let mut unpublished = 0;
        for (account, micro) in &usage.used_micro {
            let sum = AccountUsage { day, micro: *micro };
            let published = self.published_usage.get(account);
            if published == Some(&sum) {
                continue;
            }
            if published.is_none() && self.published_usage.len() >= ACCOUNTS_MAX {
                unpublished += 1;
                continue;
            }
            state.set(codec::account_key(account), codec::write_usage(sum));
            self.published_usage.insert(account.clone(), sum);
        }
        unpublished
    }

    /// Publishes the number of requests of accounts that passed here, of the first [`ACCOUNTS_MAX`]
    /// that came.
    pub async fn publish_passed(&mut self, passed: impl Iterator<Item = (&AccountId, u64)>) {
        let mut update = passed.filter(|(account, count)| {
            let published = self.published_passed.get(*account);
            published != Some(count)
                && (published.is_some() || self.published_passed.len() < ACCOUNTS_MAX)
        });
        let Some(first) = update.next() else { return };
        let update: Vec<(AccountId, u64)> = std::iter::once(first)
            .chain(update)
            .map(|(account, count)| (account.clone(), count))
            .collect();
        let chitchat = self.handle.chitchat();
        let mut chitchat = chitchat.lock().await;
        let state = chitchat.self_node_state();
        for (account, count) in update {
            if self.published_passed.len() < ACCOUNTS_MAX
                || self.published_passed.contains_key(&account)
            {
                state.set(codec::passed_key(&account), codec::write_passed(count));
                self.published_passed.insert(account, count);
            }
        }
    }

    /// Returns the changes since the last call.
    pub async fn poll(&mut self) -> GossipUpdate {
        let mut update = GossipUpdate::default();
        let chitchat = self.handle.chitchat();
        let chitchat = chitchat.lock().await;
        // Of a node that was started again both may seem to live for a while: the later one does.
        let mut living: HashMap<&str, &ChitchatId> = HashMap::new();
        for id in chitchat.live_nodes() {
            if self.is_here(id) {
                if !self.identity.was(id) {
                    update.namesake = Some(id.gossip_advertise_addr);
                }
                continue;
            }
            if !is_node_name(&id.node_id) || living.len() == NODES_MAX {
                continue;
            }
            let known = living.entry(&id.node_id).or_insert(id);
            if known.generation_id < id.generation_id {
                *known = id;
            }
        }
        self.peers.retain(|name, received| {
            // A node that was started again by an earlier clock is lost before it is polled.
            let lives = living
                .get(&**name)
                .is_some_and(|id| id.generation_id >= received.incarnation);
            if received.is_alive && !lives {
                update.lost.push(Arc::clone(name));
            }
            received.is_alive = lives;
            // One that is lost is kept, for it may come back with nothing new.
            lives || chitchat.node_states().keys().any(|id| id.node_id == *name)
        });
        for id in living.into_values() {
            if let Some(state) = chitchat.node_state(id) {
                self.read(id, state, &mut update);
            }
        }
        let living = self.peers.values().filter(|peer| peer.is_alive);
        update.incompatible = living.filter_map(PeerState::incompatible).collect();
        update
    }

    /// Returns whether no other node is alive, as far as is known.
    pub fn is_alone(&self) -> bool {
        !self.peers.values().any(|received| received.is_alive)
    }

    /// Datagrams that were not taken or not sent.
    pub fn refused(&self) -> GossipRefused {
        self.refused.read()
    }

    /// Returns when chitchat's task has ended, which it does not by itself: why.
    pub fn terminated(&self) -> impl Future<Output = String> + use<> {
        let ended = self.handle.termination_watcher();
        async move {
            match ended.await {
                Ok(()) => "it was ended".to_owned(),
                Err(error) => error.to_string(),
            }
        }
    }

    fn is_here(&self, id: &ChitchatId) -> bool {
        *id.node_id == *self.identity.here.name
    }

    /// Takes in what is new in a node's state.
    fn read(&mut self, id: &ChitchatId, state: &NodeState, update: &mut GossipUpdate) {
        let peer = self
            .peers
            .entry(Arc::clone(&id.node_id))
            .or_insert_with(|| PeerState::of(id));
        // Also to an earlier one: what lives was started by a clock that had been set back.
        if peer.incarnation != id.generation_id {
            *peer = PeerState::of(id);
        }
        // Written first: whoever has anything else of the node has it.
        let since = state.get(codec::SINCE_KEY).and_then(codec::read_since);
        peer.id.generation = since.unwrap_or(id.generation_id);
        peer.is_alive = true;
        if peer.max_version == state.max_version() {
            return;
        }
        // chitchat is locked meanwhile: what was read before is not read again. Keys are in order.
        let read_before = std::mem::take(&mut peer.models);
        let mut read_before = read_before.into_iter().peekable();
        let models = &mut peer.models;
        for (key, value) in state.key_values_including_deleted() {
            if value.is_deleted() {
                continue;
            }
            if value.version <= peer.max_version {
                let model = codec::known_model(key).filter(|_| models.len() < MODELS_MAX);
                let Some(model) = model else { continue };
                while read_before.next_if(|(id, _)| id.as_str() < model).is_some() {}
                models.extend(read_before.next_if(|(id, _)| id.as_str() == model));
                continue;
            }
            match codec::parse_key(key) {
                Some(KeySubject::Model(model)) if models.len() < MODELS_MAX => {
                    if let Some(load) = codec::read_model(&value.value) {
                        while read_before.next_if(|(id, _)| id.as_str() < model).is_some() {}
                        let same = read_before.next_if(|(id, _)| id.as_str() == model);
                        models.push((same.map_or_else(|| model.into(), |(id, _)| id), load));
                    }
                }
                Some(KeySubject::Account(account)) => {
                    if let Some(usage) = codec::read_usage(&value.value) {
                        update.usage.push((peer.id.clone(), account.into(), usage));
                    }
                }
                Some(KeySubject::Passed(account)) => {
                    if let Some(count) = codec::read_passed(&value.value) {
                        update.passed.push((peer.id.clone(), account.into(), count));
                    }
                }
                Some(KeySubject::Config) => {
                    if let Some(digests) = codec::read_digests(&value.value) {
                        update.configs.push((peer.id.clone(), digests));
                    }
                }
                _ => {}
            }
        }
        peer.max_version = state.max_version();
        update.reports.extend(peer.read_record(state));
    }
}

impl PeerState {
    fn of(id: &ChitchatId) -> PeerState {
        PeerState {
            id: NodeId {
                name: Arc::clone(&id.node_id),
                generation: id.generation_id,
            },
            incarnation: id.generation_id,
            is_alive: true,
            max_version: 0,
            version: 0,
            models: Vec::new(),
            protocol: None,
        }
    }

    /// Reads the record of the node itself; none when it is not newer, or of another version of the protocol.
    fn read_record(&mut self, state: &NodeState) -> Option<NodeReport> {
        let record = state.get(NODE_KEY)?;
        self.protocol = codec::protocol_of(record);
        let report = codec::read_node(record)?;
        if report.version <= self.version {
            return None;
        }
        self.version = report.version;
        Some(NodeReport {
            node: self.id.clone(),
            site: report.site,
            address: report.address,
            draining: report.draining,
            models: self.models.clone(),
            version: report.version,
            made: report.made,
        })
    }

    fn incompatible(&self) -> Option<IncompatibleNode> {
        let protocol = self.protocol?;
        (protocol != PROTOCOL_VERSION).then(|| IncompatibleNode {
            node: self.id.clone(),
            protocol,
        })
    }
}

impl Drop for Gossip {
    fn drop(&mut self) {
        self.handle.abort();
    }
}
