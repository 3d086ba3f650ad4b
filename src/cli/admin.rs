//! Questions to the admin listener of a gateway that runs: one request over a connection of its own.
//!
//! GET changes nothing there; POST has no body. Under TLS the listener proves itself before anything is asked. Bounds: 5 s to connect, 30 s of silence, 256 MiB of response, 256 KiB of an
//! event.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use crate::config::AdminListener;
use crate::tls::{BlockingTls, OwnCertificate, ServerIdentity, read_ca_file, read_pem};

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const SILENCE_LIMIT: Duration = Duration::from_secs(30);
/// A configuration of 100,000 accounts is smaller.
const ANSWER_BYTES_MAX: u64 = 256 << 20;
/// Longest line of a head, bytes, and most lines of it.
const HEAD_LINE_BYTES_MAX: u64 = 8 * 1024;
const HEAD_LINES_MAX: usize = 64;
/// Longest event of a stream, bytes: lines of a log are cut at 64 KiB, and bytes that are no text take three each.
const EVENT_BYTES_MAX: u64 = 256 * 1024;

/// Begin of the address of a listener with TLS, and of one without.
const TLS_SCHEME: &str = "https://";
const PLAIN_SCHEME: &str = "http://";

/// Options that say how the admin listener is reached.
#[derive(Args)]
pub struct AdminArgs {
    /// The admin listener, HOST:PORT or https://HOST:PORT; 127.0.0.1:9090 unless --config says where it is.
    #[arg(long, value_name = "ADDRESS", global = true)]
    pub admin: Option<String>,
    /// PEM file of the authority that its certificate is of; the public ones when absent.
    #[arg(long, value_name = "FILE", global = true)]
    pub admin_ca: Option<PathBuf>,
    /// PEM file of the certificate to show to a listener with `client_ca`.
    #[arg(long, value_name = "FILE", global = true, requires = "admin_key")]
    pub admin_certificate: Option<PathBuf>,
    /// PEM file of that certificate's private key.
    #[arg(
        long,
        value_name = "FILE",
        global = true,
        requires = "admin_certificate"
    )]
    pub admin_key: Option<PathBuf>,
}

/// An admin listener that is asked.
pub struct AdminTarget {
    address: SocketAddr,
    /// Identity that it has to prove; none for plain text.
    identity: Option<ServerIdentity>,
}

impl fmt::Display for AdminTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

impl AdminArgs {
    /// The listener to ask: the one that is named, else that of the configuration.
    ///
    /// # Errors
    /// A sentence: the name does not resolve, the port is chosen at start, or a file is of no use.
    pub fn target(&self, listener: &AdminListener) -> Result<AdminTarget, String> {
        let admin = self.admin.as_deref();
        let address = address(admin, listener)?;
        let has_tls = match admin {
            Some(text) if text.starts_with(TLS_SCHEME) => true,
            Some(text) if text.starts_with(PLAIN_SCHEME) => false,
            _ => self.admin_ca.is_some() || listener.tls.is_some(),
        };
        let host = admin.map_or_else(|| address.ip().to_string(), host_of);
        let identity = has_tls.then(|| self.identity(&host)).transpose()?;
        Ok(AdminTarget { address, identity })
    }

    /// The same by the configuration in `file`; by the default one without a file.
    ///
    /// # Errors
    /// Likewise, or the first problem of the file.
    pub fn target_of(&self, file: Option<&Path>) -> Result<AdminTarget, String> {
        self.target(&listener(file)?)
    }

    fn identity(&self, host: &str) -> Result<ServerIdentity, String> {
        let ca = self.admin_ca.as_deref().map(read_ca_file).transpose()?;
        let (Some(certificate), Some(key)) = (&self.admin_certificate, &self.admin_key) else {
            return ServerIdentity::new(host, ca.as_deref());
        };
        let own = OwnCertificate::from_pem(&read_pem(certificate)?, &read_pem(key)?);
        let own = own.map_err(|fault| {
            let path = match fault.file.key() {
                "private_key" => key,
                _ => certificate,
            };
            format!("{}: {}", path.display(), fault.message)
        })?;
        ServerIdentity::showing(host, ca.as_deref(), &own)
    }
}

/// Name that the certificate of `https://NAME:PORT` has to be for.
fn host_of(text: &str) -> String {
    let bare = without_scheme(text);
    let host = bare.rsplit_once(':').map_or(bare, |(host, _)| host);
    host.trim_matches(['[', ']']).to_owned()
}

fn without_scheme(text: &str) -> &str {
    let name = text.strip_prefix(TLS_SCHEME);
    let name = name.or_else(|| text.strip_prefix(PLAIN_SCHEME));
    name.unwrap_or(text).trim_end_matches('/')
}

/// Response of an admin listener.
pub struct FetchedResponse {
    /// HTTP status.
    pub status: u16,
    /// Its body; null where it is not JSON.
    pub body: Value,
}

/// Event of a stream.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ServerEvent {
    /// Its name; empty of most.
    pub name: String,
    /// Its payload.
    pub data: String,
}

/// End of a stream of events.
pub enum EventStreamEnd {
    /// The response was no stream.
    Refused(FetchedResponse),
    /// The listener has closed it, or its reader has enough.
    Closed,
}

/// The address to ask: `admin` where it is given, else that of the configuration.
///
/// # Errors
/// A sentence: the name does not resolve, or the port is chosen at start.
fn address(admin: Option<&str>, listener: &AdminListener) -> Result<SocketAddr, String> {
    let mut address = match admin {
        None => listener.address,
        Some(text) => {
            let mut found = without_scheme(text).to_socket_addrs().map_err(|error| {
                format!("{text}: {error}; give HOST:PORT, such as 127.0.0.1:9090")
            })?;
            let none = || format!("{text}: no address has this name");
            found.next().ok_or_else(none)?
        }
    };
    if address.port() == 0 {
        return Err(
            "the port of listen.admin is chosen at start: give the address that `serve` says with --admin"
                .to_owned(),
        );
    }
    // A listener on all addresses is reached on this machine.
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    Ok(address)
}

/// The listener of the configuration in `file`; the default one without a file.
///
/// # Errors
/// The first problem of the file.
fn listener(file: Option<&Path>) -> Result<AdminListener, String> {
    let Some(file) = file else {
        return Ok(AdminListener::default());
    };
    match crate::config::load(file) {
        Ok(loaded) => Ok(loaded.config.listen.admin),
        Err(problems) => {
            let first = problems
                .first()
                .map(ToString::to_string)
                .unwrap_or_default();
            Err(format!("{}: {first}", file.display()))
        }
    }
}

/// Asks for `path`.
///
/// # Errors
/// A sentence: nothing listens there, or it is no admin listener.
pub fn get(target: &AdminTarget, path: &str) -> Result<FetchedResponse, String> {
    ask(target, ("GET", path), SILENCE_LIMIT)
}

/// Posts to `path`, without a body.
///
/// # Errors
/// A sentence: nothing listens there, or it is no admin listener. The change may be made all the same.
pub fn post(target: &AdminTarget, path: &str) -> Result<FetchedResponse, String> {
    ask(target, ("POST", path), SILENCE_LIMIT)
}

/// Posts to a path whose answer may take `patience` longer than others.
///
/// # Errors
/// A sentence: the listener does not answer.
pub fn post_patiently(
    target: &AdminTarget,
    path: &str,
    patience: Duration,
) -> Result<FetchedResponse, String> {
    ask(target, ("POST", path), SILENCE_LIMIT + patience)
}

/// Asks for a stream of server-sent events, and hands each one on until that returns false.
///
/// # Errors
/// A sentence: nothing listens there, or the stream breaks.
pub fn follow(
    target: &AdminTarget,
    path: &str,
    each: impl FnMut(&ServerEvent) -> bool,
) -> Result<EventStreamEnd, String> {
    let followed = open(target, ("GET", path), SILENCE_LIMIT).and_then(|opened| {
        // A stream has no length and ends with its connection.
        if opened.status != 200 || opened.length.is_some() {
            return Ok(EventStreamEnd::Refused(opened.whole()?));
        }
        read_events(opened.reader, each)?;
        Ok(EventStreamEnd::Closed)
    });
    followed.map_err(|error| no_answer(target, &error))
}

fn ask(
    target: &AdminTarget,
    request: (&str, &str),
    silence: Duration,
) -> Result<FetchedResponse, String> {
    let fetched = open(target, request, silence).and_then(OpenedResponse::whole);
    fetched.map_err(|error| no_answer(target, &error))
}

fn no_answer(target: &AdminTarget, error: &std::io::Error) -> String {
    let advice = match &target.identity {
        Some(_) => {
            "--admin https://NAME:PORT gives the name in its certificate, --admin-ca its authority"
        }
        None => "with `tls` it is asked by --admin https://NAME:PORT",
    };
    format!(
        "the admin listener at {target} does not answer: {error}; is the gateway running, and is this its \
         `listen.admin`? {advice}"
    )
}

/// Connection to an admin listener.
enum AdminConnection {
    Plain(TcpStream),
    Tls(Box<BlockingTls>),
}

impl Read for AdminConnection {
    fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
        match self {
            AdminConnection::Plain(stream) => stream.read(room),
            AdminConnection::Tls(stream) => stream.read(room),
        }
    }
}

impl AdminConnection {
    fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            AdminConnection::Plain(stream) => stream.write_all(bytes),
            AdminConnection::Tls(stream) => {
                stream.write_all(bytes)?;
                stream.flush()
            }
        }
    }
}

/// A response whose body has not been read.
struct OpenedResponse {
    status: u16,
    /// Bytes of the body, as the head says.
    length: Option<u64>,
    reader: BufReader<AdminConnection>,
}

impl OpenedResponse {
    fn whole(self) -> Result<FetchedResponse, std::io::Error> {
        let length = self.length.filter(|length| *length <= ANSWER_BYTES_MAX);
        let mut body = Vec::new();
        self.reader
            .take(length.ok_or_else(not_http)?)
            .read_to_end(&mut body)?;
        Ok(FetchedResponse {
            status: self.status,
            body: serde_json::from_slice(&body).unwrap_or_default(),
        })
    }
}

fn open(
    target: &AdminTarget,
    (method, path): (&str, &str),
    silence: Duration,
) -> Result<OpenedResponse, std::io::Error> {
    let address = target.address;
    let stream = TcpStream::connect_timeout(&address, CONNECT_LIMIT)?;
    stream.set_read_timeout(Some(silence))?;
    stream.set_write_timeout(Some(SILENCE_LIMIT))?;
    let mut connection = match &target.identity {
        None => AdminConnection::Plain(stream),
        Some(identity) => AdminConnection::Tls(Box::new(identity.handshake_blocking(stream)?)),
    };
    let length = if method == "GET" {
        ""
    } else {
        "Content-Length: 0\r\n"
    };
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\n{length}Connection: close\r\n\r\n");
    connection.send(head.as_bytes())?;
    let mut reader = BufReader::new(connection);
    let mut line = || {
        let mut line = String::new();
        (&mut reader)
            .take(HEAD_LINE_BYTES_MAX)
            .read_line(&mut line)?;
        Ok::<_, std::io::Error>(line.trim_end().to_owned())
    };
    let first = line()?;
    let status = first.split(' ').nth(1).and_then(|word| word.parse().ok());
    let status = status.ok_or_else(not_http)?;
    let mut length = None;
    for _ in 0..HEAD_LINES_MAX {
        let line = line()?;
        let Some((name, value)) = line.split_once(':') else {
            break;
        };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse::<u64>().ok();
        }
    }
    Ok(OpenedResponse {
        status,
        length,
        reader,
    })
}

fn not_http() -> std::io::Error {
    std::io::Error::other("the answer is not HTTP")
}

/// Reads events until the connection ends; comments are left out.
fn read_events(
    mut reader: impl BufRead,
    mut each: impl FnMut(&ServerEvent) -> bool,
) -> Result<(), std::io::Error> {
    let (mut event, mut has_data) = (ServerEvent::default(), false);
    loop {
        let mut line = String::new();
        let left = EVENT_BYTES_MAX.saturating_sub(event.data.len() as u64);
        (&mut reader).take(left).read_line(&mut line)?;
        let Some(line) = line.strip_suffix('\n') else {
            return match left {
                0 => Err(std::io::Error::other("an event is too long")),
                _ => Ok(()),
            };
        };
        if let Some(name) = line.strip_prefix("event: ") {
            name.clone_into(&mut event.name);
        } else if let Some(data) = line.strip_prefix("data: ") {
            if std::mem::replace(&mut has_data, true) {
                event.data.push('\n');
            }
            event.data.push_str(data);
        } else if line.is_empty() {
            if std::mem::take(&mut has_data) && !each(&event) {
                return Ok(());
            }
            event = ServerEvent::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_with_their_names_and_comments_are_not() {
        let text = ": follows\n\ndata: one\n\ndata: \n\ndata: 10%\ndata: 20%\n\nevent: ended\ndata: gone\n\ndata: more\n\n";
        let mut seen = Vec::new();
        let read = read_events(text.as_bytes(), |event| {
            seen.push((event.name.clone(), event.data.clone()));
            event.data != "gone"
        });
        read.unwrap();
        let seen: Vec<_> = seen.iter().map(|(name, data)| (&**name, &**data)).collect();
        assert_eq!(
            seen,
            [("", "one"), ("", ""), ("", "10%\n20%"), ("ended", "gone")]
        );
    }

    #[test]
    fn a_listener_on_all_addresses_is_asked_on_this_machine_and_a_port_of_chance_needs_a_word() {
        let at = |text: &str| AdminListener {
            address: text.parse().unwrap(),
            tls: None,
        };
        let asked = |admin, listener| address(admin, &at(listener)).unwrap().to_string();
        assert_eq!(asked(None, "0.0.0.0:9090"), "127.0.0.1:9090");
        assert_eq!(asked(None, "[::]:9090"), "[::1]:9090");
        assert_eq!(
            asked(Some("http://10.0.0.1:99/"), "127.0.0.1:0"),
            "10.0.0.1:99"
        );
        assert!(
            address(None, &at("127.0.0.1:0"))
                .unwrap_err()
                .contains("--admin")
        );
        assert!(address(Some("nonsense"), &at("127.0.0.1:1")).is_err());
        assert_eq!(
            asked(Some("https://10.0.0.1:99/"), "127.0.0.1:0"),
            "10.0.0.1:99"
        );
        for (named, host) in [
            ("https://admin.example:9090", "admin.example"),
            ("https://[::1]:9090/", "::1"),
            ("10.0.0.1:9090", "10.0.0.1"),
        ] {
            assert_eq!(host_of(named), host);
        }
    }
}
