//! The gateway under the counting allocator: a child process, its configuration, and requests to it.
//!
//! Not a fixture of other tests: they run the ordinary binary.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::client::Connection;
use crate::model_server::{EventStream, ModelServer};
use crate::scenarios::{FULL_MODEL, HOLDER, KEY, MODEL, Scenario};

/// Starts that are tried: another process may take a port between its choice and its use.
const STARTS_MAX: usize = 5;

/// A running gateway with its model servers.
pub struct Gateway {
    child: Child,
    clients: SocketAddr,
    server: ModelServer,
    /// Its stream is never taken, so that it keeps its permit.
    _full_server: ModelServer,
    _folder: TempDir,
}

impl Gateway {
    /// Starts a gateway and waits until it serves.
    pub fn start() -> Gateway {
        let started = (0..STARTS_MAX).find_map(|_| Gateway::try_start());
        started.expect("a gateway starts on free ports")
    }

    fn try_start() -> Option<Gateway> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (server, full_server) = (ModelServer::start(), ModelServer::start());
        let (clients, admin) = (free_address(), free_address());
        let config = folder.path().join("infergate.yaml");
        let servers = [(MODEL, &server, 64), (FULL_MODEL, &full_server, 1)];
        std::fs::write(&config, config_text(folder.path(), clients, admin, servers))
            .expect("a configuration is written");
        let program = std::env::current_exe().expect("the path of this program");
        let mut child = Command::new(program)
            .arg("serve")
            .arg("--config")
            .arg(&config)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("this program starts again");
        let serves = wait_until_serving(&mut child);
        let gateway = Gateway {
            child,
            clients,
            server,
            _full_server: full_server,
            _folder: folder,
        };
        serves.then_some(gateway)
    }

    pub fn connect(&self) -> Connection {
        Connection::open(self.clients)
    }

    /// Opens the stream that takes the only permit of the full model.
    pub fn hold_permit(&self) -> Connection {
        let mut connection = self.connect();
        connection.send(&HOLDER.request());
        let head = connection.read_head();
        assert!(head.starts_with("http/1.1 200"), "{head}");
        connection
    }

    /// Sends the request of a scenario and reads the response to its end.
    pub fn exchange(&self, connection: &mut Connection, scenario: &Scenario) {
        connection.send(&scenario.request());
        let head = connection.read_head();
        let expected = format!("http/1.1 {} ", scenario.status);
        assert!(head.starts_with(&expected), "{}: {head}", scenario.name);
        connection.read_body(&head);
    }

    /// Begins a stream; its first event is read.
    pub fn begin_stream(&self, connection: &mut Connection, scenario: &Scenario) -> EventStream {
        connection.send(&scenario.request());
        let head = connection.read_head();
        assert!(head.starts_with("http/1.1 200 "), "{head}");
        connection.read_event();
        self.server.take_stream()
    }

    /// Calls of the gateway's allocator since its start.
    pub fn allocations(&mut self) -> u64 {
        let input = self.child.stdin.as_mut().expect("a pipe to the gateway");
        input.write_all(b"?").expect("the gateway lives");
        let mut count = [0; 8];
        let output = self.child.stdout.as_mut().expect("a pipe from the gateway");
        output.read_exact(&mut count).expect("the gateway lives");
        u64::from_ne_bytes(count)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the log until the gateway serves; `false` when a port was taken. The rest of the log is passed over.
fn wait_until_serving(child: &mut Child) -> bool {
    let mut log = BufReader::new(child.stderr.take().expect("a pipe from the gateway")).lines();
    let mut seen = String::new();
    for line in log.by_ref().map_while(Result::ok) {
        if line.contains("serving") {
            std::thread::spawn(move || log.for_each(drop));
            return true;
        }
        seen += &line;
    }
    assert!(
        seen.contains("cannot listen"),
        "the gateway did not start: {seen}"
    );
    false
}

fn free_address() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port of the loopback");
    listener.local_addr().expect("a bound address")
}

/// A gateway as operators run it: a key, a rate limit that is never reached, a fair queue, an event file.
fn config_text(
    folder: &Path,
    clients: SocketAddr,
    admin: SocketAddr,
    servers: [(&str, &ModelServer, u32); 2],
) -> String {
    let folder = folder.display();
    let key = hex::encode(Sha256::digest(KEY));
    let models = servers.map(|(id, server, permits)| {
        // Health checks are rarer than the test is long.
        format!(
            "  - id: {id}\n    task: text-generation\n    backend: openai\n    \
             queue: {{ algorithm: fair, capacity: 0 }}\n    endpoints:\n      \
             - {{ url: \"http://{}\", max_concurrent_requests: {permits}, health: {{ interval_secs: 600 }} }}\n",
            server.address
        )
    });
    format!(
        "listen:\n  clients: [{{ address: \"{clients}\" }}]\n  admin: {{ address: \"{admin}\" }}\n\
         threads: 1\nstate_dir: \"{folder}/state\"\n\
         events:\n  file: {{ path: \"{folder}/events.jsonl\" }}\n\
         models:\n{}\
         accounts:\n  - id: acme\n    requests_per_minute: 3600000\n    api_keys_sha256: [\"{key}\"]\n",
        models.concat()
    )
}
