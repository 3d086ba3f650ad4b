//! Work that goes on at a server although nobody waits for it any more, until its slot is known to be free.
//!
//! Sends nothing: the shell cancels, asks for the health, and tells both replies. Servers of Cog lose cancels and
//! miss connections that close, so that the permit of such work stays out until the server says that it is done.
//! Cancels are repeated each [`CANCEL_INTERVAL`]. Times are those of one clock.

use crate::Millis;

/// Time after which a server that does not end the work is no longer asked.
pub const LEFT_WORK_MAX: Millis = Millis::from_secs(120);

/// Interval between two cancels, once the first looks have found the work going on.
pub const CANCEL_INTERVAL: Millis = Millis(500);

/// Pause after the first look: a cancel takes effect within a tenth of a second.
const FIRST_PAUSE: Millis = Millis(100);

/// Looks after which a reply that may have come before the request itself is believed.
const LOOKS_MIN: u32 = 2;

/// Looks after which a server that has not the work any more is taken to be busy with that of others: some five
/// seconds.
const LOOKS_OF_OTHERS: u32 = 12;

/// Reply to a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelReply {
    /// The work was going on.
    Accepted,
    /// The server has no such work.
    Unknown,
    /// No answer that says anything.
    Unclear,
    /// Nothing listens there: the work has ended with its process.
    NoServer,
}

/// Report of a server on its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotReport {
    /// A slot is free.
    Free,
    /// None is.
    Busy,
    /// The server works on nothing: it starts, or has failed.
    Down,
    /// No answer that says anything.
    Unclear,
}

/// Next act after a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftWorkStep {
    /// The slot is free.
    Free,
    /// Another cancel and another look after so long.
    Again(Millis),
    /// The server does not end the work.
    GiveUp,
}

/// Work that was left at a server.
#[derive(Clone, Copy, Debug)]
pub struct LeftWork {
    since: Millis,
    looks: u32,
}

impl LeftWork {
    /// Creates work that was left at `now`.
    pub fn new(now: Millis) -> LeftWork {
        LeftWork {
            since: now,
            looks: 0,
        }
    }

    /// Decides by a cancel and a look after it, at `now`. A server with several slots has a free one while the work
    /// goes on, so that both replies count.
    pub fn look(&mut self, cancel: CancelReply, report: SlotReport, now: Millis) -> LeftWorkStep {
        self.looks += 1;
        let is_ended = match (cancel, report) {
            (CancelReply::NoServer, _) | (_, SlotReport::Down) => true,
            (CancelReply::Unknown, SlotReport::Free) => true,
            (CancelReply::Accepted, SlotReport::Free) => self.looks >= LOOKS_MIN,
            (CancelReply::Unknown, SlotReport::Busy) => self.looks >= LOOKS_OF_OTHERS,
            (CancelReply::Unknown, SlotReport::Unclear) => self.looks >= LOOKS_OF_OTHERS,
            (CancelReply::Accepted, SlotReport::Busy | SlotReport::Unclear)
            | (CancelReply::Unclear, _) => false,
        };
        if is_ended {
            return LeftWorkStep::Free;
        }
        if now.since(self.since) >= LEFT_WORK_MAX {
            return LeftWorkStep::GiveUp;
        }
        let doubled = FIRST_PAUSE.0 << (self.looks - 1).min(8);
        LeftWorkStep::Again(Millis(doubled).min(CANCEL_INTERVAL))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Millis = Millis(1000);

    fn looks(replies: &[(CancelReply, SlotReport)]) -> Vec<LeftWorkStep> {
        let mut work = LeftWork::new(NOW);
        let look = |(cancel, report): &(CancelReply, SlotReport)| work.look(*cancel, *report, NOW);
        replies.iter().map(look).collect()
    }

    #[test]
    fn the_permit_comes_back_when_the_server_knows_the_work_no_more() {
        let present = (CancelReply::Accepted, SlotReport::Busy);
        let ended = (CancelReply::Unknown, SlotReport::Free);
        assert_eq!(looks(&[ended]), [LeftWorkStep::Free]);
        assert_eq!(
            looks(&[present, present, present, present, ended]),
            [
                LeftWorkStep::Again(Millis(100)),
                LeftWorkStep::Again(Millis(200)),
                LeftWorkStep::Again(Millis(400)),
                LeftWorkStep::Again(Millis(500)),
                LeftWorkStep::Free,
            ]
        );
    }

    #[test]
    fn a_free_slot_beside_the_work_is_not_that_of_the_work() {
        let beside = (CancelReply::Accepted, SlotReport::Free);
        assert_eq!(looks(&[beside])[0], LeftWorkStep::Again(Millis(100)));
        assert_eq!(looks(&[beside, beside])[1], LeftWorkStep::Free);
    }

    #[test]
    fn a_server_that_is_gone_or_works_on_nothing_holds_no_permit() {
        for replies in [
            (CancelReply::NoServer, SlotReport::Unclear),
            (CancelReply::Unclear, SlotReport::Down),
            (CancelReply::Accepted, SlotReport::Down),
        ] {
            assert_eq!(looks(&[replies]), [LeftWorkStep::Free], "{replies:?}");
        }
    }

    #[test]
    fn work_of_others_keeps_no_permit_for_ever() {
        let others = (CancelReply::Unknown, SlotReport::Busy);
        let steps = looks(&[others; 12]);
        assert!(!steps[..11].contains(&LeftWorkStep::Free), "{steps:?}");
        assert_eq!(steps[11], LeftWorkStep::Free);
    }

    #[test]
    fn a_server_that_does_not_end_the_work_is_given_up_after_two_minutes() {
        let mut work = LeftWork::new(NOW);
        for (secs, step) in [
            (0, LeftWorkStep::Again(Millis(100))),
            (119, LeftWorkStep::Again(Millis(200))),
            (120, LeftWorkStep::GiveUp),
        ] {
            let now = NOW + Millis::from_secs(secs);
            let looked = work.look(CancelReply::Accepted, SlotReport::Busy, now);
            assert_eq!(looked, step, "{secs}");
        }
    }
}
