//! Cost of a request: infergate against an empty Pingora proxy, hyper, HAProxy, nginx, Envoy and two routers.
//! Not a test of behaviour: `benches/accept.rs` is that one.
//!
//! A single binary that starts itself again as upstream, yardsticks and load generator. CPU is microseconds per
//! request of the proxy process, all threads, user + system. `cargo bench --bench proxy -- --help` lists the
//! options; docs/benchmarks.md says how it measures.

// A bench lives on the clock and starts its own tasks; the product's rules about both are for requests.
#![allow(clippy::disallowed_methods)]

#[path = "kit/mod.rs"]
#[allow(dead_code, reason = "each of the two benches uses its part of the kit")]
mod kit;

#[path = "proxy/bare.rs"]
mod bare;
#[path = "proxy/calls.rs"]
mod calls;
#[path = "proxy/configs.rs"]
mod configs;
#[path = "proxy/contest.rs"]
mod contest;
#[path = "proxy/cores.rs"]
mod cores;
#[path = "proxy/driver.rs"]
mod driver;
#[path = "proxy/guests.rs"]
mod guests;
#[path = "proxy/hall.rs"]
mod hall;
#[path = "proxy/hyper_hop.rs"]
mod hyper_hop;
#[path = "proxy/idle.rs"]
mod idle;
#[path = "proxy/load.rs"]
mod load;
#[path = "proxy/memory.rs"]
mod memory;
#[path = "proxy/open_loop.rs"]
mod open_loop;
#[path = "proxy/options.rs"]
mod options;
#[path = "proxy/peer_configs.rs"]
mod peer_configs;
#[path = "proxy/peers.rs"]
mod peers;
#[path = "proxy/scenarios.rs"]
mod scenarios;
#[path = "proxy/tables.rs"]
mod tables;
#[path = "proxy/targets.rs"]
mod targets;
#[path = "proxy/upstream.rs"]
mod upstream;

fn main() -> kit::Fallible<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["upstream", port] => upstream::run(port.parse()?),
        ["bare", port, upstream] => bare::run(port.parse()?, upstream.parse()?),
        ["hyper", port, upstream] => hyper_hop::run(port.parse()?, upstream.parse()?),
        ["load", plan] => load::run(plan),
        _ => driver::run(&words),
    }
}
