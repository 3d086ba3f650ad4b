//! Notifications that a service manager such as systemd gets, over a socket as it makes one.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;

use crate::support::{LIMIT, Node, SimulatedServer, one_model};

/// A service manager's end of the socket.
struct Manager(UnixDatagram);

impl Manager {
    fn at(path: &Path) -> Manager {
        Manager::over(UnixDatagram::bind(path).unwrap())
    }

    fn over(socket: UnixDatagram) -> Manager {
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        Manager(socket)
    }

    /// The lines of the next notification.
    fn next(&self) -> Vec<String> {
        let mut bytes = [0; 4096];
        let read = self.0.recv(&mut bytes).expect("a notification");
        let text = std::str::from_utf8(&bytes[..read]).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// Reads on to the end of a reload with this notification. A file that changes is also found by its watch, whose
    /// reload comes before or after the one that was asked for.
    fn reload_ends_with(&self, expected: &[String]) {
        loop {
            let reloading = self.next();
            assert_eq!(reloading[0], "RELOADING=1", "{reloading:?}");
            assert!(number(&reloading[1], "MONOTONIC_USEC=") > 0);
            let ready = self.next();
            assert_eq!(ready[0], "READY=1", "{ready:?}");
            if ready == expected {
                return;
            }
        }
    }
}

fn environment(address: &str) -> [(String, String); 1] {
    [("NOTIFY_SOCKET".to_owned(), address.to_owned())]
}

fn number(line: &str, name: &str) -> u64 {
    let value = line.strip_prefix(name).unwrap_or_else(|| panic!("{line}"));
    value.parse().unwrap()
}

#[tokio::test]
async fn the_manager_is_notified_of_readiness_reloads_and_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let (path, server) = (dir.path().join("notify"), SimulatedServer::fast().await);
    let manager = Manager::at(&path);
    let drain = "timeouts: { drain_delay_secs: 3, drain_timeout_secs: 200 }\n";
    let config = |permits| format!("{drain}{}", one_model(server.address, permits, ""));
    let node = Node::start_in(&config(1), &environment(path.to_str().unwrap())).await;
    let main_pid = format!("MAINPID={}", node.pid());
    let ready = |status: &str| {
        let status = format!("STATUS=serving, configuration {status}");
        vec!["READY=1".to_owned(), main_pid.clone(), status]
    };
    assert_eq!(manager.next(), ready("1"));

    assert_eq!(node.reload(&config(2)).await.status, 200);
    manager.reload_ends_with(&ready("2"));

    assert_eq!(node.reload("models: 1\n").await.status, 422);
    let refused = ready("2; the newest file was refused, the log says why");
    manager.reload_ends_with(&refused);

    node.signal("TERM");
    let stopping = loop {
        let notification = manager.next();
        if notification[0] == "STOPPING=1" {
            break notification;
        }
    };
    // What the configuration allows, and a little more for the last writes.
    let micros = number(&stopping[1], "EXTEND_TIMEOUT_USEC=");
    assert!((203_000_000..260_000_000).contains(&micros), "{micros}");
}

#[tokio::test]
async fn an_abstract_name_is_an_address_and_a_wrong_one_stops_nothing() {
    let server = SimulatedServer::fast().await;
    let models = one_model(server.address, 1, "");
    let name = format!("infergate-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let manager = Manager::over(UnixDatagram::bind_addr(&address).unwrap());
    let _node = Node::start_in(&models, &environment(&format!("@{name}"))).await;
    assert_eq!(manager.next()[0], "READY=1");

    let node = Node::start_in(&models, &environment("nothing-here")).await;
    assert!(node.log().contains("NOTIFY_SOCKET cannot be used"));
    assert_eq!(node.posting("", "").await.answer().await.status, 200);
}
