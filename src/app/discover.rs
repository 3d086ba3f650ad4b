//! Periodic look-up of endpoints in the sources of each model, reported to the reload loop.
//!
//! Reports are applied by the reload loop, so that a report never meets a reload half way. At most
//! one look at a time for a model, each ended after [`LOOKUP_TIMEOUT`]; a look that fails reports
//! nothing, so that the endpoints found before stay.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use infergate_core::model::{
    DiscoveredEndpoints, DiscoverySource, DiscoverySpec, ENDPOINTS_MAX, ModelSpec,
};
use infergate_core::{Millis, ModelId};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use crate::state::Shared;
use crate::upstream::HttpClient;
use crate::upstream::discovery::{
    KubernetesCredentials, query_consul, query_kubernetes, read_file, resolve,
};

/// A source that needs longer is one that cannot be read.
pub(super) const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// A start waits no longer for what is found first; endpoints that are found later join later.
const FIRST_LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);
/// Reports that may wait while a reload compiles plugins; looks pause when there are more.
const REPORTS_MAX: usize = 16;

/// Result of a look-up of a model's endpoints.
#[derive(Clone, Debug)]
pub struct DiscoveryReport {
    /// The model.
    pub model: ModelId,
    /// Source of the endpoints: a newer configuration may name another one.
    pub source: DiscoverySource,
    /// Endpoints that were found.
    pub found: DiscoveredEndpoints,
}

/// Endpoints that are found while running.
pub struct DiscoveryFeed {
    /// Results of the first look-up.
    pub first: Vec<DiscoveryReport>,
    /// Results of later look-ups.
    pub reports: mpsc::Receiver<DiscoveryReport>,
}

/// Looks once for every model, and gives what it found with the way for later reports.
pub async fn start(
    shared: &Shared,
    models: &[Arc<ModelSpec>],
) -> (DiscoveryFeed, mpsc::Sender<DiscoveryReport>) {
    let (sender, reports) = mpsc::channel(REPORTS_MAX);
    let first = first_lookup(&shared.client, models).await;
    (DiscoveryFeed { first, reports }, sender)
}

/// All looks at the same time, and what they found within [`FIRST_LOOKUP_TIMEOUT`].
async fn first_lookup(client: &HttpClient, models: &[Arc<ModelSpec>]) -> Vec<DiscoveryReport> {
    let sources = models
        .iter()
        .filter_map(|spec| Some((spec.id.clone(), spec.discovery.as_ref()?.source()?)));
    let mut looks: FuturesUnordered<_> = sources
        .map(|(model, source)| look_up(client, model, source))
        .collect();
    let mut reports = Vec::new();
    let looking = async {
        while let Some((model, source, seen)) = looks.next().await {
            // The next look-up logs it if it fails as well.
            if let Ok(found) = seen {
                reports.push(DiscoveryReport {
                    model,
                    source,
                    found,
                });
            }
        }
    };
    if timeout(FIRST_LOOKUP_TIMEOUT, looking).await.is_err() {
        tracing::warn!("some endpoints are not found yet: serving without them");
    }
    reports
}

/// Looks for the life of the process: a model of another configuration at once, then each in its rhythm.
pub async fn discover(shared: Arc<Shared>, sender: mpsc::Sender<DiscoveryReport>) {
    let mut swapped = shared.swapped.subscribe();
    let mut rounds = DiscoverySchedule::default();
    let mut looks = FuturesUnordered::new();
    loop {
        swapped.mark_unchanged();
        let snapshot = shared.snapshot.load_full();
        let specs = snapshot.models.iter().map(|model| &*model.spec);
        for (model, source) in rounds.due(specs, shared.clock.now()) {
            looks.push(look_up(&shared.client, model, source));
        }
        let next = rounds
            .next_due()
            .map(|due| shared.clock.instant(due).into());
        tokio::select! {
            () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            // The sender outlives this task.
            _ = swapped.changed() => {}
            Some((model, source, seen)) = looks.next() => {
                rounds.record(&model, &source, &seen);
                if let Ok(found) = seen {
                    let report = DiscoveryReport { model, source, found };
                    if sender.send(report).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

type LookupResult = Result<DiscoveredEndpoints, String>;

async fn look_up(
    client: &HttpClient,
    model: ModelId,
    source: DiscoverySource,
) -> (ModelId, DiscoverySource, LookupResult) {
    let looking = async {
        match &source {
            DiscoverySource::File(path) => {
                let path = path.clone();
                let reading = tokio::task::spawn_blocking(move || read_file(&path)).await;
                reading.map_err(|panic| panic.to_string())?
            }
            DiscoverySource::Dns(name) => resolve(name).await,
            DiscoverySource::Consul(consul) => query_consul(client, consul).await,
            DiscoverySource::Kubernetes(kubernetes) => {
                let spec = kubernetes.clone();
                let reading =
                    tokio::task::spawn_blocking(move || KubernetesCredentials::read(&spec)).await;
                let credentials = reading.map_err(|panic| panic.to_string())?;
                match credentials {
                    Ok(credentials) => query_kubernetes(client, kubernetes, credentials).await,
                    Err(error) => Err(error),
                }
            }
        }
        .map_err(|error| error.to_string())
    };
    let seen = timeout(LOOKUP_TIMEOUT, looking).await;
    let seen = seen.unwrap_or_else(|_| Err(format!("took longer than {LOOKUP_TIMEOUT:?}")));
    (model, source, seen)
}

/// Sources that are looked up, and when each is due.
#[derive(Default)]
struct DiscoverySchedule {
    watched: HashMap<ModelId, WatchedSource>,
}

struct WatchedSource {
    source: DiscoverySource,
    due: Millis,
    /// A look is under way.
    looking: bool,
    /// Last error that was logged, so that each is logged once.
    complaint: Option<String>,
}

impl DiscoverySchedule {
    /// Models whose look is due now, with where to look.
    fn due<'a>(
        &mut self,
        specs: impl Iterator<Item = &'a ModelSpec>,
        now: Millis,
    ) -> Vec<(ModelId, DiscoverySource)> {
        let mut due = Vec::new();
        let mut still = HashMap::new();
        for spec in specs {
            let discovery = spec.discovery.as_ref();
            let Some((discovery, source)) =
                discovery.and_then(|discovery| Some((discovery, discovery.source()?)))
            else {
                continue;
            };
            let known = self.watched.remove(&spec.id);
            let mut watched = known.unwrap_or_else(|| WatchedSource::new(source.clone(), now));
            if watched.source != source {
                // The look that is under way reports of a place that does not count any more.
                watched = WatchedSource {
                    looking: watched.looking,
                    ..WatchedSource::new(source, now)
                };
            }
            if !watched.looking && now >= watched.due {
                watched.looking = true;
                watched.due = next_lookup(discovery, now);
                due.push((spec.id.clone(), watched.source.clone()));
            }
            still.insert(spec.id.clone(), watched);
        }
        self.watched = still;
        due
    }

    /// Moment of the next look, beside those that are under way.
    fn next_due(&self) -> Option<Millis> {
        let waiting = self.watched.values().filter(|watched| !watched.looking);
        waiting.map(|watched| watched.due).min()
    }

    /// A look ended. Logs a source that cannot be read once, and once that it can be read again.
    fn record(&mut self, model: &ModelId, source: &DiscoverySource, seen: &LookupResult) {
        let Some(watched) = self.watched.get_mut(model) else {
            return;
        };
        watched.looking = false;
        if watched.source != *source {
            return;
        }
        let complaint = match seen {
            Ok(found) if found.left_out > 0 => Some(format!(
                "{} endpoints are left out: at most {ENDPOINTS_MAX} are taken",
                found.left_out
            )),
            Ok(_) => None,
            Err(fault) => Some(format!("{fault}: the endpoints found before stay")),
        };
        if complaint == watched.complaint {
            return;
        }
        let (model, source) = (model.as_str(), source.name());
        match &complaint {
            Some(complaint) => tracing::warn!(model, source, "discovery: {complaint}"),
            None => tracing::info!(model, source, "discovery: all is well again"),
        }
        watched.complaint = complaint;
    }
}

impl WatchedSource {
    fn new(source: DiscoverySource, now: Millis) -> WatchedSource {
        WatchedSource {
            source,
            due: now,
            looking: false,
            complaint: None,
        }
    }
}

fn next_lookup(discovery: &DiscoverySpec, now: Millis) -> Millis {
    Millis(now.0 + u64::from(discovery.every_secs) * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(id: &str, discovery: &str) -> ModelSpec {
        let text =
            format!(r#"{{"id":"{id}","task":"text-generation","backend":"openai"{discovery}}}"#);
        serde_json::from_str(&text).unwrap()
    }

    fn due(
        rounds: &mut DiscoverySchedule,
        specs: &[ModelSpec],
        now: u64,
    ) -> Vec<(String, DiscoverySource)> {
        let due = rounds.due(specs.iter(), Millis(now)).into_iter();
        due.map(|(model, source)| (model.as_str().to_owned(), source))
            .collect()
    }

    #[test]
    fn a_model_is_looked_for_at_once_and_then_in_its_rhythm_one_look_at_a_time() {
        let specs = [
            model("a", r#","discovery":{"dns":"h:1","every_secs":2}"#),
            model("b", ""),
        ];
        let mut rounds = DiscoverySchedule::default();
        let found = due(&mut rounds, &specs, 0);
        let [(id, source)] = &found[..] else {
            panic!("one look")
        };
        assert_eq!((id.as_str(), source.name()), ("a", "dns"));
        assert!(
            due(&mut rounds, &specs, 9_000).is_empty(),
            "it is still looking"
        );
        rounds.record(&"a".into(), source, &Ok(DiscoveredEndpoints::default()));
        assert_eq!(due(&mut rounds, &specs, 9_000).len(), 1);
        rounds.record(&"a".into(), source, &Err("gone".to_owned()));
        assert!(due(&mut rounds, &specs, 10_999).is_empty());
        assert_eq!(due(&mut rounds, &specs, 11_000).len(), 1);
    }

    #[test]
    fn another_place_is_looked_at_at_once_and_a_late_answer_of_the_former_counts_for_nothing() {
        let mut rounds = DiscoverySchedule::default();
        let before = [model("a", r#","discovery":{"dns":"h:1"}"#)];
        let former = due(&mut rounds, &before, 0)[0].1.clone();
        let after = [model("a", r#","discovery":{"file":"f"}"#)];
        assert!(due(&mut rounds, &after, 1).is_empty());
        rounds.record(&"a".into(), &former, &Err("late".to_owned()));
        assert_eq!(rounds.watched["a"].complaint, None);
        assert_eq!(due(&mut rounds, &after, 2)[0].1.name(), "file");
        assert!(due(&mut rounds, &[], 3).is_empty());
        assert!(rounds.watched.is_empty());
    }
}
