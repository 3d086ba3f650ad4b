//! Discovery of a model's endpoints besides the configuration, and their merge into the model.
//!
//! No I/O: the shell reads a file, the addresses of a name, or the response of Consul or Kubernetes, and
//! hands over the result. [`DiscoveredEndpoints`] is at most [`ENDPOINTS_MAX`] endpoints, sorted, each once.

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::credentials::Secret;
use super::endpoint_spec::{EndpointSpec, unix_socket_of};
use super::spec::ModelSpec;

/// Endpoints a model may be found to have: ten times the containers of a large model at one site, and
/// few enough to probe them all within a round.
pub const ENDPOINTS_MAX: usize = 256;

/// Source of endpoints, interval of discovery, and settings of every discovered endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiscoverySpec {
    /// JSON file with a list of URLs, or of mappings with `url` and, where they differ from the keys
    /// here, `max_concurrent_requests`, `priority`, `backend_model`. Seen from the folder of this file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// `host:port`: every address of the name is an endpoint, spoken to by plain HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns: Option<Arc<str>>,
    /// A service of Consul: every instance that passes its checks is an endpoint, spoken to by plain
    /// HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consul: Option<ConsulSpec>,
    /// A service of Kubernetes: every pod in its EndpointSlices that is ready is an endpoint, spoken to
    /// by plain HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<KubernetesSpec>,
    /// Seconds between two reads of the source.
    #[serde(default = "DiscoverySpec::default_every_secs")]
    #[schemars(range(min = 1, max = 3600))]
    pub every_secs: u32,
    /// Permits of each discovered endpoint. At least 1, at most 65,536.
    #[serde(default = "EndpointSpec::default_max_concurrent_requests")]
    #[schemars(range(min = 1, max = 65536))]
    pub max_concurrent_requests: u32,
    /// Tier of each endpoint found.
    #[serde(default)]
    pub priority: u32,
    /// The model name the servers know; the model's `id` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend_model: Option<Arc<str>>,
    /// Sent as `Authorization: Bearer` to each endpoint found; usually `"${SOME_KEY}"`.
    #[serde(default, skip_serializing)]
    pub api_key: Option<Secret>,
    /// While running, URLs of the model's endpoints that were found and are not configured; empty
    /// in the configuration.
    #[serde(skip)]
    #[schemars(skip)]
    pub found: Arc<[Arc<str>]>,
}

/// A service in Consul's catalogue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConsulSpec {
    /// Base URL of Consul's HTTP API, such as `http://127.0.0.1:8500`.
    pub url: Arc<str>,
    /// The service's name.
    pub service: Arc<str>,
    /// Only instances with this tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<Arc<str>>,
    /// Another datacenter than that of the Consul agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datacenter: Option<Arc<str>>,
    /// Sent as `Authorization: Bearer` to Consul; usually `"${CONSUL_HTTP_TOKEN}"`.
    #[serde(default, skip_serializing)]
    pub token: Option<Secret>,
}

/// A service in a Kubernetes cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KubernetesSpec {
    /// The service's namespace.
    pub namespace: Arc<str>,
    /// The service's name.
    pub service: Arc<str>,
    /// The port's name or number in the EndpointSlices; their only TCP port when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<SlicePort>,
    /// Base URL of the cluster's API.
    #[serde(default = "KubernetesSpec::default_api")]
    pub api: Arc<str>,
    /// File with the token that is sent as `Authorization: Bearer` to the API, read anew at each look.
    /// The default is that of the pod's service account for an `https` API, else none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// PEM file of the certificates that an `https` API's own must come from, read anew at each look;
    /// when absent that of the pod's service account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
}

/// Folder of a pod's credentials for the API of its cluster.
/// <https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/>
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

impl KubernetesSpec {
    fn default_api() -> Arc<str> {
        "https://kubernetes.default.svc".into()
    }

    /// The API has to prove itself.
    pub fn is_over_tls(&self) -> bool {
        self.api.starts_with("https://")
    }

    /// Returns the path of the token. Over plain text only a token that the configuration names is sent.
    pub fn token_path(&self) -> Option<PathBuf> {
        let account = || PathBuf::from(format!("{SERVICE_ACCOUNT}/token"));
        let named = self.token_file.clone();
        named.or_else(|| self.is_over_tls().then(account))
    }

    /// Path of the certificates by which the API proves itself; none for an API over plain text.
    pub fn ca_path(&self) -> Option<PathBuf> {
        let account = || PathBuf::from(format!("{SERVICE_ACCOUNT}/ca.crt"));
        let path = || self.ca_file.clone().unwrap_or_else(account);
        self.is_over_tls().then(path)
    }
}

/// Port of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SlicePort {
    /// By its number.
    Number(u16),
    /// By its name, which has a letter; digits alone are a number that was written as a text.
    Name(Arc<str>),
}

impl SlicePort {
    /// Returns the number, for a port given by number.
    pub fn number(&self) -> Option<u16> {
        match self {
            SlicePort::Number(number) => Some(*number),
            SlicePort::Name(text) => text.parse().ok(),
        }
    }
}

impl JsonSchema for SlicePort {
    fn schema_name() -> Cow<'static, str> {
        "SlicePort".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "integer"], "minimum": 1, "maximum": 65_535 })
    }
}

/// The one place to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiscoverySource {
    /// A JSON file.
    File(PathBuf),
    /// `host:port`.
    Dns(Arc<str>),
    /// A service of Consul.
    Consul(ConsulSpec),
    /// A service of Kubernetes.
    Kubernetes(KubernetesSpec),
}

impl DiscoverySource {
    /// Its name in logs and `/state`, after its key in the configuration.
    pub const fn name(&self) -> &'static str {
        match self {
            DiscoverySource::File(_) => "file",
            DiscoverySource::Dns(_) => "dns",
            DiscoverySource::Consul(_) => "consul",
            DiscoverySource::Kubernetes(_) => "kubernetes",
        }
    }
}

impl DiscoverySpec {
    fn default_every_secs() -> u32 {
        5
    }

    /// Source of the endpoints. The configuration admits exactly one.
    pub fn source(&self) -> Option<DiscoverySource> {
        let file = self.file.clone().map(DiscoverySource::File);
        let dns = || self.dns.clone().map(DiscoverySource::Dns);
        let consul = || self.consul.clone().map(DiscoverySource::Consul);
        let kubernetes = || self.kubernetes.clone().map(DiscoverySource::Kubernetes);
        file.or_else(dns).or_else(consul).or_else(kubernetes)
    }

    fn endpoint(&self, found: &DiscoveredEndpoint) -> EndpointSpec {
        let own_permits = found.max_concurrent_requests;
        let own_name = found.backend_model.as_ref();
        EndpointSpec {
            url: Arc::clone(&found.url),
            max_concurrent_requests: own_permits.unwrap_or(self.max_concurrent_requests),
            priority: found.priority.unwrap_or(self.priority),
            backend_model: own_name.or(self.backend_model.as_ref()).cloned(),
            api_key: self.api_key.clone(),
            ..EndpointSpec::default()
        }
    }
}

/// An endpoint as a source reports it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiscoveredEndpoint {
    /// Base URL.
    pub url: Arc<str>,
    /// Its own permits.
    #[serde(default)]
    pub max_concurrent_requests: Option<u32>,
    /// Its own tier.
    #[serde(default)]
    pub priority: Option<u32>,
    /// Its own name for the model.
    #[serde(default)]
    pub backend_model: Option<Arc<str>>,
}

impl DiscoveredEndpoint {
    /// Creates an endpoint of which only the URL is known.
    pub fn at(url: impl Into<Arc<str>>) -> DiscoveredEndpoint {
        DiscoveredEndpoint {
            url: url.into(),
            max_concurrent_requests: None,
            priority: None,
            backend_model: None,
        }
    }
}

/// Result of reading a source once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscoveredEndpoints {
    /// Sorted by URL, each once.
    pub endpoints: Vec<DiscoveredEndpoint>,
    /// So many more there were than [`ENDPOINTS_MAX`].
    pub left_out: usize,
}

impl DiscoveredEndpoints {
    /// Sorts the reported endpoints: two reads with the same endpoints are equal, whatever their order.
    pub fn new(mut reported: Vec<DiscoveredEndpoint>) -> DiscoveredEndpoints {
        reported.sort_by(|a, b| a.url.cmp(&b.url));
        let mut seen = HashSet::new();
        reported.retain(|endpoint| seen.insert(same_server(&endpoint.url)));
        let left_out = reported.len().saturating_sub(ENDPOINTS_MAX);
        reported.truncate(ENDPOINTS_MAX);
        DiscoveredEndpoints {
            endpoints: reported,
            left_out,
        }
    }
}

/// Returns a key that is equal for two URLs of one server: hosts compare in either case, and a last slash
/// is ignored. Paths of sockets compare as they are written.
pub fn same_server(url: &str) -> String {
    if unix_socket_of(url).is_some() {
        return url.trim_end_matches('/').to_owned();
    }
    url.trim_end_matches('/').to_ascii_lowercase()
}

impl ModelSpec {
    /// The model with what was found for it behind its configured endpoints. The configuration takes
    /// precedence for a server that both name.
    pub fn with_discovered(&self, found: &[DiscoveredEndpoint]) -> ModelSpec {
        let mut spec = self.clone();
        let Some(discovery) = &mut spec.discovery else {
            return spec;
        };
        let configured = self.endpoints.iter();
        let configured: HashSet<_> = configured.map(|known| same_server(&known.url)).collect();
        let is_new = |found: &&DiscoveredEndpoint| !configured.contains(&same_server(&found.url));
        let new = found.iter().filter(is_new).take(ENDPOINTS_MAX);
        let new: Vec<_> = new.map(|found| discovery.endpoint(found)).collect();
        discovery.found = new.iter().map(|found| Arc::clone(&found.url)).collect();
        spec.endpoints.extend(new);
        spec
    }

    /// URLs of its endpoints that were found.
    pub fn discovered(&self) -> &[Arc<str>] {
        match &self.discovery {
            Some(discovery) => &discovery.found,
            None => &[],
        }
    }

    /// Origin of its endpoint at `url`: `config`, or the name of the source. None when it is not its
    /// endpoint any more.
    pub fn source_of(&self, url: &str) -> Option<&'static str> {
        let is_there = self.endpoints.iter().any(|known| *known.url == *url);
        if !is_there {
            return None;
        }
        let discovery = self.discovery.as_ref();
        let found =
            discovery.filter(|discovery| discovery.found.iter().any(|known| **known == *url));
        let source = found.and_then(DiscoverySpec::source);
        Some(source.map_or("config", |source| source.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(json: &str) -> ModelSpec {
        let text = format!(r#"{{"id":"m","task":"text-generation","backend":"openai",{json}}}"#);
        serde_json::from_str(&text).unwrap()
    }

    fn urls(found: &[DiscoveredEndpoint]) -> Vec<&str> {
        found.iter().map(|found| &*found.url).collect()
    }

    #[test]
    fn what_was_found_is_sorted_and_stands_once() {
        let listed = ["http://b:1", "http://a:1/", "http://A:1", "http://b:1"];
        let found = DiscoveredEndpoints::new(listed.map(DiscoveredEndpoint::at).to_vec());
        assert_eq!(urls(&found.endpoints), ["http://A:1", "http://b:1"]);
        let turned = DiscoveredEndpoints::new(
            listed
                .into_iter()
                .rev()
                .map(DiscoveredEndpoint::at)
                .collect(),
        );
        assert_eq!(found, turned);
        assert_eq!(
            DiscoveredEndpoints::new(Vec::new()),
            DiscoveredEndpoints::default()
        );
    }

    #[test]
    fn more_than_there_may_be_are_left_out_and_counted() {
        let listed =
            |count: usize| (0..count).map(|at| DiscoveredEndpoint::at(format!("http://h:{at}")));
        let found = DiscoveredEndpoints::new(listed(ENDPOINTS_MAX + 3).collect());
        assert_eq!((found.endpoints.len(), found.left_out), (ENDPOINTS_MAX, 3));
        let found = DiscoveredEndpoints::new(listed(ENDPOINTS_MAX).collect());
        assert_eq!((found.endpoints.len(), found.left_out), (ENDPOINTS_MAX, 0));
    }

    #[test]
    fn found_endpoints_are_as_the_template_says_unless_they_say_it_themselves() {
        let spec = model(
            r#""discovery":{"dns":"h:1","max_concurrent_requests":7,"priority":2,"backend_model":"b","api_key":"k"}"#,
        );
        let own = DiscoveredEndpoint {
            max_concurrent_requests: Some(9),
            priority: Some(0),
            backend_model: Some("own".into()),
            ..DiscoveredEndpoint::at("http://own:1")
        };
        let merged = spec.with_discovered(&[DiscoveredEndpoint::at("http://h:1"), own]);
        let [plain, own] = &merged.endpoints[..] else {
            panic!("two endpoints")
        };
        assert_eq!((plain.max_concurrent_requests, plain.priority), (7, 2));
        assert_eq!(plain.backend_model.as_deref(), Some("b"));
        assert_eq!((own.max_concurrent_requests, own.priority), (9, 0));
        assert_eq!(own.backend_model.as_deref(), Some("own"));
        assert!([plain, own].iter().all(|e| e.api_key == Some("k".into())));
        assert_eq!(merged.permits(), 16);
    }

    #[test]
    fn the_configuration_is_right_where_both_name_a_server() {
        let spec = model(
            r#""endpoints":[{"url":"http://a:1","max_concurrent_requests":3}],"discovery":{"file":"f"}"#,
        );
        let found = ["http://A:1/", "http://b:1"].map(DiscoveredEndpoint::at);
        let merged = spec.with_discovered(&found);
        assert_eq!(merged.endpoints.len(), 2);
        assert_eq!(merged.endpoints[0].max_concurrent_requests, 3);
        assert_eq!(merged.discovered(), ["http://b:1".into()]);
        assert_eq!(merged.source_of("http://a:1"), Some("config"));
        assert_eq!(merged.source_of("http://b:1"), Some("file"));
        assert_eq!(merged.source_of("http://gone:1"), None);
        // Merging begins with the configured model each time.
        assert_eq!(spec.with_discovered(&[]), spec);
    }

    #[test]
    fn a_service_account_is_used_over_tls_only_and_a_port_may_be_written_as_text() {
        let spec = |more: &str| -> KubernetesSpec {
            serde_json::from_str(&format!(r#"{{"namespace":"n","service":"s"{more}}}"#)).unwrap()
        };
        let inside = spec(r#","port":"9001""#);
        assert_eq!(&*inside.api, "https://kubernetes.default.svc");
        let account = Some(format!("{SERVICE_ACCOUNT}/token").into());
        assert_eq!(inside.token_path(), account);
        assert!(inside.ca_path().unwrap().ends_with("ca.crt"));
        assert_eq!(inside.port.unwrap().number(), Some(9001));
        let proxied = spec(r#","api":"http://127.0.0.1:8001","ca_file":"c","port":"http""#);
        assert_eq!((proxied.token_path(), proxied.ca_path()), (None, None));
        assert_eq!(proxied.port.unwrap().number(), None);
        let named = spec(r#","api":"http://h:1","token_file":"t","port":80"#);
        assert_eq!(named.token_path(), Some("t".into()));
        assert_eq!(named.port, Some(SlicePort::Number(80)));
    }

    #[test]
    fn a_model_without_discovery_is_left_as_it_is() {
        let spec = model(r#""endpoints":[{"url":"http://a:1"}]"#);
        assert_eq!(
            spec.with_discovered(&[DiscoveredEndpoint::at("http://b:1")]),
            spec
        );
        assert_eq!(spec.source_of("http://a:1"), Some("config"));
    }
}
