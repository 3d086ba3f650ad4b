//! Steps to the end of an instance: which one is due, as a value.
//!
//! Sends no signal itself. Order: the grace of an orphan, SIGTERM to the group, the time to stop, SIGKILL to the group and
//! to all that have left it, until no child is left.

use std::time::Duration;

use infergate_core::Millis;
use infergate_core::vram::HostTime;

/// Between two looks at processes that end.
const TICK: Duration = Duration::from_millis(3);
/// The same for processes that have not ended for a second after SIGKILL, as those in a driver's call.
const SLOW_TICK: Duration = Duration::from_millis(100);
const SLOW_AFTER: Millis = Millis(1000);
/// Longest sleep of a keeper: orphans that ended meanwhile are waited for then.
const IDLE: Duration = Duration::from_secs(30);

/// Progress of an instance towards its end.
#[derive(Debug)]
pub struct Ending {
    orphan_grace: Millis,
    stop_timeout: Millis,
    phase: EndingPhase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndingPhase {
    Running,
    /// No gateway is connected.
    Orphaned {
        until: HostTime,
    },
    Terminating {
        until: HostTime,
    },
    Killing {
        since: HostTime,
    },
}

/// Facts that a step depends on.
#[derive(Clone, Copy, Debug)]
pub struct EndingFacts {
    /// The process of the instance has ended.
    pub has_main_ended: bool,
    /// A gateway is connected.
    pub has_life_line: bool,
    /// A process of its group is left.
    pub is_group_left: bool,
    /// A child of the keeper is left.
    pub is_child_left: bool,
}

/// Step that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndingStep {
    /// No step.
    Wait,
    /// SIGTERM to the group.
    Terminate,
    /// SIGKILL to the group and to all children.
    Kill,
    /// Farewell: no process is left.
    Finish,
}

impl Ending {
    /// Returns the beginning: the instance runs.
    pub fn new(orphan_grace: Millis, stop_timeout: Millis) -> Ending {
        Ending {
            orphan_grace,
            stop_timeout,
            phase: EndingPhase::Running,
        }
    }

    /// Returns whether the instance is being ended.
    pub fn is_stopping(&self) -> bool {
        match self.phase {
            EndingPhase::Running | EndingPhase::Orphaned { .. } => false,
            EndingPhase::Terminating { .. } | EndingPhase::Killing { .. } => true,
        }
    }

    /// Begins the end by a command.
    pub fn stop(&mut self, now: HostTime) -> EndingStep {
        if self.is_stopping() {
            return EndingStep::Wait;
        }
        self.phase = EndingPhase::Terminating {
            until: now + self.stop_timeout,
        };
        EndingStep::Terminate
    }

    /// Ends at once.
    pub fn kill(&mut self, now: HostTime) -> EndingStep {
        if !matches!(self.phase, EndingPhase::Killing { .. }) {
            self.phase = EndingPhase::Killing { since: now };
        }
        EndingStep::Kill
    }

    /// Returns the step that is due.
    pub fn next(&mut self, now: HostTime, facts: EndingFacts) -> EndingStep {
        if self.phase == EndingPhase::Running && !facts.has_life_line {
            self.phase = EndingPhase::Orphaned {
                until: now + self.orphan_grace,
            };
        }
        match self.phase {
            EndingPhase::Running | EndingPhase::Orphaned { .. } if facts.has_main_ended => {
                self.stop(now)
            }
            EndingPhase::Orphaned { .. } if facts.has_life_line => {
                self.phase = EndingPhase::Running;
                EndingStep::Wait
            }
            EndingPhase::Orphaned { until } if now >= until => self.stop(now),
            EndingPhase::Terminating { until } if now >= until || !facts.is_group_left => {
                self.kill(now)
            }
            EndingPhase::Killing { .. } if facts.is_child_left => EndingStep::Kill,
            EndingPhase::Killing { .. } => EndingStep::Finish,
            _ => EndingStep::Wait,
        }
    }

    /// Returns the longest time until the next look.
    pub fn pause(&self, now: HostTime) -> Duration {
        match self.phase {
            EndingPhase::Running => IDLE,
            EndingPhase::Orphaned { until } => Duration::from_millis(until.since(now).0).min(IDLE),
            EndingPhase::Terminating { until } => {
                Duration::from_millis(until.since(now).0).min(TICK)
            }
            EndingPhase::Killing { since } if now.since(since) > SLOW_AFTER => SLOW_TICK,
            EndingPhase::Killing { .. } => TICK,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNNING: EndingFacts = EndingFacts {
        has_main_ended: false,
        has_life_line: true,
        is_group_left: true,
        is_child_left: true,
    };
    const ORPHANED: EndingFacts = EndingFacts {
        has_life_line: false,
        ..RUNNING
    };

    fn ending() -> Ending {
        Ending::new(Millis(500), Millis(1000))
    }

    #[test]
    fn an_orphan_is_ended_after_its_grace_and_kept_when_a_gateway_comes_back() {
        let mut ending = ending();
        assert_eq!(ending.next(HostTime(0), ORPHANED), EndingStep::Wait);
        assert_eq!(ending.pause(HostTime(100)), Duration::from_millis(400));
        assert_eq!(ending.next(HostTime(499), RUNNING), EndingStep::Wait);
        assert_eq!(ending.next(HostTime(600), ORPHANED), EndingStep::Wait);
        assert_eq!(ending.next(HostTime(1099), ORPHANED), EndingStep::Wait);
        assert_eq!(ending.next(HostTime(1100), ORPHANED), EndingStep::Terminate);
        assert!(ending.is_stopping());
        assert_eq!(ending.next(HostTime(1101), RUNNING), EndingStep::Wait);
    }

    #[test]
    fn a_process_that_ignores_its_end_is_killed_after_the_time_to_stop() {
        let mut ending = ending();
        assert_eq!(ending.stop(HostTime(0)), EndingStep::Terminate);
        assert_eq!(ending.stop(HostTime(10)), EndingStep::Wait);
        assert_eq!(ending.next(HostTime(999), RUNNING), EndingStep::Wait);
        assert_eq!(ending.next(HostTime(1000), RUNNING), EndingStep::Kill);
        assert_eq!(ending.next(HostTime(1001), RUNNING), EndingStep::Kill);
        assert_eq!(ending.pause(HostTime(2001)), SLOW_TICK);
        let left = EndingFacts {
            is_child_left: false,
            ..RUNNING
        };
        assert_eq!(ending.next(HostTime(2002), left), EndingStep::Finish);
    }

    #[test]
    fn the_end_of_the_process_ends_its_group_and_then_all_that_left_it() {
        let mut ending = ending();
        let ended = EndingFacts {
            has_main_ended: true,
            ..RUNNING
        };
        assert_eq!(ending.next(HostTime(0), ended), EndingStep::Terminate);
        assert_eq!(ending.next(HostTime(5), ended), EndingStep::Wait);
        let group_gone = EndingFacts {
            is_group_left: false,
            ..ended
        };
        assert_eq!(ending.next(HostTime(6), group_gone), EndingStep::Kill);
    }

    #[test]
    fn a_kill_waits_for_nothing() {
        let mut ending = ending();
        assert_eq!(ending.kill(HostTime(0)), EndingStep::Kill);
        assert_eq!(ending.stop(HostTime(1)), EndingStep::Wait);
        assert_eq!(ending.next(HostTime(1), ORPHANED), EndingStep::Kill);
    }
}
