//! Certificates of the listeners for clients and operators, read from their files.
//!
//! All files are read before one listener changes: a bad one leaves what is in use. Handshakes are made elsewhere.

use std::path::Path;
use std::sync::Arc;

use crate::config::{LoadedConfig, Problem};
use crate::downstream::{ClientTls, Http2};
use crate::tls::{CredentialFault, ListenerTls, OwnCertificate, read_pem, time_fault};

/// Certificates of listeners; none for plain text.
#[derive(Default)]
pub struct ListenersTls {
    /// Certificates of each listener for clients, in the order of the file.
    pub clients: Vec<Option<Arc<ListenerTls>>>,
    /// Certificates of the listener for operators.
    pub admin: Option<Arc<ListenerTls>>,
}

/// Reads the certificates of each listener, with what is wrong with them and what will be.
pub fn read(loaded: &mut LoadedConfig, problems: &mut Vec<Problem>) -> ListenersTls {
    let LoadedConfig {
        config,
        places,
        warnings,
        ..
    } = loaded;
    let mut read = |path: String, tls: Option<&ClientTls>, offers_http2: bool| {
        let place = |fault: TlsFault| {
            let key = format!("{path}.tls.{}", fault.key);
            places.problem(&key, fault.message)
        };
        match listener_tls(tls?, offers_http2) {
            Ok((tls, faults)) => {
                warnings.extend(faults.into_iter().map(place));
                Some(Arc::new(tls))
            }
            Err(faults) => {
                problems.extend(faults.into_iter().map(place));
                None
            }
        }
    };
    let mut found = ListenersTls::default();
    for (at, listener) in config.listen.clients.iter().enumerate() {
        let offers_http2 = listener.http2 != Http2::Off;
        let path = format!("listen.clients[{at}]");
        found
            .clients
            .push(read(path, listener.tls.as_ref(), offers_http2));
    }
    let admin = config.listen.admin.tls.as_ref();
    found.admin = read("listen.admin".to_owned(), admin, false);
    found
}

/// Fault of a file.
struct TlsFault {
    /// Key below `tls`.
    key: String,
    message: String,
}

/// Reads the files of one listener.
fn listener_tls(
    files: &ClientTls,
    offers_http2: bool,
) -> Result<(ListenerTls, Vec<TlsFault>), Vec<TlsFault>> {
    let (mut warnings, mut faults) = (Vec::new(), Vec::new());
    let mut certificates = Vec::new();
    let first = (String::new(), &files.certificate, &files.private_key);
    let more = files.certificates.iter().enumerate().map(|(at, more)| {
        let below = format!("certificates[{at}].");
        (below, &more.certificate, &more.private_key)
    });
    for (below, certificate, key) in std::iter::once(first).chain(more) {
        match own_certificate(&below, certificate, key) {
            Ok(own) => {
                if let Some(message) = time_fault(&own) {
                    warnings.push(TlsFault {
                        key: format!("{below}certificate"),
                        message: format!("{}: {message}", certificate.display()),
                    });
                }
                certificates.push(own);
            }
            Err(fault) => faults.push(fault),
        }
    }
    let client_ca = files.client_ca.as_deref().map(|path| {
        let read = read_pem(path);
        read.map_err(|message| {
            faults.push(TlsFault {
                key: "client_ca".to_owned(),
                message,
            })
        })
    });
    if !faults.is_empty() {
        return Err(faults);
    }
    let client_ca = client_ca.and_then(Result::ok);
    match ListenerTls::new(&certificates, client_ca.as_deref(), offers_http2) {
        Ok(tls) => Ok((tls, warnings)),
        Err(CredentialFault { file, message }) => Err(vec![TlsFault {
            key: file.key().to_owned(),
            message,
        }]),
    }
}

fn own_certificate(
    below: &str,
    certificate: &Path,
    key: &Path,
) -> Result<OwnCertificate, TlsFault> {
    let unread = |name: &str| {
        let key = format!("{below}{name}");
        move |message| TlsFault { key, message }
    };
    let chain = read_pem(certificate).map_err(unread("certificate"))?;
    let private_key = read_pem(key).map_err(unread("private_key"))?;
    OwnCertificate::from_pem(&chain, &private_key).map_err(|CredentialFault { file, message }| {
        let path = match file.key() {
            "private_key" => key,
            _ => certificate,
        };
        TlsFault {
            key: format!("{below}{}", file.key()),
            message: format!("{}: {message}", path.display()),
        }
    })
}
