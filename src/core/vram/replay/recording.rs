//! Recording of a host: the lines of its lifecycle files, read one by one.
//!
//! Reads no file. Lines of other events are passed over, so that a newer gateway's file can be read. A gateway that
//! starts anew begins a session, whose clock begins at 0.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use thiserror::Error;

use super::lines::{DEMAND_EVENT, DemandLine, HOST_EVENT, HostLine, RuleLine};
use super::summary::RunFigures;
use crate::vram::slot::LoadKind;
use crate::{Millis, ModelId};

/// Bytes of a line: a host of 4,096 models takes some 2 MiB.
pub const LINE_BYTES_MAX: usize = 8 << 20;
/// Lines of demand and of hosts that are kept, some 200 MiB: two weeks of one model that is always asked.
const STEPS_MAX: usize = 4_000_000;
/// Requests that are played, so that a row ends within minutes.
const REQUESTS_MAX: u64 = 100_000_000;
/// Models of all configurations.
const MODELS_MAX: usize = 65_536;
/// Time with a permit of a request of which nothing is recorded.
const SERVICE_DEFAULT: Millis = Millis(1000);
/// Time of a stop where none is recorded.
const STOP_DEFAULT: Millis = Millis(1000);

/// Reason why a line cannot be taken.
#[derive(Debug, Error)]
pub enum TraceLineError {
    /// The line is no event, or lacks a member.
    #[error("no lifecycle event: {0}")]
    Malformed(#[from] serde_json::Error),
    /// The recording is longer than what is kept of one.
    #[error("more than {STEPS_MAX} lines of demand: replay fewer files at a time")]
    TooLong,
    /// The recording has more requests than are played.
    #[error("more than {REQUESTS_MAX} requests: replay fewer files at a time")]
    TooManyRequests,
    /// The recording has more models than any host.
    #[error("more than {MODELS_MAX} models")]
    TooManyModels,
}

/// Reason why there is nothing to replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RecordingError {
    /// No line says what was configured.
    #[error("no `models` line: an older gateway has written it, or only its end is given")]
    NoHost,
    /// No request is recorded.
    #[error("no `demand` line behind a `models` line: nothing was asked for")]
    NoDemand,
}

/// Requests of a model that came within a span.
#[derive(Clone, Copy, Debug)]
pub(super) struct DemandStep {
    pub begin: Millis,
    pub span: Millis,
    /// Place in the names of the recording.
    pub model: usize,
    pub arrivals: u32,
    pub refused: u32,
    pub accounts: u32,
    pub priority: u8,
    service: Option<Millis>,
}

/// Time from a start of the gateway to the next one.
#[derive(Clone, Debug, Default)]
pub(super) struct TraceSession {
    /// Configurations, each with its moment.
    pub hosts: Vec<(Millis, HostLine)>,
    /// Demand, by its begin.
    pub demands: Vec<DemandStep>,
}

/// Mean of times.
#[derive(Clone, Copy, Debug, Default)]
struct MeanTime {
    sum_ms: u128,
    count: u64,
}

impl MeanTime {
    fn add(&mut self, time: Millis) {
        self.sum_ms += u128::from(time.0);
        self.count += 1;
    }

    fn mean(self) -> Option<Millis> {
        let mean = self.sum_ms.checked_div(u128::from(self.count))?;
        u64::try_from(mean).ok().map(Millis)
    }
}

/// Times of a model that were recorded.
#[derive(Clone, Copy, Debug, Default)]
struct ModelTimes {
    loads: MeanTime,
    wakes: MeanTime,
    stops: MeanTime,
    service: Option<Millis>,
}

/// Recording, ready to be replayed.
#[derive(Clone, Debug)]
pub struct Recording {
    pub(super) sessions: Vec<TraceSession>,
    pub(super) names: Vec<ModelId>,
    times: Vec<ModelTimes>,
    stops: MeanTime,
    figures: RunFigures,
    left_out: u64,
}

impl Recording {
    /// Figures as they were recorded, with mean and longest wait alone.
    pub fn figures(&self) -> &RunFigures {
        &self.figures
    }

    /// Lines of demand before the first line that says what was configured.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Returns the rule of the latest configuration.
    pub fn rule(&self) -> Option<&RuleLine> {
        let mut hosts = self.sessions.iter().flat_map(|session| &session.hosts);
        hosts.next_back().map(|(_, host)| &host.swap)
    }

    /// Time from the first to the last configuration or request, all sessions together.
    pub fn span(&self) -> Millis {
        let spans = self.sessions.iter().map(|session| {
            let begin = session.hosts.first().map_or(Millis::ZERO, |(at, _)| *at);
            let ends = session.demands.iter().map(|it| it.begin + it.span);
            let hosts = session.hosts.iter().map(|(at, _)| *at);
            ends.chain(hosts).max().unwrap_or(begin).since(begin)
        });
        spans.fold(Millis::ZERO, |sum, span| sum + span)
    }

    /// Time with a permit of the requests of a step.
    pub(super) fn service(&self, step: &DemandStep) -> Millis {
        let own = step.service.or(self.times[step.model].service);
        own.unwrap_or(SERVICE_DEFAULT)
    }

    /// Time of a load as recorded, else as it was expected.
    pub(super) fn load(&self, model: &ModelId, kind: LoadKind, expected: Millis) -> Millis {
        let times = self.times_of(model);
        let loads = times.loads.mean();
        let recorded = match kind {
            LoadKind::Start => loads,
            LoadKind::Wake => times.wakes.mean().or(loads),
        };
        recorded.unwrap_or(expected)
    }

    /// Time from the last request to free memory, as recorded.
    pub(super) fn stop(&self, model: &ModelId) -> Millis {
        let own = self.times_of(model).stops.mean();
        own.or(self.stops.mean()).unwrap_or(STOP_DEFAULT)
    }

    fn times_of(&self, model: &ModelId) -> ModelTimes {
        let place = self.names.iter().position(|name| name == model);
        place.map_or_else(ModelTimes::default, |place| self.times[place])
    }
}

/// Members of the events that count.
#[derive(Deserialize)]
struct EventMembers<'a> {
    ms: u64,
    #[serde(borrow)]
    event: Cow<'a, str>,
    model: Option<ModelId>,
    slot: Option<String>,
    to: Option<String>,
    kind: Option<String>,
    took_ms: Option<u64>,
    victims: Option<Vec<IgnoredAny>>,
}

/// Reader of a recording.
#[derive(Debug, Default)]
pub struct RecordingReader {
    sessions: Vec<TraceSession>,
    places: BTreeMap<ModelId, usize>,
    times: Vec<ModelTimes>,
    stops: MeanTime,
    /// Slots that stop, since when.
    stopping: BTreeMap<String, Millis>,
    figures: RunFigures,
    latest: Millis,
    steps: usize,
    requests: u64,
    left_out: u64,
}

impl RecordingReader {
    /// Takes the next line, without its end.
    ///
    /// # Errors
    /// The line is no event, or there are too many.
    pub fn take(&mut self, line: &[u8]) -> Result<(), TraceLineError> {
        let members: EventMembers<'_> = serde_json::from_slice(line)?;
        let now = Millis(members.ms);
        if self.sessions.is_empty() || now < self.latest {
            self.count_step()?;
            self.sessions.push(TraceSession::default());
            self.stopping.clear();
        }
        self.latest = now;
        match members.event.as_ref() {
            HOST_EVENT => self.take_host(serde_json::from_slice(line)?, now),
            DEMAND_EVENT => self.take_demand(&members, &serde_json::from_slice(line)?),
            "load" => self.take_load(&members),
            "swap" => {
                let victims = members.victims.as_ref().map_or(0, Vec::len);
                self.figures.record_swap(victims);
                Ok(())
            }
            "transition" => self.take_transition(members),
            _ => Ok(()),
        }
    }

    /// Ends the recording.
    ///
    /// # Errors
    /// There is nothing to replay.
    pub fn finish(mut self) -> Result<Recording, RecordingError> {
        self.sessions.retain(|session| !session.hosts.is_empty());
        if self.sessions.is_empty() {
            return Err(RecordingError::NoHost);
        }
        if self.requests == 0 {
            return Err(RecordingError::NoDemand);
        }
        for session in &mut self.sessions {
            session.demands.sort_by_key(|step| step.begin);
        }
        let mut names: Vec<(ModelId, usize)> = self.places.into_iter().collect();
        names.sort_by_key(|(_, place)| *place);
        Ok(Recording {
            sessions: self.sessions,
            names: names.into_iter().map(|(name, _)| name).collect(),
            times: self.times,
            stops: self.stops,
            figures: self.figures,
            left_out: self.left_out,
        })
    }

    fn count_step(&mut self) -> Result<(), TraceLineError> {
        self.steps += 1;
        match self.steps > STEPS_MAX {
            true => Err(TraceLineError::TooLong),
            false => Ok(()),
        }
    }

    /// Place of a model in the names.
    fn place(&mut self, model: &ModelId) -> Result<usize, TraceLineError> {
        if let Some(place) = self.places.get(model) {
            return Ok(*place);
        }
        let place = self.times.len();
        if place >= MODELS_MAX {
            return Err(TraceLineError::TooManyModels);
        }
        self.times.push(ModelTimes::default());
        self.places.insert(model.clone(), place);
        Ok(place)
    }

    /// Takes a configuration; one that says what the latest says is a repetition.
    fn take_host(&mut self, host: HostLine, now: Millis) -> Result<(), TraceLineError> {
        let Some(session) = self.sessions.last_mut() else {
            return Ok(());
        };
        if session
            .hosts
            .last()
            .is_none_or(|(_, latest)| *latest != host)
        {
            session.hosts.push((now, host));
            self.count_step()?;
        }
        Ok(())
    }

    fn take_demand(
        &mut self,
        members: &EventMembers<'_>,
        line: &DemandLine,
    ) -> Result<(), TraceLineError> {
        let Some(model) = &members.model else {
            return Ok(());
        };
        let place = self.place(model)?;
        let waiting = line.arrivals.saturating_sub(line.refused);
        self.figures
            .waits
            .add(line.waited_ms, Millis(line.longest_wait_ms));
        self.figures.requests += u64::from(waiting);
        self.figures.refused += u64::from(line.refused);
        let service = line.service_ms.map(Millis);
        self.times[place].service = self.times[place].service.or(service);
        let Some(session) = self.sessions.last_mut() else {
            return Ok(());
        };
        if session.hosts.is_empty() {
            self.left_out += 1;
            return Ok(());
        }
        if line.arrivals == 0 && line.refused == 0 {
            return Ok(());
        }
        // Requests may come before the configuration that has their model is written: they are played behind it.
        let mut hosts = session.hosts.iter();
        let listed = hosts.find(|(_, host)| host.models.iter().any(|it| it.id == *model));
        let earliest = listed.map_or(Millis::ZERO, |(at, _)| *at);
        let end = Millis(members.ms);
        let begin = (end - Millis(line.span_ms)).max(earliest).min(end);
        session.demands.push(DemandStep {
            begin,
            span: end - begin,
            model: place,
            arrivals: waiting,
            refused: line.refused,
            accounts: line.accounts.max(1),
            priority: line.priority,
            service,
        });
        self.requests += u64::from(waiting) + u64::from(line.refused);
        if self.requests > REQUESTS_MAX {
            return Err(TraceLineError::TooManyRequests);
        }
        self.count_step()
    }

    fn take_load(&mut self, members: &EventMembers<'_>) -> Result<(), TraceLineError> {
        let (Some(model), Some(took)) = (&members.model, members.took_ms.map(Millis)) else {
            return Ok(());
        };
        self.figures.record_load(took);
        let place = self.place(model)?;
        let times = &mut self.times[place];
        match members.kind.as_deref() == Some(LoadKind::Wake.name()) {
            true => times.wakes.add(took),
            false => times.loads.add(took),
        }
        Ok(())
    }

    /// Notes how long a slot stops: until its memory is free, or it sleeps.
    fn take_transition(&mut self, members: EventMembers<'_>) -> Result<(), TraceLineError> {
        let (Some(slot), Some(model), Some(to)) = (members.slot, members.model, members.to) else {
            return Ok(());
        };
        let now = Millis(members.ms);
        match to.as_str() {
            "stopping" if self.stopping.len() < MODELS_MAX => {
                self.stopping.insert(slot, now);
            }
            "cold" | "asleep" => {
                if let Some(since) = self.stopping.remove(&slot) {
                    let place = self.place(&model)?;
                    self.times[place].stops.add(now.since(since));
                    self.stops.add(now.since(since));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
