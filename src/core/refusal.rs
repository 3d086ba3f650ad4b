//! Every reason to refuse a request, in one table: code, HTTP status, blame, retry class, metric label.
//!
//! Not a renderer: `api` turns a refusal into the caller's dialect, the shell into an event.
//! Numbers follow the public Workers AI error table where it has one; those marked ours do not
//! occur there. Model: the blame and retry fields of pingora-error.

use crate::Millis;

/// Cause of the refusal: the metric label `blame`, and the first thing an operator looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The request itself: fix it before sending it again.
    Caller,
    /// No fault: permits and queues are full.
    Capacity,
    /// A model server failed.
    Upstream,
    /// The gateway itself.
    Gateway,
}

/// Advice to a client library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryClass {
    /// The same request will be refused again.
    No,
    /// Try again, after the hint when there is one.
    Later,
    /// The SDK would retry by the status alone, but must not: `x-should-retry: false`.
    Never,
}

/// Reason why a request is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No key, or one that is not known.
    Unauthenticated,
    /// The account may not use this model, or this account path.
    NotAllowed,
    /// A web page of another origin, where requests without a key are served.
    ForeignOrigin,
    /// No model of that name.
    NoSuchModel,
    /// `lora` names no finetune of the model, or one of other accounts.
    NoSuchFinetune,
    /// The finetune that `lora` names lacks files.
    FinetuneIncomplete,
    /// No such path or method on this gateway.
    NoSuchRoute,
    /// A part of the API that this gateway does not serve, in words for the caller.
    NotSupported(&'static str),
    /// Not HTTP as we accept it: framing, Host, conflicting lengths.
    BadFraming(&'static str),
    /// A WebSocket is opened at this path, and the request opens none, or one of another version.
    UpgradeRequired(&'static str),
    /// The body is not what the task takes. `pointer` is a JSON pointer, empty for the whole body.
    BadRequest {
        /// Place in the body, RFC 6901.
        pointer: String,
        /// Fault and remedy, as text for the caller.
        message: String,
    },
    /// The model's task plugin does not take the input.
    Rejected {
        /// 400 to 499.
        status: u16,
        /// Place in the body, RFC 6901.
        pointer: String,
        /// Fault and remedy, as text for the caller.
        message: String,
    },
    /// Body over `limits.request_body_mib`.
    BodyTooLarge,
    /// Head over `limits.request_headers_kib`.
    HeadersTooLarge,
    /// The head or body did not arrive in time.
    RequestTimeout,
    /// Permits and queue are full.
    QueueFull {
        /// Expected time until a permit or queue slot is free.
        retry_after: Millis,
    },
    /// The caller asked not to wait and there is no free permit.
    Busy {
        /// Expected time until a permit or queue slot is free.
        retry_after: Millis,
    },
    /// The wait would outlast the deadline, so the request does not queue.
    CannotStartInTime {
        /// Expected time until a permit or queue slot is free.
        retry_after: Millis,
    },
    /// No endpoint of the model is healthy, for longer than the model waits for one.
    NoHealthyEndpoint,
    /// Every endpoint of the model has asked for a pause (`Retry-After`).
    EndpointsPaused {
        /// Time until the shortest pause is over.
        retry_after: Millis,
    },
    /// The model, or its endpoint, left the configuration while the request waited.
    Evicted,
    /// The account's requests per minute are used up.
    RateLimited {
        /// Time until the next request passes.
        retry_after: Millis,
    },
    /// The account's requests per minute of one task are used up.
    TaskRateLimited {
        /// Sentence for the caller, which names the task.
        message: &'static str,
        /// Time until the next request of the task passes.
        retry_after: Millis,
    },
    /// The client's address has as many requests under way through trusted proxies as it may have connections.
    TooManyFromAddress,
    /// The account's neurons of the day are used up.
    QuotaUsed,
    /// The account's neurons of the day are not used up, but held by its requests under way.
    QuotaHeld {
        /// Expected time until one of those requests ends.
        retry_after: Millis,
    },
    /// The deadline passed before a response.
    DeadlinePassed,
    /// No backend responded, none may have started work, and the retry budget is spent.
    UpstreamFailed,
    /// A backend failed after it may have started work: a retry could do the work twice.
    UpstreamLost,
    /// The model itself failed, and its server is well: an exception of its code, or a run that was canceled at
    /// the server.
    ModelFailed {
        /// Text of the model, for the caller.
        message: String,
    },
    /// A backend refused the path or the credentials that the operator configured.
    UpstreamRejected,
    /// The first byte of the response did not come in `first_byte_timeout_secs`.
    UpstreamTimeout,
    /// The identity of a backend could not be verified over TLS; nothing was sent to it.
    UpstreamNotTrusted,
    /// A plugin of the model failed, and its policy is not to serve without it.
    PluginFailed,
    /// A backend's response has no form that the model's task knows.
    InvalidResponse,
    /// The budget for buffered bodies is spent.
    BodyBudgetSpent,
    /// The store of durable jobs accepts none at the moment.
    JobsUnavailable,
    /// The store of durable jobs did not answer in time: the job may have been created.
    JobOutcomeUnknown,
    /// The node is draining.
    Draining,
    /// A defect in this gateway; the log has the cause under the request id.
    Internal,
    /// The client left; nothing is sent, and the event records it.
    ClientGone,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct RefusalRow {
    /// HTTP status in OpenAI-style dialects.
    pub status: u16,
    /// HTTP status in the Workers AI dialect.
    pub workers_ai_status: u16,
    /// The Workers AI number, also `error_code` of every event.
    pub code: u32,
    /// OpenAI error `type`.
    pub kind: &'static str,
    /// OpenAI error `code`, and the metric label `reason`.
    pub reason: &'static str,
    /// Text for the caller.
    pub message: &'static str,
    /// Cause of the refusal.
    pub blame: Blame,
    /// Advice to the client library.
    pub retry: RetryClass,
}

const fn row(
    (status, workers_ai_status): (u16, u16),
    code: u32,
    (kind, reason): (&'static str, &'static str),
    message: &'static str,
    blame: Blame,
    retry: RetryClass,
) -> RefusalRow {
    RefusalRow {
        status,
        workers_ai_status,
        code,
        kind,
        reason,
        message,
        blame,
        retry,
    }
}

/// Time before another request of an address that has too many: as connections over the limit are told.
const ADDRESS_PAUSE: Millis = Millis::from_secs(1);

const CAPACITY: &str = "Capacity temporarily exceeded, please try again.";

impl Refusal {
    /// The table row of this refusal.
    #[rustfmt::skip] // a table reads as a table
    pub const fn row(&self) -> RefusalRow {
        use Blame::*;
        use Refusal::*;
        match self {
            Unauthenticated => row((401, 401), 10000, ("authentication_error", "invalid_api_key"), "no valid API key: send `Authorization: Bearer <key>`", Caller, RetryClass::No),
            NotAllowed => row((403, 403), 5018, ("permission_error", "model_not_allowed"), "this account may not use this model", Caller, RetryClass::No),
            ForeignOrigin => row((403, 403), 3057, ("permission_error", "origin_not_allowed"), "web pages of this origin may not use this gateway without a key: its operator can list them in `cors.origins`", Caller, RetryClass::No),
            NoSuchModel => row((404, 400), 5007, ("invalid_request_error", "model_not_found"), "no such model: `GET /v1/models` lists those this key may use", Caller, RetryClass::No),
            NoSuchFinetune => row((400, 400), 3039, ("invalid_request_error", "finetune_not_found"), "no such finetune of this model: `GET /client/v4/accounts/{account}/ai/finetunes` lists those this key may use", Caller, RetryClass::No),
            FinetuneIncomplete => row((400, 400), 3039, ("invalid_request_error", "finetune_incomplete"), "files of this finetune are missing: its operator has to put them in place", Gateway, RetryClass::No),
            NoSuchRoute => row((404, 404), 7003, ("invalid_request_error", "not_found"), "no such path or method here", Caller, RetryClass::No),
            NotSupported(_) => row((404, 404), 7003, ("invalid_request_error", "not_found"), "this part of the API is not served here", Caller, RetryClass::No),
            BadFraming(_) => row((400, 400), 3003, ("invalid_request_error", "bad_framing"), "the request is not well-formed HTTP/1.1", Caller, RetryClass::No),
            UpgradeRequired(_) => row((426, 426), 3003, ("invalid_request_error", "upgrade_required"), "a WebSocket is opened here", Caller, RetryClass::No),
            BadRequest { .. } => row((400, 400), 5006, ("invalid_request_error", "invalid_value"), "the request body is not valid", Caller, RetryClass::No),
            Rejected { status, .. } => row((*status, *status), 5006, ("invalid_request_error", "invalid_value"), "the request body is not valid", Caller, RetryClass::No),
            BodyTooLarge => row((413, 413), 3006, ("invalid_request_error", "request_too_large"), "the request body is too large", Caller, RetryClass::No),
            HeadersTooLarge => row((431, 431), 3006, ("invalid_request_error", "headers_too_large"), "the request headers are too large", Caller, RetryClass::No),
            RequestTimeout => row((408, 408), 3007, ("timeout_error", "request_timeout"), "the request did not arrive in time", Caller, RetryClass::Never),
            QueueFull { .. } => row((429, 429), 3040, ("rate_limit_error", "out_of_capacity"), CAPACITY, Capacity, RetryClass::Later),
            Busy { .. } => row((429, 429), 3040, ("rate_limit_error", "out_of_capacity"), CAPACITY, Capacity, RetryClass::Later),
            CannotStartInTime { .. } => row((429, 429), 3040, ("rate_limit_error", "out_of_capacity"), CAPACITY, Capacity, RetryClass::Later),
            EndpointsPaused { .. } => row((429, 429), 3040, ("rate_limit_error", "out_of_capacity"), CAPACITY, Capacity, RetryClass::Later),
            NoHealthyEndpoint => row((503, 503), 3053, ("server_error", "no_healthy_endpoint"), "no server of this model is healthy at the moment, please try again", Upstream, RetryClass::Later),
            Evicted => row((429, 429), 3040, ("rate_limit_error", "out_of_capacity"), CAPACITY, Capacity, RetryClass::Later),
            RateLimited { .. } => row((429, 429), 971, ("rate_limit_error", "rate_limit_exceeded"), "a limit of the account (requests or tokens per minute, or requests at once) is reached: try again later", Caller, RetryClass::Later),
            TaskRateLimited { message, .. } => row((429, 429), 971, ("rate_limit_error", "rate_limit_exceeded"), message, Caller, RetryClass::Later),
            TooManyFromAddress => row((429, 429), 971, ("rate_limit_error", "rate_limit_exceeded"), "too many requests at once from this address: try again later", Caller, RetryClass::Later),
            QuotaUsed => row((429, 429), 3036, ("insufficient_quota", "insufficient_quota"), "the account's neurons of the day are used up; they come back at 00:00 UTC", Caller, RetryClass::Never),
            QuotaHeld { .. } => row((429, 429), 971, ("rate_limit_error", "rate_limit_exceeded"), "the rest of the account's neurons of the day is held by its requests under way; try again when one has ended", Caller, RetryClass::Later),
            DeadlinePassed => row((408, 408), 3007, ("timeout_error", "deadline_exceeded"), "the deadline passed before the answer was complete", Capacity, RetryClass::Never),
            UpstreamFailed => row((502, 502), 3050, ("server_error", "upstream_failed"), "no model server answered", Upstream, RetryClass::Later),
            UpstreamLost => row((502, 502), 3050, ("server_error", "upstream_failed"), "the model server failed while it may have been working on the request, which is not repeated", Upstream, RetryClass::Never),
            ModelFailed { .. } => row((500, 500), 3050, ("server_error", "model_failed"), "the model failed", Upstream, RetryClass::Never),
            UpstreamRejected => row((502, 502), 3054, ("server_error", "upstream_rejected"), "the model server does not accept this gateway: its operator has to correct the endpoint's address or key", Upstream, RetryClass::Never),
            UpstreamTimeout => row((504, 504), 3055, ("timeout_error", "upstream_timeout"), "the model server did not begin to answer in time", Upstream, RetryClass::Never),
            UpstreamNotTrusted => row((502, 502), 3050, ("server_error", "upstream_not_trusted"), "the model server could not prove who it is", Upstream, RetryClass::Later),
            PluginFailed => row((502, 502), 3052, ("server_error", "plugin_failed"), "a plugin of this model failed", Gateway, RetryClass::Never),
            InvalidResponse => row((502, 502), 3050, ("server_error", "upstream_failed"), "the model server answered in a form that does not fit the task of this model", Upstream, RetryClass::Never),
            BodyBudgetSpent => row((503, 503), 3051, ("server_error", "overloaded"), "too many request bodies at once, please try again", Gateway, RetryClass::Later),
            JobsUnavailable => row((503, 503), 3056, ("server_error", "jobs_unavailable"), "jobs cannot be accepted or shown at the moment, please try again", Gateway, RetryClass::Later),
            JobOutcomeUnknown => row((503, 503), 3056, ("server_error", "jobs_unavailable"), "the outcome is unknown: repeating the request with the same `Idempotency-Key` is safe, without a key it may create a second job", Gateway, RetryClass::Later),
            Draining => row((503, 503), 3051, ("server_error", "overloaded"), "this node is shutting down, please try again", Gateway, RetryClass::Later),
            Internal => row((500, 500), 3099, ("server_error", "internal_error"), "an internal error occurred; quote the request id", Gateway, RetryClass::No),
            ClientGone => row((499, 499), 3008, ("client_error", "client_gone"), "the client closed the connection", Caller, RetryClass::No),
        }
    }

    /// Returns the name for operators: several rows give callers the same reason.
    pub const fn cause(&self) -> &'static str {
        match self {
            Refusal::Unauthenticated => "unauthenticated",
            Refusal::NotAllowed => "not-allowed",
            Refusal::ForeignOrigin => "foreign-origin",
            Refusal::NoSuchModel => "no-such-model",
            Refusal::NoSuchFinetune => "no-such-finetune",
            Refusal::FinetuneIncomplete => "finetune-incomplete",
            Refusal::NoSuchRoute => "no-such-route",
            Refusal::NotSupported(_) => "not-supported",
            Refusal::BadFraming(_) => "bad-framing",
            Refusal::UpgradeRequired(_) => "upgrade-required",
            Refusal::BadRequest { .. } => "bad-request",
            Refusal::Rejected { .. } => "rejected-by-task",
            Refusal::BodyTooLarge => "body-too-large",
            Refusal::HeadersTooLarge => "headers-too-large",
            Refusal::RequestTimeout => "too-slow",
            Refusal::QueueFull { .. } => "queue-full",
            Refusal::Busy { .. } => "busy",
            Refusal::CannotStartInTime { .. } => "cannot-start-in-time",
            Refusal::NoHealthyEndpoint => "no-healthy-endpoint",
            Refusal::EndpointsPaused { .. } => "endpoints-paused",
            Refusal::Evicted => "evicted",
            Refusal::RateLimited { .. } => "rate-limited",
            Refusal::TaskRateLimited { .. } => "task-rate-limited",
            Refusal::TooManyFromAddress => "too-many-from-address",
            Refusal::QuotaUsed => "quota-used",
            Refusal::QuotaHeld { .. } => "quota-held",
            Refusal::DeadlinePassed => "deadline-passed",
            Refusal::UpstreamFailed => "upstream-failed",
            Refusal::UpstreamLost => "upstream-lost",
            Refusal::ModelFailed { .. } => "model-failed",
            Refusal::UpstreamRejected => "upstream-rejected",
            Refusal::UpstreamTimeout => "upstream-timeout",
            Refusal::UpstreamNotTrusted => "upstream-not-trusted",
            Refusal::PluginFailed => "plugin-failed",
            Refusal::InvalidResponse => "answer-unfit",
            Refusal::BodyBudgetSpent => "body-budget-spent",
            Refusal::JobsUnavailable => "jobs-unavailable",
            Refusal::JobOutcomeUnknown => "job-outcome-unknown",
            Refusal::Draining => "draining",
            Refusal::Internal => "internal",
            Refusal::ClientGone => "client-gone",
        }
    }

    /// Returns whether capacity was missing and no server has started work. The request cost nothing,
    /// and another node or model may serve it.
    pub const fn is_out_of_capacity(&self) -> bool {
        let is_full = matches!(self.row().blame, Blame::Capacity);
        matches!(self, Refusal::NoHealthyEndpoint)
            || (is_full && matches!(self.row().retry, RetryClass::Later))
    }

    /// Returns the time to wait before the next attempt, when it was measured.
    pub const fn retry_after(&self) -> Option<Millis> {
        match self {
            Refusal::QueueFull { retry_after }
            | Refusal::Busy { retry_after }
            | Refusal::CannotStartInTime { retry_after }
            | Refusal::EndpointsPaused { retry_after }
            | Refusal::QuotaHeld { retry_after }
            | Refusal::RateLimited { retry_after }
            | Refusal::TaskRateLimited { retry_after, .. } => Some(*retry_after),
            Refusal::TooManyFromAddress => Some(ADDRESS_PAUSE),
            _ => None,
        }
    }

    /// Returns the refusal with at least this time to wait before the next attempt, where it has one for a full queue or
    /// a late start.
    #[must_use]
    pub fn not_before(mut self, wait: Millis) -> Refusal {
        if let Refusal::QueueFull { retry_after }
        | Refusal::Busy { retry_after }
        | Refusal::CannotStartInTime { retry_after } = &mut self
        {
            *retry_after = wait.max(*retry_after);
        }
        self
    }
}
