//! The scenarios: which proxies are measured beside each other, under which load.
//! Not the measuring itself: `contest.rs` runs what is described here.
//!
//! A method for each target; called by the driver.

use crate::configs::{
    ACCOUNT, FULL_MODEL, MODEL, crowd_id, many_accounts, many_endpoints, many_models,
};
use crate::contest::{Entry, Measurements, Scenario, Unit};
use crate::hall::{Contender, Processes, contender, start_gateway};
use crate::kit::Fallible;
use crate::kit::gateway::{Gateway, key_of};
use crate::load::Plan;
use crate::memory::{self, Memory};
use crate::options::Options;
use crate::targets::{label, scenario};

/// Keys in use at a time among the ten thousand: one per connection.
const KEYS_IN_USE: usize = 32;
/// Every n-th of the ten thousand accounts sends, so that they lie far apart in any table.
const KEYS_APART: usize = 300;
/// Load before the window, while pools fill.
const WARM_UP_MS: u64 = 300;

impl Processes {
    /// T1, and the same with one connection when there is time.
    pub fn small(&self, options: &Options, contest: &mut Measurements) -> Fallible<()> {
        contest.measure(
            &self.everybody(scenario::SMALL, Unit::Request, options, |plan| {
                plan.connections = 32;
            }),
        )?;
        if options.quick {
            return Ok(());
        }
        contest.measure(
            &self.everybody(scenario::ONE_CONNECTION, Unit::Request, options, |plan| {
                plan.connections = 1;
            }),
        )
    }

    /// T4.
    pub fn streams(&self, options: &Options, contest: &mut Measurements) -> Fallible<()> {
        contest.measure(
            &self.everybody(scenario::PACED, Unit::Event, options, |plan| {
                plan.connections = 64;
                plan.stream_pause_us = Some(5_000);
            }),
        )?;
        contest.measure(
            &self.everybody(scenario::BURST, Unit::Event, options, |plan| {
                plan.connections = 16;
                plan.stream_pause_us = Some(0);
                plan.window_ms = plan.window_ms * 3 / 5;
            }),
        )
    }

    /// T5.
    pub fn open_loop(&self, options: &Options, contest: &mut Measurements) -> Fallible<()> {
        contest.measure(
            &self.everybody(scenario::OPEN, Unit::Request, options, |plan| {
                plan.open_rate = Some(1_000.0);
            }),
        )
    }

    /// T6.
    pub fn bodies(&self, options: &Options, contest: &mut Measurements) -> Fallible<()> {
        for (name, body_bytes, connections) in [
            (scenario::BODY_32K, 32 * 1024, 16),
            (scenario::BODY_100K, 100 * 1024, 16),
            (scenario::BODY_256K, 256 * 1024, 16),
            (scenario::BODY_1M, 1024 * 1024, 8),
        ] {
            contest.measure(&self.everybody(name, Unit::Request, options, |plan| {
                plan.body_bytes = body_bytes;
                plan.connections = connections;
            }))?;
        }
        Ok(())
    }

    /// T7: one stream holds the only permit while everybody else is refused.
    pub fn refusals(&self, options: &Options, contest: &mut Measurements) -> Fallible<()> {
        let Some(gateway) = &self.gateway else {
            return Ok(());
        };
        let proxied = plan_for(&contender(label::INFERGATE, gateway), options);
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
        contest.measure(&Scenario {
            name: scenario::REFUSALS,
            unit: Unit::Request,
            entries: vec![
                Entry {
                    label: label::PROXIED,
                    plan: proxied,
                },
                Entry {
                    label: label::FULL_429,
                    plan: full,
                },
                Entry {
                    label: label::UNKNOWN_401,
                    plan: unknown,
                },
            ],
        })
    }

    /// T9, on a fresh gateway.
    pub fn memory(&self, options: &Options, contest: &mut Measurements) -> Fallible<Memory> {
        if self.gateway.is_none() {
            return Ok(Memory::default());
        }
        let gateway = start_gateway("infergate-memory", self.upstream_port, 1, &self.cores.proxy)?;
        let pid = gateway.process.pid();
        println!("\n## memory");
        let idle_mib = memory::settled_mib(pid)?;
        println!("idle: {idle_mib:.1} MB");
        let per_stream = memory::per_stream_kib(gateway.clients, pid, MODEL, &key_of(ACCOUNT))?;
        println!("per open stream: {per_stream:.1} KiB");

        let plan = plan_for(&contender(label::INFERGATE, &gateway), options);
        let settled_mib = memory::after_requests(contest, &plan, pid, memory::SETTLED_AFTER)?;
        let million_mib = match settled_mib {
            Some(_) => memory::after_requests(contest, &plan, pid, memory::MILLION)?,
            None => None,
        };
        let growth_mib = match (settled_mib, million_mib) {
            (Some(settled), Some(million)) => memory::single(million - settled),
            _ => None,
        };
        Ok(Memory {
            idle_mib: memory::single(idle_mib),
            per_stream_kib: memory::single(per_stream),
            growth_mib,
        })
    }

    /// T12: one gateway for each size, all measured in the same rounds as the ordinary one.
    pub fn sizes(&self, options: &Options, contest: &mut Measurements) -> Fallible<()> {
        let Some(gateway) = &self.gateway else {
            return Ok(());
        };
        let one = &self.cores.proxy;
        let port = self.upstream_port;
        let started = [
            (
                label::TWO_THREADS,
                start_gateway("infergate-threads", port, 2, &self.cores.two_threads),
            ),
            (
                label::MANY_ACCOUNTS,
                Gateway::start("infergate-accounts", many_accounts(port), Some(one)),
            ),
            (
                label::MANY_MODELS,
                Gateway::start("infergate-models", many_models(port), Some(one)),
            ),
            (
                label::MANY_ENDPOINTS,
                Gateway::start("infergate-endpoints", many_endpoints(port), Some(one)),
            ),
        ];
        let base = plan_for(&contender(label::INFERGATE, gateway), options);
        let mut entries = vec![Entry {
            label: label::INFERGATE,
            plan: base,
        }];
        let mut running = Vec::new();
        for (label, started) in started {
            let gateway = match started {
                Ok(gateway) => gateway,
                Err(error) => {
                    println!("{label}: not measured, {error}");
                    continue;
                }
            };
            let mut plan = plan_for(&contender(label, &gateway), options);
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

    /// The same load for every contender, changed by `shape`.
    fn everybody(
        &self,
        name: &'static str,
        unit: Unit,
        options: &Options,
        shape: impl Fn(&mut Plan),
    ) -> Scenario {
        let entries = self
            .contenders
            .iter()
            .map(|contender| {
                let mut plan = plan_for(contender, options);
                shape(&mut plan);
                Entry {
                    label: contender.label,
                    plan,
                }
            })
            .collect();
        Scenario {
            name,
            unit,
            entries,
        }
    }
}

/// Small JSON, 32 connections, closed loop.
fn plan_for(contender: &Contender, options: &Options) -> Plan {
    Plan {
        target: contender.address,
        model: MODEL.into(),
        keys: vec![key_of(ACCOUNT)],
        connections: 32,
        open_rate: None,
        body_bytes: 2_048,
        stream_pause_us: None,
        warm_up_ms: WARM_UP_MS,
        window_ms: options.window_ms(),
        expected_status: 200,
        pids: contender.pids.clone(),
    }
}
