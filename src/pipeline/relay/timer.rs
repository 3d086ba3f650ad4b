//! Timer of a relay, which waits anew with every event of a stream.
//!
//! Not the moments it waits for. Setting a timer of the runtime takes a lock and may wake its driver; most waits of
//! a stream end long before theirs. A timer that is set for an earlier moment stays as it is, and is set anew
//! once it fires: about once per `timeouts.stream_idle_secs`.

use std::pin::Pin;

use tokio::time::{Instant, Sleep, sleep_until};

use crate::pipeline::suspension::next_io_poll;

/// Timer that is set at the first wait, and moved only where it would fire late or has fired early.
#[derive(Default)]
pub(super) struct LazyTimer {
    /// Set for the end of a wait before, or for an earlier moment than the end of this one.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl LazyTimer {
    /// Completes at `end`. Safe to drop and call again, with another end.
    pub(super) async fn wait_until(&mut self, end: Instant) {
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(end)));
        loop {
            if sleep.deadline() > end {
                sleep.as_mut().reset(end);
            }
            sleep.as_mut().await;
            if sleep.deadline() == end {
                // What is read first wins.
                return next_io_poll().await;
            }
            sleep.as_mut().reset(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    /// One more turn of the runtime, after which the wait ends.
    const TURN: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn every_wait_ends_at_its_own_end_whatever_ended_before() {
        let began = Instant::now();
        let mut timer = LazyTimer::default();
        let ends = [9, 3, 4, 4, 2, 20, 7, 21];
        for end in ends.map(|secs| began + secs * SECOND) {
            let started = Instant::now();
            timer.wait_until(end).await;
            assert_eq!(Instant::now(), end.max(started) + TURN);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_is_put_off_again_and_again_moves_the_timer_once() {
        let began = Instant::now();
        let mut timer = LazyTimer::default();
        for _ in 0..29 {
            let end = Instant::now() + 30 * SECOND;
            assert!(timeout(SECOND, timer.wait_until(end)).await.is_err());
            let set_for = timer.sleep.as_ref().map(|sleep| sleep.deadline());
            assert_eq!(set_for, Some(began + 30 * SECOND));
        }
        let last = Instant::now();
        timer.wait_until(last + 30 * SECOND).await;
        assert_eq!(last.elapsed(), 30 * SECOND + TURN);
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_that_fired_unseen_waits_for_the_new_end() {
        let mut timer = LazyTimer::default();
        let first = Instant::now() + 2 * SECOND;
        assert!(timeout(SECOND, timer.wait_until(first)).await.is_err());
        tokio::time::advance(5 * SECOND).await;
        let began = Instant::now();
        timer.wait_until(began + 3 * SECOND).await;
        assert_eq!(began.elapsed(), 3 * SECOND + TURN);
    }
}
