//! Requests over real sockets: kept connections that end, answers that come early, what is kept.

use std::sync::atomic::AtomicUsize;

use infergate_core::model::EndpointSpec;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::*;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn target_at(url: &str) -> Target {
    let spec = EndpointSpec {
        url: url.into(),
        max_concurrent_requests: 1,
        ..EndpointSpec::default()
    };
    Target::new(&spec, "m", Duration::from_secs(2)).unwrap()
}

/// A server of one listener, and the way to it.
struct Bench {
    listener: TcpListener,
    target: Target,
    client: HttpClient,
    marks: ConnectTimings,
}

impl Bench {
    async fn new() -> Bench {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = target_at(&format!("http://{}", listener.local_addr().unwrap()));
        Bench {
            listener,
            target,
            client: HttpClient::default(),
            marks: ConnectTimings::default(),
        }
    }

    /// Sends `body` while `serve` plays the server.
    async fn send<T>(
        &mut self,
        body: &Bytes,
        serve: impl AsyncFnOnce(&TcpListener) -> T,
    ) -> (Result<UpstreamResponse, SendError>, T) {
        self.marks = ConnectTimings::default();
        let outgoing = OutboundRequest {
            method: "POST",
            path: "/",
            headers: b"",
            body,
            fresh: false,
            is_upgrade: false,
            rest: None,
        };
        let sent = self.client.send(&self.target, outgoing, &mut self.marks);
        futures_util::future::join(sent, serve(&self.listener)).await
    }

    /// Sends one request that is answered with `answer`; its connection, from the server's side.
    async fn warm(&mut self, answer: &str) -> TcpStream {
        let served = async |listener: &TcpListener| {
            let (mut tcp, _) = listener.accept().await.unwrap();
            read_request(&mut tcp).await;
            tcp.write_all(answer.as_bytes()).await.unwrap();
            tcp
        };
        let (sent, tcp) = self.send(&Bytes::from_static(b"warm"), served).await;
        let mut exchange = sent.unwrap();
        while exchange.chunk().await.unwrap().is_some() {}
        self.client.finish(exchange).await;
        tcp
    }
}

/// Head and body of a request whose body ends with `warm` or `two`.
async fn read_request(tcp: &mut TcpStream) -> String {
    let mut read = Vec::new();
    while !read.ends_with(b"warm") && !read.ends_with(b"two") {
        assert!(tcp.read_buf(&mut read).await.unwrap() > 0, "cut short");
    }
    String::from_utf8(read).unwrap()
}

async fn accept_and_answer(listener: &TcpListener) -> String {
    let (mut tcp, _) = listener.accept().await.unwrap();
    let request = read_request(&mut tcp).await;
    tcp.write_all(OK.as_bytes()).await.unwrap();
    request
}

const TWO: Bytes = Bytes::from_static(b"two");

#[tokio::test]
async fn a_name_whose_first_address_refuses_is_reached_by_the_next_one() {
    let refusing = TcpSocket::new_v4().unwrap();
    refusing.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = target_at("http://a-name:1");
    let refused = refusing.local_addr().unwrap();
    target.set_addresses(&[refused, listener.local_addr().unwrap()]);
    let client = HttpClient::default();
    assert!(
        client
            .open_connection(&target, (false, false))
            .await
            .is_ok()
    );
    target.set_addresses(&[refused]);
    let error = client
        .open_connection(&target, (false, false))
        .await
        .err()
        .unwrap();
    assert_eq!(error.cause(), "refused");
}

#[tokio::test]
async fn a_request_asks_for_an_answer_that_is_not_compressed() {
    let mut bench = Bench::new().await;
    let (sent, request) = bench.send(&TWO, accept_and_answer).await;
    assert_eq!(sent.unwrap().head().status, 200);
    let lines = request.matches("accept-encoding: identity\r\n");
    assert_eq!(lines.count(), 1, "{request}");
}

#[tokio::test]
async fn a_kept_connection_is_used_again() {
    let mut bench = Bench::new().await;
    let mut tcp = bench.warm(OK).await;
    let served = async |_: &TcpListener| {
        read_request(&mut tcp).await;
        tcp.write_all(OK.as_bytes()).await.unwrap();
    };
    let (sent, ()) = bench.send(&TWO, served).await;
    assert!(sent.is_ok() && bench.marks.reused);
}

#[tokio::test]
async fn a_connection_that_was_closed_or_spoke_while_it_waited_is_not_used() {
    for words in ["", "HTTP/1.1 408 Request Timeout\r\n\r\n"] {
        let mut bench = Bench::new().await;
        let mut tcp = bench.warm(OK).await;
        tcp.write_all(words.as_bytes()).await.unwrap();
        drop(tcp);
        // On the loopback the kernel has passed it on by now; a turn of the runtime hears of it.
        tokio::task::yield_now().await;
        let (sent, _) = bench.send(&TWO, accept_and_answer).await;
        assert_eq!(sent.unwrap().head().status, 200);
        assert!(!bench.marks.reused && !bench.marks.replaced, "{words:?}");
    }
}

#[tokio::test]
async fn a_close_that_the_runtime_has_not_heard_of_costs_no_request() {
    let mut bench = Bench::new().await;
    drop(bench.warm(OK).await);
    let (sent, _) = bench.send(&TWO, accept_and_answer).await;
    assert_eq!(sent.unwrap().head().status, 200);
    assert!(bench.marks.replaced);
}

#[tokio::test]
async fn a_kept_connection_that_breaks_under_a_request_is_replaced_once() {
    let mut bench = Bench::new().await;
    let mut tcp = bench.warm(OK).await;
    let served = async |listener: &TcpListener| {
        read_request(&mut tcp).await;
        drop(tcp);
        accept_and_answer(listener).await
    };
    // Both ends run in this task: nothing comes between the write and the close.
    let (sent, _) = bench.send(&TWO, served).await;
    assert_eq!(sent.unwrap().head().status, 200);
    assert!(!bench.marks.reused && bench.marks.replaced);
    // And when the new one breaks too, that is the end.
    let mut bench = Bench::new().await;
    let mut tcp = bench.warm(OK).await;
    let served = async |listener: &TcpListener| {
        read_request(&mut tcp).await;
        drop(tcp);
        let (mut tcp, _) = listener.accept().await.unwrap();
        read_request(&mut tcp).await;
    };
    let (sent, ()) = bench.send(&TWO, served).await;
    let error = sent.err().unwrap();
    assert!(matches!(error, SendError::Lost(_)), "{error:?}");
    assert_eq!(error.cause(), "closed");
}

#[tokio::test]
async fn a_kept_connection_that_breaks_after_a_byte_of_an_answer_loses_its_request() {
    for words in [
        "HTTP/1.1 102 Processing\r\n\r\n",
        "HTTP/1.1 200 OK\r\nConte",
    ] {
        let mut bench = Bench::new().await;
        let mut tcp = bench.warm(OK).await;
        let served = async |_: &TcpListener| {
            read_request(&mut tcp).await;
            tcp.write_all(words.as_bytes()).await.unwrap();
            drop(tcp);
        };
        let (sent, ()) = bench.send(&TWO, served).await;
        let error = sent.err().unwrap();
        assert!(matches!(error, SendError::Lost(_)), "{words:?}: {error:?}");
        assert!(!bench.marks.replaced);
    }
}

#[tokio::test]
async fn what_is_no_http_is_lost_and_its_bytes_are_not_in_the_cause() {
    let mut bench = Bench::new().await;
    let served = async |listener: &TcpListener| {
        let (mut tcp, _) = listener.accept().await.unwrap();
        read_request(&mut tcp).await;
        tcp.write_all(b"\x1b[2J secret\r\n\r\n").await.unwrap();
    };
    let (sent, ()) = bench.send(&TWO, served).await;
    assert_eq!(sent.err().unwrap().cause(), "not HTTP");
}

#[tokio::test]
async fn an_answer_that_comes_before_the_body_was_taken_is_read() {
    const REFUSED: &str = "HTTP/1.1 413 Payload Too Large\r\nContent-Length: 2\r\n\r\nno";
    // Far more than the kernel takes for a server that does not read.
    let body = Bytes::from(vec![b'x'; 32 << 20]);
    for closes in [false, true] {
        let mut bench = Bench::new().await;
        let served = async |listener: &TcpListener| {
            let (mut tcp, _) = listener.accept().await.unwrap();
            assert!(tcp.read(&mut [0; 512]).await.unwrap() > 0);
            tcp.write_all(REFUSED.as_bytes()).await.unwrap();
            (!closes).then_some(tcp)
        };
        let (sent, tcp) = bench.send(&body, served).await;
        let mut exchange = sent.unwrap();
        assert_eq!(exchange.head().status, 413, "closes: {closes}");
        assert_eq!(&*exchange.chunk().await.unwrap().unwrap(), b"no");
        let _ = exchange.chunk().await;
        bench.client.finish(exchange).await;
        assert_eq!(bench.client.pool.kept(), 0, "half a request is on it");
        drop(tcp);
    }
}

#[tokio::test]
async fn a_large_body_arrives_whole_while_the_answer_is_waited_for() {
    let body = Bytes::from(vec![b'x'; 8 << 20]);
    let mut bench = Bench::new().await;
    let arrived = AtomicUsize::new(0);
    let served = async |listener: &TcpListener| {
        let (mut tcp, _) = listener.accept().await.unwrap();
        let mut piece = vec![0; 1 << 16];
        while arrived.load(Ordering::Relaxed) < 8 << 20 {
            let read = tcp.read(&mut piece).await.unwrap();
            let xs = piece[..read].iter().filter(|byte| **byte == b'x').count();
            arrived.fetch_add(xs, Ordering::Relaxed);
        }
        tcp.write_all(OK.as_bytes()).await.unwrap();
    };
    let (sent, ()) = bench.send(&body, served).await;
    assert_eq!(sent.unwrap().head().status, 200);
}

#[tokio::test]
async fn a_connection_is_kept_as_long_as_the_server_says() {
    for (said, kept) in [
        ("", 1),
        ("Keep-Alive: timeout=5, max=100\r\n", 1),
        ("Keep-Alive: timeout=5, max=1\r\n", 0),
        ("Keep-Alive: timeout=0\r\n", 0),
        ("Connection: close\r\n", 0),
    ] {
        let mut bench = Bench::new().await;
        let answer = format!("HTTP/1.1 200 OK\r\n{said}Content-Length: 2\r\n\r\nok");
        let _tcp = bench.warm(&answer).await;
        assert_eq!(bench.client.pool.kept(), kept, "{said:?}");
    }
}

#[tokio::test]
async fn a_server_that_closes_after_each_answer_is_not_kept_for_until_it_is_tried_again() {
    let mut bench = Bench::new().await;
    for _ in 0..3 {
        drop(bench.warm(OK).await);
        bench.client.sweep();
        assert_eq!(bench.client.pool.kept(), 0, "swept");
    }
    let _tcp = bench.warm(OK).await;
    assert_eq!(bench.client.pool.kept(), 0);
}

#[tokio::test]
async fn the_connection_of_a_short_answer_that_is_not_passed_on_is_kept() {
    let mut bench = Bench::new().await;
    let busy = "HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy";
    let served = async |listener: &TcpListener| {
        let (mut tcp, _) = listener.accept().await.unwrap();
        read_request(&mut tcp).await;
        tcp.write_all(busy.as_bytes()).await.unwrap();
        tcp
    };
    let (sent, _tcp) = bench.send(&TWO, served).await;
    bench.client.discard(sent.unwrap()).await;
    assert_eq!(bench.client.pool.kept(), 1);
}
