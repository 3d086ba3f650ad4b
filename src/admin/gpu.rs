//! The GPU host on the admin listener: devices, slots and leases, and orders about models.
//!
//! Values and orders go to [`GpuControls`], which `app` implements. No path takes a command line.

use std::time::Duration;

use async_trait::async_trait;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use super::log_stream::LogFollower;
use super::response::AdminResponse;

const NOT_CONFIGURED: &str =
    "this gateway starts no model: give a model a `process`, and devices under `gpu`";
const NO_PATH: &str = "no such path here; `GET /` lists them";
/// Lines of a log that are shown without a number, and at most.
const TAIL_LINES: usize = 100;
const TAIL_LINES_MAX: usize = 10_000;
/// Seconds that an order waits for the state it is for, at most.
const WAIT_SECS_MAX: u64 = 3600;

/// Order about a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuOrder {
    /// Load it, and let others make room.
    Load,
    /// Unload it once its requests have ended.
    Unload,
    /// Replace its processes one after the other.
    Restart,
    /// Load it again although it keeps failing.
    Retry,
    /// Keep it loaded.
    Pin,
    /// Take the pin back.
    Unpin,
}

impl GpuOrder {
    /// Every order, by its word in paths and commands.
    pub const ALL: [(&'static str, GpuOrder); 6] = [
        ("load", GpuOrder::Load),
        ("unload", GpuOrder::Unload),
        ("restart", GpuOrder::Restart),
        ("retry", GpuOrder::Retry),
        ("pin", GpuOrder::Pin),
        ("unpin", GpuOrder::Unpin),
    ];
}

/// Order about a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceOrder {
    /// Load nothing there; what is there stays.
    Cordon,
    /// Load there again.
    Uncordon,
    /// Load nothing there, and let each model leave once its requests have ended.
    Drain,
}

impl DeviceOrder {
    /// Every order, by its word in paths and commands.
    pub const ALL: [(&'static str, DeviceOrder); 3] = [
        ("cordon", DeviceOrder::Cordon),
        ("uncordon", DeviceOrder::Uncordon),
        ("drain", DeviceOrder::Drain),
    ];
}

/// Result of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderOutcome {
    /// The order was taken.
    Accepted,
    /// The state that it is for has been reached.
    Reached,
    /// The order was taken, and its state was not reached in time.
    NotReached,
}

/// Reason why an order or a question has no result.
#[derive(Debug, thiserror::Error)]
pub enum GpuControlError {
    /// No such model, or none with a process.
    #[error("{0}")]
    NotFound(String),
    /// The order would harm what runs; the text says what to do instead.
    #[error("{0}")]
    Conflict(String),
    /// The driver does not take orders now.
    #[error("{0}")]
    Unavailable(String),
}

impl GpuControlError {
    fn status(&self) -> u16 {
        match self {
            GpuControlError::NotFound(_) => 404,
            GpuControlError::Conflict(_) => 409,
            GpuControlError::Unavailable(_) => 503,
        }
    }
}

/// The GPU host as operators see and change it.
#[async_trait]
pub trait GpuControls: Send + Sync + 'static {
    /// Devices with their memory, slots with their states, leases.
    fn report(&self) -> Value;

    /// Demand of the last hour, by client and model.
    fn clients(&self) -> Value;

    /// Carries an order out, as far as the pool allows.
    ///
    /// With a `wait` it answers once the state that the order is for has been reached, or the time is over.
    async fn order(
        &self,
        model: &str,
        order: GpuOrder,
        wait: Duration,
    ) -> Result<OrderOutcome, GpuControlError>;

    /// Carries an order about a device out; it stands until the opposite one, also over restarts.
    async fn order_device(&self, device: &str, order: DeviceOrder) -> Result<(), GpuControlError>;

    /// Leases and claims of the host, by all holders; with an identity, that lease with those granted with it.
    async fn leases(&self, id: Option<&str>) -> Result<Value, GpuControlError>;

    /// Frees a lease, with those granted with it, whose holder is gone.
    async fn release(&self, id: &str) -> Result<(), GpuControlError>;

    /// The last lines of an instance's output.
    async fn log(&self, instance: &str, lines: usize) -> Result<String, GpuControlError>;

    /// The last lines of an instance's output, and what follows them until it ends.
    async fn follow_log(
        &self,
        instance: &str,
        lines: usize,
    ) -> Result<Box<dyn LogFollower>, GpuControlError>;
}

/// Question or order of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum GpuRoute {
    Report,
    Order(String, GpuOrder),
    Device(String, DeviceOrder),
    Leases,
    Lease(String),
    Log(String),
}

impl GpuRoute {
    fn read(path: &str) -> Option<GpuRoute> {
        let rest = path.strip_prefix("/gpu")?;
        if rest.is_empty() || rest == "/" {
            return Some(GpuRoute::Report);
        }
        if let Some(rest) = rest.strip_prefix("/models/") {
            let (model, word) = rest.rsplit_once('/')?;
            let (_, order) = GpuOrder::ALL.into_iter().find(|(own, _)| *own == word)?;
            return Some(GpuRoute::Order(decoded(model), order));
        }
        if let Some(rest) = rest.strip_prefix("/devices/") {
            let (device, word) = rest.rsplit_once('/')?;
            let (_, order) = DeviceOrder::ALL.into_iter().find(|(own, _)| *own == word)?;
            return Some(GpuRoute::Device(decoded(device), order));
        }
        if let Some(rest) = rest.strip_prefix("/leases") {
            return match rest.strip_prefix('/') {
                None => rest.is_empty().then_some(GpuRoute::Leases),
                Some("") => Some(GpuRoute::Leases),
                Some(id) => Some(GpuRoute::Lease(decoded(id))),
            };
        }
        let instance = rest.strip_prefix("/instances/")?.strip_suffix("/logs")?;
        Some(GpuRoute::Log(decoded(instance)))
    }

    fn methods(&self) -> &'static str {
        match self {
            GpuRoute::Report | GpuRoute::Leases | GpuRoute::Log(_) => "GET",
            GpuRoute::Lease(_) => "GET, DELETE",
            GpuRoute::Order(..) | GpuRoute::Device(..) => "POST",
        }
    }
}

/// Returns whether a path is about the GPU host.
pub(super) fn is_gpu_path(path: &str) -> bool {
    path == "/gpu" || path.starts_with("/gpu/")
}

/// Begins to follow a log where a request asks for that; none for any other request.
pub(super) async fn follow(
    gpu: Option<&dyn GpuControls>,
    method: &str,
    path: &str,
    query: &str,
) -> Option<Result<Box<dyn LogFollower>, AdminResponse>> {
    let asks = method == "GET" && is_gpu_path(path) && number(query, "follow") == Some(1);
    let (true, Some(gpu), Some(GpuRoute::Log(instance))) = (asks, gpu, GpuRoute::read(path)) else {
        return None;
    };
    let followed = gpu.follow_log(&instance, lines(query)).await;
    Some(followed.map_err(|error| AdminResponse::error(error.status(), &error.to_string())))
}

/// Answers a request about the GPU host.
pub(super) async fn respond(
    gpu: Option<&dyn GpuControls>,
    method: &str,
    path: &str,
    query: &str,
) -> AdminResponse {
    let Some(gpu) = gpu else {
        return AdminResponse::error(404, NOT_CONFIGURED);
    };
    let Some(route) = GpuRoute::read(path) else {
        return AdminResponse::error(404, NO_PATH);
    };
    let takes = route.methods();
    if !takes.split(", ").any(|taken| taken == method) {
        let message = format!("{path} takes {takes} only");
        return AdminResponse {
            allow: Some(takes),
            ..AdminResponse::error(405, &message)
        };
    }
    let answered = match route {
        GpuRoute::Report => {
            let mut report = gpu.report();
            if has_clients(query) {
                report["clients"] = gpu.clients();
            }
            Ok(report)
        }
        GpuRoute::Order(model, order) => {
            let done = gpu.order(&model, order, wait(query)).await;
            if matches!(done, Ok(OrderOutcome::NotReached)) {
                let text = format!(
                    "{model}: accepted, and not done within `wait_secs`; `GET /gpu` says why"
                );
                return AdminResponse::error(504, &text);
            }
            done.map(|outcome| match outcome {
                OrderOutcome::Reached => {
                    json!({ "model": model, "accepted": true, "reached": true })
                }
                _ => json!({ "model": model, "accepted": true }),
            })
        }
        GpuRoute::Device(device, order) => {
            let done = gpu.order_device(&device, order).await;
            done.map(|()| json!({ "device": device, "accepted": true }))
        }
        GpuRoute::Leases => gpu.leases(None).await,
        GpuRoute::Lease(id) if method == "DELETE" => {
            let released = gpu.release(&id).await;
            released.map(|()| json!({ "lease": id, "released": true }))
        }
        GpuRoute::Lease(id) => gpu.leases(Some(&id)).await,
        GpuRoute::Log(instance) => {
            let text = gpu.log(&instance, lines(query)).await;
            text.map(|text| json!({ "instance": instance, "log": text }))
        }
    };
    match answered {
        Ok(body) => AdminResponse::json(200, &body),
        Err(error) => AdminResponse::error(error.status(), &error.to_string()),
    }
}

/// Returns whether the report is to have the demand by client.
fn has_clients(query: &str) -> bool {
    let mut parts = query.split('&');
    parts.any(|part| part == "clients" || part.starts_with("clients="))
}

fn lines(query: &str) -> usize {
    let asked = number(query, "tail").and_then(|lines| usize::try_from(lines).ok());
    asked.unwrap_or(TAIL_LINES).clamp(1, TAIL_LINES_MAX)
}

fn wait(query: &str) -> Duration {
    let secs = number(query, "wait_secs").unwrap_or(0);
    Duration::from_secs(secs.min(WAIT_SECS_MAX))
}

fn number(query: &str, name: &str) -> Option<u64> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let found = pairs.find(|(own, _)| *own == name);
    found.and_then(|(_, value)| value.parse().ok())
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_question_or_one_order_and_names_of_models_have_slashes() {
        let order = |model: &str, order| Some(GpuRoute::Order(model.to_owned(), order));
        for (path, expected) in [
            ("/gpu", Some(GpuRoute::Report)),
            ("/gpu/models/acme/m/load", order("acme/m", GpuOrder::Load)),
            (
                "/gpu/models/acme%2Fm/unpin",
                order("acme/m", GpuOrder::Unpin),
            ),
            ("/gpu/models/m/run", None),
            (
                "/gpu/devices/GPU%2D1/drain",
                Some(GpuRoute::Device("GPU-1".to_owned(), DeviceOrder::Drain)),
            ),
            ("/gpu/devices/GPU-1/load", None),
            ("/gpu/models/load", None),
            (
                "/gpu/instances/m%230-00c0ffee/logs",
                Some(GpuRoute::Log("m#0-00c0ffee".to_owned())),
            ),
            ("/gpu/leases", Some(GpuRoute::Leases)),
            (
                "/gpu/leases/l-4690-0",
                Some(GpuRoute::Lease("l-4690-0".to_owned())),
            ),
            ("/gpu/leasesx", None),
            ("/gpu/other", None),
        ] {
            assert_eq!(GpuRoute::read(path), expected, "{path}");
        }
        assert_eq!((lines(""), lines("tail=7"), lines("tail=0")), (100, 7, 1));
        assert!(has_clients("clients") && has_clients("a=b&clients=1"));
        assert!(!has_clients("") && !has_clients("a=clients"));
        let secs = |query| wait(query).as_secs();
        assert_eq!(
            [secs(""), secs("wait_secs=9"), secs("wait_secs=99999")],
            [0, 9, 3600]
        );
    }
}
