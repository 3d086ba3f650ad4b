//! Periodic look-up of endpoints in the sources of each model, reported to the reload loop.
//!
//! Reports are applied by the reload loop, so that a report never meets a reload half way. At most
//! one look at a time for a model, each ended after [`LOOK_LIMIT`]; a look that fails reports
//! nothing, so that the endpoints found before stay.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use infergate_core::model::{DiscoverySpec, ENDPOINTS_MAX, Found, ModelSpec, Source};
use infergate_core::{Millis, ModelId};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::proxy::Shared;
use crate::upstream::Client;
use crate::upstream::discovery::{Credentials, ask_consul, ask_kubernetes, read_file, resolve};

/// Between two passes over the schedule; a new model waits no longer for its first look-up.
const TICK: Duration = Duration::from_millis(250);
/// A source that needs longer is one that cannot be read.
pub(super) const LOOK_LIMIT: Duration = Duration::from_secs(5);
/// A start waits no longer for what is found first; endpoints that are found later join later.
const FIRST_LOOK_LIMIT: Duration = Duration::from_secs(2);
/// Reports that may wait while a reload compiles plugins; looks pause when there are more.
const REPORTS_MAX: usize = 16;

/// Result of a look-up of a model's endpoints.
#[derive(Clone, Debug)]
pub struct Report {
    /// The model.
    pub model: ModelId,
    /// Where they were found: a configuration that came since may name another place.
    pub source: Source,
    /// Endpoints that were found.
    pub found: Found,
}

/// Endpoints that are found while running.
pub struct Discovery {
    /// Results of the first look-up.
    pub first: Vec<Report>,
    /// Results of later look-ups.
    pub reports: mpsc::Receiver<Report>,
}

/// Looks once for every model, and gives what it found with the way for later reports.
pub async fn begin(
    shared: &Shared,
    models: &[Arc<ModelSpec>],
) -> (Discovery, mpsc::Sender<Report>) {
    let (tell, reports) = mpsc::channel(REPORTS_MAX);
    let first = first_look(&shared.client, models).await;
    (Discovery { first, reports }, tell)
}

/// All looks at the same time, and what they found within [`FIRST_LOOK_LIMIT`].
async fn first_look(client: &Client, models: &[Arc<ModelSpec>]) -> Vec<Report> {
    let sources = models
        .iter()
        .filter_map(|spec| Some((spec.id.clone(), spec.discovery.as_ref()?.source()?)));
    let mut looks: FuturesUnordered<_> = sources
        .map(|(model, source)| look(client, model, source))
        .collect();
    let mut reports = Vec::new();
    let looking = async {
        while let Some((model, source, seen)) = looks.next().await {
            // The next look-up logs it if it fails as well.
            if let Ok(found) = seen {
                reports.push(Report {
                    model,
                    source,
                    found,
                });
            }
        }
    };
    if timeout(FIRST_LOOK_LIMIT, looking).await.is_err() {
        tracing::warn!("some endpoints are not found yet: serving without them");
    }
    reports
}

/// Looks for the life of the process.
pub async fn discover(shared: Arc<Shared>, tell: mpsc::Sender<Report>) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut rounds = Rounds::default();
    let mut looks = FuturesUnordered::new();
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                let world = shared.world.load_full();
                let specs = world.lanes.iter().map(|lane| &*lane.spec);
                for (model, source) in rounds.due(specs, shared.clock.now()) {
                    looks.push(look(&shared.client, model, source));
                }
            }
            Some((model, source, seen)) = looks.next() => {
                rounds.looked(&model, &source, &seen);
                if let Ok(found) = seen {
                    let report = Report { model, source, found };
                    if tell.send(report).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

type Seen = Result<Found, String>;

async fn look(client: &Client, model: ModelId, source: Source) -> (ModelId, Source, Seen) {
    let looking = async {
        match &source {
            Source::File(path) => {
                let path = path.clone();
                let reading = tokio::task::spawn_blocking(move || read_file(&path)).await;
                reading.map_err(|panic| panic.to_string())?
            }
            Source::Dns(name) => resolve(name).await,
            Source::Consul(consul) => ask_consul(client, consul).await,
            Source::Kubernetes(kubernetes) => {
                let spec = kubernetes.clone();
                let reading = tokio::task::spawn_blocking(move || Credentials::read(&spec)).await;
                let credentials = reading.map_err(|panic| panic.to_string())?;
                match credentials {
                    Ok(credentials) => ask_kubernetes(client, kubernetes, credentials).await,
                    Err(error) => Err(error),
                }
            }
        }
        .map_err(|error| error.to_string())
    };
    let seen = timeout(LOOK_LIMIT, looking).await;
    let seen = seen.unwrap_or_else(|_| Err(format!("took longer than {LOOK_LIMIT:?}")));
    (model, source, seen)
}

/// Sources that are looked up, and when each is due.
#[derive(Default)]
struct Rounds {
    watched: HashMap<ModelId, Watched>,
}

struct Watched {
    source: Source,
    due: Millis,
    /// A look is under way.
    looking: bool,
    /// Last error that was logged, so that each is logged once.
    complaint: Option<String>,
}

impl Rounds {
    /// Models whose look is due now, with where to look.
    fn due<'a>(
        &mut self,
        specs: impl Iterator<Item = &'a ModelSpec>,
        now: Millis,
    ) -> Vec<(ModelId, Source)> {
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
            let mut watched = known.unwrap_or_else(|| Watched::new(source.clone(), now));
            if watched.source != source {
                // The look that is under way reports of a place that does not count any more.
                watched = Watched {
                    looking: watched.looking,
                    ..Watched::new(source, now)
                };
            }
            if !watched.looking && now >= watched.due {
                watched.looking = true;
                watched.due = next_look(discovery, now);
                due.push((spec.id.clone(), watched.source.clone()));
            }
            still.insert(spec.id.clone(), watched);
        }
        self.watched = still;
        due
    }

    /// A look ended. Logs a source that cannot be read once, and once that it can be read again.
    fn looked(&mut self, model: &ModelId, source: &Source, seen: &Seen) {
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

impl Watched {
    fn new(source: Source, now: Millis) -> Watched {
        Watched {
            source,
            due: now,
            looking: false,
            complaint: None,
        }
    }
}

fn next_look(discovery: &DiscoverySpec, now: Millis) -> Millis {
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

    fn due(rounds: &mut Rounds, specs: &[ModelSpec], now: u64) -> Vec<(String, Source)> {
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
        let mut rounds = Rounds::default();
        let found = due(&mut rounds, &specs, 0);
        let [(id, source)] = &found[..] else {
            panic!("one look")
        };
        assert_eq!((id.as_str(), source.name()), ("a", "dns"));
        assert!(
            due(&mut rounds, &specs, 9_000).is_empty(),
            "it is still looking"
        );
        rounds.looked(&"a".into(), source, &Ok(Found::default()));
        assert_eq!(due(&mut rounds, &specs, 9_000).len(), 1);
        rounds.looked(&"a".into(), source, &Err("gone".to_owned()));
        assert!(due(&mut rounds, &specs, 10_999).is_empty());
        assert_eq!(due(&mut rounds, &specs, 11_000).len(), 1);
    }

    #[test]
    fn another_place_is_looked_at_at_once_and_a_late_answer_of_the_former_counts_for_nothing() {
        let mut rounds = Rounds::default();
        let before = [model("a", r#","discovery":{"dns":"h:1"}"#)];
        let former = due(&mut rounds, &before, 0)[0].1.clone();
        let after = [model("a", r#","discovery":{"file":"f"}"#)];
        assert!(due(&mut rounds, &after, 1).is_empty());
        rounds.looked(&"a".into(), &former, &Err("late".to_owned()));
        assert_eq!(rounds.watched["a"].complaint, None);
        assert_eq!(due(&mut rounds, &after, 2)[0].1.name(), "file");
        assert!(due(&mut rounds, &[], 3).is_empty());
        assert!(rounds.watched.is_empty());
    }
}
