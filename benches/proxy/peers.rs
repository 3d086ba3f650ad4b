//! HAProxy, nginx, vllm-router and sglang-router beside us, when they are on the PATH: their
//! configuration and their start. The two proxies in C are no yardsticks, they show where one stands
//! on this machine; the two routers (from PyPI) are those of T3.
//!
//! A single thread each where that can be configured, keep-alive to the upstream, no access log, no
//! buffering of server-sent events.

use std::path::Path;
use std::process::Command;

use crate::kit::Fallible;
use crate::kit::process::{Process, find_program, free_port, loopback};
use crate::targets::label;

/// A started peer and its port.
pub struct Peer {
    pub name: &'static str,
    pub process: Process,
    pub port: u16,
}

/// Starts what is installed; a line says what is not, or would not start.
pub fn start_installed(upstream_port: u16, core: &str, folder: &Path) -> Fallible<Vec<Peer>> {
    let mut peers = Vec::new();
    for (name, configuration) in [
        ("haproxy", haproxy as fn(u16, u16, &Path) -> String),
        ("nginx", nginx),
    ] {
        let Some(program) = find_program(name) else {
            println!("{name}: not installed, skipped");
            continue;
        };
        let port = free_port()?;
        let file = folder.join(format!("{name}.conf"));
        std::fs::write(&file, configuration(port, upstream_port, folder))?;
        let mut command = Command::new(program);
        match name {
            "haproxy" => command.arg("-db").arg("-f").arg(&file),
            _ => command.arg("-p").arg(folder).arg("-c").arg(&file),
        };
        let mut process = Process::start(name, command, Some(core), folder)?;
        match process.wait_for_port(loopback(port)) {
            Ok(()) => peers.push(Peer {
                name,
                process,
                port,
            }),
            Err(error) => println!("{name}: skipped, {error}"),
        }
    }
    for name in [label::VLLM_ROUTER, label::SGLANG_ROUTER] {
        if let Some(peer) = start_router(name, upstream_port, core, folder)? {
            peers.push(peer);
        }
    }
    Ok(peers)
}

/// A router of model servers, round robin over the one upstream.
fn start_router(
    name: &'static str,
    upstream_port: u16,
    core: &str,
    folder: &Path,
) -> Fallible<Option<Peer>> {
    let Some(program) = find_program(name) else {
        println!("{name}: not installed, skipped");
        return Ok(None);
    };
    let (port, metrics_port) = (free_port()?, free_port()?);
    let mut command = Command::new(program);
    if name == label::SGLANG_ROUTER {
        command.arg("launch");
    }
    command
        .args([
            "--worker-urls",
            &format!("http://127.0.0.1:{upstream_port}"),
        ])
        .args(["--host", "127.0.0.1", "--port", &port.to_string()])
        .args(["--prometheus-port", &metrics_port.to_string()])
        .args(["--policy", "round_robin", "--log-level", "error"]);
    let mut process = Process::start(name, command, Some(core), folder)?;
    Ok(match process.wait_for_port(loopback(port)) {
        Ok(()) => Some(Peer {
            name,
            process,
            port,
        }),
        Err(error) => {
            println!("{name}: skipped, {error}");
            None
        }
    })
}

/// Chooses the backend by the body's `model`, as a gateway must; `http-no-delay` keeps events apart.
fn haproxy(port: u16, upstream_port: u16, _folder: &Path) -> String {
    format!(
        "global\n  nbthread 1\n  maxconn 8000\n\
         defaults\n  mode http\n  timeout connect 2s\n  timeout client 120s\n  timeout server 120s\n  \
         option http-no-delay\n  http-reuse always\n\
         frontend clients\n  bind 127.0.0.1:{port}\n  option http-buffer-request\n  \
         http-request set-var(txn.model) req.body,json_query('$.model')\n  \
         use_backend bench if {{ var(txn.model) -m str bench }}\n  default_backend bench\n\
         backend bench\n  server upstream 127.0.0.1:{upstream_port}\n"
    )
}

/// Configuration of a single process: with a master and a worker the figures would be split over two.
fn nginx(port: u16, upstream_port: u16, folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "daemon off;\nmaster_process off;\npid {folder}/nginx.pid;\nerror_log {folder}/nginx.err crit;\n\
         events {{ worker_connections 8192; }}\n\
         http {{\n  access_log off;\n  keepalive_requests 100000000;\n  client_max_body_size 64m;\n  \
         client_body_buffer_size 2m;\n  client_body_temp_path {folder}/nginx-body;\n  \
         proxy_temp_path {folder}/nginx-proxy;\n  fastcgi_temp_path {folder}/nginx-fastcgi;\n  \
         uwsgi_temp_path {folder}/nginx-uwsgi;\n  scgi_temp_path {folder}/nginx-scgi;\n  \
         upstream bench {{ server 127.0.0.1:{upstream_port}; keepalive 1024; keepalive_requests 100000000; }}\n  \
         server {{\n    listen 127.0.0.1:{port};\n    location / {{\n      proxy_pass http://bench;\n      \
         proxy_http_version 1.1;\n      proxy_set_header Connection \"\";\n      proxy_buffering off;\n    }}\n  }}\n}}\n"
    )
}
