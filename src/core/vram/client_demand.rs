//! Demand of the last hour for managed models, by the `x_client_id` of its requests.
//!
//! Not the demand that loads models: nothing is decided by these counts. At most [`CLIENTS_MAX`] ids are kept, each
//! with [`MODELS_PER_CLIENT_MAX`] models; the one that was seen least recently makes room. The hour moves in steps of
//! five minutes. A new id beyond the bound costs O(ids).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::{Millis, ModelId};

/// Ids that are kept: callers choose them freely.
const CLIENTS_MAX: usize = 1024;
/// Models of one id that are kept.
const MODELS_PER_CLIENT_MAX: usize = 64;
/// Step in which the hour moves.
const PART: Millis = Millis::from_secs(300);
/// Parts of the hour.
const PARTS: usize = 12;

/// Counts of one client and model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCounts {
    /// Requests.
    pub requests: u32,
    /// Requests that came while no process of the model was ready.
    pub cold_requests: u32,
    /// Loads that it was the first to ask for.
    pub loads: u32,
}

/// Demand of a client for a model in the last hour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientUse {
    /// `x_client_id`.
    pub client_id: Arc<str>,
    /// The model.
    pub model: ModelId,
    /// Counts of the hour.
    pub counts: ClientCounts,
    /// Moment of its latest request.
    pub last_seen: Millis,
}

/// Demand of all clients.
#[derive(Clone, Debug, Default)]
pub struct ClientDemand {
    clients: BTreeMap<Arc<str>, ClientRecord>,
}

#[derive(Clone, Debug, Default)]
struct ClientRecord {
    models: Vec<HourOfModel>,
    last_seen: Millis,
}

/// Hour of one model, in parts; each stands at its number modulo [`PARTS`].
#[derive(Clone, Debug)]
struct HourOfModel {
    model: ModelId,
    parts: [ClientCounts; PARTS],
    /// Number of the newest part.
    newest: u64,
    last_seen: Millis,
}

impl ClientDemand {
    /// Counts a request for a model; `is_cold` where no process of it was ready.
    pub fn record_request(
        &mut self,
        client: &Arc<str>,
        model: &ModelId,
        is_cold: bool,
        now: Millis,
    ) {
        if !self.clients.contains_key(client) {
            self.make_room();
        }
        let record = self.clients.entry(Arc::clone(client)).or_default();
        record.last_seen = now;
        let hour = record.hour_of(model, now);
        hour.last_seen = now;
        let counts = hour.part(now);
        counts.requests = counts.requests.saturating_add(1);
        counts.cold_requests = counts.cold_requests.saturating_add(u32::from(is_cold));
    }

    /// Counts a load that a client was the first to ask for. A client that was forgotten meanwhile is not counted.
    pub fn record_load(&mut self, client: &str, model: &ModelId, now: Millis) {
        let record = self.clients.get_mut(client);
        let mut models = record.into_iter().flat_map(|record| &mut record.models);
        if let Some(hour) = models.find(|hour| hour.model == *model) {
            let counts = hour.part(now);
            counts.loads = counts.loads.saturating_add(1);
        }
    }

    /// Returns the demand of the last hour, by client and model.
    pub fn last_hour(&self, now: Millis) -> Vec<ClientUse> {
        let mut uses = Vec::new();
        for (client_id, record) in &self.clients {
            for hour in &record.models {
                let counts = hour.counts(now);
                if counts != ClientCounts::default() {
                    uses.push(ClientUse {
                        client_id: Arc::clone(client_id),
                        model: hour.model.clone(),
                        counts,
                        last_seen: hour.last_seen,
                    });
                }
            }
        }
        uses.sort_unstable_by(|one, other| {
            (&one.client_id, &one.model).cmp(&(&other.client_id, &other.model))
        });
        uses
    }

    fn make_room(&mut self) {
        if self.clients.len() < CLIENTS_MAX {
            return;
        }
        let oldest = self.clients.iter().min_by_key(|(_, it)| it.last_seen);
        if let Some(id) = oldest.map(|(id, _)| Arc::clone(id)) {
            self.clients.remove(&id);
        }
    }
}

impl ClientRecord {
    fn hour_of(&mut self, model: &ModelId, now: Millis) -> &mut HourOfModel {
        let known = self.models.iter().position(|hour| hour.model == *model);
        let at = known.unwrap_or_else(|| {
            if self.models.len() >= MODELS_PER_CLIENT_MAX {
                let models = self.models.iter().enumerate();
                let oldest = models.min_by_key(|(_, hour)| hour.last_seen);
                if let Some((oldest, _)) = oldest {
                    self.models.swap_remove(oldest);
                }
            }
            self.models.push(HourOfModel {
                model: model.clone(),
                parts: [ClientCounts::default(); PARTS],
                newest: part_of(now),
                last_seen: now,
            });
            self.models.len() - 1
        });
        &mut self.models[at]
    }
}

impl HourOfModel {
    /// Returns the part that counts now; those that are over are emptied.
    fn part(&mut self, now: Millis) -> &mut ClientCounts {
        let part = part_of(now).max(self.newest);
        let passed = (part - self.newest).min(PARTS as u64);
        for number in part + 1 - passed..=part {
            self.parts[place_of(number)] = ClientCounts::default();
        }
        self.newest = part;
        &mut self.parts[place_of(part)]
    }

    fn counts(&self, now: Millis) -> ClientCounts {
        let mut sum = ClientCounts::default();
        // The oldest part that still counts.
        let first = (part_of(now) + 1).saturating_sub(PARTS as u64);
        let oldest_kept = (self.newest + 1).saturating_sub(PARTS as u64);
        for number in first.max(oldest_kept)..=self.newest {
            let part = self.parts[place_of(number)];
            sum.requests = sum.requests.saturating_add(part.requests);
            sum.cold_requests = sum.cold_requests.saturating_add(part.cold_requests);
            sum.loads = sum.loads.saturating_add(part.loads);
        }
        sum
    }
}

fn part_of(now: Millis) -> u64 {
    now.0 / PART.0
}

fn place_of(part: u64) -> usize {
    usize::try_from(part % PARTS as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minutes(count: u64) -> Millis {
        Millis::from_secs(60 * count)
    }

    fn counts(demand: &ClientDemand, now: u64) -> Vec<(String, u32, u32, u32)> {
        let uses = demand.last_hour(minutes(now)).into_iter();
        let one = |it: ClientUse| {
            let name = format!("{} {}", it.client_id, it.model);
            (
                name,
                it.counts.requests,
                it.counts.cold_requests,
                it.counts.loads,
            )
        };
        uses.map(one).collect()
    }

    #[test]
    fn requests_and_loads_of_an_hour_are_counted_by_client_and_model() {
        let mut demand = ClientDemand::default();
        let (tagger, chat): (Arc<str>, Arc<str>) = ("tagger".into(), "chat".into());
        let (a, b) = (ModelId::from("a"), ModelId::from("b"));
        demand.record_request(&tagger, &a, true, minutes(1));
        demand.record_load("tagger", &a, minutes(1));
        demand.record_request(&tagger, &a, false, minutes(30));
        demand.record_request(&chat, &b, false, minutes(30));
        demand.record_load("nobody", &a, minutes(30));
        demand.record_load("chat", &a, minutes(30));
        let of = |name: &str, requests, cold, loads| (name.to_owned(), requests, cold, loads);
        let both = vec![of("chat b", 1, 0, 0), of("tagger a", 2, 1, 1)];
        assert_eq!(counts(&demand, 59), both);
        assert_eq!(counts(&demand, 61)[1], of("tagger a", 1, 0, 0));
        assert_eq!(counts(&demand, 120), []);
        assert_eq!(demand.last_hour(minutes(59))[1].last_seen, minutes(30));
        demand.record_request(&tagger, &a, false, minutes(300));
        assert_eq!(counts(&demand, 300), [of("tagger a", 1, 0, 0)]);
    }

    #[test]
    fn a_part_is_emptied_before_it_counts_again() {
        let mut demand = ClientDemand::default();
        let (tagger, a) = (Arc::<str>::from("tagger"), ModelId::from("a"));
        for minute in 0..200 {
            demand.record_request(&tagger, &a, false, minutes(minute));
            let seen = counts(&demand, minute)[0].1;
            let whole_parts = u32::try_from(minute % 5).unwrap() + 56;
            assert_eq!(seen, whole_parts.min(u32::try_from(minute).unwrap() + 1));
        }
    }

    #[test]
    fn the_id_that_was_seen_least_recently_makes_room() {
        let mut demand = ClientDemand::default();
        let a = ModelId::from("a");
        let id = |number: usize| Arc::<str>::from(format!("{number:05}"));
        for number in 0..CLIENTS_MAX {
            demand.record_request(&id(number), &a, false, Millis(number as u64));
        }
        demand.record_request(&id(0), &a, false, Millis(5000));
        demand.record_request(&id(CLIENTS_MAX), &a, false, Millis(5001));
        assert_eq!(demand.clients.len(), CLIENTS_MAX);
        assert!(demand.clients.contains_key(&id(0)));
        assert!(!demand.clients.contains_key(&id(1)));
    }

    #[test]
    fn the_models_of_one_id_are_bounded_too() {
        let mut demand = ClientDemand::default();
        let tagger = Arc::<str>::from("tagger");
        for number in 0..=MODELS_PER_CLIENT_MAX {
            let model = ModelId::from(format!("m{number}").as_str());
            demand.record_request(&tagger, &model, false, Millis(number as u64));
        }
        let uses = demand.last_hour(Millis(1000));
        assert_eq!(uses.len(), MODELS_PER_CLIENT_MAX);
        assert!(uses.iter().all(|it| it.model.as_str() != "m0"));
    }
}
