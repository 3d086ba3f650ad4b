//! Address of one model server: its URL, the model's name there, the credentials it takes.
//!
//! Permits and health belong to the gate. Immutable but for its measured pace and the resolved
//! addresses, which the prober renews when the URL names a host instead of an IP. An endpoint is
//! one server, so of a name's addresses the first of each family counts: two at most.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use infergate_core::Millis;
use infergate_core::model::{CaFile, EndpointSpec, HealthCheckSpec, UpstreamHttp2, unix_socket_of};
use infergate_core::routing::{EndpointLoad, REFUSED_CHECK_INTERVAL};
use parking_lot::Mutex;
use pingora_core::protocols::l4::ext::TcpKeepalive;

use super::backends::{ProbeReport, ServerMetrics};
use super::credentials::EndpointCredentials;
use super::dial::{
    DialAddresses, DialPlace, DialTerms, endpoint_keepalive, node_keepalive, one_of_each_family,
};
use super::open_work::{OpenWork, OpenWorkState};
use crate::telemetry::WarningLimit;
use crate::tls::ServerIdentity;

/// A model server of one model.
pub struct Target {
    /// As configured; the endpoint's identity.
    pub url: Arc<str>,
    /// Life of the slot that it is the process of; none of an endpoint by URL.
    pub instance: Option<Arc<str>>,
    /// The model's name there.
    pub backend_model: Arc<str>,
    /// `host[:port]`, for the Host header.
    pub authority: String,
    /// Path before the backend's own paths, without a trailing slash.
    pub prefix: String,
    /// Key and headers of the endpoint, ready to send.
    pub(super) credentials: EndpointCredentials,
    /// Health checks of the endpoint.
    pub(super) health: HealthCheckSpec,
    /// `priority` of the endpoint; above 255 it is 255.
    pub tier: u8,
    /// Latency of its responses. Guards five numbers; held to add a measurement or to rank.
    pub load: Mutex<EndpointLoad>,
    /// Numbers of the names of the LoRA adapters that the server reports.
    adapters: ArcSwapOption<Vec<u32>>,
    /// The server is external: operated by another party.
    pub is_external: bool,
    /// Its last connection failed because it could not prove who it is.
    pub(super) is_distrusted: AtomicBool,
    /// Its last answer refused the operator's path or key.
    is_rejecting: AtomicBool,
    /// Warnings about requests that it did not answer.
    pub warnings: WarningLimit,
    /// Warnings about answers that it compressed.
    compressed: WarningLimit,
    /// Set once a response came without usage and a line was logged.
    pub is_unmetered: AtomicBool,
    /// Work that was canceled there does not end.
    is_stuck: AtomicBool,
    /// Logs that it shows while it can serve nothing.
    setup_logs: ArcSwapOption<String>,
    /// Moment of the latest health check, milliseconds; 0 before the first.
    probed_at: AtomicU64,
    /// Name or address; empty where the place is a socket in the file system.
    host: String,
    port: u16,
    connect_timeout: Duration,
    /// Identity it has to prove, over TLS.
    identity: Option<Arc<ServerIdentity>>,
    ca_file: Option<CaFile>,
    http2: UpstreamHttp2,
    /// Keepalive of its idle connections.
    keepalive: TcpKeepalive,
    dials: ArcSwapOption<DialAddresses>,
    /// Bytes that have come from the process of a slot; none of other endpoints.
    meter: Option<Arc<AtomicU64>>,
    /// Work that goes on there after its response, of a server that reports its end.
    pub(super) work: Option<Arc<OpenWork>>,
}

impl Target {
    /// Returns whether a health check may begin, and counts that as one. Refused connections ask for checks
    /// of all servers that are not healthy: each is checked at most once in [`REFUSED_CHECK_INTERVAL`].
    pub(super) fn may_probe(&self, now: Millis) -> bool {
        let last = self.probed_at.load(Ordering::Relaxed);
        let may_probe = last == 0 || now.since(Millis(last)) >= REFUSED_CHECK_INTERVAL;
        if may_probe {
            self.probed_at.store(now.0.max(1), Ordering::Relaxed);
        }
        may_probe
    }

    /// The target of an endpoint, or `None` when its URL is neither `http[s]://host[:port][/prefix]` nor that of a
    /// socket, or its certificates cannot be read; the configuration has refused those.
    pub fn new(spec: &EndpointSpec, model: &str, connect_timeout: Duration) -> Option<Target> {
        let place = UrlPlace::parse(&spec.url)?;
        let identity = match place.is_secure {
            true => {
                let ca = spec.ca_file.as_ref().map(|file| &*file.pem);
                let identity = ServerIdentity::new(place.host, ca).ok()?;
                Some(Arc::new(match spec.http2 {
                    UpstreamHttp2::Auto => identity.offering_http2(),
                    UpstreamHttp2::Off => identity,
                }))
            }
            false => None,
        };
        let target = Target {
            url: spec.url.clone(),
            instance: None,
            backend_model: spec.backend_model.clone().unwrap_or_else(|| model.into()),
            authority: place.authority.to_owned(),
            prefix: place.prefix.to_owned(),
            credentials: EndpointCredentials::from_spec(spec),
            health: spec.health.clone(),
            tier: u8::try_from(spec.priority).unwrap_or(u8::MAX),
            load: Mutex::default(),
            adapters: ArcSwapOption::empty(),
            is_external: spec.is_external(),
            is_distrusted: AtomicBool::new(false),
            is_rejecting: AtomicBool::new(false),
            warnings: WarningLimit::default(),
            compressed: WarningLimit::default(),
            is_unmetered: AtomicBool::new(false),
            is_stuck: AtomicBool::new(false),
            setup_logs: ArcSwapOption::empty(),
            probed_at: AtomicU64::new(0),
            host: place.host.to_owned(),
            port: place.port,
            connect_timeout,
            identity,
            ca_file: spec.ca_file.clone(),
            http2: spec.http2,
            keepalive: endpoint_keepalive(),
            dials: ArcSwapOption::empty(),
            meter: None,
            work: spec.loopback.as_ref().map(OpenWork::new),
        };
        match (place.socket, target.host.parse()) {
            (Some(path), _) => target.set_places([DialPlace::Unix(path.into())].into_iter()),
            (None, Ok(ip)) => target.set_addresses(&[SocketAddr::new(ip, place.port)]),
            (None, Err(_)) => {}
        }
        Some(target)
    }

    /// Returns the target with the open work of the `former` one of this endpoint, where its reports are the same.
    pub(super) fn with_work_of(self, former: &Target) -> Target {
        let same = former.work.as_ref();
        let same = same.filter(|work| self.work.as_ref().is_some_and(|own| own.is_like(work)));
        let work = same.cloned().or(self.work);
        Target { work, ..self }
    }

    /// Returns the target with the identity of a slot, whose address is known once its `instance` is ready.
    pub(super) fn of_slot(self, slot: Arc<str>, instance: Arc<str>) -> Target {
        Target {
            url: slot,
            instance: Some(instance),
            meter: Some(Arc::default()),
            ..self
        }
    }

    /// Counter of the bytes with which the process of a slot answers requests; answers to checks say nothing of its
    /// progress.
    pub(super) fn meter(&self) -> Option<Arc<AtomicU64>> {
        self.meter.clone()
    }

    /// Returns the bytes with which the process of a slot has answered requests; 0 of other endpoints.
    pub fn received_bytes(&self) -> u64 {
        let meter = self.meter.as_ref();
        meter.map_or(0, |meter| meter.load(Ordering::Relaxed))
    }

    /// Target for another node at `host:port`, which has to prove `identity`; `None` when that is
    /// no address.
    pub fn for_node(
        address: &str,
        identity: Arc<ServerIdentity>,
        connect_timeout: Duration,
    ) -> Option<Target> {
        let (host, port) = split_authority(address, HTTPS_PORT)?;
        let target = Target {
            url: format!("https://{address}").into(),
            host: host.to_owned(),
            port,
            identity: Some(identity),
            keepalive: node_keepalive(),
            ..Target::bare(address, connect_timeout)
        };
        if let Ok(ip) = target.host.parse() {
            target.set_addresses(&[SocketAddr::new(ip, port)]);
        }
        Some(target)
    }

    /// Target for a receiver outside of the own network: connections go to `addresses`, and its name, which is
    /// only sent, is not resolved. Over TLS with an `identity` to be proved.
    pub fn for_receiver(
        authority: &str,
        addresses: &[SocketAddr],
        identity: Option<Arc<ServerIdentity>>,
        connect_timeout: Duration,
    ) -> Target {
        let target = Target {
            identity,
            is_external: true,
            // Its owner chose it: no operator can mend its certificate.
            is_distrusted: AtomicBool::new(true),
            ..Target::bare(authority, connect_timeout)
        };
        target.set_addresses(addresses);
        target
    }

    /// Target without a model, an identity and an address.
    fn bare(authority: &str, connect_timeout: Duration) -> Target {
        Target {
            url: authority.into(),
            instance: None,
            backend_model: "".into(),
            authority: authority.to_owned(),
            prefix: String::new(),
            credentials: EndpointCredentials::default(),
            health: HealthCheckSpec::default(),
            tier: 0,
            load: Mutex::default(),
            adapters: ArcSwapOption::empty(),
            is_external: false,
            is_distrusted: AtomicBool::new(false),
            is_rejecting: AtomicBool::new(false),
            warnings: WarningLimit::default(),
            compressed: WarningLimit::default(),
            is_unmetered: AtomicBool::new(false),
            is_stuck: AtomicBool::new(false),
            setup_logs: ArcSwapOption::empty(),
            probed_at: AtomicU64::new(0),
            host: authority.to_owned(),
            port: 0,
            connect_timeout,
            identity: None,
            ca_file: None,
            http2: UpstreamHttp2::Off,
            keepalive: endpoint_keepalive(),
            dials: ArcSwapOption::empty(),
            meter: None,
            work: None,
        }
    }

    /// Records what the server reports about its load and adapters, or that it reports nothing; `own` is the
    /// number of requests that this gateway has in flight there.
    pub(super) fn record_report(&self, report: Option<ServerMetrics>, own: u32) {
        self.load
            .lock()
            .record_report(report.as_ref().map(|report| report.load), own);
        let adapters = report.map(|report| report.adapters);
        let adapters = adapters.filter(|adapters| !adapters.is_empty());
        if adapters.is_some() || self.adapters.load().is_some() {
            self.adapters.store(adapters.map(Arc::new));
        }
    }

    /// Returns whether the server reports the adapter of this number.
    pub(super) fn has_adapter(&self, lora: u32) -> bool {
        let adapters = self.adapters.load();
        adapters
            .as_ref()
            .is_some_and(|adapters| adapters.contains(&lora))
    }

    /// Records that the server refused the path or key that the operator configured: one line of
    /// the log until it accepts them.
    pub fn record_rejection(&self, status: u16) {
        if !self.is_rejecting.swap(true, Ordering::Relaxed) {
            tracing::error!(
                url = &*self.url,
                status,
                "the model server does not accept this gateway: check the endpoint's URL, `api_key`, `auth` and `backend_model`"
            );
        }
    }

    /// Warns that the server compressed a response although it was asked not to: its usage could
    /// not be read.
    pub fn warn_compressed(&self, now: Millis) {
        if let Some(repeated) = self.compressed.due(now) {
            tracing::warn!(
                url = &*self.url,
                repeated,
                "a model server compressed its answer although it was asked not to"
            );
        }
    }

    /// Records a proper response: ends the state that `record_rejection` began.
    pub fn record_acceptance(&self) {
        if self.is_rejecting.load(Ordering::Relaxed) {
            self.is_rejecting.store(false, Ordering::Relaxed);
        }
    }

    /// Returns the work that goes on after its response; none of a server that does not report its end.
    pub(super) fn open_work(&self) -> Option<OpenWorkState> {
        self.work.as_ref().map(|work| work.state())
    }

    /// Records that work which was canceled there does not end.
    pub(super) fn record_stuck(&self) {
        self.is_stuck.store(true, Ordering::Relaxed);
    }

    /// Records what the server reports about itself.
    ///
    /// # Errors
    /// The reason for which it gets no requests.
    pub(super) fn record_probe_report(&self, report: ProbeReport) -> Result<(), &'static str> {
        if report.logs.is_some() || self.setup_logs.load().is_some() {
            self.setup_logs.store(report.logs.map(Arc::new));
        }
        match report.fault {
            Some(fault) => Err(fault),
            None if report.is_full && self.is_stuck.load(Ordering::Relaxed) => {
                Err("canceled work does not end")
            }
            None => {
                if !report.is_full {
                    self.is_stuck.store(false, Ordering::Relaxed);
                }
                Ok(())
            }
        }
    }

    /// Returns the logs that the server shows while it can serve nothing.
    pub(super) fn setup_logs(&self) -> Option<Arc<String>> {
        self.setup_logs.load_full()
    }

    /// The same server as `spec` describes it for `model`.
    pub fn matches(&self, spec: &EndpointSpec, model: &str, connect_timeout: Duration) -> bool {
        self.url == spec.url
            && self.connect_timeout == connect_timeout
            && self.credentials == EndpointCredentials::from_spec(spec)
            && self.health == spec.health
            && self.ca_file == spec.ca_file
            && self.http2 == spec.http2
            && self.work.as_ref().map(|work| work.spec()) == spec.loopback.as_ref()
            && u32::from(self.tier) == spec.priority.min(u32::from(u8::MAX))
            && *self.backend_model == *spec.backend_model.as_deref().unwrap_or(model)
    }

    /// Returns the addresses to connect to; resolves the host's name when that has not been done yet.
    ///
    /// # Errors
    /// The name does not resolve.
    pub async fn dials(&self) -> std::io::Result<Arc<DialAddresses>> {
        match self.dials.load_full() {
            Some(dials) => Ok(dials),
            None => self.resolve().await,
        }
    }

    /// Looks the host's name up again. Literal addresses stay as they are.
    ///
    /// # Errors
    /// The name does not resolve; former addresses are kept.
    pub async fn resolve(&self) -> std::io::Result<Arc<DialAddresses>> {
        if !self.host.is_empty() && self.host.parse::<IpAddr>().is_err() {
            let found = tokio::net::lookup_host((self.host.as_str(), self.port)).await?;
            let former = self.dials.load_full();
            let former: Vec<SocketAddr> =
                former.iter().flat_map(|dials| dials.addresses()).collect();
            let chosen = one_of_each_family(&found.collect::<Vec<_>>(), &former);
            if chosen.is_empty() {
                return Err(std::io::ErrorKind::NotFound.into());
            }
            let same = chosen.len() == former.len() && chosen.iter().all(|a| former.contains(a));
            if !same {
                self.set_addresses(&chosen);
            }
        }
        let dials = self.dials.load_full();
        dials.ok_or_else(|| std::io::ErrorKind::NotFound.into())
    }

    pub(super) fn set_addresses(&self, addresses: &[SocketAddr]) {
        self.set_places(addresses.iter().map(|address| DialPlace::Tcp(*address)));
    }

    fn set_places(&self, places: impl Iterator<Item = DialPlace>) {
        let terms = DialTerms {
            connect_timeout: self.connect_timeout,
            keepalive: &self.keepalive,
            identity: self.identity.as_ref(),
        };
        let dials = DialAddresses::new(places, &terms);
        self.dials.store(Some(Arc::new(dials)));
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key stays out of logs.
        f.debug_struct("Target")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

/// Microseconds as policies take them: more than 71 minutes is 71 minutes.
pub fn saturated(micros: u64) -> u32 {
    u32::try_from(micros).unwrap_or(u32::MAX)
}

const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// Host header of requests to a socket in the file system, which has no name.
const SOCKET_AUTHORITY: &str = "localhost";

/// Parts of the URL of a server.
struct UrlPlace<'a> {
    is_secure: bool,
    authority: &'a str,
    /// Empty for a socket.
    host: &'a str,
    port: u16,
    /// Path before the backend's own paths, without a trailing slash.
    prefix: &'a str,
    socket: Option<&'a Path>,
}

impl UrlPlace<'_> {
    fn parse(url: &str) -> Option<UrlPlace<'_>> {
        if let Some((path, prefix)) = unix_socket_of(url) {
            return Some(UrlPlace {
                is_secure: false,
                authority: SOCKET_AUTHORITY,
                host: "",
                port: 0,
                prefix: prefix.trim_end_matches('/'),
                socket: Some(Path::new(path)),
            });
        }
        let (is_secure, rest) = match url.strip_prefix("https://") {
            Some(rest) => (true, rest),
            None => (false, url.strip_prefix("http://")?),
        };
        let (authority, prefix) = match rest.find('/') {
            Some(at) => (&rest[..at], rest[at..].trim_end_matches('/')),
            None => (rest, ""),
        };
        let default_port = if is_secure { HTTPS_PORT } else { HTTP_PORT };
        let (host, port) = split_authority(authority, default_port)?;
        Some(UrlPlace {
            is_secure,
            authority,
            host,
            port,
            prefix,
            socket: None,
        })
    }
}

/// `host`, `host:port`, `[v6]:port`.
fn split_authority(authority: &str, default_port: u16) -> Option<(&str, u16)> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, port) = rest.split_once(']')?;
        let port = match port.strip_prefix(':') {
            Some(port) => port.parse().ok()?,
            None => default_port,
        };
        return Some((host, port));
    }
    match authority.split_once(':') {
        Some((host, port)) => Some((host, port.parse().ok()?)),
        None => Some((authority, default_port)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str) -> Option<Target> {
        let spec = EndpointSpec {
            url: url.into(),
            max_concurrent_requests: 1,
            api_key: Some("secret".into()),
            ..EndpointSpec::default()
        };
        Target::new(&spec, "m", Duration::from_secs(1))
    }

    #[test]
    fn health_checks_of_a_server_keep_apart_however_many_are_asked_for() {
        let target = target("http://gpu-1").unwrap();
        let checked = [1, 5, 10, 100, 101, 150, 700].map(|at| target.may_probe(Millis(at)));
        assert_eq!(checked, [true, false, false, false, true, false, true]);
    }

    #[test]
    fn a_url_is_an_authority_and_a_prefix() {
        let t = target("http://10.0.0.1:9001/vllm/").unwrap();
        assert_eq!(
            (t.authority.as_str(), t.prefix.as_str()),
            ("10.0.0.1:9001", "/vllm")
        );
        let t = target("http://[::1]:9001").unwrap();
        assert_eq!(
            (t.host.as_str(), t.port, t.prefix.as_str()),
            ("::1", 9001, "")
        );
        assert_eq!(target("http://gpu-1").unwrap().port, 80);
        let t = target("https://api.example.com/v1").unwrap();
        assert_eq!((t.port, t.prefix.as_str()), (443, "/v1"));
        assert!(t.is_external && t.identity.is_some());
        assert!(!target("http://gpu-1").unwrap().is_external);
        assert!(target("ftp://x").is_none());
    }

    #[test]
    fn a_socket_in_the_file_system_has_a_path_and_perhaps_a_prefix() {
        let t = target("unix:/run/Model.sock:/v1/").unwrap();
        assert_eq!(
            (t.authority.as_str(), t.prefix.as_str()),
            ("localhost", "/v1")
        );
        assert!(t.identity.is_none() && !t.is_external);
        let dials = t.dials.load_full().unwrap();
        let dial = dials.in_order().next().unwrap();
        assert_eq!(dial.to_string(), "unix:/run/Model.sock");
    }

    #[test]
    fn a_name_has_an_address_of_each_family_and_keeps_them_while_they_are_there() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let (six, four, other) = (at("[::1]:9"), at("10.0.0.1:9"), at("10.0.0.2:9"));
        assert_eq!(one_of_each_family(&[six, four, other], &[]), [six, four]);
        assert_eq!(one_of_each_family(&[other, four], &[six, four]), [four]);
        assert_eq!(one_of_each_family(&[other], &[six, four]), [other]);
        assert_eq!(one_of_each_family(&[], &[six]), []);
    }

    #[test]
    fn the_address_that_worked_last_is_tried_first() {
        let target = target("http://gpu-1:9").unwrap();
        let addresses = ["[::1]:9", "10.0.0.1:9"].map(|text| text.parse().unwrap());
        target.set_addresses(&addresses);
        let dials = target.dials.load_full().unwrap();
        let order = |dials: &DialAddresses| {
            dials
                .in_order()
                .map(|d| d.place.clone())
                .collect::<Vec<_>>()
        };
        let addresses = addresses.map(DialPlace::Tcp);
        assert_eq!(order(&dials), addresses);
        let second = Arc::clone(dials.in_order().nth(1).unwrap());
        dials.prefer(&second);
        let [first, second] = addresses;
        assert_eq!(order(&dials), [second, first]);
    }

    #[test]
    fn connections_are_shared_by_address_name_and_certificates_alike() {
        let key = |url: &str| {
            let target = target(url).unwrap();
            target.set_addresses(&["10.0.0.1:443".parse().unwrap()]);
            let dials = target.dials.load_full().unwrap();
            dials.in_order().next().unwrap().pool_key
        };
        assert_eq!(key("http://a:443"), key("http://b:443/v1"));
        assert_eq!(key("https://a"), key("https://a/v1"));
        assert_ne!(key("https://a"), key("https://b"));
        assert_ne!(key("https://a"), key("http://a:443"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn connections_end_when_nothing_is_acknowledged_those_to_nodes_after_five_seconds() {
        let silence = |target: &Target| {
            let dials = target.dials.load_full().unwrap();
            let dial = Arc::clone(dials.in_order().next().unwrap());
            dial.keepalive.user_timeout
        };
        let identity = Arc::new(ServerIdentity::new("b", None).unwrap());
        let node = Target::for_node("10.0.0.1:7070", identity, Duration::from_secs(2)).unwrap();
        assert_eq!(silence(&node), Duration::from_secs(5));
        let endpoint = target("http://10.0.0.1").unwrap();
        assert_eq!(silence(&endpoint), Duration::from_secs(30));
    }

    #[test]
    fn a_debug_print_keeps_the_key_to_itself() {
        assert!(!format!("{:?}", target("http://h:1").unwrap()).contains("secret"));
    }
}
