//! Model servers behind TLS: an authority that tests make, and a front that takes TLS off.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer,
    KeyIdMethod, KeyPair, date_time_ymd,
};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A server's certificate with its key.
pub struct Certificate {
    certificate: String,
    key: KeyPair,
}

impl Authority {
    pub fn new() -> Authority {
        let key = KeyPair::generate().unwrap();
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        let name = format!("authority {}", MADE.fetch_add(1, Ordering::SeqCst));
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        Authority { issuer, pem }
    }

    /// Writes its own certificate into a file there, and gives the file's path.
    pub fn write(&self, dir: &Path) -> String {
        let path = dir.join("own-ca.pem");
        std::fs::write(&path, &self.pem).unwrap();
        path.display().to_string()
    }

    /// Its list of certificates taken back, as PEM: none.
    pub fn empty_revocation_list(&self) -> String {
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2090, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: Vec::new(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap().pem().unwrap()
    }

    /// A certificate for this name or address.
    pub fn certify(&self, name: &str) -> Certificate {
        self.sign(CertificateParams::new([name.to_owned()]).unwrap())
    }

    /// An empty list of revoked certificates, PEM.
    pub fn revocation_list(&self) -> String {
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2090, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: Vec::new(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap().pem().unwrap()
    }

    /// A certificate that expired at the end of 2001.
    pub fn expired(&self, name: &str) -> Certificate {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
        self.sign(params)
    }

    fn sign(&self, params: CertificateParams) -> Certificate {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Certificate { certificate, key }
    }
}

impl Certificate {
    /// Certificate and private key as PEM.
    pub fn pem(&self) -> (String, String) {
        (self.certificate.clone(), self.key.serialize_pem())
    }

    /// Writes both into files of this name there, and gives the keys of a listener that name them.
    pub fn write(&self, dir: &Path, name: &str) -> String {
        let (certificate, key) = self.pem();
        let paths = ["crt", "key"].map(|end| dir.join(format!("{name}.{end}")));
        for (path, text) in paths.iter().zip([certificate, key]) {
            // Replaced as a whole: the files are watched.
            let beside = path.with_extension("next");
            std::fs::write(&beside, text).unwrap();
            std::fs::rename(beside, path).unwrap();
        }
        let [certificate, key] = paths.map(|path| path.display().to_string());
        format!("certificate: \"{certificate}\", private_key: \"{key}\"")
    }
}

/// Bytes received until the server closes. `authority` must have certified the server under this name;
/// `shown` is the client's own certificate. The request asks for the connection's end.
pub async fn over_tls(
    address: SocketAddr,
    name: &str,
    authority: &Authority,
    shown: Option<&Certificate>,
    request: &str,
) -> std::io::Result<String> {
    let tcp = TcpStream::connect(address).await?;
    let mut tls = handshake(tcp, name, authority, shown, &[]).await?;
    tls.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    let read = tls.read_to_end(&mut answer).await;
    match read {
        // Some close without a goodbye.
        Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => Err(error),
        _ => Ok(String::from_utf8(answer).unwrap()),
    }
}

/// A connection whose server has proved this name; `protocols` are offered by ALPN.
pub async fn handshake(
    tcp: TcpStream,
    name: &str,
    authority: &Authority,
    shown: Option<&Certificate>,
    protocols: &[&str],
) -> std::io::Result<TlsStream<TcpStream>> {
    let config = client_config(authority, shown, protocols);
    handshake_by(tcp, name, config).await
}

/// The same by settings that keep sessions for later connections.
pub async fn handshake_by(
    tcp: TcpStream,
    name: &str,
    config: Arc<ClientConfig>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    TlsConnector::from(config).connect(name, tcp).await
}

/// Settings of a client that trusts `authority`.
pub fn client_config(
    authority: &Authority,
    shown: Option<&Certificate>,
    protocols: &[&str],
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap();
    roots.add(ca).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match shown {
        Some(shown) => {
            let (chain, key) = der(shown);
            config.with_client_auth_cert(chain, key).unwrap()
        }
        None => config.with_no_client_auth(),
    };
    let protocols = protocols.iter().map(|name| name.as_bytes().to_vec());
    config.alpn_protocols = protocols.collect();
    Arc::new(config)
}

fn der(certificate: &Certificate) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let (chain, key) = certificate.pem();
    let chain = CertificateDer::from_pem_slice(chain.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    (vec![chain], key)
}

/// Takes TLS off before a server that speaks none; ended with the value.
pub struct TlsFront {
    /// Address at which it listens.
    pub address: SocketAddr,
    names: Arc<Mutex<Vec<Option<String>>>>,
    failed: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl TlsFront {
    /// Shows `certificate` to whoever connects, and passes everything on to `behind`.
    pub async fn start(certificate: &Certificate, behind: SocketAddr) -> TlsFront {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(server_config(certificate, &["http/1.1"])));
        let names: Arc<Mutex<Vec<Option<String>>>> = Arc::default();
        let failed: Arc<AtomicUsize> = Arc::default();
        let mut tasks = JoinSet::new();
        let (seen, broken) = (Arc::clone(&names), Arc::clone(&failed));
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let (acceptor, seen) = (acceptor.clone(), Arc::clone(&seen));
                let broken = Arc::clone(&broken);
                connections.spawn(async move {
                    let Ok(mut tls) = acceptor.accept(tcp).await else {
                        broken.fetch_add(1, Ordering::SeqCst);
                        return;
                    };
                    let name = tls.get_ref().1.server_name().map(str::to_owned);
                    seen.lock().push(name);
                    let mut plain = TcpStream::connect(behind).await.unwrap();
                    // Either side may end it at any time.
                    let _ = copy_bidirectional(&mut tls, &mut plain).await;
                });
            }
        });
        TlsFront {
            address,
            names,
            failed,
            _tasks: tasks,
        }
    }

    /// The names that were asked for by SNI, one for each connection that came about.
    pub fn names(&self) -> Vec<Option<String>> {
        self.names.lock().clone()
    }

    /// Connections that did not come about.
    pub fn failed(&self) -> usize {
        self.failed.load(Ordering::SeqCst)
    }
}

/// Settings of a server that shows `certificate` and takes `protocols` by ALPN.
pub fn server_config(certificate: &Certificate, protocols: &[&str]) -> ServerConfig {
    let (chain, key) = der(certificate);
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let protocols = protocols.iter().map(|name| name.as_bytes().to_vec());
    config.alpn_protocols = protocols.collect();
    config
}
