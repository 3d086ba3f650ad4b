//! Mutual TLS between nodes: one certificate for both directions, and one authority for all.
//!
//! TLS 1.3 alone, each connection with a whole handshake, so that a certificate that expired or was replaced
//! is not resumed. Which names may connect is the caller's rule.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, VerifierBuilderError, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateRevocationListDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{CertificateError, ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use webpki::{BorrowedCertRevocationList, CertRevocationList, EndEntityCert};

use super::credentials::{CredentialFault, CredentialFile, OwnCertificate};
use super::names::{CertificateNames, is_dns_name};
use super::pem::revocation_lists;
use super::roots::roots_of;
use super::server_identity::ServerIdentity;
use super::stream::{ALPN, TlsConnection};

const TLS13_EXPECTED: &str = "the provider has cipher suites for TLS 1.3";

/// Time for a refused node to read why: without it, what it has sent meanwhile would reset the
/// connection under the alert.
const LINGER_LIMIT: Duration = Duration::from_millis(200);

/// Authority whose certificates are trusted in both directions, and those that it has revoked.
pub struct TrustedAuthority {
    provider: Arc<CryptoProvider>,
    servers: Arc<WebPkiServerVerifier>,
    clients: Arc<dyn ClientCertVerifier>,
    roots: Arc<RootCertStore>,
    /// Issuers of the revocation lists, in the order of the file.
    list_issuers: Vec<Box<[u8]>>,
}

/// Reason for which others would refuse the own certificate.
struct CertificateFault {
    message: String,
    /// Only time stands against it.
    is_temporary: bool,
}

impl TrustedAuthority {
    /// Reads the authority's certificates and its revocation lists.
    ///
    /// # Errors
    /// The first fault, with its file.
    pub fn from_pem(
        client_ca: &[u8],
        crl: Option<&[u8]>,
    ) -> Result<TrustedAuthority, CredentialFault> {
        let of_authority = |fault| CredentialFault::new(CredentialFile::ClientCa, fault);
        let provider = Arc::new(ring::default_provider());
        let roots = roots_of(client_ca).map_err(of_authority)?;
        let crls = crl.map(revocation_lists).transpose();
        let crls = crls.map_err(|fault| CredentialFault::new(CredentialFile::Crl, fault))?;
        let crls = crls.unwrap_or_default();
        let list_issuers = crls.iter().map(|list| issuer_of(list)).collect();
        let servers =
            WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .with_crls(crls.clone())
                .only_check_end_entity_revocation()
                .allow_unknown_revocation_status();
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .with_crls(crls)
                .only_check_end_entity_revocation()
                .allow_unknown_revocation_status();
        Ok(TrustedAuthority {
            provider,
            servers: servers.build().map_err(verifier_fault)?,
            clients: clients.build().map_err(verifier_fault)?,
            roots,
            list_issuers,
        })
    }

    /// Returns a warning about the first revocation list that is neither of a root nor of an issuer in the chain
    /// of `own`. Other nodes may have certificates of its issuer, which is not known here.
    fn foreign_list(&self, own: &OwnCertificate) -> Option<CredentialFault> {
        let chain = own.chain().iter();
        let issuers: Vec<_> = chain
            .filter_map(|certificate| {
                let parsed = EndEntityCert::try_from(certificate).ok()?;
                Some(parsed.issuer().to_vec())
            })
            .collect();
        let is_known = |issuer: &[u8]| {
            let mut roots = self.roots.roots.iter();
            roots.any(|root| *root.subject == *issuer) || issuers.iter().any(|own| own == issuer)
        };
        let mut lists = self.list_issuers.iter();
        let at = lists.position(|issuer| !is_known(issuer))?;
        let message = format!(
            "list {} is neither of an authority in `client_ca` nor of an issuer in `certificate`: it counts only for nodes with certificates of its issuer",
            at + 1
        );
        Some(CredentialFault::new(CredentialFile::Crl, message))
    }

    /// Checks that others with this authority would accept our own certificate.
    fn check(&self, own: &OwnCertificate, name: &str) -> Result<(), CertificateFault> {
        let (own, between) = own.chain().split_first().expect("a chain has a first one");
        let name = ServerName::try_from(name).map_err(|error| CertificateFault {
            message: error.to_string(),
            is_temporary: false,
        })?;
        let now = UnixTime::now();
        let fault = |error: rustls::Error, side: &str| CertificateFault {
            message: format!("not fit {side}, by `client_ca`: {error}{}", advice(&error)),
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
}

/// Issuer of a list; empty for one that cannot be read, which the verifiers refuse.
fn issuer_of(list: &CertificateRevocationListDer<'_>) -> Box<[u8]> {
    let parsed = BorrowedCertRevocationList::from_der(list);
    let issuer = parsed.map(|list| CertRevocationList::from(list).issuer().into());
    issuer.unwrap_or_default()
}

fn verifier_fault(error: VerifierBuilderError) -> CredentialFault {
    let file = match error {
        VerifierBuilderError::InvalidCrl(_) => CredentialFile::Crl,
        _ => CredentialFile::ClientCa,
    };
    CredentialFault::new(file, format!("is of no use: {error}"))
}

/// Advice for the faults that have a usual cause.
fn advice(error: &rustls::Error) -> &'static str {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "; is it of another authority, or are those between it and `client_ca` missing from its file?"
        }
        _ => "",
    }
}

pub(super) fn is_of_time(error: &rustls::Error) -> bool {
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

/// Own certificate and trusted authority, ready for both directions.
pub struct MutualTls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl MutualTls {
    /// Checks that others accept `own` as the certificate of `name`. A certificate against which only
    /// time stands is a warning, and so is a revocation list without effect.
    ///
    /// # Errors
    /// Reason for which others would refuse it.
    pub fn new(
        own: &OwnCertificate,
        authority: TrustedAuthority,
        name: &str,
    ) -> Result<(MutualTls, Vec<CredentialFault>), CredentialFault> {
        let of_own = |message| CredentialFault::new(CredentialFile::Certificate, message);
        let mut warnings = match authority.check(own, name) {
            Err(fault) if fault.is_temporary => vec![of_own(fault.message)],
            Err(fault) => return Err(of_own(fault.message)),
            Ok(()) => Vec::new(),
        };
        warnings.extend(authority.foreign_list(own));
        let TrustedAuthority {
            provider,
            servers,
            clients,
            ..
        } = authority;
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .expect(TLS13_EXPECTED)
            .with_webpki_verifier(servers)
            .with_client_cert_resolver(own.resolver());
        client.alpn_protocols = vec![ALPN.to_vec()];
        client.resumption = Resumption::disabled();
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .expect(TLS13_EXPECTED)
            .with_client_cert_verifier(clients)
            .with_cert_resolver(own.resolver());
        server.alpn_protocols = vec![ALPN.to_vec()];
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let mutual = MutualTls {
            client: Arc::new(client),
            server: Arc::new(server),
        };
        Ok((mutual, warnings))
    }

    /// Identity of the node of this name, to which the own certificate is presented. `digest` is the same for
    /// equal nodes and certificates only.
    ///
    /// # Errors
    /// No DNS name.
    pub fn server_identity(&self, name: &str, digest: u64) -> Result<ServerIdentity, String> {
        match is_dns_name(name) {
            true => ServerIdentity::with_config(name, Arc::clone(&self.client), digest),
            false => Err("an address is no node's name".to_owned()),
        }
    }

    /// Accepts a connection that proves its identity within `limit`. `judge` decides about the names in its
    /// certificate.
    ///
    /// # Errors
    /// No proof, or refused by `judge`: the connection is closed, after an alert where there was no proof.
    pub async fn accept<P>(
        &self,
        tcp: TcpStream,
        limit: Duration,
        judge: impl FnOnce(CertificateNames) -> io::Result<P>,
    ) -> io::Result<TlsConnection<P>> {
        let acceptor = TlsAcceptor::from(Arc::clone(&self.server));
        match timeout(limit, acceptor.accept(tcp).into_fallible()).await {
            Ok(Ok(tls)) => {
                let presented = tls.get_ref().1.peer_certificates();
                let presented = presented
                    .and_then(<[_]>::first)
                    .ok_or(io::ErrorKind::InvalidData)?;
                let names = CertificateNames::read(presented).map_err(io::Error::other)?;
                let proof = judge(names)?;
                Ok(TlsConnection::new(tls.into(), proof))
            }
            Ok(Err((error, tcp))) => {
                // A refused node may be gone, too.
                let _ = timeout(LINGER_LIMIT, linger(tcp)).await;
                Err(error)
            }
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

/// Lets written bytes arrive: the other side closes once it has read them.
pub(super) async fn linger(mut tcp: TcpStream) -> io::Result<()> {
    tcp.shutdown().await?;
    let mut unread = [0; 1024];
    while tcp.read(&mut unread).await? > 0 {}
    Ok(())
}
