//! Certificates, private keys and revocation lists from PEM files.
//!
//! Nothing is trusted or checked against anything else here. Faults are sentences for the operator: what is
//! wrong, and what is expected. No byte of a key stands in them. Bound: [`FILE_BYTES_MAX`] a file.

use std::io::{self, Read};
use std::path::Path;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

use crate::regular_file::open_regular;

/// Ten times the public certificates of an operating system.
const FILE_BYTES_MAX: u64 = 4 << 20;

const CERTIFICATE_MARK: &str = "-----BEGIN CERTIFICATE-----";
const KEY_MARK: &str = "-----BEGIN PRIVATE KEY-----";
const CRL_MARK: &str = "-----BEGIN X509 CRL-----";

/// First byte of a certificate or key in DER: a sequence.
const DER_SEQUENCE: u8 = 0x30;

/// Reads the regular file at `path`, at most 4 MiB.
///
/// # Errors
/// Reason for which the file cannot be read, for the operator.
pub fn read_pem(path: &Path) -> Result<Vec<u8>, String> {
    let unreadable = |error: io::Error| format!("cannot read {}: {error}", path.display());
    let file = open_regular(path).map_err(unreadable)?;
    let mut pem = Vec::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut pem);
    read.map_err(unreadable)?;
    if pem.len() as u64 > FILE_BYTES_MAX {
        let mib = FILE_BYTES_MAX >> 20;
        return Err(format!("{} is larger than {mib} MiB", path.display()));
    }
    Ok(pem)
}

/// Returns the certificates of a file in their order; at least one.
pub(super) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let mut found = Vec::new();
    for (at, certificate) in CertificateDer::pem_slice_iter(pem).enumerate() {
        let number = at + 1;
        let certificate =
            certificate.map_err(|error| format!("certificate {number} is not PEM: {error}"))?;
        found.push(certificate);
    }
    check_count(pem, CERTIFICATE_MARK, found.len())?;
    match found.is_empty() {
        true => Err(missing("certificate", CERTIFICATE_MARK, pem)),
        false => Ok(found),
    }
}

/// Returns the first private key of a file.
pub(super) fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    // The error would show bytes of the key.
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| missing("private key", KEY_MARK, pem))
}

/// Returns the certificate revocation lists of a file; at least one.
pub(super) fn revocation_lists(
    pem: &[u8],
) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
    let lists = CertificateRevocationListDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let lists = lists.map_err(|error| format!("not PEM: {error}"))?;
    check_count(pem, CRL_MARK, lists.len())?;
    match lists.is_empty() {
        true => Err(missing("list", CRL_MARK, pem)),
        false => Ok(lists),
    }
}

/// Checks that no section was passed over. The parser skips one whose mark does not begin a line: after a
/// byte order mark, indented, or behind a file that does not end with a line break. One in a comment counts not.
fn check_count(pem: &[u8], mark: &str, read: usize) -> Result<(), String> {
    let lines = pem.split(|byte| *byte == b'\n');
    let lines = lines.filter(|line| !line.trim_ascii_start().starts_with(b"#"));
    let marks: usize = lines
        .map(|line| memchr::memmem::find_iter(line, mark.as_bytes()).count())
        .sum();
    match marks == read {
        true => Ok(()),
        false => Err(format!(
            "`{mark}` stands in it {marks} times, but {read} can be read: each has to begin a line of its own"
        )),
    }
}

fn missing(what: &str, mark: &str, pem: &[u8]) -> String {
    let content = other_content(pem);
    format!("no {what} in it{content}: expected PEM, `{mark}`")
}

/// Names the content of a file in which something else was expected, as far as it is recognised.
fn other_content(pem: &[u8]) -> &'static str {
    let has = |mark: &str| memchr::memmem::find(pem, mark.as_bytes()).is_some();
    if pem.is_empty() {
        ", it is empty"
    } else if has("ENCRYPTED") {
        ", its key is encrypted and there is no passphrase here (`openssl pkey` decrypts it)"
    } else if has("BEGIN CERTIFICATE REQUEST") {
        ", it is a request for a certificate and not yet signed"
    } else if has("BEGIN TRUSTED CERTIFICATE") {
        ", its certificate is in a form of OpenSSL alone (`openssl x509` converts it)"
    } else if has("PRIVATE KEY-----") {
        ", but a key that is for something else or damaged"
    } else if has(CERTIFICATE_MARK) {
        ", but a certificate"
    } else if pem[0] == DER_SEQUENCE {
        ", it is DER (`openssl x509` or `openssl pkey` with `-inform der` converts it)"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_other_content_says_which() {
        let cases = [
            ("", "it is empty"),
            ("0\u{1}\u{2}", "it is DER"),
            (
                "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
                "not yet signed",
            ),
            (
                "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
                "but a key",
            ),
        ];
        for (text, part) in cases {
            let fault = certificates(text.as_bytes()).unwrap_err();
            assert!(fault.contains("no certificate in it"), "{fault}");
            assert!(fault.contains(part), "no {part:?} in {fault}");
        }
        assert!(!certificates(b"text").unwrap_err().contains("it is"));
    }

    #[test]
    fn a_certificate_that_the_parser_would_pass_over_is_a_fault() {
        let certificate = |name: &str| {
            let made = rcgen::generate_simple_self_signed([name.to_owned()]);
            made.unwrap().cert.pem().trim_end().to_owned()
        };
        let (old, new) = (certificate("old"), certificate("new"));
        let both = format!("{old}\n{new}");
        assert_eq!(certificates(both.as_bytes()).unwrap().len(), 2);
        // An old one that is commented out is not meant.
        let commented: String = old.lines().map(|line| format!("# {line}\n")).collect();
        let one = format!("{commented}{new}");
        assert_eq!(certificates(one.as_bytes()).unwrap().len(), 1);
        for text in [
            // Two files in one, of which the first does not end with a line break.
            format!("{old}{new}"),
            format!("{old}\n  {new}"),
            format!("\u{feff}{old}\n{new}"),
        ] {
            let fault = certificates(text.as_bytes()).unwrap_err();
            assert!(fault.contains("2 times, but 1 can be read"), "{fault}");
        }
    }

    #[test]
    fn an_encrypted_key_is_named_as_one_and_no_byte_of_it_is_shown() {
        for text in [
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nc2VjcmV0\n-----END ENCRYPTED PRIVATE KEY-----\n",
            "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nc2VjcmV0\n-----END RSA PRIVATE KEY-----\n",
        ] {
            let fault = private_key(text.as_bytes()).unwrap_err();
            assert!(fault.contains("no private key in it"), "{fault}");
            assert!(fault.contains("its key is encrypted"), "{fault}");
            assert!(!fault.contains("c2VjcmV0"), "{fault}");
        }
    }

    #[test]
    fn a_file_that_is_no_regular_one_or_too_large_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read_pem(dir.path()).unwrap_err().contains("cannot read"));
        let path = dir.path().join("large.pem");
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(FILE_BYTES_MAX + 1).unwrap();
        assert!(read_pem(&path).unwrap_err().contains("larger than 4 MiB"));
    }
}
