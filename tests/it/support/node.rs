//! A gateway as a child process on free ports, ended with the value.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::{TestClient, TestResponse, chat, eventually, free_address};

/// A running gateway.
pub struct Node {
    child: Child,
    dir: TempDir,
    /// Variables that its process has beside those of the test.
    environment: Vec<(String, String)>,
    /// Address at which clients connect.
    pub clients: SocketAddr,
    /// The admin listener.
    pub admin: SocketAddr,
}

impl Node {
    /// Starts a gateway whose configuration is `rest` after listeners, an events file and, where
    /// `rest` names no accounts, anonymous access. A first line `  peers: …` or `  callbacks: …` goes to
    /// the listeners, and the keys of a first line `  listener: …` to the listener for clients.
    pub async fn start(rest: &str) -> Node {
        Node::start_in(rest, &[]).await
    }

    /// The same, with variables in its environment.
    pub async fn start_in(rest: &str, environment: &[(String, String)]) -> Node {
        for _ in 0..5 {
            if let Some(node) = Node::try_start(rest, environment).await {
                return node;
            }
        }
        panic!("no free ports");
    }

    /// Starts a gateway whose standard error goes to `stderr`; it is not waited for.
    pub fn start_with_stderr(rest: &str, stderr: Stdio) -> Node {
        let dir = tempfile::tempdir().unwrap();
        let (clients, admin) = (free_address(), free_address());
        let config = config_text(clients, admin, &dir, rest);
        std::fs::write(dir.path().join("infergate.yaml"), config).unwrap();
        Node {
            child: spawn_with(dir.path(), stderr, &[]),
            dir,
            environment: Vec::new(),
            clients,
            admin,
        }
    }

    async fn try_start(rest: &str, environment: &[(String, String)]) -> Option<Node> {
        let dir = tempfile::tempdir().unwrap();
        let (clients, admin) = (free_address(), free_address());
        let config = config_text(clients, admin, &dir, rest);
        std::fs::write(dir.path().join("infergate.yaml"), config).unwrap();
        let mut node = Node {
            child: spawn(dir.path(), environment),
            dir,
            environment: environment.to_vec(),
            clients,
            admin,
        };
        node.is_up().await.then_some(node)
    }

    /// Starts it again as it was; its process has ended.
    pub async fn start_again(&mut self) {
        assert!(!self.is_running(), "it has ended");
        self.child = spawn(self.dir.path(), &self.environment);
        assert!(self.is_up().await, "its ports were its own a moment ago");
    }

    /// Returns whether the gateway became ready; `false` when a port was taken.
    async fn is_up(&mut self) -> bool {
        let node = self;
        let up = eventually("the gateway is ready or gone", async || {
            if node.child.try_wait().unwrap().is_some() {
                return Some(false);
            }
            // Its own word for it: on a port that it could not have, another gateway may answer.
            if !node.log().contains("serving") {
                return None;
            }
            let ready = TestClient::try_get(node.admin, "/readyz").await?;
            (ready.status == 200).then_some(true)
        })
        .await;
        if !up {
            let log = node.log();
            assert!(
                log.contains("cannot listen"),
                "the gateway did not start: {log}"
            );
        }
        up
    }

    /// Writes a new configuration without asking for a reload. The new file replaces the old one as
    /// a whole: the file is watched, and half of it is another configuration.
    pub fn write_config(&self, rest: &str) {
        let beside = self.dir.path().join("infergate.yaml.next");
        std::fs::write(&beside, self.config_text(rest)).unwrap();
        std::fs::rename(beside, self.config_path()).unwrap();
    }

    /// Text that [`Node::write_config`] would write.
    pub fn config_text(&self, rest: &str) -> String {
        config_text(self.clients, self.admin, &self.dir, rest)
    }

    /// The folder of its configuration, events and log.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The event file of configurations that name none.
    pub fn events_path(&self) -> PathBuf {
        self.dir.path().join("events.jsonl")
    }

    /// The configuration file.
    pub fn config_path(&self) -> PathBuf {
        self.dir.path().join("infergate.yaml")
    }

    /// Writes a new configuration and reloads it, until no plugin is left to be compiled.
    pub async fn reload(&self, rest: &str) -> TestResponse {
        let mut response = self.reload_once(rest).await;
        // On a busy machine compiling outlasts the 2 s that one reload waits: a later one has its result.
        for _ in 0..30 {
            if response.status != 200 || !response.json()["compiling"][0].is_string() {
                break;
            }
            response = self.post_reload().await;
        }
        response
    }

    /// Writes the configuration and reloads once, which may leave plugins to be compiled.
    pub async fn reload_once(&self, rest: &str) -> TestResponse {
        self.write_config(rest);
        self.post_reload().await
    }

    /// `POST /reload`.
    pub async fn post_reload(&self) -> TestResponse {
        let mut client = TestClient::connect(self.admin).await;
        client
            .send("POST /reload HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
            .await;
        client.response().await
    }

    /// `GET` on the admin listener.
    pub async fn get(&self, path: &str) -> TestResponse {
        TestClient::try_get(self.admin, path)
            .await
            .expect("the admin listener answers")
    }

    /// `/state`.
    pub async fn state(&self) -> Value {
        self.get("/state").await.json()
    }

    /// Permits in use and waiting requests, all models together, at one moment.
    async fn admitted(&self) -> (u64, u64) {
        let state = self.state().await;
        let models = state["models"].as_array().unwrap();
        let endpoints = |model: &Value| model["endpoints"].as_array().unwrap().clone();
        let used = models
            .iter()
            .flat_map(endpoints)
            .map(|endpoint| endpoint["permits"]["used"].as_u64().unwrap())
            .sum();
        let waiting = models
            .iter()
            .map(|model| model["queue"]["depth"].as_u64().unwrap())
            .sum();
        (used, waiting)
    }

    /// Permits in use, all models together.
    pub async fn permits_used(&self) -> u64 {
        self.admitted().await.0
    }

    /// Waits until no permit is held: an answer's last byte reaches its client a moment earlier.
    /// Its connection to the server is back by then. Its event, its count in the metrics, the memory
    /// of its body and its bill come a moment later.
    pub async fn idle(&self) {
        eventually("every permit is back", async || {
            (self.permits_used().await == 0).then_some(())
        })
        .await;
    }

    /// Waiting requests, all models together.
    pub async fn queue_depth(&self) -> u64 {
        self.admitted().await.1
    }

    /// Waits until `count` events are in the file, and gives all that are: in the order of writing,
    /// which is not that of the answers. For the event of one answer there is [`Node::event_of`].
    pub async fn events(&self, count: usize) -> Vec<Value> {
        let path = self.dir.path().join("events.jsonl");
        eventually(&format!("{count} events"), async || {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            let lines: Vec<Value> = whole
                .lines()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect();
            (lines.len() >= count).then_some(lines)
        })
        .await
    }

    /// Waits until so many permits are used and so many requests wait.
    pub async fn settles(&self, permits_used: u64, queue_depth: u64) {
        eventually(
            &format!("{permits_used} permits used, {queue_depth} waiting"),
            async || (self.admitted().await == (permits_used, queue_depth)).then_some(()),
        )
        .await;
    }

    /// Waits until exactly the event of `answer` is there, and gives it.
    pub async fn event_of(&self, answer: &TestResponse) -> Value {
        let id = answer.header("x-request-id").unwrap();
        let path = self.events_path();
        eventually("the answer's event", async || {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let line = text.lines().find(|line| line.contains(id))?;
            serde_json::from_str(line).ok()
        })
        .await
    }

    /// Trace of the request with this id, once the request has ended.
    pub async fn explain(&self, request_id: &str) -> Value {
        let path = format!("/explain/{request_id}");
        eventually("the request's trace", async || {
            let answer = TestClient::try_get(self.admin, &path).await?;
            (answer.status == 200).then(|| answer.json())
        })
        .await
    }

    /// A sample of `/metrics` by its name and its labels in any order.
    pub async fn metric(&self, series: &str) -> Option<f64> {
        let text = self.get("/metrics").await.text();
        let samples = text.lines().filter_map(|line| line.rsplit_once(' '));
        let mut found = samples.filter(|(name, _)| sorted_labels(name) == sorted_labels(series));
        found.next()?.1.parse().ok()
    }

    /// Starts a client that posts a chat with header lines and further members; its answer comes
    /// with [`Posted::answer`].
    pub async fn posting(&self, headers: &str, more: &str) -> PendingPost {
        let mut client = self.client().await;
        client
            .post(headers, "/v1/chat/completions", &chat("m", more))
            .await;
        PendingPost(client)
    }

    /// Sends a signal by name (`TERM`, `HUP`, …).
    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill")
            .args([&format!("-{name}"), &pid])
            .status()
            .unwrap();
        assert!(sent.success());
    }

    /// Suspends the process until a signal `CONT`, and waits until each of its threads is stopped.
    ///
    /// On a busy machine some go on for a while after the signal, and take a request that a test sends next.
    pub async fn freeze(&self) {
        self.signal("STOP");
        let tasks = format!("/proc/{}/task", self.child.id());
        eventually("every thread of the node is stopped", async || {
            let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
                let stat = std::fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
                // The state follows the name in parentheses: proc_pid_stat(5).
                stat.rsplit(") ").next()?.starts_with('T').then_some(())
            };
            std::fs::read_dir(&tasks)
                .ok()?
                .map(is_stopped)
                .collect::<Option<()>>()
        })
        .await;
    }

    /// Waits for the process to end.
    pub async fn ended(&mut self) -> ExitStatus {
        eventually("the gateway ends", async || self.child.try_wait().unwrap()).await
    }

    /// Returns whether the process still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Log of the process so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its memory in use, bytes.
    pub fn resident_bytes(&self) -> u64 {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", self.child.id())).unwrap();
        statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    }

    /// A client of this node.
    pub async fn client(&self) -> TestClient {
        TestClient::connect(self.clients).await
    }

    /// `POST` with a JSON body on a fresh connection.
    pub async fn post(&self, path: &str, body: &str) -> TestResponse {
        self.post_as("", path, body).await
    }

    /// The same with header lines, each ending in CRLF.
    pub async fn post_as(&self, headers: &str, path: &str, body: &str) -> TestResponse {
        let mut client = self.client().await;
        client.post(headers, path, body).await;
        client.response().await
    }
}

/// A request under way.
pub struct PendingPost(pub TestClient);

impl PendingPost {
    /// Its answer.
    pub async fn answer(mut self) -> TestResponse {
        self.0.response().await
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Already ended, in tests that end it.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- gateway log\n{}", self.log());
        }
    }
}

/// Accounts `a` (key `key-a`) and `b` (key `key-b`), for tests with accounts.
pub fn accounts(more_for_a: &str) -> String {
    let hash = |key: &str| {
        use sha2::{Digest, Sha256};
        hex::encode(Sha256::digest(key))
    };
    format!(
        "accounts:\n  - {{ id: a, api_keys_sha256: [\"{}\"]{more_for_a} }}\n  \
         - {{ id: b, api_keys_sha256: [\"{}\"] }}\n",
        hash("key-a"),
        hash("key-b")
    )
}

fn spawn(dir: &Path, environment: &[(String, String)]) -> Child {
    let log = std::fs::File::create(dir.join("log")).unwrap();
    spawn_with(dir, log.into(), environment)
}

fn spawn_with(dir: &Path, stderr: Stdio, environment: &[(String, String)]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_infergate"))
        .args(["serve", "--config"])
        .arg(dir.join("infergate.yaml"))
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr)
        .spawn()
        .unwrap()
}

fn config_text(clients: SocketAddr, admin: SocketAddr, dir: &TempDir, rest: &str) -> String {
    let anonymous = if rest.contains("accounts:") {
        ""
    } else {
        "anonymous: allow\n"
    };
    let (peers, rest) = match rest.find('\n') {
        Some(end) if rest.starts_with("  peers: ") || rest.starts_with("  callbacks: ") => {
            rest.split_at(end + 1)
        }
        _ => ("", rest),
    };
    let (listener, rest) = match rest.strip_prefix("  listener: ") {
        Some(rest) => rest.split_once('\n').unwrap(),
        None => ("", rest),
    };
    let listener = match listener {
        "" => String::new(),
        keys => format!(", {keys}"),
    };
    let events = dir.path().join("events.jsonl");
    // A key of its own at the top, and not one of `gpu`.
    let names_events = rest.lines().any(|line| line.starts_with("events:"));
    let events = match names_events {
        true => String::new(),
        false => format!("events: {{ file: {{ path: \"{}\" }} }}\n", events.display()),
    };
    let state = match rest.contains("state_dir:") {
        true => String::new(),
        false => format!("state_dir: \"{}\"\n", dir.path().join("state").display()),
    };
    // The control header of simulated servers passes to them.
    let headers = match rest.contains("\nheaders:") || rest.starts_with("headers:") {
        true => "",
        false => "headers: { pass: [x-sim-fault] }\n",
    };
    format!(
        "{state}{headers}listen:\n  clients: [{{ address: \"{clients}\"{listener} }}]\n  admin: {{ address: \"{admin}\" }}\n\
         {peers}{anonymous}{events}{rest}\n"
    )
}

/// Name and labels of a series, the labels sorted; values with commas are not for these tests.
fn sorted_labels(series: &str) -> (&str, Vec<&str>) {
    let (name, labels) = series.split_once('{').unwrap_or((series, ""));
    let mut labels: Vec<&str> = labels.trim_end_matches('}').split(',').collect();
    labels.sort_unstable();
    (name, labels)
}

/// A model with these endpoints (YAML flow maps without braces) and further keys.
pub fn model(id: &str, endpoints: &[String], more: &str) -> String {
    let endpoints: String = endpoints
        .iter()
        .map(|e| format!("      - {{ {e} }}\n"))
        .collect();
    format!(
        "  - id: {id}\n    task: text-generation\n    backend: openai\n{more}    endpoints:\n\
         {endpoints}"
    )
}

/// An entry of the `endpoints` list.
pub fn endpoint(address: SocketAddr, permits: u32) -> String {
    format!("url: \"http://{address}\", max_concurrent_requests: {permits}")
}

/// A model of any task and kind of backend, on one endpoint of two permits.
pub fn model_of(id: &str, task: &str, backend: &str, address: SocketAddr) -> String {
    format!(
        "  - id: \"{id}\"\n    task: {task}\n    backend: {backend}\n    endpoints:\n      - {{ {} }}\n",
        endpoint(address, 2)
    )
}

/// A configuration with one model `m` on one endpoint.
pub fn one_model(address: SocketAddr, permits: u32, more: &str) -> String {
    format!(
        "models:\n{}",
        model("m", &[endpoint(address, permits)], more)
    )
}

/// A pause between polls for tests that watch that something does not happen.
pub const A_WHILE: Duration = Duration::from_millis(300);
