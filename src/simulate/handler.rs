//! Handling of one request: route, read, fault, slot, response. Not the shapes of responses, and not
//! their timing.
//!
//! Bodies are bounded by [`MAX_BODY_BYTES`]. The future of a request is dropped by the connection
//! when the client leaves; the slot and the place in line go with it.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use tokio::time::{sleep, sleep_until};

use super::body::{
    EventScript, PacedEvents, SimulatedAnswer, SimulatorBody, TaskOutput, TruncatedBody,
};
use super::config::Dialect;
use super::connection::{ConnectionCut, FaultableConnection};
use super::control;
use super::dialect::{self, Operation, SimulatorRoute};
use super::fault::{Fault, FaultPoint};
use super::identity::SIMULATOR_HEADER;
use super::openai::{self, Flavor, ResponseMembers, StreamStyle};
use super::pace::TokenPace;
use super::request::{self, EmbeddingRequest, SimulatorRequest, TextRequest};
use super::state::SimulatorState;
use super::text::{SimulatedText, TextLength, hash};
use super::{cog, llama_server, loopback, passed, sleep as asleep, task, tei, tensor, tgi, triton};

/// Largest request body: twice what the gateway takes by default, so that its limit shows first.
const MAX_BODY_BYTES: usize = 64 * 1024 * 1024;
/// Billing headers a gateway reads.
const METRICS_MAX: usize = 16;
pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");

/// Serves a request, from its head to its response.
pub(super) async fn answer(
    shared: Arc<SimulatorState>,
    wire: Arc<FaultableConnection>,
    request: Request<Incoming>,
) -> Result<Response<SimulatorBody>, ConnectionCut> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    let dialect = shared.config.dialect;
    if path.starts_with(control::PREFIX) {
        let body = read(body).await?;
        return Ok(control_answer(&shared, &parts, body.unwrap_or_default()));
    }
    if path == loopback::PATH && parts.method == http::Method::GET {
        let reports = SimulatorBody::Reports(shared.loopback.stream());
        return Ok(finish(200, EVENT_STREAM, reports));
    }
    if let Some((status, json)) = asleep::answer(&shared, &parts.method, path).await {
        return Ok(respond(status, json.to_string()));
    }
    let Some(route) = dialect::route(dialect, &parts.method, path) else {
        return shared.open_websocket(&parts, &wire).await;
    };
    let is_health_of_sleeper = route == SimulatorRoute::Health && *shared.is_asleep.borrow();
    if dialect == Dialect::Cog {
        return cog_answer(&shared, route, (&parts, body), &wire).await;
    }
    if shared.is_loading() && !is_health_of_sleeper {
        return Ok(respond(503, dialect::loading(dialect)));
    }
    match route {
        SimulatorRoute::Work(operation) => {
            let body = match read(body).await? {
                Ok(body) => body,
                Err(TooLarge) => return Ok(refuse(dialect, 413, "request body too large")),
            };
            shared.work(operation, &parts, &body, wire).await
        }
        SimulatorRoute::Health => shared.health(&wire).await,
        SimulatorRoute::Prediction(_) | SimulatorRoute::CancelPrediction(_) => {
            Ok(refuse(dialect, 404, "Not Found"))
        }
        SimulatorRoute::Models => Ok(respond(200, shared.models().to_string())),
        SimulatorRoute::Model(name) => Ok(shared.model(name)),
        SimulatorRoute::ModelReady => match triton::unknown_model(&shared.config, path) {
            Some(problem) => Ok(refuse(dialect, 400, &problem)),
            None => shared.health(&wire).await,
        },
        SimulatorRoute::TritonPage => Ok(match triton::unknown_model(&shared.config, path) {
            Some(problem) => refuse(dialect, 400, &problem),
            None => {
                let counts = shared.stats.snapshot();
                let (status, page) = triton::page(&shared.config, counts, path);
                respond(status, page.to_string())
            }
        }),
        SimulatorRoute::Info if dialect == Dialect::Tei => {
            Ok(respond(200, tei::info(&shared.config).to_string()))
        }
        SimulatorRoute::Info => Ok(respond(200, tgi::info(&shared.config).to_string())),
        SimulatorRoute::Props => Ok(respond(
            200,
            llama_server::props(&shared.config).to_string(),
        )),
        SimulatorRoute::Slots => {
            let slots = llama_server::slots(&shared.config, shared.stats.snapshot());
            Ok(respond(200, slots.to_string()))
        }
    }
}

/// Serves a request to the simulator's own routes.
fn control_answer(shared: &SimulatorState, parts: &Parts, body: Bytes) -> Response<SimulatorBody> {
    let (stats, faults, loopback) = (&shared.stats, &shared.faults, &shared.loopback);
    let path = parts.uri.path();
    let (status, json) = control::answer(stats, faults, loopback, &parts.method, path, &body);
    respond(status, json.to_string())
}

/// Serves a request to Cog.
async fn cog_answer(
    shared: &Arc<SimulatorState>,
    route: SimulatorRoute<'_>,
    (parts, body): (&Parts, Incoming),
    wire: &FaultableConnection,
) -> Result<Response<SimulatorBody>, ConnectionCut> {
    let is_loading = shared.is_loading();
    let name = match route {
        SimulatorRoute::Prediction(_) if is_loading => {
            return Ok(respond(503, dialect::loading(Dialect::Cog)));
        }
        SimulatorRoute::Prediction(name) => name,
        SimulatorRoute::CancelPrediction(name) => {
            let (status, json) = cog::cancel(shared, name);
            return Ok(respond(status, json.to_string()));
        }
        _ => return Ok(respond(200, cog::health(shared, is_loading).to_string())),
    };
    let body = match read(body).await? {
        Ok(body) => body,
        Err(TooLarge) => return Ok(refuse(Dialect::Cog, 413, "request body too large")),
    };
    let fault = match shared.fault(parts, cog::named_fault(&body)) {
        Ok(fault) => fault,
        Err(problem) => return Ok(refuse(Dialect::Cog, 422, &problem)),
    };
    if let Some(fault) = fault
        && let Some(failed) = shared.early_fault(fault, wire)?
    {
        return Ok(failed);
    }
    let (status, json) = cog::predict(shared, name, &body, fault).await;
    Ok(respond(status, json.to_string()))
}

struct TooLarge;

/// The whole body; `Cut` when the client leaves while sending it.
async fn read(body: Incoming) -> Result<Result<Bytes, TooLarge>, ConnectionCut> {
    match Limited::new(body, MAX_BODY_BYTES).collect().await {
        Ok(collected) => Ok(Ok(collected.to_bytes())),
        Err(error) if error.is::<LengthLimitError>() => Ok(Err(TooLarge)),
        Err(_) => Err(ConnectionCut),
    }
}

impl SimulatorState {
    fn is_loading(&self) -> bool {
        let secs = self.config.loading_secs;
        !self.has_vram.load(Relaxed)
            || secs > 0 && self.started.elapsed() < Duration::from_secs(secs)
    }

    fn created_secs(&self) -> u64 {
        self.started_unix_secs + self.started.elapsed().as_secs()
    }

    fn models(&self) -> serde_json::Value {
        openai::models(self.config.answered_model(None), self.created_secs())
    }

    fn model(&self, name: &str) -> Response<SimulatorBody> {
        // The name's slashes may come percent-encoded: compare as they would be written back.
        let name = name.replace("%2F", "/").replace("%2f", "/");
        if self.config.answered_model(Some(&name)) != name {
            return self.no_such_model(&name);
        }
        respond(200, openai::model(&name, self.created_secs()).to_string())
    }

    fn no_such_model(&self, name: &str) -> Response<SimulatorBody> {
        refuse(
            self.config.dialect,
            404,
            &format!("The model `{name}` does not exist."),
        )
    }

    async fn health(
        &self,
        wire: &FaultableConnection,
    ) -> Result<Response<SimulatorBody>, ConnectionCut> {
        if let Some(fault) = self.faults.draw(FaultPoint::Health)
            && let Some(failed) = self.early_fault(fault, wire)?
        {
            return Ok(failed);
        }
        Ok(match self.config.dialect {
            Dialect::LlamaServer => respond(200, r#"{"status":"ok"}"#),
            _ => respond(200, ""),
        })
    }

    /// Response of a fault before any work is done; `None` when the request goes on.
    pub(super) fn early_fault(
        &self,
        fault: Fault,
        wire: &FaultableConnection,
    ) -> Result<Option<Response<SimulatorBody>>, ConnectionCut> {
        self.stats.faulted.fetch_add(1, Relaxed);
        match fault {
            Fault::Refuse => Err(ConnectionCut),
            Fault::ResetBeforeHeaders => Err(wire.reset()),
            Fault::Status(status) => {
                Ok(Some(refuse(self.config.dialect, status, "simulated fault")))
            }
            Fault::ResetMidStream
            | Fault::Stall
            | Fault::StallMidStream
            | Fault::Slow
            | Fault::ModelFails
            | Fault::WorkerCrash
            | Fault::SetupFailed
            | Fault::Unhealthy => Ok(None),
        }
    }

    /// A request that needs a slot.
    async fn work(
        &self,
        operation: Operation,
        parts: &Parts,
        body: &Bytes,
        wire: Arc<FaultableConnection>,
    ) -> Result<Response<SimulatorBody>, ConnectionCut> {
        let (dialect, path) = (self.config.dialect, parts.uri.path());
        let (ask, fault) = match self.parse(operation, parts, body) {
            Ok(understood) => understood,
            Err(refused) => return Ok(refused),
        };
        if let Some(fault) = fault
            && let Some(failed) = self.early_fault(fault, &wire)?
        {
            return Ok(failed);
        }
        let Ok(slot) = self.gate.acquire().await else {
            let (status, body) = dialect::overloaded(dialect);
            return Ok(respond(status, body));
        };
        let slot = self.loopback.attach(slot, parts, "InferenceSuccess");
        self.work_started.notify_one();
        if fault == Some(Fault::Stall) {
            // Ends when the client leaves, which drops this future and the slot with it.
            pending::<Infallible>().await;
        }
        self.load_weights(&ask).await;
        let ordinal = self.ordinal.fetch_add(1, Relaxed);
        let jitter_seed = self.config.seed ^ hash(&ordinal.to_le_bytes());
        let pace = TokenPace::start(&self.config, fault == Some(Fault::Slow), jitter_seed);
        let made = match self.make((operation, path), ask, ordinal) {
            Ok(SimulatedAnswer::Whole(made)) => made,
            Ok(SimulatedAnswer::Events(script)) => {
                let events = PacedEvents::new(script, pace, slot, fault, wire);
                return Ok(self.with_billing_headers(respond_events(events)));
            }
            Err(problem) => return Ok(refuse(dialect, 400, &problem)),
        };
        if let Some(due) = pace.due(made.tokens.saturating_sub(1)) {
            sleep_until(due).await;
        }
        if fault == Some(Fault::ResetMidStream) {
            slot.finish_faulted();
            return Ok(self.with_billing_headers(respond_torn(made, wire)));
        }
        slot.finish(u64::from(made.tokens));
        let answer = respond_whole(made);
        Ok(self.with_billing_headers(answer))
    }

    /// The answer to request `ordinal`, before its time; the error says what is wrong with the request.
    fn make(
        &self,
        (operation, path): (Operation, &str),
        ask: SimulatorRequest,
        ordinal: u64,
    ) -> Result<SimulatedAnswer, String> {
        let json = |body: Bytes, tokens: u32| TaskOutput {
            content_type: JSON,
            body,
            tokens,
            json_bytes: None,
        };
        let whole = match ask {
            SimulatorRequest::Text(ask) => {
                let text = self.text(&ask);
                if ask.stream {
                    let script = self.script((operation, path), ask, text, ordinal);
                    return Ok(SimulatedAnswer::Events(script));
                }
                let body = self.whole((operation, path), &ask, &text, ordinal);
                json(body, text.tokens())
            }
            SimulatorRequest::Embedding(ask) => json(self.embeddings(operation, &ask, ordinal), 0),
            SimulatorRequest::Task(ask) => ask.answer(&self.config),
            SimulatorRequest::Tensors(ask) => ask.answer(&self.config)?,
            SimulatorRequest::Passed(ask) => return Ok(ask.answer(&self.config, ordinal)),
        };
        Ok(SimulatedAnswer::Whole(whole))
    }

    /// Takes the time of loading the weights of a request, where they are not loaded.
    async fn load_weights(&self, ask: &SimulatorRequest) {
        if let Some(ms) = self.config.swap_ms
            && self.has_other_weights(ask.model())
        {
            sleep(Duration::from_millis(ms)).await;
        }
    }

    /// Returns whether the weights of a request are not those of the one before, and counts that.
    fn has_other_weights(&self, wanted: Option<&str>) -> bool {
        let Some(wanted) = wanted else { return false };
        let mut loaded = self.weights.lock();
        if loaded.as_deref() == Some(wanted) {
            return false;
        }
        let is_swap = loaded.replace(wanted.to_owned()).is_some();
        if is_swap {
            self.stats.weight_swaps.fetch_add(1, Relaxed);
        }
        is_swap
    }

    /// Adds the billing headers of a server.
    pub(super) fn with_billing_headers(
        &self,
        mut answer: Response<SimulatorBody>,
    ) -> Response<SimulatorBody> {
        if matches!(self.config.dialect, Dialect::Triton | Dialect::Cog) {
            // Its costs stand in the answer.
            return answer;
        }
        let headers = answer.headers_mut();
        let mut add = |name: String, value: String| {
            let name = HeaderName::try_from(name).expect("letters, digits and dashes");
            let value = HeaderValue::try_from(value).expect("names and numbers are visible ASCII");
            headers.insert(name, value);
        };
        if let Some(neurons) = self.config.neurons {
            add("cf-ai-neurons".into(), neurons.to_string());
        }
        for (index, metric) in self
            .config
            .cost_metrics
            .iter()
            .take(METRICS_MAX)
            .enumerate()
        {
            let number = index + 1;
            add(
                format!("cf-ai-cost-metric-name-{number}"),
                metric.name.clone(),
            );
            add(
                format!("cf-ai-cost-metric-value-{number}"),
                metric.value.to_string(),
            );
        }
        answer
    }

    /// Reads the request and its fault, or makes the refusal.
    #[allow(clippy::result_large_err)] // a response is not an error to be carried far
    fn parse(
        &self,
        operation: Operation,
        parts: &Parts,
        body: &Bytes,
    ) -> Result<(SimulatorRequest, Option<Fault>), Response<SimulatorBody>> {
        let dialect = self.config.dialect;
        if dialect == Dialect::Triton
            && let Some(problem) = triton::unknown_model(&self.config, parts.uri.path())
        {
            return Err(refuse(dialect, 404, &problem));
        }
        let invalid = |problem: String| refuse(dialect, dialect::invalid_status(dialect), &problem);
        let read = match operation {
            Operation::Run => task::read(&self.config, parts, body),
            Operation::Passed(api) => {
                let kind = parts.headers.get(CONTENT_TYPE);
                let kind = kind.and_then(|value| value.to_str().ok());
                let read = passed::read(api, kind.unwrap_or_default(), body);
                read.map(|(ask, fault)| (SimulatorRequest::Passed(ask), fault))
            }
            Operation::Infer => {
                let read = triton::read_infer(parts, body);
                read.map(|(ask, fault)| (SimulatorRequest::Tensors(ask), fault))
            }
            _ => request::read(operation, body),
        };
        let (ask, in_body) = read.map_err(invalid)?;
        if dialect == Dialect::Openai
            && let Some(asked) = ask.model()
            && self.config.answered_model(Some(asked)) != asked
        {
            return Err(self.no_such_model(asked));
        }
        let fault = self.fault(parts, in_body).map_err(invalid)?;
        Ok((ask, fault))
    }

    /// The fault of this request: its own, else the server's.
    pub(super) fn fault(
        &self,
        parts: &Parts,
        in_body: Option<String>,
    ) -> Result<Option<Fault>, String> {
        let in_header = match parts.headers.get("x-sim-fault") {
            Some(value) => Some(
                value
                    .to_str()
                    .map_err(|_| "x-sim-fault: not text")?
                    .to_owned(),
            ),
            None => None,
        };
        match in_header.or(in_body) {
            Some(text) => text.parse().map(Some),
            None => Ok(self.faults.draw(FaultPoint::Request)),
        }
    }

    fn text(&self, ask: &TextRequest) -> SimulatedText {
        let length = TextLength {
            natural: self.config.output_tokens,
            max: ask.max_tokens,
            ignore_end: ask.ignore_end,
        };
        SimulatedText::answer(self.config.seed, &ask.prompt, length)
    }

    fn prompt_tokens(&self, prompt_bytes: usize) -> u64 {
        match self.config.prompt_tokens {
            Some(tokens) => u64::from(tokens),
            None => (prompt_bytes as u64).div_ceil(4).max(1),
        }
    }

    fn head<'a>(
        &'a self,
        model: Option<&'a str>,
        prompt_bytes: usize,
        ordinal: u64,
    ) -> ResponseMembers<'a> {
        ResponseMembers {
            ordinal,
            created_secs: self.created_secs(),
            model: self.config.answered_model(model),
            prompt_tokens: self.prompt_tokens(prompt_bytes),
        }
    }

    fn whole(
        &self,
        (operation, path): (Operation, &str),
        ask: &TextRequest,
        text: &SimulatedText,
        ordinal: u64,
    ) -> Bytes {
        let head = self.head(ask.model.as_deref(), ask.prompt_bytes, ordinal);
        match operation {
            Operation::Generate { list, .. } => {
                tgi::generate(text, head.prompt_tokens, ask.details, list)
            }
            Operation::Completion => openai::completion(&head, text),
            Operation::Run => task::generated(text, head.prompt_tokens),
            Operation::GenerateText { .. } => {
                triton::generated(&triton_model(path), text, head.prompt_tokens)
            }
            _ => openai::chat(&head, text),
        }
    }

    fn script(
        &self,
        (operation, path): (Operation, &str),
        ask: TextRequest,
        text: SimulatedText,
        ordinal: u64,
    ) -> EventScript {
        let head = self.head(ask.model.as_deref(), ask.prompt_bytes, ordinal);
        let flavor = match self.config.dialect {
            Dialect::LlamaServer => Flavor::LlamaServer,
            _ => Flavor::Vllm,
        };
        let reports = self.config.stream_usage;
        let style = StreamStyle {
            flavor,
            usage: ask.include_usage.then_some(reports),
        };
        match operation {
            Operation::Generate { .. } => tgi::stream(text, head.prompt_tokens),
            Operation::Run => task::generated_stream(text, head.prompt_tokens, reports),
            Operation::GenerateText { .. } => {
                triton::generated_stream(&triton_model(path), text, head.prompt_tokens)
            }
            Operation::Completion => openai::completion_stream(&head, text, style),
            _ => openai::chat_stream(&head, text, style),
        }
    }

    fn embeddings(&self, operation: Operation, ask: &EmbeddingRequest, ordinal: u64) -> Bytes {
        let (seed, dims) = (self.config.seed, self.config.embedding_dims);
        if operation == Operation::Embed {
            return tei::embed(ask, seed, dims);
        }
        let bytes = ask.inputs.iter().map(String::len).sum();
        openai::embeddings(
            &self.head(ask.model.as_deref(), bytes, ordinal),
            ask,
            seed,
            dims,
        )
    }
}

/// The model in a path of Triton.
fn triton_model(path: &str) -> String {
    tensor::named(path).map_or_else(String::new, |(name, ..)| name)
}

pub(super) fn refuse(dialect: Dialect, status: u16, message: &str) -> Response<SimulatorBody> {
    respond(status, dialect::error(dialect, status, message))
}

pub(super) fn respond(status: u16, json: impl Into<Bytes>) -> Response<SimulatorBody> {
    finish(status, JSON, SimulatorBody::Whole(json.into()))
}

fn respond_events(events: PacedEvents) -> Response<SimulatorBody> {
    let mut response = finish(200, EVENT_STREAM, SimulatorBody::Events(Box::new(events)));
    response
        .headers_mut()
        .insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

fn respond_whole(made: TaskOutput) -> Response<SimulatorBody> {
    let mut answer = finish(200, made.content_type, SimulatorBody::Whole(made.body));
    if let Some(bytes) = made.json_bytes {
        let name = HeaderName::from_static(triton::JSON_BYTES);
        answer.headers_mut().insert(name, HeaderValue::from(bytes));
    }
    answer
}

fn respond_torn(made: TaskOutput, wire: Arc<FaultableConnection>) -> Response<SimulatorBody> {
    let torn = SimulatorBody::Torn(TruncatedBody::new(&made.body, wire));
    let mut response = finish(200, made.content_type, torn);
    response
        .headers_mut()
        .insert(CONTENT_LENGTH, HeaderValue::from(made.body.len()));
    response
}

/// Every response passes here, so that none goes out without the simulator's header.
pub(super) fn finish(
    status: u16,
    content_type: HeaderValue,
    body: SimulatorBody,
) -> Response<SimulatorBody> {
    let mut response = Response::new(body);
    *response.status_mut() =
        StatusCode::from_u16(status).expect("statuses here are constants or checked 400..=599");
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(
        HeaderName::from_static(SIMULATOR_HEADER),
        HeaderValue::from_static("true"),
    );
    response
}
