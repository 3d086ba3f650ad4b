//! Output of running jobs as it comes, for those that follow it.
//!
//! Not kept: a kill loses it with the run. Bounded for each job by [`EVENTS_MAX`] and [`BYTES_MAX`], for all that have ended
//! by [`ENDED_BYTES_MAX`]. Gone a minute after the end; later followers get the whole output from the store.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use infergate_core::Millis;
use infergate_core::job::{JobId, StoreTime};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Events that are kept of one job.
const EVENTS_MAX: usize = 4096;
/// Bytes of text that are kept of one job.
const BYTES_MAX: usize = 1 << 20;
/// Events that a follower may be behind while what was written to it does not leave: one that reads is never so late.
const BEHIND_MAX: u64 = 1024;
/// Numbers of the events of one run: a follower of another run, also of a process before this one, is not taken for one
/// of the present.
const NUMBERS_PER_RUN: u64 = 1 << 32;
/// Time that events are kept after the end.
const KEPT_AFTER_END: Millis = Millis::from_secs(60);
/// Bytes of all outputs whose jobs have ended; the oldest go first. A minute of many ends would take gigabytes.
const ENDED_BYTES_MAX: usize = 64 << 20;
/// Bytes that one event or one output takes besides its text, about.
const ENTRY_BYTES: usize = 128;

/// Place of an event in the output of a job: the moment, and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventPlaceId {
    /// Moment by the store's clock, milliseconds.
    pub ms: u64,
    /// Number among all events of the job; those of a run begin at a multiple of 2^32.
    pub number: u64,
}

impl EventPlaceId {
    /// Reads `<ms>:<number>`.
    pub fn read(text: &str) -> Option<EventPlaceId> {
        let (ms, number) = text.split_once(':')?;
        Some(EventPlaceId {
            ms: ms.parse().ok()?,
            number: number.parse().ok()?,
        })
    }
}

/// Texts of a run, which it adds to while others look. Held for one addition or one copy.
pub type SharedPieces = Arc<Mutex<Vec<String>>>;

/// Text that a run has added.
#[derive(Clone, Debug)]
pub struct LiveEvent {
    /// Its place.
    pub place: EventPlaceId,
    /// The text.
    pub text: Arc<str>,
}

/// Part of a job's events for a follower.
#[derive(Clone, Debug, Default)]
pub struct LivePart {
    /// Events after the ones that the follower has.
    pub events: Vec<LiveEvent>,
    /// The run has ended: no event follows.
    pub is_ended: bool,
    /// Events that the follower should have had are gone: their run was lost, or there were too many.
    pub is_broken: bool,
}

/// Output of the present run for a follower that has none of it.
#[derive(Clone, Debug)]
pub struct RunSoFar {
    /// Text of the events that are gone, and the place of the last of them.
    pub beginning: Option<(EventPlaceId, String)>,
    /// The events that are left.
    pub events: Vec<LiveEvent>,
    /// Number of the event behind them.
    pub next: u64,
}

#[derive(Default)]
struct LiveState {
    events: VecDeque<LiveEvent>,
    bytes: usize,
    /// Bytes of the present run's texts whose events are gone, and the place of the last of them.
    gone: Option<(EventPlaceId, usize)>,
    /// Number of the next event.
    next: u64,
    /// Number of the first event of the present run.
    first_of_run: u64,
    /// Output so far, as the object shows it: its run's own.
    pieces: SharedPieces,
    ended: Option<StoreTime>,
}

/// Output of one job.
#[derive(Default)]
pub struct LiveOutput {
    /// Held for one change or one copy.
    state: Mutex<LiveState>,
    /// Notified after each change.
    pub changed: Notify,
}

impl LiveOutput {
    /// Adds a text of the run.
    pub fn push(&self, text: &str, now: StoreTime) {
        let mut state = self.state.lock();
        let place = EventPlaceId {
            ms: now.0,
            number: state.next,
        };
        state.next += 1;
        state.bytes += text.len();
        state.events.push_back(LiveEvent {
            place,
            text: text.into(),
        });
        while state.events.len() > EVENTS_MAX || state.bytes > BYTES_MAX {
            let Some(oldest) = state.events.pop_front() else {
                break;
            };
            state.bytes -= oldest.text.len();
            let before = state.gone.map_or(0, |(_, bytes)| bytes);
            state.gone = Some((oldest.place, before + oldest.text.len()));
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Sets where the run gathers its output.
    pub fn set_pieces(&self, pieces: SharedPieces) {
        self.state.lock().pieces = pieces;
    }

    /// Returns the output so far.
    pub fn pieces(&self) -> Vec<String> {
        let pieces = Arc::clone(&self.state.lock().pieces);
        pieces.lock().clone()
    }

    /// Returns the events from number `next` on.
    pub fn after(&self, next: u64) -> LivePart {
        let state = self.state.lock();
        let oldest = state
            .events
            .front()
            .map_or(state.next, |event| event.place.number);
        let is_broken = next < oldest.max(state.first_of_run);
        let events = state
            .events
            .iter()
            .filter(|event| event.place.number >= next);
        LivePart {
            events: match is_broken {
                true => Vec::new(),
                false => events.cloned().collect(),
            },
            is_ended: state.ended.is_some(),
            is_broken,
        }
    }

    fn is_behind(&self, next: u64) -> bool {
        let state = self.state.lock();
        let oldest = state
            .events
            .front()
            .map_or(state.next, |event| event.place.number);
        next < oldest || state.next > next.saturating_add(BEHIND_MAX)
    }

    /// Ends once a follower that is to get number `next` is more than [`BEHIND_MAX`] events behind, or that event is gone.
    pub async fn falls_behind(&self, next: u64) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registered before the look, so that no event is missed.
            changed.as_mut().enable();
            if self.is_behind(next) {
                return;
            }
            changed.await;
        }
    }

    /// Returns all that the present run has put out. None where the text of the events that are gone is gone too: the run
    /// has ended, and the store is about to have it.
    pub fn so_far(&self) -> Option<RunSoFar> {
        let state = self.state.lock();
        let events = state.events.iter().cloned().collect();
        let (next, gone) = (state.next, state.gone);
        let pieces = Arc::clone(&state.pieces);
        drop(state);
        let Some((place, bytes)) = gone else {
            return Some(RunSoFar {
                beginning: None,
                events,
                next,
            });
        };
        // A run adds to its output first, and only at the end: these bytes stay as they are.
        let mut beginning = String::with_capacity(bytes);
        for piece in pieces.lock().iter() {
            let part = piece.len().min(bytes - beginning.len());
            beginning.push_str(piece.get(..part)?);
        }
        (beginning.len() == bytes).then_some(RunSoFar {
            beginning: Some((place, beginning)),
            events,
            next,
        })
    }

    fn begin(&self, epoch: u32) {
        let mut state = self.state.lock();
        // Followers that have text of a lost run cannot go on with that of another.
        state.first_of_run = u64::from(epoch.saturating_sub(1)) * NUMBERS_PER_RUN;
        state.next = state.first_of_run;
        state.events.clear();
        state.bytes = 0;
        state.gone = None;
        state.pieces = SharedPieces::default();
        state.ended = None;
        drop(state);
        self.changed.notify_waiters();
    }

    /// Marks the end. Returns the bytes that are still held.
    fn end(&self, now: StoreTime) -> usize {
        let mut state = self.state.lock();
        state.ended = Some(now);
        // The object is shown from the store from now on.
        state.pieces = SharedPieces::default();
        let bytes = state.bytes + (state.events.len() + 1) * ENTRY_BYTES;
        drop(state);
        self.changed.notify_waiters();
        bytes
    }

    /// Returns whether the job ended at this moment, and has not begun again since.
    fn has_ended_at(&self, moment: StoreTime) -> bool {
        self.state.lock().ended == Some(moment)
    }
}

/// Output whose job has ended.
struct EndedOutput {
    job: JobId,
    moment: StoreTime,
    bytes: usize,
}

/// Outputs by job, and those that have ended, oldest first.
#[derive(Default)]
struct KeptOutputs {
    by_job: HashMap<JobId, Arc<LiveOutput>>,
    ended: VecDeque<EndedOutput>,
    ended_bytes: usize,
}

impl KeptOutputs {
    /// Forgets the ends whose time is over, and the oldest beyond the bound.
    fn forget_ended(&mut self, now: StoreTime) {
        while let Some(oldest) = self.ended.front()
            && (oldest.moment + KEPT_AFTER_END <= now || self.ended_bytes > ENDED_BYTES_MAX)
        {
            let found = self.by_job.get(&oldest.job);
            if found.is_some_and(|output| output.has_ended_at(oldest.moment)) {
                self.by_job.remove(&oldest.job);
            }
            self.ended_bytes -= oldest.bytes;
            self.ended.pop_front();
        }
    }
}

/// Outputs of the jobs that run in this process, or ended lately.
#[derive(Default)]
pub struct LiveOutputs {
    /// Held for one look-up, and for the removal of what has been added since the last one.
    outputs: Mutex<KeptOutputs>,
}

impl LiveOutputs {
    /// Begins the output of a run, the `epoch`th of its job.
    pub fn begin(self: &Arc<Self>, (job, epoch): (JobId, u32), now: StoreTime) -> LiveRun {
        let mut outputs = self.outputs.lock();
        outputs.forget_ended(now);
        let output = Arc::clone(outputs.by_job.entry(job).or_default());
        drop(outputs);
        output.begin(epoch);
        LiveRun {
            outputs: Arc::clone(self),
            output,
            job,
            epoch,
            is_final: false,
        }
    }

    /// Returns the output of a job.
    pub fn get(&self, job: &JobId) -> Option<Arc<LiveOutput>> {
        self.outputs.lock().by_job.get(job).cloned()
    }
}

/// Output of one run; forgotten by drop, unless the job has ended with it.
pub struct LiveRun {
    outputs: Arc<LiveOutputs>,
    /// The output.
    pub output: Arc<LiveOutput>,
    job: JobId,
    epoch: u32,
    is_final: bool,
}

impl LiveRun {
    /// The job ends with this run.
    pub fn end(mut self, now: StoreTime) {
        self.is_final = true;
        let bytes = self.output.end(now);
        let mut outputs = self.outputs.outputs.lock();
        outputs.ended_bytes += bytes;
        outputs.ended.push_back(EndedOutput {
            job: self.job,
            moment: now,
            bytes,
        });
        outputs.forget_ended(now);
    }
}

impl Drop for LiveRun {
    fn drop(&mut self) {
        if self.is_final {
            return;
        }
        // The job may run again before this is dropped.
        let first = u64::from(self.epoch.saturating_sub(1)) * NUMBERS_PER_RUN;
        if self.output.state.lock().first_of_run == first {
            self.outputs.outputs.lock().by_job.remove(&self.job);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> JobId {
        JobId::from_random(None, [1; 16])
    }

    #[test]
    fn a_follower_gets_what_comes_after_its_last_event() {
        let outputs = Arc::new(LiveOutputs::default());
        let run = outputs.begin((id(), 1), StoreTime(5));
        for text in ["a", "b", "c"] {
            run.output.push(text, StoreTime(7));
        }
        let live = outputs.get(&id()).unwrap();
        let part = live.after(1);
        let texts: Vec<&str> = part.events.iter().map(|event| &*event.text).collect();
        assert_eq!(texts, ["b", "c"]);
        assert!(!part.is_ended && !part.is_broken);
        run.end(StoreTime(8));
        assert!(live.after(3).is_ended);
        assert_eq!(
            EventPlaceId::read("7:1"),
            Some(EventPlaceId { ms: 7, number: 1 })
        );
        assert_eq!(EventPlaceId::read("7"), None);
    }

    #[tokio::test]
    async fn a_follower_falls_behind_after_1024_further_events() {
        let output = LiveOutput::default();
        for _ in 0..BEHIND_MAX {
            output.push("x", StoreTime(0));
        }
        let behind = output.falls_behind(0);
        tokio::pin!(behind);
        assert!(futures_util::poll!(behind.as_mut()).is_pending());
        output.push("x", StoreTime(0));
        assert!(futures_util::poll!(behind.as_mut()).is_ready());
        assert!(!output.is_behind(1));
        output.push(&"x".repeat(BYTES_MAX), StoreTime(0));
        assert!(output.is_behind(BEHIND_MAX), "what it needs is gone");
    }

    #[test]
    fn text_of_a_lost_run_is_not_continued() {
        let outputs = Arc::new(LiveOutputs::default());
        let lost = outputs.begin((id(), 1), StoreTime(5));
        lost.output.push("a", StoreTime(5));
        drop(lost);
        assert!(
            outputs.get(&id()).is_none(),
            "nothing is kept for a run that may not come"
        );
        let run = outputs.begin((id(), 2), StoreTime(6));
        run.output.push("x", StoreTime(6));
        for of_lost_run in 0..3 {
            assert!(run.output.after(of_lost_run).is_broken);
        }
        let so_far = run.output.so_far().unwrap();
        assert_eq!(so_far.events.len(), 1);
        assert_eq!(so_far.events[0].place.number, NUMBERS_PER_RUN);
        assert!(!run.output.after(so_far.next).is_broken);
    }

    #[test]
    fn the_oldest_events_go_and_an_end_is_forgotten_after_a_minute() {
        let outputs = Arc::new(LiveOutputs::default());
        let run = outputs.begin((id(), 1), StoreTime(0));
        for _ in 0..=EVENTS_MAX {
            run.output.push("x", StoreTime(0));
        }
        assert!(run.output.after(0).is_broken && !run.output.after(1).is_broken);
        run.end(StoreTime(0));
        let other = JobId::from_random(None, [2; 16]);
        let next = StoreTime(0) + KEPT_AFTER_END;
        drop(outputs.begin((other, 1), next));
        assert!(outputs.get(&id()).is_none() && outputs.get(&other).is_none());
    }

    #[test]
    fn a_follower_that_comes_late_gets_the_text_of_the_events_that_are_gone() {
        let outputs = Arc::new(LiveOutputs::default());
        let run = outputs.begin((id(), 1), StoreTime(0));
        let pieces = SharedPieces::default();
        run.output.set_pieces(Arc::clone(&pieces));
        let mut whole = String::new();
        for number in 0..EVENTS_MAX + 3 {
            let text = format!("é{number} ");
            whole.push_str(&text);
            // One piece holds several events, as the texts of a tenth of a second do.
            let mut pieces = pieces.lock();
            match pieces.last_mut() {
                Some(last) if number % 2 == 1 => last.push_str(&text),
                _ => pieces.push(text.clone()),
            }
            drop(pieces);
            run.output.push(&text, StoreTime(9));
        }
        // The output may be ahead of the events.
        pieces.lock().push("more".to_owned());
        let so_far = run.output.so_far().unwrap();
        let last_gone = EventPlaceId { ms: 9, number: 2 };
        assert_eq!(so_far.beginning, Some((last_gone, "é0 é1 é2 ".to_owned())));
        assert!(run.output.after(so_far.next).events.is_empty());
        let left: String = so_far.events.iter().map(|event| &*event.text).collect();
        assert_eq!(format!("é0 é1 é2 {left}"), whole);
        run.end(StoreTime(10));
        let live = outputs.get(&id()).unwrap();
        assert!(live.so_far().is_none(), "the store has it");
        let again = outputs.begin((id(), 2), StoreTime(11));
        let so_far = again.output.so_far().unwrap();
        assert!(so_far.beginning.is_none() && so_far.events.is_empty());
        assert_eq!(so_far.next, NUMBERS_PER_RUN);
    }

    #[test]
    fn ended_outputs_together_have_a_bound_and_the_oldest_go_first() {
        let outputs = Arc::new(LiveOutputs::default());
        let text = "x".repeat(BYTES_MAX / 2);
        let id = |number: u8| JobId::from_random(None, [number; 16]);
        for number in 0..200 {
            let run = outputs.begin((id(number), 1), StoreTime(0));
            run.output.push(&text, StoreTime(0));
            run.end(StoreTime(0));
        }
        let kept = (0..200).filter(|number| outputs.get(&id(*number)).is_some());
        let kept: Vec<u8> = kept.collect();
        assert_eq!(kept.len(), 127);
        assert_eq!(kept.first(), Some(&73));
        assert_eq!(outputs.outputs.lock().ended.len(), 127);
    }

    #[test]
    fn a_job_that_has_begun_again_outlives_its_former_end() {
        let outputs = Arc::new(LiveOutputs::default());
        outputs.begin((id(), 1), StoreTime(0)).end(StoreTime(0));
        let again = outputs.begin((id(), 2), StoreTime(1));
        let other = JobId::from_random(None, [2; 16]);
        drop(outputs.begin((other, 1), StoreTime(0) + KEPT_AFTER_END));
        assert!(outputs.get(&id()).is_some());
        drop(again);
        assert!(outputs.get(&id()).is_none());
    }
}
