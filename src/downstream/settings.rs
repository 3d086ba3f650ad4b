//! `listen.clients`: where clients connect, and what is spoken there.
//!
//! Values only. All of them but the address are followed at a reload, by new connections.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use infergate_core::model::{UNIX_PATH_BYTES_MAX, UNIX_SCHEME};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::tls::CredentialFile;

/// A listener for clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientListenerConfig {
    /// IP address and port, such as `0.0.0.0:8080` or `[::]:8080`, or `unix:` and the absolute path of a socket.
    #[schemars(with = "String", extend("format" = "listen-address"))]
    pub address: ListenAddress,
    /// Certificates; without them clients speak plain text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<ClientTls>,
    /// HTTP/2 beside HTTP/1.1.
    #[serde(default)]
    pub http2: Http2,
    /// Header in which a balancer tells the client's address (PROXY protocol).
    #[serde(default)]
    pub proxy_protocol: ProxyProtocol,
    /// Answers `GET /healthz` without a key: 200, and 503 while the gateway drains.
    #[serde(default)]
    pub health: bool,
}

/// Address of a listener for clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ListenAddress {
    /// IP address and port.
    Ip(SocketAddr),
    /// Absolute path of a socket in the file system.
    Unix(PathBuf),
}

impl ListenAddress {
    /// IP address and port; none for a socket in the file system.
    pub fn ip(&self) -> Option<SocketAddr> {
        match self {
            ListenAddress::Ip(address) => Some(*address),
            ListenAddress::Unix(_) => None,
        }
    }
}

impl TryFrom<String> for ListenAddress {
    type Error = String;

    fn try_from(text: String) -> Result<ListenAddress, String> {
        let Some(path) = text.strip_prefix(UNIX_SCHEME) else {
            let parsed = text.parse().map(ListenAddress::Ip);
            return parsed.map_err(|_| "not an IP address and a port".to_owned());
        };
        match path.starts_with('/') && path.len() <= UNIX_PATH_BYTES_MAX {
            true => Ok(ListenAddress::Unix(path.into())),
            false => Err(format!(
                "not `{UNIX_SCHEME}` and an absolute path of at most {UNIX_PATH_BYTES_MAX} bytes"
            )),
        }
    }
}

impl From<ListenAddress> for String {
    fn from(address: ListenAddress) -> String {
        address.to_string()
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Ip(address) => address.fmt(f),
            ListenAddress::Unix(path) => write!(f, "{UNIX_SCHEME}{}", path.display()),
        }
    }
}

/// Use of HTTP/2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Http2 {
    /// Under TLS, with clients that ask for it (ALPN).
    #[default]
    Auto,
    /// HTTP/1.1 alone.
    Off,
    /// Also in plain text, with clients that begin with it (prior knowledge). For trusted networks.
    Clear,
}

/// Header of the PROXY protocol at the begin of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProxyProtocol {
    /// None is read: a client that sends one is refused.
    #[default]
    Off,
    /// Version 1 or 2; a connection without it is closed. For listeners that the
    /// balancer alone reaches, as a client could name any address.
    Required,
}

/// PEM files, seen from the folder of the configuration file. A change of one of them reloads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientTls {
    /// PEM file of the certificate, then of those between it and the authority's. Serves clients that name no server, or
    /// one that no certificate is for.
    #[schemars(length(min = 1))]
    pub certificate: PathBuf,
    /// PEM file of the certificate's private key.
    #[schemars(length(min = 1))]
    pub private_key: PathBuf,
    /// Further certificates, found by the names in them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub certificates: Vec<CertificateFiles>,
    /// PEM file of an authority: clients have to show a certificate of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<PathBuf>,
}

/// A certificate with its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CertificateFiles {
    /// PEM file of the certificate, then of those between it and the authority's.
    #[schemars(length(min = 1))]
    pub certificate: PathBuf,
    /// PEM file of its private key.
    #[schemars(length(min = 1))]
    pub private_key: PathBuf,
}

impl ClientTls {
    /// Paths of its files, to be edited.
    pub fn files_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let more = self.certificates.iter_mut();
        let more = more.flat_map(|files| [&mut files.certificate, &mut files.private_key]);
        [&mut self.certificate, &mut self.private_key]
            .into_iter()
            .chain(more)
            .chain(&mut self.client_ca)
    }

    /// Its files with their keys below `tls`.
    pub fn files(&self) -> Vec<(String, &Path)> {
        let keys =
            [CredentialFile::Certificate, CredentialFile::PrivateKey].map(CredentialFile::key);
        let first = [&self.certificate, &self.private_key];
        let mut files: Vec<(String, &Path)> = keys
            .into_iter()
            .zip(first)
            .map(|(key, path)| (key.to_owned(), path.as_path()))
            .collect();
        for (at, more) in self.certificates.iter().enumerate() {
            let paths = [&more.certificate, &more.private_key];
            for (key, path) in keys.into_iter().zip(paths) {
                files.push((format!("certificates[{at}].{key}"), path));
            }
        }
        if let Some(path) = &self.client_ca {
            files.push((CredentialFile::ClientCa.key().to_owned(), path));
        }
        files
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_of_the_network_or_of_the_file_system() {
        let read = |text: &str| ListenAddress::try_from(text.to_owned());
        for good in ["127.0.0.1:80", "[::]:8080", "unix:/run/infergate/api.sock"] {
            assert_eq!(read(good).unwrap().to_string(), good);
        }
        let long = format!("unix:/{}", "x".repeat(UNIX_PATH_BYTES_MAX));
        for bad in ["localhost:80", "unix:", "unix:relative", "", &long] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
