//! Endpoint of a model: a server that can run it, with its credentials, health checks and permits.
//!
//! The fields are the keys under `models[].endpoints[]` in the configuration; no second struct repeats them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::credentials::{AuthForm, HealthCheckSpec, Secret};
use super::loopback::LoopbackSpec;
use crate::ModelId;

/// A file of certificates: in the configuration its path, while running what stands in it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "PathBuf", into = "PathBuf")]
pub struct CaFile {
    /// Path of the file, relative to the folder of the configuration file.
    pub path: PathBuf,
    /// PEM as it was read; empty until then.
    pub pem: Arc<[u8]>,
}

impl From<PathBuf> for CaFile {
    fn from(path: PathBuf) -> CaFile {
        let pem = Arc::default();
        CaFile { path, pem }
    }
}

impl From<CaFile> for PathBuf {
    fn from(file: CaFile) -> PathBuf {
        file.path
    }
}

impl fmt::Debug for CaFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.fmt(f)
    }
}

/// Owner of an endpoint's permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PermitScope {
    /// The server: all models there share them.
    #[default]
    Server,
    /// The model at this URL.
    Model,
}

/// Begin of the address of a socket in the file system.
pub const UNIX_SCHEME: &str = "unix:";
/// Longest path that a socket in the file system can have, bytes (unix(7): `sun_path`, with its end).
pub const UNIX_PATH_BYTES_MAX: usize = 107;

/// Returns the path of the socket that `url` names, and the prefix of the API's paths: `unix:/path[:/prefix]`.
pub fn unix_socket_of(url: &str) -> Option<(&str, &str)> {
    let rest = url.strip_prefix(UNIX_SCHEME)?;
    Some(rest.split_once(':').unwrap_or((rest, "")))
}

/// The server of a URL as `scheme://host:port` in lower case, the port also where it is the usual one; of a socket in
/// the file system `unix:` and its path.
pub fn server_of(url: &str) -> String {
    if let Some((path, _)) = unix_socket_of(url) {
        return format!("{UNIX_SCHEME}{path}");
    }
    let url = url.to_ascii_lowercase();
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", &url));
    let authority = rest.split('/').next().unwrap_or(rest);
    let has_port = authority
        .rsplit_once(':')
        .is_some_and(|(_, port)| !port.ends_with(']'));
    match (has_port, scheme) {
        (true, _) => format!("{scheme}://{authority}"),
        (false, "https") => format!("{scheme}://{authority}:443"),
        (false, _) => format!("{scheme}://{authority}:80"),
    }
}

/// A model server that can run the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EndpointSpec {
    /// Base URL, `http://host:port[/prefix]`, `https://host[:port][/prefix]` or `unix:/path[:/prefix]` for a socket
    /// of this host; the API's paths are appended to the prefix. The endpoint's identity across reloads.
    pub url: Arc<str>,
    /// Permits: how many requests may be in flight there at once. At least 1, at most 65,536.
    #[serde(default = "EndpointSpec::default_max_concurrent_requests")]
    #[schemars(range(min = 1, max = 65536))]
    pub max_concurrent_requests: u32,
    /// Owner of the permits. `server` (scheme, host and port): all models with an endpoint there share them.
    /// `model`: this model alone, for servers whose models run side by side.
    #[serde(default)]
    pub permits: PermitScope,
    /// Tier: an endpoint is used only when every endpoint of a lower number is full or unhealthy.
    #[serde(default)]
    pub priority: u32,
    /// The model name the server knows; the model's `id` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend_model: Option<Arc<str>>,
    /// Key for this endpoint, sent in the form of `auth`; usually `"${SOME_KEY}"`.
    #[serde(default, skip_serializing)]
    pub api_key: Option<Secret>,
    /// Form in which the key is sent.
    #[serde(default)]
    pub auth: AuthForm,
    /// Name of the header or query parameter that carries the key, for `header` and `query`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth_name: Option<Arc<str>>,
    /// Further headers of every request and check to this endpoint, in place of a client's of the same
    /// name. Values are kept secret as keys are, and may come from the environment.
    #[serde(default, skip_serializing)]
    pub headers: BTreeMap<Arc<str>, Secret>,
    /// Health checks of the endpoint.
    #[serde(default)]
    pub health: HealthCheckSpec,
    /// PEM file of the certificates that an `https` endpoint's own must come from, in place of the
    /// public ones. Seen from the folder of this file; a change reloads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub ca_file: Option<CaFile>,
    /// HTTP/2 towards an `https` endpoint.
    #[serde(default)]
    pub http2: UpstreamHttp2,
    /// The model's tariff is sent to the server as `cf-ai-model-config`, for servers that count neurons themselves.
    #[serde(default)]
    pub send_model_config: bool,
    /// The server understands `stream_options.continuous_usage_stats`, as vLLM's does: it is asked to
    /// report usage with every event, and a stream that is cut is billed by its own count.
    #[serde(default)]
    pub continuous_usage: bool,
    /// Reports of the server about work that goes on after its responses; permits are held until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loopback: Option<LoopbackSpec>,
}

/// HTTP/2 towards an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UpstreamHttp2 {
    /// HTTP/1.1 is all that is offered.
    #[default]
    Off,
    /// HTTP/2 where the server chooses it in the handshake, HTTP/1.1 else.
    Auto,
}

impl Default for EndpointSpec {
    /// An endpoint without URL, with every default.
    fn default() -> Self {
        EndpointSpec {
            url: "".into(),
            max_concurrent_requests: EndpointSpec::default_max_concurrent_requests(),
            permits: PermitScope::default(),
            priority: 0,
            backend_model: None,
            api_key: None,
            auth: AuthForm::default(),
            auth_name: None,
            headers: BTreeMap::new(),
            health: HealthCheckSpec::default(),
            ca_file: None,
            http2: UpstreamHttp2::default(),
            send_model_config: false,
            continuous_usage: false,
            loopback: None,
        }
    }
}

/// Begin of the identity of a slot, where other endpoints have a URL.
const SLOT_SCHEME: &str = "slot:";

/// Returns the identity of a slot among the endpoints of its model.
pub fn slot_url(model: &ModelId, number: u32) -> String {
    format!("{SLOT_SCHEME}{}#{number}", model.as_str())
}

/// Returns whether an endpoint is a slot.
pub fn is_slot(url: &str) -> bool {
    url.starts_with(SLOT_SCHEME)
}

impl EndpointSpec {
    /// Permits of an endpoint whose number is not written.
    pub fn default_max_concurrent_requests() -> u32 {
        4
    }

    /// Endpoint of a slot: a place for a process that the gateway starts. Its address is known once it is ready.
    pub fn slot(model: &ModelId, number: u32, permits: u32) -> EndpointSpec {
        EndpointSpec {
            url: slot_url(model, number).into(),
            max_concurrent_requests: permits,
            permits: PermitScope::Model,
            ..EndpointSpec::default()
        }
    }

    /// Its server as `scheme://host:port` in lower case: what endpoints on one server have in common.
    pub fn server(&self) -> String {
        server_of(&self.url)
    }

    /// Returns whether the endpoint is an external service: reached by TLS, with a key.
    pub fn is_external(&self) -> bool {
        self.url.starts_with("https://") && self.api_key.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_its_scheme_host_and_port_or_its_socket_whatever_the_path() {
        assert_eq!(server_of("http://GPU-1/v1"), "http://gpu-1:80");
        assert_eq!(server_of("https://gpu-1"), "https://gpu-1:443");
        assert_eq!(server_of("http://[::1]/a"), "http://[::1]:80");
        assert_eq!(server_of("http://[::1]:9/a/"), "http://[::1]:9");
        assert_eq!(server_of("unix:/run/A.sock:/v1"), "unix:/run/A.sock");
    }
}
