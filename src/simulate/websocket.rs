//! WebSockets of the simulated container: an echo, texts token by token, and the realtime API of OpenAI.
//!
//! A message comes back as it was sent. A text that begins with `tokens:` is answered with a text, a message a token;
//! `close:CODE` closes the connection with that code. Below `/v1/realtime` messages are events of that API. A connection
//! holds one slot until it ends.

use std::io;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use http::Response;
use http::header::{
    CONNECTION, CONTENT_TYPE, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_PROTOCOL, UPGRADE,
};
use http::request::Parts;
use infergate_core::websocket::{CloseCode, accept_for, close_frame};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep_until;

use super::body::SimulatorBody;
use super::config::Dialect;
use super::connection::{AcceptedWebSocket, ConnectionCut, FaultableConnection};
use super::dialect;
use super::fault::Fault;
use super::handler::{JSON, finish, refuse, respond};
use super::pace::TokenPace;
use super::state::SimulatorState;
use super::text::{SimulatedText, TextLength, hash};

/// Largest frame; a larger one closes the connection with 1009.
const FRAME_BYTES_MAX: usize = 16 * 1024 * 1024;
const TOO_BIG: CloseCode = CloseCode(1009);

const FIN: u8 = 0x80;
const TEXT: u8 = 0x1;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xa;

/// A frame of the client, unmasked.
struct Frame {
    first: u8,
    payload: BytesMut,
}

/// Returns whether a head asks for a WebSocket.
fn is_asked(parts: &Parts) -> bool {
    let upgrade = parts.headers.get("upgrade");
    upgrade.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// Returns the accept value for the key of a head, and the first subprotocol that it offers.
fn answer_to(parts: &Parts) -> Option<(String, Option<String>)> {
    let key = parts.headers.get("sec-websocket-key")?;
    let offered = parts.headers.get("sec-websocket-protocol");
    let first = offered.and_then(|value| value.to_str().ok()?.split(',').next());
    let first = first.map(|name| name.trim().to_owned());
    Some((accept_for(key.as_bytes()), first))
}

impl SimulatorState {
    /// Answers a request that has no other route: 101, with a slot for as long as the connection is open.
    pub(super) async fn open_websocket(
        &self,
        parts: &Parts,
        wire: &FaultableConnection,
    ) -> Result<Response<SimulatorBody>, ConnectionCut> {
        let dialect = self.config.dialect;
        if !is_asked(parts) || !matches!(dialect, Dialect::Http | Dialect::Openai) {
            return Ok(refuse(dialect, 404, "Not Found"));
        }
        let Some((accept, protocol)) = answer_to(parts) else {
            return Ok(refuse(dialect, 400, "the handshake has no key"));
        };
        let fault = match self.fault(parts, None) {
            Ok(fault) => fault,
            Err(problem) => return Ok(refuse(dialect, 400, &problem)),
        };
        if let Some(fault) = fault
            && let Some(failed) = self.early_fault(fault, wire)?
        {
            return Ok(failed);
        }
        let Ok(slot) = self.gate.acquire().await else {
            let (status, body) = dialect::overloaded(dialect);
            return Ok(respond(status, body));
        };
        let slot = self.loopback.attach(slot, parts, "WebsocketFinished");
        self.work_started.notify_one();
        if fault == Some(Fault::Stall) {
            std::future::pending::<()>().await;
        }
        let is_realtime = parts.uri.path().ends_with("/realtime");
        wire.go_on_as(AcceptedWebSocket {
            slot,
            fault,
            is_realtime,
        });
        let mut response = finish(101, JSON, SimulatorBody::Whole(Bytes::new()));
        let headers = response.headers_mut();
        headers.remove(CONTENT_TYPE);
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        let own = [
            (SEC_WEBSOCKET_ACCEPT, Some(accept)),
            (SEC_WEBSOCKET_PROTOCOL, protocol),
        ];
        for (name, value) in own {
            if let Some(Ok(value)) = value.map(HeaderValue::try_from) {
                headers.insert(name, value);
            }
        }
        Ok(self.with_billing_headers(response))
    }
}

/// Serves a WebSocket until either side ends it.
pub(super) async fn serve(
    shared: &Arc<SimulatorState>,
    accepted: AcceptedWebSocket,
    (stream, received): (&mut TcpStream, Bytes),
    wire: &FaultableConnection,
) {
    let mut socket = ServedSocket {
        shared,
        stream,
        buffer: BytesMut::from(&received[..]),
        tokens: 0,
        is_realtime: accepted.is_realtime,
        is_slow: accepted.fault == Some(Fault::Slow),
    };
    let ended = socket.run(accepted.fault, wire).await;
    let tokens = socket.tokens;
    match ended {
        Ok(true) => accepted.slot.finish(tokens),
        Ok(false) => accepted.slot.finish_faulted(),
        // The client left.
        Err(_) => {}
    }
}

struct ServedSocket<'a> {
    shared: &'a Arc<SimulatorState>,
    stream: &'a mut TcpStream,
    buffer: BytesMut,
    tokens: u64,
    is_realtime: bool,
    is_slow: bool,
}

impl ServedSocket<'_> {
    /// Returns whether the connection was closed in good order; false after a fault.
    async fn run(&mut self, fault: Option<Fault>, wire: &FaultableConnection) -> io::Result<bool> {
        if self.is_realtime {
            let model = self.shared.config.answered_model(None);
            let session = json!({"id": "sess_1", "object": "realtime.session", "type": "realtime", "model": model});
            self.send_event("session.created", json!({"session": session}))
                .await?;
        }
        loop {
            let Some(mut frame) = self.next_frame().await? else {
                self.send_close(TOO_BIG, "frame too big").await?;
                return Ok(true);
            };
            match fault {
                Some(Fault::ResetMidStream) => {
                    let _cut = wire.reset();
                    return Ok(false);
                }
                Some(Fault::StallMidStream) => std::future::pending().await,
                _ => {}
            }
            match frame.first & 0x0f {
                CLOSE => {
                    self.send(FIN | CLOSE, &frame.payload).await?;
                    return Ok(true);
                }
                PING => self.send(FIN | PONG, &frame.payload).await?,
                PONG => {}
                _ => {
                    let payload = frame.payload.split().freeze();
                    self.answer(frame.first, &payload).await?;
                }
            }
        }
    }

    async fn answer(&mut self, first: u8, payload: &Bytes) -> io::Result<()> {
        let text = std::str::from_utf8(payload).unwrap_or_default();
        if first != FIN | TEXT {
            return self.send(first, payload).await;
        }
        if self.is_realtime {
            return self.answer_event(text).await;
        }
        if let Some(prompt) = text.strip_prefix("tokens:") {
            return self.send_tokens(prompt, None).await;
        }
        if let Some(code) = text
            .strip_prefix("close:")
            .and_then(|code| code.parse().ok())
        {
            return self.send_close(CloseCode(code), "as asked").await;
        }
        self.send(first, payload).await
    }

    /// Answers an event of the realtime API.
    async fn answer_event(&mut self, text: &str) -> io::Result<()> {
        let event: Value = serde_json::from_str(text).unwrap_or_default();
        match event["type"].as_str().unwrap_or_default() {
            "session.update" => {
                let session = event["session"].clone();
                self.send_event("session.updated", json!({"session": session}))
                    .await
            }
            "conversation.item.create" => {
                let item = event["item"].clone();
                self.send_event("conversation.item.added", json!({"item": item}))
                    .await
            }
            "response.create" => {
                let response = json!({"id": "resp_1", "object": "realtime.response", "status": "in_progress", "output": []});
                self.send_event("response.created", json!({"response": response}))
                    .await?;
                let before = self.tokens;
                self.send_tokens(text, Some("response.output_text.delta"))
                    .await?;
                let output = self.tokens - before;
                let usage = json!({"input_tokens": text.len() / 4, "output_tokens": output,
                    "total_tokens": text.len() as u64 / 4 + output});
                let response = json!({"id": "resp_1", "object": "realtime.response",
                    "status": "completed", "output": [], "usage": usage});
                self.send_event("response.done", json!({"response": response}))
                    .await
            }
            other => {
                let message = format!("the simulator does not know the event `{other}`");
                let error = json!({"type": "invalid_request_error", "message": message});
                self.send_event("error", json!({"error": error})).await
            }
        }
    }

    /// Sends a text, a message a token: as it is, or as events of this type.
    async fn send_tokens(&mut self, prompt: &str, event: Option<&str>) -> io::Result<()> {
        let config = &self.shared.config;
        let length = TextLength {
            natural: config.output_tokens,
            max: None,
            ignore_end: false,
        };
        let text = SimulatedText::answer(config.seed, prompt, length);
        let pace = TokenPace::start(config, self.is_slow, config.seed ^ hash(prompt.as_bytes()));
        for index in 0..text.tokens() {
            if let Some(due) = pace.due(index) {
                sleep_until(due).await;
            }
            let token = text.token(index);
            match event {
                Some(event) => {
                    let place = json!({"response_id": "resp_1", "item_id": "item_1",
                        "output_index": 0, "content_index": 0, "delta": token});
                    self.send_event(event, place).await?;
                }
                None => self.send(FIN | TEXT, token.as_bytes()).await?,
            }
            self.tokens += 1;
        }
        Ok(())
    }

    async fn send_event(&mut self, kind: &str, mut event: Value) -> io::Result<()> {
        event["type"] = kind.into();
        event["event_id"] = format!("event_{}", self.tokens).into();
        self.send(FIN | TEXT, event.to_string().as_bytes()).await
    }

    async fn send_close(&mut self, code: CloseCode, reason: &str) -> io::Result<()> {
        self.stream
            .write_all(&close_frame(code, reason, None))
            .await
    }

    async fn send(&mut self, first: u8, payload: &[u8]) -> io::Result<()> {
        let mut frame = vec![first];
        match payload.len() {
            short @ ..126 => frame.push(short as u8),
            medium @ ..65_536 => {
                frame.push(126);
                frame.extend_from_slice(&(medium as u16).to_be_bytes());
            }
            long => {
                frame.push(127);
                frame.extend_from_slice(&(long as u64).to_be_bytes());
            }
        }
        frame.extend_from_slice(payload);
        self.stream.write_all(&frame).await
    }

    /// Reads the next frame; none where it is too big.
    async fn next_frame(&mut self) -> io::Result<Option<Frame>> {
        loop {
            match take_frame(&mut self.buffer) {
                TakenFrame::Whole(frame) => return Ok(Some(frame)),
                TakenFrame::TooBig => return Ok(None),
                TakenFrame::Partial => {}
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

enum TakenFrame {
    Whole(Frame),
    Partial,
    TooBig,
}

fn take_frame(buffer: &mut BytesMut) -> TakenFrame {
    let [first, second, ..] = buffer[..] else {
        return TakenFrame::Partial;
    };
    let (extended, short) = match second & 0x7f {
        126 => (2, 0),
        127 => (8, 0),
        short => (0, usize::from(short)),
    };
    let Some(length) = buffer.get(2..2 + extended) else {
        return TakenFrame::Partial;
    };
    let length = length
        .iter()
        .fold(short, |sum, byte| sum << 8 | usize::from(*byte));
    if length > FRAME_BYTES_MAX {
        return TakenFrame::TooBig;
    }
    let mask_bytes = if second & 0x80 == 0 { 0 } else { 4 };
    let header = 2 + extended + mask_bytes;
    if buffer.len() < header + length {
        return TakenFrame::Partial;
    }
    let mut mask = [0; 4];
    mask[..mask_bytes].copy_from_slice(&buffer[header - mask_bytes..header]);
    buffer.advance(header);
    let mut payload = buffer.split_to(length);
    for (at, byte) in payload.iter_mut().enumerate() {
        *byte ^= mask[at % mask.len()];
    }
    TakenFrame::Whole(Frame { first, payload })
}
