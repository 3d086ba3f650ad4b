//! Several gateways as nodes of one cluster: certificates, addresses, and the wait until they know each other.
//! Not their models and accounts: each bench has its own.
//!
//! Called by the acceptance bench and by the scenario of a forward.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use super::Fallible;
use super::gateway::Gateway;
use super::process::{free_port, loopback};

/// Longest wait for nodes to know each other.
const MEETING_LIMIT: Duration = Duration::from_secs(20);

type Authority = Issuer<'static, KeyPair>;

/// Certificates and addresses of the nodes of a cluster, in the order of their names.
pub struct Membership {
    names: Vec<String>,
    /// Addresses of each for the other nodes, and for gossip.
    addresses: Vec<(SocketAddr, SocketAddr)>,
    certificates: tempfile::TempDir,
}

impl Membership {
    pub fn new(names: &[&str]) -> Fallible<Self> {
        let certificates = tempfile::tempdir()?;
        let addresses = names
            .iter()
            .map(|_| Ok((loopback(free_port()?), loopback(free_port()?))))
            .collect::<Fallible<_>>()?;
        let (authority, pem) = authority()?;
        std::fs::write(certificates.path().join("ca.pem"), pem)?;
        for name in names {
            certify(&authority, name, certificates.path())?;
        }
        Ok(Self {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            addresses,
            certificates,
        })
    }

    /// Configuration that makes a gateway a node: lines under `listen`, and lines at the top.
    pub fn lines(&self, at: usize) -> (String, String) {
        let name = &self.names[at];
        let (peers, gossip) = self.addresses[at];
        let folder = self.certificates.path().display();
        let listen = format!(
            "  peers:\n    address: \"{peers}\"\n    tls: {{ certificate: \"{folder}/{name}.pem\", \
             private_key: \"{folder}/{name}-key.pem\", client_ca: \"{folder}/ca.pem\" }}\n"
        );
        let seeds: Vec<String> = self
            .addresses
            .iter()
            .map(|(_, seed)| format!("\"{seed}\""))
            .collect();
        let top = format!(
            "node: {{ id: {name}, site: fra }}\ncluster:\n  gossip: \"{gossip}\"\n  seeds: [{}]\n",
            seeds.join(", ")
        );
        (listen, top)
    }
}

/// Waits until each node knows what all others serve.
pub fn meet(nodes: &[Gateway]) -> Fallible<()> {
    let began = Instant::now();
    for node in nodes {
        loop {
            let state = node.state()?;
            let others = state["nodes"].as_array().map_or(0, Vec::len);
            if others + 1 == nodes.len() {
                break;
            }
            if began.elapsed() > MEETING_LIMIT {
                return Err("the nodes do not find each other".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

fn authority() -> Fallible<(Authority, String)> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, "bench");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = params.self_signed(&key)?.pem();
    Ok((Issuer::new(params, key), pem))
}

fn certify(authority: &Authority, name: &str, folder: &Path) -> Fallible<()> {
    let key = KeyPair::generate()?;
    let params = CertificateParams::new([name.to_owned()])?;
    let certificate = params.signed_by(&key, authority)?;
    std::fs::write(folder.join(format!("{name}.pem")), certificate.pem())?;
    std::fs::write(folder.join(format!("{name}-key.pem")), key.serialize_pem())?;
    Ok(())
}
