//! Requests of the S3 client over the gateway's own HTTP client and its pool.
//!
//! Not signatures nor retries. An answer is kept whole: those that are asked for are bounded.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use http_body_util::BodyExt as _;
use infergate_core::model::EndpointSpec;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use object_store::{ClientOptions, Result};
use tokio::time::timeout;

use crate::state::Shared;
use crate::upstream::{ConnectTimings, OutboundRequest, SendError, Target};

/// Time for one request and its answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of one read.
pub(super) const RANGE_BYTES: usize = 4 << 20;
/// Bytes of an answer: of a range, or of a document.
const ANSWER_BYTES_MAX: usize = RANGE_BYTES + (64 << 10);

/// Connector to one origin.
#[derive(Clone)]
pub(super) struct S3Connector {
    shared: Arc<Shared>,
    target: Arc<Target>,
}

impl fmt::Debug for S3Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "S3Connector({})", self.target.url)
    }
}

impl S3Connector {
    /// Creates a connector; none where the origin is no URL of a server.
    pub(super) fn new(origin: &str, shared: Arc<Shared>) -> Option<S3Connector> {
        let spec = EndpointSpec {
            url: origin.into(),
            ..EndpointSpec::default()
        };
        let target = Target::new(&spec, "", CONNECT_TIMEOUT)?;
        Some(S3Connector {
            shared,
            target: Arc::new(target),
        })
    }

    async fn exchange(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let method = known(&parts.method)?;
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let headers = lines(&parts.headers);
        let outbound = OutboundRequest {
            method,
            path,
            headers: &headers,
            body: &body,
            fresh: false,
            is_upgrade: false,
            rest: None,
        };
        let mut timings = ConnectTimings::default();
        let client = &self.shared.client;
        let sent = client.send(&self.target, outbound, &mut timings).await;
        let mut answer = sent.map_err(|error| not_sent(&error))?;
        let mut response = http::Response::builder().status(answer.head().status);
        for (name, value) in answer.head().fields.iter() {
            let name = HeaderName::from_bytes(name.as_bytes());
            if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value)) {
                response = response.header(name, value);
            }
        }
        let mut whole = BytesMut::new();
        loop {
            match answer.chunk().await {
                Ok(Some(piece)) if whole.len() + piece.len() <= ANSWER_BYTES_MAX => {
                    whole.extend_from_slice(&piece);
                }
                Ok(Some(_)) => return Err(broken(HttpErrorKind::Decode, "the answer is too long")),
                Ok(None) => break,
                Err(error) => return Err(HttpError::new(HttpErrorKind::Interrupted, error)),
            }
        }
        client.finish(answer).await;
        let whole: Bytes = whole.freeze();
        response
            .body(whole.into())
            .map_err(|error| HttpError::new(HttpErrorKind::Decode, error))
    }
}

impl HttpConnector for S3Connector {
    fn connect(&self, _: &ClientOptions) -> Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait::async_trait]
impl HttpService for S3Connector {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let called = timeout(CALL_TIMEOUT, self.exchange(request)).await;
        if !matches!(called, Ok(Ok(_))) {
            // The name may lead elsewhere by now; where it does not resolve, former addresses stay.
            let _ = timeout(CONNECT_TIMEOUT, self.target.resolve()).await;
        }
        called.unwrap_or_else(|_| Err(broken(HttpErrorKind::Timeout, "no answer in time")))
    }
}

fn broken(kind: HttpErrorKind, text: &'static str) -> HttpError {
    HttpError::new(kind, std::io::Error::other(text))
}

fn not_sent(error: &SendError) -> HttpError {
    let kind = match error {
        SendError::Connect(_) => HttpErrorKind::Connect,
        SendError::NotTrusted(_) => HttpErrorKind::Unknown,
        SendError::Lost(_) => HttpErrorKind::Interrupted,
    };
    broken(kind, error.cause())
}

fn known(method: &Method) -> Result<&'static str, HttpError> {
    [
        (Method::GET, "GET"),
        (Method::PUT, "PUT"),
        (Method::POST, "POST"),
        (Method::DELETE, "DELETE"),
    ]
    .into_iter()
    .find_map(|(known, text)| (known == method).then_some(text))
    .ok_or_else(|| broken(HttpErrorKind::Unknown, "the method is not used"))
}

/// Header lines in wire form, without those that the client writes itself.
fn lines(headers: &HeaderMap) -> Vec<u8> {
    let mut lines = Vec::new();
    for (name, value) in headers {
        if matches!(name.as_str(), "host" | "content-length" | "accept-encoding") {
            continue;
        }
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            lines.extend_from_slice(part);
        }
    }
    lines
}
