//! The yardstick: an empty Pingora `ProxyHttp` proxy with one static upstream.
//! Not ours in any part but the address: every target of the bench is a ratio to what this costs.
//!
//! Single worker thread, a keep-alive pool of 1,024. Run as a child process: `bare PORT UPSTREAM_PORT`.

use std::net::SocketAddr;

use async_trait::async_trait;
use pingora_core::server::Server;
use pingora_core::server::configuration::ServerConf;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_proxy::{ProxyHttp, Session};

use crate::kit::process::loopback;

struct Bare {
    upstream: SocketAddr,
}

#[async_trait]
impl ProxyHttp for Bare {
    type CTX = ();

    fn new_ctx(&self) -> Self::CTX {}

    async fn upstream_peer(
        &self,
        _session: &mut Session,
        _ctx: &mut (),
    ) -> pingora_core::Result<Box<HttpPeer>> {
        Ok(Box::new(HttpPeer::new(self.upstream, false, String::new())))
    }
}

/// Proxies until the process is killed.
pub fn run(port: u16, upstream_port: u16) -> ! {
    let configuration = ServerConf {
        threads: 1,
        upstream_keepalive_pool_size: 1024,
        // A bench that is interrupted leaves nothing behind; the default waits five minutes for its clients.
        grace_period_seconds: Some(0),
        graceful_shutdown_timeout_seconds: Some(0),
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, configuration);
    server.bootstrap();
    let bare = Bare {
        upstream: loopback(upstream_port),
    };
    let mut service = pingora_proxy::http_proxy_service(&server.configuration, bare);
    service.add_tcp(&loopback(port).to_string());
    server.add_service(service);
    server.run_forever()
}
