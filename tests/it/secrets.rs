//! Secrets stay where they belong: planted ones are looked for in all that the gateway writes and answers.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use sha2::{Digest, Sha256};
use tokio::net::TcpStream;

use crate::support::{
    Authority, ClusterCredentials, HandledServer, Http2Client, Node, Reaction, RefusingServer,
    chat, chat_request, eventually, flat_price, free_address, handshake, json_answer, model,
    over_tls,
};

const CLIENT_KEY: &str = "canary-key-of-a-client";
const STRANGE_KEY: &str = "canary-key-of-nobody";
const ENDPOINT_KEY: &str = "canary-key-of-an-endpoint";
const ENDPOINT_HEADER: &str = "canary-header-of-an-endpoint";
const QUERY_KEY: &str = "canary-key-in-a-query";
const CONSUL_TOKEN: &str = "canary-token-of-consul";
const COLLECTOR_KEY: &str = "canary-key-of-a-collector";
const WEBHOOK_SECRET: &str = "canary-secret-of-webhooks";
const PLUGIN_KEY: &str = "canary-key-of-a-plugin";
const PROMPT: &str = "canary-words-of-a-client";

const ANSWER: &str = r#"{"id":"1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}"#;

/// Everything at its most talkative, libraries included; `notify` would tell of each line of this log.
const LOG: &str = "log: { level: \"trace,pingora_core=trace,pingora_http=trace,hyper=trace,hyper_util=trace,mio=trace\" }\n";

/// Texts in which a secret could stand, by where they are from.
type Findings = BTreeMap<String, String>;

/// Servers of the models: one that serves, and one that nobody listens at.
struct Servers {
    serving: HandledServer,
    gone: RefusingServer,
}

impl Servers {
    async fn start() -> Servers {
        Servers {
            serving: HandledServer::by(|_| Reaction::Answer(json_answer(ANSWER))).await,
            gone: RefusingServer::new(),
        }
    }

    /// Models with secrets of each kind; `key` is the key of the first one's endpoint.
    fn models(&self, key: &str) -> String {
        let at = |address| format!("url: \"http://{address}\", max_concurrent_requests: 4");
        let keyed = format!(
            "{}, api_key: {key}, headers: {{ x-own: {ENDPOINT_HEADER} }}",
            at(self.serving.address)
        );
        let in_query = |address| {
            format!(
                "{}, api_key: {QUERY_KEY}, auth: query, auth_name: key",
                at(address)
            )
        };
        // Nobody speaks TLS there.
        let plain = in_query(self.serving.address).replace("http://127.0.0.1", "https://localhost");
        let consul = format!(
            "    discovery: {{ consul: {{ url: \"http://{}\", service: s, token: {CONSUL_TOKEN} }}, every_secs: 1 }}\n",
            self.gone.address
        );
        let priced = "    tariff: { cost_per_infer: 1 }\n    plugins: { billing: p }\n";
        [
            "models:\n".to_owned(),
            model("acme/m", &[keyed], priced),
            model("query", &[in_query(self.serving.address)], ""),
            model("gone", &[in_query(self.gone.address)], ""),
            model("untrusted", &[plain], ""),
            model("found", &[in_query(self.gone.address)], &consul),
        ]
        .concat()
    }
}

/// The whole configuration, with the folder of certificates and plugins.
fn config(servers: &Servers, dir: &Path, tls: &str, cluster: &str) -> String {
    let (peers, cluster) = cluster.split_once('\n').unwrap();
    let hash = hex::encode(Sha256::digest(CLIENT_KEY));
    let dir = dir.display();
    [
        format!("{peers}\n  listener: tls: {{ {tls} }}\n{cluster}{LOG}"),
        format!("accounts:\n  - {{ id: a, api_keys_sha256: [\"{hash}\"] }}\n"),
        format!("jobs: {{ webhooks: {{ secret: {WEBHOOK_SECRET}, allow_http: true, allow_networks: [127.0.0.0/8], ports: [9] }} }}\n"),
        format!("tracing:\n  otlp: {{ endpoint: \"http://{}\", batch_delay_ms: 50, headers: {{ x-key: {COLLECTOR_KEY} }} }}\n", servers.gone.address),
        format!("plugins:\n  - {{ name: p, world: billing-formula, file: \"{dir}/p.wasm\", dev: true, settings: {{ api_key: {PLUGIN_KEY} }} }}\n"),
        servers.models(ENDPOINT_KEY),
    ]
    .concat()
}

fn post(path: &str, fields: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: h\r\n{fields}Content-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Requests that are served, refused and failed by servers, with their answers.
async fn ask_all(node: &Node, authority: &Authority, findings: &mut Findings) {
    const CHAT: &str = "/v1/chat/completions";
    let with = |key: &str| format!("Authorization: Bearer {key}\r\n");
    let more = format!(r#","user":"{PROMPT}""#);
    let asked = |model: &str| chat(model, &more);
    let job = format!(r#"{{"input":{{"prompt":"{PROMPT}"}},"webhook":"http://127.0.0.1:9/"}}"#);
    let good = with(CLIENT_KEY);
    for (name, request) in [
        ("served", post(CHAT, &good, &asked("acme/m"))),
        ("served by a query", post(CHAT, &good, &asked("query"))),
        ("nobody listens", post(CHAT, &good, &asked("gone"))),
        ("no TLS", post(CHAT, &good, &asked("untrusted"))),
        ("no endpoint", post(CHAT, &good, &asked("found"))),
        ("no such model", post(CHAT, &good, &asked("other"))),
        (
            "strange key",
            post(CHAT, &with(STRANGE_KEY), &asked("acme/m")),
        ),
        (
            "strange key of Anthropic's",
            post(
                "/v1/messages",
                &format!("x-api-key: {STRANGE_KEY}\r\n"),
                &asked("acme/m"),
            ),
        ),
        (
            "key without a scheme",
            post(
                CHAT,
                &format!("Authorization: {CLIENT_KEY}\r\n"),
                &asked("acme/m"),
            ),
        ),
        (
            "broken head",
            post(CHAT, &format!("{good}x\u{1}y: {CLIENT_KEY}\r\n"), ""),
        ),
        (
            "large head",
            post(
                CHAT,
                &format!("{good}x-a: {}\r\n", "v".repeat(80 << 10)),
                "",
            ),
        ),
        (
            "broken body",
            post(
                CHAT,
                &good,
                &format!("{{\"model\":\"acme/m\",\"messages\":{PROMPT}"),
            ),
        ),
        ("job", post("/v1/models/acme/m/predictions", &good, &job)),
    ] {
        // One that is refused before its end may see a reset.
        let answer = over_tls(node.clients, "localhost", authority, None, &request).await;
        // A client may see its own words, and nobody else.
        let answer = answer.unwrap_or_default().replace(PROMPT, "");
        findings.insert(format!("answer: {name}"), answer);
    }
    let tcp = TcpStream::connect(node.clients).await.unwrap();
    let tls = handshake(tcp, "localhost", authority, None, &["h2"]);
    let client = Http2Client::over(tls.await.unwrap()).await;
    let mut request = chat_request();
    let key = format!("Bearer {CLIENT_KEY}").parse().unwrap();
    request.headers_mut().insert("authorization", key);
    let answer = client.send(request, &asked("acme/m")).await.whole().await;
    assert_eq!(answer.status, 200);
    findings.insert("answer over HTTP/2".to_owned(), answer.text());
}

/// Pages and files for operators.
async fn look_around(node: &Node, findings: &mut Findings) {
    for path in [
        "/metrics",
        "/state",
        "/accounts",
        "/config",
        "/config/runtime",
        "/explain",
        "/explain/last",
        "/jobs",
        "/jobs/queues",
        "/jobs/workers",
        "/jobs/stores",
        "/jobs/webhooks",
        "/gpu",
        "/readyz",
    ] {
        findings.insert(path.to_owned(), node.get(path).await.text());
    }
    let events = std::fs::read_to_string(node.events_path()).unwrap();
    let ids = events.lines().filter_map(|line| {
        let event: serde_json::Value = serde_json::from_str(line).ok()?;
        Some(event["request_id"].as_str()?.to_owned())
    });
    for id in ids {
        let path = format!("/explain/{id}");
        findings.insert(path.clone(), node.get(&path).await.text());
    }
    findings.insert("events".to_owned(), events);
}

/// Mistakes beside secrets, as a reload and `infergate check` report them.
async fn make_mistakes(node: &Node, good: &str, findings: &mut Findings) {
    let file = node.dir().join("mistaken.yaml");
    for (name, from, to) in [
        ("list", ENDPOINT_KEY, format!("[{ENDPOINT_KEY}]")),
        (
            "control byte",
            ENDPOINT_KEY,
            format!("\"{ENDPOINT_KEY}\\u0007\""),
        ),
        ("tag", ENDPOINT_KEY, format!("!x {ENDPOINT_KEY}")),
        ("quote", ENDPOINT_KEY, format!("\"{ENDPOINT_KEY}")),
        (
            "header",
            ENDPOINT_HEADER,
            format!("\"{ENDPOINT_HEADER}\\n\""),
        ),
        ("short secret", WEBHOOK_SECRET, "canary-secret".to_owned()),
        (
            "mapping",
            WEBHOOK_SECRET,
            format!("{{ a: {WEBHOOK_SECRET} }}"),
        ),
        (
            "header of a collector",
            COLLECTOR_KEY,
            format!("[{COLLECTOR_KEY}]"),
        ),
        (
            "key in plain",
            "api_keys_sha256: [\"",
            format!("api_keys_sha256: [\"{CLIENT_KEY}\", \""),
        ),
    ] {
        let text = good.replace(from, &to);
        assert_ne!(text, good, "{name}");
        std::fs::write(&file, node.config_text(&text)).unwrap();
        let mut check = Command::new(env!("CARGO_BIN_EXE_infergate"));
        check.arg("check").arg(&file);
        let checked = check.output().unwrap();
        assert!(!checked.status.success(), "{name} is accepted");
        let printed = [checked.stdout, checked.stderr].concat();
        let printed = String::from_utf8(printed).unwrap();
        findings.insert(format!("check: {name}"), printed);
        let refused = node.reload(&text).await;
        assert_eq!(refused.status, 422, "{name}: {}", refused.text());
        findings.insert(format!("reload: {name}"), refused.text());
    }
    let changed = good.replace(ENDPOINT_KEY, "canary-key-of-another");
    std::fs::write(&file, node.config_text(&changed)).unwrap();
    let mut diff = Command::new(env!("CARGO_BIN_EXE_infergate"));
    let compared = diff.args(["config", "diff"]).arg(&file).output().unwrap();
    let printed = String::from_utf8([compared.stdout, compared.stderr].concat()).unwrap();
    assert!(printed.contains("api_key"), "{printed}");
    findings.insert("config diff".to_owned(), printed);
}

#[tokio::test]
async fn planted_secrets_appear_in_nothing_that_is_written_or_told() {
    let (authority, fleet) = (Authority::new(), ClusterCredentials::new());
    let dir = tempfile::tempdir().unwrap();
    let servers = Servers::start().await;
    std::fs::write(dir.path().join("p.wasm"), flat_price(2.5)).unwrap();
    let tls = authority.certify("localhost").write(dir.path(), "own");
    let gossip = free_address();
    let cluster = fleet.config("a", "fra", gossip, &format!("seeds: [\"{gossip}\"]"));
    let good = config(&servers, dir.path(), &tls, &cluster);
    let node = Node::start(&good).await;
    let begin =
        "POST /plugins/p/capture?calls=100 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
    let capture = crate::support::TestClient::exchange(node.admin, begin).await;
    assert_eq!(capture.status, 200, "{}", capture.text());
    let capture = capture.json()["file"].as_str().unwrap().to_owned();

    let mut findings = Findings::new();
    ask_all(&node, &authority, &mut findings).await;
    let captured = eventually("calls are captured", async || {
        let text = std::fs::read_to_string(&capture).ok()?;
        (text.lines().count() >= 3).then_some(text)
    });
    findings.insert("captures".to_owned(), captured.await);
    node.events(8).await;
    look_around(&node, &mut findings).await;
    make_mistakes(&node, &good, &mut findings).await;
    node.signal("TERM");
    let log = eventually("the drain is logged", async || {
        let log = node.log();
        log.contains("drain").then_some(log)
    });
    findings.insert("log".to_owned(), log.await);

    // It would be found if it were there.
    for (place, expected) in [
        ("answer: served", "200 OK"),
        ("answer: nobody listens", "HTTP/1.1 502"),
        ("answer: strange key", "HTTP/1.1 401"),
        ("answer: job", "HTTP/1.1 201"),
        ("log", "TRACE"),
        ("events", "acme/m"),
        ("captures", r#""settings":{"api_key":"(hidden)"}"#),
        ("/metrics", "acme/m"),
        ("/state", "acme/m"),
        ("/config", "api_key"),
    ] {
        assert!(
            findings[place].contains(expected),
            "{place}: {}",
            findings[place]
        );
    }
    let key = std::fs::read_to_string(dir.path().join("own.key")).unwrap();
    let key = key.lines().filter(|line| !line.starts_with("-----"));
    let canaries = [ClusterCredentials::SECRET, "canary-"];
    let mut found = Vec::new();
    for canary in key.chain(canaries) {
        for (place, text) in &findings {
            let lines = text.lines().filter(|line| line.contains(canary));
            found.extend(lines.map(|line| format!("{place}: {line}")));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
