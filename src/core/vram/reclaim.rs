//! Return of a process's memory, seen by the use of a device that does not list its processes.
//!
//! Not proof: others on the device take and free memory too. A grant is judged by the account of the device all the same.

/// Share of its use that has to be seen free, percent.
const RETURNED_PERCENT: u64 = 90;

/// Use of a device around the life of a process, MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessTrail {
    /// Use of the device before the process was started.
    pub before_start_mib: Option<u64>,
    /// Use of the device before the process began to end.
    pub before_end_mib: Option<u64>,
}

impl ProcessTrail {
    /// Returns whether nine tenths of what the process took, at most its lease, are free at a present use.
    pub fn has_returned(self, leased_mib: u64, used_mib: Option<u64>) -> bool {
        let (Some(start), Some(end), Some(used)) =
            (self.before_start_mib, self.before_end_mib, used_mib)
        else {
            return false;
        };
        let taken = end.saturating_sub(start).min(leased_mib);
        taken > 0 && end.saturating_sub(used) * 100 >= taken * RETURNED_PERCENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trail(start: u64, end: u64) -> ProcessTrail {
        ProcessTrail {
            before_start_mib: Some(start),
            before_end_mib: Some(end),
        }
    }

    #[test]
    fn nine_tenths_of_the_use_are_enough_and_less_are_not() {
        let taken = trail(500, 10_500);
        assert!(!taken.has_returned(12_000, Some(10_500)));
        assert!(!taken.has_returned(12_000, Some(1501)));
        assert!(taken.has_returned(12_000, Some(1500)));
    }

    #[test]
    fn no_more_than_the_lease_is_awaited() {
        let with_another = trail(0, 20_000);
        assert!(with_another.has_returned(10_000, Some(11_000)));
        assert!(!with_another.has_returned(10_000, Some(11_001)));
    }

    #[test]
    fn unknown_figures_and_a_process_that_took_nothing_are_no_return() {
        assert!(!ProcessTrail::default().has_returned(100, Some(0)));
        assert!(!trail(0, 1000).has_returned(1000, None));
        assert!(!trail(1000, 1000).has_returned(1000, Some(0)));
    }
}
