//! A client of HTTP/2: requests on streams of one connection.

use bytes::Bytes;
use h2::client::{SendRequest, handshake};
use h2::{RecvStream, SendStream};
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{LIMIT, TestResponse};

/// A client connection; ended with the value.
pub struct Http2Client {
    streams: SendRequest<Bytes>,
    connection: JoinSet<Result<(), h2::Error>>,
}

/// A stream whose request is sent, as far as it goes.
pub struct Http2Request {
    response: h2::client::ResponseFuture,
    /// The rest of its body.
    pub body: SendStream<Bytes>,
}

/// A response whose head has come.
pub struct Http2Response {
    pub head: http::response::Parts,
    pub body: RecvStream,
}

impl Http2Client {
    /// Begins HTTP/2 on a connection.
    pub async fn over(io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Http2Client {
        let (streams, connection) = timeout(LIMIT, handshake(io)).await.unwrap().unwrap();
        let mut running = JoinSet::new();
        running.spawn(connection);
        Http2Client {
            streams,
            connection: running,
        }
    }

    /// Sends the head of a request, without the end of its body.
    pub async fn begin(&self, request: Request<()>) -> Http2Request {
        let mut streams = self.streams.clone().ready().await.unwrap();
        let (response, body) = streams.send_request(request, false).unwrap();
        Http2Request { response, body }
    }

    /// Sends a whole request.
    pub async fn send(&self, request: Request<()>, body: &str) -> Http2Request {
        let mut sent = self.begin(request).await;
        let body = Bytes::copy_from_slice(body.as_bytes());
        sent.body.send_data(body, true).unwrap();
        sent
    }

    /// Sends a whole request; none once the connection is over.
    pub async fn try_send(&self, request: Request<()>, body: &str) -> Option<Http2Request> {
        let mut streams = self.streams.clone().ready().await.ok()?;
        let (response, mut rest) = streams.send_request(request, false).ok()?;
        rest.send_data(Bytes::copy_from_slice(body.as_bytes()), true)
            .ok()?;
        Some(Http2Request {
            response,
            body: rest,
        })
    }

    /// Asks `m` for a chat completion; `more` are further members of the request.
    pub async fn chat(&self, more: &str) -> TestResponse {
        let request = chat_request();
        self.send(request, &super::chat("m", more))
            .await
            .whole()
            .await
    }

    /// Waits until the server has ended the connection: whether it said goodbye.
    pub async fn ended(&mut self) -> Result<(), h2::Error> {
        let ended = timeout(LIMIT, self.connection.join_next()).await;
        ended.expect("it ends").unwrap().unwrap()
    }
}

/// Head of a request for a chat completion.
pub fn chat_request() -> Request<()> {
    Request::post("https://localhost/v1/chat/completions")
        .header("content-type", "application/json")
        .body(())
        .unwrap()
}

impl Http2Request {
    /// Waits for the head of the response.
    pub async fn head(self) -> Result<Http2Response, h2::Error> {
        let response = timeout(LIMIT, self.response).await.expect("a response")?;
        let (head, body) = response.into_parts();
        Ok(Http2Response { head, body })
    }

    /// Waits for the whole response.
    pub async fn whole(self) -> TestResponse {
        self.head().await.unwrap().whole().await
    }
}

impl Http2Response {
    /// The next part of the body.
    pub async fn part(&mut self) -> Option<Result<Bytes, h2::Error>> {
        let part = timeout(LIMIT, self.body.data()).await.expect("more comes");
        if let Some(Ok(part)) = &part {
            self.body
                .flow_control()
                .release_capacity(part.len())
                .unwrap();
        }
        part
    }

    /// Waits for the rest.
    pub async fn whole(mut self) -> TestResponse {
        let mut body = Vec::new();
        let mut broken = false;
        while let Some(part) = self.part().await {
            match part {
                Ok(part) => body.extend_from_slice(&part),
                Err(_) => broken = true,
            }
            if broken {
                break;
            }
        }
        let headers = self.head.headers.iter();
        TestResponse {
            status: self.head.status.as_u16(),
            headers: headers
                .map(|(name, value)| {
                    let value = String::from_utf8_lossy(value.as_bytes());
                    (name.to_string(), value.into_owned())
                })
                .collect(),
            body,
            broken,
        }
    }
}
