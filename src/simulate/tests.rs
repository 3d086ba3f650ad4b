//! The simulator over real sockets: what gateways and their tests rely on.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{Config, Dialect, Fault, OverLimit, ServerFault, Simulator, StatsSnapshot};

mod plain;

/// Far longer than anything here takes; only a hang meets it.
const PATIENCE: Duration = Duration::from_secs(20);
/// A pause that no test waits out.
const FOREVER_MS: u64 = 3_600_000;

struct RunningSimulator {
    simulator: Simulator,
    address: SocketAddr,
    /// Ends the server when the test ends.
    _task: JoinSet<()>,
}

async fn start(config: Config) -> RunningSimulator {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let simulator = Simulator::new(config);
    let mut task = JoinSet::new();
    let server = simulator.clone();
    task.spawn(async move {
        server
            .serve(listener, std::future::pending())
            .await
            .unwrap()
    });
    RunningSimulator {
        simulator,
        address,
        _task: task,
    }
}

fn fast(dialect: Dialect) -> Config {
    Config {
        dialect,
        output_tokens: 4,
        embedding_dims: 3,
        ..Config::instant()
    }
}

struct SimulatorReply {
    status: u16,
    head: String,
    body: String,
}

impl SimulatorReply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect(&self.body)
    }

    /// The `data:` lines, without the prefix.
    fn events(&self) -> Vec<&str> {
        self.body
            .lines()
            .filter_map(|line| line.strip_prefix("data:"))
            .map(str::trim)
            .collect()
    }
}

impl RunningSimulator {
    async fn send(&self, method: &str, path: &str, headers: &str, body: &Value) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let length = body.len();
        let text = format!(
            "{method} {path} HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    /// The answer, or the error that ended the connection and what came before it.
    async fn raw(&self, path: &str, headers: &str, body: &Value) -> (String, bool) {
        let mut stream = self.send("POST", path, headers, body).await;
        let mut bytes = Vec::new();
        let read = timeout(PATIENCE, stream.read_to_end(&mut bytes))
            .await
            .expect("no hang");
        (String::from_utf8(bytes).unwrap(), read.is_err())
    }

    async fn ask(&self, method: &str, path: &str, headers: &str, body: &Value) -> SimulatorReply {
        let mut stream = self.send(method, path, headers, body).await;
        let mut bytes = Vec::new();
        timeout(PATIENCE, stream.read_to_end(&mut bytes))
            .await
            .expect("no hang")
            .unwrap();
        parse(&String::from_utf8(bytes).unwrap())
    }

    async fn get(&self, path: &str) -> SimulatorReply {
        self.ask("GET", path, "", &Value::Null).await
    }

    async fn post(&self, path: &str, body: Value) -> SimulatorReply {
        self.ask("POST", path, "", &body).await
    }

    async fn until(&self, what: &str, condition: impl Fn(&StatsSnapshot) -> bool) {
        let polling = async {
            while !condition(&self.simulator.stats()) {
                sleep(Duration::from_millis(1)).await;
            }
        };
        let in_time = timeout(PATIENCE, polling).await;
        assert!(in_time.is_ok(), "{what}: {:?}", self.simulator.stats());
    }
}

fn parse(text: &str) -> SimulatorReply {
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let status = head[9..12].parse().unwrap();
    let body = if head.contains("transfer-encoding: chunked") {
        unchunk(body)
    } else {
        body.to_owned()
    };
    SimulatorReply {
        status,
        head: head.to_owned(),
        body,
    }
}

fn unchunk(mut rest: &str) -> String {
    let mut out = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        out.push_str(&after[..size]);
        rest = after[size..].trim_start_matches("\r\n");
    }
    out
}

fn chat(prompt: &str) -> Value {
    json!({ "model": "m", "messages": [{ "role": "user", "content": prompt }] })
}

fn chat_stream(prompt: &str) -> Value {
    let mut body = chat(prompt);
    body["stream"] = json!(true);
    body
}

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_chat_is_answered_whole_and_says_it_is_simulated() {
    let sim = start(fast(Dialect::Openai)).await;
    let reply = sim.post(CHAT, chat("echo: hello there")).await;
    assert_eq!(reply.status, 200);
    assert!(
        reply.head.contains("x-infergate-simulator: true"),
        "{}",
        reply.head
    );
    let json = reply.json();
    assert_eq!(json["system_fingerprint"], "infergate-simulator");
    assert_eq!(json["choices"][0]["message"]["content"], "hello there");
    assert_eq!(json["choices"][0]["finish_reason"], "stop");
    assert_eq!(json["usage"]["completion_tokens"], 2);
    assert_eq!(json["model"], "m");
    sim.until("counted", |stats| stats.served == 1 && stats.current == 0)
        .await;
}

#[tokio::test]
async fn a_stream_carries_usage_only_when_asked() {
    let sim = start(fast(Dialect::Openai)).await;
    let plain = sim.post(CHAT, chat_stream("echo: a b")).await;
    let events = plain.events();
    // role, two tokens, finish, [DONE]
    assert_eq!((events.len(), events[4]), (5, "[DONE]"));
    assert!(!plain.body.contains("usage"));

    let mut body = chat_stream("echo: a b");
    body["stream_options"] = json!({ "include_usage": true });
    let with_usage = sim.post(CHAT, body).await;
    let events = with_usage.events();
    assert_eq!((events.len(), events[5]), (6, "[DONE]"));
    let chunks: Vec<Value> = events[..5]
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    assert!(chunks[..4].iter().all(|chunk| chunk["usage"].is_null()));
    assert_eq!(chunks[4]["choices"], json!([]));
    assert_eq!(chunks[4]["usage"]["completion_tokens"], 2);
    let text: String = chunks[1..3]
        .iter()
        .map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().unwrap())
        .collect();
    assert_eq!(text, "a b");
    assert_eq!(chunks[3]["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn max_tokens_is_honoured_in_every_text_dialect() {
    for dialect in [Dialect::Openai, Dialect::Tgi, Dialect::LlamaServer] {
        let sim = start(fast(dialect)).await;
        let mut body = chat("hello");
        body["max_tokens"] = json!(2);
        let json = sim.post(CHAT, body).await.json();
        assert_eq!(json["usage"]["completion_tokens"], 2, "{dialect:?}");
        assert_eq!(json["choices"][0]["finish_reason"], "length", "{dialect:?}");
    }
}

#[tokio::test]
async fn tgi_generates_whole_and_streamed() {
    let sim = start(fast(Dialect::Tgi)).await;
    let body = json!({ "inputs": "echo: a b", "parameters": { "details": true } });
    let json = sim.post("/generate", body.clone()).await.json();
    assert_eq!(json["generated_text"], "a b");
    assert_eq!(json["details"]["generated_tokens"], 2);
    assert_eq!(json["details"]["finish_reason"], "eos_token");

    let reply = sim.post("/generate_stream", body.clone()).await;
    let events: Vec<Value> = reply
        .events()
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    assert_eq!(events.len(), 2);
    assert_eq!(
        (&events[0]["index"], &events[0]["token"]["text"]),
        (&json!(1), &json!("a"))
    );
    assert_eq!(
        (&events[1]["index"], &events[1]["token"]["text"]),
        (&json!(2), &json!(" b"))
    );
    assert_eq!(events[1]["generated_text"], "a b");

    assert_eq!(sim.post("/", body).await.json()[0]["generated_text"], "a b");
    assert_eq!(
        sim.get("/info").await.json()["max_concurrent_requests"],
        65_536
    );
    assert_eq!(sim.get("/health").await.status, 200);
    assert_eq!(
        sim.post("/generate", json!({ "inputs": 1 })).await.status,
        422
    );
}

#[tokio::test]
async fn tei_embeds_in_its_own_and_in_openai_form() {
    let sim = start(fast(Dialect::Tei)).await;
    let own = sim
        .post("/embed", json!({ "inputs": ["a", "b"] }))
        .await
        .json();
    let openai = sim
        .post("/v1/embeddings", json!({ "input": ["a", "b"] }))
        .await
        .json();
    assert_eq!(own[0].as_array().unwrap().len(), 3);
    assert_eq!(own[1], openai["data"][1]["embedding"]);
    assert_eq!(openai["usage"]["prompt_tokens"], 1);
    let base64 = sim
        .post(
            "/v1/embeddings",
            json!({ "input": "a", "encoding_format": "base64" }),
        )
        .await
        .json();
    assert_eq!(base64["data"][0]["embedding"].as_str().unwrap().len(), 16);
}

#[tokio::test]
async fn llama_server_answers_503_while_loading_and_ok_afterwards() {
    let loading = Config {
        loading_secs: 3_600,
        ..fast(Dialect::LlamaServer)
    };
    let sim = start(loading).await;
    let reply = sim.get("/health").await;
    assert_eq!(reply.status, 503);
    assert_eq!(reply.json()["error"]["message"], "Loading model");
    assert_eq!(sim.post(CHAT, chat("x")).await.status, 503);

    let sim = start(fast(Dialect::LlamaServer)).await;
    assert_eq!(sim.get("/health").await.json(), json!({ "status": "ok" }));
    assert_eq!(sim.get("/props").await.json()["total_slots"], 65_536);
    let events = sim.post(CHAT, chat_stream("x")).await;
    let first: Value = serde_json::from_str(events.events()[0]).unwrap();
    assert!(first["choices"][0]["delta"]["content"].is_null());
}

#[tokio::test]
async fn a_named_model_answers_404_to_other_names() {
    let sim = start(Config {
        model: Some("m".into()),
        ..fast(Dialect::Openai)
    })
    .await;
    assert_eq!(sim.post(CHAT, chat("x")).await.status, 200);
    let mut body = chat("x");
    body["model"] = json!("other");
    let reply = sim.post(CHAT, body).await;
    assert_eq!(
        (reply.status, &reply.json()["error"]["type"]),
        (404, &json!("NotFoundError"))
    );
    assert_eq!(sim.get("/v1/models").await.json()["data"][0]["id"], "m");
    assert_eq!(sim.get("/v1/models/m").await.status, 200);
    assert_eq!(sim.get("/v1/models/n").await.status, 404);
}

#[tokio::test]
async fn above_the_limit_a_queueing_server_makes_requests_wait_and_never_passes_it() {
    let sim = start(Config {
        concurrency: 2,
        // All six are there before the first two are done.
        ttft_ms: 400,
        ..fast(Dialect::Openai)
    })
    .await;
    let mut open = Vec::new();
    for _ in 0..6 {
        open.push(sim.send("POST", CHAT, "", &chat("x")).await);
    }
    for mut stream in open {
        let mut text = String::new();
        timeout(PATIENCE, stream.read_to_string(&mut text))
            .await
            .expect("no hang")
            .unwrap();
        assert_eq!(parse(&text).status, 200);
    }
    let stats = sim.simulator.stats();
    assert_eq!((stats.served, stats.high_water, stats.refused), (6, 2, 0));
    assert_eq!((stats.current, stats.waiting), (0, 0));
    assert!(stats.waiting_high_water >= 1);
}

#[tokio::test]
async fn above_the_limit_a_refusing_server_says_so_in_its_dialect() {
    for (dialect, status, member) in [
        (Dialect::Openai, 429, "/error/message"),
        (Dialect::Tgi, 429, "/error_type"),
        (Dialect::LlamaServer, 503, "/error/type"),
    ] {
        let config = Config {
            concurrency: 1,
            over_limit: OverLimit::Refuse,
            ttft_ms: FOREVER_MS,
            ..fast(dialect)
        };
        let sim = start(config).await;
        let _first = sim.send("POST", CHAT, "", &chat("x")).await;
        sim.until("first holds the slot", |stats| stats.current == 1)
            .await;
        let reply = sim.post(CHAT, chat("x")).await;
        assert_eq!(reply.status, status);
        assert!(reply.json().pointer(member).is_some(), "{}", reply.body);
        assert_eq!(sim.simulator.stats().refused, 1);
    }
}

#[tokio::test]
async fn a_client_that_leaves_gives_its_slot_and_its_place_back() {
    let sim = start(Config {
        concurrency: 1,
        ttft_ms: FOREVER_MS,
        ..fast(Dialect::Openai)
    })
    .await;
    for body in [chat("x"), chat_stream("x")] {
        sim.simulator.reset_stats();
        let working = sim.send("POST", CHAT, "", &body).await;
        sim.until("one works", |stats| stats.current == 1).await;
        let waiting = sim.send("POST", CHAT, "", &body).await;
        sim.until("one waits", |stats| stats.waiting == 1).await;

        drop(waiting);
        sim.until("the place is free", |stats| stats.waiting == 0)
            .await;
        assert_eq!(sim.simulator.stats().current, 1);
        leave_by_reset(working);
        sim.until("the slot is free", |stats| stats.current == 0)
            .await;
        assert_eq!(sim.simulator.stats().cancelled, 2);
    }
}

/// Leave with RST instead of FIN.
fn leave_by_reset(stream: TcpStream) {
    stream.set_zero_linger().unwrap();
}

#[tokio::test]
async fn a_client_that_leaves_mid_stream_is_noticed() {
    let config = Config {
        ttft_ms: 0,
        tokens_per_sec: 0.001,
        concurrency: 1,
        ..fast(Dialect::Openai)
    };
    let sim = start(config).await;
    let mut stream = sim.send("POST", CHAT, "", &chat_stream("x")).await;
    let mut byte = [0; 1];
    stream.read_exact(&mut byte).await.unwrap();
    assert_eq!(sim.simulator.stats().current, 1);
    drop(stream);
    sim.until("the slot is free", |stats| {
        stats.current == 0 && stats.cancelled == 1
    })
    .await;
}

#[tokio::test]
async fn each_event_is_a_chunk_of_its_own_even_when_nothing_paces_them() {
    let sim = start(Config {
        output_tokens: 64,
        ..Config::instant()
    })
    .await;
    let mut stream = sim.send("POST", CHAT, "", &chat_stream("x")).await;
    let mut buffer = [0; 65_536];
    let mut seen = String::new();
    loop {
        let read = timeout(PATIENCE, stream.read(&mut buffer))
            .await
            .expect("no hang")
            .unwrap();
        if read == 0 {
            break;
        }
        seen.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
    }
    // Each event is a chunk of the transfer encoding: 64 tokens, role, finish and [DONE].
    assert_eq!(seen.matches("\r\ndata: ").count(), 67);
}

#[tokio::test]
async fn each_fault_does_what_its_name_says() {
    let sim = start(fast(Dialect::Openai)).await;
    let fault = |name: &str| format!("x-sim-fault: {name}\r\n");

    let (text, _) = sim.raw(CHAT, &fault("refuse"), &chat("x")).await;
    assert_eq!(text, "");
    let (text, reset) = sim
        .raw(CHAT, &fault("reset-before-headers"), &chat("x"))
        .await;
    assert_eq!((text.as_str(), reset), ("", true));
    let (text, reset) = sim
        .raw(CHAT, &fault("reset-mid-stream"), &chat_stream("x"))
        .await;
    assert!(
        reset && text.contains("data: ") && !text.contains("[DONE]"),
        "{text}"
    );
    let (text, reset) = sim.raw(CHAT, &fault("reset-mid-stream"), &chat("x")).await;
    assert!(reset && text.starts_with("HTTP/1.1 200"), "{text}");
    let reply = sim
        .ask("POST", CHAT, &fault("status=503"), &chat("x"))
        .await;
    assert_eq!(reply.status, 503);
    let reply = sim.ask("POST", CHAT, &fault("nonsense"), &chat("x")).await;
    assert_eq!(reply.status, 400);
    let reply = sim.ask("POST", CHAT, &fault("slow"), &chat("x")).await;
    assert_eq!(reply.status, 200);

    let stalled = sim.send("POST", CHAT, &fault("stall"), &chat("x")).await;
    sim.until("it holds a slot", |stats| stats.current == 1)
        .await;
    drop(stalled);
    sim.until("the slot is free", |stats| {
        stats.current == 0 && stats.cancelled == 1
    })
    .await;

    let mut half = sim
        .send("POST", CHAT, &fault("stall-mid-stream"), &chat_stream("x"))
        .await;
    let mut text = vec![0; 1];
    half.read_exact(&mut text).await.unwrap();
    assert_eq!(sim.simulator.stats().current, 1);
}

#[tokio::test]
async fn a_fault_may_come_in_the_body() {
    let sim = start(fast(Dialect::Tgi)).await;
    let body = json!({ "inputs": "x", "x_sim_fault": "status=424" });
    let reply = sim.post("/generate", body).await;
    assert_eq!(
        (reply.status, &reply.json()["error_type"]),
        (424, &json!("generation"))
    );
}

#[tokio::test]
async fn a_server_fault_strikes_as_often_as_it_was_told() {
    let sim = start(fast(Dialect::Openai)).await;
    let put = json!({ "fault": "status=500", "count": 2 });
    assert_eq!(
        sim.ask("PUT", "/sim/fault", "", &put).await.json()["probability"],
        1.0
    );
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(sim.post(CHAT, chat("x")).await.status);
        assert_eq!(sim.get("/health").await.status, 200);
    }
    assert_eq!(statuses, [500, 500, 200]);

    let put = json!({ "fault": "status=500", "probability": 0.5 });
    sim.ask("PUT", "/sim/fault", "", &put).await;
    let mut failed = 0;
    for _ in 0..200 {
        failed += u32::from(sim.post(CHAT, chat("x")).await.status == 500);
    }
    assert!((60..=140).contains(&failed), "{failed}");
    let wrong = json!({ "fault": "status=200" });
    assert_eq!(sim.ask("PUT", "/sim/fault", "", &wrong).await.status, 400);
}

#[tokio::test]
async fn a_refusing_server_closes_every_connection_but_its_own_routes() {
    let sim = start(fast(Dialect::Openai)).await;
    sim.simulator
        .set_fault(Some(ServerFault::always(Fault::Refuse)));
    let (text, _) = sim.raw(CHAT, "", &chat("x")).await;
    assert_eq!(text, "");
    assert_eq!(sim.get("/sim/fault").await.json()["fault"], "refuse");
    assert_eq!(
        sim.ask("DELETE", "/sim/fault", "", &Value::Null)
            .await
            .status,
        200
    );
    assert_eq!(sim.post(CHAT, chat("x")).await.status, 200);
}

#[tokio::test]
async fn a_paced_answer_takes_its_time_and_no_less() {
    let config = Config {
        ttft_ms: 30,
        tokens_per_sec: 100.0,
        ..fast(Dialect::Openai)
    };
    for body in [chat("x"), chat_stream("x")] {
        let sim = start(config.clone()).await;
        let started = tokio::time::Instant::now();
        assert_eq!(sim.post(CHAT, body).await.status, 200);
        // 30 ms to the first token, 10 ms to each of the three after it.
        assert!(started.elapsed() >= Duration::from_millis(60));
    }
}
