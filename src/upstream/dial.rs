//! Places of a model server or another node, and how to connect to them: an address of TCP, or a socket of this host.
//!
//! Names are resolved by [`target`](super::target), TLS and HTTP are [`client`](super::client)'s. A target has at
//! most two addresses, one of each family, or one socket in the file system.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pingora_core::protocols::l4::ext::{TcpKeepalive, set_tcp_keepalive};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{sleep, timeout};

use crate::tls::ServerIdentity;

/// Silence after which a node's connection is closed, whether bytes were sent there or are waited
/// for. A request without a byte is then tried elsewhere, a stream ended. Above the time in which
/// gossip declares a node lost, because a connection that still works is worth more. Its silence
/// also covers paths that gossip goes around. Five seconds are four to five probes in a row: at 1 %
/// loss in both directions one in millions is cut off without cause.
#[cfg(target_os = "linux")]
const NODE_SILENCE_MAX: Duration = Duration::from_secs(5);
/// A silent connection to a node is probed after this time, again every second.
const NODE_PROBED_AFTER: Duration = Duration::from_secs(2);
const NODE_PROBED_EVERY: Duration = Duration::from_secs(1);

/// Silence after which a model server's connection is closed; one that a firewall or a failed host
/// has forgotten would hang to the deadline otherwise. Longer than a switch takes to come back.
#[cfg(target_os = "linux")]
const ENDPOINT_SILENCE_MAX: Duration = Duration::from_secs(30);
/// A connection on which nothing came for so long is probed, again every five seconds.
const ENDPOINT_PROBED_AFTER: Duration = Duration::from_secs(15);
const ENDPOINT_PROBED_EVERY: Duration = Duration::from_secs(5);

/// Pause before a server whose socket has no room for another connection is tried again, within the connect timeout.
/// TCP would repeat its first packet; here the kernel refuses at once (unix(7)).
const FULL_SOCKET_PAUSE: Duration = Duration::from_millis(2);

/// Place at which a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum DialPlace {
    /// Address and port.
    Tcp(SocketAddr),
    /// Absolute path of a socket in the file system.
    Unix(Arc<Path>),
}

/// An open socket, on which nothing was sent.
pub(super) enum DialedSocket {
    /// To an address.
    Tcp(TcpStream),
    /// To a server of this host.
    Unix(UnixStream),
}

/// Addresses of a target, and the one that worked last.
#[derive(Debug)]
pub struct DialAddresses {
    list: Vec<Arc<DialAddress>>,
    preferred: AtomicUsize,
}

impl DialAddresses {
    /// Places of one server, all reached in the same way.
    pub(super) fn new(places: impl Iterator<Item = DialPlace>, terms: &DialTerms<'_>) -> Self {
        let dial = |place: DialPlace| {
            Arc::new(DialAddress {
                pool_key: pool_key(&place, terms.identity.map(|identity| &**identity)),
                place,
                connect_timeout: terms.connect_timeout,
                keepalive: terms.keepalive.clone(),
                identity: terms.identity.cloned(),
            })
        };
        DialAddresses {
            list: places.map(dial).collect(),
            preferred: AtomicUsize::new(0),
        }
    }

    /// All of them, with the one that worked last first.
    pub fn in_order(&self) -> impl Iterator<Item = &Arc<DialAddress>> {
        let count = self.list.len();
        let first = self.preferred.load(Ordering::Relaxed);
        (0..count).map(move |index| &self.list[(first + index) % count])
    }

    /// Records that this address worked.
    pub fn prefer(&self, dial: &Arc<DialAddress>) {
        let at = self.list.iter().position(|d| Arc::ptr_eq(d, dial));
        let at = at.unwrap_or(0);
        if self.preferred.load(Ordering::Relaxed) != at {
            self.preferred.store(at, Ordering::Relaxed);
        }
    }

    /// Addresses among them.
    pub(super) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.list.iter().filter_map(|dial| match dial.place {
            DialPlace::Tcp(address) => Some(address),
            DialPlace::Unix(_) => None,
        })
    }
}

/// Terms on which all places of a server are reached.
pub(super) struct DialTerms<'a> {
    pub connect_timeout: Duration,
    pub keepalive: &'a TcpKeepalive,
    /// Identity the server has to prove, over TLS.
    pub identity: Option<&'a Arc<ServerIdentity>>,
}

/// The entry of the pool that connections to this server share.
fn pool_key(place: &DialPlace, identity: Option<&ServerIdentity>) -> u64 {
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    match (place, identity) {
        // The address itself, not a digest of it: two servers must never share a pool entry.
        (DialPlace::Tcp(SocketAddr::V4(v4)), None) => {
            u64::from(u32::from(*v4.ip())) << 16 | u64::from(v4.port())
        }
        (DialPlace::Tcp(address), None) => hasher.hash_one(address),
        (DialPlace::Unix(path), None) => hasher.hash_one(path),
        // Above all plain IPv4 addresses. Whether what lies there has proved the right name is
        // looked at again when it is taken.
        (_, Some(identity)) => hasher.hash_one((place, identity.digest())) | 1 << 63,
    }
}

/// A place and how to connect to it. TLS is put over the connection, see
/// docs/decisions/017.
#[derive(Clone, Debug)]
pub struct DialAddress {
    pub(super) place: DialPlace,
    connect_timeout: Duration,
    pub(super) keepalive: TcpKeepalive,
    /// Identity the server has to prove, over TLS.
    pub(super) identity: Option<Arc<ServerIdentity>>,
    /// The entry of the pool.
    pub(super) pool_key: u64,
}

impl DialAddress {
    /// For TCP, and once more for TLS.
    pub(super) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// Refused, unreachable or out of time.
    pub(super) async fn connect(&self) -> io::Result<DialedSocket> {
        match timeout(self.connect_timeout, self.open()).await {
            Ok(opened) => opened,
            Err(_) => Err(ErrorKind::TimedOut.into()),
        }
    }

    async fn open(&self) -> io::Result<DialedSocket> {
        let address = match &self.place {
            DialPlace::Tcp(address) => *address,
            DialPlace::Unix(path) => return open_unix(path).await.map(DialedSocket::Unix),
        };
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        set_tcp_keepalive(&tcp, &self.keepalive).map_err(io::Error::other)?;
        Ok(DialedSocket::Tcp(tcp))
    }
}

/// Connects to a socket in the file system, however long its server has no room for another connection.
async fn open_unix(path: &Path) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(path).await {
            Err(error) if error.kind() == ErrorKind::WouldBlock => sleep(FULL_SOCKET_PAUSE).await,
            opened => return opened,
        }
    }
}

impl fmt::Display for DialAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            DialPlace::Tcp(address) => write!(f, "{address}"),
            DialPlace::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Returns the first address of each family, in the order of `found`. An address of `former` that is still
/// there goes before others of its family, so that a resolver that rotates its answers does not
/// tear warm connections down.
pub(super) fn one_of_each_family(found: &[SocketAddr], former: &[SocketAddr]) -> Vec<SocketAddr> {
    let mut chosen: Vec<SocketAddr> = Vec::new();
    for address in found {
        if chosen.iter().any(|c| c.is_ipv4() == address.is_ipv4()) {
            continue;
        }
        let mut stays = former.iter().filter(|f| f.is_ipv4() == address.is_ipv4());
        let kept = stays.find(|former| found.contains(former));
        chosen.push(*kept.unwrap_or(address));
    }
    chosen
}

/// Ends a connection of another node, accepted here, when that falls silent: what it had asked for is
/// then cut off like that of a client that left.
///
/// # Errors
/// The socket does not take it.
pub fn set_node_keepalive(tcp: &TcpStream) -> pingora_error::Result<()> {
    set_tcp_keepalive(tcp, &node_keepalive())
}

/// Keepalive of connections to nodes.
pub(super) fn node_keepalive() -> TcpKeepalive {
    TcpKeepalive {
        idle: NODE_PROBED_AFTER,
        interval: NODE_PROBED_EVERY,
        // Where the kernel does not take the bound itself.
        count: 3,
        #[cfg(target_os = "linux")]
        user_timeout: NODE_SILENCE_MAX,
    }
}

/// Keepalive of connections to model servers.
pub(super) fn endpoint_keepalive() -> TcpKeepalive {
    TcpKeepalive {
        idle: ENDPOINT_PROBED_AFTER,
        interval: ENDPOINT_PROBED_EVERY,
        // Where the kernel does not take the bound itself.
        count: 3,
        #[cfg(target_os = "linux")]
        user_timeout: ENDPOINT_SILENCE_MAX,
    }
}
