//! The admin listener as a client on the other end of a connection sees it.

use infergate_core::routing::Health;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::admin::*;
use crate::state::RuntimeFlags;
use crate::telemetry::EventCounts;
use parking_lot::Mutex;
use pingora_core::protocols::Stream;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, watch};

const KNOWN_ID: &str = "0123456789abcdef0123456789abcdef";

struct Shown {
    readiness: Mutex<Result<(), String>>,
}

#[async_trait]
impl Insight for Shown {
    fn accounts(&self) -> AccountsState {
        AccountsState {
            accounts: Vec::new(),
            left_out: 0,
        }
    }

    fn state(&self) -> State {
        let endpoint = EndpointState {
            url: "http://127.0.0.1:9001".into(),
            source: Some("config"),
            health: Health::Healthy,
            permits: PermitState {
                used: 4,
                server_used: None,
                limit: 4,
            },
            ejected_until: None,
            since: None,
            slot: None,
            last_error: None,
            setup_logs: None,
            work: None,
        };
        let queue = QueueState {
            algorithm: "fair".into(),
            depth: 2,
            capacity: 8,
            expected_wait_ms: 120,
            accounts: BTreeMap::from([("acme".into(), 2)]),
        };
        let classes = ClassesState {
            live: ClassState {
                used: 3,
                max: 4,
                waiting: 2,
            },
            durable: ClassState {
                used: 1,
                max: 2,
                waiting: 0,
            },
            last_turn: Some(TurnState {
                class: "live",
                reason: "less-service",
            }),
        };
        State {
            node: NodeState {
                id: "a1".into(),
                site: "fra".into(),
                draining: false,
                version: "0.1.0".into(),
                started_at: "2026-11-20T10:00:00.000Z".into(),
            },
            config: ConfigState {
                generation: 3,
                loaded_at: "2026-11-20T10:00:00.000Z".into(),
                last_reload_error: None,
                compiling: Vec::new(),
            },
            models: vec![ModelState {
                id: "m".into(),
                queue,
                classes,
                endpoints: vec![endpoint],
            }],
            plugins: Vec::new(),
            nodes: Vec::new(),
            events: EventCounts {
                dropped: 5,
                ..EventCounts::default()
            },
            jobs: None,
        }
    }

    fn config(&self) -> Value {
        json!({ "generation": 3, "config": {} })
    }

    fn readiness(&self) -> Result<(), String> {
        self.readiness.lock().clone()
    }

    fn metrics_text(&self) -> String {
        "# TYPE up gauge\nup 1\n".into()
    }

    async fn trace(&self, request_id: &str) -> Option<Value> {
        (request_id == KNOWN_ID).then(|| json!({ "request_id": request_id }))
    }

    fn recent_traces(&self, count: usize) -> Vec<Value> {
        assert_eq!(count, TRACES_LISTED_MAX);
        vec![json!({ "request_id": KNOWN_ID })]
    }

    fn forget(&self, node: &str) -> bool {
        node == "a2"
    }

    async fn capture(&self, plugin: &str, calls: u32) -> Result<CaptureReport, CaptureError> {
        match plugin {
            "p" => Ok(CaptureReport {
                plugin: plugin.into(),
                file: "/state/captures/p.jsonl".into(),
                calls,
                ends_within_secs: 3600,
            }),
            "busy" => Err(CaptureError::Busy("already".into())),
            _ => Err(CaptureError::NotFound("no such plugin".into())),
        }
    }
}

/// Keeps flags in memory, and none while the disk is full.
#[derive(Default)]
struct Flags {
    flags: Mutex<RuntimeFlags>,
    is_full: AtomicBool,
}

#[async_trait]
impl Controls for Flags {
    fn flags(&self) -> RuntimeFlags {
        *self.flags.lock()
    }

    async fn set_flags(self: Arc<Self>, wanted: FlagChanges) -> Result<RuntimeFlags, String> {
        if self.is_full.load(Ordering::Relaxed) {
            return Err("no space".into());
        }
        let mut flags = self.flags.lock();
        *flags = wanted.apply_to(*flags);
        Ok(*flags)
    }
}

struct AdminFixture {
    admin: Arc<Admin>,
    flags: Arc<Flags>,
    shown: Arc<Shown>,
    reloads: mpsc::Receiver<ReloadRequest>,
}

fn fixture() -> AdminFixture {
    let shown = Arc::new(Shown {
        readiness: Mutex::new(Ok(())),
    });
    let (handle, reloads) = reload_channel();
    let flags = Arc::new(Flags::default());
    let admin = Arc::new(Admin::new(shown.clone(), flags.clone(), handle));
    AdminFixture {
        admin,
        flags,
        shown,
        reloads,
    }
}

struct AdminTestResponse {
    status: u16,
    head: String,
    body: String,
}

impl AdminTestResponse {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// Sends `request` on a connection of its own and reads one answer.
async fn exchange(admin: &Arc<Admin>, request: &str) -> AdminTestResponse {
    let (mut client, server) = tokio::io::duplex(1 << 20);
    let (_stop, shutdown) = watch::channel(false);
    let session = ServerSession::new_http1(Box::new(server) as Stream);
    client.write_all(request.as_bytes()).await.unwrap();
    admin.process_new_http(session, &shutdown).await;
    let mut text = String::new();
    client.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    AdminTestResponse {
        status,
        head: head.to_ascii_lowercase(),
        body: body.into(),
    }
}

async fn ask(admin: &Arc<Admin>, method: &str, path: &str) -> AdminTestResponse {
    exchange(
        admin,
        &format!("{method} {path} HTTP/1.1\r\nHost: a\r\n\r\n"),
    )
    .await
}

#[tokio::test]
async fn a_web_page_cannot_reload() {
    let f = fixture();
    let request = "POST /reload HTTP/1.1\r\nHost: a\r\nOrigin: https://evil.example\r\n\r\n";
    let reply = exchange(&f.admin, request).await;
    assert_eq!(reply.status, 403);
    assert!(reply.body.contains("web page"), "{}", reply.body);
}

#[tokio::test]
async fn state_has_the_fields_operators_rely_on() {
    let f = fixture();
    let reply = ask(&f.admin, "GET", "/state").await;
    assert_eq!(reply.status, 200);
    assert!(
        reply.head.contains("content-type: application/json"),
        "{}",
        reply.head
    );
    let state = reply.json();
    assert_eq!(state["node"]["id"], "a1");
    assert_eq!(state["config"]["generation"], 3);
    assert_eq!(state["config"]["last_reload_error"], Value::Null);
    let model = &state["models"][0];
    assert_eq!(model["queue"]["accounts"]["acme"], 2);
    let live = serde_json::json!({ "used": 3, "max": 4, "waiting": 2 });
    assert_eq!(model["classes"]["live"], live);
    assert_eq!(model["classes"]["last_turn"]["reason"], "less-service");
    assert_eq!(model["endpoints"][0]["health"], "healthy");
    assert_eq!(
        model["endpoints"][0]["permits"],
        json!({ "used": 4, "limit": 4 })
    );
    assert_eq!(model["endpoints"][0]["ejected_until"], Value::Null);
    assert_eq!(state["plugins"], json!([]));
    assert_eq!(state["events"]["dropped"], 5);
}

#[tokio::test]
async fn readiness_fails_with_the_reason_while_health_stays() {
    let f = fixture();
    assert_eq!(ask(&f.admin, "GET", "/readyz").await.status, 200);
    *f.shown.readiness.lock() = Err("draining".into());
    let reply = ask(&f.admin, "GET", "/readyz").await;
    assert_eq!(
        (reply.status, reply.body.as_str()),
        (503, "not ready: draining\n")
    );
    assert_eq!(ask(&f.admin, "GET", "/healthz").await.status, 200);
}

#[tokio::test]
async fn metrics_are_served_in_the_exposition_format() {
    let f = fixture();
    let reply = ask(&f.admin, "GET", "/metrics?x=1").await;
    assert_eq!(
        (reply.status, reply.body.as_str()),
        (200, "# TYPE up gauge\nup 1\n")
    );
    assert!(reply.head.contains("version=0.0.4"), "{}", reply.head);
}

#[tokio::test]
async fn a_reload_answers_with_what_changed_or_what_is_wrong() {
    let AdminFixture {
        admin, mut reloads, ..
    } = fixture();
    let report = ReloadReport {
        generation: 4,
        changed: vec!["models[0].queue.capacity".into()],
        needs_restart: vec!["threads".into()],
        compiling: vec!["prices".into()],
    };
    let problem = ReloadProblem {
        path: "models".into(),
        line: Some(7),
        message: "no such key".into(),
    };
    let answers = [Ok(report), Err(vec![problem])];
    let serve = async {
        for answer in answers {
            reloads.recv().await.unwrap().answer.send(answer).unwrap();
        }
    };
    let act = async {
        let good = ask(&admin, "POST", "/reload").await;
        assert_eq!(good.status, 200);
        assert_eq!(
            good.json(),
            json!({ "generation": 4, "changed": ["models[0].queue.capacity"],
                    "needs_restart": ["threads"], "compiling": ["prices"] })
        );
        let bad = ask(&admin, "POST", "/reload").await;
        assert_eq!(bad.status, 422);
        let problem = json!({ "path": "models", "line": 7, "message": "no such key" });
        assert_eq!(bad.json(), json!({ "problems": [problem] }));
    };
    tokio::join!(serve, act);
}

#[tokio::test(start_paused = true)]
async fn a_reload_that_nobody_answers_is_a_503_and_not_a_hang() {
    let AdminFixture { admin, reloads, .. } = fixture();
    let late = ask(&admin, "POST", "/reload").await;
    assert_eq!(late.status, 503);
    drop(reloads);
    assert_eq!(ask(&admin, "POST", "/reload").await.status, 503);
}

#[tokio::test]
async fn calls_of_a_plugin_are_captured_on_request() {
    let f = fixture();
    let capture = ask(&f.admin, "POST", "/plugins/p/capture?calls=20").await;
    assert_eq!(
        (capture.status, &capture.json()["calls"]),
        (200, &json!(20))
    );
    assert_eq!(capture.json()["file"], "/state/captures/p.jsonl");
    for (path, status) in [
        ("/plugins/q/capture?calls=1", 404),
        ("/plugins/busy/capture?calls=1", 409),
        ("/plugins/p/capture", 400),
        ("/plugins/p/capture?calls=many", 400),
        ("/plugins/p/other?calls=1", 404),
        ("/plugins//capture?calls=1", 404),
    ] {
        let reply = ask(&f.admin, "POST", path).await;
        assert_eq!(reply.status, status, "{path}");
        assert!(reply.json()["error"].is_string(), "{path}");
    }
    assert_eq!(ask(&f.admin, "GET", "/plugins/p/capture").await.status, 405);
}

#[tokio::test]
async fn a_node_is_forgotten_on_request() {
    let f = fixture();
    let forgotten = ask(&f.admin, "POST", "/nodes/a2/forget").await;
    assert_eq!(
        (forgotten.status, &forgotten.json()["forgotten"]),
        (200, &json!("a2"))
    );
    for (path, status) in [
        ("/nodes/a3/forget", 404),
        ("/nodes//forget", 404),
        ("/nodes/a/b/forget", 404),
        ("/nodes/a2", 404),
    ] {
        assert_eq!(ask(&f.admin, "POST", path).await.status, status, "{path}");
    }
    assert_eq!(ask(&f.admin, "GET", "/nodes/a2/forget").await.status, 405);
}

#[tokio::test]
async fn unknown_paths_and_wrong_methods_are_told_as_json() {
    let f = fixture();
    let reply = ask(&f.admin, "GET", "/nothing").await;
    assert_eq!(reply.status, 404);
    assert!(reply.json()["error"].is_string());
    let reply = ask(&f.admin, "GET", "/reload").await;
    assert_eq!(reply.status, 405);
    assert!(reply.head.contains("allow: post"), "{}", reply.head);
    assert!(ask(&f.admin, "GET", "/").await.body.contains("/readyz"));
}

async fn put_flags(admin: &Arc<Admin>, body: &str) -> AdminTestResponse {
    let length = body.len();
    let head = format!("PUT /config/runtime HTTP/1.1\r\nHost: a\r\nContent-Length: {length}");
    exchange(admin, &format!("{head}\r\n\r\n{body}")).await
}

#[tokio::test]
async fn runtime_flags_are_shown_and_set() {
    let f = fixture();
    let allowed = json!({ "allow_cloud_fallback": true });
    let barred = json!({ "allow_cloud_fallback": false });
    let shown = async || ask(&f.admin, "GET", "/config/runtime").await.json();
    assert_eq!(shown().await, allowed);
    let set = put_flags(&f.admin, &barred.to_string()).await;
    assert_eq!((set.status, set.json()), (200, barred.clone()));
    assert_eq!(put_flags(&f.admin, "{}").await.json(), barred);
    assert_eq!(shown().await, barred);
    f.flags.is_full.store(true, Ordering::Relaxed);
    let unkept = put_flags(&f.admin, &allowed.to_string()).await;
    assert_eq!(
        (unkept.status, unkept.json()["error"].as_str()),
        (500, Some("no space"))
    );
    assert_eq!(shown().await, barred);
    let wrong = ask(&f.admin, "POST", "/config/runtime").await;
    assert_eq!(wrong.status, 405);
    assert!(wrong.head.contains("allow: get, put"), "{}", wrong.head);
}

#[tokio::test]
async fn a_body_that_does_not_fit_changes_no_flag() {
    let f = fixture();
    let large = format!("{}{{}}", " ".repeat(BODY_BYTES_MAX));
    for body in [
        "",
        "no",
        "[]",
        r#"{"allow_cloud":false}"#,
        r#"{"allow_cloud_fallback":1}"#,
        &large,
    ] {
        let reply = put_flags(&f.admin, body).await;
        assert_eq!(reply.status, 400, "{body}");
        assert!(reply.json()["error"].is_string());
    }
    assert_eq!(f.flags.flags(), RuntimeFlags::default());
}

#[tokio::test]
async fn a_trace_is_found_by_its_exact_id_and_other_ids_get_a_hint() {
    let f = fixture();
    let reply = ask(&f.admin, "GET", &format!("/explain/{KNOWN_ID}")).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.json(), json!({ "request_id": KNOWN_ID }));
    let listed = ask(&f.admin, "GET", "/explain").await;
    assert_eq!(
        listed.json(),
        json!({ "newest": [{ "request_id": KNOWN_ID }] })
    );
    let unknown = ask(&f.admin, "GET", "/explain/00000000000000000000000000000000").await;
    assert_eq!(unknown.status, 404);
    let message = unknown.json()["error"].as_str().unwrap().to_owned();
    assert!(message.contains("event file"), "{message}");
    for odd in [
        "",
        "r1",
        "..%2fstate",
        "../state",
        "0123456789ABCDEF0123456789ABCDEF",
        "0123456789abcdef0123456789abcdef/",
        "0123456789abcdef0123456789abcdef0",
        "in3z5zhqo56ovltcdr3tsnxw6h",
        "in3z5zhqo56ovltcdr3tsnxw6h:",
        "in3z5zhqo56ovltcdr3tsnxw6h:+1",
        "in3z5zhqo56ovltcdr3tsnxw60:1",
        "%30123456789abcdef0123456789abcdef",
        "explain/0123456789abcdef0123456789abcdef",
    ] {
        let reply = ask(&f.admin, "GET", &format!("/explain/{odd}")).await;
        assert_eq!(reply.status, 404, "{odd}");
        assert!(
            reply.json()["error"].as_str().unwrap().contains("32 hex"),
            "{odd}"
        );
    }
    let run = ask(&f.admin, "GET", "/explain/in3z5zhqo56ovltcdr3tsnxw6h:1").await;
    assert!(
        run.json()["error"]
            .as_str()
            .unwrap()
            .starts_with("no trace")
    );
}

#[tokio::test]
async fn a_body_is_read_and_forgotten() {
    let f = fixture();
    let request = "GET /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
    assert_eq!(exchange(&f.admin, request).await.status, 200);
}

#[tokio::test]
async fn a_head_that_is_not_http_gets_400() {
    let f = fixture();
    assert_eq!(exchange(&f.admin, "what is this\r\n\r\n").await.status, 400);
}

#[tokio::test]
async fn a_connection_serves_one_request_after_another() {
    let f = fixture();
    let (mut client, server) = tokio::io::duplex(1 << 20);
    let (_stop, shutdown) = watch::channel(false);
    let mut stream = Box::new(server) as Stream;
    for _ in 0..3 {
        client
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
            .await
            .unwrap();
        let session = ServerSession::new_http1(stream);
        let reused = f.admin.process_new_http(session, &shutdown).await.unwrap();
        stream = reused.consume().0;
    }
    drop(stream);
    let mut text = String::new();
    client.read_to_string(&mut text).await.unwrap();
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 3);
}
