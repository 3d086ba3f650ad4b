//! HTTP client for other nodes, and acceptor of theirs: requests over kept connections on which
//! both ends have proved themselves.
//!
//! The cluster decides which node is called, the pipeline what is sent. Without
//! `listen.peers` it refuses every request. Bounds: a target for each of [`NODES_MAX`] nodes, and
//! the idle connections of one [`HttpClient`]. A connection is kept for one name, generation, address
//! and set of certificates: when one of them changes, it is not used again.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use futures_util::future::join_all;
use hashbrown::HashMap;
use infergate_core::routing::cluster::{NODES_MAX, NodeId, NodeView};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::credentials::{NodeCredentials, PeerStream};
use super::progress::ForwardProgress;
use crate::telemetry::Clock;
use crate::upstream::{
    ConnectTimings, HttpClient, OutboundRequest, SendError, Target, UpstreamResponse, saturated,
    set_node_keepalive,
};

/// Names the node that sends a request, by its `node.id`.
pub const NODE_HEADER: &str = "x-infergate-node";
/// Generation of the node that sends a request.
pub const GENERATION_HEADER: &str = "x-infergate-generation";
/// `GET`: 204, and nothing else.
pub const PING_PATH: &str = "/peer/ping";
/// `POST`: the node that sends it takes no further requests.
pub const DRAINING_PATH: &str = "/peer/draining";
/// `GET`, with a request id behind it: the trace of a request there.
pub const EXPLAIN_PATH: &str = "/peer/explain/";

/// Limit for a node that connects to prove its identity.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// Limit for another node to return a trace.
const TRACE_LIMIT: Duration = Duration::from_secs(1);
/// The longest trace is a quarter of it.
const TRACE_BYTES_MAX: usize = 256 * 1024;

/// Client for other nodes.
pub struct PeerClient {
    here: NodeId,
    clock: Clock,
    client: HttpClient,
    /// None without `listen.peers`.
    access: ArcSwapOption<PeerAccess>,
    /// Guards the list; held for a look-up.
    targets: Mutex<HashMap<Arc<str>, KnownTarget>>,
}

/// Credentials and limits in force.
struct PeerAccess {
    credentials: Arc<NodeCredentials>,
    connect_timeout: Duration,
}

/// A node that was sent something.
struct KnownTarget {
    generation: u64,
    address: Box<str>,
    /// Digest of the credentials it is shown.
    digest: u64,
    connect_timeout: Duration,
    target: Arc<Target>,
}

impl PeerClient {
    /// Creates a client that refuses every request until it is configured.
    pub fn new(here: NodeId, clock: Clock) -> Arc<PeerClient> {
        Arc::new(PeerClient {
            here,
            clock,
            client: HttpClient::default(),
            access: ArcSwapOption::empty(),
            targets: Mutex::default(),
        })
    }

    /// Presents these credentials from now on, and checks others by them. Requests under way are
    /// not affected.
    pub fn configure(&self, credentials: Arc<NodeCredentials>, connect_timeout: Duration) {
        self.access.store(Some(Arc::new(PeerAccess {
            credentials,
            connect_timeout,
        })));
    }

    /// Accepts a connection from a node that proves its identity.
    ///
    /// # Errors
    /// No proof within five seconds.
    pub async fn accept(&self, tcp: TcpStream) -> std::io::Result<PeerStream> {
        let Some(open) = self.access.load_full() else {
            return Err(std::io::ErrorKind::NotConnected.into());
        };
        set_node_keepalive(&tcp).map_err(std::io::Error::other)?;
        open.credentials.accept(tcp, HANDSHAKE_LIMIT).await
    }

    /// Returns whether a connection accepted under these credentials would still be accepted.
    pub fn is_current(&self, let_in_by: u64) -> bool {
        let open = self.access.load();
        open.as_ref()
            .is_some_and(|open| open.credentials.digest() == let_in_by)
    }

    /// Forwards a request to a node and reads the head of its response; `hearing` records what the
    /// node reports before that.
    ///
    /// # Errors
    /// [`SendError`] by what the node can have seen.
    pub async fn forward(
        &self,
        node: &NodeId,
        address: &str,
        outbound: OutboundRequest<'_>,
        progress: &ForwardProgress,
    ) -> Result<UpstreamResponse, SendError> {
        let mut marks = ConnectTimings::with_clock(self.clock);
        self.send(node, address, outbound, &mut marks, progress)
            .await
    }

    pub(super) async fn send(
        &self,
        node: &NodeId,
        address: &str,
        outbound: OutboundRequest<'_>,
        marks: &mut ConnectTimings,
        progress: &ForwardProgress,
    ) -> Result<UpstreamResponse, SendError> {
        let target = self.target(node, address);
        let target = target.map_err(|fault| SendError::Connect(fault.into()))?;
        let sent = self
            .client
            .send_observed(&target, outbound, marks, progress);
        let sent = sent.await;
        if matches!(sent, Err(SendError::Connect(_))) {
            // Its name may stand for another address by now.
            self.forget(&node.name, &target);
        }
        sent
    }

    /// Closes connections that have waited too long or were closed by their node. To be called twice a
    /// second.
    pub fn sweep(&self) {
        self.client.sweep();
    }

    /// Gives the connection back when the response was read whole; closes it otherwise.
    pub async fn finish(&self, response: UpstreamResponse) {
        self.client.finish(response).await;
    }

    /// Measures the round trip of a request that needs no work, microseconds; none when the node
    /// does not respond within `limit`. The time to connect is not in it.
    pub async fn ping(&self, node: &NodeView, limit: Duration) -> Option<u32> {
        let sending = self.request(node, "GET", PING_PATH, b"");
        let (response, rtt_us) = timeout(limit, sending).await.ok()??;
        let head = response.head();
        let generation = head.fields.text_of(GENERATION_HEADER);
        let generation = generation.and_then(|value| value.parse().ok());
        // A process that gossips under the node's name is another one, whatever address it publishes.
        let is_it = head.status.as_u16() == 204 && generation == Some(node.node.generation);
        self.finish(response).await;
        is_it.then_some(rtt_us)
    }

    /// Announces to all `nodes` at once that this one takes no further requests; returns after
    /// `limit` at the latest. Returns the number of nodes that confirmed.
    pub async fn announce_draining(&self, nodes: &[NodeView], limit: Duration) -> usize {
        let headers = format!(
            "{NODE_HEADER}: {}\r\n{GENERATION_HEADER}: {}\r\n",
            self.here.name, self.here.generation
        );
        let announce = async |node: &NodeView| {
            let sending = self.request(node, "POST", DRAINING_PATH, headers.as_bytes());
            let (response, _) = timeout(limit, sending).await.ok()??;
            Some(response.head().status.as_u16())
        };
        let statuses = join_all(nodes.iter().take(NODES_MAX).map(announce)).await;
        statuses
            .iter()
            .filter(|status| **status == Some(204))
            .count()
    }

    /// Fetches another node's trace of a request; none when it has none or takes longer than a
    /// second.
    pub async fn fetch_trace(&self, node: &NodeView, request_id: &str) -> Option<Value> {
        let path = format!("{EXPLAIN_PATH}{request_id}");
        let read = async {
            let (mut response, _) = self.request(node, "GET", &path, b"").await?;
            if response.head().status.as_u16() != 200 {
                return None;
            }
            let mut body = Vec::new();
            while let Some(piece) = response.chunk().await.ok()? {
                if body.len() + piece.len() > TRACE_BYTES_MAX {
                    return None;
                }
                body.extend_from_slice(&piece);
            }
            self.finish(response).await;
            serde_json::from_slice(&body).ok()
        };
        timeout(TRACE_LIMIT, read).await.ok()?
    }

    /// A request without a body that may be sent twice, and microseconds from sending it to the
    /// head of its response.
    async fn request(
        &self,
        node: &NodeView,
        method: &'static str,
        path: &str,
        headers: &[u8],
    ) -> Option<(UpstreamResponse, u32)> {
        let outbound = OutboundRequest {
            method,
            path,
            headers,
            body: &Bytes::new(),
            fresh: false,
            is_upgrade: false,
            rest: None,
        };
        let mut marks = ConnectTimings::with_clock(self.clock);
        let progress = ForwardProgress::new(self.clock);
        let sent = self.send(&node.node, &node.address, outbound, &mut marks, &progress);
        match sent.await {
            Ok(response) => {
                let took_us = self.clock.micros().saturating_sub(marks.sent_us);
                Some((response, saturated(took_us)))
            }
            Err(error) => {
                tracing::debug!(node = &*node.node.name, %error, "a node was not reached");
                None
            }
        }
    }

    /// Target of a node, with the identity it has to prove.
    fn target(&self, node: &NodeId, address: &str) -> Result<Arc<Target>, String> {
        let open = self.access.load();
        let Some(open) = &*open else {
            return Err("`listen.peers` is not configured".to_owned());
        };
        let digest = open.credentials.digest();
        let mut targets = self.targets.lock();
        if let Some(known) = targets.get(&node.name)
            && known.generation == node.generation
            && *known.address == *address
            && known.digest == digest
            && known.connect_timeout == open.connect_timeout
        {
            return Ok(Arc::clone(&known.target));
        }
        let identity = open.credentials.identity(&node.name, node.generation)?;
        let target = Target::for_node(address, Arc::new(identity), open.connect_timeout)
            .ok_or_else(|| format!("{address:?} is no address"))?;
        let target = Arc::new(target);
        if targets.len() >= NODES_MAX && !targets.contains_key(&node.name) {
            // Names that are gone; who is there makes its own anew.
            targets.clear();
        }
        let known = KnownTarget {
            generation: node.generation,
            address: address.into(),
            digest,
            connect_timeout: open.connect_timeout,
            target: Arc::clone(&target),
        };
        targets.insert(Arc::clone(&node.name), known);
        Ok(target)
    }

    fn forget(&self, name: &str, target: &Arc<Target>) {
        let mut targets = self.targets.lock();
        if targets
            .get(name)
            .is_some_and(|known| Arc::ptr_eq(&known.target, target))
        {
            targets.remove(name);
        }
    }
}
