//! Several nodes: one is asked and all serve, what a forward costs, and a node that is killed under load.
//! Partitions, loss and rolling restarts need network namespaces: `tests/fleet/run`.
//!
//! Three gateways, each with two backends of four permits and 100 ms; capacity C is measured at the
//! backends themselves.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use crate::backend::{self, RequestCounts};
use crate::client::{ChatRequest, Client};
use crate::crowd::{self, Backlog, Sample, goodput};
use crate::kit::Fallible;
use crate::kit::cluster::{self, Membership};
use crate::kit::figures::Latencies;
use crate::kit::gateway::{Account, Gateway, Model, Settings};
use crate::overload::counts;
use crate::stand::{MODEL, SERVICE_MS, Scale};
use crate::table::Table;

const ACCOUNT: &str = "acme";
const NAMES: [&str; 3] = ["a", "b", "c"];
const BACKENDS_EACH: usize = 2;
const PERMITS: u32 = 4;
const DEADLINE_MS: u64 = 2_000;
const SEED: u64 = 44;
/// The beginning of a step that is not counted: permits and lines fill.
const FILLING: Duration = Duration::from_secs(2);
/// Requests one after the other for the price of a forward.
const HOPS_TIMED: usize = 2_000;
/// From so long after a kill on, requests to the others succeed.
const RECOVERED: Duration = Duration::from_secs(2);

pub fn run(runtime: &Runtime, scale: Scale, table: &mut Table) -> Fallible<()> {
    // Nothing is counted while queues fill.
    let scale = scale.of_at_least(FILLING * 2);
    spread(runtime, scale, table)?;
    price_of_a_hop(runtime, scale, table)?;
    kill(runtime, scale, table)
}

/// Nodes that know each other, and their backends.
struct NodeCluster {
    nodes: Vec<Gateway>,
    backends: Vec<(SocketAddr, RequestCounts)>,
    _membership: Membership,
}

impl NodeCluster {
    /// `backends_each` says how many servers each node has.
    fn open(runtime: &Runtime, backends_each: &[usize]) -> Fallible<NodeCluster> {
        let membership = Membership::new(&NAMES[..backends_each.len()])?;
        let (mut nodes, mut backends) = (Vec::new(), Vec::new());
        for (at, &count) in backends_each.iter().enumerate() {
            let name = NAMES[at];
            let own: Vec<(SocketAddr, RequestCounts)> = (0..count)
                .map(|_| backend::start(runtime))
                .collect::<Fallible<_>>()?;
            let settings = Settings {
                threads: 2,
                accounts: vec![Account::new(ACCOUNT)],
                models: vec![Model {
                    id: MODEL.into(),
                    endpoints: own.iter().map(|(address, _)| *address).collect(),
                    permits_per_endpoint: PERMITS,
                    algorithm: "fair",
                    capacity: 2,
                }],
                plugins: None,
                fleet: Some(membership.lines(at)),
            };
            nodes.push(Gateway::start(name, settings, None)?);
            backends.extend(own);
        }
        cluster::meet(&nodes)?;
        Ok(NodeCluster {
            nodes,
            backends,
            _membership: membership,
        })
    }

    fn most_in_flight(&self) -> u64 {
        let marks = self.backends.iter().map(|(_, book)| book.high_water());
        marks.max().unwrap_or(0)
    }

    /// Closed loops directly at all backends.
    fn capacity(&self, runtime: &Runtime, scale: Scale) -> f64 {
        let length = scale.step.min(Duration::from_secs(10));
        let ask = ChatRequest::plain(ACCOUNT, MODEL, SERVICE_MS);
        let measured = self.backends.iter().map(|(address, _)| {
            let (client, ask) = (Client::new(*address), ask.clone());
            runtime.spawn(async move {
                let open = PERMITS as usize;
                let loops = [Backlog { ask, open }];
                let samples = crowd::mixed(&client, &loops, &[], length).await;
                goodput(&samples, FILLING, length)
            })
        });
        let measured: Vec<_> = measured.collect();
        let rates = measured.into_iter().map(|rate| runtime.block_on(rate));
        rates.map(|rate| rate.unwrap_or(0.0)).sum()
    }
}

fn ask() -> ChatRequest {
    ChatRequest {
        deadline_ms: Some(DEADLINE_MS),
        ..ChatRequest::plain(ACCOUNT, MODEL, SERVICE_MS)
    }
}

/// Acceptance 1: all load to one node.
fn spread(runtime: &Runtime, scale: Scale, table: &mut Table) -> Fallible<()> {
    let fleet = NodeCluster::open(runtime, &[BACKENDS_EACH; 3])?;
    let capacity = fleet.capacity(runtime, scale);
    println!("C of six backends = {capacity:.1} requests/s");
    let client = Client::new(fleet.nodes[0].clients);
    for (times, goal) in [(1.0, 0.90), (1.2, 0.95), (2.0, 0.95)] {
        let before = forwards(&fleet.nodes)?;
        let offered = times * capacity;
        let ask = ask();
        let arriving = crowd::arrivals(&client, &ask, offered, scale.step, SEED);
        let samples = runtime.block_on(arriving);
        let good = goodput(&samples, FILLING, scale.step);
        let possible = capacity.min(arrived(&samples, scale.step));
        table.add(
            "nodes 1",
            format!(
                "goodput at {times} × C, all to one node ({})",
                counts(&samples)
            ),
            format!("≥ {:.0} % of {possible:.1}/s", goal * 100.0),
            format!("{:.1} % ({good:.1}/s)", good / possible * 100.0),
            good >= goal * possible,
        );
        let after = forwards(&fleet.nodes)?;
        let refused = (after.refused - before.refused) / samples.len() as f64;
        table.add(
            "nodes 1",
            format!("forwards refused for want of room at {times} × C, a request"),
            "≤ 1.2",
            format!(
                "{refused:.2} ({:.0} answered)",
                after.answered - before.answered
            ),
            refused <= 1.2,
        );
    }
    let most = fleet.most_in_flight();
    table.add(
        "nodes 1",
        "high-water mark of the fullest backend",
        format!("≤ {PERMITS}"),
        most.to_string(),
        most <= u64::from(PERMITS),
    );
    Ok(())
}

/// Latency that a forwarding node without servers of its own adds.
fn price_of_a_hop(runtime: &Runtime, scale: Scale, table: &mut Table) -> Fallible<()> {
    let fleet = NodeCluster::open(runtime, &[0, 1])?;
    let ask = ChatRequest::plain(ACCOUNT, MODEL, 0);
    let edge = Client::new(fleet.nodes[0].clients);
    let own = Client::new(fleet.nodes[1].clients);
    let (mut there, mut here) = (Latencies::new(), Latencies::new());
    let count = scale.count(HOPS_TIMED);
    let all_well = runtime.block_on(async {
        let mut all_well = true;
        // In turns, so that the machine's moods fall on both.
        for at in 0..2 * count {
            let (client, latencies) = match at % 2 {
                0 => (&edge, &mut there),
                _ => (&own, &mut here),
            };
            let outcome = client.send(&ask).await;
            all_well &= outcome.status == 200;
            // Connections are made in the first ones.
            if at > 100 {
                latencies.record(outcome.took());
            }
        }
        all_well
    });
    let added_us = there.quantile_us(0.5).saturating_sub(here.quantile_us(0.5));
    table.add(
        "nodes 1",
        format!(
            "added by a forward, p50 (own {} µs, forwarded {} µs; p99 {} and {})",
            here.quantile_us(0.5),
            there.quantile_us(0.5),
            here.quantile_us(0.99),
            there.quantile_us(0.99),
        ),
        "≤ 1000 µs",
        format!("{added_us} µs"),
        all_well && added_us <= 1_000,
    );
    Ok(())
}

/// Acceptance 2: a node dies under load at the two others.
fn kill(runtime: &Runtime, scale: Scale, table: &mut Table) -> Fallible<()> {
    let mut fleet = NodeCluster::open(runtime, &[BACKENDS_EACH; 3])?;
    let capacity = fleet.capacity(runtime, scale);
    // More than one node's own share, so that the dying one has requests of others.
    let offered = 0.5 * capacity;
    let clients = [0, 1].map(|at| Client::new(fleet.nodes[at].clients));
    let length = scale.step.max(Duration::from_secs(10));
    let killed_at = length / 3;
    let dying = fleet.nodes.remove(2);
    let samples = runtime.block_on(async {
        let kill = async {
            tokio::time::sleep(killed_at).await;
            dying.process.signal("KILL")
        };
        let ask = ask();
        let (one, other, killed) = tokio::join!(
            crowd::arrivals(&clients[0], &ask, offered * 0.8, length, SEED),
            crowd::arrivals(&clients[1], &ask, offered * 0.2, length, SEED + 1),
            kill,
        );
        killed.map(|()| [one, other].concat())
    });
    drop(dying);
    let samples = samples?;
    judge_kill(&samples, killed_at, table);
    let idle = idle_within(&fleet.nodes, Duration::from_secs(5))?;
    table.add(
        "nodes 2",
        "permits of the others free again",
        "≤ 5 s",
        idle.map_or("not in 5 s".into(), |after| {
            format!("{:.2} s", after.as_secs_f64())
        }),
        idle.is_some(),
    );
    let most = fleet.most_in_flight();
    table.add(
        "nodes 2",
        "high-water mark of the fullest backend",
        format!("≤ {PERMITS}"),
        most.to_string(),
        most <= u64::from(PERMITS),
    );
    Ok(())
}

fn judge_kill(samples: &[Sample], killed_at: Duration, table: &mut Table) {
    let of = |from: Duration, to: Duration| {
        let those = samples
            .iter()
            .filter(|sample| (from..to).contains(&sample.sent));
        let those: Vec<&Sample> = those.collect();
        let well = those.iter().filter(|sample| sample.status == 200).count();
        (well, those.len())
    };
    let (well, all) = of(killed_at + RECOVERED, Duration::MAX);
    let share = well as f64 / all.max(1) as f64;
    table.add(
        "nodes 2",
        format!("served from 2 s after the kill ({})", counts(samples)),
        "≥ 99.9 %",
        format!("{:.3} % of {all}", share * 100.0),
        all > 0 && share >= 0.999,
    );
    let around = killed_at.saturating_sub(Duration::from_millis(DEADLINE_MS));
    let (well, all) = of(around, killed_at + RECOVERED);
    // What the dead node's backends worked on is not begun again elsewhere.
    let started_max = BACKENDS_EACH * PERMITS as usize;
    let meanwhile = samples
        .iter()
        .filter(|sample| (around..killed_at + RECOVERED).contains(&sample.sent));
    let lost = meanwhile.filter(|sample| sample.status == 502).count();
    table.add(
        "nodes 2",
        "not served, sent from 2 s before to 2 s after the kill",
        format!("≤ {started_max} that had begun there, each 502"),
        format!("{} of {all}, {lost} of them 502", all - well),
        all - well <= started_max && all - well == lost,
    );
}

/// Returns the time until no permit is held any more.
fn idle_within(nodes: &[Gateway], limit: Duration) -> Fallible<Option<Duration>> {
    let began = Instant::now();
    loop {
        let mut used = 0;
        for node in nodes {
            let state = node.state()?;
            let endpoints = state["models"][0]["endpoints"].as_array().cloned();
            for endpoint in endpoints.unwrap_or_default() {
                used += endpoint["permits"]["used"].as_u64().unwrap_or(1);
            }
        }
        if used == 0 {
            return Ok(Some(began.elapsed()));
        }
        if began.elapsed() > limit {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Forwards by what came of them, of all nodes.
struct Forwards {
    answered: f64,
    refused: f64,
}

fn forwards(nodes: &[Gateway]) -> Fallible<Forwards> {
    let mut sum = Forwards {
        answered: 0.0,
        refused: 0.0,
    };
    for node in nodes {
        for line in node.metrics()?.lines() {
            let Some((series, value)) = line.rsplit_once(' ') else {
                continue;
            };
            if !series.starts_with("infergate_forwards_total{") {
                continue;
            }
            let value: f64 = value.parse()?;
            match series {
                series if series.contains("\"answered\"") => sum.answered += value,
                series if series.contains("\"no-room\"") => sum.refused += value,
                _ => {}
            }
        }
    }
    Ok(sum)
}

/// Requests a second after the beginning.
fn arrived(samples: &[Sample], length: Duration) -> f64 {
    let counted = samples.iter().filter(|sample| sample.sent >= FILLING);
    counted.count() as f64 / (length - FILLING).as_secs_f64()
}
