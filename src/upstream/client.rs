//! One HTTP/1.1 request to a model server: head and body in one write, the answer as it comes.
//!
//! It does not decide on retries and reads no meaning into the answer. Connections come from and
//! go back to Pingora's pool; one that is dropped before its answer was read whole is closed,
//! which is how an abandoned generation is stopped. Nothing is written to an `https` endpoint before
//! it has proved who it is, and nothing in plain text ever.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use pingora_core::connectors::{ConnectorOptions, TransportConnector};
use pingora_core::protocols::Stream;
use pingora_core::protocols::http::v1::client::HttpSession;
use pingora_error::{ErrorType, RetryType};
use pingora_http::ResponseHeader;
use tokio::io::AsyncWriteExt;

use super::marks::Marks;
use super::target::{Dial, Target};
use super::tls::{Unproved, is_certificate_refusal};

/// Idle connections kept in all, so that a burst does not pay for handshakes.
const IDLE_CONNECTIONS_MAX: usize = 1024;
/// Interim answers (1xx) read before the real one; more is a server gone wrong.
const INTERIM_ANSWERS_MAX: usize = 8;
/// Bodies up to this size are copied behind the head and leave in one segment train; larger ones
/// are written after it, where a copy would cost more than the call.
const JOINED_BODY_MAX_BYTES: usize = 64 * 1024;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How sending failed, by what may be done about it.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// No connection: the request was not seen by anyone.
    #[error("could not connect")]
    Connect(#[source] BoxError),
    /// The server could not prove who it is, or did not take our certificate: no request was read.
    #[error("the server's certificate is not trusted")]
    NotTrusted(#[source] BoxError),
    /// A pooled connection turned out to be closed before an answer began.
    #[error("a reused connection was lost")]
    ReusedLost(#[source] Box<pingora_error::Error>),
    /// The connection broke after the request was sent.
    #[error("the connection was lost before the answer")]
    Lost(#[source] BoxError),
}

/// What a request carries.
pub struct Outgoing<'a> {
    /// `POST` or `GET`.
    pub method: &'static str,
    /// The backend's path; the target's prefix goes before it. Empty is the base URL itself.
    pub path: &'a str,
    /// Header lines already in wire form, each ending in CRLF: what may pass from the client.
    pub headers: &'a [u8],
    /// The body; its length is announced.
    pub body: &'a Bytes,
}

/// The connector to model servers.
pub struct Client {
    connector: TransportConnector,
}

impl Default for Client {
    fn default() -> Self {
        let options = ConnectorOptions::new(IDLE_CONNECTIONS_MAX);
        Client {
            connector: TransportConnector::new(Some(options)),
        }
    }
}

impl Client {
    /// Sends a request and reads the head of its answer. `marks` tells how far it came, also when
    /// the future is dropped.
    ///
    /// # Errors
    /// [`SendError`] tells what the server can have seen.
    pub async fn send(
        &self,
        target: &Target,
        outgoing: Outgoing<'_>,
        marks: &mut Marks,
    ) -> Result<Exchange, SendError> {
        let (mut stream, reused, dial) = self.connect(target).await?;
        marks.connected(reused);
        let lost = |e: Box<pingora_error::Error>| match reused && !fell_silent(&e) {
            true => SendError::ReusedLost(e),
            false => SendError::Lost(e.into()),
        };
        let head = head(target, &outgoing);
        let sent = write(&mut stream, head, outgoing.body).await;
        sent.map_err(|e| {
            lost(pingora_error::Error::because(
                ErrorType::WriteError,
                "sending the request",
                e,
            ))
        })?;
        marks.sent();
        let mut session = HttpSession::new(stream);
        for _ in 0..INTERIM_ANSWERS_MAX {
            session.read_response().await.map_err(|e| match e.retry {
                _ if !reused && e.cause.as_deref().is_some_and(is_certificate_refusal) => {
                    SendError::NotTrusted(e.into())
                }
                RetryType::ReusedOnly => lost(e),
                RetryType::Decided(_) => SendError::Lost(e.into()),
            })?;
            if session
                .resp_header()
                .is_some_and(|head| !head.status.is_informational())
            {
                return Ok(Exchange {
                    session,
                    dial,
                    broken: false,
                });
            }
        }
        Err(SendError::Lost(
            "the server sent interim answers without end".into(),
        ))
    }

    /// A connection to whichever of the target's addresses takes one, and whether it was in use
    /// before.
    async fn connect(&self, target: &Target) -> Result<(Stream, bool, Arc<Dial>), SendError> {
        let dials = target.dials().await;
        let dials = dials.map_err(|error| SendError::Connect(error.into()))?;
        let mut failed = SendError::Connect("the name has no address".into());
        for dial in dials.in_order() {
            match self.open(dial).await {
                Ok((stream, reused)) => {
                    dials.prefer(dial);
                    target.is_distrusted.store(false, Ordering::Relaxed);
                    return Ok((stream, reused, Arc::clone(dial)));
                }
                // That one of its addresses could not prove itself is worth more than that another
                // is not reached.
                Err(_) if matches!(failed, SendError::NotTrusted(_)) => {}
                Err(error) => failed = error,
            }
        }
        if let SendError::NotTrusted(reason) = &failed
            && !target.is_distrusted.swap(true, Ordering::Relaxed)
        {
            // Once, not for every probe: only the operator can mend it.
            tracing::error!(
                url = &*target.url,
                reason = %reason,
                "the server's certificate is not trusted: nothing is sent there"
            );
        }
        Err(failed)
    }

    /// A connection from the pool, or a new one, over which the server has proved who it is where
    /// it has to.
    async fn open(&self, dial: &Dial) -> Result<(Stream, bool), SendError> {
        if let Some(stream) = self.connector.reused_stream(dial).await {
            let identity = dial.identity.as_ref();
            if identity.is_none_or(|identity| identity.is_of(&stream)) {
                return Ok((stream, true));
            }
        }
        let plain = self.connector.new_stream(dial).await;
        let plain = plain.map_err(|error| SendError::Connect(error.into()))?;
        let Some(identity) = &dial.identity else {
            return Ok((plain, false));
        };
        match identity.prove(plain, dial.connect_timeout()).await {
            Ok(stream) => Ok((stream, false)),
            Err(Unproved::NotTrusted(error)) => Err(SendError::NotTrusted(error.into())),
            Err(Unproved::Broken(error)) => Err(SendError::Connect(error.into())),
        }
    }

    /// Gives the connection back when the answer was read whole; closes it otherwise.
    pub async fn finish(&self, exchange: Exchange) {
        let Exchange {
            mut session,
            dial,
            broken,
        } = exchange;
        if broken || !session.is_body_done() {
            return;
        }
        session.respect_keepalive();
        if let Some(stream) = session.reuse().await {
            use pingora_core::upstreams::peer::Peer;
            self.connector
                .release_stream(stream, dial.reuse_hash(), None);
        }
    }
}

/// Whether the way to the server is gone, and not the connection alone: another connection of the
/// pool would be as silent, and a request that tried one after the other would wait for each.
fn fell_silent(error: &pingora_error::Error) -> bool {
    use std::io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
    let cause = error.root_cause().downcast_ref::<std::io::Error>();
    cause.is_some_and(|io| matches!(io.kind(), TimedOut | HostUnreachable | NetworkUnreachable))
}

/// A request whose answer has begun.
pub struct Exchange {
    session: HttpSession,
    dial: Arc<Dial>,
    broken: bool,
}

impl Exchange {
    /// Status and headers of the answer.
    pub fn head(&self) -> &ResponseHeader {
        self.session
            .resp_header()
            .expect("an exchange begins with the answer's head")
    }

    /// The next piece of the answer's body, or `None` at its end. Dropping the future loses
    /// nothing: it may be polled again.
    ///
    /// # Errors
    /// The connection broke, or the framing did.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Box<pingora_error::Error>> {
        let read = self.session.read_body_bytes().await;
        self.broken |= read.is_err();
        read
    }
}

fn head(target: &Target, outgoing: &Outgoing<'_>) -> BytesMut {
    let joined = if outgoing.body.len() <= JOINED_BODY_MAX_BYTES {
        outgoing.body.len()
    } else {
        0
    };
    let mut head = BytesMut::with_capacity(256 + outgoing.headers.len() + joined);
    // A request line names at least the root.
    let path = match outgoing.path {
        "" if target.prefix.is_empty() => "/",
        path => path,
    };
    for part in [
        outgoing.method,
        " ",
        &target.prefix,
        path,
        " HTTP/1.1\r\nhost: ",
    ] {
        head.extend_from_slice(part.as_bytes());
    }
    head.extend_from_slice(target.authority.as_bytes());
    head.extend_from_slice(b"\r\n");
    if let Some(authorization) = &target.authorization {
        for part in ["authorization: ", authorization, "\r\n"] {
            head.extend_from_slice(part.as_bytes());
        }
    }
    head.extend_from_slice(outgoing.headers);
    if outgoing.method != "GET" {
        use std::fmt::Write;
        write!(head, "content-length: {}\r\n", outgoing.body.len())
            .expect("writing to a growing buffer cannot fail");
    }
    head.extend_from_slice(b"\r\n");
    head
}

async fn write(stream: &mut Stream, mut head: BytesMut, body: &Bytes) -> std::io::Result<()> {
    if body.len() <= JOINED_BODY_MAX_BYTES {
        head.extend_from_slice(body);
        stream.write_all(&head).await?;
    } else {
        stream.write_all(&head).await?;
        stream.write_all(body).await?;
    }
    stream.flush().await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use infergate_core::model::EndpointSpec;
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    #[test]
    fn a_connection_that_was_closed_says_nothing_of_the_others_one_that_fell_silent_does() {
        use std::io::ErrorKind as Kind;
        let error = |kind: Kind| {
            let io = std::io::Error::from(kind);
            pingora_error::Error::because(ErrorType::ReadError, "reading the answer", io)
        };
        assert!(!fell_silent(&error(Kind::ConnectionReset)));
        assert!(!fell_silent(&error(Kind::UnexpectedEof)));
        assert!(fell_silent(&error(Kind::TimedOut)));
        assert!(fell_silent(&error(Kind::HostUnreachable)));
        let closed = pingora_error::Error::new(ErrorType::ConnectionClosed);
        assert!(!fell_silent(&closed));
        let wrapped = error(Kind::TimedOut).more_context("behind a context");
        assert!(fell_silent(&wrapped));
    }

    #[tokio::test]
    async fn a_name_whose_first_address_refuses_is_reached_by_the_next_one() {
        let refusing = TcpSocket::new_v4().unwrap();
        refusing.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let spec = EndpointSpec {
            url: "http://a-name:1".into(),
            max_concurrent_requests: 1,
            ..EndpointSpec::default()
        };
        let target = Target::new(&spec, "m", Duration::from_secs(2)).unwrap();
        let refused = refusing.local_addr().unwrap();
        target.set_addresses(&[refused, listener.local_addr().unwrap()]);
        let client = Client::default();
        assert!(client.connect(&target).await.is_ok());
        target.set_addresses(&[refused]);
        assert!(client.connect(&target).await.is_err());
    }
}
