//! Share of the events that a sink gets, and the member that tells it in each line.
//!
//! Chosen event by event, each with the same chance: the sum of a figure times `sample_interval` is then an unbiased
//! estimate of the sum over all events. Called by the writer thread.

/// Member that ends each line, up to its value.
const MEMBER: &[u8] = b",\"sample_interval\":";
/// End of a line of JSON.
const LINE_END: &[u8] = b"}\n";

/// Sampler of one sink.
#[derive(Debug)]
pub(super) struct Sampler {
    share: f64,
    random: fastrand::Rng,
    /// End of each line, in place of its own.
    ending: Vec<u8>,
}

impl Sampler {
    /// A sampler of this share of the events, above 0 and up to 1.
    pub fn new(share: f64, random: fastrand::Rng) -> Sampler {
        let mut ending = MEMBER.to_vec();
        let interval = 1.0 / share;
        match interval.fract() == 0.0 {
            true => ending.extend_from_slice(format!("{interval:.0}").as_bytes()),
            false => ending.extend_from_slice(interval.to_string().as_bytes()),
        }
        ending.extend_from_slice(LINE_END);
        Sampler {
            share,
            random,
            ending,
        }
    }

    /// Returns whether the sink gets the next event.
    pub fn takes(&mut self) -> bool {
        self.share >= 1.0 || self.random.f64() < self.share
    }

    /// Adds the member to the line at the end of `out`. A line that is no object of JSON stays as it is.
    pub fn close_line(&self, out: &mut Vec<u8>) {
        if out.ends_with(LINE_END) {
            out.truncate(out.len() - LINE_END.len());
            out.extend_from_slice(&self.ending);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed(share: f64, line: &str) -> String {
        let mut out = line.as_bytes().to_vec();
        Sampler::new(share, fastrand::Rng::with_seed(1)).close_line(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_line_tells_of_how_many_events_it_is_one() {
        for (share, interval) in [(1.0, "1"), (0.1, "10"), (0.3, "3.3333333333333335")] {
            let line = closed(share, "{\"a\":1}\n");
            assert_eq!(
                line,
                format!("{{\"a\":1,\"sample_interval\":{interval}}}\n")
            );
            let read: serde_json::Value = serde_json::from_str(&line).unwrap();
            assert!((read["sample_interval"].as_f64().unwrap() - 1.0 / share).abs() < 1e-9);
        }
        assert_eq!(closed(1.0, "no object\n"), "no object\n");
    }

    #[test]
    fn sums_times_the_interval_estimate_the_sums_over_all() {
        for (seed, share) in [(7, 0.5), (8, 0.1), (9, 0.03)] {
            let mut sampler = Sampler::new(share, fastrand::Rng::with_seed(seed));
            let mut prices = fastrand::Rng::with_seed(seed + 100);
            let (mut sum, mut estimate, mut variance) = (0.0, 0.0, 0.0);
            for _ in 0..20_000 {
                let neurons = prices.f64() * 100.0;
                sum += neurons;
                // Of one event: it counts 1/share times with the chance `share`, else not at all.
                variance += neurons * neurons * (1.0 - share) / share;
                if sampler.takes() {
                    estimate += neurons / share;
                }
            }
            let off: f64 = estimate - sum;
            assert!(off.abs() < 3.0 * variance.sqrt(), "{share}: {off}");
            assert!(off != 0.0, "something was left out");
        }
        let mut whole = Sampler::new(1.0, fastrand::Rng::with_seed(1));
        assert!((0..1000).all(|_| whole.takes()));
    }
}
