//! A stand: one gateway process, one counting backend, clients of the one and the book of the other.
//! Not a fixture of behaviour: items say which accounts and models it has.
//!
//! A stand is closed by hand, because closing it is part of what is accepted: drain, events, metrics.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use crate::backend::{self, RequestCounts};
use crate::client::Client;
use crate::kit::Fallible;
use crate::kit::gateway::{Account, Gateway, Model, Settings};
use crate::kit::process::find_program;

pub const MODEL: &str = "accept";
/// P and S of the acceptance section.
pub const PERMITS: u32 = 8;
pub const SERVICE_MS: u64 = 100;

/// Longest wait for a drain; the gateway's own limit is 60 s.
const DRAIN_LIMIT: Duration = Duration::from_secs(70);
/// Polling of the admin listener; each look is one short connection.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Scale of a run: duration of a load step, and share of the trials.
#[derive(Clone, Copy)]
pub struct Scale {
    /// Length of one load step.
    pub step: Duration,
    /// Share of the full number of trials and reloads, at most one.
    share: f64,
}

impl Scale {
    pub const FULL: Self = Self {
        step: Duration::from_secs(30),
        share: 1.0,
    };

    pub fn of_seconds(seconds: f64) -> Self {
        let share = (seconds / Self::FULL.step.as_secs_f64()).min(1.0);
        Self {
            step: Duration::from_secs_f64(seconds),
            share,
        }
    }

    /// The same with load steps of at least `step`.
    pub fn of_at_least(self, step: Duration) -> Self {
        Self {
            step: self.step.max(step),
            ..self
        }
    }

    /// A count of the acceptance section, scaled, at least 10.
    pub fn count(self, full: usize) -> usize {
        ((full as f64 * self.share) as usize).max(10)
    }
}

pub struct TestBed {
    name: &'static str,
    pub gateway: Gateway,
    pub book: RequestCounts,
    /// Through the gateway.
    pub client: Client,
    /// Past the gateway, at the backend.
    pub direct: Client,
}

/// Counts that item 9 compares.
pub struct EventTotals {
    pub stand: &'static str,
    pub sent: u64,
    pub events: u64,
    /// None when promtool is not installed.
    pub promtool: Option<String>,
    exit: Option<i32>,
    drained_in: Duration,
}

impl EventTotals {
    pub fn exited_well(&self) -> bool {
        self.exit == Some(0) && self.drained_in <= Duration::from_secs(2)
    }

    pub fn exit_text(&self) -> String {
        match self.exit {
            Some(code) => format!("exit {code} after {:.2} s", self.drained_in.as_secs_f64()),
            None => format!("still there after {:.0} s", self.drained_in.as_secs_f64()),
        }
    }
}

impl TestBed {
    pub fn open(
        name: &'static str,
        runtime: &Runtime,
        accounts: Vec<Account>,
        permits: u32,
        algorithm: &'static str,
        capacity: u32,
    ) -> Fallible<Self> {
        let (backend, book) = backend::start(runtime)?;
        let settings = Settings {
            threads: 2,
            accounts,
            models: vec![Model {
                id: MODEL.into(),
                endpoints: vec![backend],
                permits_per_endpoint: permits,
                algorithm,
                capacity,
            }],
            plugins: None,
            fleet: None,
        };
        let gateway = Gateway::start(name, settings, None)?;
        let client = Client::new(gateway.clients);
        Ok(Self {
            name,
            gateway,
            book,
            client,
            direct: Client::new(backend),
        })
    }

    /// Permits in use and requests waiting, as `GET /state` says.
    pub fn held(&self) -> Fallible<HeldAdmission> {
        let state = self.gateway.state()?;
        let model = &state["models"][0];
        let mut used = 0;
        for endpoint in model["endpoints"]
            .as_array()
            .ok_or("/state has no endpoints")?
        {
            used += endpoint["permits"]["used"]
                .as_u64()
                .ok_or("/state has no permits.used")?;
        }
        let waiting = model["queue"]["depth"]
            .as_u64()
            .ok_or("/state has no queue.depth")?;
        Ok(HeldAdmission { used, waiting })
    }

    /// Waits until what is held satisfies `wanted`; None when `limit` passes first.
    pub fn wait_until_held(
        &self,
        limit: Duration,
        wanted: impl Fn(HeldAdmission) -> bool,
    ) -> Fallible<Option<Duration>> {
        let began = Instant::now();
        loop {
            if wanted(self.held()?) {
                return Ok(Some(began.elapsed()));
            }
            if began.elapsed() > limit {
                return Ok(None);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Checks the metrics, drains the gateway and counts its events.
    pub fn close(mut self) -> Fallible<EventTotals> {
        let promtool = match find_program("promtool") {
            Some(program) => Some(check_metrics(&program, &self.gateway.metrics()?)?),
            None => None,
        };
        let began = Instant::now();
        self.gateway.process.signal("TERM")?;
        let exit = self.gateway.process.wait_for_end(DRAIN_LIMIT)?;
        Ok(EventTotals {
            stand: self.name,
            sent: self.client.sent(),
            events: self.gateway.event_lines()?,
            promtool,
            exit,
            drained_in: began.elapsed(),
        })
    }
}

/// Admission state of a model at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeldAdmission {
    pub used: u64,
    pub waiting: u64,
}

/// "ok", or promtool's first complaint.
fn check_metrics(program: &std::path::Path, metrics: &str) -> Fallible<String> {
    let mut child = Command::new(program)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(metrics.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok("ok".into());
    }
    let words = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&words);
    Ok(text
        .lines()
        .next()
        .unwrap_or("it failed without a word")
        .to_owned())
}
