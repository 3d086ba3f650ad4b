//! An infergate process in a folder of its own, from a generated configuration file.
//! Not the product's configuration model: it writes the file's text, as an operator would.
//!
//! Called by both bench programs. The binary is `INFERGATE_BIN`, else the one cargo built with the bench.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::process::{Process, free_port, loopback};
use super::{Fallible, request, wire};

/// Longest wait for an answer of the admin listener.
const ADMIN_LIMIT: Duration = Duration::from_secs(10);

/// Settings of a bench that differ from the defaults.
#[derive(Clone)]
pub struct Settings {
    pub threads: usize,
    pub accounts: Vec<Account>,
    pub models: Vec<Model>,
    /// Every model has the three standard plugins, from this folder.
    pub plugins: Option<PathBuf>,
    /// Lines of the file that make it a node of a fleet: under `listen`, and at the top.
    pub fleet: Option<(String, String)>,
}

/// The standard plugins of a model, and a price for them to work out.
const WITH_PLUGINS: &str =
    "    plugins: { task: text-generation, billing: neurons, routing: latency }
    tariff: { cost_per_infer: 0.5, coefficients: { input_tokens: 0.02561, output_tokens: 0.07515 } }
";

#[derive(Clone)]
pub struct Account {
    pub id: String,
    pub weight: u32,
    /// Far above any rate of a bench, so that the limiter is on the path and never says no.
    pub requests_per_minute: Option<u64>,
}

impl Account {
    pub fn new(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            weight: 1,
            requests_per_minute: None,
        }
    }

    /// The key this account's clients send.
    pub fn key(&self) -> String {
        key_of(&self.id)
    }
}

pub fn key_of(account: &str) -> String {
    format!("sk-bench-{account}")
}

#[derive(Clone)]
pub struct Model {
    pub id: String,
    pub endpoints: Vec<SocketAddr>,
    pub permits_per_endpoint: u32,
    pub algorithm: &'static str,
    /// As in the file: times the sum of permits.
    pub capacity: u32,
}

/// A running gateway, killed when dropped, with its folder.
pub struct Gateway {
    pub process: Process,
    pub clients: SocketAddr,
    pub admin: SocketAddr,
    pub config: PathBuf,
    folder: tempfile::TempDir,
    settings: Settings,
}

impl Gateway {
    /// Starts a gateway and waits until it says it is ready.
    pub fn start(name: &str, settings: Settings, cores: Option<&str>) -> Fallible<Self> {
        let binary = binary();
        if !binary.is_file() {
            return Err(format!("{} is not there", binary.display()).into());
        }
        let folder = tempfile::tempdir()?;
        let clients = loopback(free_port()?);
        let admin = loopback(free_port()?);
        let config = folder.path().join("infergate.yaml");
        std::fs::write(&config, yaml(&settings, clients, admin, folder.path()))?;

        let mut command = Command::new(binary);
        command.arg("serve").arg("--config").arg(&config);
        let process = Process::start(name, command, cores, folder.path())?;
        let mut gateway = Self {
            process,
            clients,
            admin,
            config,
            folder,
            settings,
        };
        gateway
            .process
            .wait_until(|| matches!(send_request(admin, &request::get("/readyz")), Ok((200, _))))?;
        Ok(gateway)
    }

    /// The text of a configuration file for this gateway's addresses.
    pub fn yaml_of(&self, settings: &Settings) -> String {
        yaml(settings, self.clients, self.admin, self.folder.path())
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// `GET /state` of the admin listener.
    pub fn state(&self) -> Fallible<serde_json::Value> {
        let (status, body) = send_request(self.admin, &request::get("/state"))?;
        if status != 200 {
            return Err(format!("/state answered {status}").into());
        }
        Ok(serde_json::from_slice(&body)?)
    }

    /// `GET /metrics` of the admin listener.
    pub fn metrics(&self) -> Fallible<String> {
        let (status, body) = send_request(self.admin, &request::get("/metrics"))?;
        if status != 200 {
            return Err(format!("/metrics answered {status}").into());
        }
        Ok(String::from_utf8(body)?)
    }

    /// `POST /reload`: 200 taken, 422 refused.
    pub fn reload(&self) -> Fallible<u16> {
        let bytes = b"POST /reload HTTP/1.1\r\nhost: bench.test\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        Ok(send_request(self.admin, bytes)?.0)
    }

    /// Lines of the event files, rotated ones included.
    pub fn event_lines(&self) -> Fallible<u64> {
        let mut lines = 0;
        for entry in std::fs::read_dir(self.folder.path())? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with("events") {
                let text = std::fs::read(&path)?;
                lines += memchr::memchr_iter(b'\n', &text).count() as u64;
            }
        }
        Ok(lines)
    }
}

/// The binary under test.
pub fn binary() -> PathBuf {
    match std::env::var_os("INFERGATE_BIN") {
        Some(path) => path.into(),
        None => env!("CARGO_BIN_EXE_infergate").into(),
    }
}

/// Sends a request on a fresh connection, which then closes; returns status and body of the response.
pub fn send_request(address: SocketAddr, bytes: &[u8]) -> Fallible<(u16, Vec<u8>)> {
    let mut stream = TcpStream::connect_timeout(&address, ADMIN_LIMIT)?;
    stream.set_read_timeout(Some(ADMIN_LIMIT))?;
    stream.write_all(bytes)?;
    let mut answer = wire::ResponseReader::collecting();
    let mut buffer = [0_u8; 16 * 1024];
    while !answer.is_done() {
        match stream.read(&mut buffer)? {
            0 => answer.close()?,
            count => answer.feed(&buffer[..count])?,
        }
    }
    Ok((answer.status, answer.into_body()))
}

fn plugins(folder: &Path) -> String {
    let mut text = String::from("plugins:\n");
    for (name, world, settings) in [
        ("text-generation", "task-schema-streaming", "shape: false"),
        ("neurons", "billing-formula", ""),
        ("latency", "routing-policy", ""),
    ] {
        let file = folder.join(format!("{name}.wasm"));
        let file = file.display();
        let _ = writeln!(
            text,
            "  - {{ name: {name}, world: {world}, file: \"{file}\", dev: true, settings: {{ {settings} }} }}"
        );
    }
    text
}

fn yaml(settings: &Settings, clients: SocketAddr, admin: SocketAddr, folder: &Path) -> String {
    let (listen, top) = settings.fleet.as_ref().map_or(("", ""), |(l, t)| (l, t));
    let mut text = format!(
        "listen:\n  clients:\n    - address: \"{clients}\"\n  admin: {{ address: \"{admin}\" }}\n\
         {listen}{top}threads: {}\n\
         limits:\n  connections_per_client: 100000\n\
         state_dir: \"{}\"\n\
         events:\n  file: {{ path: \"{}\", max_size_mib: 1024, keep: 2 }}\n",
        settings.threads,
        folder.join("state").display(),
        folder.join("events.jsonl").display(),
    );
    if let Some(folder) = &settings.plugins {
        text.push_str(&plugins(folder));
    }
    text.push_str("models:\n");
    for model in &settings.models {
        let _ = write!(
            text,
            "  - id: \"{}\"\n    task: text-generation\n    backend: openai\n    \
             queue: {{ algorithm: {}, capacity: {} }}\n{}    endpoints:{}\n",
            model.id,
            model.algorithm,
            model.capacity,
            if settings.plugins.is_some() {
                WITH_PLUGINS
            } else {
                ""
            },
            if model.endpoints.is_empty() {
                " []"
            } else {
                ""
            },
        );
        for endpoint in &model.endpoints {
            let _ = writeln!(
                text,
                "      - {{ url: \"http://{endpoint}\", max_concurrent_requests: {} }}",
                model.permits_per_endpoint
            );
        }
    }
    // Accounts stand last, so that a file cut anywhere in them is certainly not valid.
    text.push_str("accounts:\n");
    for account in &settings.accounts {
        let hash = hex::encode(Sha256::digest(account.key().as_bytes()));
        let rate = match account.requests_per_minute {
            Some(rate) => format!("\n    requests_per_minute: {rate}"),
            None => String::new(),
        };
        let _ = write!(
            text,
            "  - id: \"{}\"\n    weight: {}{rate}\n    api_keys_sha256: [\"{hash}\"]\n",
            account.id, account.weight
        );
    }
    text
}
