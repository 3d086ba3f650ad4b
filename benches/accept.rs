//! The acceptance table: overload, fairness, clients that leave, reloads under load, several nodes,
//! failover, events that add up.
//! Not a benchmark of speed: `benches/proxy.rs` is that one.
//!
//! A gateway process in front of a backend inside this program, whose own counters are believed instead of
//! the gateway's.
//!
//! `cargo bench --bench accept -- [overload fairness disconnect reload nodes failover idle] [--seconds S]`
//!
//! S (default 30) is the length of one load step and scales the number of trials and reloads.

// Acceptance lives on the clock and starts its own tasks; the product's rules about both are for requests.
#![allow(clippy::disallowed_methods)]

#[path = "kit/mod.rs"]
#[allow(dead_code, reason = "each of the two benches uses its part of the kit")]
mod kit;

#[path = "accept/backend.rs"]
mod backend;
#[path = "accept/client.rs"]
mod client;
#[path = "accept/crowd.rs"]
mod crowd;
#[path = "accept/disconnect.rs"]
mod disconnect;
#[path = "accept/failover.rs"]
mod failover;
#[path = "accept/fairness.rs"]
mod fairness;
#[path = "accept/idle.rs"]
mod idle;
#[path = "accept/nodes.rs"]
mod nodes;
#[path = "accept/overload.rs"]
mod overload;
#[path = "accept/reload.rs"]
mod reload;
#[path = "accept/stand.rs"]
mod stand;
#[path = "accept/table.rs"]
mod table;

use stand::Scale;
use table::Table;

/// A named item of the acceptance table.
type Item = (
    &'static str,
    fn(&tokio::runtime::Runtime, Scale, &mut Table) -> kit::Fallible<()>,
);

const ITEMS: [Item; 7] = [
    ("overload", overload::run),
    ("fairness", fairness::run),
    ("disconnect", disconnect::run),
    ("reload", reload::run),
    ("nodes", nodes::run),
    ("failover", failover::run),
    ("idle", idle::run),
];

fn main() -> kit::Fallible<()> {
    let mut scale = Scale::FULL;
    let mut wanted: Vec<String> = Vec::new();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            // cargo adds this one by itself.
            "--bench" => {}
            "--seconds" => {
                scale = Scale::of_seconds(words.next().ok_or("--seconds needs a value")?.parse()?)
            }
            name if ITEMS.iter().any(|(item, _)| *item == name) => wanted.push(word),
            other => return Err(format!("unknown argument {other}").into()),
        }
    }

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    println!("{}", kit::procfs::machine());
    println!("infergate: {}", kit::gateway::binary().display());
    let mut table = Table::default();
    for (name, run) in ITEMS {
        if wanted.is_empty() || wanted.iter().any(|item| item == name) {
            println!("\n## {name}");
            if let Err(error) = run(&runtime, scale, &mut table) {
                println!("{name} broke off: {error}");
                table.broke_off(name, &error.to_string());
            }
        }
    }
    table.close_books();
    table.print();
    println!("\n{}", kit::procfs::machine());
    match table.all_met() {
        true => Ok(()),
        false => Err("not everything is met".into()),
    }
}
