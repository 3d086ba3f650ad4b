//! Output of a model's process as server-sent events: one for each line, until the process has ended or the client leaves.
//!
//! Reads nothing itself: news come from a [`LogFollower`]. A single piece of news is in memory at a time. A client that takes no
//! byte for [`WRITE_TIMEOUT`] is left. Format: <https://html.spec.whatwg.org/multipage/server-sent-events.html>.

use std::time::Duration;

use async_trait::async_trait;
use pingora_core::protocols::http::ServerSession;
use pingora_core::server::ShutdownWatch;
use pingora_http::ResponseHeader;

const EVENT_STREAM: &str = "text/event-stream";
/// Longest wait for a client that does not read: people pause a terminal, and the ring keeps what is new.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Comment that keeps a quiet connection alive, and sends the head at once.
const KEEPALIVE: &[u8] = b": follows\n\n";

/// News of an instance's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogNews {
    /// Lines without their ends.
    Lines(Vec<Vec<u8>>),
    /// Bytes that were overwritten before they were read.
    Missed(u64),
    /// Silence for a while.
    Quiet,
    /// The process has ended, and all its lines were told.
    Ended,
}

/// Output of an instance as it is written.
#[async_trait]
pub trait LogFollower: Send {
    /// Waits for the next news. After [`LogNews::Ended`] there is nothing else.
    async fn next(&mut self) -> LogNews;
}

/// Sends the output to the client until it ends, the client leaves or the gateway shuts down.
pub async fn send(
    session: &mut ServerSession,
    mut follower: Box<dyn LogFollower>,
    shutdown: &ShutdownWatch,
) -> pingora_error::Result<()> {
    session.set_keepalive(None);
    session.set_write_timeout(Some(WRITE_TIMEOUT));
    let mut head = ResponseHeader::build(200, Some(3))?;
    head.insert_header(http::header::CONTENT_TYPE, EVENT_STREAM)?;
    head.insert_header(http::header::CACHE_CONTROL, "no-store")?;
    session.write_response_header(Box::new(head)).await?;
    session.write_response_body(KEEPALIVE.into(), false).await?;
    let mut shutdown = shutdown.clone();
    loop {
        let news = tokio::select! {
            news = follower.next() => news,
            // An end of the connection. Clients send nothing here.
            _ = session.read_body_or_idle(true) => return Ok(()),
            () = async { let _ = shutdown.wait_for(|stops| *stops).await; } => return Ok(()),
        };
        let is_last = news == LogNews::Ended;
        session
            .write_response_body(events(&news).into(), is_last)
            .await?;
        if is_last {
            return Ok(());
        }
    }
}

/// Writes news as events.
fn events(news: &LogNews) -> Vec<u8> {
    let mut text = Vec::new();
    match news {
        LogNews::Lines(lines) => {
            for line in lines {
                data(&mut text, line);
            }
        }
        LogNews::Missed(bytes) => {
            text.extend_from_slice(b"event: missed\n");
            data(&mut text, bytes.to_string().as_bytes());
        }
        LogNews::Quiet => text.extend_from_slice(KEEPALIVE),
        LogNews::Ended => {
            text.extend_from_slice(b"event: ended\n");
            data(&mut text, b"the process has ended");
        }
    }
    text
}

/// Writes the payload of an event. A carriage return, as of a progress bar, would end a line of the stream.
fn data(text: &mut Vec<u8>, line: &[u8]) {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    for part in String::from_utf8_lossy(line).split('\r') {
        text.extend_from_slice(b"data: ");
        text.extend_from_slice(part.as_bytes());
        text.push(b'\n');
    }
    text.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_an_event_and_a_carriage_return_ends_none() {
        let lines = [&b"one"[..], b"", b"10%\r20%", b"two\r", b"\xff"];
        let lines = lines.iter().map(|line| line.to_vec()).collect();
        let text = String::from_utf8(events(&LogNews::Lines(lines))).unwrap();
        assert_eq!(
            text,
            "data: one\n\ndata: \n\ndata: 10%\ndata: 20%\n\ndata: two\n\ndata: \u{fffd}\n\n"
        );
        let named = |news: &LogNews| String::from_utf8(events(news)).unwrap();
        assert_eq!(named(&LogNews::Missed(7)), "event: missed\ndata: 7\n\n");
        assert!(named(&LogNews::Ended).starts_with("event: ended\ndata: "));
        assert!(named(&LogNews::Quiet).starts_with(": "));
    }
}
