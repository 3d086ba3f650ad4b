//! Attempts over real sockets: what receivers may do, what they get, and where nothing goes.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::FutureExt;
use futures_util::future::join;
use hmac::{Hmac, Mac};
use infergate_core::job::StoreTime;
use infergate_core::job::receiver_url::ReceiverUrlError;
use infergate_core::job::webhook::{DeliveryResult, WebhookEvent};
use infergate_core::{AccountId, Millis};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::Sha256;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::client::{AttemptReport, WebhookClient, WebhookClocks, WebhookMessage};
use super::guard::HostResolver;
use crate::jobs::config::JobChoices;

/// Wall clock of receivers and client.
const NOW_SECS: u64 = 1_700_000_000;
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// Choices that allow receivers of this host, without TLS, at `port`.
pub fn local_choices(port: u16) -> JobChoices {
    let mut choices = JobChoices::default();
    let webhooks = &mut choices.jobs.webhooks;
    webhooks.secret = Some("0123456789abcdef".into());
    webhooks.allow_http = true;
    webhooks.ports = vec![port];
    webhooks.allow_networks = vec!["127.0.0.0/8".to_owned()];
    choices
}

/// Clocks that stand. The store's is far off, as after a jump of the wall clock.
pub fn fixed_clocks() -> WebhookClocks {
    WebhookClocks {
        store: Arc::new(|| StoreTime(1000)),
        unix_secs: Arc::new(|| NOW_SECS),
    }
}

/// Resolver that gives prepared answers in turn, the last one again and again.
pub struct PreparedAnswers {
    pub answers: Vec<Vec<&'static str>>,
    pub asked: Arc<AtomicUsize>,
}

#[async_trait]
impl HostResolver for PreparedAnswers {
    async fn resolve(&self, _: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let asked = self.asked.fetch_add(1, Ordering::SeqCst);
        let answer = &self.answers[asked.min(self.answers.len() - 1)];
        let address = |ip: &&str| SocketAddr::new(ip.parse().unwrap(), port);
        Ok(answer.iter().map(address).collect())
    }
}

/// Request that a receiver got.
pub struct Received {
    pub head: String,
    pub body: Vec<u8>,
}

impl Received {
    pub fn header(&self, name: &str) -> &str {
        let mut lines = self.head.lines();
        let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.unwrap_or_else(|| panic!("no {name} in {}", self.head))
    }
}

pub async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> Received {
    let mut read = Vec::new();
    loop {
        assert!(stream.read_buf(&mut read).await.unwrap() > 0, "cut short");
        let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8(read[..end].to_vec()).unwrap();
        let body = read[end + 4..].to_vec();
        let received = Received { head, body };
        if received.body.len() == received.header("content-length").parse::<usize>().unwrap() {
            return received;
        }
    }
}

/// A receiver on this host, and a client.
struct Bench {
    listener: TcpListener,
    client: WebhookClient,
    asked: Arc<AtomicUsize>,
    _folder: TempDir,
}

impl Bench {
    async fn new() -> Bench {
        Bench::with(|_, _| {}, &[&["127.0.0.1"]], None).await
    }

    async fn with(
        change: impl FnOnce(&mut JobChoices, SocketAddr),
        answers: &[&[&'static str]],
        authorities: Option<&str>,
    ) -> Bench {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut choices = local_choices(address.port());
        choices.jobs.webhooks.timeout_secs = 1;
        change(&mut choices, address);
        let asked = Arc::new(AtomicUsize::new(0));
        let resolver = Box::new(PreparedAnswers {
            answers: answers.iter().map(|answer| answer.to_vec()).collect(),
            asked: Arc::clone(&asked),
        });
        let folder = tempfile::tempdir().unwrap();
        let authorities = authorities.map(|pem| pem.as_bytes().into());
        Bench {
            client: WebhookClient::new(
                folder.path(),
                choices,
                resolver,
                authorities,
                fixed_clocks(),
                crate::jobs::conformance::metrics(),
            ),
            listener,
            asked,
            _folder: folder,
        }
    }

    async fn deliver(&self, scheme: &str) -> AttemptReport {
        let port = self.listener.local_addr().unwrap().port();
        let url = format!("{scheme}://receiver.test:{port}/hook?a=1");
        self.deliver_to(&url).await
    }

    async fn deliver_to(&self, url: &str) -> AttemptReport {
        let account = AccountId::from("acme");
        let message = WebhookMessage {
            account: &account,
            url,
            id: "job1-completed",
            event: WebhookEvent::Completed,
            body: br#"{"status":"succeeded"}"#.as_slice().into(),
            traceparent: Some(TRACEPARENT),
        };
        self.client.deliver(message).await
    }

    /// Delivers while `serve` plays the receiver with its first connection.
    async fn deliver_while<T>(
        &self,
        serve: impl AsyncFnOnce(TcpStream) -> T,
    ) -> (AttemptReport, T) {
        let serving = async {
            let (tcp, _) = self.listener.accept().await.unwrap();
            serve(tcp).await
        };
        join(self.deliver("http"), serving).await
    }

    async fn deliver_answered(&self, answer: &str) -> (AttemptReport, Received) {
        self.deliver_while(async |mut tcp| {
            let received = read_request(&mut tcp).await;
            tcp.write_all(answer.as_bytes()).await.unwrap();
            received
        })
        .await
    }

    fn assert_no_connection(&self) {
        assert!(self.listener.accept().now_or_never().is_none());
    }
}

const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn failed(status: Option<u16>, retry_after: Option<Millis>) -> DeliveryResult {
    DeliveryResult::Failed {
        status,
        retry_after,
    }
}

#[tokio::test]
async fn a_message_has_our_headers_alone_and_its_signature_can_be_verified() {
    let bench = Bench::new().await;
    let (report, received) = bench.deliver_answered(OK).await;
    assert_eq!(report.result, DeliveryResult::Accepted);
    let port = bench.listener.local_addr().unwrap().port();
    assert!(received.head.starts_with("POST /hook?a=1 HTTP/1.1\r\n"));
    let mut names: Vec<&str> = received.head.lines().skip(1).collect();
    names = names.iter().map(|l| l.split_once(':').unwrap().0).collect();
    let expected = [
        "host",
        "accept-encoding",
        "content-type",
        "user-agent",
        "connection",
        "webhook-id",
        "webhook-timestamp",
        "webhook-signature",
        "traceparent",
        "content-length",
    ];
    assert_eq!(names, expected);
    assert_eq!(received.header("host"), format!("receiver.test:{port}"));
    assert_eq!(received.header("traceparent"), TRACEPARENT);
    let agent = format!("infergate/{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(received.header("user-agent"), agent);
    assert_eq!(received.header("webhook-timestamp"), "1700000000");

    let shown = bench.client.shown_key(&AccountId::from("acme")).unwrap();
    let key = STANDARD.decode(shown.strip_prefix("whsec_").unwrap());
    let mut digest: Hmac<Sha256> = Hmac::new_from_slice(&key.unwrap()).unwrap();
    digest.update(b"job1-completed.1700000000.");
    digest.update(&received.body);
    let expected = STANDARD.encode(digest.finalize().into_bytes());
    assert_eq!(
        received.header("webhook-signature"),
        format!("v1,{expected}")
    );
}

#[tokio::test]
async fn an_answer_counts_by_its_status() {
    let bench = Bench::new().await;
    let pause = Some(Millis(7000));
    for (head, expected) in [
        ("204 No Content\r\n", DeliveryResult::Accepted),
        ("410 Gone\r\n", DeliveryResult::Gone),
        ("500 Error\r\n", failed(Some(500), None)),
        (
            "429 Too Many\r\nretry-after: 7\r\n",
            failed(Some(429), pause),
        ),
        ("301 Moved\r\nlocation: /other\r\n", failed(Some(301), None)),
    ] {
        let answer = format!("HTTP/1.1 {head}connection: close\r\n\r\n");
        let (report, _) = bench.deliver_answered(&answer).await;
        assert_eq!(report.result, expected, "{head}");
        assert_eq!(*report.text, head[..3]);
    }
    bench.assert_no_connection();
}

#[tokio::test]
async fn a_receiver_that_hangs_or_trickles_costs_the_time_of_an_attempt() {
    let bench = Bench::new().await;
    let hang = async |mut tcp: TcpStream| {
        read_request(&mut tcp).await;
        let mut rest = Vec::new();
        // Until the other side has given up.
        tcp.read_to_end(&mut rest).await
    };
    let (report, _) = bench.deliver_while(hang).await;
    assert_eq!(&*report.text, "timeout");
    let trickle = async |mut tcp: TcpStream| {
        read_request(&mut tcp).await;
        let mut ticks = tokio::time::interval(Duration::from_millis(20));
        for byte in OK.bytes().take(30).chain(std::iter::repeat(b'k')) {
            ticks.tick().await;
            if tcp.write_all(&[byte]).await.is_err() {
                return;
            }
        }
    };
    let (report, ()) = bench.deliver_while(trickle).await;
    assert_eq!(&*report.text, "timeout");
}

#[tokio::test]
async fn a_large_answer_is_not_read_to_its_end() {
    const BODY_BYTES: usize = 10_000_000;
    let bench = Bench::new().await;
    let (report, written) = bench
        .deliver_while(async |mut tcp| {
            read_request(&mut tcp).await;
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {BODY_BYTES}\r\n\r\n");
            tcp.write_all(head.as_bytes()).await.unwrap();
            tcp.write_all(&vec![b'x'; BODY_BYTES]).await
        })
        .await;
    assert_eq!(report.result, DeliveryResult::Accepted);
    assert!(written.is_err());
}

#[tokio::test]
async fn a_connection_that_breaks_is_a_failure() {
    let bench = Bench::new().await;
    let (report, ()) = bench
        .deliver_while(async |mut tcp| {
            read_request(&mut tcp).await;
            let socket = socket2::SockRef::from(&tcp);
            socket.set_linger(Some(Duration::ZERO)).unwrap();
        })
        .await;
    assert_eq!(report.result, failed(None, None));
    assert_eq!(&*report.text, "reset");
    let (report, ()) = bench
        .deliver_while(async |mut tcp| {
            read_request(&mut tcp).await;
            tcp.write_all(b"no HTTP at all\r\n\r\n").await.unwrap();
        })
        .await;
    assert_eq!(&*report.text, "not HTTP");
}

#[tokio::test]
async fn a_receiver_proves_its_name_or_gets_nothing() {
    let made = rcgen::generate_simple_self_signed(["receiver.test".to_owned()]).unwrap();
    let (pem, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let other = rcgen::generate_simple_self_signed(["other.test".to_owned()]).unwrap();
    let other_pem = other.cert.pem();
    let chain = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![chain], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    for (authorities, name, expected) in [
        (None, "receiver.test", "not trusted"),
        (Some(&*other_pem), "receiver.test", "not trusted"),
        (Some(&*pem), "wrong.test", "not trusted"),
        (Some(&*pem), "receiver.test", "200"),
    ] {
        let bench = Bench::with(|_, _| {}, &[&["127.0.0.1"]], authorities).await;
        let port = bench.listener.local_addr().unwrap().port();
        let serving = async {
            let (tcp, _) = bench.listener.accept().await.unwrap();
            let mut tls = acceptor.accept(tcp).await.ok()?;
            let received = read_request(&mut tls).await;
            tls.write_all(OK.as_bytes()).await.unwrap();
            tls.shutdown().await.unwrap();
            let asked = tls.get_ref().1.server_name().map(str::to_owned);
            Some((received.header("host").to_owned(), asked))
        };
        let url = format!("https://{name}:{port}/");
        let (report, served) = join(bench.deliver_to(&url), serving).await;
        assert_eq!(&*report.text, expected);
        let shown = Some((format!("{name}:{port}"), Some(name.to_owned())));
        assert_eq!(served, shown.filter(|_| expected == "200"));
    }
}

#[tokio::test]
async fn nothing_goes_to_a_private_address_that_no_network_allows() {
    let forbid = |choices: &mut JobChoices, _| choices.jobs.webhooks.allow_networks.clear();
    // A single forbidden address among the answers refuses the attempt.
    for answers in [&["127.0.0.1"][..], &["192.0.43.10", "127.0.0.1"][..]] {
        let bench = Bench::with(forbid, &[answers], None).await;
        let report = bench.deliver("http").await;
        assert_eq!(&*report.text, "address not allowed: loopback");
        assert_eq!(report.result, failed(None, None));
        bench.assert_no_connection();
    }
}

#[tokio::test]
async fn a_name_is_resolved_once_for_an_attempt_and_judged_again_at_the_next_one() {
    let bench = Bench::with(|_, _| {}, &[&["127.0.0.1"], &["10.0.0.1"]], None).await;
    let (report, _) = bench.deliver_answered(OK).await;
    assert_eq!(&*report.text, "200");
    assert_eq!(bench.asked.load(Ordering::SeqCst), 1);
    let report = bench.deliver("http").await;
    assert_eq!(&*report.text, "address not allowed: private");
    assert_eq!(bench.asked.load(Ordering::SeqCst), 2);
    bench.assert_no_connection();
}

#[tokio::test]
async fn our_own_listeners_get_nothing_whatever_is_allowed() {
    let exact = |choices: &mut JobChoices, address| choices.listeners = vec![address];
    let any = |choices: &mut JobChoices, address: SocketAddr| {
        choices.listeners = vec![SocketAddr::new([0, 0, 0, 0].into(), address.port())];
    };
    let benches = [
        Bench::with(exact, &[&["127.0.0.1"]], None).await,
        Bench::with(any, &[&["127.0.0.1"]], None).await,
    ];
    for bench in benches {
        let report = bench.deliver("http").await;
        assert_eq!(&*report.text, "address not allowed: own listener");
        bench.assert_no_connection();
    }
}

#[tokio::test]
async fn a_url_is_judged_at_submit_without_a_look_at_its_name() {
    let bench = Bench::with(
        |choices, _| {
            let webhooks = &mut choices.jobs.webhooks;
            webhooks.allow_http = false;
            webhooks.ports = vec![443];
        },
        &[&["127.0.0.1"]],
        None,
    )
    .await;
    let refused = |url: &str| bench.client.parse(url).unwrap_err();
    assert_eq!(refused("http://a.test/"), ReceiverUrlError::Scheme);
    assert_eq!(refused("https://u@a.test/"), ReceiverUrlError::UserInfo);
    assert_eq!(refused("https://a.test:22/"), ReceiverUrlError::Port);
    let literal = refused("https://0xa000001/");
    assert!(matches!(literal, ReceiverUrlError::Address(_)));
    assert!(bench.client.parse("https://a.test/x").is_ok());
    assert_eq!(bench.asked.load(Ordering::SeqCst), 0);
}
