//! Cooldown: how often requests of a client profile may cause a load of a model.
//!
//! Neither a queue nor a timer: requests are held from the demand, not from their permits, and each look decides
//! anew. Each model has one value; at most [`COOLDOWNS_MAX`] profiles are remembered. Called by the shell under the
//! lock of the model's gate.
//!
//! The rule: from the begin of a load that its requests counted for, requests of the profile do not count as demand
//! for the span. Requests that came before that load count until the model has been ready, so that the load has its
//! demand. All of them count while a load is under way, whoever caused it: none causes another one then.

use std::sync::Arc;

use crate::Millis;
use crate::model::CLIENT_PROFILES_MAX;

/// Profiles whose loads are remembered. As many as a configuration has; a reload leaves others behind.
const COOLDOWNS_MAX: usize = CLIENT_PROFILES_MAX;

/// Client of a request for a model whose processes the gateway starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemandClient {
    /// `x_client_id`.
    pub id: Arc<str>,
    /// Cooldown of its profile.
    pub cooldown: Option<ClientCooldown>,
}

/// Cooldown of a client profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCooldown {
    /// Profile, by its pattern.
    pub profile: Arc<str>,
    /// Least time between the begins of two loads.
    pub span: Millis,
}

/// Progress of a model towards its first ready process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadProgress {
    /// None is ready, and none becomes so.
    Cold,
    /// A load is under way.
    Loading,
    /// Requests are served.
    Ready,
}

/// Loads of one model, by the profiles that caused them.
#[derive(Clone, Debug, Default)]
pub struct LoadCooldowns {
    causes: Vec<LoadCause>,
}

/// Latest load that requests of a profile counted for.
#[derive(Clone, Debug)]
struct LoadCause {
    profile: Arc<str>,
    began: Millis,
    /// The model has been ready since.
    has_been_ready: bool,
}

impl LoadCooldowns {
    /// Records that a load began while requests of a profile counted as demand.
    pub fn record_load(&mut self, profile: &Arc<str>, now: Millis) {
        self.causes.retain(|cause| cause.profile != *profile);
        if self.causes.len() >= COOLDOWNS_MAX {
            // In the order of their loads.
            self.causes.remove(0);
        }
        self.causes.push(LoadCause {
            profile: Arc::clone(profile),
            began: now,
            has_been_ready: false,
        });
    }

    /// Records that the model is ready: each load has served its purpose.
    pub fn record_ready(&mut self) {
        for cause in &mut self.causes {
            cause.has_been_ready = true;
        }
    }

    /// Returns the moment from which a request that came at `joined` counts as demand; none where it counts now.
    pub fn held_until(
        &self,
        client: Option<&DemandClient>,
        joined: Millis,
        progress: LoadProgress,
        now: Millis,
    ) -> Option<Millis> {
        if progress != LoadProgress::Cold {
            return None;
        }
        let cooldown = client?.cooldown.as_ref()?;
        let mut causes = self.causes.iter();
        let cause = causes.find(|cause| cause.profile == cooldown.profile)?;
        let is_of_that_load = !cause.has_been_ready && joined <= cause.began;
        let until = cause.began + cooldown.span;
        (!is_of_that_load && now < until).then_some(until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: u64 = 60;

    fn secs(count: u64) -> Millis {
        Millis::from_secs(count)
    }

    fn client(profile: &str) -> DemandClient {
        DemandClient {
            id: "someone".into(),
            cooldown: Some(ClientCooldown {
                profile: profile.into(),
                span: secs(SPAN),
            }),
        }
    }

    fn held(cooldowns: &LoadCooldowns, joined: u64, now: u64) -> Option<Millis> {
        let client = client("tagger*");
        cooldowns.held_until(Some(&client), secs(joined), LoadProgress::Cold, secs(now))
    }

    #[test]
    fn a_request_after_the_load_is_held_until_the_span_is_over() {
        let mut cooldowns = LoadCooldowns::default();
        assert_eq!(held(&cooldowns, 10, 10), None, "nothing was loaded yet");
        cooldowns.record_load(&"tagger*".into(), secs(10));
        cooldowns.record_ready();
        assert_eq!(held(&cooldowns, 20, 20), Some(secs(70)));
        assert_eq!(held(&cooldowns, 20, 69), Some(secs(70)));
        assert_eq!(
            held(&cooldowns, 20, 70),
            None,
            "it waits, and counts from here"
        );
    }

    #[test]
    fn those_that_the_load_is_for_count_until_it_has_been_ready_and_no_longer() {
        let mut cooldowns = LoadCooldowns::default();
        cooldowns.record_load(&"tagger*".into(), secs(10));
        assert_eq!(
            held(&cooldowns, 9, 20),
            None,
            "the load failed: it is tried again"
        );
        assert_eq!(
            held(&cooldowns, 11, 20),
            Some(secs(70)),
            "its client left, and asks again"
        );
        cooldowns.record_ready();
        assert_eq!(
            held(&cooldowns, 9, 20),
            Some(secs(70)),
            "left over when the model was unloaded"
        );
    }

    #[test]
    fn nobody_is_held_while_a_load_is_under_way_or_the_model_serves() {
        let mut cooldowns = LoadCooldowns::default();
        cooldowns.record_load(&"tagger*".into(), secs(10));
        let client = client("tagger*");
        for progress in [LoadProgress::Loading, LoadProgress::Ready] {
            let held = cooldowns.held_until(Some(&client), secs(20), progress, secs(20));
            assert_eq!(held, None, "{progress:?}");
        }
    }

    #[test]
    fn others_are_not_held_and_the_span_is_that_of_the_present_profile() {
        let mut cooldowns = LoadCooldowns::default();
        cooldowns.record_load(&"tagger*".into(), secs(10));
        cooldowns.record_ready();
        let at = |client: Option<&DemandClient>| {
            cooldowns.held_until(client, secs(20), LoadProgress::Cold, secs(20))
        };
        assert_eq!(at(None), None);
        assert_eq!(at(Some(&client("*"))), None);
        let mut other = client("tagger*");
        other.cooldown.as_mut().unwrap().span = secs(5);
        assert_eq!(at(Some(&other)), None, "a reload has shortened it");
        other.cooldown = None;
        assert_eq!(at(Some(&other)), None);
    }

    #[test]
    fn the_oldest_load_is_forgotten_beyond_the_bound() {
        let mut cooldowns = LoadCooldowns::default();
        cooldowns.record_load(&"tagger*".into(), secs(10));
        for number in 0..COOLDOWNS_MAX {
            cooldowns.record_load(&format!("client-{number}").into(), secs(11));
        }
        assert_eq!(cooldowns.causes.len(), COOLDOWNS_MAX);
        cooldowns.record_ready();
        assert_eq!(held(&cooldowns, 12, 12), None);
    }
}
