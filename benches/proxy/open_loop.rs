//! The open loop: one schedule for all connections, latency counted from the intended start.
//! Not a pacer: a late request is sent at once, and its lateness is part of its latency.
//!
//! A thread of its own sleeps from one start to the next, to the microsecond: timers of an event loop would come
//! in bursts of a millisecond. Connections share another thread. Called by `load.rs`.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::kit::wire::ResponseReader;
use crate::kit::{Fallible, procfs};
use crate::load::{Plan, Report, Tally};

/// Time between connecting and the first request.
const CONNECTING: Duration = Duration::from_millis(50);
/// Longest wait for the last answers; what comes later counts as an error.
const DRAIN_LIMIT: Duration = Duration::from_millis(500);
/// Requests that may wait for a free connection: seconds of any rate used here. A proxy that is so far
/// behind is overloaded, and further requests count as errors.
const WAITING_MAX: usize = 100_000;

/// Runs a plan at `rate` requests a second, all connections together.
pub fn run(plan: &Plan, rate: f64) -> Fallible<Report> {
    procfs::sharpen_timers();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    tokio::task::LocalSet::new().block_on(&runtime, measure(plan, rate))
}

async fn measure(plan: &Plan, rate: f64) -> Fallible<Report> {
    let interval = Duration::from_secs_f64(1.0 / rate);
    let first = Instant::now() + CONNECTING;
    let schedule = Schedule {
        first,
        interval,
        window_begins: first + plan.warm_up(),
        window_ends: first + plan.warm_up() + plan.window(),
    };
    let state = Rc::new(State::new(plan));
    let requests = Rc::new(plan.requests());
    for number in 0..plan.connections {
        let (state, requests, target) = (state.clone(), requests.clone(), plan.target);
        tokio::task::spawn_local(async move {
            let request = &requests[number % requests.len()];
            serve(&state, number, target, request, schedule).await;
        });
    }
    let sending = {
        let state = state.clone();
        tokio::task::spawn_local(async move { send_on_schedule(&state, schedule).await })
    };
    tokio::time::sleep(schedule.window_begins - Instant::now()).await;
    let (cpu_before, began) = (plan.cpu_ns()?, Instant::now());
    tokio::time::sleep(schedule.window_ends - Instant::now()).await;
    let (cpu_ns, window) = (plan.cpu_ns()? - cpu_before, began.elapsed());
    sending.await??;

    let drained = tokio::time::timeout(DRAIN_LIMIT, state.drained.notified()).await;
    let mut tally = state.tally.borrow_mut();
    if drained.is_err() {
        tally.unanswered(state.open.get());
    }
    tally.report(plan, window, cpu_ns)
}

#[derive(Clone, Copy)]
struct Schedule {
    first: Instant,
    interval: Duration,
    window_begins: Instant,
    window_ends: Instant,
}

/// Shared by the schedule and the connections, all on one thread.
struct State {
    /// Intended starts of requests that found no free connection.
    waiting: RefCell<VecDeque<Instant>>,
    free: RefCell<Vec<usize>>,
    /// For each connection the start it is woken for.
    slots: Vec<(Cell<Option<Instant>>, Notify)>,
    /// Requests begun and not answered, those that wait included.
    open: Cell<u64>,
    finished: Cell<bool>,
    drained: Notify,
    tally: RefCell<Tally>,
}

impl State {
    fn new(plan: &Plan) -> Self {
        let slots = (0..plan.connections).map(|_| (Cell::new(None), Notify::new()));
        Self {
            waiting: RefCell::new(VecDeque::new()),
            free: RefCell::new(Vec::new()),
            slots: slots.collect(),
            open: Cell::new(0),
            finished: Cell::new(false),
            drained: Notify::new(),
            tally: RefCell::new(Tally::new(plan.expected_status)),
        }
    }

    fn begin(&self, intended: Instant) {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.len() >= WAITING_MAX {
            self.tally.borrow_mut().unanswered(1);
            return;
        }
        self.open.set(self.open.get() + 1);
        match self.free.borrow_mut().pop() {
            Some(number) => {
                let (slot, woken) = &self.slots[number];
                slot.set(Some(intended));
                woken.notify_one();
            }
            None => waiting.push_back(intended),
        }
    }

    /// Returns the intended start of the next request of connection `number`.
    async fn next(&self, number: usize) -> Instant {
        if let Some(intended) = self.waiting.borrow_mut().pop_front() {
            return intended;
        }
        self.free.borrow_mut().push(number);
        let (slot, woken) = &self.slots[number];
        loop {
            woken.notified().await;
            if let Some(intended) = slot.take() {
                return intended;
            }
        }
    }

    fn end(&self) {
        self.open.set(self.open.get() - 1);
        self.notify_when_drained();
    }

    fn finish(&self) {
        self.finished.set(true);
        self.notify_when_drained();
    }

    fn notify_when_drained(&self) {
        if self.finished.get() && self.open.get() == 0 {
            self.drained.notify_one();
        }
    }
}

/// Starts that are due and not yet begun, and the call that there are some.
#[derive(Default)]
struct DueStarts {
    count: AtomicU64,
    counted: Notify,
}

/// Begins each request at its time until the window ends.
async fn send_on_schedule(state: &State, schedule: Schedule) -> Fallible<()> {
    let due = Arc::new(DueStarts::default());
    let pacer = {
        let due = due.clone();
        std::thread::spawn(move || pace(schedule, &due))
    };
    let mut intended = schedule.first;
    while intended < schedule.window_ends {
        due.counted.notified().await;
        for _ in 0..due.count.swap(0, Ordering::Relaxed) {
            state.begin(intended);
            intended += schedule.interval;
        }
    }
    state.finish();
    pacer.join().map_err(|_| "the pacing thread panicked")?;
    Ok(())
}

/// Counts each start when its time has come.
fn pace(schedule: Schedule, due: &DueStarts) {
    let mut next = schedule.first;
    while next < schedule.window_ends {
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        let now = Instant::now();
        let mut count = 0;
        while next <= now && next < schedule.window_ends {
            next += schedule.interval;
            count += 1;
        }
        due.count.fetch_add(count, Ordering::Relaxed);
        due.counted.notify_one();
    }
}

/// Sends what the schedule hands out, on one connection at a time.
async fn serve(
    state: &State,
    number: usize,
    target: SocketAddr,
    request: &[u8],
    schedule: Schedule,
) {
    let mut buffer = vec![0_u8; 64 * 1024];
    let mut connection = connect(target).await.ok();
    loop {
        let intended = state.next(number).await;
        let outcome = send(target, request, &mut connection, &mut buffer).await;
        if intended >= schedule.window_begins {
            let mut tally = state.tally.borrow_mut();
            match outcome {
                Ok(status) => tally.record(status, intended.elapsed()),
                Err(_) => tally.unanswered(1),
            }
        }
        state.end();
    }
}

async fn connect(target: SocketAddr) -> Fallible<TcpStream> {
    let stream = TcpStream::connect(target).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Returns the status; the connection stays in its place when it may carry another request.
async fn send(
    target: SocketAddr,
    request: &[u8],
    connection: &mut Option<TcpStream>,
    buffer: &mut [u8],
) -> Fallible<u16> {
    let mut stream = match connection.take() {
        Some(stream) => stream,
        None => connect(target).await?,
    };
    stream.write_all(request).await?;
    let mut answer = ResponseReader::new();
    while !answer.is_done() {
        match stream.read(buffer).await? {
            0 => answer.close()?,
            count => answer.feed(&buffer[..count])?,
        }
    }
    if answer.keep_alive {
        *connection = Some(stream);
    }
    Ok(answer.status)
}
