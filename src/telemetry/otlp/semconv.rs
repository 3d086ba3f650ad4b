//! Names of the semantic conventions: attributes and metrics of generative AI, HTTP and servers.
//!
//! No logic. Versions: GenAI conventions as of 1.37 (development),
//! <https://opentelemetry.io/docs/specs/semconv/gen-ai/>; the others are stable.

/// Kind of operation: `chat`, `text_completion`, `embeddings`, or the task.
pub const OPERATION: &str = "gen_ai.operation.name";
/// Format of the provider's telemetry.
pub const PROVIDER: &str = "gen_ai.provider.name";
/// Value of [`PROVIDER`]: the gateway, as its clients see it.
pub const PROVIDER_NAME: &str = "infergate";
/// Model that the client named.
pub const REQUEST_MODEL: &str = "gen_ai.request.model";
/// Model that served the request.
pub const RESPONSE_MODEL: &str = "gen_ai.response.model";
/// Input tokens.
pub const INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
/// Output tokens.
pub const OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
/// `input` or `output`.
pub const TOKEN_TYPE: &str = "gen_ai.token.type";
/// Class of a failure.
pub const ERROR_TYPE: &str = "error.type";
/// Host of a server, or the path of its socket.
pub const SERVER_ADDRESS: &str = "server.address";
/// Port of a server.
pub const SERVER_PORT: &str = "server.port";
/// HTTP status.
pub const HTTP_STATUS: &str = "http.response.status_code";

/// Histogram of request durations, seconds.
pub const DURATION: &str = "gen_ai.server.request.duration";
/// Histogram of the time to the first token, seconds.
pub const FIRST_TOKEN: &str = "gen_ai.server.time_to_first_token";
/// Histogram of the time per output token, seconds.
pub const TOKEN_INTERVAL: &str = "gen_ai.server.time_per_output_token";
/// Histogram of tokens by type.
pub const TOKENS: &str = "gen_ai.client.token.usage";
