//! Lives of instances for their reports: metered from the search for leases to the end of their processes.
//!
//! Decides nothing. While an instance serves, its meter is in the gate, which knows each grant and release.

use std::path::Path;
use std::sync::Arc;

use infergate_core::model::slot_url;
use infergate_core::vram::{
    DeviceKind, InstanceIdentity, InstanceMetadata, InstanceMeter, InstanceReport, LoadKind,
    PoolReport, RuntimeMetadata, SetupReport, SetupStatus, SlotId, SlotState, StateTimes, log_tail,
};
use infergate_core::{Millis, ModelId};
use serde::Serialize;

use super::{Driver, Message};
use crate::app::gpu::lifecycle::EventMoment;
use crate::app::gpu::outlets::SetupLine;
use crate::app::gpu::slot_run::{InstanceLife, MeterPlace};
use crate::gpu::process::{InstanceId, LogReader, log_directory, log_file};
use crate::telemetry::clock::rfc3339;
use crate::upstream::ModelRuntime;

/// End of a log that is read for a setup report, which cuts it to its own size.
const LOG_END_BYTES: u64 = 32 * 1024;
/// Beginning of a log in which a line with a version is looked for, and characters of that line.
const VERSION_BYTES: u64 = 64 * 1024;
const VERSION_CHARS: usize = 200;

/// A report with the word that tells its kind, and the instance of a setup report.
#[derive(Serialize)]
struct InstanceLine {
    report: &'static str,
    #[serde(flatten)]
    content: InstanceReport,
}

impl Driver {
    /// Begins the life of an instance, whose leases are sought or that was taken over with them.
    pub(super) fn begin_life(&mut self, slot: &SlotId, id: Option<InstanceId>) {
        let Some(runtime) = self.models.get(&slot.model) else {
            return;
        };
        let every = Millis::from_secs(self.parts.gpu.reports.every_secs);
        let meter = InstanceMeter::new(every, self.parts.shared.clock.now());
        let run = self.slots.entry(slot.clone()).or_default();
        run.instance = Some(InstanceLife {
            id,
            runtime: Arc::clone(runtime),
            shares: run.shares.clone(),
            load_since: None,
            meter: MeterPlace::Driver(Box::new(meter)),
        });
    }

    /// Gives the meter of an instance that becomes ready to its gate.
    pub(super) fn meter_requests(&mut self, slot: &SlotId) {
        let run = self.slots.get_mut(slot);
        let Some(life) = run.and_then(|run| run.instance.as_mut()) else {
            return;
        };
        match std::mem::replace(&mut life.meter, MeterPlace::Gate) {
            MeterPlace::Driver(meter) => life.runtime.gate.meter_slot(&url(slot), *meter),
            // A wake, or a drain that was taken back.
            MeterPlace::Gate => life.runtime.gate.end_slot_wake(&url(slot)),
            MeterPlace::Ended => life.meter = MeterPlace::Ended,
        }
    }

    /// Gives the meters of instances that serve to the gates of now, where a model has another gate than before.
    pub(super) fn move_meters(&mut self) {
        let now = self.parts.shared.clock.now();
        let every = Millis::from_secs(self.parts.gpu.reports.every_secs);
        let mut ended = Vec::new();
        for (slot, run) in &mut self.slots {
            let Some(life) = &mut run.instance else {
                continue;
            };
            let Some(present) = self.models.get(&slot.model) else {
                continue;
            };
            let is_same = Arc::ptr_eq(&present.gate, &life.runtime.gate);
            if is_same || !matches!(life.meter, MeterPlace::Gate) {
                continue;
            }
            let former = std::mem::replace(&mut life.runtime, Arc::clone(present));
            ended.push((slot.clone(), former.gate.end_slot_meter(&url(slot))));
            let meter = InstanceMeter::new(every, now);
            present.gate.meter_slot(&url(slot), meter);
        }
        for (slot, times) in ended {
            self.send_times(&slot, times);
        }
    }

    /// Sends what a report of the pool means to receivers of reports and lifecycle events.
    pub(super) fn send_records(&mut self, slot: &SlotId, report: &PoolReport) {
        if self.outlets.has_events() {
            // The life begins with the search for leases; until then the former one is known.
            let begins = |to: &SlotState| *to == SlotState::Acquiring(LoadKind::Start);
            let id = match report {
                PoolReport::Transition { to, .. } if begins(to) => None,
                _ => self.instance_of(slot),
            };
            if let Some(event) = self.event_moment().of_report((slot, id.as_deref()), report) {
                self.outlets.send_event(&event);
            }
        }
        match report {
            PoolReport::Transition { from, to } => self.follow_life(slot, *from, *to),
            PoolReport::Setup(status) => self.report_setup(slot, *status),
            _ => {}
        }
    }

    pub(super) fn event_moment(&self) -> EventMoment {
        let clock = self.parts.shared.clock;
        EventMoment {
            at: rfc3339(clock.wall()),
            now: clock.now(),
        }
    }

    pub(super) fn instance_of(&self, slot: &SlotId) -> Option<String> {
        let life = self.slots.get(slot)?.instance.as_ref()?;
        life.id.as_ref().map(ToString::to_string)
    }

    fn follow_life(&mut self, slot: &SlotId, from: SlotState, to: SlotState) {
        let is_over = match to {
            SlotState::Cold | SlotState::Reclaiming | SlotState::Failed(_) => !to.has_process(),
            _ => false,
        };
        if is_over {
            self.end_life(slot);
        } else if to == SlotState::Acquiring(LoadKind::Start) {
            // What is told from here on is not of the former life.
            if let Some(run) = self.slots.get_mut(slot) {
                run.instance = None;
            }
        } else if let (SlotState::Acquiring(_), SlotState::Loading(_)) = (from, to) {
            let at = rfc3339(self.parts.shared.clock.wall());
            let run = self.slots.get_mut(slot);
            if let Some(life) = run.and_then(|run| run.instance.as_mut()) {
                life.load_since = Some(at);
                if matches!(life.meter, MeterPlace::Gate) {
                    life.runtime.gate.begin_slot_wake(&url(slot));
                }
            }
        }
    }

    /// Ends the meter of an instance. A life without leases has no report.
    fn end_life(&mut self, slot: &SlotId) {
        let now = self.parts.shared.clock.now();
        let run = self.slots.get_mut(slot);
        let Some(life) = run.and_then(|run| run.instance.as_mut()) else {
            return;
        };
        let times = match std::mem::replace(&mut life.meter, MeterPlace::Ended) {
            MeterPlace::Driver(_) if life.load_since.is_none() => return,
            MeterPlace::Driver(meter) => meter.end(now),
            MeterPlace::Gate => life.runtime.gate.end_slot_meter(&url(slot)),
            MeterPlace::Ended => return,
        };
        self.send_times(slot, times);
    }

    /// Ends all meters, at the end of the gateway.
    pub(super) fn end_lives(&mut self) {
        let slots: Vec<SlotId> = self.slots.keys().cloned().collect();
        slots.iter().for_each(|slot| self.end_life(slot));
        self.outlets.close();
    }

    /// Sends the reports that are due.
    pub(super) fn look_at_reports(&mut self) {
        let now = self.parts.shared.clock.now();
        let mut due = Vec::new();
        for (slot, run) in &mut self.slots {
            let times = match run.instance.as_mut().map(|it| (&mut it.meter, &it.runtime)) {
                Some((MeterPlace::Driver(meter), _)) => meter.take_due(now),
                Some((MeterPlace::Gate, runtime)) => runtime.gate.take_slot_times(&url(slot)),
                Some((MeterPlace::Ended, _)) | None => Vec::new(),
            };
            if !times.is_empty() {
                due.push((slot.clone(), times));
            }
        }
        for (slot, times) in due {
            self.send_times(&slot, times);
        }
        let metrics = self.parts.shared.metrics.gpu();
        metrics.raise_dropped_reports(self.outlets.dropped());
    }

    fn send_times(&self, slot: &SlotId, times: Vec<StateTimes>) {
        if !self.outlets.has_reports() {
            return;
        }
        let Some(life) = self.slots.get(slot).and_then(|run| run.instance.as_ref()) else {
            return;
        };
        let instance = self.identity(slot, life);
        for times in times {
            self.outlets.send_report(&InstanceLine {
                report: "instance",
                content: InstanceReport {
                    instance: instance.clone(),
                    times,
                },
            });
        }
    }

    fn identity(&self, slot: &SlotId, life: &InstanceLife) -> InstanceIdentity {
        let share = life.shares.first();
        let mut devices = self.reading.devices.iter();
        let device = devices.find(|it| share.is_some_and(|own| own.device == it.view.info.id));
        let info = device.map(|device| &device.view.info);
        let unit = info.map_or("none", |info| match info.kind {
            DeviceKind::Gpu => "gpu",
            DeviceKind::Mig => "mig",
            DeviceKind::Ram => "cpu",
            DeviceKind::Simulated => "simulated",
        });
        InstanceIdentity {
            deployment_key: key(&slot.model),
            docker_image_uri: None,
            hardware: info.map_or_else(String::new, |info| info.name.to_string()),
            compute_unit: unit.to_owned(),
            compute_unit_count: u32::try_from(life.shares.len()).unwrap_or(u32::MAX),
            instance_id: life
                .id
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
            instance_metadata: self.metadata(slot, life),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    fn metadata(&self, slot: &SlotId, life: &InstanceLife) -> InstanceMetadata {
        let snapshot = self.parts.shared.snapshot.load();
        let devices = life.shares.iter().map(|share| share.device.to_string());
        InstanceMetadata {
            node: snapshot.node.to_string(),
            site: Some(snapshot.site.to_string()).filter(|site| !site.is_empty()),
            slot: slot.to_string(),
            devices: devices.collect(),
        }
    }

    /// Makes the report of a load that ended. The log is read aside, and the report comes back as a message.
    fn report_setup(&mut self, slot: &SlotId, status: SetupStatus) {
        if !self.outlets.has_reports() {
            return;
        }
        let run = self.slots.get(slot);
        let Some((run, life)) = run.and_then(|run| Some((run, run.instance.as_ref()?))) else {
            return;
        };
        let completed_at = rfc3339(self.parts.shared.clock.wall());
        let process = life.runtime.spec.process.as_ref();
        let preset = process.and_then(|process| process.preset.as_deref());
        let digest = run.started.as_ref().map(|it| it.argv_digest.clone());
        let mut line = SetupLine {
            report: "setup",
            deployment_key: key(&slot.model),
            instance_id: life.id.as_ref().map(ToString::to_string),
            content: SetupReport {
                status,
                started_at: life
                    .load_since
                    .clone()
                    .unwrap_or_else(|| completed_at.clone()),
                completed_at,
                logs: String::new(),
                instance_metadata: self.metadata(slot, life),
                runtime_metadata: RuntimeMetadata {
                    preset: preset.map(ToOwned::to_owned),
                    version: None,
                    argv_digest: digest.unwrap_or_default(),
                    estimate_mib: life.shares.iter().map(|share| share.mib).sum(),
                    measured_mib: self
                        .estimates
                        .get(&slot.model)
                        .and_then(|it| it.measured_mib),
                },
            },
        };
        let directory = log_directory(&self.parts.state_dir);
        let ring = life.id.as_ref().map(|id| log_file(&directory, id));
        // Of a process that was not started, this is all there is.
        let problem = run.problem.clone().filter(|_| run.started.is_none());
        let sender = self.sender.clone();
        self.tasks.spawn_blocking(move || {
            let log = ring.and_then(|ring| read_log(&ring).ok());
            let (version, end) = log.unwrap_or_default();
            line.content.runtime_metadata.version = version;
            line.content.logs = match end.is_empty() {
                true => problem.unwrap_or_default(),
                false => log_tail(&end),
            };
            let _ = sender.blocking_send(Message::SetUp(Box::new(line)));
        });
    }

    /// Gate of a slot, also of a model that the configuration has no more and that drains.
    pub(super) fn runtime_of(&self, slot: &SlotId) -> Option<&Arc<ModelRuntime>> {
        let present = self.models.get(&slot.model);
        present.or_else(|| Some(&self.slots.get(slot)?.instance.as_ref()?.runtime))
    }
}

/// Reads the line with a version, and the end of a log.
fn read_log(ring: &Path) -> std::io::Result<(Option<String>, Vec<u8>)> {
    let begin = LogReader::open(ring)?.read(VERSION_BYTES)?.bytes;
    let begin = String::from_utf8_lossy(&begin);
    let mut lines = begin.lines();
    let version = lines.find(|line| line.to_ascii_lowercase().contains("version"));
    let version = version.map(|line| line.trim().chars().take(VERSION_CHARS).collect());
    let end = LogReader::open(ring)?.tail(usize::MAX, LOG_END_BYTES)?;
    Ok((version, end))
}

fn key(model: &ModelId) -> String {
    model.as_str().to_owned()
}

fn url(slot: &SlotId) -> String {
    slot_url(&slot.model, slot.number.into())
}
