//! HTTP client for model servers and other nodes: head and body in one write, the response as
//! it comes.
//!
//! Retries and the meaning of a response are decided elsewhere. A connection from the pool that
//! turns out to be closed is replaced by a new one, once; by the core's rule
//! ([`may_resend`]) the server has not begun then. A
//! connection that is dropped before its response was read whole is closed, which is how an
//! abandoned generation is stopped. An `https` endpoint gets bytes only after it has proved its
//! identity, and never plain text.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use infergate_core::Millis;
use infergate_core::routing::connection_reuse::{
    ConnectionUse, IDLE_MAX_PLAIN, IDLE_MAX_TLS, KeepAlive, may_resend,
};
use tokio::time::timeout;

use super::connect_timings::ConnectTimings;
use super::connection::UpstreamConnection;
use super::dial::{DialAddress, DialedSocket};
use super::http2::SharedConnections;
use super::http2_stream::{Http2Exchange, is_unstarted};
use super::outbound::{OutboundRequest, encode_head};
use super::pool::ConnectionPool;
use super::target::Target;
use super::tunnel::Tunnel;
use crate::http1::{
    BodyDecoder, BodyStep, BrokenBody, Fields, MalformedHead, ParsedResponse, Version, framing,
    may_end_head,
};
use crate::tls::{HandshakeError, is_certificate_refusal};

/// Interim responses (1xx) read before the real one; more is a server gone wrong.
const INTERIM_RESPONSES_MAX: usize = 8;
/// The longest head of a response, bytes.
const HEAD_BYTES_MAX: usize = 256 * 1024;
/// Bytes read of a response that is not passed on, so that its connection can be kept.
const DISCARD_MAX_BYTES: usize = 64 * 1024;
/// Time for that; the permit is held meanwhile.
const DISCARD_TIMEOUT: Duration = Duration::from_millis(100);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Failure to send, by what may be done about it.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// No connection: the request was not seen by anyone.
    #[error("could not connect")]
    Connect(#[source] BoxError),
    /// The server could not prove who it is, or did not take our certificate: no request was read.
    #[error("the server's certificate is not trusted")]
    NotTrusted(#[source] BoxError),
    /// The connection broke after the request was sent.
    #[error("the connection was lost before the answer")]
    Lost(#[source] BoxError),
}

/// A host name without an address.
#[derive(Debug, thiserror::Error)]
#[error("the name does not resolve")]
struct UnresolvedName(#[source] io::Error);

impl SendError {
    /// The cause in a word or two, for operators. Never contains bytes from the server.
    pub fn cause(&self) -> &'static str {
        use io::ErrorKind as Kind;
        let (SendError::Connect(source) | SendError::Lost(source)) = self else {
            return "not trusted";
        };
        let mut next: Option<&(dyn std::error::Error + 'static)> = Some(&**source);
        while let Some(error) = next {
            if error.is::<UnresolvedName>() {
                return "name does not resolve";
            }
            if let Some(io) = error.downcast_ref::<io::Error>() {
                return match io.kind() {
                    Kind::ConnectionRefused => "refused",
                    Kind::NotFound => "no such socket",
                    Kind::PermissionDenied => "not permitted",
                    Kind::ConnectionReset | Kind::BrokenPipe | Kind::ConnectionAborted => "reset",
                    Kind::UnexpectedEof => "closed",
                    Kind::TimedOut => "timeout",
                    Kind::HostUnreachable | Kind::NetworkUnreachable => "unreachable",
                    _ => "input or output error",
                };
            }
            next = error.source();
        }
        "not HTTP"
    }
}

/// Observer of what happens before a response.
pub trait InterimObserver: Send + Sync {
    /// Called when a connection is there, before the request is written.
    fn on_connected(&self);
    /// Called with the headers of an interim response. Returns whether it is an expected one, of
    /// which there may be any number.
    fn on_interim(&self, headers: &Fields) -> bool;
}

/// Observer for model servers, whose interim responses mean nothing here.
struct IgnoreInterim;

impl InterimObserver for IgnoreInterim {
    fn on_connected(&self) {}

    fn on_interim(&self, _: &Fields) -> bool {
        false
    }
}

/// HTTP client with its pool of connections to model servers, or to other nodes.
#[derive(Default)]
pub struct HttpClient {
    pool: ConnectionPool,
    shared: SharedConnections,
}

/// Failure of a request on one connection.
struct SendFailure {
    error: SendError,
    /// No work has begun at the server: the request may be sent once more.
    may_resend: bool,
}

impl HttpClient {
    /// Sends a request and reads the head of its response. `marks` records how far it came, also when
    /// the future is dropped.
    ///
    /// # Errors
    /// [`SendError`] by what the server can have seen.
    pub fn send<'a>(
        &'a self,
        target: &'a Target,
        outbound: OutboundRequest<'a>,
        marks: &'a mut ConnectTimings,
    ) -> impl Future<Output = Result<UpstreamResponse, SendError>> + Send {
        self.send_observed(target, outbound, marks, &IgnoreInterim)
    }

    /// Sends a request as [`HttpClient::send`] does; `ears` observes what comes before the response.
    ///
    /// # Errors
    /// [`SendError`] by what the server can have seen.
    pub async fn send_observed(
        &self,
        target: &Target,
        outbound: OutboundRequest<'_>,
        marks: &mut ConnectTimings,
        observer: &dyn InterimObserver,
    ) -> Result<UpstreamResponse, SendError> {
        if !outbound.fresh
            && let Some((connection, dial)) = self.take_pooled(target).await?
        {
            marks.record_connected(true);
            observer.on_connected();
            let connection = begin(connection, target, &outbound);
            match self.exchange(connection, dial, marks, observer).await {
                Err(failed) if failed.may_resend => {
                    tracing::debug!(url = &*target.url, "a kept connection was closed");
                    marks.record_replaced();
                }
                sent => return sent.map_err(|failed| failed.error),
            }
        }
        // Boxed: most requests find a kept connection, and have no room for a handshake.
        let (connection, dial) =
            Box::pin(self.open_connection(target, (outbound.is_upgrade, outbound.fresh))).await?;
        marks.record_connected(false);
        observer.on_connected();
        let connection = begin(connection, target, &outbound);
        let sent = self.exchange(connection, dial, marks, observer).await;
        sent.map_err(|failed| failed.error)
    }

    /// Closes connections that have waited too long or were closed by their server. To be called twice
    /// a second.
    pub fn sweep(&self) {
        self.pool.sweep();
        self.shared.sweep(self.pool.now());
    }

    /// A connection from the pool to the address that worked last.
    async fn take_pooled(
        &self,
        target: &Target,
    ) -> Result<Option<(Box<UpstreamConnection>, Arc<DialAddress>)>, SendError> {
        let dials = target.dials().await.map_err(unresolved)?;
        let Some(dial) = dials.in_order().next() else {
            return Ok(None);
        };
        let (key, clock) = (dial.pool_key, self.pool.clock);
        if let Some(identity) = dial.identity.as_ref().filter(|it| it.offers_http2())
            && let Some(place) = self.shared.take(key, identity, clock)
        {
            let exchange = Http2Exchange::new(place);
            let stream = UpstreamConnection::stream(exchange, self.pool.now(), clock);
            return Ok(Some((stream, Arc::clone(dial))));
        }
        let found = self.pool.take(key, dial.identity.as_ref());
        Ok(found.map(|connection| (connection, Arc::clone(dial))))
    }

    /// A new connection to whichever of the target's addresses takes one.
    async fn open_connection(
        &self,
        target: &Target,
        terms: (bool, bool),
    ) -> Result<(Box<UpstreamConnection>, Arc<DialAddress>), SendError> {
        let dials = target.dials().await.map_err(unresolved)?;
        let mut failed = SendError::Connect("the name has no address".into());
        for dial in dials.in_order() {
            match self.connect(dial, terms).await {
                Ok(connection) => {
                    dials.prefer(dial);
                    target.is_distrusted.store(false, Ordering::Relaxed);
                    return Ok((connection, Arc::clone(dial)));
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

    /// A new connection, over which the server has proved its identity where it has to.
    async fn connect(
        &self,
        dial: &DialAddress,
        (is_upgrade, is_fresh): (bool, bool),
    ) -> Result<Box<UpstreamConnection>, SendError> {
        let began = self.pool.now();
        let socket = dial.connect().await;
        let socket = socket.map_err(|error| SendError::Connect(error.into()))?;
        let now = self.pool.now();
        let plain_use = ConnectionUse::new(now, IDLE_MAX_PLAIN);
        let (tcp, identity) = match (socket, &dial.identity) {
            (DialedSocket::Tcp(tcp), Some(identity)) => (tcp, identity),
            (DialedSocket::Tcp(tcp), None) => {
                return Ok(UpstreamConnection::plain(tcp, plain_use, self.pool.clock));
            }
            (DialedSocket::Unix(socket), _) => {
                return Ok(UpstreamConnection::local(
                    socket,
                    plain_use,
                    self.pool.clock,
                ));
            }
        };
        let limit = dial.connect_timeout();
        let proved = match is_upgrade {
            true => identity.handshake(tcp, limit).await,
            false => identity.handshake_http2(tcp, limit).await,
        };
        match proved {
            Ok(sealed) if sealed.is_http2() => {
                let (key, time) = (dial.pool_key, (self.pool.clock, limit));
                let opened = self.shared.open(key, sealed, time, !is_fresh);
                let place = opened
                    .await
                    .map_err(|error| SendError::Connect(error.into()))?;
                let exchange = Http2Exchange::new(place);
                Ok(UpstreamConnection::stream(exchange, now, self.pool.clock))
            }
            Ok(sealed) => {
                let usage = ConnectionUse::new(now, IDLE_MAX_TLS);
                let mut connection = UpstreamConnection::tls(sealed, usage, self.pool.clock);
                connection.round_trip = now.since(began);
                Ok(connection)
            }
            Err(HandshakeError::NotTrusted(error)) => Err(SendError::NotTrusted(error.into())),
            Err(HandshakeError::Broken(error)) => Err(SendError::Connect(error.into())),
        }
    }

    /// Sends the request that `connection` has begun and reads the head of the response, which may come before
    /// the whole request has gone out.
    async fn exchange(
        &self,
        mut connection: Box<UpstreamConnection>,
        dial: Arc<DialAddress>,
        marks: &mut ConnectTimings,
        observer: &dyn InterimObserver,
    ) -> Result<UpstreamResponse, SendFailure> {
        connection.write_ahead().await;
        if connection.is_written() {
            marks.record_sent(0);
        }
        let mut interim = 0;
        while interim < INTERIM_RESPONSES_MAX {
            if let Err(error) = read_head(&mut connection).await {
                return Err(self.classify_failure(&connection, &dial, error, marks.reused));
            }
            if is_final(connection.head.status) {
                // Written by the reads, where something came before all of it was taken.
                if marks.sent_us == 0 && connection.is_written() {
                    marks.record_sent(connection.since_written_us());
                }
                return Ok(UpstreamResponse {
                    connection,
                    dial,
                    broken: false,
                });
            }
            if !observer.on_interim(&connection.head.fields) {
                interim += 1;
            }
        }
        Err(SendFailure {
            error: SendError::Lost("the server sent interim answers without end".into()),
            may_resend: false,
        })
    }

    /// Classifies a break before the head of a response.
    fn classify_failure(
        &self,
        connection: &UpstreamConnection,
        dial: &DialAddress,
        error: ResponseReadError,
        reused: bool,
    ) -> SendFailure {
        let since = Millis(connection.since_written_us() / 1000);
        let is_unstarted = matches!(&error, ResponseReadError::Broken(io) if is_unstarted(io));
        // Streams tell themselves whether they have begun; the break of a kept connection of HTTP/1 lets it be concluded.
        let may_resend = reused
            && match connection.is_exclusive() {
                true => {
                    matches!(error, ResponseReadError::Broken(_))
                        && may_resend(connection.has_answered(), since, connection.round_trip)
                }
                false => is_unstarted,
            };
        if may_resend && connection.is_exclusive() {
            let idle = connection.usage.idle_for(self.pool.now());
            self.pool.record_close(dial.pool_key, idle);
        }
        let refuses_us =
            matches!(&error, ResponseReadError::Broken(io) if is_certificate_refusal(io));
        let source: BoxError = match error {
            ResponseReadError::Broken(error) => error.into(),
            error => error.into(),
        };
        SendFailure {
            error: match !reused && refuses_us {
                true => SendError::NotTrusted(source),
                false if is_unstarted => SendError::Connect(source),
                false => SendError::Lost(source),
            },
            may_resend,
        }
    }

    /// Gives the connection back when the response was read whole; closes it otherwise.
    pub async fn finish(&self, response: UpstreamResponse) {
        let is_reusable = response.is_reusable();
        let UpstreamResponse {
            mut connection,
            dial,
            ..
        } = response;
        if !is_reusable {
            // Boxed: most connections are kept.
            return Box::pin(connection.shutdown()).await;
        }
        let hint = connection.head.fields.get("keep-alive");
        let hint = hint.map(KeepAlive::parse).unwrap_or_default();
        let now = self.pool.now();
        connection.usage.record_answer(now, hint);
        connection.head.fields.clear();
        self.pool.keep(dial.pool_key, connection);
    }

    /// Reads the rest of a short response that is not passed on, so that its connection can be
    /// kept.
    pub async fn discard(&self, mut response: UpstreamResponse) {
        let rest = async {
            let mut read = 0;
            while let Ok(Some(chunk)) = response.chunk().await {
                read += chunk.len();
                if read > DISCARD_MAX_BYTES {
                    return;
                }
            }
        };
        if timeout(DISCARD_TIMEOUT, rest).await.is_ok() {
            self.finish(response).await;
        }
    }
}

fn unresolved(error: io::Error) -> SendError {
    SendError::Connect(UnresolvedName(error).into())
}

/// Failure to read a response.
#[derive(Debug, thiserror::Error)]
pub enum ResponseReadError {
    /// The connection broke, or ended early.
    #[error(transparent)]
    Broken(#[from] io::Error),
    /// Bytes that are no response.
    #[error(transparent)]
    Malformed(#[from] MalformedHead),
    /// Broken chunks.
    #[error(transparent)]
    Body(#[from] BrokenBody),
    /// A head whose framing is ambiguous, or that has no end.
    #[error("{0}")]
    Framing(&'static str),
}

/// Reads the next head of a response, interim ones included.
async fn read_head(connection: &mut UpstreamConnection) -> Result<(), ResponseReadError> {
    let mut may_be_whole = !connection.received.is_empty();
    loop {
        if may_be_whole && connection.head.parse(&mut connection.received)? {
            connection.body =
                framing::of_response(&connection.head).map_err(ResponseReadError::Framing)?;
            return Ok(());
        }
        if connection.received.len() > HEAD_BYTES_MAX {
            return Err(ResponseReadError::Framing(
                "the head of the response has no end",
            ));
        }
        let read = connection.fill().await?;
        if read == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let before = connection.received.len() - read;
        // The first bytes are parsed at once: what is no HTTP is told without a wait.
        may_be_whole = before == 0 || may_end_head(&connection.received, before);
    }
}

/// Returns whether no other head follows one with this status: 101 ends HTTP on a connection,
/// though it was not requested.
fn is_final(status: StatusCode) -> bool {
    !status.is_informational() || status == StatusCode::SWITCHING_PROTOCOLS
}

/// A request whose answer has begun.
pub struct UpstreamResponse {
    connection: Box<UpstreamConnection>,
    dial: Arc<DialAddress>,
    broken: bool,
}

impl UpstreamResponse {
    /// Status and fields of the response.
    pub fn head(&self) -> &ParsedResponse {
        &self.connection.head
    }

    /// Counts the bytes of the response, those that have come included, where the server's progress is watched.
    pub fn measure_progress(&mut self, target: &Target) {
        if let Some(meter) = target.meter() {
            self.connection.set_meter(meter);
        }
    }

    /// Writes what is left of the request; returns once it is written whole, or the server takes no more.
    pub async fn write_rest(&mut self) {
        self.connection.write_rest().await;
    }

    /// Gives the buffer back that the head came in: of a stream, which may take minutes.
    pub fn detach_head(&mut self) {
        self.connection.head.fields.detach();
    }

    /// Returns the connection once a 101 has ended HTTP on it.
    pub fn tunnel(&mut self) -> Tunnel<'_> {
        self.connection.tunnel()
    }

    /// Returns the length that the response announces, bytes.
    pub fn announced_length(&self) -> Option<u64> {
        let fields = &self.connection.head.fields;
        match fields.contains("transfer-encoding") {
            true => None,
            false => framing::digits(fields.get("content-length")?),
        }
    }

    /// Returns whether the response was read to its end.
    pub fn is_complete(&mut self) -> bool {
        self.connection.body.is_done()
    }

    /// Returns whether the connection may carry another request: nothing is owed to either side.
    fn is_reusable(&self) -> bool {
        let connection = &self.connection;
        let head = &connection.head;
        let is_odd = head.status == StatusCode::SWITCHING_PROTOCOLS
            || (head.version == Version::Http10 && head.fields.contains("transfer-encoding"));
        // After an early response the server is still owed a part of the request.
        !self.broken
            && !is_odd
            && connection.is_exclusive()
            && connection.is_written()
            && connection.body.is_done()
            && connection.received.is_empty()
            && !connection.may_hold_more()
            && framing::keeps_alive(&head.fields, head.version)
            && framing::of_response(head).is_ok_and(|body| body != BodyDecoder::UntilClose)
    }

    /// The next piece of the response's body, or `None` at its end. Dropping the future loses
    /// nothing: it may be polled again.
    ///
    /// # Errors
    /// The connection broke, or the framing did.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, ResponseReadError> {
        loop {
            let connection = &mut *self.connection;
            match connection.body.decode(&mut connection.received) {
                Ok(BodyStep::Data(data)) => return Ok(Some(data)),
                Ok(BodyStep::End) => return Ok(None),
                Ok(BodyStep::Partial) => {}
                Err(error) => {
                    self.broken = true;
                    return Err(error.into());
                }
            }
            match connection.fill().await {
                Ok(0) if connection.body == BodyDecoder::UntilClose => {
                    connection.body = BodyDecoder::Done;
                    return Ok(None);
                }
                Ok(0) => {
                    self.broken = true;
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
                Ok(_) => {}
                Err(error) => {
                    self.broken = true;
                    return Err(error.into());
                }
            }
        }
    }
}

/// Hands a request to its connection: the head is written into the connection's own buffer, the body is not
/// copied.
fn begin(
    mut connection: Box<UpstreamConnection>,
    target: &Target,
    outbound: &OutboundRequest<'_>,
) -> Box<UpstreamConnection> {
    let body = (outbound.body.clone(), outbound.rest.cloned());
    connection.begin(body, |head| encode_head(target, outbound, head));
    connection
}

#[cfg(test)]
mod tests;
