//! Receivers that no webhook may reach, each asked for in every way there is: no listener there sees a connection.
//!
//! Not the rules, whose own tests are the core's: here attempts are made over real sockets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use futures_util::FutureExt;
use futures_util::future::join;
use infergate_core::AccountId;
use infergate_core::job::webhook::{DeliveryResult, WebhookEvent};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use super::client::{AttemptReport, WebhookClient, WebhookMessage};
use super::tests::{PreparedAnswers, fixed_clocks, local_choices, read_request};
use crate::jobs::config::JobChoices;

/// Address that is allowed here, as if it were a public one.
const PUBLIC: &str = "127.0.0.9";

/// Ends and middles of the forbidden ranges of IPv4.
const FORBIDDEN_V4: &[[u8; 4]] = &[
    [0, 0, 0, 0],
    [0, 1, 2, 3],
    [10, 0, 0, 1],
    [10, 255, 255, 255],
    [100, 64, 0, 1],
    [100, 100, 100, 200],
    [127, 0, 0, 1],
    [127, 0, 0, 2],
    [127, 255, 255, 254],
    [168, 63, 129, 16],
    [169, 254, 0, 1],
    [169, 254, 169, 254],
    [169, 254, 170, 2],
    [172, 16, 0, 1],
    [172, 31, 255, 255],
    [192, 0, 0, 192],
    [192, 0, 2, 1],
    [192, 88, 99, 1],
    [192, 168, 1, 1],
    [198, 18, 0, 1],
    [198, 51, 100, 7],
    [203, 0, 113, 255],
    [224, 0, 0, 1],
    [240, 0, 0, 1],
    [255, 255, 255, 255],
];

/// Addresses of the forbidden ranges of IPv6.
const FORBIDDEN_V6: &[&str] = &[
    "::",
    "::1",
    "::2",
    "::7f00:1",
    "64:ff9b::1",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:2::1",
    "2001:10::1",
    "2001:20::1",
    "2001:db8::1",
    "2002:7f00:1::1",
    "3fff::1",
    "fd00:ec2::254",
    "fd20:ce::254",
    "fc00::1",
    "fd12:3456::1",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "4000::1",
    "8000::1",
];

/// Notations of an address, and forms of IPv6 that carry it.
fn notations([a, b, c, d]: [u8; 4]) -> Vec<String> {
    let bits = u32::from_be_bytes([a, b, c, d]);
    let (high, low, low24) = (bits >> 16, bits & 0xffff, bits & 0xff_ffff);
    vec![
        format!("{a}.{b}.{c}.{d}"),
        format!("{a}.{b}.{c}.{d}."),
        format!("{a}.{b}.{low}"),
        format!("{a}.{low24}"),
        format!("{bits}"),
        format!("0x{bits:08x}"),
        format!("0{bits:o}"),
        format!("0x{a:x}.0{b:o}.{c}.0x{d:X}"),
        format!("[::ffff:{a}.{b}.{c}.{d}]"),
        format!("[::FFFF:{high:x}:{low:x}]"),
        format!("[::{a}.{b}.{c}.{d}]"),
        format!("[::ffff:0:{high:x}:{low:x}]"),
        format!("[64:ff9b::{high:x}:{low:x}]"),
        format!("[2002:{high:x}:{low:x}::1]"),
        format!("[2001::{:x}:{:x}]", !bits >> 16, !bits & 0xffff),
    ]
}

/// Listeners of one port on the addresses of this host that can be bound, and a client that may reach [`PUBLIC`] alone.
struct Guarded {
    port: u16,
    public: TcpListener,
    forbidden: Vec<TcpListener>,
    choices: JobChoices,
}

impl Guarded {
    async fn new() -> Guarded {
        loop {
            let first = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = first.local_addr().unwrap().port();
            // Another program may have the port there.
            let Ok(public) = TcpListener::bind((PUBLIC, port)).await else {
                continue;
            };
            let mut forbidden = vec![first];
            let outward = UdpSocket::bind("0.0.0.0:0").unwrap();
            let own = outward.connect("93.184.215.14:9");
            let own = own.and_then(|()| outward.local_addr());
            let others = [
                Some(IpAddr::from([127, 0, 0, 2])),
                Some(Ipv6Addr::LOCALHOST.into()),
                own.ok().map(|own| own.ip()),
            ];
            for address in others.into_iter().flatten() {
                forbidden.extend(TcpListener::bind((address, port)).await);
            }
            let mut choices = local_choices(port);
            choices.jobs.webhooks.timeout_secs = 1;
            choices.jobs.webhooks.allow_networks = vec![PUBLIC.to_owned()];
            return Guarded {
                port,
                public,
                forbidden,
                choices,
            };
        }
    }

    /// A client for which names have these addresses in turn.
    fn client(&self, answers: &[&[&'static str]]) -> WebhookClient {
        let resolver = PreparedAnswers {
            answers: answers.iter().map(|answer| answer.to_vec()).collect(),
            asked: Arc::new(AtomicUsize::new(0)),
        };
        let folder = tempfile::tempdir().unwrap();
        WebhookClient::new(
            folder.path(),
            self.choices.clone(),
            Box::new(resolver),
            None,
            fixed_clocks(),
            crate::jobs::conformance::metrics(),
        )
    }

    fn assert_untouched(&self) {
        for listener in &self.forbidden {
            let seen = listener.accept().now_or_never();
            assert!(seen.is_none(), "{:?}", listener.local_addr());
        }
    }
}

async fn deliver(client: &WebhookClient, url: &str) -> AttemptReport {
    let account = AccountId::from("acme");
    let message = WebhookMessage {
        account: &account,
        url,
        id: "job1-completed",
        event: WebhookEvent::Completed,
        body: b"{}".as_slice().into(),
        traceparent: None,
    };
    client.deliver(message).await
}

fn assert_refused(report: &AttemptReport, url: &str) {
    let nothing = DeliveryResult::Failed {
        status: None,
        retry_after: None,
    };
    assert_eq!(report.result, nothing, "{url}");
    let texts = [
        "address not allowed: ",
        "URL not valid",
        "port not allowed",
        "scheme not allowed",
    ];
    let text = &*report.text;
    assert!(
        texts.iter().any(|known| text.starts_with(known)),
        "{url}: {text}"
    );
    assert!(!text.contains(['/', '[']), "{url}: {text}");
}

#[tokio::test]
async fn no_notation_of_a_forbidden_address_is_connected_to() {
    let guarded = Guarded::new().await;
    let port = guarded.port;
    let client = guarded.client(&[&[PUBLIC]]);
    let mut urls: Vec<String> = Vec::new();
    for address in FORBIDDEN_V4 {
        let hosts = notations(*address).into_iter();
        urls.extend(hosts.map(|host| format!("http://{host}:{port}/x")));
    }
    urls.extend(
        FORBIDDEN_V6
            .iter()
            .map(|host| format!("http://[{host}]:{port}/")),
    );
    for listener in &guarded.forbidden {
        urls.push(format!("http://{}/", listener.local_addr().unwrap()));
    }
    for host in ["127.0.0.1", "[::1]", PUBLIC, "receiver.test"] {
        for user in [
            "u@",
            "u:p@",
            ":@",
            "receiver.test@",
            "receiver.test:80@",
            "%40@",
        ] {
            urls.push(format!("http://{user}{host}:{port}/"));
        }
    }
    for host in [PUBLIC, "receiver.test"] {
        for other in ["0", "22", "25", "6379", "65536", "+1", "0x50", "x"] {
            urls.push(format!("http://{host}:{other}/"));
        }
        for scheme in ["ftp", "file", "gopher", "unix", "ws", "httpss"] {
            urls.push(format!("{scheme}://{host}:{port}/"));
        }
    }
    for host in [
        "[fe80::1%25lo]",
        "[::1%25lo]",
        "127.0.0.1%00",
        "%31%32%37.0.0.1",
        "127.0.0.1..",
        "[::1",
        "1.2.3.4.5",
    ] {
        urls.push(format!("http://{host}:{port}/"));
    }
    assert!(urls.len() >= 200, "{}", urls.len());
    for url in &urls {
        assert_refused(&deliver(&client, url).await, url);
    }
    guarded.assert_untouched();
    assert!(guarded.public.accept().now_or_never().is_none());
}

#[tokio::test]
async fn no_name_with_a_forbidden_address_is_connected_to() {
    let guarded = Guarded::new().await;
    let url = format!("http://receiver.test:{}/", guarded.port);
    let texts = FORBIDDEN_V4
        .iter()
        .map(|address| Ipv4Addr::from(*address).to_string());
    let texts = texts.chain(FORBIDDEN_V6.iter().map(|&text| text.to_owned()));
    for text in texts {
        let text: &'static str = text.leak();
        let alone: &[&'static str] = &[text];
        // The allowed one goes first: it would be connected to.
        for answer in [
            alone,
            &[PUBLIC, text],
            &[PUBLIC, PUBLIC, PUBLIC, PUBLIC, PUBLIC, text],
        ] {
            let client = guarded.client(&[answer]);
            assert_refused(&deliver(&client, &url).await, text);
        }
    }
    guarded.assert_untouched();
    assert!(guarded.public.accept().now_or_never().is_none());
}

#[tokio::test]
async fn a_name_that_changes_its_address_after_the_check_is_connected_to_where_it_was() {
    let guarded = Guarded::new().await;
    let url = format!("http://receiver.test:{}/", guarded.port);
    let client = guarded.client(&[&[PUBLIC], &["127.0.0.1"]]);
    let serving = async {
        let (mut tcp, _) = guarded.public.accept().await.unwrap();
        read_request(&mut tcp).await;
        let ok = b"HTTP/1.1 204 No Content\r\n\r\n";
        tcp.write_all(ok).await.unwrap();
    };
    let (report, ()) = join(deliver(&client, &url), serving).await;
    assert_eq!(report.result, DeliveryResult::Accepted);
    assert_refused(&deliver(&client, &url).await, &url);
    guarded.assert_untouched();
}

#[tokio::test]
async fn no_redirect_is_followed() {
    let guarded = Guarded::new().await;
    let port = guarded.port;
    let url = format!("http://{PUBLIC}:{port}/");
    let client = guarded.client(&[&[PUBLIC]]);
    for status in [300, 301, 302, 303, 307, 308] {
        for target in [
            format!("http://127.0.0.1:{port}/"),
            format!("//[::1]:{port}/"),
            "/".to_owned(),
        ] {
            let serving = async {
                let (mut tcp, _) = guarded.public.accept().await.unwrap();
                read_request(&mut tcp).await;
                let head = format!(
                    "HTTP/1.1 {status} X\r\nlocation: {target}\r\ncontent-length: 0\r\n\r\n"
                );
                tcp.write_all(head.as_bytes()).await.unwrap();
            };
            let (report, ()) = join(deliver(&client, &url), serving).await;
            assert_eq!(*report.text, status.to_string());
        }
    }
    guarded.assert_untouched();
    assert!(guarded.public.accept().now_or_never().is_none());
}

#[tokio::test]
async fn listeners_that_are_bound_stay_forbidden_when_a_reload_names_others() {
    let mut guarded = Guarded::new().await;
    let urls = [
        format!("http://127.0.0.1:{}/", guarded.port),
        format!("http://receiver.test:{}/", guarded.port),
    ];
    guarded.choices.jobs.webhooks.allow_networks = vec!["127.0.0.0/8".to_owned()];
    let own = SocketAddr::from(([127, 0, 0, 1], guarded.port));
    guarded.choices.listeners = vec![own];
    let client = guarded.client(&[&["127.0.0.1"]]);
    let mut reloaded = guarded.choices.clone();
    let next = SocketAddr::from(([127, 0, 0, 1], 1));
    reloaded.listeners = vec![next];
    reloaded.keep_listeners(&[own]);
    assert_eq!(reloaded.listeners, [next, own]);
    client.configure(&reloaded);
    for url in &urls {
        let report = deliver(&client, url).await;
        assert_eq!(&*report.text, "address not allowed: own listener");
    }
    guarded.assert_untouched();
}
