//! Clients that have asked for a model since nothing serves it: who was the first, and whose loads are spaced.
//!
//! Not their counts, which `core::vram` has.

use std::sync::Arc;

use infergate_core::Millis;
use infergate_core::admission::DemandClient;
use infergate_core::model::CLIENT_PROFILES_MAX;

/// Clients whose requests count for the load of a model.
#[derive(Default)]
pub(super) struct Askers {
    /// Moment of the first request, with its client where it names one.
    first: Option<(Millis, Option<Arc<DemandClient>>)>,
    /// Profiles with a cooldown, each once.
    pub profiles: Vec<Arc<str>>,
}

impl Askers {
    /// Client that was the first to ask; none where that request named none.
    pub fn first_client(&self) -> Option<&DemandClient> {
        self.first.as_ref()?.1.as_deref()
    }

    pub fn add(&mut self, at: Millis, client: Option<&Arc<DemandClient>>) {
        if self.first.as_ref().is_none_or(|(first, _)| at < *first) {
            self.first = Some((at, client.cloned()));
        }
        let cooldown = client.and_then(|client| client.cooldown.as_ref());
        if let Some(cooldown) = cooldown {
            self.add_profile(&cooldown.profile);
        }
    }

    fn add_profile(&mut self, profile: &Arc<str>) {
        // Those of former configurations may come on top: what does not fit causes loads as if it had no cooldown.
        if self.profiles.len() < CLIENT_PROFILES_MAX && !self.profiles.contains(profile) {
            self.profiles.push(Arc::clone(profile));
        }
    }

    /// Adds those of a later look. The first request stays the first, though it has left.
    pub fn merge(&mut self, later: &Askers) {
        if let Some((at, client)) = &later.first {
            self.add(*at, client.as_ref());
        }
        for profile in &later.profiles {
            self.add_profile(profile);
        }
    }
}

#[cfg(test)]
mod tests {
    use infergate_core::admission::ClientCooldown;

    use super::*;

    #[test]
    fn the_first_to_ask_stays_the_first_though_it_has_left() {
        let client = |id: &str, profile: Option<&str>| {
            let cooldown = profile.map(|profile| ClientCooldown {
                profile: profile.into(),
                span: Millis::from_secs(60),
            });
            let id = id.into();
            Arc::new(DemandClient { id, cooldown })
        };
        let mut askers = Askers::default();
        let mut ask = |at: u64, by: Option<Arc<DemandClient>>| {
            let mut look = Askers::default();
            look.add(Millis::from_secs(at), by.as_ref());
            askers.merge(&look);
            let first = askers.first_client().map(|it| it.id.to_string());
            (first, askers.profiles.len())
        };
        let tagger = client("tagger-1", Some("tagger*"));
        assert_eq!(ask(10, Some(tagger)), (Some("tagger-1".into()), 1));
        let second = client("tagger-2", Some("tagger*"));
        assert_eq!(ask(11, Some(second)), (Some("tagger-1".into()), 1));
        assert_eq!(ask(9, Some(client("chat", None))), (Some("chat".into()), 1));
        assert_eq!(ask(8, None), (None, 1), "nobody is named");
    }
}
