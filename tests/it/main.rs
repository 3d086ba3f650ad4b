//! The shell against real sockets: one binary, a module per promise.
//!
//! A gateway runs as a child process; model servers run in this one, simulated or scripted byte by
//! byte; clients write and read raw bytes.

#![allow(
    clippy::unwrap_used,
    reason = "a helper that cannot go on fails the test that called it"
)]

mod admin;
mod admin_tls;
mod admission;
mod anthropic;
mod backends;
mod billing;
mod catalog;
mod chat_templates;
mod cli;
mod client_profiles;
mod cog;
mod connections;
mod cors;
mod deadline;
mod deployments;
mod disconnect;
mod discovery;
mod drain;
mod endpoints;
mod events;
mod explain;
mod failover;
mod fallbacks;
mod files;
mod finetunes;
mod framing;
mod gossip;
mod gpu_adoption;
mod gpu_check;
mod gpu_claims;
mod gpu_clients;
mod gpu_cold;
mod gpu_estimate;
mod gpu_failures;
mod gpu_host;
mod gpu_leases;
mod gpu_logs;
mod gpu_memory;
mod gpu_nvml;
mod gpu_operations;
mod gpu_ports;
mod gpu_processes;
mod gpu_reports;
mod gpu_sleep;
mod gpu_tasks;
mod gpu_trace;
mod gpu_upgrade;
mod http2;
mod job_disk;
mod job_inputs;
mod job_limits;
mod job_models;
mod job_operations;
mod job_streams;
mod jobs;
mod leases;
mod limits;
mod listeners;
mod logs;
mod loopback;
mod named_tasks;
mod nodes;
mod nvml;
mod openai;
mod operator_commands;
mod otlp;
mod passed;
mod peers;
mod plugin_capture;
mod plugin_cli;
mod plugin_compiling;
mod plugin_loading;
mod plugin_watch;
mod plugins;
mod readers;
mod reload;
mod routing;
mod secrets;
mod service_manager;
mod smoke;
mod state_dir;
mod streaming;
mod support;
mod tasks;
mod tls;
mod triton;
mod trusted_proxies;
mod unix_sockets;
mod upgrade;
mod uploads;
mod upstream_http2;
mod websocket;
mod workers_ai;
