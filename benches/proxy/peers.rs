//! Other proxies beside us, when they are installed: HAProxy, nginx, Envoy, vllm-router and sglang-router.
//! Not yardsticks but for two ratios with vllm-router: most show where one stands on this machine.
//!
//! A single thread each where that can be configured, keep-alive to the upstream, no access log, no buffering of
//! server-sent events. Envoy and vllm-router run twice, without and with a guest of `guests.rs`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cores::Cores;
use crate::guests;
use crate::kit::Fallible;
use crate::kit::process::{Process, find_program, free_port, loopback, pin};
use crate::peer_configs::{envoy, haproxy, nginx};
use crate::targets::label;

/// A started peer and its port.
pub struct Peer {
    pub label: &'static str,
    pub version: String,
    pub process: Process,
    pub port: u16,
    pub connections_max: usize,
}

/// Requests at once that vllm-router lets into its middleware: two for each worker thread, one for each CPU.
const MIDDLEWARE_CONNECTIONS_MAX: usize = 4;

/// Starts what is installed; a line says what is not, or would not start.
pub fn start_installed(upstream_port: u16, cores: &Cores, folder: &Path) -> Fallible<Vec<Peer>> {
    let mut peers = Vec::new();
    for label in [
        label::HAPROXY,
        label::NGINX,
        label::ENVOY,
        label::ENVOY_WASM,
        label::VLLM_ROUTER,
        label::VLLM_ROUTER_WASM,
        label::SGLANG_ROUTER,
    ] {
        let name = label.split(',').next().unwrap_or(label);
        let Some(program) = find_program(name) else {
            eprintln!("{label}: not installed, skipped");
            continue;
        };
        let port = free_port()?;
        match start(label, &program, [port, upstream_port], cores, folder) {
            Ok(process) => peers.push(Peer {
                label,
                version: version(name, &program),
                process,
                port,
                connections_max: match label {
                    label::VLLM_ROUTER_WASM => MIDDLEWARE_CONNECTIONS_MAX,
                    _ => usize::MAX,
                },
            }),
            Err(error) => eprintln!("{label}: skipped, {error}"),
        }
    }
    Ok(peers)
}

fn start(
    label: &'static str,
    program: &Path,
    [port, upstream_port]: [u16; 2],
    cores: &Cores,
    folder: &Path,
) -> Fallible<Process> {
    let name = label.replace(", ", "-");
    let file = folder.join(format!("{name}.conf"));
    let mut command = Command::new(program);
    let mut started_on = &cores.shared;
    match label {
        label::HAPROXY => {
            std::fs::write(&file, haproxy(port, upstream_port))?;
            command.arg("-db").arg("-f").arg(&file);
        }
        label::NGINX => {
            std::fs::write(&file, nginx(port, upstream_port, folder))?;
            command.arg("-p").arg(folder).arg("-c").arg(&file);
        }
        label::ENVOY | label::ENVOY_WASM => {
            let filter = match label {
                label::ENVOY_WASM => Some(guests::write_filter(folder)?),
                _ => None,
            };
            std::fs::write(&file, envoy(port, upstream_port, filter.as_deref()))?;
            command.arg("--config-path").arg(&file);
            // Without a number of its own each Envoy would want the shared memory of the other.
            command.args(["--concurrency", "1", "--log-level", "error"]);
            command.arg("--use-dynamic-base-id");
        }
        _ => {
            command = router(label, program, port, upstream_port)?;
            if label == label::VLLM_ROUTER_WASM {
                let middleware = guests::write_middleware(folder)?;
                command.arg("--wasm-middleware").arg(middleware);
                // As many workers for the middleware as there are CPUs at its start; it moves to one below.
                started_on = &cores.all;
            }
        }
    }
    let mut process = Process::start(&name, command, Some(started_on), folder)?;
    process.wait_for_port(loopback(port))?;
    pin(process.pid(), &cores.shared)?;
    Ok(process)
}

/// A router of model servers, round robin over the one upstream.
fn router(label: &'static str, program: &Path, port: u16, upstream_port: u16) -> Fallible<Command> {
    // A middleware needs its router on all CPUs at first; the router itself keeps one worker everywhere.
    let mut command = Command::new("env");
    command.arg("TOKIO_WORKER_THREADS=1").arg(program);
    if label == label::SGLANG_ROUTER {
        command.arg("launch");
    }
    command
        .args([
            "--worker-urls",
            &format!("http://127.0.0.1:{upstream_port}"),
        ])
        .args(["--host", "127.0.0.1", "--port", &port.to_string()])
        .args(["--prometheus-port", &free_port()?.to_string()])
        .args(["--policy", "round_robin", "--log-level", "error"]);
    Ok(command)
}

/// Version of the Python package around the program, or the first `1.2.3` that the program prints of itself.
fn version(name: &str, program: &Path) -> String {
    let printed = || {
        let argument = match name {
            label::HAPROXY | label::NGINX => "-v",
            _ => "--version",
        };
        let output = Command::new(program).arg(argument).output().ok()?;
        dotted(&String::from_utf8_lossy(
            &[output.stdout, output.stderr].concat(),
        ))
    };
    package_version(name, program)
        .or_else(printed)
        .unwrap_or_else(|| "of unknown version".into())
}

fn dotted(text: &str) -> Option<String> {
    text.split(|c: char| !c.is_ascii_digit() && c != '.')
        .find(|word| word.split('.').filter(|part| !part.is_empty()).count() == 3)
        .map(str::to_owned)
}

/// `lib/python3.11/site-packages/vllm_router-0.1.17.dist-info` beside `bin/vllm-router`.
fn package_version(name: &str, program: &Path) -> Option<String> {
    let beginning = format!("{}-", name.replace('-', "_"));
    let libraries = program.parent()?.parent()?.join("lib");
    for python in std::fs::read_dir(libraries).ok()?.flatten() {
        let packages: PathBuf = python.path().join("site-packages");
        for package in std::fs::read_dir(packages).into_iter().flatten().flatten() {
            let folder = package.file_name().to_string_lossy().into_owned();
            let rest = folder.strip_prefix(&beginning);
            if let Some(version) = rest.and_then(|rest| rest.strip_suffix(".dist-info")) {
                return Some(version.to_owned());
            }
        }
    }
    None
}
