//! The channel between two nodes of one process, each with certificates made for the test.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join;
use infergate_core::Millis;
use infergate_core::routing::cluster::{ModelLoad, NodeId, NodeView};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, RevokedCertParams, date_time_ymd,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::credentials::{MembershipRules, NodeCredentials, PeerStream};
use super::{ForwardProgress, NodeNames, PING_PATH, PeerClient};
use crate::telemetry::Clock;
use crate::tls::{CredentialFault, CredentialFile, ServerIdentity};
use crate::upstream::{
    ConnectTimings, HttpClient, OutboundRequest, SendError, Target, UpstreamResponse,
};

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(20);

struct TestAuthority {
    authority: CertifiedIssuer<'static, KeyPair>,
}

/// Certificate and key, PEM.
type Pair = (String, String);

impl TestAuthority {
    fn new(name: &str) -> TestAuthority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        TestAuthority {
            authority: CertifiedIssuer::self_signed(params, key).unwrap(),
        }
    }

    fn ca(&self) -> String {
        self.authority.pem()
    }

    fn certify(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Pair {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.authority).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    /// The list of certificates taken back: this one.
    fn takes_back(&self, serial_number: u64) -> String {
        let revoked = RevokedCertParams {
            serial_number: serial_number.into(),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2090, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.authority).unwrap().pem().unwrap()
    }

    fn credentials(&self, name: &str) -> Arc<NodeCredentials> {
        let pair = self.certify(&[name], |_| ());
        read(&pair, &self.ca(), name).unwrap().0
    }
}

fn read(
    (certificate, key): &Pair,
    ca: &str,
    node: &str,
) -> Result<(Arc<NodeCredentials>, Vec<CredentialFault>), CredentialFault> {
    let circle = MembershipRules::default();
    NodeCredentials::of_pem(
        certificate.as_bytes(),
        key.as_bytes(),
        ca.as_bytes(),
        circle,
        node,
    )
}

fn expired(params: &mut CertificateParams) {
    params.not_before = date_time_ymd(2001, 1, 1);
    params.not_after = date_time_ymd(2002, 1, 1);
}

fn id(name: &str, generation: u64) -> NodeId {
    NodeId {
        name: name.into(),
        generation,
    }
}

fn view(name: &str, address: &str) -> NodeView {
    NodeView {
        node: id(name, 1),
        site: "fra".into(),
        address: address.into(),
        draining: false,
        age: Millis::ZERO,
        rtt_us: 0,
        models: 0,
        load: ModelLoad::default(),
        free: 0,
        in_flight: 0,
        gone: false,
        skip_reason: None,
    }
}

fn peer_client(name: &str, credentials: Arc<NodeCredentials>) -> Arc<PeerClient> {
    let channel = PeerClient::new(id(name, 1), Clock::start());
    channel.configure(credentials, LONG);
    channel
}

fn ping(body: &Bytes) -> OutboundRequest<'_> {
    OutboundRequest {
        method: "GET",
        path: PING_PATH,
        headers: b"",
        body,
        fresh: false,
        is_upgrade: false,
        rest: None,
    }
}

/// A node that answers one request after the other.
struct ServingNode {
    channel: Arc<PeerClient>,
    listener: TcpListener,
    address: String,
}

impl ServingNode {
    async fn by(channel: &Arc<PeerClient>) -> ServingNode {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        ServingNode {
            channel: Arc::clone(channel),
            address: listener.local_addr().unwrap().to_string(),
            listener,
        }
    }

    /// Lets in whoever connects next and answers one request of it.
    async fn one(&self) -> io::Result<PeerStream> {
        let (tcp, _) = self.listener.accept().await?;
        let mut guest = self.channel.accept(tcp).await?;
        let head = answer(&mut guest).await?;
        assert!(head.starts_with("GET /peer/ping HTTP/1.1\r\n"), "{head}");
        Ok(guest)
    }

    /// Answers one request of `client` to the node of this name and generation.
    async fn ask(
        &self,
        client: &PeerClient,
        node: &NodeId,
    ) -> (io::Result<PeerStream>, Result<UpstreamResponse, SendError>) {
        let body = Bytes::new();
        let (mut marks, hearing) = (
            ConnectTimings::default(),
            ForwardProgress::new(Clock::start()),
        );
        let sent = client.send(node, &self.address, ping(&body), &mut marks, &hearing);
        let (served, sent) = join(self.one(), sent).await;
        assert!(!marks.reused, "a new connection is served");
        (served, sent)
    }
}

/// Answers a request without a body; its head.
async fn answer(guest: &mut PeerStream) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(guest.read_u8().await?);
    }
    guest
        .write_all(b"HTTP/1.1 204 No Content\r\nx-infergate-generation: 1\r\n\r\n")
        .await?;
    guest.flush().await?;
    Ok(String::from_utf8(head).unwrap())
}

#[tokio::test]
async fn both_sides_know_each_other_by_name_and_keep_the_connection() {
    let fleet = TestAuthority::new("fleet");
    let pair = fleet.certify(&["a", "A.former", "*.fleet"], |_| ());
    let a = peer_client("a", read(&pair, &fleet.ca(), "a").unwrap().0);
    let served = ServingNode::by(&peer_client("b", fleet.credentials("b"))).await;
    let (guest, exchange) = served.ask(&a, &id("b", 1)).await;
    let (mut guest, exchange) = (guest.unwrap(), exchange.unwrap());
    assert_eq!(exchange.head().status.as_u16(), 204);
    let name = guest.proof().names.clone();
    assert!(name.has("a") && name.has("a.former") && !name.has("b"));
    assert!(!name.has("*.fleet") && !name.has("x.fleet"));
    a.finish(exchange).await;

    let (body, mut marks) = (Bytes::new(), ConnectTimings::default());
    let node = id("b", 1);
    let hearing = ForwardProgress::new(Clock::start());
    let sent = a.send(&node, &served.address, ping(&body), &mut marks, &hearing);
    let (answered, sent) = join(answer(&mut guest), sent).await;
    answered.unwrap();
    assert_eq!(sent.unwrap().head().status.as_u16(), 204);
    assert!(marks.reused);
}

#[tokio::test]
async fn a_connection_is_kept_for_one_name_generation_and_set_of_certificates() {
    let fleet = TestAuthority::new("fleet");
    let a = peer_client("a", fleet.credentials("a"));
    let pair = fleet.certify(&["b", "c"], |_| ());
    let b = peer_client("b", read(&pair, &fleet.ca(), "b").unwrap().0);
    let served = ServingNode::by(&b).await;
    // The same address each time, and a connection in the pool each time.
    let mut kept = Vec::new();
    for node in [id("b", 1), id("b", 2), id("c", 2)] {
        let (guest, exchange) = served.ask(&a, &node).await;
        kept.push(guest.unwrap());
        a.finish(exchange.unwrap()).await;
    }
    a.configure(fleet.credentials("a"), LONG);
    let (guest, exchange) = served.ask(&a, &id("c", 2)).await;
    assert!(guest.is_ok() && exchange.is_ok());
    let let_in_by = kept[0].proof().credentials_digest;
    assert!(b.is_current(let_in_by));
    b.configure(fleet.credentials("b"), LONG);
    assert!(!b.is_current(let_in_by));
    let (guest, exchange) = served.ask(&a, &id("b", 3)).await;
    assert!(
        guest.is_ok_and(|guest| b.is_current(guest.proof().credentials_digest)) && exchange.is_ok()
    );
}

#[tokio::test]
async fn a_kept_connection_that_ends_before_an_answer_is_replaced_by_a_new_one_once() {
    let fleet = TestAuthority::new("fleet");
    let a = peer_client("a", fleet.credentials("a"));
    let served = ServingNode::by(&peer_client("b", fleet.credentials("b"))).await;
    let node = id("b", 1);
    let (guest, exchange) = served.ask(&a, &node).await;
    a.finish(exchange.unwrap()).await;
    let (body, mut marks) = (Bytes::new(), ConnectTimings::default());
    let hearing = ForwardProgress::new(Clock::start());
    let sent = a.send(&node, &served.address, ping(&body), &mut marks, &hearing);
    let mut guest = guest.unwrap();
    let ending = async {
        guest.read_u8().await.unwrap();
        // Without a goodbye, as the end of a process.
        drop(guest);
        let (tcp, _) = served.listener.accept().await.unwrap();
        let mut guest = served.channel.accept(tcp).await.unwrap();
        guest.read_u8().await.unwrap();
    };
    let sent = join(ending, sent).await.1.err();
    assert!(matches!(sent, Some(SendError::Lost(_))), "{sent:?}");
    assert!(marks.replaced);
}

#[tokio::test]
async fn a_node_with_another_name_or_authority_or_an_expired_certificate_is_sent_nothing() {
    let (fleet, other) = (TestAuthority::new("fleet"), TestAuthority::new("other"));
    let a = peer_client("a", fleet.credentials("a"));
    let late = fleet.certify(&["b"], expired);
    let (late, warnings) = read(&late, &fleet.ca(), "b").unwrap();
    assert!(warnings[0].message.contains("expired"), "{warnings:?}");
    for (why, credentials) in [
        ("another name", fleet.credentials("c")),
        ("another authority", other.credentials("b")),
        ("expired", late),
    ] {
        let served = ServingNode::by(&peer_client("b", credentials)).await;
        let (guest, sent) = served.ask(&a, &id("b", 1)).await;
        assert!(guest.is_err(), "{why}");
        assert!(matches!(sent, Err(SendError::NotTrusted(_))), "{why}");
    }
}

#[tokio::test]
async fn who_has_no_certificate_of_the_fleet_is_not_let_in_and_reads_why() {
    let (fleet, other) = (TestAuthority::new("fleet"), TestAuthority::new("other"));
    let served = ServingNode::by(&peer_client("b", fleet.credentials("b"))).await;
    let late = fleet.certify(&["a"], expired);
    let stranger = other.certify(&["a"], |_| ());
    let both = format!("{}{}", fleet.ca(), other.ca());
    for (why, credentials) in [
        ("expired", read(&late, &fleet.ca(), "a").unwrap().0),
        ("another authority", read(&stranger, &both, "a").unwrap().0),
    ] {
        let (guest, sent) = served
            .ask(&peer_client("a", credentials), &id("b", 1))
            .await;
        assert!(guest.is_err(), "{why}");
        let sent = sent.err();
        assert!(
            matches!(sent, Some(SendError::NotTrusted(_))),
            "{why}: {sent:?}"
        );
    }
    let unknown = ServerIdentity::new("b", Some(fleet.ca().as_bytes())).unwrap();
    let target = Target::for_node(&served.address, Arc::new(unknown), LONG).unwrap();
    let (client, body, mut marks) = (
        HttpClient::default(),
        Bytes::new(),
        ConnectTimings::default(),
    );
    let sent = client.send(&target, ping(&body), &mut marks);
    let (guest, sent) = join(served.one(), sent).await;
    assert!(guest.is_err());
    assert!(matches!(sent, Err(SendError::NotTrusted(_))));
}

#[tokio::test]
async fn all_nodes_are_told_of_a_drain_at_once_and_those_that_are_silent_hold_nobody_up() {
    let fleet = TestAuthority::new("fleet");
    let a = peer_client("a", fleet.credentials("a"));
    let b = ServingNode::by(&peer_client("b", fleet.credentials("b"))).await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nodes = [
        view("c", &silent.local_addr().unwrap().to_string()),
        view("b", &b.address),
    ];
    let serving = async {
        let (tcp, _) = b.listener.accept().await.unwrap();
        let mut guest = b.channel.accept(tcp).await.unwrap();
        answer(&mut guest).await.unwrap()
    };
    // The silent one costs the limit, which is for the other one to answer on a slow machine.
    let telling = a.announce_draining(&nodes, Duration::from_secs(3));
    let (head, sent) = join(serving, telling).await;
    assert_eq!(sent, 1);
    assert!(
        head.starts_with("POST /peer/draining HTTP/1.1\r\n"),
        "{head}"
    );
    for line in [
        "x-infergate-node: a",
        "x-infergate-generation: 1",
        "content-length: 0",
    ] {
        assert!(head.contains(&format!("\r\n{line}\r\n")), "{head}");
    }
}

#[tokio::test]
async fn a_round_trip_is_measured_and_a_node_that_is_not_there_has_none() {
    let fleet = TestAuthority::new("fleet");
    let a = peer_client("a", fleet.credentials("a"));
    let b = ServingNode::by(&peer_client("b", fleet.credentials("b"))).await;
    let node = view("b", &b.address);
    let (guest, rtt_us) = join(b.one(), a.ping(&node, LONG)).await;
    assert!(guest.is_ok() && rtt_us.is_some());
    drop((guest, b));
    assert_eq!(a.ping(&node, LONG).await, None);
}

#[tokio::test]
async fn a_certificate_that_was_taken_back_or_is_of_another_name_is_not_let_in() {
    let fleet = TestAuthority::new("fleet");
    let own = fleet.certify(&["a"], |_| ());
    let circle = MembershipRules {
        names: NodeNames::new(&["a".into(), "gpu-*".into()]),
        crl: Some(fleet.takes_back(7).into_bytes()),
    };
    let ca = fleet.ca();
    let of_a = |circle: MembershipRules| {
        NodeCredentials::of_pem(
            own.0.as_bytes(),
            own.1.as_bytes(),
            ca.as_bytes(),
            circle,
            "a",
        )
    };
    let (credentials, _) = of_a(circle.clone()).unwrap();
    assert!(credentials.identity("gpu-1", 1).is_ok());
    assert!(
        credentials.identity("grafana", 1).is_err(),
        "nor is it asked"
    );
    let served = ServingNode::by(&peer_client("a", credentials)).await;
    let is_let_in = async |name: &str, serial: u64| {
        let pair = fleet.certify(&[name], |params| params.serial_number = Some(serial.into()));
        let client = peer_client(name, read(&pair, &ca, name).unwrap().0);
        served.ask(&client, &id("a", 1)).await.0.is_ok()
    };
    assert!(is_let_in("gpu-1", 8).await);
    assert!(!is_let_in("gpu-1", 7).await, "taken back");
    assert!(!is_let_in("grafana", 9).await, "of another name");
    let spoilt = MembershipRules {
        crl: Some(b"-----BEGIN NOTHING-----".to_vec()),
        ..circle
    };
    assert_eq!(of_a(spoilt).err().unwrap().file, CredentialFile::Crl);
    let damaged = MembershipRules {
        crl: Some(b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n".to_vec()),
        ..MembershipRules::default()
    };
    let fault = of_a(damaged).err().unwrap();
    assert_eq!(fault.file, CredentialFile::Crl, "{}", fault.message);
    let with_list_of = |authority: &TestAuthority| {
        let rules = MembershipRules {
            crl: Some(authority.takes_back(7).into_bytes()),
            ..MembershipRules::default()
        };
        of_a(rules).unwrap().1
    };
    assert_eq!(with_list_of(&fleet), []);
    let warnings = with_list_of(&TestAuthority::new("other"));
    assert_eq!(warnings[0].file, CredentialFile::Crl);
    assert!(
        warnings[0].message.contains("neither of an authority"),
        "{warnings:?}"
    );
}

#[tokio::test]
async fn without_certificates_nobody_is_asked() {
    let closed = PeerClient::new(id("a", 1), Clock::start());
    let (body, mut marks) = (Bytes::new(), ConnectTimings::default());
    let node = id("b", 1);
    let hearing = ForwardProgress::new(Clock::start());
    let sent = closed.send(&node, "127.0.0.1:1", ping(&body), &mut marks, &hearing);
    assert!(matches!(sent.await, Err(SendError::Connect(_))));
}

#[tokio::test]
async fn a_node_that_goes_while_it_waits_has_departed() {
    let fleet = TestAuthority::new("fleet");
    let a = peer_client("a", fleet.credentials("a"));
    let served = ServingNode::by(&peer_client("b", fleet.credentials("b"))).await;
    let (guest, exchange) = served.ask(&a, &id("b", 1)).await;
    let guest = guest.unwrap();
    assert!(futures_util::poll!(Box::pin(guest.closed())).is_pending());
    drop(exchange);
    guest.closed().await;
}

#[test]
fn files_that_do_not_fit_say_which_one_and_why() {
    let (fleet, other) = (TestAuthority::new("fleet"), TestAuthority::new("other"));
    let (good, second) = (fleet.certify(&["a"], |_| ()), fleet.certify(&["a"], |_| ()));
    let servers_only = fleet.certify(&["a"], |params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    });
    let ca = fleet.ca();
    let none = String::new();
    let cases = [
        (
            (none.clone(), good.1.clone()),
            &ca,
            "certificate",
            "no certificate in it",
        ),
        (
            (good.0.clone(), none.clone()),
            &ca,
            "private_key",
            "no private key in it",
        ),
        (
            (good.0.clone(), second.1.clone()),
            &ca,
            "private_key",
            "does not go with",
        ),
        (
            (
                good.0.clone(),
                "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n".into(),
            ),
            &ca,
            "private_key",
            "its key cannot be used",
        ),
        (
            (format!("{ca}{}", good.0), good.1.clone()),
            &ca,
            "certificate",
            "certificate 2 is that of `private_key`, and has to be the first",
        ),
        (good.clone(), &none, "client_ca", "no certificate in it"),
        (good.clone(), &other.ca(), "certificate", "UnknownIssuer"),
        (
            servers_only,
            &ca,
            "certificate",
            "nodes that are connected to",
        ),
        (
            fleet.certify(&["b", "*"], |_| ()),
            &ca,
            "certificate",
            "[\"b\"]",
        ),
    ];
    for (pair, ca, key, part) in cases {
        let CredentialFault { file, message } = read(&pair, ca, "a").err().unwrap();
        assert_eq!(file.key(), key, "{message}");
        assert!(message.contains(part), "no {part:?} in {message}");
    }
    assert!(read(&good, &ca, "A").unwrap().1.is_empty());
}
