//! Real datagrams on loopback: nodes find each other, lose each other and find each other again.
//!
//! Waits are bounded, and only a failure reaches the bound.

use std::time::Duration;

use infergate_core::Millis;
use infergate_core::routing::cluster::MembershipChange;
use tokio::time::{MissedTickBehavior, interval};

use super::*;
use crate::peer::ClusterHandle;

const SECRET: &str = "a secret of some length";
const HERE: &str = "127.0.0.1:0";
const BEAT: Duration = Duration::from_millis(20);
/// A minute and more of beats: thirty times what the slowest of these tests takes.
const BEATS_MAX: usize = 5_000;

struct GossipNode {
    gossip: Gossip,
    others: Arc<ClusterHandle>,
    address: SocketAddr,
    version: u64,
    free: u32,
    models: Vec<&'static str>,
    draining: bool,
    spent: QuotaSnapshot,
    changes: Vec<MembershipChange>,
    lost: Vec<String>,
    usage: Vec<(String, AccountUsage)>,
    incompatible: Vec<IncompatibleNode>,
    namesake: bool,
}

impl GossipNode {
    async fn start(name: &str, generation: u64) -> GossipNode {
        GossipNode::with_secret(name, generation, SECRET).await
    }

    async fn with_secret(name: &str, generation: u64, secret: &str) -> GossipNode {
        let here = NodeId {
            name: name.into(),
            generation,
        };
        GossipNode::with_identity(here.into(), secret).await
    }

    async fn with_identity(identity: GossipIdentity, secret: &str) -> GossipNode {
        let clock = Clock::start();
        let bound = bind(HERE.parse().unwrap()).await.unwrap();
        let address = bound.address().unwrap();
        let text = format!(r#"{{"gossip":"{address}","secret":"{secret}"}}"#);
        let cluster: Cluster = serde_json::from_str(&text).unwrap();
        let others = ClusterHandle::new(identity.here.clone(), "fra".into(), clock);
        let gossip = Gossip::start(bound, &cluster, identity, clock);
        let gossip = gossip.await.unwrap();
        GossipNode {
            gossip,
            others,
            address,
            version: 0,
            free: 4,
            models: vec!["@cf/m"],
            draining: false,
            spent: QuotaSnapshot::default(),
            changes: Vec::new(),
            lost: Vec::new(),
            usage: Vec::new(),
            incompatible: Vec::new(),
            namesake: false,
        }
    }

    /// A beat, as `app` makes them.
    async fn beat(&mut self, seeds: &[SocketAddr]) {
        self.version += 1;
        let load = ModelLoad {
            permits: 4,
            free: self.free,
            ..ModelLoad::default()
        };
        let models = self.models.iter();
        let report = NodeReport {
            node: self.others.here().clone(),
            site: "fra".into(),
            address: "127.0.0.1:7070".into(),
            draining: self.draining,
            models: models.map(|model| ((*model).into(), load)).collect(),
            version: self.version,
            made: Millis(self.version),
        };
        self.gossip.publish(&report).await;
        self.gossip.publish_usage(&self.spent).await;
        self.gossip.contact_seeds(seeds.iter().copied());
        let news = self.gossip.poll().await;
        for name in news.lost {
            self.others.record_loss(&name);
            self.lost.push(name.to_string());
        }
        let reports = news.reports.iter();
        let changes = reports.filter_map(|report| self.others.record_report(report));
        let telling = changes.filter(|change| !matches!(change, MembershipChange::Changed(_)));
        self.changes.extend(telling);
        let spent = news.usage.into_iter();
        self.usage
            .extend(spent.map(|(node, account, sum)| (format!("{}/{account}", node.name), sum)));
        self.incompatible = news.incompatible;
        self.namesake |= news.namesake.is_some();
    }

    fn knows(&self, name: &str) -> bool {
        let nodes = self.others.nodes();
        nodes
            .iter()
            .any(|view| &*view.node.name == name && !view.gone)
    }

    fn generation_of(&self, name: &str) -> Option<u64> {
        let nodes = self.others.nodes();
        let found = nodes.iter().find(|view| &*view.node.name == name);
        found.map(|view| view.node.generation)
    }

    fn load_of(&self, name: &str) -> Option<ModelLoad> {
        let seek = infergate_core::routing::cluster::NodeQuery {
            model: "@cf/m",
            visited: &[],
            forced_site: None,
            site_order: None,
            need: infergate_core::routing::cluster::Need::Permit,
        };
        let (views, _) = self.others.explain(&seek, usize::MAX);
        let found = views.into_iter().find(|view| &*view.node.name == name);
        found.map(|view| view.load)
    }
}

/// Beats of all `nodes` until `is_so`.
async fn until(
    nodes: &mut [&mut GossipNode],
    seeds: &[SocketAddr],
    mut is_so: impl FnMut(&[&mut GossipNode]) -> bool,
) {
    let mut beats = interval(BEAT);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for _ in 0..BEATS_MAX {
        beats.tick().await;
        for node in nodes.iter_mut() {
            node.beat(seeds).await;
        }
        if is_so(nodes) {
            return;
        }
    }
    panic!("it is not so after {BEATS_MAX} beats");
}

#[tokio::test]
async fn three_nodes_with_one_seed_know_each_other_and_what_they_tell() {
    let (mut a, mut b, mut c) = (
        GossipNode::start("a", 1).await,
        GossipNode::start("b", 1).await,
        GossipNode::start("c", 1).await,
    );
    b.free = 3;
    c.spent = QuotaSnapshot {
        day: 20_000,
        used_micro: vec![("acme".into(), 5)],
        ..QuotaSnapshot::default()
    };
    let seed = [a.address];
    let nodes = &mut [&mut a, &mut b, &mut c];
    until(nodes, &seed, |nodes| {
        let [a, b, c] = nodes else { return false };
        let all = a.knows("b") && a.knows("c") && b.knows("a") && b.knows("c");
        all && c.knows("a") && c.load_of("b").is_some_and(|load| load.free == 3)
    })
    .await;
    // Without a seed from now on.
    nodes[1].free = 1;
    nodes[1].draining = true;
    nodes[2].models.clear();
    nodes[2].spent.used_micro[0].1 = 7;
    let sum = |micro| ("c/acme".to_owned(), AccountUsage { day: 20_000, micro });
    until(nodes, &[], |nodes| {
        let a = &nodes[0];
        let drains = a
            .changes
            .iter()
            .any(|c| matches!(c, MembershipChange::Draining(_)));
        let reported = a.load_of("b").is_some_and(|load| load.free == 1);
        drains && reported && a.load_of("c").is_none() && a.usage.contains(&sum(7))
    })
    .await;
    assert_eq!(nodes[0].usage.first(), Some(&sum(5)));
    assert_eq!(nodes[0].gossip.refused(), GossipRefused::default());
}

#[tokio::test]
async fn who_is_told_of_stays_told_of_whoever_comes_later() {
    let mut a = GossipNode::start("a", 1).await;
    let account = |number: usize| (AccountId::from(&*format!("n{number:05}")), 1);
    let spent = |day, accounts: Vec<(AccountId, u64)>| QuotaSnapshot {
        day,
        used_micro: accounts,
        ..QuotaSnapshot::default()
    };
    let first: Vec<_> = (1..=ACCOUNTS_MAX).map(account).collect();
    assert_eq!(a.gossip.publish_usage(&spent(1, first.clone())).await, 0);
    // It comes first by name.
    let mut more = vec![account(0)];
    more.extend(first.iter().map(|(id, _)| (id.clone(), 2)));
    assert_eq!(a.gossip.publish_usage(&spent(1, more)).await, 1);
    assert_eq!(a.gossip.published_usage.len(), ACCOUNTS_MAX);
    let reported =
        |a: &GossipNode, number| a.gossip.published_usage.get(&account(number).0).copied();
    let sum = AccountUsage { day: 1, micro: 2 };
    assert_eq!(
        (reported(&a, 0), reported(&a, ACCOUNTS_MAX)),
        (None, Some(sum))
    );
    let next_day = vec![account(0), account(1)];
    assert_eq!(a.gossip.publish_usage(&spent(2, next_day)).await, 0);
    assert_eq!(a.gossip.published_usage.len(), 2);
}

#[tokio::test]
async fn a_node_that_is_killed_is_lost_and_started_again_it_is_a_new_one() {
    let (mut a, mut b) = (
        GossipNode::start("a", 1).await,
        GossipNode::start("b", 1).await,
    );
    let seed = [a.address];
    until(&mut [&mut a, &mut b], &seed, |nodes| {
        nodes[0].knows("b") && nodes[1].knows("a")
    })
    .await;
    drop(b);
    until(&mut [&mut a], &[], |nodes| !nodes[0].knows("b")).await;
    // On a busy machine it may have been lost and back before.
    assert_eq!(a.lost.last().map(String::as_str), Some("b"));
    assert!(a.gossip.is_alone());
    let mut b = GossipNode::start("b", 2).await;
    until(&mut [&mut a, &mut b], &seed, |nodes| nodes[0].knows("b")).await;
    assert_eq!(a.generation_of("b"), Some(2));
    let restarted = |change: &MembershipChange| matches!(change, MembershipChange::Restarted(_));
    assert!(a.changes.iter().any(restarted), "{:?}", a.changes);
}

#[tokio::test]
async fn a_process_that_follows_another_one_is_the_same_node() {
    let (mut a, mut b) = (
        GossipNode::start("a", 1).await,
        GossipNode::start("b", 1).await,
    );
    let seed = [a.address];
    until(&mut [&mut a, &mut b], &seed, |nodes| {
        nodes[0].knows("b") && nodes[1].knows("a")
    })
    .await;
    let (version, former) = (b.version, b.gossip.identity.clone());
    drop(b);
    let mut b = GossipNode::with_identity(
        GossipIdentity {
            incarnation: 7,
            ..former
        },
        SECRET,
    )
    .await;
    (b.version, b.free) = (version + 1000, 3);
    until(&mut [&mut a, &mut b], &seed, |nodes| {
        nodes[0].load_of("b").is_some_and(|load| load.free == 3)
    })
    .await;
    assert_eq!(a.generation_of("b"), Some(1));
    let appeared = |change: &MembershipChange| matches!(change, MembershipChange::Appeared(_));
    assert!(a.changes.iter().all(appeared), "{:?}", a.changes);
    assert!(a.lost.is_empty() && !b.namesake);
}

#[tokio::test]
async fn a_node_that_starts_again_by_an_earlier_clock_is_heard() {
    let (mut a, mut b) = (
        GossipNode::start("a", 1).await,
        GossipNode::start("b", 9).await,
    );
    let seed = [a.address];
    until(&mut [&mut a, &mut b], &seed, |nodes| nodes[0].knows("b")).await;
    drop(b);
    let mut b = GossipNode::start("b", 3).await;
    until(&mut [&mut a, &mut b], &seed, |nodes| {
        nodes[0].generation_of("b") == Some(3) && nodes[0].knows("b")
    })
    .await;
    assert!(a.lost.contains(&"b".to_owned()), "{:?}", a.lost);
}

#[tokio::test]
async fn who_has_another_secret_is_not_heard_and_counted() {
    let (mut a, mut b) = (
        GossipNode::start("a", 1).await,
        GossipNode::start("b", 1).await,
    );
    let mut stranger = GossipNode::with_secret("stranger", 1, "a secret of another").await;
    let seeds = [a.address, b.address, stranger.address];
    until(&mut [&mut a, &mut b, &mut stranger], &seeds, |nodes| {
        nodes[0].knows("b") && nodes.iter().all(|node| node.gossip.refused().unsigned > 0)
    })
    .await;
    assert!(!a.knows("stranger") && stranger.others.is_alone());
}

#[tokio::test]
async fn a_node_of_another_protocol_version_is_recognised_and_is_no_member() {
    let (mut a, mut b) = (
        GossipNode::start("a", 1).await,
        GossipNode::start("b", 1).await,
    );
    let older = GossipNode::start("older", 7).await;
    let chitchat = older.gossip.handle.chitchat();
    let mut chitchat = chitchat.lock().await;
    let state = chitchat.self_node_state();
    state.set("model/@cf/m", "1 4 4 0 8 0 0 0");
    state.set("spent/acme", "1 1 5");
    state.set("usage/acme", "1 1 5");
    state.set(NODE_KEY, "1 1 1 0 127.0.0.1:7070 fra");
    drop(chitchat);
    let seeds = [a.address, b.address, older.address];
    until(&mut [&mut a, &mut b], &seeds, |nodes| {
        nodes
            .iter()
            .all(|node| !node.incompatible.is_empty() && node.others.nodes().len() == 1)
    })
    .await;
    for node in [&a, &b] {
        let IncompatibleNode { node: id, protocol } = &node.incompatible[0];
        assert_eq!((&*id.name, id.generation, *protocol), ("older", 7, 1));
        assert!(!node.knows("older") && node.usage.is_empty());
    }
    drop(older);
    until(&mut [&mut a, &mut b], &seeds, |nodes| {
        nodes.iter().all(|node| node.incompatible.is_empty())
    })
    .await;
    assert!(a.knows("b"));
}

#[tokio::test]
async fn a_second_process_of_the_same_name_is_noticed() {
    let (mut a, mut b) = (
        GossipNode::start("a", 1).await,
        GossipNode::start("a", 2).await,
    );
    let seeds = [a.address, b.address];
    until(&mut [&mut a, &mut b], &seeds, |nodes| nodes[0].namesake).await;
    assert!(a.others.is_alone() && b.others.is_alone());
}

#[tokio::test]
async fn a_taken_address_is_a_sentence() {
    let taken = bind(HERE.parse().unwrap()).await.unwrap();
    let address = taken.address().unwrap();
    let refused = bind(address).await.err().unwrap();
    assert!(refused.contains(&address.to_string()) && refused.contains("cluster.gossip"));
}
