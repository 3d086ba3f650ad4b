//! Processes of the bench: upstream, gateway, yardsticks and peers, each on its core.
//! Not the measuring: starts them and knows their addresses and pids.
//!
//! Proxies share the first core, load and upstream the second, so a proxy is never slowed by its own load.
//! Called by the driver and the scenarios.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use crate::configs::{settings, with_plugins};
use crate::kit::gateway::{Gateway, Settings};
use crate::kit::process::{Process, free_port, loopback};
use crate::kit::{Fallible, procfs};
use crate::peers;
use crate::targets::label;

/// Assignment of processes to cores.
pub struct Cores {
    pub proxy: String,
    pub load: String,
    pub two_threads: String,
}

impl Cores {
    pub fn plan() -> Self {
        let (proxy, load, two_threads) = match procfs::cores() {
            1 => ("0", "0", "0"),
            2 | 3 => ("0", "1", "0,1"),
            _ => ("0", "1", "0,2"),
        };
        Self {
            proxy: proxy.into(),
            load: load.into(),
            two_threads: two_threads.into(),
        }
    }
}

/// A place to send load to.
pub struct Contender {
    pub label: &'static str,
    pub address: SocketAddr,
    pub pids: Vec<u32>,
}

/// Processes that run during the whole bench; idle proxies cost next to nothing.
pub struct Processes {
    pub cores: Cores,
    pub upstream_port: u16,
    pub contenders: Vec<Contender>,
    /// None when infergate would not start: its yardsticks are measured all the same.
    pub gateway: Option<Gateway>,
    _with_plugins: Option<Gateway>,
    _processes: Vec<Process>,
    _folder: tempfile::TempDir,
}

impl Processes {
    pub fn open(cores: Cores) -> Fallible<Self> {
        let folder = tempfile::tempdir()?;
        let upstream_port = free_port()?;
        let upstream = start_role("upstream", &[upstream_port], &cores.load, folder.path())?;
        let mut contenders = vec![Contender {
            label: label::DIRECT,
            address: loopback(upstream_port),
            pids: vec![upstream.pid()],
        }];
        let mut processes = vec![upstream];

        let started = start_gateway("infergate", upstream_port, 1, &cores.proxy);
        let gateway = match started {
            Ok(gateway) => {
                contenders.push(contender(label::INFERGATE, &gateway));
                Some(gateway)
            }
            Err(error) => {
                println!("infergate: not measured, {error}");
                None
            }
        };
        let with_plugins = match with_plugins(upstream_port) {
            None => Err("scripts/plugins has not built the plugins".into()),
            Some(settings) => Gateway::start("infergate-plugins", settings, Some(&cores.proxy)),
        };
        let with_plugins = match with_plugins {
            Ok(gateway) => {
                contenders.push(contender(label::WITH_PLUGINS, &gateway));
                Some(gateway)
            }
            Err(error) => {
                println!("{}: not measured, {error}", label::WITH_PLUGINS);
                None
            }
        };
        for name in [label::BARE, label::HYPER] {
            let port = free_port()?;
            let process = start_role(name, &[port, upstream_port], &cores.proxy, folder.path())?;
            contenders.push(Contender {
                label: name,
                address: loopback(port),
                pids: vec![process.pid()],
            });
            processes.push(process);
        }
        for peer in peers::start_installed(upstream_port, &cores.proxy, folder.path())? {
            contenders.push(Contender {
                label: peer.name,
                address: loopback(peer.port),
                pids: vec![peer.process.pid()],
            });
            processes.push(peer.process);
        }
        Ok(Self {
            cores,
            upstream_port,
            contenders,
            gateway,
            _with_plugins: with_plugins,
            _processes: processes,
            _folder: folder,
        })
    }
}

pub fn contender(label: &'static str, gateway: &Gateway) -> Contender {
    Contender {
        label,
        address: gateway.clients,
        pids: vec![gateway.process.pid()],
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
