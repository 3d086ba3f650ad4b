//! Reports of an instance: the time that it spent booting, idle and active, and the outcome of its load.
//!
//! Neither sent nor stamped with wall-clock time here. Times are whole milliseconds, and each belongs to exactly one
//! report and one state: the three times of a report add up to its duration.

use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};

use crate::Millis;

/// Reports that a late call returns at most; the time of further ones is joined into the last.
const DUE_MAX: usize = 240;
/// Bytes of a log that a setup report carries.
const LOG_TAIL_MAX: usize = 20 * 1024;

/// State of an instance, as its reports name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceState {
    /// Leases are sought, or the process becomes ready.
    Boot,
    /// No request is in flight.
    Idle,
    /// Requests are in flight.
    Active,
}

/// Times of an instance in one report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateTimes {
    /// Time until ready.
    pub boot: Millis,
    /// Time without a request.
    pub idle: Millis,
    /// Time with one or more.
    pub active: Millis,
    /// Sum over the requests of their time in flight, milliseconds.
    pub in_flight_ms: u128,
}

impl StateTimes {
    /// Returns the time that the report covers.
    pub fn duration(&self) -> Millis {
        self.boot + self.idle + self.active
    }

    /// Returns the part of the time with requests, 0 to 1.
    pub fn utilization(&self) -> f64 {
        ratio(self.active.0 as f64, self.duration())
    }

    /// Returns the mean number of requests in flight, weighted by time.
    pub fn mean_concurrency(&self) -> f64 {
        ratio(self.in_flight_ms as f64, self.duration())
    }

    /// Joins the time of a later report.
    pub fn join(&mut self, later: StateTimes) {
        self.boot = self.boot + later.boot;
        self.idle = self.idle + later.idle;
        self.active = self.active + later.active;
        self.in_flight_ms += later.in_flight_ms;
    }

    fn add(&mut self, state: InstanceState, in_flight: u32, span: Millis) {
        let time = match state {
            InstanceState::Boot => &mut self.boot,
            InstanceState::Idle => &mut self.idle,
            InstanceState::Active => &mut self.active,
        };
        *time = *time + span;
        self.in_flight_ms += u128::from(in_flight) * u128::from(span.0);
    }
}

/// Writes the members of an instance report in seconds.
impl Serialize for StateTimes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut times = serializer.serialize_struct("StateTimes", 6)?;
        times.serialize_field("active_time", &seconds(self.active))?;
        times.serialize_field("boot_time", &seconds(self.boot))?;
        times.serialize_field("idle_time", &seconds(self.idle))?;
        times.serialize_field("metric_duration", &seconds(self.duration()))?;
        times.serialize_field("utilization", &self.utilization())?;
        times.serialize_field("mean_concurrency", &self.mean_concurrency())?;
        times.end()
    }
}

fn seconds(time: Millis) -> f64 {
    time.0 as f64 / 1000.0
}

fn ratio(part: f64, duration: Millis) -> f64 {
    match duration.0 {
        0 => 0.0,
        ms => part / ms as f64,
    }
}

/// Meter of one instance, from the search for leases to the end of its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceMeter {
    every: Millis,
    is_ready: bool,
    in_flight: u32,
    /// Moment up to which time has been counted.
    counted_to: Millis,
    /// End of the running report.
    due_at: Millis,
    running: StateTimes,
}

impl InstanceMeter {
    /// Returns the meter of an instance that boots. A report covers `every`, at least 1 ms.
    pub fn new(every: Millis, now: Millis) -> InstanceMeter {
        let every = every.max(Millis(1));
        InstanceMeter {
            every,
            is_ready: false,
            in_flight: 0,
            counted_to: now,
            due_at: now + every,
            running: StateTimes::default(),
        }
    }

    /// Returns the present state.
    pub fn state(&self) -> InstanceState {
        match (self.is_ready, self.in_flight) {
            (false, _) => InstanceState::Boot,
            (true, 0) => InstanceState::Idle,
            (true, _) => InstanceState::Active,
        }
    }

    /// Returns the moment the next report is due.
    pub fn due_at(&self) -> Millis {
        self.due_at
    }

    /// Notes that the instance is ready; returns the reports that were due.
    pub fn become_ready(&mut self, now: Millis) -> Vec<StateTimes> {
        let due = self.take_due(now);
        self.is_ready = true;
        due
    }

    /// Notes that the instance boots again, out of its sleep; returns the reports that were due.
    pub fn begin_wake(&mut self, now: Millis) -> Vec<StateTimes> {
        let due = self.take_due(now);
        self.is_ready = false;
        self.in_flight = 0;
        due
    }

    /// Sets the number of requests in flight; returns the reports that were due. None are in flight during a boot.
    pub fn set_in_flight(&mut self, in_flight: u32, now: Millis) -> Vec<StateTimes> {
        // At each grant and release: time alone is counted at most of them.
        let due = match now < self.due_at {
            true => {
                self.count_to(now);
                Vec::new()
            }
            false => self.take_due(now),
        };
        if self.is_ready {
            self.in_flight = in_flight;
        }
        due
    }

    /// Returns the reports that are due at `now`, oldest first, each over exactly the same time.
    ///
    /// After a gap of `DUE_MAX` reports the rest of the gap is in the last one. A `now` before an earlier one counts
    /// as no time.
    pub fn take_due(&mut self, now: Millis) -> Vec<StateTimes> {
        let mut due = Vec::new();
        while now >= self.due_at && due.len() < DUE_MAX - 1 {
            due.push(self.cut(self.due_at));
        }
        if now >= self.due_at {
            let periods = now.since(self.due_at).0 / self.every.0;
            let end = self.due_at + Millis(periods.saturating_mul(self.every.0));
            due.push(self.cut(end));
        }
        self.count_to(now);
        due
    }

    /// Ends the instance: returns the reports that were due, and the last one up to `now`.
    pub fn end(mut self, now: Millis) -> Vec<StateTimes> {
        let mut due = self.take_due(now);
        if self.running.duration() > Millis::ZERO {
            due.push(self.running);
        }
        due
    }

    fn cut(&mut self, end: Millis) -> StateTimes {
        self.count_to(end);
        self.due_at = end + self.every;
        std::mem::take(&mut self.running)
    }

    fn count_to(&mut self, now: Millis) {
        let (state, span) = (self.state(), now.since(self.counted_to));
        self.running.add(state, self.in_flight, span);
        self.counted_to = self.counted_to.max(now);
    }
}

/// Identity of an instance in its reports.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InstanceIdentity {
    /// Model as the operator deploys it.
    pub deployment_key: String,
    /// Image of a container; `None` for a process.
    pub docker_image_uri: Option<String>,
    /// Name of the device.
    pub hardware: String,
    /// Kind of the device.
    pub compute_unit: String,
    /// Devices.
    pub compute_unit_count: u32,
    /// Identity of this life of the slot.
    pub instance_id: String,
    /// Place.
    pub instance_metadata: InstanceMetadata,
    /// Version of the gateway.
    pub version: String,
}

/// Place of an instance.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InstanceMetadata {
    /// Node.
    pub node: String,
    /// Site of the node.
    pub site: Option<String>,
    /// Slot.
    pub slot: String,
    /// Devices.
    pub devices: Vec<String>,
}

/// Report of the time of an instance.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InstanceReport {
    /// Instance.
    #[serde(flatten)]
    pub instance: InstanceIdentity,
    /// Times.
    #[serde(flatten)]
    pub times: StateTimes,
}

/// Outcome of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SetupStatus {
    /// The instance became ready.
    Ready,
    /// The process ended, or was never started.
    Failed,
    /// The load took too long.
    TimedOut,
    /// The device had less memory than the process took.
    OutOfMemory,
    /// The load was not wanted any more.
    Aborted,
}

impl SetupStatus {
    /// Every outcome.
    pub const ALL: [SetupStatus; 5] = [
        SetupStatus::Ready,
        SetupStatus::Failed,
        SetupStatus::TimedOut,
        SetupStatus::OutOfMemory,
        SetupStatus::Aborted,
    ];

    /// Returns the name in reports, events and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            SetupStatus::Ready => "ready",
            SetupStatus::Failed => "failed",
            SetupStatus::TimedOut => "timed_out",
            SetupStatus::OutOfMemory => "out_of_memory",
            SetupStatus::Aborted => "aborted",
        }
    }
}

/// Report of a load, once for each.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SetupReport {
    /// Outcome.
    pub status: SetupStatus,
    /// Start of the load, RFC 3339.
    pub started_at: String,
    /// End of the load, RFC 3339.
    pub completed_at: String,
    /// End of the process's log, see [`log_tail`].
    pub logs: String,
    /// Place.
    pub instance_metadata: InstanceMetadata,
    /// Process.
    pub runtime_metadata: RuntimeMetadata,
}

/// Process of a load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RuntimeMetadata {
    /// Preset; `None` for a command of the operator's own.
    pub preset: Option<String>,
    /// First line that names a version in the process's log.
    pub version: Option<String>,
    /// SHA-256 of the arguments.
    pub argv_digest: String,
    /// Memory that was leased, MiB.
    pub estimate_mib: u64,
    /// Memory that was measured, MiB.
    pub measured_mib: Option<u64>,
}

/// Returns the last 20 KiB of a log as text, from the beginning of a character on.
pub fn log_tail(log: &[u8]) -> String {
    let mut tail = &log[log.len().saturating_sub(LOG_TAIL_MAX)..];
    if tail.len() < log.len() {
        let is_continuation = |byte: &&u8| (**byte & 0xC0) == 0x80;
        let cut = tail.iter().take(3).take_while(is_continuation).count();
        tail = &tail[cut..];
    }
    String::from_utf8_lossy(tail).into_owned()
}

#[cfg(test)]
#[path = "report/tests.rs"]
mod tests;
