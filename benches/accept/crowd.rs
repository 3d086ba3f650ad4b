//! Crowds of clients: random arrivals, backlogged accounts, paced accounts; each gives back its samples.
//! Not an analysis: the items decide what the samples mean.
//!
//! A crowd returns only when its last request is answered, so that the books of item 9 can be closed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::client::{ChatRequest, Client, Outcome};

/// An answered request, with times since the start of its group of clients.
#[derive(Clone)]
pub struct Sample {
    /// Index of the account in the list.
    pub member: usize,
    pub status: u16,
    pub sent: Duration,
    pub done: Duration,
    pub took: Duration,
}

#[derive(Clone)]
struct Samples {
    began: Instant,
    list: Arc<Mutex<Vec<Sample>>>,
}

impl Samples {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            list: Arc::default(),
        }
    }

    fn push(&self, member: usize, outcome: Outcome) {
        self.list.lock().push(Sample {
            member,
            status: outcome.status,
            sent: outcome.sent_at - self.began,
            done: outcome.done_at - self.began,
            took: outcome.took(),
        });
    }

    fn take(&self) -> Vec<Sample> {
        std::mem::take(&mut self.list.lock())
    }
}

/// Independent clients: exponential gaps of mean `1 / per_second`, nobody waits for anybody.
/// The same `seed` gives the same arrivals.
pub async fn arrivals(
    client: &Client,
    ask: &ChatRequest,
    per_second: f64,
    length: Duration,
    seed: u64,
) -> Vec<Sample> {
    let samples = Samples::new();
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut requests = JoinSet::new();
    let mut next = Duration::ZERO;
    while next < length {
        tokio::time::sleep_until((samples.began + next).into()).await;
        let (client, ask, samples) = (client.clone(), ask.clone(), samples.clone());
        requests.spawn(async move { samples.push(0, client.send(&ask).await) });
        // Finished tasks are collected on the way, so that a long step does not hold them all.
        while requests.try_join_next().is_some() {}
        next += Duration::from_secs_f64(-(1.0 - rng.f64()).ln() / per_second);
    }
    while requests.join_next().await.is_some() {}
    samples.take()
}

/// Accounts that always have `open` requests waiting or running.
pub struct Backlog {
    pub ask: ChatRequest,
    pub open: usize,
}

/// Accounts that send on a schedule with at most one request open.
pub struct Paced {
    pub ask: ChatRequest,
    pub interval: Duration,
    pub first: Duration,
}

/// Runs both kinds together; members are numbered through, the backlogged first.
pub async fn mixed(
    client: &Client,
    backlogged: &[Backlog],
    paced: &[Paced],
    length: Duration,
) -> Vec<Sample> {
    let samples = Samples::new();
    let ends = samples.began + length;
    let mut loops = JoinSet::new();
    for (member, account) in backlogged.iter().enumerate() {
        for _ in 0..account.open {
            let (client, ask, samples) = (client.clone(), account.ask.clone(), samples.clone());
            loops.spawn(async move {
                while Instant::now() < ends {
                    let outcome = client.send(&ask).await;
                    samples.push(member, outcome);
                    if outcome.status != 200 {
                        // A refused or failed client that came back at once would only measure itself.
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
            });
        }
    }
    for (number, account) in paced.iter().enumerate() {
        let member = backlogged.len() + number;
        let (client, ask, samples) = (client.clone(), account.ask.clone(), samples.clone());
        let (interval, mut next) = (account.interval, samples.began + account.first);
        loops.spawn(async move {
            while next < ends {
                tokio::time::sleep_until(next.into()).await;
                samples.push(member, client.send(&ask).await);
                next = (next + interval).max(Instant::now());
            }
        });
    }
    while loops.join_next().await.is_some() {}
    samples.take()
}

/// Answers with status 200 that were whole between two moments, per second.
pub fn goodput(samples: &[Sample], from: Duration, to: Duration) -> f64 {
    let good = samples
        .iter()
        .filter(|sample| sample.status == 200 && sample.done >= from && sample.done < to)
        .count();
    good as f64 / (to - from).as_secs_f64()
}

/// Latency below which `share` of the samples lie, in milliseconds; 0 when there are none.
pub fn quantile_ms<'s>(samples: impl Iterator<Item = &'s Sample>, share: f64) -> f64 {
    let mut took: Vec<Duration> = samples.map(|sample| sample.took).collect();
    took.sort_unstable();
    let place = ((took.len() as f64 * share).ceil() as usize).saturating_sub(1);
    took.get(place)
        .map_or(0.0, |took| took.as_secs_f64() * 1_000.0)
}
