//! A request to a receiver and its answer: a new connection to a judged address, closed after it.
//!
//! Not the judgement, nor the schedule. No redirect is followed, and no proxy is used. The head of an answer
//! counts; its body is read up to [`ANSWER_BYTES_MAX`] so that a receiver may finish, and thrown away.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use infergate_core::job::forbidden_address::ForbiddenAddress;
use infergate_core::job::receiver_url::{ReceiverScheme, ReceiverUrl, ReceiverUrlError};
use infergate_core::job::webhook::DeliveryResult;
use infergate_core::routing::verdict::retry_after;
use tokio::time::timeout;

use crate::tls::ServerIdentity;
use crate::upstream::{
    ConnectTimings, HttpClient, OutboundRequest, SendError, Target, UpstreamResponse,
};

/// Bytes of an answer's body that are read.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Time for that.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// Time for a connection to one address: another one of the name may answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Reason for which an attempt has no answer; its text is kept for operators and names no address.
#[derive(Debug, thiserror::Error)]
pub enum AttemptFault {
    /// The URL is refused by the present rules.
    #[error("{}", url_fault(.0))]
    Url(ReceiverUrlError),
    /// An address of the name is forbidden.
    #[error("address not allowed: {}", .0.word())]
    Address(ForbiddenAddress),
    /// The name has no address.
    #[error("name does not resolve")]
    Unresolved,
    /// No certificate can be for the name.
    #[error("name not fit for TLS")]
    Name,
    /// The secret of the signatures is not there.
    #[error("no signing secret")]
    Unsigned,
    /// No answer; the word says why.
    #[error("{0}")]
    Broken(&'static str),
    /// No answer in time.
    #[error("timeout")]
    Timeout,
}

impl AttemptFault {
    /// Name in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            AttemptFault::Url(_) | AttemptFault::Address(_) => "forbidden",
            AttemptFault::Unsigned => "unsigned",
            AttemptFault::Unresolved
            | AttemptFault::Name
            | AttemptFault::Broken(_)
            | AttemptFault::Timeout => "unanswered",
        }
    }
}

fn url_fault(error: &ReceiverUrlError) -> String {
    match error {
        ReceiverUrlError::Address(address) => format!("address not allowed: {}", address.word()),
        ReceiverUrlError::Port => "port not allowed".to_owned(),
        ReceiverUrlError::Scheme => "scheme not allowed".to_owned(),
        _ => "URL not valid".to_owned(),
    }
}

/// Request that is ready to go.
pub struct WebhookRequest<'a> {
    /// Receiver.
    pub url: &'a ReceiverUrl,
    /// Addresses that were judged.
    pub addresses: &'a [SocketAddr],
    /// Authorities of its certificate, as PEM; none for the public ones.
    pub authorities: Option<&'a [u8]>,
    /// Header lines, each ending in CRLF.
    pub headers: &'a [u8],
    /// Body.
    pub body: &'a Bytes,
    /// Seconds since 1970, for dates in `Retry-After`.
    pub now_unix_secs: u64,
}

/// Sends a request. Returns what its answer means, and the status.
pub async fn exchange(
    client: &HttpClient,
    request: WebhookRequest<'_>,
) -> Result<(DeliveryResult, UpstreamResponse), AttemptFault> {
    let url = request.url;
    let target = Target::for_receiver(
        &authority(url),
        request.addresses,
        identity(url, request.authorities)?,
        CONNECT_TIMEOUT,
    );
    let outbound = OutboundRequest {
        method: "POST",
        path: url.path_and_query(),
        headers: request.headers,
        body: request.body,
        fresh: true,
        is_upgrade: false,
        rest: None,
    };
    let mut marks = ConnectTimings::default();
    let sent = client.send(&target, outbound, &mut marks).await;
    let answer = sent.map_err(|error: SendError| AttemptFault::Broken(error.cause()))?;
    let head = answer.head();
    let now = || i64::try_from(request.now_unix_secs).unwrap_or(i64::MAX);
    let pause = retry_after(|name| head.fields.text_of(name), now);
    let result = DeliveryResult::of_status(head.status.as_u16(), pause);
    Ok((result, answer))
}

/// Reads the rest of an answer, as far as it is worth it, and closes the connection.
pub async fn discard(mut answer: UpstreamResponse) {
    let rest = async {
        let mut left = ANSWER_BYTES_MAX;
        while let Ok(Some(chunk)) = answer.chunk().await
            && chunk.len() < left
        {
            left -= chunk.len();
        }
    };
    // Either way the status stands.
    let _ = timeout(ANSWER_TIME, rest).await;
}

/// Host of the request, with its port where that is not the scheme's.
fn authority(url: &ReceiverUrl) -> String {
    match (url.scheme(), url.port()) {
        (ReceiverScheme::Http, 80) | (ReceiverScheme::Https, 443) => url.host().to_owned(),
        (_, port) => format!("{}:{port}", url.host()),
    }
}

/// Identity that a receiver has to prove; none without TLS.
fn identity(
    url: &ReceiverUrl,
    authorities: Option<&[u8]>,
) -> Result<Option<Arc<ServerIdentity>>, AttemptFault> {
    if url.scheme() == ReceiverScheme::Http {
        return Ok(None);
    }
    let name = match url.literal() {
        Some(address) => address.to_string(),
        None => url.host().to_owned(),
    };
    let identity = ServerIdentity::new(&name, authorities);
    let identity = identity.map_err(|_| AttemptFault::Name)?;
    Ok(Some(Arc::new(identity)))
}
