//! `demo` and `simulate`: something to try the gateway on.

use std::fs::DirBuilder;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use super::serve::{fail, runtime, serve};
use super::signals::Signals;
use crate::config;
use crate::simulate;
use crate::telemetry::printable;

/// The event file's name in the demo's folder.
const EVENTS: &str = "events.jsonl";

/// Models of the demo, beside the curl lines that use them.
const BANNER: &str = r#"
infergate demo: the gateway on 127.0.0.1:8080 in front of two simulated GPU containers.

OpenAI chat
  curl -s http://127.0.0.1:8080/v1/chat/completions -H 'Authorization: Bearer demo-key' \
    -H 'Content-Type: application/json' \
    -d '{"model":"llama-3.1-8b","messages":[{"role":"user","content":"hello"}]}'

OpenAI chat, streaming
  curl -sN http://127.0.0.1:8080/v1/chat/completions -H 'Authorization: Bearer demo-key' \
    -H 'Content-Type: application/json' \
    -d '{"model":"llama-3.1-8b","stream":true,"messages":[{"role":"user","content":"hello"}]}'

Workers AI run
  curl -s http://127.0.0.1:8080/client/v4/accounts/demo/ai/run/@cf/meta/llama-3.1-8b-instruct \
    -H 'Authorization: Bearer demo-key' -d '{"prompt":"hello"}'

Embeddings
  curl -s http://127.0.0.1:8080/v1/embeddings -H 'Authorization: Bearer demo-key' \
    -H 'Content-Type: application/json' \
    -d '{"model":"@cf/baai/bge-base-en-v1.5","input":["hello"],"encoding_format":"float"}'

Durable prediction (Replicate API), waited for
  curl -s http://127.0.0.1:8080/v1/models/meta/llama-3.1-8b-instruct/predictions \
    -H 'Authorization: Bearer demo-key' -H 'Prefer: wait' -H 'Content-Type: application/json' \
    -d '{"input":{"prompt":"hello"}}'

Look inside
  http://127.0.0.1:9090/state   http://127.0.0.1:9090/metrics   http://127.0.0.1:9090/readyz

Ctrl-C ends it.
"#;

/// Ports named by the quickstart configuration and the banner; a free port replaces one that is taken.
const PORTS: [u16; 4] = [8080, 9090, 9001, 9002];
/// Number of `PORTS` that belong to the gateway itself.
const OWN_PORTS: usize = 2;
/// Between two looks for the first event.
const EVENT_TICK: Duration = Duration::from_millis(200);
/// Folders that are tried: what another process of this id has left may be in the way.
const FOLDERS_MAX: u32 = 100;

/// Runs the gateway on the quickstart configuration in front of two simulated containers.
pub fn demo() -> ExitCode {
    let (folder, file) = match Folder::make() {
        Ok(made) => made,
        Err(error) => return fail(&format!("cannot make the demo's folder: {error}")),
    };
    let listeners = match PORTS
        .map(listener)
        .into_iter()
        .collect::<io::Result<Vec<_>>>()
    {
        Ok(listeners) => listeners,
        Err(error) => return fail(&format!("the demo finds no ports: {error}")),
    };
    let ports: Vec<u16> = listeners.iter().map(|(port, _)| *port).collect();
    if let Err(error) = folder.fill(&file, &ports) {
        return fail(&format!("cannot write the demo's configuration: {error}"));
    }
    // The gateway's own are free again from here on.
    let containers = listeners.into_iter().skip(OWN_PORTS);
    let events = folder.0.join(EVENTS);
    let _containers = match Containers::start(containers.map(|of| of.1).collect(), events.clone()) {
        Ok(containers) => containers,
        Err(problem) => return fail(&problem),
    };
    println!("{}", with_ports(BANNER, &ports));
    println!(
        "The configuration is {}: edit it and watch the reload.\n\
         An event for each request goes to {}; the first one is shown here. Both go with the demo.\n",
        file.display(),
        events.display()
    );
    serve(&file)
}

/// The port on this machine, or another when it is taken, bound.
fn listener(port: u16) -> io::Result<(u16, TcpListener)> {
    let bind = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let listener = bind(port).or_else(|_| bind(0))?;
    Ok((listener.local_addr()?.port(), listener))
}

/// Returns these ports of this machine, or others where they are taken. Others may take them until they are used.
pub(super) fn free_ports<const COUNT: usize>(wanted: [u16; COUNT]) -> io::Result<[u16; COUNT]> {
    let bound = wanted.map(listener);
    let mut ports = [0; COUNT];
    for (port, bound) in ports.iter_mut().zip(bound) {
        *port = bound?.0;
    }
    Ok(ports)
}

/// `text` with these ports in place of [`PORTS`].
fn with_ports(text: &str, ports: &[u16]) -> String {
    let pairs = PORTS.iter().zip(ports);
    // By way of a mark, so that a port that was put in is not taken for one that is to be replaced.
    let marked = pairs.clone().fold(text.to_owned(), |text, (wanted, _)| {
        text.replace(
            &format!("127.0.0.1:{wanted}"),
            &format!("127.0.0.1:<{wanted}>"),
        )
    });
    pairs.fold(marked, |text, (wanted, port)| {
        text.replace(&format!("<{wanted}>"), &port.to_string())
    })
}

/// Folder for the files of the demo, removed at its end.
pub(super) struct Folder(PathBuf);

impl Folder {
    /// The folder, and the configuration file that will be in it.
    pub fn make() -> io::Result<(Folder, PathBuf)> {
        let mut last = Err(io::Error::from(io::ErrorKind::AlreadyExists));
        for nth in 0..FOLDERS_MAX {
            let name = format!("infergate-demo-{}-{nth}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            // Creation fails where anything exists, a foreign link included.
            last = DirBuilder::new()
                .mode(0o700)
                .create(&folder)
                .map(|()| folder);
            if last.is_ok() {
                break;
            }
        }
        let folder = Folder(last?);
        let file = folder.0.join("quickstart.yaml");
        Ok((folder, file))
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    fn fill(&self, file: &Path, ports: &[u16]) -> io::Result<()> {
        std::fs::create_dir(self.0.join("quickstart"))?;
        for (path, bytes) in config::QUICKSTART_PLUGINS {
            std::fs::write(self.0.join(path), bytes)?;
        }
        let text = with_ports(config::QUICKSTART, ports);
        // A path as a JSON string is one in YAML too, whatever is in it.
        let quoted =
            |name| serde_json::Value::from(self.0.join(name).to_string_lossy()).to_string();
        let (state, events) = (quoted("state"), quoted(EVENTS));
        std::fs::write(
            file,
            format!("{text}\nstate_dir: {state}\nevents:\n  file: {{ path: {events} }}\n"),
        )
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{} is left: {error}", self.0.display());
        }
    }
}

/// The demo's simulated containers, on a runtime of their own; they end with this value.
struct Containers {
    _runtime: tokio::runtime::Runtime,
}

impl Containers {
    /// Starts containers on these listeners, and a task that prints the first line of the event file.
    fn start(listeners: Vec<TcpListener>, events: PathBuf) -> Result<Containers, String> {
        let cannot = |error: io::Error| format!("cannot start the containers: {error}");
        let runtime = runtime(1).map_err(cannot)?;
        let inside = runtime.enter();
        for listener in listeners {
            listener.set_nonblocking(true).map_err(cannot)?;
            let listener = tokio::net::TcpListener::from_std(listener).map_err(cannot)?;
            let simulated = simulate::Config::default();
            runtime.spawn(async move {
                if let Err(error) =
                    simulate::serve(simulated, listener, std::future::pending()).await
                {
                    tracing::error!(%error, "a simulated container ended");
                }
            });
        }
        runtime.spawn(show_first(events));
        drop(inside);
        Ok(Containers { _runtime: runtime })
    }
}

/// Prints the first event once there is one.
async fn show_first(events: PathBuf) {
    loop {
        tokio::time::sleep(EVENT_TICK).await;
        // A runtime of the demo's own may wait for a disk.
        let text = std::fs::read_to_string(&events).unwrap_or_default();
        if let Some((line, _)) = text.split_once('\n') {
            println!("The first event: {}", printable(line));
            return;
        }
    }
}

/// Runs one simulated container until a signal ends it.
pub fn simulate(simulated: simulate::Config) -> ExitCode {
    if let Err(error) = simulate::arrange_process(&simulated.process) {
        return fail(&error.to_string());
    }
    let ignores_signals = simulated.process.ignore_term;
    let runtime = match runtime(1) {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error.to_string()),
    };
    runtime.block_on(async {
        let address = simulated.address;
        let listener = match tokio::net::TcpListener::bind(address).await {
            Ok(listener) => listener,
            Err(error) => return fail(&format!("cannot listen on {address}: {error}")),
        };
        let mut signals = match Signals::listen() {
            Ok(signals) => signals,
            Err(error) => return fail(&error.to_string()),
        };
        println!("simulated container on http://{address}");
        let shutdown = async move {
            loop {
                signals.terminate().await;
                if !ignores_signals {
                    return;
                }
            }
        };
        match simulate::serve(simulated, listener, shutdown).await {
            Ok(()) => ExitCode::SUCCESS,
            // In the words of a server without memory, which are looked for in its log.
            Err(error) if error.kind() == io::ErrorKind::OutOfMemory => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
            Err(error) => fail(&error.to_string()),
        }
    })
}
