//! Processes of the bench: upstream, gateway, yardsticks and peers, each on its CPU.
//! Not the measuring: starts them and knows their addresses and pids.
//!
//! Gateway, load and upstream share one CPU, and the bench itself waits on another. Two CPUs of a small machine
//! are often threads of one core: a busy neighbour costs up to twice the time. Called by the driver.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use crate::configs::{settings, with_plugins};
use crate::cores::Cores;
use crate::kit::Fallible;
use crate::kit::gateway::{Gateway, Settings};
use crate::kit::process::{Process, free_port, loopback, pin};
use crate::peers;
use crate::targets::label;

/// A place to send load to.
#[derive(Clone)]
pub struct Contender {
    pub label: &'static str,
    pub address: SocketAddr,
    pub pids: Vec<u32>,
    /// Requests at once from which on it refuses some.
    pub connections_max: usize,
}

/// Processes that run during the whole bench; idle proxies cost next to nothing.
pub struct Processes {
    pub cores: Cores,
    pub upstream_port: u16,
    pub contenders: Vec<Contender>,
    /// None when infergate would not start: its yardsticks are measured all the same.
    pub gateway: Option<Gateway>,
    _with_plugins: Option<Gateway>,
    /// Label and version of each peer that runs.
    pub versions: Vec<(&'static str, String)>,
    upstream: Process,
    _processes: Vec<Process>,
    _folder: tempfile::TempDir,
}

impl Processes {
    pub fn open(cores: Cores) -> Fallible<Self> {
        pin(std::process::id(), &cores.other)?;
        let folder = tempfile::tempdir()?;
        let port = free_port()?;
        let core = &cores.shared;
        let upstream = start_role("upstream", &[port], core, folder.path())?;
        let mut contenders = vec![direct(port, &upstream)];
        let gateway = open_gateway(label::INFERGATE, settings(port), core, &mut contenders);
        let with_plugins = open_gateway(
            label::WITH_PLUGINS,
            with_plugins(port),
            core,
            &mut contenders,
        );
        let (mut processes, mut versions) = (Vec::new(), Vec::new());
        for name in [label::BARE, label::HYPER] {
            let own = free_port()?;
            let process = start_role(name, &[own, port], core, folder.path())?;
            contenders.push(Contender {
                label: name,
                address: loopback(own),
                pids: vec![process.pid()],
                connections_max: usize::MAX,
            });
            processes.push(process);
        }
        for peer in peers::start_installed(port, &cores, folder.path())? {
            contenders.push(Contender {
                label: peer.label,
                address: loopback(peer.port),
                pids: vec![peer.process.pid()],
                connections_max: peer.connections_max,
            });
            versions.push((peer.label, peer.version));
            processes.push(peer.process);
        }
        Ok(Self {
            cores,
            upstream_port: port,
            contenders,
            gateway,
            _with_plugins: with_plugins,
            versions,
            upstream,
            _processes: processes,
            _folder: folder,
        })
    }

    pub fn find(&self, label: &str) -> Option<&Contender> {
        self.contenders
            .iter()
            .find(|contender| contender.label == label)
    }

    /// Moves the upstream to `cores`.
    pub fn move_upstream(&self, cores: &str) -> Fallible<()> {
        pin(self.upstream.pid(), cores)
    }
}

fn direct(port: u16, upstream: &Process) -> Contender {
    Contender {
        label: label::DIRECT,
        address: loopback(port),
        pids: vec![upstream.pid()],
        connections_max: usize::MAX,
    }
}

fn open_gateway(
    label: &'static str,
    settings: Settings,
    core: &str,
    contenders: &mut Vec<Contender>,
) -> Option<Gateway> {
    match Gateway::start(&label.replace(", ", "-"), settings, Some(core)) {
        Ok(gateway) => {
            contenders.push(contender(label, &gateway));
            Some(gateway)
        }
        Err(error) => {
            eprintln!("{label}: not measured, {error}");
            None
        }
    }
}

pub fn contender(label: &'static str, gateway: &Gateway) -> Contender {
    Contender {
        label,
        address: gateway.clients,
        pids: vec![gateway.process.pid()],
        connections_max: usize::MAX,
    }
}

/// Starts this program again, in another role.
fn start_role(role: &str, ports: &[u16], core: &str, folder: &Path) -> Fallible<Process> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(role);
    command.args(ports.iter().map(u16::to_string));
    let mut process = Process::start(role, command, Some(core), folder)?;
    process.wait_for_port(loopback(ports[0]))?;
    Ok(process)
}

pub fn start_gateway(
    name: &str,
    upstream_port: u16,
    threads: usize,
    cores: &str,
) -> Fallible<Gateway> {
    let settings = Settings {
        threads,
        ..settings(upstream_port)
    };
    Gateway::start(name, settings, Some(cores))
}
