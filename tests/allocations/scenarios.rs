//! The requests that are counted.
//!
//! Not the configuration they meet, which is `gateway.rs`'s. `scripts/count` has scenarios of the same names.

/// Id of the model that serves, of the one whose only permit is taken, and the key of the one account.
pub const MODEL: &str = "bench";
pub const FULL_MODEL: &str = "bench-full";
pub const KEY: &str = "sk-bench-acme";

/// Events of a stream, before its usage and its end.
pub const EVENTS: usize = 64;

/// A request and what is expected of it.
#[derive(Clone, Copy)]
pub struct Scenario {
    pub name: &'static str,
    pub status: u16,
    /// Requests of a window; a stream's window is its events after the first.
    pub requests: usize,
    model: &'static str,
    key: &'static str,
    body_bytes: usize,
    pub is_stream: bool,
}

const SMALL: Scenario = Scenario {
    name: "small",
    status: 200,
    requests: 100,
    model: MODEL,
    key: KEY,
    body_bytes: 2 << 10,
    is_stream: false,
};

/// Every scenario, in the order of the file of ceilings.
pub const SCENARIOS: [Scenario; 6] = [
    SMALL,
    Scenario {
        name: "32k",
        body_bytes: 32 << 10,
        ..SMALL
    },
    Scenario {
        name: "256k",
        body_bytes: 256 << 10,
        requests: 30,
        ..SMALL
    },
    Scenario {
        name: "429",
        status: 429,
        model: FULL_MODEL,
        ..SMALL
    },
    Scenario {
        name: "401",
        status: 401,
        key: "sk-of-no-account",
        ..SMALL
    },
    Scenario {
        name: "event",
        is_stream: true,
        ..SMALL
    },
];

/// The stream that takes the only permit of the full model.
pub const HOLDER: Scenario = Scenario {
    name: "holder",
    model: FULL_MODEL,
    is_stream: true,
    ..SMALL
};

impl Scenario {
    /// Returns whether its model has no permit left.
    pub fn is_full(&self) -> bool {
        self.status == 429
    }

    /// Head and body of the request.
    pub fn request(&self) -> Vec<u8> {
        let (model, key) = (self.model, self.key);
        let stream = if self.is_stream {
            r#","stream":true"#
        } else {
            ""
        };
        let opening = r#"{"messages":[{"role":"user","content":""#;
        let closing = format!(r#""}}],"model":"{model}","max_tokens":90{stream}}}"#);
        let text = "a".repeat(self.body_bytes - opening.len() - closing.len());
        format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: bench.test\r\nauthorization: Bearer {key}\r\n\
             content-type: application/json\r\naccept: application/json\r\nuser-agent: bench/1\r\n\
             content-length: {}\r\n\r\n{opening}{text}{closing}",
            self.body_bytes
        )
        .into_bytes()
    }
}
