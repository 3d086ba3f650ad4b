//! Faults on demand: what a test or a demo asks the simulated server to do wrong. Not failures of
//! the simulator itself.
//!
//! A fault comes with one request (header `x-sim-fault`, or the body's top-level `x_sim_fault`,
//! which passes gateways that strip headers), or is set for the whole server and drawn by
//! probability. A request's own fault goes first.

use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use fastrand::Rng;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Faults of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Close the connection without a byte of answer; a whole server that refuses with
    /// probability 1 closes it as soon as it is accepted.
    Refuse,
    /// Reset the connection (RST) after the request was read.
    ResetBeforeHeaders,
    /// Send half of the answer, then reset the connection.
    ResetMidStream,
    /// Take a slot and never answer.
    Stall,
    /// Send half of a stream, then nothing more.
    StallMidStream,
    /// Answer with this HTTP status and the dialect's error body.
    Status(u16),
    /// Ten times the usual pauses.
    Slow,
    /// The model raises an exception, which Cog answers with 200.
    ModelFails,
    /// The worker of Cog is gone, and its server stays.
    WorkerCrash,
    /// Cog could not load the model.
    SetupFailed,
    /// The check of Cog's model fails.
    Unhealthy,
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
        match text.trim() {
            "refuse" => Ok(Fault::Refuse),
            "reset-before-headers" => Ok(Fault::ResetBeforeHeaders),
            "reset-mid-stream" => Ok(Fault::ResetMidStream),
            "stall" => Ok(Fault::Stall),
            "stall-mid-stream" => Ok(Fault::StallMidStream),
            "slow" => Ok(Fault::Slow),
            "model-fails" => Ok(Fault::ModelFails),
            "worker-crash" => Ok(Fault::WorkerCrash),
            "setup-failed" => Ok(Fault::SetupFailed),
            "unhealthy" => Ok(Fault::Unhealthy),
            other => match other.strip_prefix("status=").map(str::parse) {
                Some(Ok(status @ 400..=599)) => Ok(Fault::Status(status)),
                _ => Err(format!(
                    "unknown fault {other:?}: use refuse, reset-before-headers, \
                     reset-mid-stream, stall, stall-mid-stream, slow, model-fails, worker-crash, \
                     setup-failed, unhealthy or status=400..599"
                )),
            },
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Refuse => f.write_str("refuse"),
            Fault::ResetBeforeHeaders => f.write_str("reset-before-headers"),
            Fault::ResetMidStream => f.write_str("reset-mid-stream"),
            Fault::Stall => f.write_str("stall"),
            Fault::StallMidStream => f.write_str("stall-mid-stream"),
            Fault::Status(status) => write!(f, "status={status}"),
            Fault::Slow => f.write_str("slow"),
            Fault::ModelFails => f.write_str("model-fails"),
            Fault::WorkerCrash => f.write_str("worker-crash"),
            Fault::SetupFailed => f.write_str("setup-failed"),
            Fault::Unhealthy => f.write_str("unhealthy"),
        }
    }
}

/// A fault for the whole server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServerFault {
    /// The fault to produce.
    pub fault: Fault,
    /// The share of requests it happens to, 0 to 1.
    pub probability: f64,
    /// Number of times it happens before the server is well again; `None` is for ever.
    pub count: Option<u64>,
    /// Health routes fail too. `refuse` takes them in any case.
    pub health: bool,
}

#[cfg(test)]
impl ServerFault {
    /// Every request, until it is taken back.
    pub fn always(fault: Fault) -> ServerFault {
        ServerFault {
            fault,
            probability: 1.0,
            count: None,
            health: false,
        }
    }
}

impl ServerFault {
    fn refuses_all(&self) -> bool {
        self.fault == Fault::Refuse && self.probability >= 1.0
    }
}

/// The body of `PUT /sim/fault`, and the answer to `GET`.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FaultText {
    fault: Option<String>,
    #[serde(default = "certain")]
    probability: f64,
    #[serde(default)]
    count: Option<u64>,
    #[serde(default)]
    health: bool,
}

fn certain() -> f64 {
    1.0
}

impl FaultText {
    pub(super) fn read(&self) -> Result<Option<ServerFault>, String> {
        if !(0.0..=1.0).contains(&self.probability) {
            return Err("probability must be from 0 to 1".into());
        }
        let Some(text) = self.fault.as_deref().filter(|text| *text != "none") else {
            return Ok(None);
        };
        let FaultText {
            probability,
            count,
            health,
            ..
        } = *self;
        Ok(Some(ServerFault {
            fault: text.parse()?,
            probability,
            count,
            health,
        }))
    }

    pub(super) fn of(set: Option<ServerFault>) -> FaultText {
        match set {
            None => FaultText {
                fault: None,
                probability: 1.0,
                count: None,
                health: false,
            },
            Some(ServerFault {
                fault,
                probability,
                count,
                health,
            }) => FaultText {
                fault: Some(fault.to_string()),
                probability,
                count,
                health,
            },
        }
    }
}

/// Point in a request at which a fault may strike.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FaultPoint {
    Accept,
    Request,
    Health,
}

/// The fault set for the whole server, and its dice.
pub(super) struct Faults {
    /// False lets the common case pass without the lock.
    armed: AtomicBool,
    /// Guards the fault's remaining count; held while a fault is drawn or set.
    set: Mutex<(Option<ServerFault>, Rng)>,
}

impl Faults {
    pub(super) fn new(seed: u64) -> Faults {
        Faults {
            armed: AtomicBool::new(false),
            set: Mutex::new((None, Rng::with_seed(seed))),
        }
    }

    pub(super) fn set(&self, fault: Option<ServerFault>) {
        let mut set = self.set.lock();
        set.0 = fault;
        self.armed.store(fault.is_some(), Relaxed);
    }

    pub(super) fn get(&self) -> Option<ServerFault> {
        self.set.lock().0
    }

    /// Returns true when new connections are closed as soon as they are accepted.
    pub(super) fn is_refusing(&self) -> bool {
        self.armed.load(Relaxed) && self.get().is_some_and(|fault| fault.refuses_all())
    }

    /// The fault that strikes now, if one does; counts it down.
    pub(super) fn draw(&self, moment: FaultPoint) -> Option<Fault> {
        if !self.armed.load(Relaxed) {
            return None;
        }
        let mut guard = self.set.lock();
        let (set, rng) = &mut *guard;
        let plan = set.as_mut()?;
        let concerned = match moment {
            FaultPoint::Accept => plan.refuses_all(),
            FaultPoint::Request => true,
            FaultPoint::Health => plan.health || plan.fault == Fault::Refuse,
        };
        if !concerned || rng.f64() >= plan.probability {
            return None;
        }
        let fault = plan.fault;
        if let Some(left) = &mut plan.count {
            *left = left.saturating_sub(1);
            if *left == 0 {
                *set = None;
                self.armed.store(false, Relaxed);
            }
        }
        Some(fault)
    }
}
