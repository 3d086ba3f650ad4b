//! Cost of the core on the hot path, against target T8 of the performance plan.
//!
//! Measures single calls without contention, in CPU time of the thread, which a busy machine
//! disturbs less than the clock on the wall; `benches/proxy.rs` measures requests.
//!
//! `cargo bench -p infergate-core --bench core`
//!
//! | group | bench | target |
//! |---|---|---|
//! | admission | acquire and release, uncontended | ≤ 100 ns |
//! | admission | fair enqueue and dequeue, 100,000 accounts queued, the served one asks | ≤ 200 ns |
//! | admission | choice among 64 endpoints, with its acquire and release | ≤ 150 ns |
//! | routing | the next node of 50 with 200 models, plan cached: with room, in part, none | ≤ 1 µs |
//! | routing | a report of 200 models; a request's hops written and read | none |
//! | wire | a chat body of 2 KB, and of 256 KB, read into a call | ≤ 0.3 µs per KB |
//! | wire | a message of the Anthropic API of 2 KB, and 256 KB of text, tool input or image, translated and read | ≤ 2 µs per KB, of tool input ≤ 10 |
//! | wire | 64 events of 190 B split from one chunk, and from cuts of 100 B | none |

use std::hint::black_box;
use std::time::Duration;

use bytes::Bytes;
use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{Criterion, criterion_group, criterion_main};
use infergate_core::admission::{
    AdmissionOutcome, AdmissionQueue, Grant, PermitClass, PermitRequest, WaiterUpdates,
};
use infergate_core::api::dialect::RequestBody;
use infergate_core::api::sse::EventSplitter;
use infergate_core::api::{ApiDialect, Operation, body};
use infergate_core::model::{Algorithm, EndpointSpec, ModelSpec, QueueSpec, Task};
use infergate_core::routing::cluster::{
    ForwardOutcome, ModelLoad, Need, NodeId, NodeQuery, NodeReport,
};
use infergate_core::routing::{ClusterRule, ClusterView, Hops};
use infergate_core::{AccountId, Millis, ModelId};
use rustix::time::{ClockId, clock_gettime};

const ACCOUNTS: usize = 100_000;

criterion_group! {
    name = groups;
    config = Criterion::default()
        .with_measurement(ThreadTime)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3));
    targets = admission, routing, wire
}
criterion_main!(groups);

// === Admission ===

fn admission(criterion: &mut Criterion<ThreadTime>) {
    let mut group = criterion.benchmark_group("admission");

    group.bench_function("acquire and release, uncontended", |bencher| {
        let mut turnstile = AdmissionQueue::new(&spec(Algorithm::Fair, 1, 8), Millis(0));
        let account = AccountId::from("acme");
        let mut wakes = WaiterUpdates::default();
        bencher.iter(|| {
            let grant = leased(turnstile.request_permit(ask(&account), Millis(0), 7));
            turnstile.release(black_box(grant.permit), Millis(1), 7, &mut wakes);
        });
    });

    group.bench_function(
        "choice among 64 endpoints, with its acquire and release",
        |bencher| {
            let mut turnstile = AdmissionQueue::new(&spec(Algorithm::Fair, 64, 1024), Millis(0));
            let account = AccountId::from("acme");
            let mut rng = fastrand::Rng::with_seed(64);
            // Half used and unevenly, as it is when requests differ in length.
            for _ in 0..64 * 512 {
                leased(turnstile.request_permit(ask(&account), Millis(0), rng.u64(..)));
            }
            let mut wakes = WaiterUpdates::default();
            bencher.iter(|| {
                let grant = leased(turnstile.request_permit(ask(&account), Millis(0), rng.u64(..)));
                turnstile.release(black_box(grant.permit), Millis(1), 7, &mut wakes);
            });
        },
    );

    for (name, algorithm) in [
        ("fair", Algorithm::Fair),
        ("token-fair", Algorithm::TokenFair),
    ] {
        for who in [NextAccount::Served, NextAccount::Anybody] {
            let title = format!("{name} enqueue and dequeue, 100,000 accounts, {who:?} asks");
            group.bench_function(title, |bencher| {
                let mut queued = Queued::new(algorithm);
                bencher.iter(|| queued.turn(who));
            });
        }
    }
    group.finish();
}

// === Routing ===

const NODES: usize = 50;
const MODELS: usize = 200;

/// Room at the other nodes.
#[derive(Clone, Copy, Debug)]
enum ClusterRoom {
    Everywhere,
    /// At one node in five; those that are full have waiters.
    AtFew,
    Nowhere,
}

fn routing(criterion: &mut Criterion<ThreadTime>) {
    let mut group = criterion.benchmark_group("routing");
    let models: Vec<String> = (0..MODELS)
        .map(|model| format!("@cf/meta/model-{model}"))
        .collect();
    let visited = ["node-here".into(), "node-7".into()];
    for room in [
        ClusterRoom::Everywhere,
        ClusterRoom::AtFew,
        ClusterRoom::Nowhere,
    ] {
        let title = format!("next of {NODES} nodes x {MODELS} models, room {room:?}");
        group.bench_function(title, |bencher| {
            let mut fleet = fleet(room);
            let mut rng = fastrand::Rng::with_seed(50);
            let now = Millis(2_000);
            bencher.iter(|| {
                let seek = NodeQuery {
                    model: &models[rng.usize(..MODELS)],
                    visited: &visited,
                    forced_site: None,
                    site_order: None,
                    need: Need::Permit,
                };
                black_box(fleet.next_target(&seek, rng.u64(..), now))
            });
        });
    }
    group.bench_function("next, sent and ended", |bencher| {
        let mut fleet = fleet(ClusterRoom::Everywhere);
        let mut rng = fastrand::Rng::with_seed(50);
        let now = Millis(2_000);
        bencher.iter(|| {
            let seek = NodeQuery {
                model: &models[rng.usize(..MODELS)],
                visited: &visited,
                forced_site: None,
                site_order: None,
                need: Need::Permit,
            };
            let chosen = fleet
                .next_target(&seek, rng.u64(..), now)
                .expect("there is room");
            let ticket = fleet.record_forward(&chosen, now);
            fleet.finish_forward(ticket, ForwardOutcome::Answered { ttft_us: 500 }, now);
        });
    });
    group.bench_function(format!("a report of {MODELS} models"), |bencher| {
        let mut fleet = fleet(ClusterRoom::Everywhere);
        let mut report = report(3, ClusterRoom::Everywhere);
        bencher.iter(|| {
            report.version += 1;
            black_box(fleet.apply_report(&report, Millis(2_000)))
        });
    });
    group.bench_function("hops written and read", |bencher| {
        let mut hops = Hops::new(&"node-here".into(), Millis(30_000), 2_000);
        let sent = hops.forward(&"node-1".into(), Millis(29_000), Millis::ZERO, 1, true);
        bencher.iter(|| Hops::parse(&black_box(&sent).to_string()));
    });
    group.finish();
}

/// Node `node-here` among the others, which stand at five sites.
fn fleet(room: ClusterRoom) -> ClusterView {
    let here = NodeId {
        name: "node-here".into(),
        generation: 1,
    };
    let mut fleet = ClusterView::new(here, "site-0".into(), ClusterRule::default());
    for node in 1..NODES {
        fleet.apply_report(&report(node, room), Millis(2_000));
        fleet.record_rtt(&format!("node-{node}"), 1_000 + 30_000 * (node as u32 % 5));
    }
    fleet
}

fn report(node: usize, room: ClusterRoom) -> NodeReport {
    let has_room = match room {
        ClusterRoom::Everywhere => true,
        ClusterRoom::AtFew => node.is_multiple_of(5),
        ClusterRoom::Nowhere => false,
    };
    let load = ModelLoad {
        permits: 8,
        free: if has_room { 6 } else { 0 },
        queued: if has_room { 0 } else { 3 },
        queue_room: 16,
        wait_ms: 100,
        unmet_demand: if has_room { 0 } else { 3 },
        ttft_us: 0,
    };
    let model = |model: usize| (ModelId::from(&*format!("@cf/meta/model-{model}")), load);
    NodeReport {
        node: NodeId {
            name: format!("node-{node}").into(),
            generation: 1,
        },
        site: format!("site-{}", node % 5).into(),
        address: format!("10.0.0.{node}:7070").into(),
        draining: false,
        models: (0..MODELS).map(model).collect(),
        version: 1,
        made: Millis(1),
    }
}

// === Wire ===

fn wire(criterion: &mut Criterion<ThreadTime>) {
    let mut group = criterion.benchmark_group("wire");
    for (title, content_bytes) in [("2 KB", 1_950), ("256 KB", 262_000)] {
        let body = chat(content_bytes);
        group.bench_function(format!("read a chat body of {title}"), |bencher| {
            bencher.iter(|| {
                body::parse(
                    ApiDialect::OpenAi,
                    Operation::Chat,
                    None,
                    black_box(body.clone()),
                )
            });
        });
    }
    for (title, body) in [
        ("2 KB of text", message_of_text(1_950)),
        ("256 KB of text", message_of_text(262_000)),
        ("256 KB of tool input", message_of_tool_input(262_000)),
        ("a 256 KB image", message_of_image(262_000)),
    ] {
        group.bench_function(format!("translate a message with {title}"), |bencher| {
            bencher.iter(|| {
                ApiDialect::Anthropic.rules().parse(RequestBody {
                    operation: Operation::Chat,
                    path_model: None,
                    task: None,
                    content_type: None,
                    path: "/v1/messages",
                    json_bytes: None,
                    body: black_box(body.clone()),
                    length: None,
                })
            });
        });
    }
    let event = format!("data: {}\n\n", "x".repeat(182));
    let events = event.repeat(64).into_bytes();
    for (title, cut_bytes) in [("one chunk", events.len()), ("cuts of 100 B", 100)] {
        group.bench_function(format!("split 64 events from {title}"), |bencher| {
            bencher.iter(|| {
                let mut splitter = EventSplitter::default();
                let mut bytes = 0;
                for chunk in events.chunks(cut_bytes) {
                    let split = splitter.push(chunk, &mut |event| bytes += event.len());
                    split.expect("no event is too long");
                }
                black_box(bytes)
            });
        });
    }
    group.finish();
}

/// `messages` before `model`, as the official Python client writes them; one escape in 32 bytes.
fn chat(content_bytes: usize) -> Bytes {
    let content = "thirty bytes of text and then \\n".repeat(content_bytes / 32);
    let messages = format!(r#"[{{"role":"user","content":"{content}"}}]"#);
    Bytes::from(format!(
        r#"{{"messages":{messages},"model":"llama","max_tokens":64}}"#
    ))
}

/// Body of `POST /v1/messages` with these messages.
fn message(messages: &str) -> Bytes {
    Bytes::from(format!(
        r#"{{"max_tokens":64,"messages":[{messages}],"model":"llama","system":"be kind"}}"#
    ))
}

fn message_of_text(content_bytes: usize) -> Bytes {
    let text = "thirty bytes of text and then \\n".repeat(content_bytes / 32);
    message(&format!(
        r#"{{"role":"user","content":[{{"type":"text","text":"{text}"}},{{"type":"text","text":"?"}}]}}"#
    ))
}

/// The input becomes JSON within a string: each quote and each backslash is escaped once more.
fn message_of_tool_input(content_bytes: usize) -> Bytes {
    let input = r#"{"path":"src/main.rs","line":"a\n"},"#.repeat(content_bytes / 36);
    message(&format!(
        r#"{{"role":"assistant","content":[{{"type":"tool_use","id":"t","name":"edit","input":{{"edits":[{input}0]}}}}]}}"#
    ))
}

fn message_of_image(content_bytes: usize) -> Bytes {
    let data = "iVBORw0KGgoAAAANSUhEUgAA".repeat(content_bytes / 24);
    message(&format!(
        r#"{{"role":"user","content":[{{"type":"image","source":{{"type":"base64","media_type":"image/png","data":"{data}"}}}}]}}"#
    ))
}

/// Account of the next request while all wait.
#[derive(Clone, Copy, Debug)]
enum NextAccount {
    /// The one just served, as a client with one request open at a time does.
    Served,
    /// Anybody, so that nothing of the account is in any cache: the worst case.
    Anybody,
}

/// A model whose only permit goes from hand to hand while all accounts wait.
struct Queued {
    turnstile: AdmissionQueue,
    accounts: Vec<AccountId>,
    rng: fastrand::Rng,
    /// Accounts take turns in the order of their numbers.
    served: usize,
    held: Grant,
    wakes: WaiterUpdates,
}

impl Queued {
    fn new(algorithm: Algorithm) -> Queued {
        let mut turnstile = AdmissionQueue::new(&spec(algorithm, 1, 1), Millis(0));
        let accounts: Vec<AccountId> = (0..ACCOUNTS)
            .map(|number| AccountId::from(&*format!("account-{number}")))
            .collect();
        let held = leased(turnstile.request_permit(ask(&accounts[0]), Millis(0), 0));
        for account in &accounts {
            turnstile.request_permit(ask(account), Millis(0), 0);
        }
        let rng = fastrand::Rng::with_seed(100_000);
        Queued {
            turnstile,
            accounts,
            rng,
            served: 0,
            held,
            wakes: WaiterUpdates::default(),
        }
    }

    /// The next one in turn is served, and one request joins.
    fn turn(&mut self, who: NextAccount) {
        self.turnstile
            .release(self.held.permit, Millis(0), 0, &mut self.wakes);
        self.held = self.wakes.grants.pop().expect("a hundred thousand wait");
        let account = match who {
            NextAccount::Served => self.served % ACCOUNTS,
            NextAccount::Anybody => self.rng.usize(..ACCOUNTS),
        };
        self.served += 1;
        let account = &self.accounts[account];
        black_box(self.turnstile.request_permit(ask(account), Millis(0), 0));
    }
}

// === How it is measured ===

/// CPU time of the measuring thread.
struct ThreadTime;

impl ThreadTime {
    fn now() -> Duration {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
}

impl Measurement for ThreadTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        ThreadTime::now()
    }

    fn end(&self, start: Duration) -> Duration {
        ThreadTime::now() - start
    }

    fn add(&self, one: &Duration, other: &Duration) -> Duration {
        *one + *other
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, time: &Duration) -> f64 {
        WallTime.to_f64(time)
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

fn leased(outcome: AdmissionOutcome) -> Grant {
    match outcome {
        AdmissionOutcome::Leased(grant) => grant,
        other => panic!("a permit is free: {other:?}"),
    }
}

fn ask(account: &AccountId) -> PermitRequest {
    PermitRequest {
        account: account.clone(),
        weight: 1,
        priority: 5,
        is_warm: false,
        tokens: 100,
        deadline: Millis::MAX,
        no_wait: false,
        avoid: Vec::new(),
        endpoint_order: None,
        is_retry: false,
        is_bounded_elsewhere: false,
        has_alternative: false,
        client: None,
        class: PermitClass::Live,
    }
}

fn spec(algorithm: Algorithm, endpoints: usize, max_concurrent_requests: u32) -> ModelSpec {
    let endpoint = |number| EndpointSpec {
        url: format!("http://10.0.0.{number}:8000").into(),
        max_concurrent_requests,
        ..EndpointSpec::default()
    };
    ModelSpec {
        endpoints: (0..endpoints).map(endpoint).collect(),
        queue: QueueSpec {
            algorithm,
            capacity: 1000,
            total_capacity: 1_000_000,
            ..QueueSpec::default()
        },
        timeout_secs: 60,
        ..ModelSpec::new("model".into(), Task::TextGeneration, "openai".into())
    }
}
