//! Credentials of this node, and the rules by which it accepts others.
//!
//! Connections are opened and accepted elsewhere, and TLS is [`tls`](crate::tls)'s. Here the files are read,
//! and names in certificates are compared with those that nodes of the cluster may have. A reload makes new
//! credentials; [`PeerClient`](super::PeerClient) holds those in force.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;

use super::names::NodeNames;
use super::settings::{Cluster, PeersTls};
use crate::tls::{
    CertificateNames, CredentialFault, CredentialFile, MutualTls, OwnCertificate, ServerIdentity,
    TlsConnection, TrustedAuthority, is_dns_name, read_pem,
};

/// Reason for which a name cannot be a node's where nodes have certificates; none when it can.
pub fn node_name_fault(name: &str) -> Option<String> {
    (!is_dns_name(name)).then(|| {
        format!(
            "{name:?} is no DNS name, which a node with `listen.peers` needs for its certificate: use letters, digits, `-` and single dots"
        )
    })
}

/// Credentials of this node, and the rules by which it trusts others.
pub struct NodeCredentials {
    mutual: MutualTls,
    /// Names that nodes may have.
    names: NodeNames,
    /// The same for equal files and names only.
    digest: u64,
}

/// Rules of membership beside the authority's signature.
#[derive(Clone, Debug, Default)]
pub(super) struct MembershipRules {
    /// Names of nodes.
    pub names: NodeNames,
    /// PEM of the revoked certificates.
    pub crl: Option<Vec<u8>>,
}

impl NodeCredentials {
    /// Reads the files of `node`, and warns of what will be wrong, or was right once.
    ///
    /// # Errors
    /// Each file with its fault.
    pub fn read(
        files: &PeersTls,
        cluster: Option<&Cluster>,
        node: &str,
    ) -> Result<(Arc<NodeCredentials>, Vec<CredentialFault>), Vec<CredentialFault>> {
        let mut faults = Vec::new();
        let mut read = |(file, path)| {
            let read = read_pem(path);
            read.map_err(|fault| faults.push(CredentialFault::new(file, fault)))
                .ok()
        };
        let [certificate, private_key, client_ca] = files.files().map(&mut read);
        let crl = cluster.and_then(|cluster| cluster.crl.as_deref());
        let crl_read = crl.map(|path| read((CredentialFile::Crl, path)));
        if let Some(None) = crl_read {
            return Err(faults);
        }
        let (Some(certificate), Some(private_key), Some(client_ca)) =
            (certificate, private_key, client_ca)
        else {
            return Err(faults);
        };
        let rules = MembershipRules {
            names: cluster.map_or_else(NodeNames::default, |c| NodeNames::new(&c.node_names)),
            crl: crl_read.flatten(),
        };
        let read = NodeCredentials::of_pem(&certificate, &private_key, &client_ca, rules, node);
        read.map_err(|fault| {
            let named = files.files();
            let path = named.iter().find(|(file, _)| *file == fault.file);
            let path = path.map(|(_, path)| *path).or(crl).unwrap_or(named[0].1);
            let message = format!("{}: {}", path.display(), fault.message);
            vec![CredentialFault::new(fault.file, message)]
        })
    }

    pub(super) fn of_pem(
        certificate: &[u8],
        private_key: &[u8],
        client_ca: &[u8],
        rules: MembershipRules,
        node: &str,
    ) -> Result<(Arc<NodeCredentials>, Vec<CredentialFault>), CredentialFault> {
        let own = OwnCertificate::from_pem(certificate, private_key)?;
        if !own.names().has(node) {
            return Err(CredentialFault::new(
                CredentialFile::Certificate,
                format!(
                    "does not name this node: `node.id` is {node:?}, the DNS names in it are {:?}",
                    own.names().list()
                ),
            ));
        }
        let authority = TrustedAuthority::from_pem(client_ca, rules.crl.as_deref())?;
        let (mutual, warnings) = MutualTls::new(&own, authority, node)?;
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let credentials = NodeCredentials {
            mutual,
            digest: hasher.hash_one((
                certificate,
                private_key,
                client_ca,
                &rules.crl,
                &rules.names,
            )),
            names: rules.names,
        };
        Ok((Arc::new(credentials), warnings))
    }

    /// Distinguishes credentials.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Identity that a node of this name and generation has to prove.
    ///
    /// # Errors
    /// No DNS name, or none of a node of the cluster.
    pub fn identity(&self, name: &str, generation: u64) -> Result<ServerIdentity, String> {
        if !self.names.has(name) {
            return Err(format!("{name:?} is none of `cluster.node_names`"));
        }
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let digest = hasher.hash_one((name, generation, self.digest));
        self.mutual.server_identity(name, digest)
    }

    /// Accepts a node that proves its identity within `limit`.
    ///
    /// # Errors
    /// No proof: an alert was sent, and the connection is closed.
    pub async fn accept(&self, tcp: TcpStream, limit: Duration) -> io::Result<PeerStream> {
        let judge = |presented: CertificateNames| {
            let names = presented.matching(|name| self.names.has(name));
            if names.is_empty() {
                return Err(io::Error::other(format!(
                    "its certificate is of {:?}, which is none of `cluster.node_names`",
                    presented.list()
                )));
            }
            Ok(ProvedNode {
                names,
                credentials_digest: self.digest,
            })
        };
        self.mutual.accept(tcp, limit, judge).await
    }
}

/// Identity that a connecting node has proved.
#[derive(Debug)]
pub struct ProvedNode {
    /// Its names, of those that nodes of the cluster may have.
    pub names: CertificateNames,
    /// [`NodeCredentials::digest`] of those it was accepted under.
    pub credentials_digest: u64,
}

/// A connection from another node that has proved its identity.
pub type PeerStream = TlsConnection<ProvedNode>;

impl PeerStream {
    /// Returns when the node has closed or reset its connection, or announced that. To be called
    /// when a request was read whole: a node sends nothing then, so that any byte is a goodbye.
    pub async fn closed(&self) {
        // An error of the wait is as good as what it waits for.
        let _ = self.tcp().peek(&mut [0; 1]).await;
    }
}
