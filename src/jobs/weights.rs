//! Weights that the servers of bases served last, as this worker knows them.
//!
//! Not what a server has loaded: live requests and other gateways exchange weights too. A wrong guess costs an
//! exchange, never a wrong result.

use std::sync::Arc;

use hashbrown::HashMap;
use infergate_core::job::{AFFINITY_STREAK_MAX, DeployableKey};
use parking_lot::Mutex;

/// Servers that are remembered; beyond, all are forgotten and learned again.
const SERVERS_MAX: usize = 4096;

/// Flow that a server served last, and the takes in a row that a preference for it decided.
struct ServedFlow {
    flow: Arc<str>,
    streak: u32,
}

/// Flows that the servers of bases served last, by queue and URL.
#[derive(Default)]
pub struct ServedWeights {
    /// Held for a look-up.
    servers: Mutex<HashMap<(DeployableKey, Arc<str>), ServedFlow>>,
}

impl ServedWeights {
    /// Returns the flow to prefer at a server; none where nothing is known, and after [`AFFINITY_STREAK_MAX`] takes in
    /// a row, so that the least served flow has its turn.
    pub fn preferred(&self, queue: &DeployableKey, url: &Arc<str>) -> Option<Arc<str>> {
        let servers = self.servers.lock();
        let served = servers.get(&(queue.clone(), Arc::clone(url)))?;
        (served.streak < AFFINITY_STREAK_MAX).then(|| Arc::clone(&served.flow))
    }

    /// Records a take. Returns whether the server served another flow before.
    pub fn record(
        &self,
        (queue, url): (&DeployableKey, &Arc<str>),
        preferred: Option<&str>,
        taken: &Arc<str>,
    ) -> bool {
        let streak_of = |former: u32| match preferred {
            Some(preferred) if *preferred == **taken => former + 1,
            _ => 0,
        };
        let mut servers = self.servers.lock();
        let key = (queue.clone(), Arc::clone(url));
        if let Some(served) = servers.get_mut(&key) {
            served.streak = streak_of(served.streak);
            let is_other = served.flow != *taken;
            served.flow = Arc::clone(taken);
            return is_other;
        }
        if servers.len() >= SERVERS_MAX {
            servers.clear();
        }
        let flow = Arc::clone(taken);
        servers.insert(key, ServedFlow { flow, streak: 0 });
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_keeps_its_weights_for_eight_takes_and_then_has_no_preference() {
        let weights = ServedWeights::default();
        let (queue, url) = (DeployableKey::from("hp-a"), Arc::from("http://a:1"));
        let flow: Arc<str> = "a".into();
        let take = |taken: &Arc<str>| {
            let preferred = weights.preferred(&queue, &url);
            let is_swap = weights.record((&queue, &url), preferred.as_deref(), taken);
            (preferred, is_swap)
        };
        assert_eq!(take(&flow), (None, false));
        for _ in 0..AFFINITY_STREAK_MAX {
            assert_eq!(take(&flow), (Some(Arc::clone(&flow)), false));
        }
        let other: Arc<str> = "b".into();
        assert_eq!(take(&other), (None, true));
        assert_eq!(take(&other), (Some(Arc::clone(&other)), false));
        // Another server knows nothing of it.
        assert_eq!(weights.preferred(&queue, &"http://b:1".into()), None);
    }

    #[test]
    fn servers_that_are_remembered_are_bounded() {
        let weights = ServedWeights::default();
        let queue = DeployableKey::from("hp-a");
        for n in 0..=SERVERS_MAX {
            weights.record((&queue, &n.to_string().into()), None, &"a".into());
        }
        assert!(weights.servers.lock().len() <= SERVERS_MAX);
    }
}
