//! Traces of requests: seeded, the same on every machine.
//!
//! Not what serves them. Sizes are MiB, times milliseconds. Models of a session: half of the requests stay with one
//! model for a run of random length, the others are drawn each by itself.

use std::f64::consts::TAU;

/// Permits of a model.
pub const PERMITS: u32 = 4;
/// Time from the stop of a model to its memory being free.
pub const STOP_MS: u64 = 1000;
/// Accounts that the requests come from.
pub const ACCOUNTS: u64 = 5;
/// Load time without the bytes.
const LOAD_BASE_MS: u64 = 2000;
const MINUTE_MS: f64 = 60_000.0;

/// Random numbers of splitmix64 (<https://prng.di.unimi.it/splitmix64.c>).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number in 0..1, without both ends.
    pub fn unit(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.unit() * bound as f64) as usize
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.unit().ln()
    }

    fn log_normal(&mut self, median: f64, sigma: f64) -> f64 {
        let normal = (-2.0 * self.unit().ln()).sqrt() * (TAU * self.unit()).cos();
        median * (sigma * normal).exp()
    }
}

/// Model of a trace.
#[derive(Clone, Copy, Debug)]
pub struct TraceModel {
    pub mib: u64,
    pub load_ms: u64,
    median_ms: f64,
}

impl TraceModel {
    fn new(mib: u64, median_secs: f64) -> TraceModel {
        TraceModel {
            mib,
            load_ms: LOAD_BASE_MS + mib,
            median_ms: 1000.0 * median_secs,
        }
    }
}

/// Request of a trace.
#[derive(Clone, Copy, Debug)]
pub struct TraceRequest {
    pub number: usize,
    pub at_ms: u64,
    pub model: usize,
    pub account: u64,
    pub service_ms: u64,
}

/// Models, card and requests in the order of their arrival.
#[derive(Clone, Debug)]
pub struct Trace {
    pub card_mib: u64,
    pub models: Vec<TraceModel>,
    pub requests: Vec<TraceRequest>,
}

/// Shape of the requests.
struct Arrivals {
    rate: f64,
    zipf: f64,
    /// Mean run of requests that stay with a model; half of all requests do.
    run: Option<f64>,
}

/// Names of the traces in the table.
pub const NAMES: [&str; 5] = ["A", "B", "C", "D", "E"];

/// Builds a trace by its name.
pub fn trace(name: &str, seed: u64) -> Trace {
    let mut random = Random(seed);
    let six = |medians: [f64; 6]| {
        let sizes = [4000, 6000, 8000, 12_000, 14_000, 18_000];
        let models = sizes.into_iter().zip(medians);
        models.map(|(mib, median)| TraceModel::new(mib, median))
    };
    let (card_mib, models, arrivals): (_, Vec<TraceModel>, _) = match name {
        "A" => {
            let models = six([1.0, 1.0, 2.0, 2.0, 4.0, 4.0]).collect();
            (22_000, models, arrivals(0.2, 1.0, None))
        }
        "B" => {
            let models = six([1.0, 1.0, 2.0, 2.0, 3.0, 3.0]).collect();
            (22_000, models, arrivals(0.8, 1.0, None))
        }
        "C" => {
            let models = six([1.0, 1.0, 2.0, 2.0, 3.0, 3.0]).collect();
            (22_000, models, arrivals(0.6, 0.8, Some(6.0)))
        }
        "D" => {
            let sizes = [2000, 4000, 5000, 8000, 9000, 14_000, 18_000];
            let draw = |_| {
                let mib = sizes[random.below(sizes.len())];
                TraceModel::new(mib, [0.5, 1.0, 2.0, 4.0][random.below(4)])
            };
            let models = (0..16).map(draw).collect();
            (46_000, models, arrivals(1.0, 1.2, Some(4.0)))
        }
        "E" => {
            let small = [TraceModel::new(5000, 1.0); 5];
            let large = [TraceModel::new(16_000, 3.0); 3];
            let models = small.into_iter().chain(large).collect();
            (40_000, models, arrivals(0.5, 1.0, Some(5.0)))
        }
        other => panic!("no trace {other}"),
    };
    let requests = requests(&models, &arrivals, &mut random);
    Trace {
        card_mib,
        models,
        requests,
    }
}

/// Builds the trace of starvation: the first model above its capacity, the second asked rarely.
pub fn starvation(seed: u64) -> Trace {
    let mut random = Random(seed);
    let models = vec![TraceModel::new(14_000, 2.0); 2];
    let mut requests = Vec::new();
    for (model, rate) in [(0, 2.5), (1, 0.02)] {
        let mut at_ms = random.exponential(1000.0 / rate);
        while at_ms < 60.0 * MINUTE_MS {
            requests.push(TraceRequest {
                number: requests.len(),
                at_ms: at_ms as u64,
                model,
                account: random.next() % ACCOUNTS,
                service_ms: random.log_normal(2000.0, 0.3) as u64,
            });
            at_ms += random.exponential(1000.0 / rate);
        }
    }
    requests.sort_by_key(|request| request.at_ms);
    for (number, request) in requests.iter_mut().enumerate() {
        request.number = number;
    }
    Trace {
        card_mib: 22_000,
        models,
        requests,
    }
}

fn arrivals(rate: f64, zipf: f64, run: Option<f64>) -> Arrivals {
    Arrivals { rate, zipf, run }
}

fn requests(models: &[TraceModel], arrivals: &Arrivals, random: &mut Random) -> Vec<TraceRequest> {
    let mut order: Vec<usize> = (0..models.len()).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, random.below(last + 1));
    }
    let weights: Vec<f64> = (1..=models.len())
        .map(|rank| (rank as f64).powf(-arrivals.zipf))
        .collect();
    let mut session = order[popular(&weights, random)];
    let mut requests = Vec::new();
    let mut at_ms = random.exponential(1000.0 / arrivals.rate);
    while at_ms < 40.0 * MINUTE_MS {
        let is_session = arrivals.run.is_some() && random.unit() < 0.5;
        let model = if is_session {
            session
        } else {
            order[popular(&weights, random)]
        };
        if let Some(run) = arrivals.run
            && is_session
            && random.unit() < 1.0 / run
        {
            session = order[popular(&weights, random)];
        }
        requests.push(TraceRequest {
            number: requests.len(),
            at_ms: at_ms as u64,
            model,
            account: random.next() % ACCOUNTS,
            service_ms: random.log_normal(models[model].median_ms, 0.5) as u64,
        });
        at_ms += random.exponential(1000.0 / arrivals.rate);
    }
    requests
}

/// Draws a rank by weight.
fn popular(weights: &[f64], random: &mut Random) -> usize {
    let mut rest = random.unit() * weights.iter().sum::<f64>();
    for (rank, weight) in weights.iter().enumerate() {
        rest -= weight;
        if rest < 0.0 {
            return rank;
        }
    }
    weights.len() - 1
}
