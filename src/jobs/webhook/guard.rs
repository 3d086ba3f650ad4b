//! Guard of receivers: resolves their names, and judges every address before a connection goes there.
//!
//! Not the rules, which are the core's. A name is resolved once for an attempt, and the connection goes to an
//! address of that answer: a second answer could be another one.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use infergate_core::job::forbidden_address::{ForbiddenAddress, ReceiverRules};
use infergate_core::job::receiver_url::{ReceiverUrl, ReceiverUrlError};
use infergate_core::network::Network;

use super::exchange::AttemptFault;
use crate::jobs::config::JobChoices;

/// Addresses of a name to which a connection is tried; all of them are judged.
const DIALED_MAX: usize = 4;

/// Source of the addresses of names.
#[async_trait]
pub trait HostResolver: Send + Sync {
    /// Returns the addresses of a host at a port.
    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>>;
}

/// Resolver of the system.
pub struct SystemResolver;

#[async_trait]
impl HostResolver for SystemResolver {
    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(tokio::net::lookup_host((host, port)).await?.collect())
    }
}

/// Guard of one process.
pub struct ReceiverGuard {
    rules: ArcSwap<ReceiverRules>,
    resolver: Box<dyn HostResolver>,
}

impl ReceiverGuard {
    /// Creates the guard of a configuration.
    pub fn new(choices: &JobChoices, resolver: Box<dyn HostResolver>) -> ReceiverGuard {
        ReceiverGuard {
            rules: ArcSwap::from_pointee(rules(choices)),
            resolver,
        }
    }

    /// Applies another configuration.
    pub fn configure(&self, choices: &JobChoices) {
        self.rules.store(Arc::new(rules(choices)));
    }

    /// Parses the URL of a receiver; a literal address in it is judged.
    ///
    /// # Errors
    /// The reason for which the URL is refused.
    pub fn parse(&self, url: &str) -> Result<ReceiverUrl, ReceiverUrlError> {
        let rules = self.rules.load();
        let url = ReceiverUrl::parse(url, &rules)?;
        if let Some(address) = url.literal() {
            judge(&rules, SocketAddr::new(address, url.port()))?;
        }
        Ok(url)
    }

    /// Returns the addresses to which a connection may go.
    ///
    /// # Errors
    /// The name has no address, or one that is forbidden.
    pub async fn addresses(&self, url: &ReceiverUrl) -> Result<Vec<SocketAddr>, AttemptFault> {
        let mut found = match url.literal() {
            Some(address) => vec![SocketAddr::new(address, url.port())],
            None => {
                let found = self.resolver.resolve(url.host(), url.port()).await;
                found.map_err(|_| AttemptFault::Unresolved)?
            }
        };
        if found.is_empty() {
            return Err(AttemptFault::Unresolved);
        }
        let rules = self.rules.load();
        for address in &found {
            judge(&rules, *address).map_err(AttemptFault::Address)?;
        }
        found.truncate(DIALED_MAX);
        Ok(found)
    }
}

/// Judges an address. A listener on every address of this host is found at each of them.
fn judge(rules: &ReceiverRules, address: SocketAddr) -> Result<(), ForbiddenAddress> {
    let (ip, port) = (address.ip(), address.port());
    rules.judge(ip, port)?;
    if !is_of_this_host(ip) {
        return Ok(());
    }
    let rules = ReceiverRules {
        own_addresses: vec![ip],
        ..rules.clone()
    };
    rules.judge(ip, port)
}

/// Returns whether an address is one of this host's: the kernel then takes it as the source of what goes there. A
/// datagram socket that is connected sends nothing.
fn is_of_this_host(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = || {
        let socket = UdpSocket::bind((any, 0))?;
        // Any port will do.
        socket.connect((address, 9))?;
        socket.local_addr()
    };
    source().is_ok_and(|source: SocketAddr| source.ip().to_canonical() == address)
}

fn rules(choices: &JobChoices) -> ReceiverRules {
    let webhooks = &choices.jobs.webhooks;
    let networks = webhooks.allow_networks.iter();
    ReceiverRules {
        allow_http: webhooks.allow_http,
        ports: webhooks.ports.clone(),
        // The configuration was checked: each is one.
        allow_networks: networks
            .filter_map(|text| Network::parse(text).ok())
            .collect(),
        own: choices.listeners.clone(),
        own_addresses: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_host_are_known_and_others_are_not() {
        assert!(is_of_this_host(Ipv4Addr::LOCALHOST.into()));
        // The address that packets to elsewhere come from, where this host has a way there.
        let outward = UdpSocket::bind("0.0.0.0:0").unwrap();
        if outward.connect("93.184.215.14:9").is_ok() {
            assert!(is_of_this_host(outward.local_addr().unwrap().ip()));
        }
        assert!(!is_of_this_host(Ipv4Addr::new(93, 184, 215, 14).into()));
    }

    #[test]
    fn a_listener_on_every_address_is_own_at_each_of_them() {
        let rules = ReceiverRules {
            allow_networks: vec![Network::parse("127.0.0.0/8").unwrap()],
            own: vec!["0.0.0.0:8080".parse().unwrap()],
            ..ReceiverRules::default()
        };
        let judged = |address: &str| judge(&rules, address.parse().unwrap());
        assert_eq!(judged("127.3.0.1:8080"), Err(ForbiddenAddress::Own));
        assert_eq!(judged("127.3.0.1:8443"), Ok(()));
    }
}
