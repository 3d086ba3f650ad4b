//! Periodic look-up of seed nodes: names whose addresses change, and
//! instances that Consul has registered since.
//!
//! Seeds are not contacted here: the addresses go to `cluster.rs`. A look that fails changes nothing. Bounds:
//! [`SEEDS_MAX`] addresses, [`LOOKUP_TIMEOUT`] a look.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::app::discover::LOOKUP_TIMEOUT;
use crate::peer::{Cluster, NodeDiscovery};
use crate::state::Shared;
use crate::upstream::HttpClient;
use crate::upstream::discovery::consul_hosts;

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Any living node is enough; a cluster is five times smaller.
const SEEDS_MAX: usize = 256;

/// Addresses of nodes to begin with.
pub type Seeds = Arc<[SocketAddr]>;

/// Looks for the life of the process.
pub async fn look_up(shared: Arc<Shared>, cluster: Cluster, sender: watch::Sender<Seeds>) {
    let mut ticks = interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut found = SeedAddresses::default();
    loop {
        ticks.tick().await;
        found.look_up(&shared.client, &cluster).await;
        let seeds = found.seeds();
        sender.send_if_modified(|known| {
            let is_new = *known != seeds;
            if is_new {
                *known = seeds;
            }
            is_new
        });
    }
}

/// Addresses found last.
#[derive(Default)]
struct SeedAddresses {
    /// Last response of Consul.
    hosts: Vec<String>,
    by_name: BTreeMap<String, Vec<SocketAddr>>,
    /// Last error that was logged, so that each is logged once.
    complaint: Option<String>,
}

impl SeedAddresses {
    async fn look_up(&mut self, client: &HttpClient, cluster: &Cluster) {
        let mut complaint = None;
        let mut names: Vec<String> = match (&cluster.consul, cluster.discovery) {
            (Some(consul), NodeDiscovery::Consul) => {
                match timeout(LOOKUP_TIMEOUT, consul_hosts(client, consul)).await {
                    Ok(Ok(hosts)) => self.hosts = hosts,
                    Ok(Err(error)) => complaint = Some(format!("Consul: {error}")),
                    Err(_) => {
                        complaint = Some(format!("Consul took longer than {LOOKUP_TIMEOUT:?}"))
                    }
                }
                cluster.seeds.iter().chain(&self.hosts).cloned().collect()
            }
            _ => cluster.seeds.clone(),
        };
        names.truncate(SEEDS_MAX);
        let looks = join_all(names.iter().map(|name| resolve(name))).await;
        let mut by_name = BTreeMap::new();
        for (name, looked) in names.into_iter().zip(looks) {
            let addresses = match looked {
                Ok(addresses) => addresses,
                Err(error) => {
                    complaint.get_or_insert_with(|| format!("{name}: {error}"));
                    self.by_name.remove(&name).unwrap_or_default()
                }
            };
            let taken = match cluster.discovery {
                NodeDiscovery::Static => 1,
                NodeDiscovery::Dns | NodeDiscovery::Consul => addresses.len(),
            };
            by_name.insert(name, addresses.into_iter().take(taken).collect());
        }
        self.by_name = by_name;
        self.log_error(complaint);
    }

    fn seeds(&self) -> Seeds {
        let mut seeds: Vec<SocketAddr> = self.by_name.values().flatten().copied().collect();
        seeds.sort_unstable();
        seeds.dedup();
        seeds.truncate(SEEDS_MAX);
        seeds.into()
    }

    fn log_error(&mut self, complaint: Option<String>) {
        if complaint == self.complaint {
            return;
        }
        match &complaint {
            Some(why) => tracing::warn!("cluster: {why}: the nodes found before stay"),
            None => tracing::info!("cluster: all seeds are found again"),
        }
        self.complaint = complaint;
    }
}

/// Every address of `host:port`.
async fn resolve(name: &str) -> std::io::Result<Vec<SocketAddr>> {
    if let Ok(address) = name.parse() {
        return Ok(vec![address]);
    }
    let looked = timeout(LOOKUP_TIMEOUT, tokio::net::lookup_host(name)).await;
    let addresses = looked.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))?;
    Ok(addresses.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(text: &str) -> Cluster {
        serde_json::from_str(text).unwrap()
    }

    #[tokio::test]
    async fn a_name_that_cannot_be_looked_up_keeps_its_addresses_and_others_are_found() {
        let cluster = cluster(
            r#"{"gossip":"127.0.0.1:1","seeds":["127.0.0.1:7","no-host.invalid:7","[::1]:7"]}"#,
        );
        let mut found = SeedAddresses::default();
        let former = "10.0.0.1:7".parse().unwrap();
        found
            .by_name
            .insert("no-host.invalid:7".to_owned(), vec![former]);
        found
            .by_name
            .insert("left:7".to_owned(), vec!["10.0.0.2:7".parse().unwrap()]);
        found.look_up(&HttpClient::default(), &cluster).await;
        let seeds: Vec<String> = found.seeds().iter().map(ToString::to_string).collect();
        assert_eq!(seeds, ["10.0.0.1:7", "127.0.0.1:7", "[::1]:7"]);
        assert!(found.complaint.unwrap().starts_with("no-host.invalid:7"));
    }
}
