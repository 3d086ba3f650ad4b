//! Identity that a server has to prove, and the handshake in which it does.
//!
//! The server's name is sent (SNI) and checked, its certificate too, and there is no way to switch either
//! off. TLS 1.2 and 1.3 towards model servers and other HTTPS servers; towards nodes as
//! [`MutualTls`](super::MutualTls) has it.

use std::error::Error;
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::roots::{public_roots, roots_of};
use super::stream::{ALPN, TlsConnection};

/// Configuration for servers without a `ca_file`: public roots, with sessions to resume.
static PUBLIC: LazyLock<Arc<ClientConfig>> = LazyLock::new(|| client_config(public_roots()));

fn client_config(roots: Arc<RootCertStore>) -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has cipher suites for both versions");
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    Arc::new(config)
}

/// Identity a server has to prove, and the roots it is checked by.
pub struct ServerIdentity {
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
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

    pub(super) fn with_config(
        name: &str,
        config: Arc<ClientConfig>,
        digest: u64,
    ) -> Result<ServerIdentity, String> {
        let name = ServerName::try_from(name).map_err(|error| error.to_string())?;
        Ok(ServerIdentity {
            name: name.to_owned(),
            config,
            digest,
        })
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
        let connector = TlsConnector::from(Arc::clone(&self.config));
        let handshake = connector.connect(self.name.clone(), plain);
        match timeout(limit, handshake).await {
            Ok(Ok(tls)) => {
                let proved = ProvedIdentity(self.digest, self.name.clone());
                Ok(TlsConnection::new(tls.into(), proved))
            }
            Ok(Err(error)) => match is_tls_error(&error) {
                true => Err(HandshakeError::NotTrusted(error)),
                false => Err(HandshakeError::Broken(error)),
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

/// Returns whether the failure is of TLS, and not of the connection.
fn is_tls_error(error: &io::Error) -> bool {
    error
        .get_ref()
        .is_some_and(|inner| inner.is::<rustls::Error>())
}

/// Returns whether the server refused our certificate, or requires one. With TLS 1.3 the alert comes
/// when our side of the handshake is long over; it has read no request then.
pub fn is_certificate_refusal(cause: &(dyn Error + Send + Sync + 'static)) -> bool {
    use AlertDescription as Alert;
    let error = cause.downcast_ref::<io::Error>();
    let tls_error = error.and_then(|error| error.get_ref()?.downcast_ref());
    matches!(
        tls_error,
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
    use super::*;

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
