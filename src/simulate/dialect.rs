//! Differences between the servers it plays: routes, and the form of a refusal. The answers
//! themselves are in `openai`, `passed`, `tgi`, `tei`, `llama_server`, `triton`, `cog` and `task`.

use http::Method;
use infergate_core::api::passed::PassedApi;
use serde_json::{Value, json};

use super::config::Dialect;
use super::tensor;

/// Something to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Chat,
    Completion,
    Embeddings,
    /// TGI's own routes. `stream` is `None` where the body decides; `list` wraps the response.
    Generate {
        stream: Option<bool>,
        list: bool,
    },
    /// TEI's own route.
    Embed,
    /// A task's payload, on any path.
    Run,
    /// An OpenAI API beside chat, completions and embeddings.
    Passed(PassedApi),
    /// Triton's tensors.
    Infer,
    /// Triton's text generation.
    GenerateText {
        stream: bool,
    },
}

/// Route of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SimulatorRoute<'a> {
    Work(Operation),
    Health,
    Models,
    Model(&'a str),
    Info,
    Props,
    Slots,
    /// Readiness of the model in Triton's path.
    ModelReady,
    /// Another page of Triton.
    TritonPage,
    /// A prediction of Cog under this name; without one it gets one.
    Prediction(&'a str),
    /// The cancel of one.
    CancelPrediction(&'a str),
}

/// The dialect's route for a request, if it has one.
pub(super) fn route<'a>(
    dialect: Dialect,
    method: &Method,
    path: &'a str,
) -> Option<SimulatorRoute<'a>> {
    use Dialect::{Http, LlamaServer, Openai, Tei, Tgi, Triton};
    if dialect == Dialect::Cog {
        return cog_route(method, path);
    }
    if dialect == Triton {
        return triton_route(method, path);
    }
    if *method == Method::GET {
        return match (dialect, path) {
            (Openai | Tgi | Tei | LlamaServer | Http, "/health") => Some(SimulatorRoute::Health),
            (LlamaServer, "/v1/health") | (Tgi | Tei, "/ping") | (Tei, "/") => {
                Some(SimulatorRoute::Health)
            }
            (Openai | Tgi | LlamaServer, "/v1/models") => Some(SimulatorRoute::Models),
            (Openai, _) => path.strip_prefix("/v1/models/").map(SimulatorRoute::Model),
            (Tgi | Tei, "/info") => Some(SimulatorRoute::Info),
            (LlamaServer, "/props") => Some(SimulatorRoute::Props),
            (LlamaServer, "/slots") => Some(SimulatorRoute::Slots),
            _ => None,
        };
    }
    if *method != Method::POST {
        return None;
    }
    if let Some(api) = passed_api(dialect, path) {
        return Some(SimulatorRoute::Work(Operation::Passed(api)));
    }
    let operation = match (dialect, path) {
        (Openai | Tgi | LlamaServer, "/v1/chat/completions") => Operation::Chat,
        (Openai | Tgi | LlamaServer, "/v1/completions") => Operation::Completion,
        (Openai | Tei | LlamaServer, "/v1/embeddings") => Operation::Embeddings,
        (Tgi, "/generate") => Operation::Generate {
            stream: Some(false),
            list: false,
        },
        (Tgi, "/generate_stream") => Operation::Generate {
            stream: Some(true),
            list: false,
        },
        (Tgi, "/") => Operation::Generate {
            stream: None,
            list: true,
        },
        (Tei, "/embed") => Operation::Embed,
        (Http, _) => Operation::Run,
        _ => return None,
    };
    Some(SimulatorRoute::Work(operation))
}

/// The API of a path beside chat, completions and embeddings.
fn passed_api(dialect: Dialect, path: &str) -> Option<PassedApi> {
    let has = |api: PassedApi| match dialect {
        Dialect::Openai | Dialect::Http => true,
        Dialect::LlamaServer => matches!(api, PassedApi::Responses | PassedApi::Rerank),
        _ => false,
    };
    if dialect == Dialect::Tei && path == "/rerank" {
        return Some(PassedApi::Rerank);
    }
    let mut all = PassedApi::ALL.iter().copied();
    all.find(|api| api.path() == path && has(*api))
}

fn triton_route(method: &Method, path: &str) -> Option<SimulatorRoute<'static>> {
    let page = tensor::named(path).map(|(_, _, page)| page);
    match (method.as_str(), path, page) {
        ("GET", "/v2/health/live" | "/v2/health/ready", _) => Some(SimulatorRoute::Health),
        ("GET", _, Some("ready")) => Some(SimulatorRoute::ModelReady),
        ("POST", _, Some("infer")) => Some(SimulatorRoute::Work(Operation::Infer)),
        ("POST", _, Some("generate")) => {
            let stream = false;
            Some(SimulatorRoute::Work(Operation::GenerateText { stream }))
        }
        ("POST", _, Some("generate_stream")) => {
            let stream = true;
            Some(SimulatorRoute::Work(Operation::GenerateText { stream }))
        }
        ("GET", "/v2", _) | ("GET", _, Some(_)) => Some(SimulatorRoute::TritonPage),
        ("POST", _, None) if path.starts_with("/v2/repository/") => {
            Some(SimulatorRoute::TritonPage)
        }
        _ => None,
    }
}

fn cog_route<'a>(method: &Method, path: &'a str) -> Option<SimulatorRoute<'a>> {
    let named = path.strip_prefix("/predictions/");
    match (method.as_str(), path, named) {
        ("GET", "/health-check", _) => Some(SimulatorRoute::Health),
        ("POST", "/predictions", _) => Some(SimulatorRoute::Prediction("")),
        ("PUT", _, Some(name)) if !name.contains('/') => Some(SimulatorRoute::Prediction(name)),
        ("POST", _, Some(name)) => {
            let name = name.strip_suffix("/cancel")?;
            Some(SimulatorRoute::CancelPrediction(name))
        }
        _ => None,
    }
}

/// The status and body for a request above the concurrency limit.
pub(super) fn overloaded(dialect: Dialect) -> (u16, Vec<u8>) {
    match dialect {
        Dialect::Openai | Dialect::Http => (
            429,
            error(dialect, 429, "the server is at its concurrency limit"),
        ),
        Dialect::Tgi | Dialect::Tei => (429, error(dialect, 429, "Model is overloaded")),
        Dialect::LlamaServer => (503, error(dialect, 503, "no slot available")),
        Dialect::Triton => (503, error(dialect, 503, "Exceeds maximum queue size")),
        Dialect::Cog => (409, at_capacity().to_string().into()),
    }
}

/// The body of the 503 while the model is loaded.
pub(super) fn loading(dialect: Dialect) -> Vec<u8> {
    match dialect {
        Dialect::Openai | Dialect::LlamaServer => error(dialect, 503, "Loading model"),
        Dialect::Tgi | Dialect::Tei => json!({ "error": "unhealthy", "error_type": "healthcheck" })
            .to_string()
            .into(),
        Dialect::Http | Dialect::Triton => error(dialect, 503, "loading"),
        Dialect::Cog => not_ready().to_string().into(),
    }
}

/// An error body in the dialect's shape.
pub(super) fn error(dialect: Dialect, status: u16, message: &str) -> Vec<u8> {
    let body = match dialect {
        Dialect::Openai => json!({ "error": {
            "message": message,
            "type": match status {
                400 => "BadRequestError",
                404 => "NotFoundError",
                429 => "RateLimitError",
                503 => "ServiceUnavailableError",
                _ => "InternalServerError",
            },
            "param": null,
            "code": status,
        } }),
        Dialect::LlamaServer => json!({ "error": {
            "code": status,
            "message": message,
            "type": match status {
                400 => "invalid_request_error",
                404 => "not_found_error",
                503 => "unavailable_error",
                _ => "server_error",
            },
        } }),
        Dialect::Tgi | Dialect::Tei => json!({
            "error": message,
            "error_type": match status {
                400 | 413 | 422 => "validation",
                404 => "not_found",
                429 => "overloaded",
                424 => "generation",
                _ => "unhealthy",
            },
        }),
        Dialect::Http | Dialect::Triton => json!({ "error": message }),
        Dialect::Cog if status == 422 => invalid_input(message),
        Dialect::Cog => json!({ "error": message, "status": "failed" }),
    };
    body.to_string().into()
}

/// Status of the dialect for a body it cannot use.
pub(super) fn invalid_status(dialect: Dialect) -> u16 {
    match dialect {
        Dialect::Openai | Dialect::LlamaServer | Dialect::Http | Dialect::Triton => 400,
        Dialect::Tgi | Dialect::Tei | Dialect::Cog => 422,
    }
}

/// Body of Cog's 503 before the model is loaded.
pub(super) fn not_ready() -> Value {
    json!({ "error": "Setup has not finished yet", "status": "failed" })
}

/// Body of Cog's 409.
pub(super) fn at_capacity() -> Value {
    json!({ "error": "At capacity - all prediction slots busy", "status": "failed" })
}

/// Body of Cog's 422.
pub(super) fn invalid_input(message: &str) -> Value {
    json!({ "detail": [{ "loc": ["body", "input"], "msg": message, "type": "value_error" }] })
}
