//! The second anchor: the smallest reverse proxy hyper can be.
//! Not a product: no timeouts, no header rules, one upstream; it shows what a Rust hop costs without Pingora.
//!
//! Single-threaded. Run as a child process: `hyper PORT UPSTREAM_PORT`.

use http::uri::{Authority, Scheme};
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

use crate::kit::Fallible;
use crate::kit::process::loopback;

type Upstreams = Client<HttpConnector, Incoming>;

/// Proxies until the process is killed.
pub fn run(port: u16, upstream_port: u16) -> Fallible<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let upstreams: Upstreams = Client::builder(TokioExecutor::new()).build(connector);
        let authority: Authority = loopback(upstream_port).to_string().parse()?;
        let listener = TcpListener::bind(loopback(port)).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let (upstreams, authority) = (upstreams.clone(), authority.clone());
            tokio::spawn(async move {
                let service = service_fn(move |request| {
                    forward(upstreams.clone(), authority.clone(), request)
                });
                // A connection that ends in the middle is the client's right.
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    })
}

async fn forward(
    upstreams: Upstreams,
    authority: Authority,
    mut request: Request<Incoming>,
) -> Fallible<Response<Incoming>> {
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Some(authority);
    *request.uri_mut() = Uri::from_parts(parts)?;
    Ok(upstreams.request(request).await?)
}
