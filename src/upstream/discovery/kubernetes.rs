//! A service's pods by its EndpointSlices, as the API of a Kubernetes cluster lists them.
//!
//! No watch is opened: a list for each query costs a few slices, and no change is missed. A look
//! takes the whole list or fails, so that a page that is missing does not take pods away. Bounds:
//! [`SLICES_PER_PAGE`], [`PAGES_MAX`], and of all pages together [`ANSWER_BYTES_MAX`].
//! <https://kubernetes.io/docs/reference/kubernetes-api/service-resources/endpoint-slice-v1/>

use std::collections::BTreeMap;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use infergate_core::model::{
    CaFile, DiscoveredEndpoint, DiscoveredEndpoints, EndpointSpec, KubernetesSpec, Secret,
    SlicePort,
};
use serde::Deserialize;

use super::{ANSWER_BYTES_MAX, DiscoveryError, get, target, url_of};
use crate::regular_file::open_regular;
use crate::tls::read_ca_file;
use crate::upstream::client::HttpClient;

/// A slice has up to a hundred pods, and as many slices are more than are taken.
const SLICES_PER_PAGE: usize = 100;
/// More than [`ANSWER_BYTES_MAX`] has room for; against an API that goes on for ever.
const PAGES_MAX: usize = 64;
/// A token has about one KiB.
const TOKEN_BYTES_MAX: u64 = 64 << 10;

/// Credentials for an API, as they stood in the files a moment ago.
pub struct KubernetesCredentials {
    token: Option<Secret>,
    ca_file: Option<CaFile>,
}

impl KubernetesCredentials {
    /// Reads them. Blocks: never to be called on a worker.
    ///
    /// # Errors
    /// [`DiscoveryError`]; a token is named by its file only.
    pub fn read(spec: &KubernetesSpec) -> Result<KubernetesCredentials, DiscoveryError> {
        let token = spec.token_path().map(|path| read_token(&path)).transpose();
        let ca = |path: std::path::PathBuf| {
            let pem = read_ca_file(&path).map_err(DiscoveryError::Malformed)?;
            Ok::<_, DiscoveryError>(CaFile { path, pem })
        };
        Ok(KubernetesCredentials {
            token: token.map_err(DiscoveryError::Malformed)?,
            ca_file: spec.ca_path().map(ca).transpose()?,
        })
    }
}

fn read_token(path: &Path) -> Result<Secret, String> {
    let mut text = String::new();
    let read = open_regular(path).and_then(|file| {
        let mut file = file.take(TOKEN_BYTES_MAX);
        file.read_to_string(&mut text)
    });
    read.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let token = text.trim();
    // It is sent as a header's value.
    match !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(token.into()),
        false => Err(format!("no token stands in {}", path.display())),
    }
}

/// Every pod of the service that is ready, as an endpoint.
///
/// # Errors
/// [`DiscoveryError`]; nothing is known then.
pub async fn query_kubernetes(
    client: &HttpClient,
    spec: &KubernetesSpec,
    credentials: KubernetesCredentials,
) -> Result<DiscoveredEndpoints, DiscoveryError> {
    let api = EndpointSpec {
        url: Arc::clone(&spec.api),
        max_concurrent_requests: 1,
        api_key: credentials.token,
        ca_file: credentials.ca_file,
        ..EndpointSpec::default()
    };
    let target = target(&api)?;
    let first = format!(
        "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices\
         ?labelSelector=kubernetes.io%2Fservice-name%3D{}&limit={SLICES_PER_PAGE}",
        spec.namespace, spec.service
    );
    let (mut path, mut room) = (first.clone(), ANSWER_BYTES_MAX);
    let mut pods = Pods::default();
    for _ in 0..PAGES_MAX {
        let page = get(client, &target, &path, room).await?;
        room -= page.len();
        let list: SliceList = serde_json::from_slice(&page).map_err(|error| {
            DiscoveryError::Malformed(format!("is not a list of EndpointSlices: {error}"))
        })?;
        for slice in &list.items {
            pods.take(slice, spec.port.as_ref())?;
        }
        match list.metadata.next.as_deref() {
            None | Some("") => return Ok(pods.into_found()),
            Some(next) => path = format!("{first}&continue={}", escaped(next)),
        }
    }
    Err(DiscoveryError::TooLarge)
}

/// As it may stand in a query.
fn escaped(text: &str) -> String {
    use std::fmt::Write;
    let mut query = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            true => query.push(char::from(byte)),
            false => write!(query, "%{byte:02X}").expect("a string takes everything"),
        }
    }
    query
}

/// Kubernetes writes `null` for many a list that is empty.
fn or_empty<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[derive(Deserialize)]
struct SliceList {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(deserialize_with = "or_empty")]
    items: Vec<EndpointSlice>,
}

#[derive(Default, Deserialize)]
struct ListMeta {
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EndpointSlice {
    address_type: String,
    #[serde(default, deserialize_with = "or_empty")]
    endpoints: Vec<SliceEndpoint>,
    #[serde(default, deserialize_with = "or_empty")]
    ports: Vec<ServicePort>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SliceEndpoint {
    /// All of them lead to the same pod.
    addresses: Vec<String>,
    #[serde(default)]
    conditions: Conditions,
    target_ref: Option<TargetRef>,
}

/// Unknown conditions are taken as good, as the API says.
#[derive(Default, Deserialize)]
struct Conditions {
    ready: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Deserialize)]
struct TargetRef {
    #[serde(default)]
    uid: String,
}

#[derive(Deserialize)]
struct ServicePort {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    port: Option<u16>,
    #[serde(default)]
    protocol: Option<String>,
}

impl ServicePort {
    fn is_tcp(&self) -> bool {
        self.protocol.as_deref().is_none_or(|port| port == "TCP")
    }
}

/// Pods that are ready, each at one address.
#[derive(Default)]
struct Pods(BTreeMap<String, SocketAddr>);

impl Pods {
    fn take(
        &mut self,
        slice: &EndpointSlice,
        declared: Option<&SlicePort>,
    ) -> Result<(), DiscoveryError> {
        let is_ip = matches!(&*slice.address_type, "IPv4" | "IPv6");
        let ready: Vec<&SliceEndpoint> = slice.endpoints.iter().filter(is_ready).collect();
        if !is_ip || ready.is_empty() {
            return Ok(());
        }
        let Some(port) = port(&slice.ports, declared)? else {
            return Ok(());
        };
        for endpoint in ready {
            let Some(ip) = endpoint.addresses.first() else {
                continue;
            };
            let ip: IpAddr = ip
                .parse()
                .map_err(|_| DiscoveryError::Malformed(format!("{ip:?} is no address")))?;
            let address = SocketAddr::new(ip, port);
            // A pod stands in a slice of each family, and for a moment in two of one. IPv4 sorts first.
            let pod = match &endpoint.target_ref {
                Some(target) if !target.uid.is_empty() => format!("{}:{port}", target.uid),
                _ => address.to_string(),
            };
            let kept = self.0.entry(pod).or_insert(address);
            *kept = address.min(*kept);
        }
        Ok(())
    }

    fn into_found(self) -> DiscoveredEndpoints {
        let urls = self.0.into_values().map(url_of);
        DiscoveredEndpoints::new(urls.map(DiscoveredEndpoint::at).collect())
    }
}

fn is_ready(endpoint: &&SliceEndpoint) -> bool {
    let conditions = &endpoint.conditions;
    conditions.ready != Some(false) && conditions.terminating != Some(true)
}

/// The number of the port that is wanted in a slice that has these; none where it is not among them:
/// while a service changes, its slices differ.
fn port(
    ports: &[ServicePort],
    declared: Option<&SlicePort>,
) -> Result<Option<u16>, DiscoveryError> {
    let tcp = || ports.iter().filter(|port| port.is_tcp());
    let numbered = match declared {
        Some(declared) if let Some(number) = declared.number() => {
            // A port without a number stands for all of them, and so does a list without ports.
            let mut numbers = tcp().map(|port| port.port.unwrap_or(number));
            let is_there = ports.is_empty() || numbers.any(|port| port == number);
            return Ok(is_there.then_some(number));
        }
        Some(SlicePort::Name(name)) => tcp().find(|port| port.name.as_deref() == Some(&**name)),
        _ if tcp().count() > 1 => {
            let names: Vec<&str> = tcp().filter_map(|port| port.name.as_deref()).collect();
            return Err(DiscoveryError::Malformed(format!(
                "the service has several ports: set `port` to one of {}",
                names.join(", ")
            )));
        }
        _ => tcp().next(),
    };
    Ok(numbered.and_then(|port| port.port))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn look(slices: &Value, port: Option<SlicePort>) -> Result<Vec<String>, String> {
        let list: SliceList =
            serde_json::from_value(json!({ "metadata": {}, "items": slices })).unwrap();
        let mut pods = Pods::default();
        for slice in &list.items {
            let taken = pods.take(slice, port.as_ref());
            taken.map_err(|error| error.to_string())?;
        }
        let endpoints = pods.into_found().endpoints.into_iter();
        Ok(endpoints.map(|found| found.url.to_string()).collect())
    }

    fn slice(family: &str, endpoints: Value, ports: Value) -> Value {
        json!({ "addressType": family, "endpoints": endpoints, "ports": ports })
    }

    fn by_name(name: &str) -> Option<SlicePort> {
        Some(SlicePort::Name(name.into()))
    }

    #[test]
    fn ready_is_who_does_not_say_otherwise_and_does_not_terminate() {
        let endpoints = json!([
            { "addresses": ["10.0.0.1"], "conditions": { "ready": true, "terminating": false } },
            { "addresses": ["10.0.0.2"], "conditions": { "ready": false } },
            { "addresses": ["10.0.0.3"], "conditions": { "ready": true, "terminating": true } },
            { "addresses": ["10.0.0.4"], "conditions": {} },
            { "addresses": ["10.0.0.5"] },
        ]);
        let slices = json!([slice("IPv4", endpoints, json!([{ "port": 9 }]))]);
        let expected = [
            "http://10.0.0.1:9",
            "http://10.0.0.4:9",
            "http://10.0.0.5:9",
        ];
        assert_eq!(look(&slices, None).unwrap(), expected);
        assert_eq!(look(&json!([]), None).unwrap(), [""; 0]);
        let empty = json!([slice("IPv4", Value::Null, Value::Null)]);
        assert_eq!(look(&empty, None).unwrap(), [""; 0]);
    }

    #[test]
    fn a_pod_of_two_families_is_one_server_and_others_are_told_apart() {
        let at = |ip: &str, uid: &str| json!([{ "addresses": [ip], "targetRef": { "uid": uid } }]);
        let ports = || json!([{ "port": 9, "protocol": "TCP" }]);
        let slices = json!([
            slice("IPv6", at("fd00::1", "a"), ports()),
            slice("IPv4", at("10.0.0.1", "a"), ports()),
            slice("IPv6", at("fd00::2", "b"), ports()),
            slice("IPv6", at("fd00::2", "b"), ports()),
            slice("FQDN", at("pod.example.com", "c"), ports()),
        ]);
        let expected = ["http://10.0.0.1:9", "http://[fd00::2]:9"];
        assert_eq!(look(&slices, None).unwrap(), expected);
        let bad = json!([slice("IPv4", at("pod", "a"), ports())]);
        assert_eq!(look(&bad, None).unwrap_err(), "\"pod\" is no address");
    }

    #[test]
    fn the_port_is_that_of_the_name_or_number_or_the_only_one() {
        let two = json!([
            { "name": "http", "port": 8000, "protocol": "TCP" },
            { "name": "metrics", "port": 9100, "protocol": "TCP" },
            { "name": "quic", "port": 8000, "protocol": "UDP" },
        ]);
        let slices = |ports: &Value| {
            json!([slice(
                "IPv4",
                json!([{ "addresses": ["10.0.0.1"] }]),
                ports.clone()
            )])
        };
        let found = |port| look(&slices(&two), port).unwrap();
        assert_eq!(found(by_name("http")), ["http://10.0.0.1:8000"]);
        assert_eq!(found(by_name("metrics")), ["http://10.0.0.1:9100"]);
        assert_eq!(found(by_name("9100")), ["http://10.0.0.1:9100"]);
        assert_eq!(
            found(Some(SlicePort::Number(8000))),
            ["http://10.0.0.1:8000"]
        );
        assert_eq!(found(by_name("quic")), [""; 0]);
        assert_eq!(found(Some(SlicePort::Number(1))), [""; 0]);
        let fault = look(&slices(&two), None).unwrap_err();
        assert!(
            fault.ends_with("set `port` to one of http, metrics"),
            "{fault}"
        );
        let any = look(
            &slices(&json!([{ "name": "" }])),
            Some(SlicePort::Number(7)),
        );
        assert_eq!(any.unwrap(), ["http://10.0.0.1:7"]);
        let one = look(&slices(&json!([{ "name": "", "port": 80 }])), None);
        assert_eq!(one.unwrap(), ["http://10.0.0.1:80"]);
    }

    #[test]
    fn where_to_go_on_may_stand_in_a_query() {
        assert_eq!(escaped("eyJ2Ijo_-Q=="), "eyJ2Ijo_-Q%3D%3D");
        assert_eq!(escaped("a&b=c d/+"), "a%26b%3Dc%20d%2F%2B");
    }

    #[test]
    fn a_token_is_what_stands_in_its_file_and_no_part_of_another_text() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        assert!(read_token(&path).unwrap_err().contains("cannot read"));
        for (text, token) in [("a.b.c\n", Some("a.b.c")), ("", None), ("a\r\nb: c", None)] {
            std::fs::write(&path, text).unwrap();
            let read = read_token(&path);
            assert_eq!(read.as_ref().ok().map(|secret| secret.reveal()), token);
        }
    }
}
