//! `cluster` and `listen.peers`: how nodes find each other, and where they let each other in.
//!
//! Values only. Nodes of a cluster speak to each other only where `listen.peers` is configured as
//! well.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use infergate_core::model::{ConsulSpec, Secret};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::tls::CredentialFile;

/// Discovery of the other nodes, and gossip with them about load.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// UDP address for gossip: IP address and port.
    #[schemars(extend("format" = "socket-address"))]
    pub gossip: SocketAddr,
    /// Address at which the other nodes reach it: IP address and port; `gossip` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "socket-address"))]
    pub advertise: Option<SocketAddr>,
    /// Nodes to begin with, `host:port` of their gossip: any that lives is enough. Names are looked up
    /// again every 5 seconds.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub seeds: Vec<String>,
    /// Source of seeds.
    #[serde(default)]
    pub discovery: NodeDiscovery,
    /// The service whose instances are seeds, with `discovery: consul`: each is registered with the
    /// port of its gossip.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consul: Option<ConsulSpec>,
    /// Names that nodes of the cluster have, `*` standing for any part of one, such as `gpu-*`. A
    /// node with a certificate of another name is neither accepted nor connected to. Empty:
    /// whatever `client_ca` has certified.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub node_names: Vec<Arc<str>>,
    /// PEM file of the certificates that the authority has taken back, seen from the folder of the
    /// configuration file. A change of it reloads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crl: Option<PathBuf>,
    /// Known to all nodes of the cluster and to nobody else: it signs every datagram. At least 16
    /// bytes; may be absent only on a loopback address. Usually `"${CLUSTER_SECRET}"`.
    #[serde(default, skip_serializing)]
    pub secret: Option<Secret>,
}

impl Cluster {
    /// Address at which the other nodes reach this one.
    pub fn advertised(&self) -> SocketAddr {
        self.advertise.unwrap_or(self.gossip)
    }
}

/// Source of seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NodeDiscovery {
    /// `seeds`; of a name with several addresses the first.
    #[default]
    Static,
    /// All addresses that the names in `seeds` have.
    Dns,
    /// The instances of a service in Consul, and all addresses that the names in `seeds` have.
    Consul,
}

/// The listener for other nodes: HTTP/1.1 over mutual TLS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PeersListener {
    /// IP address and port. Other nodes must be able to connect there.
    #[schemars(extend("format" = "socket-address"))]
    pub address: SocketAddr,
    /// Certificate this node presents, and the authority it trusts.
    pub tls: PeersTls,
}

/// PEM files, seen from the folder of the configuration file. A change of one of them reloads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PeersTls {
    /// PEM file of this node's certificate, then of those between it and the authority's. Contains
    /// `node.id` as a DNS name, and is presented in both directions.
    #[schemars(length(min = 1))]
    pub certificate: PathBuf,
    /// PEM file of the certificate's private key.
    #[schemars(length(min = 1))]
    pub private_key: PathBuf,
    /// PEM file of the authority that certifies the nodes of the cluster, and nobody else.
    #[schemars(length(min = 1))]
    pub client_ca: PathBuf,
}

impl PeersTls {
    /// Paths of its files, to be edited.
    pub fn files_mut(&mut self) -> [&mut PathBuf; 3] {
        [
            &mut self.certificate,
            &mut self.private_key,
            &mut self.client_ca,
        ]
    }

    /// Paths of its files.
    pub fn files(&self) -> [(CredentialFile, &Path); 3] {
        [
            (CredentialFile::Certificate, &self.certificate),
            (CredentialFile::PrivateKey, &self.private_key),
            (CredentialFile::ClientCa, &self.client_ca),
        ]
    }
}
