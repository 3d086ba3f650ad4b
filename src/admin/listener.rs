//! The HTTP application behind the admin listener: paths, methods and bounds.
//!
//! Values come from [`Insight`], changes go to [`Controls`] and the [`ReloadHandle`].

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use infergate_core::job::JobId;
use pingora_core::apps::{HttpPersistentSettings, HttpServerApp, ReusedHttpStream};
use pingora_core::protocols::http::ServerSession;
use pingora_core::server::ShutdownWatch;
use serde_json::{Map, Value, json};

use super::controls::Controls;
use super::gpu::{self, GpuControls};
use super::insight::Insight;
use super::jobs::{self, JobControls};
use super::reload::{ReloadFailure, ReloadHandle};
use super::response::{AdminResponse, EXPOSITION, send};
use super::{capture, cross_site, dashboard, log_stream};

/// From the last response to the end of the next head. Longer than a scrape interval, so that
/// Prometheus keeps its connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);

/// For the whole body of a request, which is read also so that the client can read the response.
const BODY_TIMEOUT: Duration = Duration::from_secs(1);

/// The most of a body that is looked at.
const BODY_BYTES_MAX: usize = 4 * 1024;

/// Idle seconds of a kept connection, as set in Pingora; a little under [`HEAD_TIMEOUT`].
const KEEPALIVE_SECS: u64 = 70;

const INDEX: &str = "\
infergate admin

GET  /healthz              200 while the process works
GET  /readyz               200 when configured, not draining and required models have servers, else 503 with the reason
GET  /metrics              Prometheus metrics
GET  /dashboard            a page with the state of all, for a browser, which gets it at / too
GET  /state                configuration, models, queues, endpoints and plugins as JSON
GET  /accounts             neurons that accounts have used today, and their waiting requests, as JSON
GET  /config               the configuration that has effect as JSON, secrets as digests, for
                           `infergate config diff`
POST /reload               read the configuration file again
GET  /config/runtime       flags that are set while it runs, as JSON
PUT  /config/runtime       set them: {\"allow_cloud_fallback\": true}
GET  /explain              the last requests as JSON
GET  /explain/{request id} what happened to one of them and why
GET  /jobs?state={s}&model={m}&account={a}&cursor={c}
                           durable jobs as JSON, newest first, 100 a page
GET  /jobs/{id}            one of them, without secrets and large bodies
POST /jobs/{id}/cancel     end it
POST /jobs/{id}/requeue    submit the request of an ended one again
GET  /jobs/queues          queues with counts, age, expected work and permits
GET  /jobs/workers         processes that run jobs
GET  /jobs/stores          the store: problem, live jobs, bytes, free disk
POST /jobs/queues/{deployable}/pause, /resume, /purge
                           take no job of a queue; take them again; cancel the queued ones
GET  /gpu                  devices with their memory, slots of models, leases
POST /gpu/models/{id}/load, /unload, /restart, /retry, /pin, /unpin?wait_secs={n}
                           load a model now; unload it; end its backoff; keep it loaded, or no more
POST /gpu/devices/{id}/cordon, /uncordon, /drain
                           load nothing on a device; load there again; let its models leave too
GET  /gpu/leases           leases and claims of the host, by all holders
GET  /gpu/leases/{id}      one of them
DELETE /gpu/leases/{id}    free one whose holder is gone
GET  /gpu/instances/{id}/logs?tail={n}&follow=1
                           the last lines that a model's process has written; with `follow=1` as server-sent
                           events, and those that follow until it ends
POST /nodes/{name}/forget   forget another node until it is heard of again, and what it told of accounts
POST /plugins/{name}/capture?calls={n}
                           write the next calls of a plugin, at most 1000, to a file in state_dir,
                           with what clients send, for `infergate plugin replay`
";

/// Requests listed by `/explain`: a screen or two.
const TRACES_LISTED_MAX: usize = 100;

/// Hex digits of a request id.
const REQUEST_ID_DIGITS: usize = 32;

const NOT_AN_ID: &str = "a request id is 32 hex digits in lower case, or the id of a job with the number of its start: the `x-request-id` of the answer, `request_id` in the event file; `GET /explain` lists the last ones";

const NO_TRACE: &str = "no trace of this request here: it may still be under way, have come without a key that is known, be overwritten by later ones, be one of many that nothing happened to, or have been served by another node; `GET /explain` lists the last ones, and the event file has a line of every request";

/// The application behind the admin listener.
pub struct Admin {
    insight: Arc<dyn Insight>,
    controls: Arc<dyn Controls>,
    reload: ReloadHandle,
    jobs: Option<Arc<dyn JobControls>>,
    gpu: Option<Arc<dyn GpuControls>>,
}

impl Admin {
    /// An admin application that shows `insight`, changes `controls` and asks `reload`.
    pub fn new(
        insight: Arc<dyn Insight>,
        controls: Arc<dyn Controls>,
        reload: ReloadHandle,
    ) -> Admin {
        Admin {
            insight,
            controls,
            reload,
            jobs: None,
            gpu: None,
        }
    }

    /// Serves the paths of durable jobs from `jobs`, where they are configured.
    pub fn with_jobs(mut self, jobs: Option<Arc<dyn JobControls>>) -> Admin {
        self.jobs = jobs;
        self
    }

    /// Serves the paths of the GPU host from `gpu`, where there is one.
    pub fn with_gpu(mut self, gpu: Option<Arc<dyn GpuControls>>) -> Admin {
        self.gpu = gpu;
        self
    }

    /// `body` is none when it did not come whole or is over its bound.
    async fn respond(
        &self,
        method: &str,
        path: &str,
        query: &str,
        body: Option<&[u8]>,
    ) -> AdminResponse {
        if jobs::is_job_path(path) {
            return jobs::respond(self.jobs.as_deref(), method, path, query).await;
        }
        if gpu::is_gpu_path(path) {
            return gpu::respond(self.gpu.as_deref(), method, path, query).await;
        }
        let captured = capture::plugin_in_path(path);
        let forgotten = node_in_path(path);
        let takes = match path {
            "/reload" => "POST",
            "/config/runtime" => "GET, PUT",
            _ if captured.is_some() || forgotten.is_some() => "POST",
            "/" | "/dashboard" | "/healthz" | "/readyz" | "/metrics" => "GET",
            "/state" | "/accounts" | "/config" | "/explain" => "GET",
            path if path.starts_with("/explain/") => "GET",
            _ => return AdminResponse::error(404, "no such path here; `GET /` lists them"),
        };
        if !takes.split(", ").any(|taken| taken == method) {
            let message = format!("{path} takes {takes} only");
            return AdminResponse {
                allow: Some(takes),
                ..AdminResponse::error(405, &message)
            };
        }
        if let Some(plugin) = captured {
            return self.capture(plugin, query).await;
        }
        if let Some(node) = forgotten {
            return match self.insight.forget(node) {
                true => AdminResponse::json(200, &json!({ "forgotten": node })),
                false => {
                    AdminResponse::error(404, "no such node; `GET /state` lists them under `nodes`")
                }
            };
        }
        match path {
            "/" => AdminResponse::text(200, INDEX),
            "/dashboard" => AdminResponse::page(dashboard::PAGE, &dashboard::POLICY),
            "/healthz" => AdminResponse::text(200, "ok\n"),
            "/readyz" => match self.insight.readiness() {
                Ok(()) => AdminResponse::text(200, "ready\n"),
                Err(reason) => AdminResponse::text(503, format!("not ready: {reason}\n")),
            },
            "/metrics" => AdminResponse {
                content_type: EXPOSITION,
                ..AdminResponse::text(200, self.insight.metrics_text())
            },
            "/state" => AdminResponse::json(200, &self.insight.state()),
            "/accounts" => AdminResponse::json(200, &self.insight.accounts()),
            "/config" => AdminResponse::json(200, &self.insight.config()),
            "/reload" => self.reload().await,
            "/config/runtime" if method == "PUT" => self.set_flags(body).await,
            "/config/runtime" => AdminResponse::json(200, &self.controls.flags()),
            "/explain" => AdminResponse::json(
                200,
                &json!({ "newest": self.insight.recent_traces(TRACES_LISTED_MAX) }),
            ),
            path => {
                let request_id = path.strip_prefix("/explain/").unwrap_or("");
                self.explain(request_id).await
            }
        }
    }

    /// The rest of the path after `/explain/` is compared and nothing else.
    async fn explain(&self, request_id: &str) -> AdminResponse {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_request = request_id.len() == REQUEST_ID_DIGITS && request_id.bytes().all(is_digit);
        if !is_request && !is_run(request_id) {
            return AdminResponse::error(404, NOT_AN_ID);
        }
        match self.insight.trace(request_id).await {
            Some(trace) => AdminResponse::json(200, &trace),
            None => AdminResponse::error(404, NO_TRACE),
        }
    }

    async fn capture(&self, plugin: &str, query: &str) -> AdminResponse {
        let Some(calls) = capture::calls_in_query(query) else {
            return AdminResponse::error(
                400,
                "how many calls? `?calls=` and a number from 1 to 1000",
            );
        };
        match self.insight.capture(plugin, calls).await {
            Ok(report) => AdminResponse::json(200, &report),
            Err(failed) => AdminResponse::error(failed.status(), &failed.to_string()),
        }
    }

    async fn set_flags(&self, body: Option<&[u8]>) -> AdminResponse {
        let Some(body) = body else {
            return AdminResponse::error(400, "the body did not come whole, or is too large");
        };
        // A list would pass for a struct whose fields are all left out.
        let object = serde_json::from_slice::<Map<String, Value>>(body);
        let changes = object.and_then(|object| serde_json::from_value(object.into()));
        let changes = match changes {
            Ok(changes) => changes,
            Err(fault) => {
                return AdminResponse::error(400, &format!("the body does not fit: {fault}"));
            }
        };
        match Arc::clone(&self.controls).set_flags(changes).await {
            Ok(flags) => AdminResponse::json(200, &flags),
            Err(fault) => AdminResponse::error(500, &fault),
        }
    }

    async fn reload(&self) -> AdminResponse {
        match self.reload.reload().await {
            Ok(report) => AdminResponse::json(200, &report),
            Err(ReloadFailure::Refused(problems)) => {
                AdminResponse::json(422, &json!({ "problems": problems }))
            }
            Err(failed @ (ReloadFailure::Busy | ReloadFailure::Stopped | ReloadFailure::Late)) => {
                AdminResponse::error(503, &failed.to_string())
            }
        }
    }
}

/// The node of `/nodes/{name}/forget`.
fn node_in_path(path: &str) -> Option<&str> {
    let name = path.strip_prefix("/nodes/")?.strip_suffix("/forget")?;
    (!name.is_empty() && !name.contains('/')).then_some(name)
}

#[async_trait]
impl HttpServerApp for Admin {
    async fn process_new_http(
        self: &Arc<Self>,
        mut session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        match tokio::time::timeout(HEAD_TIMEOUT, session.read_request()).await {
            Ok(Ok(true)) => {}
            Ok(Err(_)) => {
                // The connection is closed whether or not the client reads the reason.
                let _ = session.respond_error(400).await;
                return None;
            }
            Ok(Ok(false)) | Err(_) => return None,
        }
        let read = tokio::time::timeout(BODY_TIMEOUT, read_body(&mut session)).await;
        let read = read.ok().and_then(Result::ok);
        let reusable = read.is_some() && !*shutdown.borrow();
        session.set_keepalive(reusable.then_some(KEEPALIVE_SECS));

        let head = session.req_header();
        let method = head.method.as_str().to_owned();
        let accept = head.headers.get(http::header::ACCEPT);
        let path = match head.uri.path() {
            "/" if dashboard::is_wanted(accept.map(|it| it.as_bytes())) => "/dashboard",
            path => path,
        };
        let path = path.to_owned();
        let query = head.uri.query().unwrap_or_default().to_owned();
        let is_local = session
            .client_addr()
            .and_then(|address| address.as_inet())
            .is_some_and(|address| address.ip().is_loopback());
        let foreign =
            cross_site::rejection_reason(&session.req_header().headers, &method, is_local);
        let body = read.filter(|body| body.len() <= BODY_BYTES_MAX);
        let answer = match foreign {
            Some(why) => AdminResponse::error(403, why),
            None => match gpu::follow(self.gpu.as_deref(), &method, &path, &query).await {
                Some(Ok(log)) => {
                    // An error is the client's departure.
                    let _ = log_stream::send(&mut session, log, shutdown).await;
                    return None;
                }
                Some(Err(refused)) => refused,
                None => self.respond(&method, &path, &query, body.as_deref()).await,
            },
        };
        send(&mut session, answer).await.ok()?;
        let settings = HttpPersistentSettings::for_session(&session);
        let stream = session.finish().await.ok()??;
        Some(ReusedHttpStream::from_reusable_stream(stream, settings))
    }
}

/// Reads the body to its end; of a larger one than allowed, as much as is needed to notice it.
async fn read_body(session: &mut ServerSession) -> pingora_error::Result<Vec<u8>> {
    let mut body = Vec::new();
    while let Some(piece) = session.read_request_body().await? {
        let room = (BODY_BYTES_MAX + 1).saturating_sub(body.len());
        body.extend_from_slice(&piece[..piece.len().min(room)]);
    }
    Ok(body)
}

/// Returns whether the id is that of a job's run: the job, a colon, and the number of the start.
fn is_run(request_id: &str) -> bool {
    let is_number = |text: &str| {
        (1..=10).contains(&text.len()) && !text.contains(|c: char| !c.is_ascii_digit())
    };
    let parts = request_id.split_once(':');
    parts.is_some_and(|(job, start)| job.parse::<JobId>().is_ok() && is_number(start))
}

#[cfg(test)]
mod tests;
