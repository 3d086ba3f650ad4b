//! Names that a certificate can prove, and those that one carries.
//!
//! Which of them may connect is the caller's rule. Wildcards are no name of anyone. Bound: [`NAMES_MAX`] names of
//! one certificate.

use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};

/// Names of one certificate that are kept; a node has one, during a renaming two.
const NAMES_MAX: usize = 16;

/// Returns whether a certificate can be for `host`: a DNS name or an IP address.
pub fn is_server_name(host: &str) -> bool {
    ServerName::try_from(host).is_ok()
}

/// Returns whether `name` is a DNS name as it stands in a certificate: no address, no dot at its end.
pub fn is_dns_name(name: &str) -> bool {
    let is_dns = matches!(ServerName::try_from(name), Ok(ServerName::DnsName(_)));
    is_dns && !name.ends_with('.')
}

/// DNS names in a certificate, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateNames(Arc<[Box<str>]>);

impl CertificateNames {
    /// Reads the names in a certificate, without its wildcards.
    pub(super) fn read(certificate: &CertificateDer<'_>) -> Result<CertificateNames, String> {
        let parsed = webpki::EndEntityCert::try_from(certificate)
            .map_err(|error| format!("the certificate cannot be read: {error}"))?;
        let names = parsed.valid_dns_names().filter(|name| !name.contains('*'));
        let names = names.take(NAMES_MAX).map(str::to_ascii_lowercase);
        Ok(CertificateNames(
            names.map(String::into_boxed_str).collect(),
        ))
    }

    /// Returns whether `name` is one of them.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|own| own.eq_ignore_ascii_case(name))
    }

    /// Returns the names for which `may_have` holds.
    pub fn matching(&self, may_have: impl Fn(&str) -> bool) -> CertificateNames {
        let names = self.0.iter().filter(|name| may_have(name));
        CertificateNames(names.cloned().collect())
    }

    /// Returns whether there is no name.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them, for messages.
    pub fn list(&self) -> &[Box<str>] {
        &self.0
    }

    /// The first one, for logs.
    pub fn first(&self) -> &str {
        self.0.first().map_or("", |name| name)
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
        assert!(is_dns_name("gpu-1.fleet"));
        for other in ["10.0.0.1", "::1", "a.", ""] {
            assert!(!is_dns_name(other), "{other}");
        }
    }
}
