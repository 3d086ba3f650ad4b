//! Parameters of the simulated server: its dialect, speed, limits and reports. Not the faults,
//! which change while it runs.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

const DEFAULT_ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9001);
const DEFAULT_CONCURRENCY: usize = 4;
const DEFAULT_TTFT_MS: u64 = 200;
const DEFAULT_TOKENS_PER_SEC: f64 = 50.0;
const DEFAULT_OUTPUT_TOKENS: u32 = 64;
const DEFAULT_SEED: u64 = 1;
/// The width of BGE base, the embedding model of the demo.
const DEFAULT_EMBEDDING_DIMS: usize = 768;

const AFTER_HELP: &str = "\
Faults on demand, for one request by the header `x-sim-fault` or the body's field \"x_sim_fault\":
  refuse | reset-before-headers | reset-mid-stream | stall | stall-mid-stream | slow | status=503
and of the cog dialect, whose input has the field: model-fails | worker-crash | setup-failed | unhealthy
(a gateway passes the header where its headers.pass lists it) and for the whole server:
  curl -X PUT http://127.0.0.1:9001/sim/fault -d '{\"fault\":\"status=503\",\"probability\":0.1}'
  curl -X PUT http://127.0.0.1:9001/sim/fault -d '{\"fault\":\"refuse\",\"count\":20}'
  curl -X DELETE http://127.0.0.1:9001/sim/fault

Reports of ended work on GET /loopback, one at will:
  curl -X PUT http://127.0.0.1:9001/sim/report -d '{\"event\":\"GpuFree\",\"request_id\":\"ID\"}'

Counts: curl http://127.0.0.1:9001/sim/stats (DELETE begins anew)

A message with `echo:` in it is answered with the rest of it. Every answer carries the header
`x-infergate-simulator: true`.

WebSockets of the http and openai dialects echo each message; a text `tokens:PROMPT` is answered with a
message a token, `close:CODE` with a close frame, and /v1/realtime speaks events of OpenAI's API.

The http dialect answers a POST to any path with the result of one task: that of the header
`x-sim-task`, else of --task, else the one its payload fits best. `x-sim-answer: json` asks for an
image or a sound in base64 inside JSON instead of its bytes.";

/// Run a simulated GPU container: a model server without a model
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct Config {
    /// Address to listen on
    #[arg(long, value_name = "IP:PORT", default_value_t = DEFAULT_ADDRESS)]
    pub address: SocketAddr,

    /// HTTP API to speak
    #[arg(long, value_enum, default_value_t = Dialect::Openai)]
    pub dialect: Dialect,

    /// Model name to answer with; the openai dialect then answers 404 to any other name [default:
    /// whatever name the request carries]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,

    /// Requests worked on at once, like the slots of a real server
    #[arg(long, value_name = "COUNT", default_value_t = DEFAULT_CONCURRENCY,
          value_parser = concurrency)]
    pub concurrency: usize,

    /// Treatment of a request above the concurrency limit
    #[arg(long, value_enum, default_value_t = OverLimit::Queue)]
    pub over_limit: OverLimit,

    /// Time from the start of work to the first token; the whole service time of an embedding
    #[arg(long, value_name = "MS", default_value_t = DEFAULT_TTFT_MS)]
    pub ttft_ms: u64,

    /// Tokens generated per second after the first; 0 means without any pause
    #[arg(long, value_name = "RATE", default_value_t = DEFAULT_TOKENS_PER_SEC,
          value_parser = tokens_per_sec)]
    pub tokens_per_sec: f64,

    /// Prompt tokens to report [default: a quarter of the prompt's bytes, at least 1]
    #[arg(long, value_name = "COUNT")]
    pub prompt_tokens: Option<u32>,

    /// Tokens of an answer; a request's max_tokens cuts it shorter, and with "ignore_eos": true
    /// makes it exactly as long
    #[arg(long, value_name = "COUNT", default_value_t = DEFAULT_OUTPUT_TOKENS)]
    pub output_tokens: u32,

    /// Spread of the pauses: 0.2 makes each request up to 20 % faster or slower
    #[arg(long, value_name = "FRACTION", default_value_t = 0.0, value_parser = jitter)]
    pub jitter: f64,

    /// Seed of the texts, the vectors, the jitter and the fault dice
    #[arg(long, value_name = "NUMBER", default_value_t = DEFAULT_SEED)]
    pub seed: u64,

    /// Width of embedding vectors
    #[arg(long, value_name = "COUNT", default_value_t = DEFAULT_EMBEDDING_DIMS,
          value_parser = embedding_dims)]
    pub embedding_dims: usize,

    /// Seconds after the start during which every route answers 503, as while loading a model
    #[arg(long, value_name = "SECS", default_value_t = 0)]
    pub loading_secs: u64,

    /// Time to load other weights than those of the request before, named by `replicate_weights` or else `model` in the
    /// body; also counts such loads. Without it all weights are loaded
    #[arg(long, value_name = "MS")]
    pub swap_ms: Option<u64>,

    /// Time after a response for which its request keeps its slot; then its end is reported on GET /loopback, to the
    /// id in the request's `x-request-id`. Without it work ends with its response
    #[arg(long, value_name = "MS")]
    pub finish_ms: Option<u64>,

    /// Cancels of each run that the cog dialect loses, as Cog does now and then
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub lost_cancels: u32,

    /// Task of the model of the http, triton and cog dialects [default: the one that fits each payload best]
    #[arg(long, value_enum, value_name = "SLUG")]
    pub task: Option<Task>,

    /// Place of usage on streams of the openai and http dialects
    #[arg(long, value_enum, default_value_t = StreamUsage::Last)]
    pub stream_usage: StreamUsage,

    /// Send `cf-ai-neurons` with this value on every answer
    #[arg(long, value_name = "NUMBER", value_parser = quantity)]
    pub neurons: Option<f64>,

    /// Send `cf-ai-cost-metric-name-N` and `-value-N` on every answer; up to 16 of them. The triton dialect answers an
    /// output `COST_METRIC_NAME` instead, the cog dialect a metric
    #[arg(long = "cost-metric", value_name = "NAME=VALUE", value_parser = cost_metric)]
    pub cost_metrics: Vec<CostMetric>,

    /// Memory of a simulated card
    #[command(flatten)]
    pub vram: VramConfig,

    /// Manners of the process
    #[command(flatten)]
    pub process: ProcessConfig,
}

/// Manners of the simulated container as a process.
#[derive(Args, Clone, Debug, Default)]
pub struct ProcessConfig {
    /// Ignore SIGTERM and SIGINT, as a server that hangs
    #[arg(long)]
    pub ignore_term: bool,

    /// Start a worker process, as a server with several GPUs; it does not end with the server
    #[arg(long)]
    pub fork_worker: bool,

    /// Leave the process group; of a server with --fork-worker its worker does
    #[arg(long)]
    pub escape_group: bool,
}

/// VRAM of the simulated container.
#[derive(Args, Clone, Debug, Default)]
pub struct VramConfig {
    /// Simulated card to take memory of, given once for each or with commas between them: a directory with a card.json
    /// such as {"total_mib": 24576}
    #[arg(long, value_name = "DIR", requires = "vram_mib", value_delimiter = ',')]
    pub vram_card: Vec<PathBuf>,

    /// Memory of each card to take before requests are served; routes answer 503 meanwhile. When the card has not as
    /// much: exit status 1
    #[arg(
        long,
        value_name = "MIB",
        requires = "vram_card",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub vram_mib: u64,

    /// Time that taking it lasts
    #[arg(
        long,
        value_name = "SECS",
        default_value_t = 0,
        conflicts_with = "load_mib_per_sec"
    )]
    pub load_secs: u32,

    /// Speed of taking it [default: at once]
    #[arg(long, value_name = "MIB")]
    pub load_mib_per_sec: Option<u32>,

    /// Memory of each card to take when the first request is worked on, beyond --vram-mib
    #[arg(long, value_name = "MIB", default_value_t = 0)]
    pub vram_growth_mib: u64,

    /// Serve POST /sleep and /wake_up, which give the memory of the cards up and take it again, and GET /is_sleeping
    #[arg(long)]
    pub sleepable: bool,

    /// Memory of each card that a sleeping server keeps
    #[arg(long, value_name = "MIB", default_value_t = 0, requires = "sleepable")]
    pub asleep_mib: u64,

    /// Time for which memory stays taken after the server has ended
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub vram_release_ms: u64,
}

impl VramConfig {
    /// Time that taking the memory lasts.
    pub(super) fn load_time(&self) -> Duration {
        match self.load_mib_per_sec {
            Some(rate) => Duration::from_secs_f64(self.vram_mib as f64 / f64::from(rate.max(1))),
            None => Duration::from_secs(self.load_secs.into()),
        }
    }

    /// Time from the end of the server to that of its memory.
    pub(super) fn release_time(&self) -> Duration {
        Duration::from_millis(self.vram_release_ms)
    }
}

/// A metric of the billing headers.
#[derive(Clone, Debug, PartialEq)]
pub struct CostMetric {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: f64,
}

/// Place of usage on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StreamUsage {
    /// In an event of its own at the end
    Last,
    /// Also with each token, counted from the beginning
    Cumulative,
    /// With each token only, counted since the one before
    Incremental,
}

/// Task of a model: one of the 14 tasks of the Workers AI catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // the names are their documentation
pub enum Task {
    TextGeneration,
    TextClassification,
    TextEmbeddings,
    TextToImage,
    TextToSpeech,
    AutomaticSpeechRecognition,
    ImageClassification,
    ImageToText,
    ImageTextToText,
    ObjectDetection,
    Translation,
    Summarization,
    MultimodalEmbeddings,
    DumbPipe,
}

/// HTTP API that the simulator speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Dialect {
    /// vLLM, SGLang and other OpenAI-compatible servers
    Openai,
    /// Text Generation Inference: /generate, /generate_stream, /v1/chat/completions
    Tgi,
    /// Text Embeddings Inference: /embed, /v1/embeddings
    Tei,
    /// llama.cpp's server: the OpenAI routes, /props, /slots and 503 while loading
    LlamaServer,
    /// Any model behind plain HTTP: one task, its payload posted, its result answered
    Http,
    /// Triton: tensors in JSON and in binary, /generate, and pages about the model
    Triton,
    /// Cog: PUT /predictions/{id}, its cancel and /health-check
    Cog,
}

/// Treatment of a request above the concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OverLimit {
    /// Wait for a slot, first come first served
    Queue,
    /// Refuse at once, in the dialect's words for "overloaded"
    Refuse,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            address: DEFAULT_ADDRESS,
            dialect: Dialect::Openai,
            model: None,
            concurrency: DEFAULT_CONCURRENCY,
            over_limit: OverLimit::Queue,
            ttft_ms: DEFAULT_TTFT_MS,
            tokens_per_sec: DEFAULT_TOKENS_PER_SEC,
            prompt_tokens: None,
            output_tokens: DEFAULT_OUTPUT_TOKENS,
            jitter: 0.0,
            seed: DEFAULT_SEED,
            embedding_dims: DEFAULT_EMBEDDING_DIMS,
            loading_secs: 0,
            swap_ms: None,
            finish_ms: None,
            lost_cancels: 0,
            task: None,
            stream_usage: StreamUsage::Last,
            neurons: None,
            cost_metrics: Vec::new(),
            vram: VramConfig::default(),
            process: ProcessConfig::default(),
        }
    }
}

impl Config {
    /// A server that responds without any pause and takes thousands at once: the upstream of load
    /// tests, where the gateway is what is measured.
    pub fn instant() -> Config {
        Config {
            concurrency: 65_536,
            ttft_ms: 0,
            tokens_per_sec: 0.0,
            ..Config::default()
        }
    }

    /// The name to answer with: the configured one, else the request's, else a stand-in.
    pub(super) fn answered_model<'a>(&'a self, asked: Option<&'a str>) -> &'a str {
        self.model.as_deref().or(asked).unwrap_or("simulated-model")
    }
}

fn concurrency(text: &str) -> Result<usize, String> {
    // tokio's semaphore holds no more than usize::MAX / 8; a million is far beyond any server.
    match text.parse() {
        Ok(count @ 1..=1_000_000) => Ok(count),
        _ => Err("must be a whole number from 1 to 1000000".into()),
    }
}

fn tokens_per_sec(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate == 0.0 || (0.001..=1e9).contains(&rate) => Ok(rate),
        _ => Err("must be 0 or a number from 0.001 to 1e9".into()),
    }
}

fn jitter(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(fraction) if (0.0..=1.0).contains(&fraction) => Ok(fraction),
        _ => Err("must be a number from 0 to 1".into()),
    }
}

fn embedding_dims(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=65_536) => Ok(count),
        _ => Err("must be a whole number from 1 to 65536".into()),
    }
}

fn quantity(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number),
        _ => Err("must be a number of 0 or more".into()),
    }
}

fn cost_metric(text: &str) -> Result<CostMetric, String> {
    let (name, value) = text.split_once('=').ok_or("must be NAME=VALUE")?;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if name.is_empty() || !name.bytes().all(fits) {
        return Err("the name must be letters, digits, `_`, `-` and `.`".into());
    }
    Ok(CostMetric {
        name: name.to_owned(),
        value: quantity(value)?,
    })
}
