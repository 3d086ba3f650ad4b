//! The scenarios: which proxies are measured beside each other, under which load.
//! Not the measuring itself: `contest.rs` runs what is described here.
//!
//! A method for each group; called by the driver.

use crate::configs::{
    ACCOUNT, FULL_MODEL, MODEL, crowd_id, many_accounts, many_endpoints, many_models, node,
};
use crate::contest::{Entry, Measurements, Scenario, Unit, load};
use crate::hall::{Contender, Processes, contender, start_gateway};
use crate::kit::cluster::{self, Membership};
use crate::kit::gateway::{Gateway, key_of, send_request};
use crate::kit::process::loopback;
use crate::kit::request::Chat;
use crate::kit::{Fallible, figures};
use crate::load::Plan;
use crate::memory;
use crate::options::Options;
use crate::targets::{label, scenario, single};

/// Keys in use at a time among the ten thousand: as many as connections.
const KEYS_IN_USE: usize = 32;
/// Every n-th of the ten thousand accounts sends, so that they lie far apart in any table.
const KEYS_APART: usize = 300;
/// Load before the window, while pools fill.
const WARM_UP_MS: u64 = 100;
/// The same for streams, which begin spread over that time: as long as a stream lasts.
const STREAM_WARM_UP_MS: u64 = 400;
/// Windows of an open loop are longer: its tail needs many requests.
const OPEN_LOOP_WINDOWS: u64 = 4;
const OPEN_LOOP_CONNECTIONS: usize = 64;
/// Windows that calibrate the rate of the open loop.
const CALIBRATIONS: usize = 5;

impl Processes {
    /// 2 KB with 32 connections, with four and with one.
    pub fn small(&self, options: &Options, contest: &mut Measurements) -> Fallible<()> {
        contest.measure(&self.everybody(scenario::SMALL, Unit::Request, options, |_| {}))?;
        let four = [
            label::INFERGATE,
            label::WITH_PLUGINS,
            label::BARE,
            label::ENVOY,
            label::ENVOY_WASM,
            label::VLLM_ROUTER,
            label::VLLM_ROUTER_WASM,
        ];
        let four = self.some(&four, scenario::FOUR_CONNECTIONS, options, |plan| {
            plan.connections = 4;
        });
        contest.measure(&four)?;
        // No table of the README has it.
        if options.markdown {
            return Ok(());
        }
        let one = self.everybody(scenario::ONE_CONNECTION, Unit::Request, options, |plan| {
            plan.connections = 1;
        });
        contest.measure(&one)
    }

    pub fn streams(&self, options: &Options, contest: &mut Measurements) -> Fallible<()> {
        let paced = self.everybody(scenario::PACED, Unit::Event, options, |plan| {
            plan.connections = 64;
            plan.stream_pause_us = Some(5_000);
            plan.warm_up_ms = STREAM_WARM_UP_MS;
        });
        contest.measure(&paced)?;
        let burst = self.everybody(scenario::BURST, Unit::Event, options, |plan| {
            plan.connections = 16;
            plan.stream_pause_us = Some(0);
        });
        contest.measure(&burst)
    }

    pub fn bodies(&self, options: &Options, contest: &mut Measurements) -> Fallible<()> {
        for (name, body_bytes, connections) in [
            (scenario::BODY_32K, 32 * 1024, 16),
            (scenario::BODY_100K, 100 * 1024, 16),
            (scenario::BODY_256K, 256 * 1024, 16),
            (scenario::BODY_1M, 1024 * 1024, 8),
        ] {
            let bodies = self.everybody(name, Unit::Request, options, |plan| {
                plan.body_bytes = body_bytes;
                plan.connections = connections;
            });
            contest.measure(&bodies)?;
        }
        Ok(())
    }

    /// A stream holds the only permit while all others are refused.
    pub fn refusals(&self, options: &Options, contest: &mut Measurements) -> Fallible<()> {
        let Some(gateway) = &self.gateway else {
            return Ok(());
        };
        let proxied = plan_for(self, &contender(label::INFERGATE, gateway), options);
        let full = Plan {
            model: FULL_MODEL.into(),
            expected_status: 429,
            ..proxied.clone()
        };
        let unknown = Plan {
            keys: vec!["sk-bench-nobody".into()],
            expected_status: 401,
            ..proxied.clone()
        };
        let _held = memory::open_stream(gateway.clients, FULL_MODEL, &key_of(ACCOUNT))?;
        let entries = [
            (label::PROXIED, proxied),
            (label::FULL_429, full),
            (label::UNKNOWN_401, unknown),
        ];
        contest.measure(&Scenario {
            name: scenario::REFUSALS,
            unit: Unit::Request,
            entries: entries.map(|(label, plan)| Entry { label, plan }).into(),
        })
    }

    /// Open loops. Proxies keep their CPU to themselves: load and upstream move to the other one, so that a
    /// latency is what the proxy makes of it.
    pub fn latency(&self, options: &Options, contest: &mut Measurements) -> Fallible<()> {
        let Some(bare) = self.find(label::BARE) else {
            return Ok(());
        };
        self.move_upstream(&self.cores.other)?;
        let calibration = Plan {
            core: self.cores.other.clone(),
            ..plan_for(self, bare, options)
        };
        let rates: Vec<f64> = (0..CALIBRATIONS)
            .map(|_| Ok(load(&calibration)?.answers_per_s()))
            .collect::<Fallible<_>>()?;
        let rate = figures::Spread::of(&rates).map_or(0.0, |spread| spread.median) / 2.0;
        let rate = (rate / 100.0).floor().max(1.0) * 100.0;
        contest.record(single::RATE, label::BARE, rate)?;
        let half = [
            label::INFERGATE,
            label::WITH_PLUGINS,
            label::BARE,
            label::HYPER,
            label::HAPROXY,
            label::NGINX,
        ];
        contest.measure(&self.open_loop(&half, scenario::OPEN, options, rate))?;
        let slow = [
            label::DIRECT,
            label::INFERGATE,
            label::BARE,
            label::HYPER,
            label::HAPROXY,
            label::NGINX,
        ];
        contest.measure(&self.open_loop(&slow, scenario::OPEN_SLOW, options, 1_000.0))?;
        self.move_upstream(&self.cores.shared)
    }

    fn open_loop(
        &self,
        labels: &[&str],
        name: &'static str,
        options: &Options,
        rate: f64,
    ) -> Scenario {
        self.some(labels, name, options, |plan| {
            plan.core = self.cores.other.clone();
            plan.open_rate = Some(rate);
            plan.connections = OPEN_LOOP_CONNECTIONS;
            plan.window_ms = options.window_ms * OPEN_LOOP_WINDOWS;
        })
    }

    /// Two nodes: the first has no server of its own and forwards all that it gets to the second.
    pub fn forward(&self, options: &Options, contest: &mut Measurements) -> Fallible<()> {
        let membership = Membership::new(&["a", "b"])?;
        let core = Some(self.cores.shared.as_str());
        let own = vec![loopback(self.upstream_port)];
        let nodes = [
            Gateway::start("node-a", node(membership.lines(0), Vec::new()), core)?,
            Gateway::start("node-b", node(membership.lines(1), own), core)?,
        ];
        cluster::meet(&nodes)?;
        let [first, second] = &nodes;
        let request = Chat {
            model: MODEL,
            key: Some(&key_of(ACCOUNT)),
            body_bytes: 2_048,
            fields: "",
            headers: "connection: close\r\n",
        }
        .bytes();
        if send_request(first.clients, &request)?.0 != 200 {
            eprintln!("forward: not measured, the first node does not forward");
            return Ok(());
        }
        let local = plan_for(self, &contender(label::LOCAL, second), options);
        let forwarded = Plan {
            target: first.clients,
            pids: vec![first.process.pid(), second.process.pid()],
            ..local.clone()
        };
        // Connections between the nodes take a handshake each, and stay.
        load(&forwarded)?;
        let entries = [(label::LOCAL, local), (label::FORWARDED, forwarded)];
        contest.measure(&Scenario {
            name: scenario::FORWARD,
            unit: Unit::Request,
            entries: entries.map(|(label, plan)| Entry { label, plan }).into(),
        })
    }

    /// Memory, on fresh gateways: earlier load leaves free heap behind.
    pub fn memory(&self, options: &Options, contest: &mut Measurements) -> Fallible<()> {
        if self.gateway.is_none() {
            return Ok(());
        }
        let (port, core) = (self.upstream_port, &self.cores.shared);
        let key = key_of(ACCOUNT);
        let gateway = start_gateway("infergate-connections", port, 1, core)?;
        let kib = memory::per_connection_kib(gateway.clients, gateway.process.pid(), MODEL, &key)?;
        contest.record(single::CONNECTION_KIB, label::INFERGATE, kib)?;

        let gateway = start_gateway("infergate-memory", port, 1, core)?;
        let pid = gateway.process.pid();
        let idle_mib = memory::settled_mib(pid)?;
        contest.record(single::IDLE_MIB, label::INFERGATE, idle_mib)?;
        let kib = memory::per_stream_kib(gateway.clients, pid, MODEL, &key)?;
        contest.record(single::STREAM_KIB, label::INFERGATE, kib)?;

        let plan = plan_for(self, &contender(label::INFERGATE, &gateway), options);
        let settled_mib = memory::after_requests(&plan, pid, memory::SETTLED_AFTER)?;
        let million_mib = match settled_mib {
            Some(_) => memory::after_requests(&plan, pid, memory::MILLION)?,
            None => None,
        };
        if let (Some(settled), Some(million)) = (settled_mib, million_mib) {
            contest.record(single::GROWTH_MIB, label::INFERGATE, million - settled)?;
        }
        Ok(())
    }

    /// A gateway for each size, all measured in the same rounds as the ordinary one.
    pub fn sizes(&self, options: &Options, contest: &mut Measurements) -> Fallible<()> {
        let Some(gateway) = &self.gateway else {
            return Ok(());
        };
        let one = Some(self.cores.shared.as_str());
        let port = self.upstream_port;
        let started = [
            (
                label::TWO_THREADS,
                start_gateway("infergate-threads", port, 2, &self.cores.two_threads),
            ),
            (
                label::MANY_ACCOUNTS,
                Gateway::start("infergate-accounts", many_accounts(port), one),
            ),
            (
                label::MANY_MODELS,
                Gateway::start("infergate-models", many_models(port), one),
            ),
            (
                label::MANY_ENDPOINTS,
                Gateway::start("infergate-endpoints", many_endpoints(port), one),
            ),
        ];
        let mut entries = vec![Entry {
            label: label::INFERGATE,
            plan: plan_for(self, &contender(label::INFERGATE, gateway), options),
        }];
        let mut running = Vec::new();
        for (label, started) in started {
            let gateway = match started {
                Ok(gateway) => gateway,
                Err(error) => {
                    eprintln!("{label}: not measured, {error}");
                    continue;
                }
            };
            let mut plan = plan_for(self, &contender(label, &gateway), options);
            if label == label::MANY_ACCOUNTS {
                plan.keys = (0..KEYS_IN_USE)
                    .map(|number| key_of(&crowd_id(number * KEYS_APART)))
                    .collect();
            }
            entries.push(Entry { label, plan });
            running.push(gateway);
        }
        contest.measure(&Scenario {
            name: scenario::SIZES,
            unit: Unit::Request,
            entries,
        })
    }

    /// The same load for every contender that bears it, changed by `shape`.
    fn everybody(
        &self,
        name: &'static str,
        unit: Unit,
        options: &Options,
        shape: impl Fn(&mut Plan),
    ) -> Scenario {
        let entries = self.contenders.iter().filter_map(|contender| {
            let mut plan = plan_for(self, contender, options);
            shape(&mut plan);
            (plan.connections <= contender.connections_max).then_some(Entry {
                label: contender.label,
                plan,
            })
        });
        Scenario {
            name,
            unit,
            entries: entries.collect(),
        }
    }

    /// The same for the contenders with these labels.
    fn some(
        &self,
        labels: &[&str],
        name: &'static str,
        options: &Options,
        shape: impl Fn(&mut Plan),
    ) -> Scenario {
        let mut scenario = self.everybody(name, Unit::Request, options, shape);
        scenario
            .entries
            .retain(|entry| labels.contains(&entry.label));
        scenario
    }
}

/// Small JSON, 32 connections, closed loop, everything on one CPU.
pub fn plan_for(hall: &Processes, contender: &Contender, options: &Options) -> Plan {
    Plan {
        target: contender.address,
        model: MODEL.into(),
        keys: vec![key_of(ACCOUNT)],
        connections: 32,
        open_rate: None,
        body_bytes: 2_048,
        stream_pause_us: None,
        warm_up_ms: WARM_UP_MS,
        window_ms: options.window_ms,
        expected_status: 200,
        core: hall.cores.shared.clone(),
        pids: contender.pids.clone(),
    }
}
