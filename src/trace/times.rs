//! Times of one request: every duration that its event, its metrics, `/explain` and its spans show.
//!
//! Counters that each request has, whether or not its steps are recorded. Moments are microseconds on the
//! process's clock; a duration that other nodes have a part in counts from the client's own node.

/// Moments and waits of one request.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestTimes {
    /// The head was complete.
    begin_us: u64,
    /// The response was complete, or given up; 0 before.
    end_us: u64,
    /// From the client's request to its arrival here, at nodes before this one.
    elsewhere_us: u64,
    /// Part of `elsewhere_us` spent waiting for permits.
    queued_elsewhere_us: u64,
    /// Finished waits for a permit at this node, together.
    queued_here_us: u64,
    /// Start of the wait that goes on.
    wait_begin_us: Option<u64>,
    has_queued_here: bool,
    /// Waits for the model to be loaded, together; none where it was ready.
    load_wait_us: Option<u32>,
    /// The first permit of the model was granted, or the first one after a pause without one.
    granted_us: Option<u64>,
    /// The first byte of the response's body went out.
    first_byte_us: Option<u64>,
}

impl RequestTimes {
    /// Creates the times of a request whose head is complete.
    pub fn new(begin_us: u64) -> RequestTimes {
        RequestTimes {
            begin_us,
            ..RequestTimes::default()
        }
    }

    /// Adds the time at the nodes before, as the forwarding one counts it.
    pub fn set_elsewhere(&mut self, elapsed_us: u64, queued_us: u64) {
        self.elsewhere_us = elapsed_us;
        self.queued_elsewhere_us = queued_us;
    }

    pub(super) fn begin_wait(&mut self, at_us: u64) {
        self.wait_begin_us = Some(at_us);
        self.has_queued_here = true;
    }

    /// Begins a wait for servers to have capacity, without the permit that there was.
    pub fn begin_pause(&mut self, at_us: u64) {
        self.begin_wait(at_us);
        self.forget_grant();
    }

    /// Ends the wait that goes on.
    pub fn end_wait(&mut self, at_us: u64) {
        if let Some(begin_us) = self.wait_begin_us.take() {
            self.queued_here_us += at_us.saturating_sub(begin_us);
        }
    }

    /// Records a permit; the first one of a model counts.
    pub fn record_grant(&mut self, at_us: u64) {
        self.granted_us.get_or_insert(at_us);
    }

    /// Records a wait for the model to be loaded, which may have been refused at once.
    pub fn record_load_wait(&mut self, waited_us: u64) {
        let waited_us = u32::try_from(waited_us).unwrap_or(u32::MAX);
        let former = self.load_wait_us.unwrap_or(0);
        self.load_wait_us = Some(former.saturating_add(waited_us));
    }

    /// Forgets the waits for the load of a model that another one takes the place of.
    pub fn forget_load_wait(&mut self) {
        self.load_wait_us = None;
    }

    /// Waits for the model to be loaded; none where it was ready on arrival.
    pub fn load_wait_us(&self) -> Option<u64> {
        self.load_wait_us.map(u64::from)
    }

    /// Forgets the permit of a model that another one takes the place of.
    pub fn forget_grant(&mut self) {
        self.granted_us = None;
    }

    /// Returns whether the first byte of the response is out.
    pub fn has_first_byte(&self) -> bool {
        self.first_byte_us.is_some()
    }

    /// Records that the first byte of the response's body goes out.
    pub fn record_first_byte(&mut self, at_us: u64) {
        self.first_byte_us.get_or_insert(at_us);
    }

    /// Ends the request, and the wait that goes on.
    pub fn end(&mut self, at_us: u64) {
        self.end_wait(at_us);
        self.end_us = at_us;
    }

    /// Moment of the head.
    pub fn begin_us(&self) -> u64 {
        self.begin_us
    }

    /// Moment of the end.
    pub fn end_us(&self) -> u64 {
        self.end_us
    }

    /// From arrival at the nodes before to arrival here.
    pub fn elsewhere_us(&self) -> u64 {
        self.elsewhere_us
    }

    /// From the client's request to `now_us`.
    pub fn elapsed_us(&self, now_us: u64) -> u64 {
        self.elsewhere_us + now_us.saturating_sub(self.begin_us)
    }

    /// Finished waits for permits, here and at nodes before.
    pub fn queued_us(&self) -> u64 {
        self.queued_elsewhere_us + self.queued_here_us
    }

    /// Finished waits for permits at this node.
    pub fn queued_here_us(&self) -> u64 {
        self.queued_here_us
    }

    /// Returns whether the request has waited for a permit at any node.
    pub fn has_queued(&self) -> bool {
        self.has_queued_here || self.queued_elsewhere_us > 0
    }

    /// Returns whether the request has waited for a permit at this node.
    pub fn has_queued_here(&self) -> bool {
        self.has_queued_here
    }

    /// From the permit to `now_us`; zero without one.
    pub fn inference_us(&self, now_us: u64) -> u64 {
        let granted_us = self.granted_us;
        granted_us.map_or(0, |granted_us| now_us.saturating_sub(granted_us))
    }

    /// From the client's request to the first byte of the response.
    pub fn first_byte_us(&self) -> Option<u64> {
        let at_us = self.first_byte_us?;
        Some(self.elapsed_us(at_us))
    }

    /// From the head to the first byte of the response.
    pub fn first_byte_here_us(&self) -> Option<u64> {
        let at_us = self.first_byte_us?;
        Some(at_us.saturating_sub(self.begin_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_count_from_the_client_and_waits_add_up() {
        let mut times = RequestTimes::new(1_000);
        times.set_elsewhere(500, 200);
        assert!(times.has_queued() && !times.has_queued_here());
        times.begin_wait(1_100);
        times.end_wait(1_150);
        times.begin_wait(1_200);
        times.record_grant(1_150);
        times.record_grant(1_250);
        times.record_first_byte(1_300);
        times.record_first_byte(1_400);
        times.end(1_500);
        assert_eq!((times.queued_us(), times.queued_here_us()), (550, 350));
        assert_eq!(
            (times.elapsed_us(1_500), times.inference_us(1_500)),
            (1_000, 350)
        );
        assert_eq!(times.first_byte_us(), Some(800));
        assert_eq!(times.first_byte_here_us(), Some(300));
    }

    #[test]
    fn another_model_counts_its_own_permit() {
        let mut times = RequestTimes::new(0);
        assert_eq!(times.inference_us(10), 0);
        times.record_grant(10);
        times.forget_grant();
        times.record_grant(30);
        assert_eq!(times.inference_us(50), 20);
    }

    #[test]
    fn waits_for_a_load_add_up_and_belong_to_one_model() {
        let mut times = RequestTimes::new(0);
        assert_eq!(times.load_wait_us(), None);
        times.record_load_wait(0);
        assert_eq!(times.load_wait_us(), Some(0));
        times.record_load_wait(7);
        times.record_load_wait(5);
        assert_eq!(times.load_wait_us(), Some(12));
        times.forget_load_wait();
        assert_eq!(times.load_wait_us(), None);
    }
}
