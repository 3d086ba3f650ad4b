//! Listening sockets that a service manager opened before this process began: `LISTEN_FDS` and its names.
//!
//! A socket goes to the listener of its address, else to one of the kind that its name says. One that fits nowhere stops
//! the start, because clients would wait in it for ever. Sockets of a predecessor are not taken here. Protocol:
//! <https://www.freedesktop.org/software/systemd/man/latest/sd_listen_fds.html>.

use std::fmt;
use std::io;
use std::net::TcpListener;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::SocketType;
use rustix::net::sockopt::{socket_acceptconn, socket_type};

use super::upgrade::{NamedSocket, SOCKETS_MAX, SocketName, SocketSet};
use crate::config::Listen;
use crate::downstream::ListenAddress;

/// Variables of the protocol: process that the sockets are for, their number, their names.
const PID: &str = "LISTEN_PID";
const COUNT: &str = "LISTEN_FDS";
const NAMES: &str = "LISTEN_FDNAMES";
/// Descriptor of the first socket.
const FIRST: RawFd = 3;

/// Returns whether a service manager has opened sockets for this process or for the one that started it: files of sockets
/// are then the manager's.
pub fn is_activated() -> bool {
    std::env::var_os(COUNT).is_some()
}

/// Takes the sockets that are there for this process, named as its listeners are; the first call has them.
///
/// # Errors
/// A sentence: a socket is of no listener, or the variables make no sense.
pub fn take(listen: &Listen) -> Result<SocketSet, String> {
    let variable = |name| std::env::var(name).unwrap_or_default();
    // Children inherit the variables of processes that do not clear them.
    if variable(PID) != std::process::id().to_string() {
        return Ok(SocketSet::default());
    }
    let count = variable(COUNT).parse::<usize>().ok();
    let count = count.filter(|count| *count <= SOCKETS_MAX);
    let count = count.ok_or_else(|| format!("{COUNT} is no number up to {SOCKETS_MAX}"))?;
    let names = variable(NAMES);
    let mut names = names.split(':');
    let mut sockets = Vec::with_capacity(count);
    for descriptor in own_descriptors(count) {
        let name = names.next().unwrap_or_default().to_owned();
        let socket = OpenedSocket::read(descriptor, name);
        sockets.push(socket.map_err(|error| format!("a socket of {COUNT}: {error}"))?);
    }
    let of = name_sockets(listen, &sockets)?;
    let named = of.into_iter().zip(sockets).map(|(name, opened)| {
        tracing::info!(socket = %opened, "takes a socket of the service manager");
        NamedSocket {
            name,
            socket: opened.socket,
        }
    });
    Ok(SocketSet::of(named.collect()))
}

/// The first `count` descriptors of the protocol, once in the life of the process.
#[allow(unsafe_code)]
fn own_descriptors(count: usize) -> Vec<OwnedFd> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Vec::new();
    }
    let last = FIRST + RawFd::try_from(count).unwrap_or(0);
    // SAFETY: by `LISTEN_PID` and `LISTEN_FDS` these are open and were left to this process before it began, so that
    // nothing else in it has opened them; each is taken once. docs/decisions/006-unsafe-files.md
    let take = |descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) };
    (FIRST..last).map(take).collect()
}

/// Socket that was opened before.
struct OpenedSocket {
    /// Name that the manager gave it.
    name: String,
    /// Address that it is bound to.
    address: ListenAddress,
    socket: OwnedFd,
}

impl fmt::Display for OpenedSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.name, self.address)
    }
}

impl OpenedSocket {
    fn read(socket: OwnedFd, name: String) -> io::Result<OpenedSocket> {
        // No child has them.
        fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
        if socket_type(&socket)? != SocketType::STREAM || !socket_acceptconn(&socket)? {
            return Err(io::Error::other(format!("{name:?} is none that listens")));
        }
        let tcp = TcpListener::from(socket);
        if let Ok(address) = tcp.local_addr() {
            return Ok(OpenedSocket {
                name,
                address: ListenAddress::Ip(address),
                socket: tcp.into(),
            });
        }
        let unix = UnixListener::from(OwnedFd::from(tcp));
        let address = unix.local_addr()?;
        let path = address
            .as_pathname()
            .ok_or_else(|| io::Error::other(format!("{name:?} has no path")))?;
        Ok(OpenedSocket {
            name,
            address: ListenAddress::Unix(path.to_owned()),
            socket: unix.into(),
        })
    }
}

/// Listener of the configuration: kind, address, and the name of its socket.
type ListenerPlace = (&'static str, ListenAddress, SocketName);

fn places(listen: &Listen) -> Vec<ListenerPlace> {
    let clients = listen.clients.iter().map(|listener| {
        let address = listener.address.clone();
        let name = SocketName::Clients(address.to_string());
        ("clients", address, name)
    });
    let admin = listen.admin.address;
    let others = [
        Some(("admin", admin, SocketName::Admin(admin))),
        listen
            .peers
            .as_ref()
            .map(|it| ("peers", it.address, SocketName::Peers(it.address))),
        listen
            .callbacks
            .as_ref()
            .map(|it| ("callbacks", it.address, SocketName::Callbacks(it.address))),
    ];
    let others = others.into_iter().flatten();
    let others = others.map(|(kind, address, name)| (kind, ListenAddress::Ip(address), name));
    clients.chain(others).collect()
}

/// Finds the listener of each socket: by address first, so that a name takes none that is another socket's.
fn name_sockets(listen: &Listen, sockets: &[OpenedSocket]) -> Result<Vec<SocketName>, String> {
    let mut left = places(listen);
    let mut found: Vec<Option<SocketName>> = sockets.iter().map(|_| None).collect();
    for by_address in [true, false] {
        for (socket, place) in sockets.iter().zip(&mut found) {
            let fits = |(kind, address, _): &ListenerPlace| match by_address {
                true => *address == socket.address,
                false => *kind == socket.name,
            };
            if place.is_none()
                && let Some(at) = left.iter().position(fits)
            {
                *place = Some(left.remove(at).2);
            }
        }
    }
    let named = sockets.iter().zip(found).map(|(socket, name)| {
        name.ok_or_else(|| {
            format!(
                "the service manager has opened a socket that no listener is for: {socket}; give a listener below \
                 `listen` its address, or the socket the name clients, admin, peers or callbacks (FileDescriptorName=)"
            )
        })
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen(text: &str) -> Listen {
        serde_json::from_str(text).unwrap()
    }

    fn opened(name: &str) -> OpenedSocket {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        OpenedSocket::read(socket.into(), name.to_owned()).unwrap()
    }

    #[test]
    fn a_socket_goes_to_the_listener_of_its_address_and_then_of_its_name() {
        let [a, b, c] = ["infergate.socket", "clients", "admin"].map(opened);
        let text = format!(
            r#"{{ "clients": [{{ "address": "0.0.0.0:1" }}, {{ "address": "{}" }}], "admin": {{ "address": "0.0.0.0:2" }} }}"#,
            a.address
        );
        let named = name_sockets(&listen(&text), &[b, a, c]).unwrap();
        let SocketName::Clients(second) = &named[1] else {
            panic!("{named:?}")
        };
        assert!(second.starts_with("127.0.0.1:"));
        assert_eq!(named[0], SocketName::Clients("0.0.0.0:1".into()));
        assert_eq!(named[2], SocketName::Admin("0.0.0.0:2".parse().unwrap()));
    }

    #[test]
    fn a_socket_of_no_listener_is_named_and_one_that_does_not_listen_is_none() {
        let config = listen(r#"{ "clients": [{ "address": "0.0.0.0:1" }] }"#);
        let [first, second] = ["clients", "clients"].map(opened);
        let fault = name_sockets(&config, &[first, second]).unwrap_err();
        assert!(fault.contains("clients at 127.0.0.1:"), "{fault}");
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(OpenedSocket::read(datagrams.into(), "clients".into()).is_err());
    }

    #[test]
    fn without_variables_for_this_process_nothing_is_taken() {
        let config = listen(r#"{ "clients": [{ "address": "0.0.0.0:1" }] }"#);
        let mut taken = take(&config).unwrap();
        assert!(
            taken
                .take(&SocketName::Clients("0.0.0.0:1".into()))
                .is_none()
        );
    }
}
