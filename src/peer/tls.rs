//! Mutual TLS between nodes: one certificate for both directions, and one authority for all.
//!
//! Connections are opened and accepted elsewhere; here an accepted one is authenticated. TLS 1.3
//! alone, each connection with a whole handshake, so that a certificate that expired or was
//! replaced is not resumed. Names are those in the certificate, in lower case; wildcards are
//! ignored.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime,
};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{CertificateError, ClientConfig, RootCertStore, ServerConfig, version::TLS13};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::names::NodeNames;
use super::settings::{CERTIFICATE, CLIENT_CA, CRL, Cluster, PRIVATE_KEY, PeersTls};
use crate::upstream::{ServerIdentity, read_pem, roots};

const ALPN: &[u8] = b"http/1.1";
/// Names of one certificate that are kept; a node has one, during a renaming two.
const NAMES_MAX: usize = 16;
/// Time for a refused node to read why: without it, what it has sent meanwhile would reset the
/// connection under the alert.
const LINGER_LIMIT: Duration = Duration::from_millis(200);

/// Reason for which a name cannot be a node's where nodes have certificates; none when it can.
pub fn node_name_fault(name: &str) -> Option<String> {
    let is_dns = matches!(ServerName::try_from(name), Ok(ServerName::DnsName(_)));
    (!is_dns || name.ends_with('.')).then(|| {
        format!(
            "{name:?} is no DNS name, which a node with `listen.peers` needs for its certificate: use letters, digits, `-` and single dots"
        )
    })
}

/// Fault of a file: its key below `listen.peers.tls`, and a sentence.
pub type FileFault = (&'static str, String);

/// Credentials of this node, and the rules by which it trusts others.
pub struct NodeCredentials {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
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
    /// PEM of the certificates that were taken back.
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
    ) -> Result<(Arc<NodeCredentials>, Vec<FileFault>), Vec<FileFault>> {
        let mut faults = Vec::new();
        let mut read = |(key, path)| {
            let read = read_pem(path);
            read.map_err(|fault| faults.push((key, fault))).ok()
        };
        let [certificate, private_key, client_ca] = files.files().map(&mut read);
        let crl = cluster.and_then(|cluster| cluster.crl.as_deref());
        let crl_read = crl.map(|path| read((CRL, path)));
        if let Some(None) = crl_read {
            return Err(faults);
        }
        let (Some(certificate), Some(private_key), Some(client_ca)) =
            (certificate, private_key, client_ca)
        else {
            return Err(faults);
        };
        let circle = MembershipRules {
            names: cluster.map_or_else(NodeNames::default, |c| NodeNames::new(&c.node_names)),
            crl: crl_read.flatten(),
        };
        let read = NodeCredentials::of_pem(&certificate, &private_key, &client_ca, circle, node);
        read.map_err(|(key, fault)| {
            let named = files.files();
            let path = named.iter().find(|(k, _)| *k == key).map(|(_, path)| *path);
            let path = path.or(crl).unwrap_or(named[0].1);
            vec![(key, format!("{}: {fault}", path.display()))]
        })
    }

    pub(super) fn of_pem(
        certificate: &[u8],
        private_key: &[u8],
        client_ca: &[u8],
        circle: MembershipRules,
        node: &str,
    ) -> Result<(Arc<NodeCredentials>, Vec<FileFault>), FileFault> {
        let chain = CertificateDer::pem_slice_iter(certificate)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| (CERTIFICATE, format!("not PEM: {error}")))?;
        let Some(own) = chain.first() else {
            let none = "no certificate in it: expected PEM, `-----BEGIN CERTIFICATE-----`";
            return Err((CERTIFICATE, none.to_owned()));
        };
        let names = names_in(own).map_err(|fault| (CERTIFICATE, fault))?;
        if !names.has(node) {
            return Err((
                CERTIFICATE,
                format!(
                    "does not name this node: `node.id` is {node:?}, the DNS names in it are {:?}",
                    names.0
                ),
            ));
        }
        // The error would show bytes of the key.
        let key = PrivateKeyDer::from_pem_slice(private_key).map_err(|_| {
            let none = "no private key in it: expected PEM, `-----BEGIN PRIVATE KEY-----`";
            (PRIVATE_KEY, none.to_owned())
        })?;
        let roots = roots(client_ca).map_err(|fault| (CLIENT_CA, fault))?;
        let crls = match &circle.crl {
            Some(pem) => revocation_lists(pem).map_err(|fault| (CRL, fault))?,
            None => Vec::new(),
        };
        let sides = MutualTls::new(roots, crls).map_err(|fault| (CLIENT_CA, fault))?;
        let warnings = match sides.check(&chain, node) {
            Err(fault) if fault.is_temporary => vec![(CERTIFICATE, fault.message)],
            Err(fault) => return Err((CERTIFICATE, fault.message)),
            Ok(()) => Vec::new(),
        };
        let (client, server) = sides.configure(chain, key).map_err(|error| {
            (
                PRIVATE_KEY,
                format!("does not go with `certificate`: {error}"),
            )
        })?;
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let credentials = NodeCredentials {
            client: Arc::new(client),
            server: Arc::new(server),
            digest: hasher.hash_one((
                certificate,
                private_key,
                client_ca,
                &circle.crl,
                &circle.names,
            )),
            names: circle.names,
        };
        Ok((Arc::new(credentials), warnings))
    }

    /// Tells credentials apart.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Identity that a node of this name and generation has to prove.
    ///
    /// # Errors
    /// No DNS name.
    pub fn identity(&self, name: &str, generation: u64) -> Result<ServerIdentity, String> {
        if !self.names.has(name) {
            return Err(format!("{name:?} is none of `cluster.node_names`"));
        }
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let digest = hasher.hash_one((name, generation, self.digest));
        ServerIdentity::for_node(name, Arc::clone(&self.client), digest)
    }

    /// Accepts a node that proves its identity within `limit`.
    ///
    /// # Errors
    /// No proof: an alert was sent, and the connection is closed.
    pub async fn accept(&self, tcp: TcpStream, limit: Duration) -> io::Result<PeerStream> {
        let acceptor = TlsAcceptor::from(Arc::clone(&self.server));
        match timeout(limit, acceptor.accept(tcp).into_fallible()).await {
            Ok(Ok(tls)) => PeerStream::new(tls, self.digest, &self.names),
            Ok(Err((error, tcp))) => {
                // Whoever is refused may be gone, too.
                let _ = timeout(LINGER_LIMIT, linger(tcp)).await;
                Err(error)
            }
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

/// Lets written bytes arrive: the other side closes once it has read them.
async fn linger(mut tcp: TcpStream) -> io::Result<()> {
    tcp.shutdown().await?;
    let mut unread = [0; 1024];
    while tcp.read(&mut unread).await? > 0 {}
    Ok(())
}

/// Verifiers and provider for both directions.
struct MutualTls {
    provider: Arc<CryptoProvider>,
    servers: Arc<WebPkiServerVerifier>,
    clients: Arc<dyn ClientCertVerifier>,
}

/// Fault of the own certificate.
struct CertificateFault {
    message: String,
    /// Only time stands against it.
    is_temporary: bool,
}

impl MutualTls {
    fn new(
        roots: RootCertStore,
        crls: Vec<CertificateRevocationListDer<'static>>,
    ) -> Result<MutualTls, String> {
        let provider = Arc::new(ring::default_provider());
        let roots = Arc::new(roots);
        let servers =
            WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .with_crls(crls.clone())
                .only_check_end_entity_revocation()
                .allow_unknown_revocation_status();
        let clients = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider))
            .with_crls(crls)
            .only_check_end_entity_revocation()
            .allow_unknown_revocation_status();
        Ok(MutualTls {
            provider,
            servers: servers.build().map_err(|error| error.to_string())?,
            clients: clients.build().map_err(|error| error.to_string())?,
        })
    }

    /// Checks that others would take our own certificate.
    fn check(&self, chain: &[CertificateDer<'static>], node: &str) -> Result<(), CertificateFault> {
        let (own, between) = chain.split_first().expect("one was found before");
        let name = ServerName::try_from(node).map_err(|error| CertificateFault {
            message: error.to_string(),
            is_temporary: false,
        })?;
        let now = UnixTime::now();
        let fault = |error: rustls::Error, side: &str| CertificateFault {
            message: format!("not fit {side}, by `client_ca`: {error}"),
            is_temporary: is_of_time(&error),
        };
        self.servers
            .verify_server_cert(own, between, &name, &[], now)
            .map_err(|error| fault(error, "to be shown to nodes that connect"))?;
        self.clients
            .verify_client_cert(own, between, now)
            .map_err(|error| fault(error, "to be shown to nodes that are connected to"))?;
        Ok(())
    }

    fn configure(
        self,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<(ClientConfig, ServerConfig), rustls::Error> {
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&TLS13])?
            .with_webpki_verifier(self.servers)
            .with_client_auth_cert(chain.clone(), key.clone_key())?;
        client.alpn_protocols = vec![ALPN.to_vec()];
        client.resumption = rustls::client::Resumption::disabled();
        let mut server = ServerConfig::builder_with_provider(self.provider)
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(self.clients)
            .with_single_cert(chain, key)?;
        server.alpn_protocols = vec![ALPN.to_vec()];
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok((client, server))
    }
}

fn is_of_time(error: &rustls::Error) -> bool {
    use CertificateError as Of;
    matches!(
        error,
        rustls::Error::InvalidCertificate(
            Of::Expired
                | Of::ExpiredContext { .. }
                | Of::NotValidYet
                | Of::NotValidYetContext { .. }
        )
    )
}

/// The names a node has proved to have, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerName(Arc<[Box<str>]>);

impl PeerName {
    /// Returns whether `name` is one of them.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|own| own.eq_ignore_ascii_case(name))
    }

    /// Keeps the names that nodes of the cluster may have.
    fn known(&self, names: &NodeNames) -> PeerName {
        PeerName(
            self.0
                .iter()
                .filter(|name| names.has(name))
                .cloned()
                .collect(),
        )
    }

    /// The first one, for logs.
    pub fn first(&self) -> &str {
        self.0.first().map_or("", |name| name)
    }
}

/// Reads the certificate revocation lists in a file.
fn revocation_lists(pem: &[u8]) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
    let lists = CertificateRevocationListDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let lists = lists.map_err(|error| format!("not PEM: {error}"))?;
    match lists.is_empty() {
        true => Err("no list in it: expected PEM, `-----BEGIN X509 CRL-----`".to_owned()),
        false => Ok(lists),
    }
}

/// The DNS names in a certificate that are one node's.
fn names_in(certificate: &CertificateDer<'_>) -> Result<PeerName, String> {
    let parsed = webpki::EndEntityCert::try_from(certificate)
        .map_err(|error| format!("the certificate cannot be read: {error}"))?;
    let names = parsed.valid_dns_names().filter(|name| !name.contains('*'));
    let names = names.take(NAMES_MAX).map(str::to_ascii_lowercase);
    Ok(PeerName(names.map(String::into_boxed_str).collect()))
}

/// A connection from another node that has proved who it is.
#[derive(Debug)]
pub struct PeerStream {
    tls: TlsStream<TcpStream>,
    name: PeerName,
    credentials_digest: u64,
}

impl PeerStream {
    fn new(tls: TlsStream<TcpStream>, let_in_by: u64, names: &NodeNames) -> io::Result<PeerStream> {
        let shown = tls.get_ref().1.peer_certificates();
        let own = shown
            .and_then(<[_]>::first)
            .ok_or(io::ErrorKind::InvalidData)?;
        let shown = names_in(own).map_err(io::Error::other)?;
        let name = shown.known(names);
        if name.0.is_empty() {
            return Err(io::Error::other(format!(
                "its certificate is of {:?}, which is none of `cluster.node_names`",
                shown.0
            )));
        }
        Ok(PeerStream {
            tls,
            name,
            credentials_digest: let_in_by,
        })
    }

    /// Proved names of the node.
    pub fn name(&self) -> &PeerName {
        &self.name
    }

    /// [`NodeCredentials::digest`] of those it was accepted under.
    pub fn credentials_digest(&self) -> u64 {
        self.credentials_digest
    }

    /// Returns when the node has closed or reset its connection, or announced that. To be called
    /// when a request was read whole: a node sends nothing then, so that whatever comes is a
    /// goodbye.
    pub async fn closed(&self) {
        // An error of the wait is as good as what it waits for.
        let _ = self.tls.get_ref().0.peek(&mut [0; 1]).await;
    }

    /// The socket, which distinguishes connections.
    pub fn id(&self) -> RawFd {
        self.tls.get_ref().0.as_raw_fd()
    }
}

impl AsyncRead for PeerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_read(cx, buf)
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tls).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tls).poll_write_vectored(cx, pieces)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_shutdown(cx)
    }
}
