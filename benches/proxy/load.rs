//! The load generator: keep-alive connections over raw sockets, measured inside one window.
//! Not a client of anything else: one request, built once, sent again and again.
//!
//! The closed loop is here: each connection sends when the last answer is whole. The other is `open_loop.rs`.
//! Run as a child process: `load PLAN`, both plan and report being one line of JSON.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::kit::figures::{Latencies, Quantiles};
use crate::kit::request::Chat;
use crate::kit::wire::ResponseReader;
use crate::kit::{Fallible, procfs};
use crate::open_loop;

/// Pause before a connection that failed is opened again.
const RECONNECT_AFTER: Duration = Duration::from_millis(5);
/// A first event later than this smells of a delayed acknowledgement (Nagle without TCP_NODELAY).
const STEP: Duration = Duration::from_millis(35);

/// Requests to send, their address, and the process to watch meanwhile.
#[derive(Clone, Serialize, Deserialize)]
pub struct Plan {
    pub target: SocketAddr,
    pub model: String,
    /// Keys of the connections: each uses one, in turn.
    pub keys: Vec<String>,
    pub connections: usize,
    /// Requests per second of all connections together; absent for a closed loop.
    pub open_rate: Option<f64>,
    pub body_bytes: usize,
    /// Streams with this pause between events; absent for plain answers.
    pub stream_pause_us: Option<u64>,
    pub warm_up_ms: u64,
    pub window_ms: u64,
    pub expected_status: u16,
    /// CPU that the generator runs on.
    pub core: String,
    /// Processes whose CPU and memory the report gives.
    pub pids: Vec<u32>,
}

/// Events inside the window.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub window_s: f64,
    pub answers: u64,
    /// Answers of another status than expected, and one of those statuses.
    pub unexpected: u64,
    pub unexpected_status: u16,
    pub errors: u64,
    pub events: u64,
    pub cpu_us: f64,
    pub rss_kib: u64,
    pub peak_rss_kib: u64,
    pub latency: Quantiles,
    pub first_event: Quantiles,
    pub gap: Quantiles,
    /// First events that came later than a delayed acknowledgement would let them.
    pub late_first_events: u64,
}

impl Report {
    pub fn cpu_us_per_answer(&self) -> f64 {
        self.cpu_us / self.answers as f64
    }

    pub fn cpu_us_per_event(&self) -> f64 {
        self.cpu_us / self.events as f64
    }

    pub fn answers_per_s(&self) -> f64 {
        self.answers as f64 / self.window_s
    }
}

/// Runs one plan and prints its report.
pub fn run(plan_json: &str) -> Fallible<()> {
    let plan: Plan = serde_json::from_str(plan_json)?;
    let report = match plan.open_rate {
        Some(rate) => open_loop::run(&plan, rate)?,
        None => closed_loop(&plan)?,
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

impl Plan {
    pub fn requests(&self) -> Vec<Vec<u8>> {
        let fields = match self.stream_pause_us {
            Some(pause_us) => format!("\"stream\":true,\"seed\":{pause_us}"),
            None => "\"temperature\":0.7".to_owned(),
        };
        self.keys
            .iter()
            .map(|key| {
                Chat {
                    model: &self.model,
                    key: Some(key),
                    body_bytes: self.body_bytes,
                    fields: &fields,
                    headers: "",
                }
                .bytes()
            })
            .collect()
    }

    pub fn warm_up(&self) -> Duration {
        Duration::from_millis(self.warm_up_ms)
    }

    /// Streams begin spread over the warm-up; started together they would all send their events at once.
    fn start_of(&self, connection: usize) -> Duration {
        match self.stream_pause_us {
            Some(_) => self
                .warm_up()
                .mul_f64(connection as f64 / self.connections as f64),
            None => Duration::ZERO,
        }
    }

    pub fn window(&self) -> Duration {
        Duration::from_millis(self.window_ms)
    }

    pub fn cpu_ns(&self) -> Fallible<u64> {
        self.pids.iter().map(|pid| procfs::cpu_ns(*pid)).sum()
    }
}

/// Counts of one window. Outside the window nothing is counted.
pub struct Tally {
    pub measuring: bool,
    answers: u64,
    expected_status: u16,
    unexpected: u64,
    unexpected_status: u16,
    errors: u64,
    events: u64,
    late_first_events: u64,
    latency: Latencies,
    first_event: Latencies,
    gap: Latencies,
}

impl Tally {
    pub fn new(expected_status: u16) -> Self {
        Self {
            measuring: false,
            answers: 0,
            expected_status,
            unexpected: 0,
            unexpected_status: 0,
            errors: 0,
            events: 0,
            late_first_events: 0,
            latency: Latencies::new(),
            first_event: Latencies::new(),
            gap: Latencies::new(),
        }
    }

    fn answered(&mut self, status: u16, latency: Duration) {
        if self.measuring {
            self.record(status, latency);
        }
    }

    /// Counts an answer whenever it comes.
    pub fn record(&mut self, status: u16, latency: Duration) {
        self.answers += 1;
        if status != self.expected_status {
            self.unexpected += 1;
            self.unexpected_status = status;
        }
        self.latency.record(latency);
    }

    pub fn failed(&mut self) {
        self.errors += u64::from(self.measuring);
    }

    /// Counts requests that have had no answer when the run ends.
    pub fn unanswered(&mut self, count: u64) {
        self.errors += count;
    }

    /// `count` events came at once; the first of them closes a gap, the others follow without one.
    fn events_came(&mut self, count: u64, since_request: Duration, since_last: Option<Duration>) {
        if !self.measuring || count == 0 {
            return;
        }
        self.events += count;
        match since_last {
            Some(gap) => self.gap.record(gap),
            None => {
                self.first_event.record(since_request);
                self.late_first_events += u64::from(since_request > STEP);
            }
        }
    }

    pub fn report(&self, plan: &Plan, window: Duration, cpu_ns: u64) -> Fallible<Report> {
        let mut report = Report {
            window_s: window.as_secs_f64(),
            answers: self.answers,
            unexpected: self.unexpected,
            unexpected_status: self.unexpected_status,
            errors: self.errors,
            events: self.events,
            cpu_us: cpu_ns as f64 / 1_000.0,
            latency: self.latency.summary(),
            first_event: self.first_event.summary(),
            gap: self.gap.summary(),
            late_first_events: self.late_first_events,
            ..Report::default()
        };
        for pid in &plan.pids {
            report.rss_kib += procfs::rss_kib(*pid)?;
            report.peak_rss_kib += procfs::peak_rss_kib(*pid)?;
        }
        Ok(report)
    }
}

/// All connections on one thread: the cheapest way to keep a proxy busy from one core.
fn closed_loop(plan: &Plan) -> Fallible<Report> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, async {
        let tally = Rc::new(RefCell::new(Tally::new(plan.expected_status)));
        let requests: Rc<Vec<Vec<u8>>> = Rc::new(plan.requests());
        for number in 0..plan.connections {
            let (requests, tally, target) = (requests.clone(), tally.clone(), plan.target);
            let starts_after = plan.start_of(number);
            tokio::task::spawn_local(async move {
                tokio::time::sleep(starts_after).await;
                let request = &requests[number % requests.len()];
                loop {
                    // Ends only by an error; the process ends with the window.
                    let _ = closed_connection(target, request, &tally).await;
                    tally.borrow_mut().failed();
                    tokio::time::sleep(RECONNECT_AFTER).await;
                }
            });
        }
        tokio::time::sleep(plan.warm_up()).await;
        let cpu_before = plan.cpu_ns()?;
        let began = Instant::now();
        tally.borrow_mut().measuring = true;
        tokio::time::sleep(plan.window()).await;
        tally.borrow_mut().measuring = false;
        let cpu_ns = plan.cpu_ns()? - cpu_before;
        let report = tally.borrow().report(plan, began.elapsed(), cpu_ns)?;
        Ok(report)
    })
}

async fn closed_connection(
    target: SocketAddr,
    request: &[u8],
    tally: &RefCell<Tally>,
) -> Fallible<()> {
    let mut buffer = vec![0_u8; 64 * 1024];
    loop {
        let mut stream = tokio::net::TcpStream::connect(target).await?;
        stream.set_nodelay(true)?;
        let mut keep_alive = true;
        while keep_alive {
            let began = Instant::now();
            stream.write_all(request).await?;
            let mut answer = ResponseReader::new();
            let mut last_event = None;
            while !answer.is_done() {
                let count = stream.read(&mut buffer).await?;
                let events_before = answer.events;
                match count {
                    0 => answer.close()?,
                    _ => answer.feed(&buffer[..count])?,
                }
                let fresh = answer.events - events_before;
                if fresh > 0 {
                    let now = Instant::now();
                    let gap = last_event.replace(now).map(|last| now - last);
                    tally.borrow_mut().events_came(fresh, now - began, gap);
                }
            }
            tally.borrow_mut().answered(answer.status, began.elapsed());
            keep_alive = answer.keep_alive;
        }
    }
}
