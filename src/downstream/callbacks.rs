//! The listener for containers of models: downloads of files by signed URLs.
//!
//! Any other request is answered 404. No key is asked for: the signature in the URL is one, for one file and a time.

use std::pin::pin;
use std::sync::Arc;

use infergate_core::Refusal;
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::connection::DownstreamConnection;
use super::replicate::download_signed;
use super::serve::{first_byte, keepalive, stall_max};
use super::server::DownstreamServer;
use super::session::{Arrival, Session};
use super::socket::Socket;
use crate::pipeline::{RequestContext, RequestError, respond};
use crate::state::PageOrigin;

/// Paths of files.
const FILES: &str = "/v1/files/";
/// Part of a path behind the id.
const DOWNLOAD: &str = "/download?";

/// Serves a connection until either side ends it.
pub async fn serve_callbacks(edge: Arc<DownstreamServer>, tcp: TcpStream) {
    if tcp.set_nodelay(true).is_err() {
        return;
    }
    let connection = DownstreamConnection::new(Socket::Tcp(tcp), stall_max(&edge));
    let mut session = Session::new(connection, Arrival::default(), edge.shared.clock);
    let mut timer = pin!(sleep(keepalive(&edge)));
    while first_byte(&edge, &mut session, timer.as_mut()).await {
        if !Box::pin(serve(&edge, &mut session)).await || !session.is_reusable() {
            break;
        }
        session.begin();
    }
    session.end().await;
}

/// Serves one request. Returns whether its answer is whole.
async fn serve(edge: &DownstreamServer, session: &mut Session) -> bool {
    let refused = match edge.read_head(session).await {
        Ok(_) => session.check_framing().err(),
        Err(None) => return false,
        Err(Some(refusal)) => Some(refusal),
    };
    if let Some(refusal) = refused {
        edge.refuse_unread(session, &refusal, &PageOrigin::None)
            .await;
        return false;
    }
    let mut ctx = RequestContext::begin(&edge.shared, edge.shared.drain.enter());
    ctx.discard();
    match answer(edge, session, &ctx).await {
        Ok(()) => true,
        Err(RequestError::Refused(refusal)) => {
            if !session.is_body_done() {
                session.close_after();
            }
            respond::finish_refused(session, &mut ctx, &refusal).await
        }
        Err(RequestError::Aborted) => false,
    }
}

async fn answer(
    edge: &DownstreamServer,
    session: &mut Session,
    ctx: &RequestContext,
) -> Result<(), RequestError> {
    let jobs = edge.jobs.as_deref().ok_or(Refusal::NoSuchRoute)?;
    let head = session.request_head();
    let is_read = matches!(head.method, "GET" | "HEAD");
    let path = head.target.strip_prefix(FILES).filter(|_| is_read);
    let (id, query) = path
        .and_then(|path| path.split_once(DOWNLOAD))
        .ok_or(Refusal::NoSuchRoute)?;
    let (id, query) = (id.to_owned(), query.to_owned());
    download_signed(&jobs.files, session, ctx, (&id, &query)).await
}
