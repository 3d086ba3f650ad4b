//! Request bytes, built once and sent many times.
//! Not an API client: it knows one endpoint and no answers.
//!
//! Sizes are bytes of the whole body. Called by both load generators.

/// A chat completion request.
#[derive(Clone)]
pub struct Chat<'a> {
    pub model: &'a str,
    pub key: Option<&'a str>,
    /// The body is padded with conversation to this many bytes; a smaller number gives the smallest body.
    pub body_bytes: usize,
    /// Further top-level fields, as JSON without the outer braces (`"stream":true,"seed":5`).
    pub fields: &'a str,
    /// Further header lines, each ending in CRLF.
    pub headers: &'a str,
}

impl Chat<'_> {
    /// Head and body in one piece.
    pub fn bytes(&self) -> Vec<u8> {
        let body = self.body();
        let authorization = match self.key {
            Some(key) => format!("authorization: Bearer {key}\r\n"),
            None => String::new(),
        };
        let mut bytes = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: bench.test\r\n{authorization}\
             content-type: application/json\r\n{}content-length: {}\r\n\r\n",
            self.headers,
            body.len()
        )
        .into_bytes();
        bytes.extend_from_slice(body.as_bytes());
        bytes
    }

    /// `messages` first and `model` after it, as the official Python client writes them, so a reader
    /// that stops at `model` still has to pass over the conversation.
    fn body(&self) -> String {
        let separator = if self.fields.is_empty() { "" } else { "," };
        let tail = format!("\"model\":\"{}\"{separator}{}}}", self.model, self.fields);
        let frame = "{\"messages\":[".len() + "],".len() + tail.len();
        let messages = messages(self.body_bytes.saturating_sub(frame));
        format!("{{\"messages\":[{messages}],{tail}")
    }
}

/// Conversation turns of at most 8 KiB each, `total` bytes of JSON together where that is possible.
fn messages(total: usize) -> String {
    /// A user message up to its text.
    const OPENING: &str = "{\"role\":\"user\",\"content\":\"";
    const CLOSING: &str = "\"}";
    const SHELL: usize = OPENING.len() + CLOSING.len();
    const TURN_TEXT: usize = 8_192;

    let mut text = String::with_capacity(total);
    loop {
        let separator = usize::from(!text.is_empty());
        let left = total.saturating_sub(text.len() + separator + SHELL);
        if separator == 1 {
            text.push(',');
        }
        // The last turn takes what remains, so that no turn is too small for its own shell.
        let length = if left < TURN_TEXT + 2 * SHELL {
            left
        } else {
            TURN_TEXT
        };
        text.push_str(OPENING);
        push_prose(&mut text, length);
        text.push_str(CLOSING);
        if length == left {
            return text;
        }
    }
}

/// Prose with the escapes real conversations have (quotes and line ends), exactly `length` bytes.
fn push_prose(text: &mut String, length: usize) {
    const PROSE: &str = "She said \\\"the queue is fair\\\" and nobody in the line of containers \
                         waited longer than the one before it.\\n";
    let target = text.len() + length;
    while target - text.len() >= PROSE.len() {
        text.push_str(PROSE);
    }
    while text.len() < target {
        text.push('.');
    }
}

/// A request without a body.
pub fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: bench.test\r\nconnection: close\r\n\r\n").into_bytes()
}
