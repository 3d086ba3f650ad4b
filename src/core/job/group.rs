//! Batches: what the feeder of a group does next, and the checkpoints that make a crash repeat a part, never a line.
//!
//! Neither reads nor writes files or queues. [`GroupRecord`] is what the store keeps and changes atomically;
//! [`GroupFeeder`] is what one node has in memory about it. Lines are counted from 0. A line is fed, open, collected
//! and at last in one part; only a line that is open can be collected, whatever was submitted or finished twice.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::Millis;

/// Items of a group that are in the queue at once, unless configured otherwise: 50,000 lines never stand there.
pub const GROUP_WINDOW: u32 = 256;

/// Longest time that a finished item waits for its part.
pub const PART_WAIT_MAX: Millis = Millis::from_secs(10);

/// Lines that one part notes as expired.
const EXPIRED_LINES_MAX: u32 = 1000;

/// State of a group; the words are those of OpenAI's batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupState {
    /// The whole file is read once.
    Validating,
    /// Items are fed and collected.
    InProgress,
    /// Every line is in a part; the parts are joined.
    Finalizing,
    /// Ended with every item.
    Completed,
    /// The file was not valid.
    Failed,
    /// Ended; the lines that had not run in time are in the error file.
    Expired,
    /// No new items; the running ones end.
    Cancelling,
    /// Ended with the items that had run.
    Cancelled,
}

impl GroupState {
    /// Word of the state.
    pub const fn as_str(self) -> &'static str {
        match self {
            GroupState::Validating => "validating",
            GroupState::InProgress => "in_progress",
            GroupState::Finalizing => "finalizing",
            GroupState::Completed => "completed",
            GroupState::Failed => "failed",
            GroupState::Expired => "expired",
            GroupState::Cancelling => "cancelling",
            GroupState::Cancelled => "cancelled",
        }
    }

    /// Returns whether nothing changes any more.
    pub const fn is_ended(self) -> bool {
        use GroupState::{Cancelled, Completed, Expired, Failed};
        matches!(self, Completed | Failed | Expired | Cancelled)
    }
}

/// Items of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCounts {
    /// Lines of the file.
    pub total: u32,
    /// Lines of the output file.
    pub completed: u32,
    /// Lines of the error file.
    pub failed: u32,
}

/// End of one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemOutcome {
    /// Goes to the output file.
    Completed,
    /// Goes to the error file.
    Failed,
    /// Not run before the group expired; goes to the error file.
    Expired,
    /// Canceled with the group; goes nowhere.
    Canceled,
}

/// Name of a part. The fencing number keeps a feeder that was replaced from writing over its successor's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartName {
    /// Number of the checkpoint, from 1.
    pub checkpoint: u64,
    /// Fencing number of the feeder.
    pub fencing: u64,
}

/// One step of a group, applied to the record in one atomic step with the removal of its items from the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupCheckpoint {
    /// Name of the part; written before the commit, under this name in the output and the error file.
    pub name: PartName,
    /// Lines fed so far: the next feeder goes on from here.
    pub fed: u32,
    /// Lines below `fed` that are in no part yet.
    pub open: BTreeSet<u32>,
    /// Lines of this part, with their ends; [`ItemOutcome::Canceled`] ones leave no line.
    pub items: BTreeMap<u32, ItemOutcome>,
}

impl GroupCheckpoint {
    /// Lines of the output file's part.
    pub fn output_lines(&self) -> impl Iterator<Item = u32> {
        self.lines(|outcome| outcome == ItemOutcome::Completed)
    }

    /// Lines of the error file's part.
    pub fn error_lines(&self) -> impl Iterator<Item = u32> {
        self.lines(|outcome| matches!(outcome, ItemOutcome::Failed | ItemOutcome::Expired))
    }

    fn lines(&self, is_wanted: impl Fn(ItemOutcome) -> bool) -> impl Iterator<Item = u32> {
        let items = self.items.iter();
        let wanted = items.filter(move |(_, outcome)| is_wanted(**outcome));
        wanted.map(|(line, _)| *line)
    }
}

/// Answer to a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum CheckpointAnswer {
    /// Applied now.
    Applied,
    /// Applied before: a lost answer was asked for again.
    Already,
    /// Another feeder went on: this one stops and changes nothing.
    Stale,
}

/// Durable state of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRecord {
    /// State, as users see it.
    pub state: GroupState,
    /// True once the group's time is over: lines not yet fed are noted as expired.
    pub is_expiring: bool,
    /// Items in parts.
    pub counts: GroupCounts,
    /// Latest part that was committed; `checkpoint` 0 at first.
    pub latest: PartName,
    /// Lines fed at the latest checkpoint.
    pub fed: u32,
    /// Lines below `fed` that are in no part yet; at most the window and what was collected meanwhile.
    pub open: BTreeSet<u32>,
    /// Parts of the output file, in order.
    pub output_parts: Vec<PartName>,
    /// Parts of the error file, in order.
    pub error_parts: Vec<PartName>,
}

impl GroupRecord {
    /// Creates a group whose file is still to be read.
    pub fn new() -> GroupRecord {
        GroupRecord {
            state: GroupState::Validating,
            is_expiring: false,
            counts: GroupCounts::default(),
            latest: PartName {
                checkpoint: 0,
                fencing: 0,
            },
            fed: 0,
            open: BTreeSet::new(),
            output_parts: Vec::new(),
            error_parts: Vec::new(),
        }
    }

    /// Begins with the `total` lines of a valid file. Returns whether the state allowed it, as the others do.
    pub fn begin(&mut self, total: u32) -> bool {
        let is_allowed = self.state == GroupState::Validating;
        if is_allowed {
            self.counts.total = total;
        }
        self.change(is_allowed, GroupState::InProgress)
    }

    /// Ends a group whose file is not valid.
    pub fn fail(&mut self) -> bool {
        self.change(self.state == GroupState::Validating, GroupState::Failed)
    }

    /// Cancels: nothing is fed any more.
    pub fn cancel(&mut self) -> bool {
        use GroupState::{InProgress, Validating};
        let is_allowed = matches!(self.state, Validating | InProgress);
        self.change(is_allowed, GroupState::Cancelling)
    }

    /// Lets the time of the group be over: what was not fed expires.
    pub fn expire(&mut self) -> bool {
        use GroupState::{InProgress, Validating};
        let is_allowed = matches!(self.state, Validating | InProgress) && !self.is_expiring;
        self.is_expiring |= is_allowed;
        is_allowed
    }

    /// Goes on to join the parts, once every line is in one.
    pub fn finalize(&mut self) -> bool {
        let is_done = self.fed == self.counts.total && self.open.is_empty();
        let is_allowed = self.state == GroupState::InProgress && is_done;
        self.change(is_allowed, GroupState::Finalizing)
    }

    /// Ends the group, after its parts were joined.
    pub fn end(&mut self) -> bool {
        match self.state {
            GroupState::Finalizing if self.is_expiring => self.change(true, GroupState::Expired),
            GroupState::Finalizing => self.change(true, GroupState::Completed),
            GroupState::Cancelling => self.change(self.open.is_empty(), GroupState::Cancelled),
            _ => false,
        }
    }

    /// Applies a checkpoint; on [`CheckpointAnswer::Applied`] the caller removes its items in the same step.
    pub fn commit(&mut self, checkpoint: &GroupCheckpoint) -> CheckpointAnswer {
        let name = checkpoint.name;
        let is_same = self.fed == checkpoint.fed && self.open == checkpoint.open;
        if name == self.latest && is_same {
            return CheckpointAnswer::Already;
        }
        let is_next = name.checkpoint == self.latest.checkpoint + 1;
        let is_fenced = name.fencing < self.latest.fencing;
        let is_open = matches!(self.state, GroupState::InProgress | GroupState::Cancelling);
        if !is_next || is_fenced || !is_open {
            return CheckpointAnswer::Stale;
        }
        self.latest = name;
        self.fed = checkpoint.fed;
        self.open.clone_from(&checkpoint.open);
        let count = |lines: usize| u32::try_from(lines).unwrap_or(u32::MAX);
        let completed = count(checkpoint.output_lines().count());
        let failed = count(checkpoint.error_lines().count());
        self.counts.completed += completed;
        self.counts.failed += failed;
        self.output_parts.extend((completed > 0).then_some(name));
        self.error_parts.extend((failed > 0).then_some(name));
        CheckpointAnswer::Applied
    }

    fn change(&mut self, is_allowed: bool, to: GroupState) -> bool {
        if is_allowed {
            self.state = to;
        }
        is_allowed
    }
}

impl Default for GroupRecord {
    fn default() -> GroupRecord {
        GroupRecord::new()
    }
}

/// Next step of a feeder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupStep {
    /// Read the file, then [`GroupRecord::begin`] or [`GroupRecord::fail`].
    Validate,
    /// Submit these lines, each under an id made of group and line, then [`GroupFeeder::record_fed`].
    Feed(Range<u32>),
    /// Call [`GroupFeeder::record_expired`]: these lines do not run any more.
    Expire(Range<u32>),
    /// Write the part, commit the checkpoint, then [`GroupFeeder::confirm`].
    Commit(GroupCheckpoint),
    /// Every line is in a part: [`GroupRecord::finalize`].
    Finalize,
    /// Join the parts, then [`GroupRecord::end`].
    Join,
    /// Wait for items to end.
    Wait,
    /// The group has ended.
    Ended,
}

/// Work of one node on a group, from the durable record on; lost in a crash without harm.
#[derive(Clone, Debug)]
pub struct GroupFeeder {
    record: GroupRecord,
    fencing: u64,
    window: u32,
    fed: u32,
    /// Lines below `fed` that are in no committed part.
    open: BTreeSet<u32>,
    /// Lines of `open` that have ended.
    collected: BTreeMap<u32, ItemOutcome>,
    /// Moment of the oldest of them.
    collected_at: Option<Millis>,
    /// Checkpoint that was handed out: the same until it is confirmed, as it may be applied without an answer.
    pending: Option<GroupCheckpoint>,
}

impl GroupFeeder {
    /// Goes on with a group. `fencing` is the number of the duty's lease, `window` the items in the queue at once.
    /// Lines that an earlier feeder submitted after its last checkpoint are fed again; the store knows their ids.
    pub fn resume(record: GroupRecord, fencing: u64, window: u32) -> GroupFeeder {
        GroupFeeder {
            fencing,
            window: window.max(1),
            fed: record.fed,
            open: record.open.clone(),
            collected: BTreeMap::new(),
            collected_at: None,
            pending: None,
            record,
        }
    }

    /// Durable record as this feeder last knew it.
    pub fn record(&self) -> &GroupRecord {
        &self.record
    }

    /// Items in the queue or running.
    pub fn in_flight(&self) -> u32 {
        u32::try_from(self.open.len() - self.collected.len()).unwrap_or(u32::MAX)
    }

    /// Takes over a change of state by others. Returns false when another feeder went on: this one is to stop.
    pub fn observe(&mut self, record: &GroupRecord) -> bool {
        self.record.state = record.state;
        self.record.is_expiring = record.is_expiring;
        self.record.counts.total = record.counts.total;
        let pending = self.pending.as_ref().map(|checkpoint| checkpoint.name);
        self.record.latest == record.latest || pending == Some(record.latest)
    }

    /// Records an item that has ended. Returns false for one that is not open: not fed by this feeder yet, or in a
    /// part already.
    pub fn collect(&mut self, line: u32, outcome: ItemOutcome, now: Millis) -> bool {
        if !self.open.contains(&line) {
            return false;
        }
        self.collected.entry(line).or_insert(outcome);
        self.collected_at.get_or_insert(now);
        true
    }

    /// Returns what to do now. A checkpoint that is not confirmed comes again, unchanged.
    pub fn next_step(&mut self, now: Millis) -> GroupStep {
        match self.record.state {
            GroupState::Validating => GroupStep::Validate,
            GroupState::InProgress | GroupState::Cancelling if self.is_part_due(now) => {
                self.step_part()
            }
            GroupState::InProgress => self.step_feed(),
            GroupState::Cancelling if self.open.is_empty() => GroupStep::Join,
            GroupState::Cancelling => GroupStep::Wait,
            GroupState::Finalizing => GroupStep::Join,
            GroupState::Completed
            | GroupState::Failed
            | GroupState::Expired
            | GroupState::Cancelled => GroupStep::Ended,
        }
    }

    /// Moment at which a part is due without a further item.
    pub fn next_due(&self) -> Option<Millis> {
        Some(self.collected_at? + PART_WAIT_MAX)
    }

    /// Records that the lines before `end` were submitted.
    pub fn record_fed(&mut self, end: u32) {
        let end = end.min(self.record.counts.total);
        self.open.extend(self.fed..end);
        self.fed = self.fed.max(end);
    }

    /// Records that the lines before `end` will not run.
    pub fn record_expired(&mut self, end: u32, now: Millis) {
        let begin = self.fed;
        self.record_fed(end);
        for line in begin..self.fed {
            self.collect(line, ItemOutcome::Expired, now);
        }
    }

    /// Takes over a checkpoint that was applied, now or before. What was fed or collected since stays.
    pub fn confirm(&mut self, checkpoint: &GroupCheckpoint, now: Millis) {
        if self.record.commit(checkpoint) != CheckpointAnswer::Applied {
            return;
        }
        self.pending = None;
        for line in checkpoint.items.keys() {
            self.open.remove(line);
            self.collected.remove(line);
        }
        self.collected_at = (!self.collected.is_empty()).then_some(now);
    }

    fn step_part(&mut self) -> GroupStep {
        let checkpoint = self.pending.take().unwrap_or_else(|| self.checkpoint());
        self.pending = Some(checkpoint.clone());
        GroupStep::Commit(checkpoint)
    }

    fn step_feed(&mut self) -> GroupStep {
        let rest = self.record.counts.total - self.fed;
        if rest > 0 && self.record.is_expiring {
            return GroupStep::Expire(self.fed..self.fed + rest.min(EXPIRED_LINES_MAX));
        }
        let room = self.window.saturating_sub(self.in_flight());
        match rest.min(room) {
            0 if rest == 0 && self.open.is_empty() => GroupStep::Finalize,
            0 => GroupStep::Wait,
            count => GroupStep::Feed(self.fed..self.fed + count),
        }
    }

    /// Returns whether a part is worth writing: a quarter of the window, an item that has waited, or nothing else
    /// to wait for.
    fn is_part_due(&self, now: Millis) -> bool {
        let Some(since) = self.collected_at else {
            return false;
        };
        if self.pending.is_some() {
            return true;
        }
        let is_last = self.in_flight() == 0;
        let quarter = usize::try_from(self.window / 4).unwrap_or(usize::MAX);
        is_last || self.collected.len() > quarter || now.since(since) >= PART_WAIT_MAX
    }

    fn checkpoint(&self) -> GroupCheckpoint {
        let open = self.open.iter().copied();
        GroupCheckpoint {
            name: PartName {
                checkpoint: self.record.latest.checkpoint + 1,
                fencing: self.fencing,
            },
            fed: self.fed,
            open: open
                .filter(|line| !self.collected.contains_key(line))
                .collect(),
            items: self.collected.clone(),
        }
    }
}

#[cfg(test)]
#[path = "tests/group.rs"]
mod tests;
