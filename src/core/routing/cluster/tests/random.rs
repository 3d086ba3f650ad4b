//! Random sequences of reports, losses and queries: the invariants hold.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum ClusterStep {
    Heard {
        node: u8,
        site: u8,
        generation: u64,
        version: u64,
        draining: bool,
        loads: Vec<(u8, u32, u32, u32)>,
        order: bool,
    },
    Lost(u8),
    Forget(u8),
    Timed(u8, u32),
    Ask {
        model: u8,
        visited: Vec<u8>,
        site: Option<u8>,
        ranked: Vec<(u8, u8)>,
        line: bool,
        random: u64,
    },
    End(u8, u8),
    Pass(u64),
    Sweep,
}

fn any_step() -> impl Strategy<Value = ClusterStep> {
    let loads = prop::collection::vec((0..6_u8, 0..5_u32, 0..4_u32, 0..4_u32), 0..6);
    prop_oneof![
        4 => (0..12_u8, 0..4_u8, 1..4_u64, 0..40_u64, 0..8_u8, loads, any::<bool>()).prop_map(
            |(node, site, generation, version, draining, loads, order)| ClusterStep::Heard {
                node, site, generation, version, draining: draining == 0, loads, order,
            }
        ),
        1 => (0..12_u8).prop_map(ClusterStep::Lost),
        1 => (0..12_u8).prop_map(ClusterStep::Forget),
        1 => (0..12_u8, 0..400_000_u32).prop_map(|(node, rtt_us)| ClusterStep::Timed(node, rtt_us)),
        6 => (
            0..6_u8,
            prop::collection::vec(0..12_u8, 0..4),
            prop::option::weighted(0.2, 0..4_u8),
            prop::collection::vec((0..4_u8, 0..3_u8), 0..4),
            any::<bool>(),
            any::<u64>(),
        ).prop_map(|(model, visited, site, ranked, line, random)| ClusterStep::Ask {
            model, visited, site, ranked, line, random,
        }),
        4 => (any::<u8>(), 0..4_u8).prop_map(|(which, how)| ClusterStep::End(which, how)),
        2 => (0..3_000_u64).prop_map(ClusterStep::Pass),
        1 => Just(ClusterStep::Sweep),
    ]
}

fn node_name(number: u8) -> Arc<str> {
    // Number 0 is this node itself.
    match number {
        0 => "a".into(),
        _ => format!("n{number}").into(),
    }
}

fn site_name(number: u8) -> Arc<str> {
    ["fra", "ams", "par", "sin"][usize::from(number)].into()
}

fn model_name(number: u8) -> String {
    format!("model-{number}")
}

/// Reference model of a node: a plain reading of its reports.
struct ReportedNode {
    generation: u64,
    version: u64,
    draining: bool,
    site: Arc<str>,
    at: Millis,
    lost: bool,
    loads: HashMap<String, ModelLoad>,
}

#[derive(Default)]
struct ClusterScenario {
    now: u64,
    reported: HashMap<Arc<str>, ReportedNode>,
    tickets: Vec<ForwardTicket>,
}

impl ClusterScenario {
    fn apply_report(&mut self, fleet: &mut ClusterView, step: &ClusterStep) {
        let ClusterStep::Heard {
            node,
            site,
            generation,
            version,
            draining,
            loads,
            order,
        } = step
        else {
            return;
        };
        let mut models: Vec<(ModelId, ModelLoad)> = Vec::new();
        for &(model, free, queued, room) in loads {
            let model = ModelId::from(&*model_name(model));
            if models.iter().all(|(known, _)| *known != model) {
                let load = ModelLoad {
                    permits: 5,
                    free,
                    queued,
                    queue_room: room,
                    wait_ms: queued * 100,
                    unmet_demand: queued,
                    ttft_us: 0,
                };
                models.push((model, load));
            }
        }
        if *order {
            models.reverse();
        }
        let report = NodeReport {
            node: NodeId {
                name: node_name(*node),
                generation: *generation,
            },
            site: site_name(*site),
            address: "there:1".into(),
            draining: *draining,
            models,
            version: *version,
            made: Millis(self.now),
        };
        let known = self.reported.get(&report.node.name);
        let newer = known.is_none_or(|reported| {
            let is_back = reported.lost && *generation < reported.generation;
            is_back || (reported.generation, reported.version) < (*generation, *version)
        });
        let change = fleet.apply_report(&report, Millis(self.now));
        assert_eq!(
            change.is_some(),
            newer && *node != 0,
            "older news is no news"
        );
        if change.is_some() {
            let reported = ReportedNode {
                generation: *generation,
                version: *version,
                draining: *draining,
                site: site_name(*site),
                at: Millis(self.now),
                lost: false,
                loads: report
                    .models
                    .iter()
                    .map(|(id, load)| (id.to_string(), *load))
                    .collect(),
            };
            self.reported.insert(report.node.name.clone(), reported);
        }
    }

    fn ask(&mut self, fleet: &mut ClusterView, step: &ClusterStep) {
        let ClusterStep::Ask {
            model,
            visited,
            site,
            ranked,
            line,
            random,
        } = step
        else {
            return;
        };
        let now = Millis(self.now);
        let model = model_name(*model);
        let visited: Vec<Arc<str>> = visited.iter().map(|&node| node_name(node)).collect();
        let forced = site.map(site_name);
        let ranked = ranked
            .iter()
            .map(|&(site, step)| (site_name(site), step))
            .collect();
        let order = SiteOrder::new(ranked);
        let seek = NodeQuery {
            model: &model,
            visited: &visited,
            forced_site: forced.as_deref(),
            site_order: (random % 2 == 0).then_some(&order),
            need: match line {
                true => Need::Queue {
                    wait_max: Millis(250),
                    crowded: random % 3 == 0,
                },
                false => Need::Permit,
            },
        };
        let seen = fleet.explain(&seek, usize::MAX, now).0;
        let Some(chosen) = fleet.next_target(&seek, *random, now) else {
            assert!(
                seen.iter().all(|node| node.skip_reason.is_some()),
                "somebody was fit"
            );
            return;
        };
        let reported = &self.reported[&chosen.node.name];
        assert!(!visited.contains(&chosen.node.name), "asked twice");
        assert!(!reported.draining && !reported.lost);
        assert_eq!(reported.generation, chosen.node.generation);
        assert!(
            now.since(reported.at) < Millis(5_000),
            "too old to be believed"
        );
        assert!(forced.as_ref().is_none_or(|site| *site == reported.site));
        assert!(
            reported.loads.contains_key(&model),
            "it does not serve the model"
        );
        let first = seen
            .iter()
            .find(|node| node.skip_reason.is_none())
            .expect("one is fit");
        if seek.site_order.is_some() && forced_steps(&order, &first.site, &chosen.site) {
            panic!("{} before {}", chosen.site, first.site);
        }
        if seek.site_order.is_none() && *first.site == *"fra" {
            assert_eq!(&*chosen.site, "fra", "our site first");
        }
        let ticket = fleet.record_forward(&chosen, now);
        self.tickets.push(ticket);
    }
}

/// Returns whether `first` is in an earlier step than `chosen`.
fn forced_steps(order: &SiteOrder, first: &str, chosen: &str) -> bool {
    order.step(first) < order.step(chosen)
}

fn live(steps: Vec<ClusterStep>) {
    let mut fleet = alone();
    let mut life = ClusterScenario::default();
    for step in steps {
        match &step {
            ClusterStep::Heard { .. } => life.apply_report(&mut fleet, &step),
            ClusterStep::Ask { .. } => life.ask(&mut fleet, &step),
            ClusterStep::Lost(node) => {
                fleet.mark_lost(&node_name(*node));
                if let Some(reported) = life.reported.get_mut(&node_name(*node)) {
                    reported.lost = true;
                }
            }
            ClusterStep::Forget(node) => {
                fleet.forget(&node_name(*node));
                life.reported.remove(&node_name(*node));
            }
            ClusterStep::Timed(node, rtt_us) => fleet.record_rtt(&node_name(*node), *rtt_us),
            ClusterStep::End(which, how) if !life.tickets.is_empty() => {
                let at = usize::from(*which) % life.tickets.len();
                let ticket = life.tickets.swap_remove(at);
                let ended = [
                    ForwardOutcome::Answered { ttft_us: 700 },
                    ForwardOutcome::Refused {
                        free: 0,
                        wait_ms: 10,
                    },
                    ForwardOutcome::Failed,
                    ForwardOutcome::Cancelled,
                ][usize::from(*how)];
                fleet.finish_forward(ticket, ended, Millis(life.now));
            }
            ClusterStep::End(..) => {}
            ClusterStep::Pass(span) => life.now += span,
            ClusterStep::Sweep => {
                for swept in fleet.sweep(Millis(life.now)) {
                    life.reported.remove(&swept.name);
                }
            }
        }
        fleet.check();
    }
    // Whatever was sent has ended, and so nothing is in flight.
    for ticket in life.tickets {
        fleet.finish_forward(ticket, ForwardOutcome::Cancelled, Millis(life.now));
    }
    for model in 0..6 {
        let model = model_name(model);
        let seek = NodeQuery {
            model: &model,
            ..seek()
        };
        let seen = fleet.explain(&seek, usize::MAX, Millis(life.now)).0;
        assert!(seen.iter().all(|node| node.in_flight == 0), "{seen:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]
    #[test]
    fn the_promises_hold_whatever_happens(steps in prop::collection::vec(any_step(), 0..120)) {
        live(steps);
    }
}
