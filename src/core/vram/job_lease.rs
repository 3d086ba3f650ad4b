//! Step of a command that needs memory: leases now, or a claim that waits for its turn.
//!
//! Not the loop around it: a store runs one step as one change, again and again until the command has its leases or
//! its wait is over. Claims are served in their order, so that a large need is not passed by small ones for ever.

use super::device::DeviceView;
use super::fit::{DeviceRoom, Placement, PlacementRequest, place};
use super::host_time::HostTime;
use super::lease::{ClaimId, Holder, LeaseGroup};
use super::ledger::{AcquireError, Ledger};

/// Need of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRequest {
    /// Process that will run the command.
    pub holder: Holder,
    /// Memory and devices.
    pub placement: PlacementRequest,
    /// Urgency: the smaller, the more urgent.
    pub priority: u8,
    /// Waits as a claim, for which others may make room. Otherwise takes only what is free by itself.
    pub claims: bool,
    /// End of the wait.
    pub until: HostTime,
}

/// Result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobStep {
    /// The leases are granted; the claim is withdrawn.
    Granted(LeaseGroup),
    /// No room yet, or others come first.
    Waiting(Option<ClaimId>),
    /// The wait is over; the claim is withdrawn.
    TimedOut,
    /// The devices could not hold the need if they were empty.
    DoesNotFit {
        /// Room of the largest device that is empty, MiB.
        largest_mib: u64,
    },
}

impl Ledger {
    /// Grants what a command needs when it is its turn and there is room, else keeps its claim.
    ///
    /// # Errors
    /// The ledger is full.
    pub fn step_job(
        &mut self,
        request: &JobRequest,
        claim: Option<&ClaimId>,
        views: &[DeviceView],
        now: HostTime,
    ) -> Result<JobStep, AcquireError> {
        self.free_returned(views);
        let rooms: Vec<DeviceRoom> = views
            .iter()
            .map(|view| DeviceRoom::of(view, &self.account(view, now)))
            .collect();
        match place(&request.placement, &rooms) {
            Placement::DoesNotFit { largest_mib } => {
                self.withdraw_own(claim);
                return Ok(JobStep::DoesNotFit { largest_mib });
            }
            Placement::Fits(shares) if self.has_turn(request.priority, claim) => {
                let group = self.acquire(&request.holder, request.priority, &shares, views, now)?;
                self.withdraw_own(claim);
                return Ok(JobStep::Granted(group));
            }
            Placement::Fits(_) | Placement::NoRoom => {}
        }
        if now >= request.until {
            self.withdraw_own(claim);
            return Ok(JobStep::TimedOut);
        }
        let is_there = claim.filter(|claim| self.claims().iter().any(|own| own.id == **claim));
        let claim = match is_there {
            Some(claim) => Some(claim.clone()),
            None if request.claims => {
                let (holder, placement) = (&request.holder, &request.placement);
                Some(self.claim(holder, request.priority, placement, now, request.until)?)
            }
            None => None,
        };
        Ok(JobStep::Waiting(claim))
    }

    fn withdraw_own(&mut self, claim: Option<&ClaimId>) {
        if let Some(claim) = claim {
            self.withdraw(claim);
        }
    }
}
