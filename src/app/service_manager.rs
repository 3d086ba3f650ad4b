//! Notifications to the service manager that started this process: ready, reloading, ending.
//!
//! Reads nothing from it, and without `NOTIFY_SOCKET` sends nothing. Each notification is one datagram, which is dropped
//! rather than waited for. `gateway` sends the first and the last, `reload` those between. Protocol:
//! <https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html>.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use crate::telemetry::clock::monotonic_micros;

/// Variable with the address of the manager's socket.
const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";

/// Connection to the service manager; none for a process that was started otherwise.
#[derive(Debug, Default)]
pub struct ServiceManager {
    socket: Option<UnixDatagram>,
}

impl ServiceManager {
    /// Connects to the manager that the environment names. An address that cannot be used is logged, and the process goes on.
    pub fn of_environment() -> ServiceManager {
        let address = std::env::var_os(SOCKET_VARIABLE).filter(|address| !address.is_empty());
        let socket = address.and_then(|address| match connect(&address) {
            Ok(socket) => Some(socket),
            Err(error) => {
                let address = address.to_string_lossy();
                tracing::warn!(%address, %error, "{SOCKET_VARIABLE} cannot be used: the service manager is not notified");
                None
            }
        });
        ServiceManager { socket }
    }

    /// Requests are served; `status` is a line for people. Sent again at the end of each reload.
    pub fn notify_ready(&self, status: &str) {
        let pid = std::process::id();
        self.send(&format!("READY=1\nMAINPID={pid}\nSTATUS={status}"));
    }

    /// A reload has begun. [`notify_ready`](ServiceManager::notify_ready) ends it.
    pub fn notify_reloading(&self) {
        let micros = monotonic_micros();
        self.send(&format!(
            "RELOADING=1\nMONOTONIC_USEC={micros}\nSTATUS=reading the configuration"
        ));
    }

    /// The process drains, and ends within `limit`: the manager waits so long before it kills.
    pub fn notify_stopping(&self, limit: Duration) {
        let micros = limit.as_micros();
        self.send(&format!(
            "STOPPING=1\nEXTEND_TIMEOUT_USEC={micros}\nSTATUS=draining"
        ));
    }

    fn send(&self, notification: &str) {
        let Some(socket) = &self.socket else { return };
        if let Err(error) = socket.send(notification.as_bytes()) {
            tracing::debug!(%error, "the service manager takes no notification");
        }
    }
}

fn connect(address: &OsStr) -> io::Result<UnixDatagram> {
    let address = match address.as_bytes() {
        [b'@', name @ ..] => abstract_address(name)?,
        [b'/', ..] => SocketAddr::from_pathname(address)?,
        _ => {
            let expected = "it is neither a path nor `@` with an abstract name";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, expected));
        }
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.connect_addr(&address)?;
    Ok(socket)
}

#[cfg(target_os = "linux")]
fn abstract_address(name: &[u8]) -> io::Result<SocketAddr> {
    use std::os::linux::net::SocketAddrExt;
    SocketAddr::from_abstract_name(name)
}

/// Other systems have no abstract names.
#[cfg(not(target_os = "linux"))]
fn abstract_address(_: &[u8]) -> io::Result<SocketAddr> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More datagrams than any socket holds.
    const MANY: usize = 20_000;

    #[test]
    fn a_manager_that_reads_nothing_holds_nothing_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let service = ServiceManager {
            socket: Some(connect(path.as_os_str()).unwrap()),
        };
        for _ in 0..MANY {
            service.notify_ready("serving");
        }
        let mut bytes = [0; 256];
        let read = manager.recv(&mut bytes).unwrap();
        let pid = std::process::id();
        let expected = format!("READY=1\nMAINPID={pid}\nSTATUS=serving");
        assert_eq!(std::str::from_utf8(&bytes[..read]), Ok(&*expected));
    }

    #[test]
    fn an_address_is_a_path_or_an_abstract_name() {
        for wrong in ["", "notify", "vsock:2:1234"] {
            let refused = connect(OsStr::new(wrong)).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{wrong}");
        }
        assert!(connect(OsStr::new("/nothing/here")).is_err());
        // Without a manager a notification is nothing.
        ServiceManager::default().notify_stopping(Duration::ZERO);
    }
}
