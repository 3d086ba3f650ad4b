//! Notifications that a service manager such as systemd gets, over a socket as it makes one.

use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{LIMIT, Node, SimulatedServer, TestClient, free_address, one_model};
use crate::upgrade::{upgrade, upgrade_with, with_state};

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

/// Starts a gateway as a service manager does that has opened these two sockets, named so.
fn activate(file: &Path, sockets: [OwnedFd; 2], names: &str) -> Child {
    // Only the process itself knows its id: the shell becomes the gateway.
    let script = format!(
        "exec 3<&0 4<&1 0</dev/null 1>/dev/null; LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES={names} \
         exec \"$0\" serve --config \"$1\""
    );
    let mut command = Command::new("sh");
    let [first, second] = sockets;
    command
        .args(["-c", &script, env!("CARGO_BIN_EXE_infergate")])
        .arg(file)
        .stdin(first)
        .stdout(second)
        .stderr(Stdio::piped());
    command.spawn().unwrap()
}

#[tokio::test]
async fn sockets_of_the_manager_are_used_and_keep_clients_through_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("api.sock");
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let unix = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let (address, admin) = (tcp.local_addr().unwrap(), free_address());
    let file = dir.path().join("infergate.yaml");
    // One is found by its address, the other by its name.
    let listen = format!(
        "clients: [{{ address: \"127.0.0.1:1\", health: true }}, {{ address: \"unix:{}\" }}], admin: {{ address: \"{admin}\" }}",
        path.display()
    );
    let state = dir.path().join("state");
    std::fs::create_dir(&state).unwrap();
    let text = format!(
        "listen: {{ {listen} }}\nstate_dir: \"{}\"\nanonymous: allow\nmodels: []\n",
        state.display()
    );
    std::fs::write(&file, text).unwrap();
    for _ in 0..2 {
        // It waits in the queue of the socket until somebody serves.
        let mut early = TestClient::connect(address).await;
        early.send("GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n").await;
        let sockets = [
            OwnedFd::from(tcp.try_clone().unwrap()),
            unix.try_clone().unwrap().into(),
        ];
        let mut gateway = activate(&file, sockets, "clients:other");
        assert_eq!(early.response().await.status, 200);
        answers_at(&path).await;
        // The next process has them from this one.
        let next = upgrade_with(file.clone()).await;
        assert!(gateway.wait().unwrap().success());
        let healthy = TestClient::try_get(address, "/healthz").await;
        assert_eq!(healthy.unwrap().status, 200);
        answers_at(&path).await;
        let killed = Command::new("kill").arg(next.pid().to_string()).status();
        assert!(killed.unwrap().success());
        next.ended().await;
        assert!(path.exists(), "the file is the manager's");
    }
}

async fn answers_at(path: &Path) {
    let mut local = tokio::net::UnixStream::connect(path).await.unwrap();
    local
        .write_all(b"GET /v1/models HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    let read = tokio::time::timeout(LIMIT, local.read_to_string(&mut answer));
    read.await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn the_manager_is_told_of_the_process_that_follows_and_never_of_an_end_before() {
    let (dir, server) = (tempfile::tempdir().unwrap(), SimulatedServer::fast().await);
    let path = dir.path().join("notify");
    let manager = Manager::at(&path);
    let config = with_state(&dir.path().join("state"), &one_model(server.address, 1, ""));
    std::fs::create_dir(dir.path().join("state")).unwrap();
    let mut node = Node::start_in(&config, &environment(path.to_str().unwrap())).await;
    assert_eq!(manager.next()[1], format!("MAINPID={}", node.pid()));
    let next = upgrade(&node).await;
    let next_ready = manager.next();
    let expected = ["READY=1".to_owned(), format!("MAINPID={}", next.pid())];
    assert_eq!(next_ready[..2], expected, "{next_ready:?}");
    assert!(node.ended().await.success());
    let killed = Command::new("kill").arg(next.pid().to_string()).status();
    assert!(killed.unwrap().success());
    // Nothing of the former process, whose end would be taken for the service's.
    let after = manager.next();
    assert_eq!(after[0], "STOPPING=1", "{after:?}");
    next.ended().await;
}

#[tokio::test]
async fn a_socket_of_no_listener_stops_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let sockets = [(), ()].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let file = dir.path().join("infergate.yaml");
    let first = sockets[0].local_addr().unwrap();
    let text = format!(
        "listen: {{ clients: [{{ address: \"{first}\" }}], admin: {{ address: \"127.0.0.1:0\" }} }}\nstate_dir: \"{}\"\n\
         anonymous: allow\nmodels: []\n",
        dir.path().join("state").display()
    );
    std::fs::write(&file, text).unwrap();
    let gateway = activate(&file, sockets.map(OwnedFd::from), "a:infergate.socket");
    let ended = gateway.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(2));
    let printed = String::from_utf8(ended.stderr).unwrap();
    assert!(
        printed.contains("infergate.socket at 127.0.0.1:")
            && printed.contains("FileDescriptorName"),
        "{printed}"
    );
}
