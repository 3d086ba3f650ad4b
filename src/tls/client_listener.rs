//! TLS of a listener for clients: certificates by server name, and on request an authority for clients' own.
//!
//! TLS 1.2 and 1.3. Connections are not kept here; a reload makes a new value, with the ticket keys of the last one.
//! Sessions are resumed by tickets that this process alone can read (RFC 5077, RFC 8446 section 2.2). None is where
//! clients show certificates: a resumed one would not show it again.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use rustls::crypto::ring;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{
    ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use webpki::EndEntityCert;

use super::credentials::{CredentialFault, CredentialFile, OwnCertificate};
use super::mutual::{is_of_time, linger};
use super::roots::roots_of;
use super::stream::{ALPN, TlsConnection};

/// Protocol name of HTTP/2 (RFC 9113 section 3.2).
const ALPN_HTTP2: &[u8] = b"h2";
/// Names of one certificate by which it is found.
const NAMES_MAX: usize = 256;
/// Time for a client to read why its handshake failed.
const LINGER_LIMIT: Duration = Duration::from_millis(200);

/// Protocol that was agreed on in a handshake.
#[derive(Debug)]
pub struct ClientSession {
    /// HTTP/2 was agreed on by ALPN.
    pub is_http2: bool,
}

/// A connection of a client whose handshake is done.
pub type ClientStream = TlsConnection<ClientSession>;

/// Settings of the handshakes of one listener.
pub struct ListenerTls {
    config: Arc<ServerConfig>,
}

impl ListenerTls {
    /// Serves `certificates`, of which the first is shown to clients that name no server or an unknown one. With
    /// `client_ca` each client has to show a certificate of it.
    ///
    /// # Errors
    /// No certificate, or an authority that is of no use.
    pub fn new(
        certificates: &[OwnCertificate],
        client_ca: Option<&[u8]>,
        offers_http2: bool,
    ) -> Result<ListenerTls, CredentialFault> {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("the provider has cipher suites for both versions");
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(pem) => builder.with_client_cert_verifier(verifier(pem)?),
        };
        let mut config = builder.with_cert_resolver(Arc::new(ByServerName::new(certificates)?));
        config.alpn_protocols = match offers_http2 {
            true => vec![ALPN_HTTP2.to_vec(), ALPN.to_vec()],
            false => vec![ALPN.to_vec()],
        };
        config.session_storage = Arc::new(NoServerSessionStorage {});
        match (client_ca, ring::Ticketer::new()) {
            (None, Ok(ticketer)) => config.ticketer = ticketer,
            // Without randomness there is no resumption, and no handshake either.
            _ => config.send_tls13_tickets = 0,
        }
        Ok(ListenerTls {
            config: Arc::new(config),
        })
    }

    /// The same settings with the ticket keys of a former value, whose sessions are resumed from then on. Keys are not
    /// shared with a value that resumes none: it asks each client for a certificate.
    pub fn with_tickets_of(&self, former: &ListenerTls) -> ListenerTls {
        let resumes = |tls: &ListenerTls| tls.config.ticketer.enabled();
        if !resumes(self) || !resumes(former) {
            return ListenerTls {
                config: Arc::clone(&self.config),
            };
        }
        let mut config = (*self.config).clone();
        config.ticketer = Arc::clone(&former.config.ticketer);
        ListenerTls {
            config: Arc::new(config),
        }
    }

    /// Makes the handshake on a connection, within `limit`.
    ///
    /// # Errors
    /// The client did not speak TLS, refused the certificate, or showed none that is trusted. An alert was sent.
    pub async fn accept(&self, tcp: TcpStream, limit: Duration) -> io::Result<ClientStream> {
        let acceptor = TlsAcceptor::from(Arc::clone(&self.config));
        match timeout(limit, acceptor.accept(tcp).into_fallible()).await {
            Ok(Ok(tls)) => {
                let is_http2 = tls.get_ref().1.alpn_protocol() == Some(ALPN_HTTP2);
                Ok(TlsConnection::new(tls.into(), ClientSession { is_http2 }))
            }
            Ok(Err((error, tcp))) => {
                let _ = timeout(LINGER_LIMIT, linger(tcp)).await;
                Err(error)
            }
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl fmt::Debug for ListenerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerTls").finish_non_exhaustive()
    }
}

fn verifier(client_ca: &[u8]) -> Result<Arc<dyn ClientCertVerifier>, CredentialFault> {
    let of_authority = |fault| CredentialFault::new(CredentialFile::ClientCa, fault);
    let roots = roots_of(client_ca).map_err(of_authority)?;
    WebPkiClientVerifier::builder_with_provider(roots, Arc::new(ring::default_provider()))
        .build()
        .map_err(|error| of_authority(format!("is of no use: {error}")))
}

/// Returns the fault of a certificate that has expired, or is not valid yet.
pub fn time_fault(own: &OwnCertificate) -> Option<String> {
    let (first, between) = own.chain().split_first()?;
    // Time is looked at before the issuer is. Any authority will do, and none can be known here.
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates([own.chain().last()?.clone()]);
    let provider = Arc::new(ring::default_provider());
    let verifier =
        rustls::client::WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
    let verifier = verifier.build().ok()?;
    let name = ServerName::try_from("localhost").ok()?;
    let checked = rustls::client::danger::ServerCertVerifier::verify_server_cert(
        &*verifier,
        first,
        between,
        &name,
        &[],
        UnixTime::now(),
    );
    let error = checked.err().filter(is_of_time)?;
    Some(format!("clients will refuse it: {error}"))
}

/// Certificates by the names in them.
struct ByServerName {
    first: Arc<CertifiedKey>,
    exact: HashMap<Box<str>, Arc<CertifiedKey>>,
    /// Certificates for any name one label below: `*.example.com` by `example.com` (RFC 9525 section 6.3).
    wildcard: HashMap<Box<str>, Arc<CertifiedKey>>,
}

impl ByServerName {
    fn new(certificates: &[OwnCertificate]) -> Result<ByServerName, CredentialFault> {
        let of_certificate = |fault| CredentialFault::new(CredentialFile::Certificate, fault);
        let first = certificates
            .first()
            .ok_or_else(|| of_certificate("no certificate".to_owned()))?;
        let mut found = ByServerName {
            first: Arc::clone(first.certified_key()),
            exact: HashMap::new(),
            wildcard: HashMap::new(),
        };
        for own in certificates {
            let key = own.certified_key();
            let parsed = EndEntityCert::try_from(&own.chain()[0])
                .map_err(|error| of_certificate(format!("cannot be read: {error}")))?;
            for name in parsed.valid_dns_names().take(NAMES_MAX) {
                let name = name.to_ascii_lowercase();
                // The first in the file wins, as it does for unknown names.
                match name.strip_prefix("*.") {
                    Some(parent) => found
                        .wildcard
                        .entry(parent.into())
                        .or_insert(Arc::clone(key)),
                    None => found.exact.entry(name.into()).or_insert(Arc::clone(key)),
                };
            }
        }
        Ok(found)
    }

    fn of(&self, name: Option<&str>) -> &Arc<CertifiedKey> {
        let found = name.and_then(|name| {
            let name = name.to_ascii_lowercase();
            let parent = || self.wildcard.get(name.split_once('.')?.1);
            self.exact.get(&*name).or_else(parent)
        });
        found.unwrap_or(&self.first)
    }
}

impl ResolvesServerCert for ByServerName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(self.of(hello.server_name())))
    }
}

impl fmt::Debug for ByServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.exact.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(names: &[&str]) -> OwnCertificate {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        OwnCertificate::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap()
    }

    #[test]
    fn a_certificate_is_found_by_its_names_and_the_first_serves_all_others() {
        let [a, b, c] = [
            own(&["a.example", "www.a.example"]),
            own(&["*.b.example"]),
            own(&["b.example", "a.example"]),
        ];
        let keys = [&a, &b, &c].map(|own| Arc::as_ptr(own.certified_key()));
        let all = [a, b, c];
        let found = ByServerName::new(&all).unwrap();
        for (name, expected) in [
            (Some("a.example"), 0),
            (Some("WWW.A.example"), 0),
            (Some("x.b.example"), 1),
            (Some("b.example"), 2),
            (Some("x.y.b.example"), 0),
            (Some("other"), 0),
            (None, 0),
        ] {
            assert_eq!(Arc::as_ptr(found.of(name)), keys[expected], "{name:?}");
        }
    }

    #[test]
    fn a_certificate_out_of_its_time_is_named() {
        let mut params = rcgen::CertificateParams::new(vec!["a".to_owned()]).unwrap();
        assert_eq!(time_fault(&own(&["a"])), None);
        params.not_after = rcgen::date_time_ymd(2001, 1, 1);
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        let made = params.self_signed(&key).unwrap();
        let (certificate, key) = (made.pem(), key.serialize_pem());
        let old = OwnCertificate::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap();
        let fault = time_fault(&old).unwrap();
        assert!(fault.contains("expired"), "{fault}");
    }
}
