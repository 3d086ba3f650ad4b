//! Requests of other nodes that are no inference requests: ping, notice of draining, and the trace of a
//! request.
//!
//! Serves the peers listener alone. The sender is authenticated by its certificate; a name in a header
//! counts only when the certificate bears it. Any other path is a forwarded request, handled by the
//! pipeline.

use bytes::Bytes;

use super::session::Session;
use crate::peer::{DRAINING_PATH, EXPLAIN_PATH, GENERATION_HEADER, NODE_HEADER, PING_PATH};
use crate::pipeline::{Downstream, DownstreamClosed, RequestHead, ResponseHead};
use crate::state::Shared;
use crate::tls::CertificateNames;
use crate::trace::NodeInfo;

/// Prefix of the paths.
const PATHS: &str = "/peer/";

/// Answers what is no request of a client, and says whether the connection may carry another one;
/// none where a client asks.
pub async fn serve(shared: &Shared, session: &mut Session) -> Option<bool> {
    let peer = session.peer()?;
    if !session.request_head().target.starts_with(PATHS) {
        return None;
    }
    let (status, body) = answer(shared, peer, session.request_head());
    let generation = shared.cluster.here().generation;
    Some(send(session, status, body, generation).await.is_ok())
}

fn answer(shared: &Shared, peer: &CertificateNames, head: RequestHead<'_>) -> (u16, Vec<u8>) {
    let path = head.target.split('?').next().unwrap_or_default();
    match (head.method, path) {
        ("GET", PING_PATH) => (204, Vec::new()),
        ("POST", DRAINING_PATH) => match sender(peer, head) {
            Some((name, generation)) => {
                if shared.cluster.record_draining(name, generation) {
                    tracing::info!(node = name, "a node drains");
                }
                (204, Vec::new())
            }
            None => (
                403,
                b"{\"error\":\"the certificate is not this node's\"}".to_vec(),
            ),
        },
        ("GET", path) => match path.strip_prefix(EXPLAIN_PATH) {
            Some(request_id) => trace(shared, request_id),
            None => (404, Vec::new()),
        },
        _ => (404, Vec::new()),
    }
}

/// The node that a request says to be from, as far as its certificate says so too.
fn sender<'a>(peer: &CertificateNames, head: RequestHead<'a>) -> Option<(&'a str, u64)> {
    let text = |name| head.headers.text_of(name);
    let name = text(NODE_HEADER).filter(|name| peer.has(name))?;
    Some((name, text(GENERATION_HEADER)?.parse().ok()?))
}

fn trace(shared: &Shared, request_id: &str) -> (u16, Vec<u8>) {
    let Some(trace) = shared.traces.find(request_id) else {
        return (404, Vec::new());
    };
    let snapshot = shared.snapshot.load();
    let rendered = trace.to_json(NodeInfo {
        clock: shared.clock,
        node: &snapshot.node,
        site: &snapshot.site,
    });
    (200, rendered.to_string().into_bytes())
}

async fn send(
    session: &mut Session,
    status: u16,
    body: Vec<u8>,
    generation: u64,
) -> Result<(), DownstreamClosed> {
    let mut head = ResponseHead::new(status);
    head.append(GENERATION_HEADER, generation.to_string().as_bytes());
    if status != 204 {
        head.append("content-type", b"application/json");
        head.set_length(body.len() as u64);
    }
    session.start(head).await?;
    session.finish(Bytes::from(body)).await
}
