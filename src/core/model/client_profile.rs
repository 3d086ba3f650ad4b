//! Client profile: what the operator sets for the requests of a client, by the `x_client_id` that they carry.
//!
//! Not a permission: the id is the caller's own word, and a profile grants nothing that the account may not do.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Defaults, KeepLoaded};
use crate::{Millis, ModelId};

/// Most profiles of a configuration.
pub const CLIENT_PROFILES_MAX: usize = 256;

/// Terms of the requests of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientProfile {
    /// `x_client_id` of its requests; a glob `*` at the end stands for any rest. The first profile that matches counts.
    #[schemars(length(min = 1, max = 64))]
    pub client_id: Arc<str>,
    /// Names that its requests use, each with the model or the named task that takes its place. The account must be
    /// allowed to use that one.
    #[serde(default)]
    pub model: BTreeMap<ModelId, ModelId>,
    /// `x_priority` of its requests that name none, at most as urgent as the account's `max_priority`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 9))]
    pub priority: Option<u8>,
    /// Request parameters that are filled in, as `models[].parameters.default`; those of a named task and of the model
    /// come after them.
    #[serde(default)]
    pub defaults: Arc<Defaults>,
    /// Most seconds of a request, the floor of models notwithstanding. Shortens the time that model, task and caller
    /// give, and never lengthens it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400))]
    pub timeout_secs: Option<u64>,
    /// Seconds that the model which served stays loaded while idle, in place of its own and of a named task's; -1 means
    /// always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1, max = 31_536_000))]
    pub keep_alive_secs: Option<i64>,
    /// Least seconds between the begins of two loads of one model that its requests cause. Further requests wait
    /// until then, or for a load that others cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604_800))]
    pub cooldown_secs: Option<u64>,
}

impl ClientProfile {
    /// Returns whether the profile is for a client.
    pub fn matches(&self, client_id: &str) -> bool {
        match self.client_id.strip_suffix('*') {
            Some(prefix) => client_id.starts_with(prefix),
            None => *self.client_id == *client_id,
        }
    }

    /// Returns the name that takes the place of a model's; none where it stays.
    pub fn replacement(&self, name: &str) -> Option<&ModelId> {
        self.model.get(name)
    }

    /// Returns the time for which the model that served stays loaded, where the profile has one.
    pub fn keep_alive(&self) -> Option<KeepLoaded> {
        self.keep_alive_secs.map(KeepLoaded::of_secs)
    }

    /// Returns the least time between two loads that its requests cause.
    pub fn cooldown(&self) -> Option<Millis> {
        self.cooldown_secs.map(Millis::from_secs)
    }
}

/// The profiles of one configuration, of which there is at least one.
#[derive(Clone, Debug)]
pub struct ClientProfiles {
    profiles: Vec<Arc<ClientProfile>>,
}

impl ClientProfiles {
    /// Takes over the profiles in the file's order; none without any, so that requests pay for no look.
    pub fn new(profiles: &[ClientProfile]) -> Option<ClientProfiles> {
        if profiles.is_empty() {
            return None;
        }
        let profiles = profiles.iter().cloned().map(Arc::new).collect();
        Some(ClientProfiles { profiles })
    }

    /// Returns the first profile for a client. O(profiles).
    pub fn find(&self, client_id: &str) -> Option<&Arc<ClientProfile>> {
        let mut profiles = self.profiles.iter();
        profiles.find(|profile| profile.matches(client_id))
    }

    /// Returns whether some client means another model by a name.
    pub fn may_replace(&self, name: &str) -> bool {
        let mut profiles = self.profiles.iter();
        profiles.any(|profile| profile.replacement(name).is_some())
    }

    /// All profiles, in the file's order.
    pub fn all(&self) -> &[Arc<ClientProfile>] {
        &self.profiles
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profiles(text: &str) -> ClientProfiles {
        let profiles: Vec<ClientProfile> = serde_json::from_str(text).unwrap();
        ClientProfiles::new(&profiles).unwrap()
    }

    #[test]
    fn the_first_profile_that_matches_counts_and_a_glob_stands_at_the_end() {
        let profiles = profiles(
            r#"[{"client_id":"tagger-2","priority":1},{"client_id":"tagger*","priority":2},{"client_id":"*","priority":3}]"#,
        );
        let priority = |id: &str| profiles.find(id).unwrap().priority;
        assert_eq!(priority("tagger-2"), Some(1));
        assert_eq!(priority("tagger-20"), Some(2));
        assert_eq!(priority("tagger"), Some(2));
        assert_eq!(priority("a-tagger"), Some(3));
        assert!(ClientProfiles::new(&[]).is_none());
    }

    #[test]
    fn a_whole_id_matches_nothing_but_itself() {
        let profiles = profiles(r#"[{"client_id":"tagger","model":{"gpt-4":"qwen"}}]"#);
        assert!(profiles.find("tagger-2").is_none());
        let tagger = profiles.find("tagger").unwrap();
        assert_eq!(tagger.replacement("gpt-4").unwrap().as_str(), "qwen");
        assert!(tagger.replacement("qwen").is_none());
        assert!(profiles.may_replace("gpt-4") && !profiles.may_replace("qwen"));
    }

    #[test]
    fn a_profile_is_written_as_it_is_read() {
        let text = r#"{"client_id":"t*","model":{"a":"b"},"priority":9,"defaults":{"seed":1},"timeout_secs":5,"keep_alive_secs":-1,"cooldown_secs":60}"#;
        let profile: ClientProfile = serde_json::from_str(text).unwrap();
        assert_eq!(profile.keep_alive(), Some(KeepLoaded::Always));
        assert_eq!(profile.cooldown(), Some(Millis(60_000)));
        assert_eq!(serde_json::to_string(&profile).unwrap(), text);
    }
}
