//! Measured pace of an endpoint: smoothed times and failures, input of the routing policies.
//!
//! Judges nothing: health is decided by the ejector. Times are microseconds, 0 means not measured.
//! An exponentially weighted mean with a weight of one eighth, TCP's for round trips (RFC 6298).

/// A share in millionths.
const WHOLE_PPM: u32 = 1_000_000;

/// Measurements of one endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointLoad {
    /// From sending a request to the head of its response.
    pub rtt_us: u32,
    /// From sending a request to the first byte of its response's body.
    pub ttft_us: u32,
    /// From sending a request to the last byte.
    pub latency_us: u32,
    /// Failed responses per million.
    pub error_ppm: u32,
    /// Out-of-capacity responses in a row, at most 255.
    pub ooc: u8,
    /// Requests that the server reports beyond this gateway's, or in its own queue; 0 without a report.
    pub queue_len: u32,
}

/// Load that a model server reports about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerLoad {
    /// Requests it works on, of all its clients.
    pub running: u32,
    /// Requests in its own queue.
    pub waiting: u32,
    /// Share of its KV cache in use, in thousandths.
    pub kv_cache_permille: u16,
}

/// A server whose KV cache is as full will preempt a request for the next one.
const KV_CACHE_FULL_PERMILLE: u16 = 950;

impl ServerLoad {
    /// Requests there that wait for the server or came past this gateway, which had `own` in flight there at
    /// the report. Returns at least one where the KV cache is full.
    pub fn queue_len(&self, own: u32) -> u32 {
        let foreign = self
            .running
            .saturating_add(self.waiting)
            .saturating_sub(own);
        let is_full = self.kv_cache_permille >= KV_CACHE_FULL_PERMILLE;
        self.waiting.max(foreign).max(u32::from(is_full))
    }
}

impl EndpointLoad {
    /// Records the round trip of a health check.
    pub fn record_probe(&mut self, rtt_us: u32) {
        self.rtt_us = smoothed(self.rtt_us, rtt_us);
    }

    /// Records what the server reports about its load, or that it reports nothing.
    pub fn record_report(&mut self, report: Option<ServerLoad>, own: u32) {
        self.queue_len = report.map_or(0, |report| report.queue_len(own));
    }

    /// Records a complete response.
    pub fn record_response(&mut self, ttft_us: u32, latency_us: u32) {
        self.ttft_us = smoothed(self.ttft_us, ttft_us);
        self.latency_us = smoothed(self.latency_us, latency_us);
        self.error_ppm -= self.error_ppm.div_ceil(8);
        self.ooc = 0;
    }

    /// Records a failed response.
    pub fn record_failure(&mut self) {
        self.error_ppm += (WHOLE_PPM - self.error_ppm) / 8;
    }

    /// Records an out-of-capacity response.
    pub fn record_out_of_capacity(&mut self) {
        self.ooc = self.ooc.saturating_add(1);
    }
}

/// The mean after one more sample; the first sample is the mean. A measured time is never 0.
pub(super) fn smoothed(mean: u32, sample: u32) -> u32 {
    let sample = sample.max(1);
    match mean {
        0 => sample,
        mean => {
            let sum = u64::from(mean) * 7 + u64::from(sample);
            u32::try_from(sum / 8).unwrap_or(u32::MAX).max(1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_follows_its_samples_and_stays_among_them() {
        let mut load = EndpointLoad::default();
        load.record_response(80, 800);
        assert_eq!((load.ttft_us, load.latency_us), (80, 800));
        load.record_response(160, 1600);
        assert_eq!((load.ttft_us, load.latency_us), (90, 900));
        for _ in 0..300 {
            load.record_response(u32::MAX, 0);
        }
        assert!(load.ttft_us > u32::MAX - 20 && load.latency_us == 1);
    }

    #[test]
    fn failures_raise_the_share_and_answers_bring_it_down_to_nothing() {
        let mut load = EndpointLoad::default();
        for _ in 0..300 {
            load.record_failure();
        }
        assert!(load.error_ppm > 990_000 && load.error_ppm <= WHOLE_PPM);
        for _ in 0..200 {
            load.record_response(1, 1);
        }
        assert_eq!(load.error_ppm, 0);
    }

    #[test]
    fn out_of_capacity_counts_up_to_its_bound_and_an_answer_ends_it() {
        let mut load = EndpointLoad::default();
        for _ in 0..300 {
            load.record_out_of_capacity();
        }
        assert_eq!(load.ooc, u8::MAX);
        load.record_response(1, 1);
        assert_eq!(load.ooc, 0);
    }

    #[test]
    fn a_servers_queue_is_what_waits_there_or_came_from_elsewhere() {
        let load = |running, waiting, kv_cache_permille| ServerLoad {
            running,
            waiting,
            kv_cache_permille,
        };
        assert_eq!(load(4, 0, 0).queue_len(4), 0, "all of it is ours");
        assert_eq!(load(4, 2, 0).queue_len(6), 2, "ours, but two wait");
        assert_eq!(load(9, 0, 0).queue_len(4), 5, "five came from elsewhere");
        assert_eq!(load(1, 0, 0).queue_len(4), 0, "ours that are not there yet");
        assert_eq!(load(1, 0, 950).queue_len(1), 1, "no room for another one");
        assert_eq!(load(u32::MAX, u32::MAX, 0).queue_len(0), u32::MAX);
    }
}
