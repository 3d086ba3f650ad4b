//! TLS for its five users: requests to model servers and other HTTPS servers, requests to other nodes,
//! the listener for other nodes, listeners for clients and operators, and commands.
//!
//! No connection is opened or kept here, and no rule of membership is known. The only module that names rustls
//! and webpki; the provider is `ring`. HTTP/1.1 is all that is offered, but to clients and to
//! model servers with `http2: auto`. Names and certificates are always
//! checked. A reload makes new values, which their users swap; nothing here changes.
//!
//! ```text
//! pem (content of files)      roots (trusted authorities)      names (names that a certificate can prove)
//! credentials (own certificate and key)      server_identity (identity that a server has to prove)
//! mutual (both directions between nodes)     stream (connection with a proved other end)
//! client_listener (certificates by server name)       blocking (connections of commands)
//! ```

mod blocking;
mod client_listener;
mod credentials;
mod mutual;
mod names;
mod pem;
mod roots;
mod server_identity;
mod stream;

pub use blocking::BlockingTls;
pub use client_listener::{ClientStream, ListenerTls, time_fault};
pub use credentials::{CredentialFault, CredentialFile, OwnCertificate};
pub use mutual::{MutualTls, TrustedAuthority};
pub use names::{CertificateNames, is_dns_name, is_server_name};
pub use pem::read_pem;
pub use roots::read_ca_file;
pub use server_identity::{HandshakeError, ProvedIdentity, ServerIdentity, is_certificate_refusal};
pub use stream::TlsConnection;
