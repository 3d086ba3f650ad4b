//! The pipeline run for a receiver as a durable job's worker has it: it never closes and keeps what it gets.
//!
//! Not a connection: nothing of the client's side is a socket.

use std::sync::Arc;

use bytes::Bytes;
use infergate_core::admission::{PermitClass, PermitRequest};
use infergate_core::billing::QuotaSnapshot;
use infergate_core::routing::budget::AttemptBudget;
use infergate_core::routing::cluster::QUEUED_EVERY;
use infergate_core::routing::hops::Hops;
use infergate_core::{Millis, Refusal};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::gateway::build_shared;
use super::plan::{node_id, snapshot_plan};
use crate::config::{self, Config};
use crate::http1::Fields;
use crate::peer::{ForwardStatus, ForwardedHead};
use crate::pipeline::{
    AuthenticatedRequest, Downstream, DownstreamClosed, InferenceRequest, JobHeader,
    RequestContext, RequestError, RequestHead, RequestedOperation, ResponseHead, respond, run,
};
use crate::plugin::PluginSnapshot;
use crate::simulate::{self, Simulator};
use crate::state::{ConfigSnapshot, LARGE_BYTES, Shared};
use crate::telemetry::{Clock, InferenceEvent, Metrics, RequestOutcome};
use crate::upstream::{GateEntry, ModelRuntime, Permit};

/// Bytes that the state of a run may take, in a build without optimization. Rare steps are boxed.
const RUN_BYTES_MAX: usize = 6 * 1024;

/// Receiver of a job: appends to a buffer.
#[derive(Default)]
struct JobReceiver {
    target: &'static str,
    headers: Fields,
    head: Option<ResponseHead>,
    body: Vec<u8>,
    is_finished: bool,
    /// Notices to the node that forwards.
    reports: Vec<ForwardStatus>,
}

impl Downstream for JobReceiver {
    fn request_head(&self) -> RequestHead<'_> {
        RequestHead {
            method: "POST",
            target: self.target,
            headers: &self.headers,
        }
    }

    fn can_stream(&self) -> bool {
        true
    }

    async fn closed(&mut self) {
        std::future::pending().await
    }

    async fn start(&mut self, head: ResponseHead) -> Result<(), DownstreamClosed> {
        assert!(self.head.replace(head).is_none(), "one head");
        Ok(())
    }

    async fn write(&mut self, chunk: Bytes) -> Result<(), DownstreamClosed> {
        self.body.extend_from_slice(&chunk);
        Ok(())
    }

    async fn report(&mut self, status: ForwardStatus) -> Result<(), DownstreamClosed> {
        self.reports.push(status);
        Ok(())
    }

    async fn finish(&mut self, chunk: Bytes) -> Result<(), DownstreamClosed> {
        self.is_finished = true;
        self.write(chunk).await
    }
}

/// A gateway without listeners in front of simulated servers, which end with it.
struct Gateway {
    shared: Arc<Shared>,
    _servers: JoinSet<()>,
    _folder: Folder,
}

struct Folder(std::path::PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn serve(servers: &mut JoinSet<()>, config: simulate::Config) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let simulator = Simulator::new(config);
    servers.spawn(async move {
        let _ = simulator.serve(listener, std::future::pending()).await;
    });
    port
}

async fn gateway(name: &str) -> Gateway {
    let mut servers = JoinSet::new();
    let chat = serve(&mut servers, simulate::Config::instant()).await;
    let image = simulate::Config {
        dialect: simulate::Dialect::Http,
        task: Some(simulate::Task::TextToImage),
        ..simulate::Config::instant()
    };
    let image = serve(&mut servers, image).await;
    let folder = std::env::temp_dir().join(format!("infergate-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let text = format!(
        r#"
listen: {{ clients: [{{ address: "127.0.0.1:8080" }}] }}
anonymous: allow
state_dir: {folder}
accounts:
  - {{ id: acme, requests_per_minute: 1 }}
models:
  - id: chat
    task: text-generation
    backend: openai
    endpoints: [{{ url: "http://127.0.0.1:{chat}", max_concurrent_requests: 1 }}]
  - id: painter
    task: text-to-image
    backend: http
    endpoints: [{{ url: "http://127.0.0.1:{image}", max_concurrent_requests: 1 }}]
"#,
        folder = folder.display()
    );
    let config: Config = match config::parse(&text, &|_: &str| None) {
        Ok(loaded) => loaded.config,
        Err(problems) => panic!("{text}\n{problems:#?}"),
    };
    let (clock, metrics) = (Clock::start(), Arc::new(Metrics::new("0", "0", 0.0)));
    let kept = QuotaSnapshot::default();
    let shared = build_shared(
        &config,
        node_id(&config, clock),
        &kept,
        (Arc::clone(&metrics), clock),
    );
    let shared = shared.unwrap();
    let models = config.models.iter().cloned().map(Into::into).collect();
    let parts = snapshot_plan(&config, &config.node, 1, models, PluginSnapshot::default());
    let snapshot = ConfigSnapshot::default().next_generation(parts, clock, &metrics);
    shared.snapshot.store(Arc::new(snapshot));
    Gateway {
        shared,
        _servers: servers,
        _folder: Folder(folder),
    }
}

/// Result of one run: what the receiver has, how the pipeline ended, and the event.
struct Ran {
    receiver: JobReceiver,
    result: Result<(), RequestError>,
    event: InferenceEvent,
    /// The pipeline has made the state of a forward.
    has_forward_state: bool,
}

impl Gateway {
    async fn run(&self, target: &'static str, body: &str, deadline_ms: u64, holds: bool) -> Ran {
        let shared = &self.shared;
        let job = JobHeader {
            event_id: "job-1:1".into(),
            account: "acme".into(),
            deadline: shared.clock.now() + Millis(deadline_ms),
            age: Millis(0),
        };
        let mut ctx = RequestContext::for_job(shared, shared.drain.enter(), job);
        let (mut receiver, result) = self.run_in(&mut ctx, target, body, holds).await;
        if let Err(RequestError::Refused(refusal)) = &result {
            respond::finish_refused(&mut receiver, &mut ctx, refusal).await;
        }
        Ran {
            receiver,
            result,
            has_forward_state: ctx.forwarding.is_some(),
            event: ctx.take_event().unwrap().0,
        }
    }

    async fn run_in(
        &self,
        ctx: &mut RequestContext,
        target: &'static str,
        body: &str,
        holds: bool,
    ) -> (JobReceiver, Result<(), RequestError>) {
        let shared = &self.shared;
        let mut receiver = JobReceiver {
            target,
            ..JobReceiver::default()
        };
        let (authenticated, operation) =
            AuthenticatedRequest::read(receiver.request_head(), ctx).unwrap();
        let RequestedOperation::Call(operation, path_model) = operation else {
            panic!("a route of inference");
        };
        let snapshot = shared.snapshot.load_full();
        let bodies = &authenticated.account.bodies;
        let body_share = shared.bodies.share(bodies, snapshot.body_limits());
        let permit = holds.then(|| chat_permit(&snapshot, ctx.deadline));
        let request = InferenceRequest {
            authenticated,
            operation,
            path_model,
            model: None,
            body: Bytes::copy_from_slice(body.as_bytes()),
            body_share,
            permit,
        };
        let running = run(shared, &mut receiver, ctx, request);
        let size = size_of_val(&running);
        assert!(size <= RUN_BYTES_MAX, "{size} bytes");
        let result = Box::pin(running).await;
        (receiver, result)
    }
}

fn chat_model(snapshot: &ConfigSnapshot) -> &Arc<ModelRuntime> {
    let mut models = snapshot.models.iter();
    let found = models.find(|model| model.spec.id.as_str() == "chat");
    found.unwrap()
}

/// Asks for a permit of the chat model as a live request does.
fn ask_for_chat(snapshot: &ConfigSnapshot, deadline: Millis) -> Result<GateEntry, Refusal> {
    let request = PermitRequest {
        account: "acme".into(),
        weight: 1,
        priority: 5,
        is_warm: false,
        tokens: 1,
        deadline,
        no_wait: false,
        avoid: Vec::new(),
        endpoint_order: None,
        is_retry: false,
        is_bounded_elsewhere: false,
        has_alternative: false,
        client: None,
        class: PermitClass::Live,
    };
    chat_model(snapshot).gate.request_permit(request).1
}

fn chat_permit(snapshot: &ConfigSnapshot, deadline: Millis) -> Permit {
    match ask_for_chat(snapshot, deadline) {
        Ok(GateEntry::Leased(permit)) => permit,
        _ => panic!("a free permit"),
    }
}

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_job_gets_a_chat_with_the_permit_it_holds_and_charges_no_rate() {
    let gateway = gateway("job-chat").await;
    let body = r#"{"model":"chat","messages":[{"role":"user","content":"hello"}]}"#;
    for _ in 0..2 {
        let ran = gateway.run(CHAT, body, 10_000, true).await;
        assert!(ran.result.is_ok(), "{:?}", ran.result);
        assert_eq!(ran.receiver.head.unwrap().status, 200);
        assert!(ran.receiver.is_finished);
        let whole: serde_json::Value = serde_json::from_slice(&ran.receiver.body).unwrap();
        assert!(whole["choices"][0]["message"]["content"].is_string());
        assert_eq!(ran.event.outcome, RequestOutcome::Completed);
        assert_eq!((&*ran.event.request_id, ran.event.attempts), ("job-1:1", 1));
        assert!(ran.event.metrics.input_tokens.is_some());
    }
}

#[tokio::test]
async fn a_job_gets_a_stream_to_its_end_mark() {
    let gateway = gateway("job-stream").await;
    let body = r#"{"model":"chat","stream":true,"messages":[{"role":"user","content":"hello"}]}"#;
    let ran = gateway.run(CHAT, body, 10_000, false).await;
    assert!(ran.result.is_ok(), "{:?}", ran.result);
    assert!(ran.receiver.body.ends_with(b"data: [DONE]\n\n"));
    assert!(ran.event.flags.streamed && ran.receiver.is_finished);
}

#[tokio::test]
async fn a_request_that_is_served_in_a_cluster_where_it_arrived_makes_no_forwarding_state() {
    let gateway = gateway("job-cluster").await;
    gateway.shared.cluster.join();
    let body = r#"{"model":"chat","messages":[{"role":"user","content":"hello"}]}"#;
    let ran = gateway.run(CHAT, body, 10_000, false).await;
    assert!(ran.result.is_ok(), "{:?}", ran.result);
    assert!(!ran.has_forward_state, "served at once");

    // No other node is known: the request waits here after it has looked for one.
    let held = chat_permit(&gateway.shared.snapshot.load_full(), Millis::MAX);
    let run = gateway.run(CHAT, body, 10_000, false);
    let release = async {
        let snapshot = gateway.shared.snapshot.load_full();
        let gate = &chat_model(&snapshot).gate;
        while gate.gauges().depth == 0 {
            tokio::task::yield_now().await;
        }
        drop(held);
    };
    let (ran, ()) = tokio::join!(run, release);
    assert!(ran.result.is_ok() && ran.event.queued, "{:?}", ran.result);
    assert!(!ran.has_forward_state, "served after a wait");
}

#[tokio::test]
async fn a_job_gets_an_image_as_bytes() {
    let gateway = gateway("job-image").await;
    let ran = gateway
        .run("/ai/run/painter", r#"{"prompt":"a cat"}"#, 10_000, false)
        .await;
    assert!(ran.result.is_ok(), "{:?}", ran.result);
    let head = ran.receiver.head.unwrap();
    let kind = std::str::from_utf8(head.get("content-type").unwrap()).unwrap();
    assert!(kind.starts_with("image/"), "{kind}");
    assert!(!ran.receiver.body.is_empty());
}

#[tokio::test]
async fn a_job_without_a_model_is_refused_and_its_own_deadline_ends_a_wait() {
    let gateway = gateway("job-refused").await;
    let body = r#"{"model":"none","messages":[]}"#;
    let ran = gateway.run(CHAT, body, 10_000, false).await;
    assert!(matches!(
        ran.result,
        Err(RequestError::Refused(Refusal::NoSuchModel))
    ));
    assert_eq!(ran.receiver.head.unwrap().status, 404);
    assert_eq!(ran.event.status, 404);
    assert_eq!(ran.event.request_source, "job");

    let snapshot = gateway.shared.snapshot.load_full();
    let _held = chat_permit(&snapshot, Millis::MAX);
    let body = r#"{"model":"chat","messages":[{"role":"user","content":"hello"}]}"#;
    let ran = gateway.run(CHAT, body, 50, false).await;
    assert!(matches!(
        ran.result,
        Err(RequestError::Refused(Refusal::DeadlinePassed))
    ));
    assert_eq!(ran.event.outcome, RequestOutcome::CutByDeadline);
}

#[tokio::test]
async fn a_job_waits_outside_the_bounds_of_a_full_queue_and_gets_its_turn() {
    let gateway = gateway("job-full-queue").await;
    let snapshot = gateway.shared.snapshot.load_full();
    let held = chat_permit(&snapshot, Millis::MAX);
    let mut live = Vec::new();
    let refusal = loop {
        match ask_for_chat(&snapshot, Millis::MAX) {
            Ok(GateEntry::Queued(waiter)) => live.push(waiter),
            Ok(GateEntry::Leased(_)) => panic!("the only permit is out"),
            Err(refusal) => break refusal,
        }
    };
    assert!(matches!(refusal, Refusal::QueueFull { .. }), "{refusal:?}");
    let gate = &chat_model(&snapshot).gate;
    let full = live.len();
    let release = async {
        while gate.gauges().depth == full {
            tokio::task::yield_now().await;
        }
        // The job takes no place from live requests, and they take none from it.
        assert_eq!(gate.gauges().depth, full + 1);
        drop(live.pop());
        let again = ask_for_chat(&snapshot, Millis::MAX);
        assert!(matches!(again, Ok(GateEntry::Queued(_))));
        drop((again, live, held));
    };
    let body = r#"{"model":"chat","messages":[{"role":"user","content":"hello"}]}"#;
    let (ran, ()) = tokio::join!(gateway.run(CHAT, body, 10_000, false), release);
    assert!(ran.result.is_ok(), "{:?}", ran.result);
    assert_eq!(ran.event.outcome, RequestOutcome::Completed);
    assert!(ran.event.queued && ran.event.flags.queued_in_site);
}

#[tokio::test]
async fn a_large_message_is_translated_in_its_turn_and_others_need_none() {
    const MESSAGES: &str = "/v1/messages";
    let gateway = gateway("job-large").await;
    let chat = |text: &str| {
        format!(
            r#"{{"model":"chat","max_tokens":4,"messages":[{{"role":"user","content":"{text}"}}]}}"#
        )
    };
    let large = chat(&"word ".repeat(LARGE_BYTES / 4));
    let slots = &gateway.shared.body_checks.slots;
    let all = slots.available_permits() as u32;
    let taken = slots.acquire_many(all).await.unwrap();
    let waits = gateway.run(MESSAGES, &large, 50, false).await;
    assert!(matches!(
        waits.result,
        Err(RequestError::Refused(Refusal::DeadlinePassed))
    ));
    assert_eq!(waits.event.attempts, 0);
    for (target, body) in [(MESSAGES, &chat("hello")), (CHAT, &large)] {
        let ran = gateway.run(target, body, 10_000, false).await;
        assert!(ran.result.is_ok(), "{:?}", ran.result);
    }
    drop(taken);
    let ran = gateway.run(MESSAGES, &large, 10_000, false).await;
    assert!(ran.result.is_ok(), "{:?}", ran.result);
    let message: serde_json::Value = serde_json::from_slice(&ran.receiver.body).unwrap();
    assert_eq!(message["type"], "message");
    assert_eq!(slots.available_permits() as u32, all);
}

/// A request that another node forwards.
fn forwarded_head(deadline_left: Millis) -> ForwardedHead {
    ForwardedHead {
        from: "edge".into(),
        generation: 1,
        hops: Hops {
            visited: vec!["edge".into()],
            deadline_left,
            budget: AttemptBudget::for_body(0),
            hops_left: 1,
            wait_max: deadline_left,
            in_flight: 1,
        },
        request_id: "r-1".into(),
        client: Default::default(),
        account: "acme".into(),
        is_limited: false,
        model: "chat".into(),
        requested_model: None,
        path: vec!["here/edge".into()],
        attempts: 0,
        elapsed_us: 0,
        queued_us: 0,
        forced_site: None,
        tariff: None,
    }
}

#[tokio::test]
async fn a_node_that_forwards_a_large_message_hears_that_it_waits_for_its_translation() {
    let gateway = gateway("job-forwarded").await;
    let text = "word ".repeat(LARGE_BYTES / 4);
    let large = format!(
        r#"{{"model":"chat","max_tokens":4,"messages":[{{"role":"user","content":"{text}"}}]}}"#
    );
    let slots = &gateway.shared.body_checks.slots;
    let all = slots.available_permits() as u32;
    let _taken = slots.acquire_many(all).await.unwrap();
    let shared = &gateway.shared;
    let mut ctx = RequestContext::begin(shared, shared.drain.enter());
    let head = forwarded_head(Millis(QUEUED_EVERY.0 * 3));
    ctx.accept_forward(head).unwrap();
    let (receiver, result) = gateway
        .run_in(&mut ctx, "/v1/messages", &large, false)
        .await;
    let passed = matches!(result, Err(RequestError::Refused(Refusal::DeadlinePassed)));
    assert!(passed, "{result:?}");
    let reports = receiver.reports;
    assert!(reports.len() >= 2, "{reports:?}");
    assert!(
        reports
            .iter()
            .all(|status| *status == ForwardStatus::Queued)
    );
}
