//! Discovery of a model's endpoints, once: from a file, a name's addresses, a service of Consul or
//! of Kubernetes.
//!
//! No state is kept, and the schedule is the caller's. A query either finds a set, which may be
//! empty, or fails as a whole. A wrong entry of a file fails it, because a file is taken whole or
//! not at all. Bounds: [`ANSWER_BYTES_MAX`]; the caller bounds the time.

mod kubernetes;

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use infergate_core::model::{ConsulSpec, DiscoveredEndpoint, DiscoveredEndpoints, EndpointSpec};
use serde::Deserialize;
use serde_json::Value;

use super::client::HttpClient;
use super::connect_timings::ConnectTimings;
use super::outbound::OutboundRequest;
use super::target::Target;
use super::url::{check_address, check_url};
use crate::regular_file::open_regular;

pub use kubernetes::{KubernetesCredentials, query_kubernetes};

/// Room for 256 endpoints with 16 KiB of metadata each, which is more than Consul's instances or pods
/// have.
pub const ANSWER_BYTES_MAX: usize = 4 << 20;
/// For Consul or Kubernetes to take a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// As for configured endpoints.
const PERMITS_MAX: u32 = 65_536;

/// Reason for which discovery failed: for the log, no part of a key in it.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// The file cannot be opened or read.
    #[error("cannot be read: {0}")]
    Unreadable(#[from] std::io::Error),
    /// More than [`ANSWER_BYTES_MAX`].
    #[error("is larger than {} MiB", ANSWER_BYTES_MAX >> 20)]
    TooLarge,
    /// Read, but not what it should be.
    #[error("{0}")]
    Malformed(String),
    /// The server gave no response.
    #[error("no answer: {0}")]
    NoResponse(String),
    /// The server refused with this status.
    #[error("answered with status {0}")]
    Status(u16),
}

/// Reads the endpoints listed in a file. Blocks: never to be called on a worker.
///
/// # Errors
/// [`DiscoveryError`]; nothing is known then.
pub fn read_file(path: &Path) -> Result<DiscoveredEndpoints, DiscoveryError> {
    let mut bytes = Vec::new();
    let file = open_regular(path)?;
    file.take(ANSWER_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() > ANSWER_BYTES_MAX {
        return Err(DiscoveryError::TooLarge);
    }
    parse_list(&bytes).map_err(DiscoveryError::Malformed)
}

/// Every address of `host:port`.
///
/// # Errors
/// The name does not resolve. A name without addresses looks like a resolver that is down.
pub async fn resolve(name: &str) -> Result<DiscoveredEndpoints, DiscoveryError> {
    let addresses = tokio::net::lookup_host(name).await?;
    let urls = addresses.map(|address| DiscoveredEndpoint::at(url_of(address)));
    let found = DiscoveredEndpoints::new(urls.collect());
    match found.endpoints.is_empty() {
        true => Err(DiscoveryError::Unreadable(
            std::io::ErrorKind::NotFound.into(),
        )),
        false => Ok(found),
    }
}

/// Every instance of a service that passes its checks, as an endpoint.
///
/// # Errors
/// [`DiscoveryError`]; nothing is known then.
pub async fn query_consul(
    client: &HttpClient,
    consul: &ConsulSpec,
) -> Result<DiscoveredEndpoints, DiscoveryError> {
    let answer = query_instances(client, consul).await?;
    parse_instances(&answer).map_err(DiscoveryError::Malformed)
}

/// Every instance of a service that passes its checks, as `host:port`.
///
/// # Errors
/// [`DiscoveryError`]; nothing is known then.
pub async fn consul_hosts(
    client: &HttpClient,
    consul: &ConsulSpec,
) -> Result<Vec<String>, DiscoveryError> {
    let answer = query_instances(client, consul).await?;
    parse_hosts(&answer).map_err(DiscoveryError::Malformed)
}

/// Consul's answer.
async fn query_instances(
    client: &HttpClient,
    consul: &ConsulSpec,
) -> Result<Vec<u8>, DiscoveryError> {
    let api = EndpointSpec {
        url: consul.url.clone(),
        max_concurrent_requests: 1,
        // Consul takes its token as a bearer's too.
        api_key: consul.token.clone(),
        ..EndpointSpec::default()
    };
    let mut path = format!("/v1/health/service/{}?passing=1", consul.service);
    if let Some(tag) = &consul.tag {
        path += "&tag=";
        path += tag;
    }
    if let Some(datacenter) = &consul.datacenter {
        path += "&dc=";
        path += datacenter;
    }
    get(client, &target(&api)?, &path, ANSWER_BYTES_MAX).await
}

/// An HTTP API that is asked where endpoints are.
fn target(api: &EndpointSpec) -> Result<Target, DiscoveryError> {
    let target = Target::new(api, "", CONNECT_TIMEOUT)
        .ok_or_else(|| DiscoveryError::Malformed("its url is none".to_owned()))?;
    // A fault of its certificate is reported with the query's result, once.
    target.is_distrusted.store(true, Ordering::Relaxed);
    Ok(target)
}

/// Reads the body at `path`, `bytes_max` at most.
async fn get(
    client: &HttpClient,
    target: &Target,
    path: &str,
    bytes_max: usize,
) -> Result<Vec<u8>, DiscoveryError> {
    let outbound = OutboundRequest {
        method: "GET",
        path,
        // The pool is for requests.
        headers: b"accept: application/json\r\nconnection: close\r\n",
        body: &Bytes::new(),
        // Between two looks the connection would be closed.
        fresh: true,
        is_upgrade: false,
        rest: None,
    };
    let unanswered = |error: &dyn std::error::Error| DiscoveryError::NoResponse(with_causes(error));
    let mut response = client
        .send(target, outbound, &mut ConnectTimings::default())
        .await
        .map_err(|error| unanswered(&error))?;
    let status = response.head().status.as_u16();
    if status != 200 {
        return Err(DiscoveryError::Status(status));
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| unanswered(&error))? {
        if body.len() + chunk.len() > bytes_max {
            return Err(DiscoveryError::TooLarge);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += ": ";
        text += &error.to_string();
        cause = error.source();
    }
    text
}

/// A JSON list of URLs, or of mappings that say more.
fn parse_list(bytes: &[u8]) -> Result<DiscoveredEndpoints, String> {
    let list: Vec<Value> =
        serde_json::from_slice(bytes).map_err(|error| format!("is no JSON list: {error}"))?;
    let entry = |(at, value): (usize, Value)| {
        parse_entry(value).map_err(|fault| format!("entry {}: {fault}", at + 1))
    };
    let endpoints: Result<_, String> = list.into_iter().enumerate().map(entry).collect();
    Ok(DiscoveredEndpoints::new(endpoints?))
}

fn parse_entry(value: Value) -> Result<DiscoveredEndpoint, String> {
    let endpoint = match value {
        Value::String(url) => DiscoveredEndpoint::at(url),
        value => serde_json::from_value(value).map_err(|error| error.to_string())?,
    };
    check_url(&endpoint.url)?;
    if let Some(permits) = endpoint.max_concurrent_requests
        && !(1..=PERMITS_MAX).contains(&permits)
    {
        return Err(format!(
            "max_concurrent_requests must be from 1 to {PERMITS_MAX}"
        ));
    }
    if endpoint.backend_model.as_deref() == Some("") {
        return Err("backend_model must not be empty".to_owned());
    }
    Ok(endpoint)
}

/// An instance in Consul's answer, as far as it matters here.
/// <https://developer.hashicorp.com/consul/api-docs/health#list-service-instances-for-service>
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ConsulInstance {
    node: Option<ConsulNode>,
    service: ConsulService,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ConsulNode {
    address: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ConsulService {
    /// Empty: the node's.
    #[serde(default)]
    address: String,
    #[serde(default)]
    port: u16,
}

fn parse_instances(bytes: &[u8]) -> Result<DiscoveredEndpoints, String> {
    let hosts = parse_hosts(bytes)?.into_iter();
    let urls = hosts.map(|host| DiscoveredEndpoint::at(format!("http://{host}")));
    Ok(DiscoveredEndpoints::new(urls.collect()))
}

/// `host:port` of each instance.
fn parse_hosts(bytes: &[u8]) -> Result<Vec<String>, String> {
    let instances: Vec<ConsulInstance> = serde_json::from_slice(bytes)
        .map_err(|error| format!("is not a list of instances: {error}"))?;
    let hosts = instances.iter().map(|instance| {
        let node = instance.node.as_ref().map_or("", |node| &node.address);
        let host = match &*instance.service.address {
            "" => node,
            own => own,
        };
        match host.parse::<IpAddr>() {
            Ok(ip) => SocketAddr::new(ip, instance.service.port).to_string(),
            Err(_) => format!("{host}:{}", instance.service.port),
        }
    });
    // One that was registered without a port must not hide the others.
    Ok(hosts.filter(|host| check_address(host).is_ok()).collect())
}

fn url_of(address: SocketAddr) -> String {
    // Without the scope of a link, which no URL has.
    let address = SocketAddr::new(address.ip(), address.port());
    format!("http://{address}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(found: &DiscoveredEndpoints) -> Vec<&str> {
        found.endpoints.iter().map(|found| &*found.url).collect()
    }

    #[test]
    fn a_file_lists_urls_or_mappings_that_say_more() {
        let found = parse_list(
            br#"["http://b:1", {"url":"http://a:1/v1","max_concurrent_requests":8,"priority":1,"backend_model":"x"}]"#,
        )
        .unwrap();
        assert_eq!(urls(&found), ["http://a:1/v1", "http://b:1"]);
        let first = &found.endpoints[0];
        assert_eq!(first.max_concurrent_requests, Some(8));
        assert_eq!(first.priority, Some(1));
        assert_eq!(first.backend_model.as_deref(), Some("x"));
        assert_eq!(parse_list(b"[]").unwrap(), DiscoveredEndpoints::default());
    }

    #[test]
    fn a_file_is_taken_whole_or_not_at_all_and_the_fault_is_named() {
        for (text, part) in [
            ("", "is no JSON list"),
            ("{}", "is no JSON list"),
            (r#"["http://a:1""#, "is no JSON list"),
            (
                r#"["http://a:1", "a:1"]"#,
                "entry 2: expected http://host:port",
            ),
            ("[1]", "entry 1"),
            ("[{}]", "entry 1: missing field `url`"),
            (
                r#"[{"url":"http://a:1","api_key":"k"}]"#,
                "unknown field `api_key`",
            ),
            (
                r#"[{"url":"http://a:1","max_concurrent_requests":0}]"#,
                "from 1 to",
            ),
            (
                r#"[{"url":"http://a:1","backend_model":""}]"#,
                "backend_model",
            ),
        ] {
            let fault = parse_list(text.as_bytes()).unwrap_err();
            assert!(fault.contains(part), "{text}: {fault}");
        }
    }

    #[test]
    fn a_file_that_is_missing_or_too_large_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("endpoints.json");
        assert!(matches!(
            read_file(&path),
            Err(DiscoveryError::Unreadable(_))
        ));
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(ANSWER_BYTES_MAX as u64 + 1).unwrap();
        assert!(matches!(read_file(&path), Err(DiscoveryError::TooLarge)));
        std::fs::write(&path, r#"["http://a:1"]"#).unwrap();
        assert_eq!(urls(&read_file(&path).unwrap()), ["http://a:1"]);
    }

    #[test]
    fn an_instance_has_its_own_address_or_its_nodes() {
        let found = parse_instances(
            br#"[
              {"Node":{"Node":"n","Address":"10.0.0.9"},"Service":{"ID":"a","Address":"","Port":9001,"Tags":[]},"Checks":[]},
              {"Node":{"Address":"10.0.0.9"},"Service":{"Address":"10.0.0.2","Port":9002}},
              {"Service":{"Address":"fd00::1","Port":9003}},
              {"Service":{"Address":"gpu-1.internal","Port":9004}},
              {"Service":{"Address":"10.0.0.3","Port":0}},
              {"Service":{"Address":"","Port":1}}
            ]"#,
        )
        .unwrap();
        let expected = [
            "http://10.0.0.2:9002",
            "http://10.0.0.9:9001",
            "http://[fd00::1]:9003",
            "http://gpu-1.internal:9004",
        ];
        assert_eq!(urls(&found), expected);
        assert_eq!(
            parse_instances(b"[]").unwrap(),
            DiscoveredEndpoints::default()
        );
        assert!(parse_instances(b"null").is_err());
        assert!(parse_instances(br#"[{"Service":{"Port":"1"}}]"#).is_err());
    }

    #[test]
    fn addresses_become_urls() {
        let url = |text: &str| url_of(text.parse().unwrap());
        assert_eq!(url("10.0.0.1:9"), "http://10.0.0.1:9");
        assert_eq!(url("[::1]:9"), "http://[::1]:9");
        assert_eq!(url("[fe80::1%3]:9"), "http://[fe80::1]:9");
    }
}
