//! Identity that a server has to prove, and the handshake in which it does.
//!
//! The server's name is sent (SNI) and checked, its certificate too, and there is no way to switch either
//! off. Each connection has a whole handshake: no session is resumed. TLS 1.2 and 1.3 towards model servers and other HTTPS servers; towards nodes as
//! [`MutualTls`](super::MutualTls) has it.

use std::error::Error;
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig, InvalidMessage, RootCertStore};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::credentials::OwnCertificate;
use super::roots::{public_roots, roots_of};
use super::stream::{ALPN, ALPN_HTTP2, TlsConnection};

/// Configuration for servers without a `ca_file`: public roots.
static PUBLIC: LazyLock<Arc<ClientConfig>> = LazyLock::new(|| client_config(public_roots()));

fn client_config(roots: Arc<RootCertStore>) -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has cipher suites for both versions");
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    // A resumed session would not show its certificate again, however long ago that expired.
    config.resumption = Resumption::disabled();
    Arc::new(config)
}

/// Identity a server has to prove, and the roots it is checked by.
pub struct ServerIdentity {
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
    /// The same settings with HTTP/2 in the offer, where that is made.
    http2: Option<Arc<ClientConfig>>,
    /// The same for equal names and certificates only.
    digest: u64,
}

impl ServerIdentity {
    /// The server of this name, by the word of the certificates in `ca` or of the public ones.
    ///
    /// # Errors
    /// No such name, or certificates that were not looked at before.
    pub fn new(host: &str, ca: Option<&[u8]>) -> Result<ServerIdentity, String> {
        let config = match ca {
            Some(pem) => client_config(roots_of(pem)?),
            None => Arc::clone(&PUBLIC),
        };
        let digest = BuildHasherDefault::<DefaultHasher>::default().hash_one((host, ca));
        ServerIdentity::with_config(host, config, digest)
    }

    /// The same, with a certificate that is shown to a server which asks for one.
    ///
    /// # Errors
    /// No such name, or certificates that were not looked at before.
    pub fn showing(
        host: &str,
        ca: Option<&[u8]>,
        own: &OwnCertificate,
    ) -> Result<ServerIdentity, String> {
        let roots = ca.map_or_else(|| Ok(public_roots()), roots_of)?;
        let mut config = (*client_config(roots)).clone();
        config.client_auth_cert_resolver = own.resolver();
        ServerIdentity::with_config(host, Arc::new(config), 0)
    }

    /// The name, and the settings by which it has to be proved.
    pub(super) fn parts(&self) -> (&ServerName<'static>, &Arc<ClientConfig>) {
        (&self.name, &self.config)
    }

    pub(super) fn with_config(
        name: &str,
        config: Arc<ClientConfig>,
        digest: u64,
    ) -> Result<ServerIdentity, String> {
        let name = ServerName::try_from(name).map_err(|error| error.to_string())?;
        Ok(ServerIdentity {
            name: name.to_owned(),
            config,
            http2: None,
            digest,
        })
    }

    /// Returns the identity with HTTP/2 in the offer of [`ServerIdentity::handshake_http2`].
    pub fn offering_http2(self) -> ServerIdentity {
        let mut config = (*self.config).clone();
        config.alpn_protocols.insert(0, ALPN_HTTP2.to_vec());
        ServerIdentity {
            http2: Some(Arc::new(config)),
            ..self
        }
    }

    /// Returns whether HTTP/2 is offered.
    pub fn offers_http2(&self) -> bool {
        self.http2.is_some()
    }

    /// Distinguishes identities in the pool's keys.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Returns the same connection once the server has proved itself, within `limit`.
    ///
    /// # Errors
    /// No proof of the identity; the connection is closed then.
    pub async fn handshake(
        &self,
        plain: TcpStream,
        limit: Duration,
    ) -> Result<TlsConnection<ProvedIdentity>, HandshakeError> {
        self.prove(&self.config, plain, limit).await
    }

    /// The same with HTTP/2 in the offer, where that is made; [`TlsConnection::is_http2`] tells what the server chose.
    ///
    /// # Errors
    /// No proof of the identity; the connection is closed then.
    pub async fn handshake_http2(
        &self,
        plain: TcpStream,
        limit: Duration,
    ) -> Result<TlsConnection<ProvedIdentity>, HandshakeError> {
        let config = self.http2.as_ref().unwrap_or(&self.config);
        self.prove(config, plain, limit).await
    }

    async fn prove(
        &self,
        config: &Arc<ClientConfig>,
        plain: TcpStream,
        limit: Duration,
    ) -> Result<TlsConnection<ProvedIdentity>, HandshakeError> {
        let connector = TlsConnector::from(Arc::clone(config));
        let handshake = connector.connect(self.name.clone(), plain);
        match timeout(limit, handshake).await {
            Ok(Ok(tls)) => {
                let proved = ProvedIdentity(self.digest, self.name.clone());
                Ok(TlsConnection::new(tls.into(), proved))
            }
            Ok(Err(error)) => match tls_error(&error) {
                Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
                    let reason = format!("it does not speak TLS at this port: {error}");
                    Err(HandshakeError::NotTrusted(io::Error::other(reason)))
                }
                Some(_) => Err(HandshakeError::NotTrusted(error)),
                None => Err(HandshakeError::Broken(error)),
            },
            Err(_) => Err(HandshakeError::Broken(io::ErrorKind::TimedOut.into())),
        }
    }
}

impl fmt::Debug for ServerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

/// Identity that a server has proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvedIdentity(u64, ServerName<'static>);

impl ProvedIdentity {
    /// Returns whether it is equal to the one that is required.
    pub fn is(&self, identity: &ServerIdentity) -> bool {
        let ProvedIdentity(digest, name) = self;
        (*digest, name) == (identity.digest, &identity.name)
    }
}

/// Returns the failure of TLS; none when it is one of the connection.
fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// Returns whether the server refused our certificate, or requires one. With TLS 1.3 the alert comes
/// when our side of the handshake is long over; it has read no request then.
pub fn is_certificate_refusal(cause: &(dyn Error + Send + Sync + 'static)) -> bool {
    use AlertDescription as Alert;
    let error = cause.downcast_ref::<io::Error>();
    matches!(
        error.and_then(tls_error),
        Some(rustls::Error::AlertReceived(
            Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::AccessDenied
                | Alert::CertificateRequired
        ))
    )
}

/// Reason for which a server has not proved itself.
#[derive(Debug)]
pub enum HandshakeError {
    /// The server's certificate, or its alert, ends the handshake.
    NotTrusted(io::Error),
    /// The connection broke or the server was silent.
    Broken(io::Error),
}

#[cfg(test)]
mod tests {
    use rustls::ServerConfig;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    /// Self-signed certificate of `localhost`, and a server that shows it and lets sessions be resumed.
    fn server() -> (String, Arc<ServerConfig>) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let pem = made.cert.pem();
        let key = made.signing_key.serialize_pem();
        let chain = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![chain], key)
            .unwrap();
        (pem, Arc::new(config))
    }

    #[tokio::test]
    async fn each_connection_checks_the_certificate_anew_and_resumes_no_session() {
        let (pem, config) = server();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let identity = ServerIdentity::new("localhost", Some(pem.as_bytes())).unwrap();
        for _ in 0..2 {
            let serving = async {
                let (tcp, _) = listener.accept().await.unwrap();
                let acceptor = tokio_rustls::TlsAcceptor::from(Arc::clone(&config));
                let mut tls = acceptor.accept(tcp).await.unwrap();
                // Behind it are the tickets that a client may resume with.
                tls.write_all(b"x").await.unwrap();
                tls.flush().await.unwrap();
                tls
            };
            let connecting = async {
                let tcp = TcpStream::connect(address).await.unwrap();
                let mut tls = identity.handshake(tcp, LONG).await.unwrap();
                tls.read_u8().await.unwrap();
                tls
            };
            let (served, _) = tokio::join!(serving, connecting);
            let kind = served.get_ref().1.handshake_kind();
            assert_eq!(kind, Some(rustls::HandshakeKind::Full));
        }
    }

    #[tokio::test]
    async fn a_server_without_tls_is_named_as_one() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let identity = ServerIdentity::new("localhost", None).unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let serving = async {
            let (mut tcp, _) = listener.accept().await.unwrap();
            let refusal = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
            tcp.write_all(refusal).await.unwrap();
            tcp
        };
        let (_tcp, proved) = tokio::join!(serving, identity.handshake(tcp, LONG));
        let Err(HandshakeError::NotTrusted(reason)) = proved else {
            panic!("{proved:?}");
        };
        assert!(
            reason.to_string().contains("does not speak TLS"),
            "{reason}"
        );
    }

    #[test]
    fn identities_differ_by_name_and_by_certificates() {
        let digest = |name, ca| ServerIdentity::new(name, ca).unwrap().digest();
        let key = rcgen::generate_simple_self_signed(["ca".to_owned()]).unwrap();
        let ca = key.cert.pem();
        let own = Some(ca.as_bytes());
        assert_eq!(digest("a", None), digest("a", None));
        assert_ne!(digest("a", None), digest("b", None));
        assert_ne!(digest("a", None), digest("a", own));
        assert_eq!(digest("a", own), digest("a", own));
    }
}
