//! TLS towards servers: the identity a server has to prove, and the stream once it has.
//!
//! Connections are opened and kept by `client` and `pool`. The server's name is sent (SNI) and
//! checked, its certificate too, and there is no way to switch either off. TLS 1.2 and 1.3 with the
//! `ring` provider; HTTP/1.1 is all that is offered. With `peer/tls.rs`, the mutual TLS
//! between nodes, the only file that names rustls.

use std::error::Error;
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io::{self, Read};
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::io::Errno;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{AlertDescription, ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::plugin::file::open_regular;

/// Ten times the public certificates of an operating system.
const CA_FILE_BYTES_MAX: u64 = 4 << 20;

const ALPN: &[u8] = b"http/1.1";
/// For the last record of a connection: it is a courtesy.
const CLOSE_NOTIFY_LIMIT: Duration = Duration::from_secs(1);

/// Configuration for endpoints without a `ca_file`: public roots, with sessions to resume.
static PUBLIC: LazyLock<Arc<ClientConfig>> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    config(roots)
});

/// Returns whether a certificate can be for `host`: a DNS name or an IP address.
pub fn is_server_name(host: &str) -> bool {
    ServerName::try_from(host).is_ok()
}

/// The certificates in the PEM file at `path`, read and looked at.
///
/// # Errors
/// Reason for which the file is of no use, for the operator.
pub fn read_ca_file(path: &Path) -> Result<Arc<[u8]>, String> {
    let pem = read_pem(path)?;
    match roots(&pem) {
        Ok(_) => Ok(pem.into()),
        Err(fault) => Err(format!("{}: {fault}", path.display())),
    }
}

/// Reads the regular file at `path`, at most 4 MiB.
///
/// # Errors
/// Reason for which the file cannot be read, for the operator.
pub fn read_pem(path: &Path) -> Result<Vec<u8>, String> {
    let unreadable = |error: io::Error| format!("cannot read {}: {error}", path.display());
    let file = open_regular(path).map_err(unreadable)?;
    let mut pem = Vec::new();
    let read = file.take(CA_FILE_BYTES_MAX + 1).read_to_end(&mut pem);
    read.map_err(unreadable)?;
    if pem.len() as u64 > CA_FILE_BYTES_MAX {
        let mib = CA_FILE_BYTES_MAX >> 20;
        return Err(format!("{} is larger than {mib} MiB", path.display()));
    }
    Ok(pem)
}

/// All certificates of a PEM file as roots.
///
/// # Errors
/// A certificate in it is of no use, or there is none.
pub fn roots(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for (at, certificate) in CertificateDer::pem_slice_iter(pem).enumerate() {
        let number = at + 1;
        let certificate =
            certificate.map_err(|error| format!("certificate {number} is not PEM: {error}"))?;
        roots
            .add(certificate)
            .map_err(|error| format!("certificate {number} is of no use: {error}"))?;
    }
    match roots.is_empty() {
        true => Err("no certificate in it: expected PEM, `-----BEGIN CERTIFICATE-----`".into()),
        false => Ok(roots),
    }
}

fn config(roots: RootCertStore) -> Arc<ClientConfig> {
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
        let name = ServerName::try_from(host).map_err(|error| error.to_string())?;
        let config = match ca {
            Some(pem) => config(roots(pem)?),
            None => Arc::clone(&PUBLIC),
        };
        let digest = BuildHasherDefault::<DefaultHasher>::default().hash_one((host, ca));
        Ok(ServerIdentity {
            name: name.to_owned(),
            config,
            digest,
        })
    }

    /// Identity of the node of this name, to which `config` presents our certificate. `digest` is
    /// the same for equal nodes and certificates only.
    ///
    /// # Errors
    /// No DNS name.
    pub fn for_node(
        name: &str,
        config: Arc<ClientConfig>,
        digest: u64,
    ) -> Result<ServerIdentity, String> {
        let name = ServerName::try_from(name).map_err(|error| error.to_string())?;
        if !matches!(name, ServerName::DnsName(_)) {
            return Err("an address is no node's name".to_owned());
        }
        Ok(ServerIdentity {
            name: name.to_owned(),
            config,
            digest,
        })
    }

    /// Tells identities apart in the pool's keys.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// The same connection once the server has proved itself, within `limit`.
    ///
    /// # Errors
    /// No proof of the identity; the connection is closed then.
    pub async fn handshake(
        &self,
        plain: TcpStream,
        limit: Duration,
    ) -> Result<TlsConnection, HandshakeError> {
        let connector = TlsConnector::from(Arc::clone(&self.config));
        let handshake = connector.connect(self.name.clone(), plain);
        match timeout(limit, handshake).await {
            Ok(Ok(tls)) => Ok(TlsConnection {
                tls,
                identity: (self.digest, self.name.clone()),
            }),
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

/// A connection to a server that has proved who it is.
#[derive(Debug)]
pub struct TlsConnection {
    tls: TlsStream<TcpStream>,
    identity: (u64, ServerName<'static>),
}

impl TlsConnection {
    /// Returns whether the server has proved an equal identity.
    pub fn has_identity(&self, identity: &ServerIdentity) -> bool {
        self.identity == (identity.digest, identity.name.clone())
    }

    /// The socket below.
    pub fn tcp(&self) -> &TcpStream {
        self.tls.get_ref().0
    }

    /// Sends the last record. The server may be gone already, or take nothing any more, and a permit
    /// must not wait for that.
    pub async fn close_notify(&mut self) {
        let _ = timeout(CLOSE_NOTIFY_LIMIT, AsyncWriteExt::shutdown(self)).await;
    }
}

impl AsyncRead for TlsConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.tls).poll_read(cx, buf);
        read.map_err(|error| match error.kind() {
            // Closed without a goodbye: what TCP calls a reset, and may be met on a kept connection
            // as there. It is no end of a body.
            io::ErrorKind::UnexpectedEof => Errno::CONNRESET.into(),
            _ => error,
        })
    }
}

impl AsyncWrite for TlsConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tls).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_can_be_proved_and_other_texts_cannot() {
        for good in ["api.example.com", "gpu-1", "10.0.0.1", "::1"] {
            assert!(is_server_name(good), "{good}");
        }
        for bad in ["", "a b", "-", "a..b"] {
            assert!(!is_server_name(bad), "{bad}");
        }
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

    #[test]
    fn a_file_without_certificates_is_of_no_use_and_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        let fault = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read_ca_file(&path).unwrap_err()
        };
        assert!(fault("").contains("no certificate in it"));
        assert!(fault("no PEM at all").contains("no certificate in it"));
        let torn = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(fault(torn).contains("certificate 1"));
        assert!(
            read_ca_file(&dir.path().join("none"))
                .unwrap_err()
                .contains("cannot read")
        );
    }
}
