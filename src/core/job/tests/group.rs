//! Tests of batches: window, parts, states, and random crashes of feeders.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const NOW: Millis = Millis(0);

fn feeder(total: u32, window: u32) -> GroupFeeder {
    let mut record = GroupRecord::new();
    assert!(record.begin(total));
    GroupFeeder::resume(record, 1, window)
}

fn feed(feeder: &mut GroupFeeder) -> Range<u32> {
    let GroupStep::Feed(lines) = feeder.next_step(NOW) else {
        panic!("{:?}", feeder.next_step(NOW));
    };
    feeder.record_fed(lines.end);
    lines
}

fn commit(feeder: &mut GroupFeeder, record: &mut GroupRecord, now: Millis) -> GroupCheckpoint {
    let GroupStep::Commit(checkpoint) = feeder.next_step(now) else {
        panic!("{:?}", feeder.next_step(now));
    };
    assert_eq!(record.commit(&checkpoint), CheckpointAnswer::Applied);
    feeder.confirm(&checkpoint, now);
    checkpoint
}

#[test]
fn no_more_than_the_window_is_in_the_queue() {
    let mut feeder = feeder(50_000, GROUP_WINDOW);
    assert_eq!(feed(&mut feeder), 0..256);
    assert_eq!(feeder.next_step(NOW), GroupStep::Wait);
    for line in 0..10 {
        assert!(feeder.collect(line, ItemOutcome::Completed, NOW));
    }
    assert_eq!(feed(&mut feeder), 256..266);
    assert_eq!(
        (feeder.in_flight(), feeder.next_step(NOW)),
        (256, GroupStep::Wait)
    );
}

#[test]
fn a_part_is_due_after_a_quarter_of_the_window_or_ten_seconds() {
    let mut feeder = feeder(1000, 8);
    let mut record = feeder.record().clone();
    feed(&mut feeder);
    feeder.collect(3, ItemOutcome::Completed, Millis(5));
    feed(&mut feeder);
    assert_eq!(feeder.next_due(), Some(Millis(10_005)));
    assert_eq!(feeder.next_step(Millis(10_004)), GroupStep::Wait);
    let part = commit(&mut feeder, &mut record, Millis(10_005));
    assert_eq!(part.output_lines().collect::<Vec<_>>(), [3]);
    assert_eq!((part.fed, part.open.len()), (9, 8));
    for line in [0, 1, 2] {
        feeder.collect(line, ItemOutcome::Failed, NOW);
    }
    let part = commit(&mut feeder, &mut record, NOW);
    assert_eq!(part.error_lines().collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(
        (record.output_parts.len(), record.error_parts.len()),
        (1, 1)
    );
    let counts = GroupCounts {
        total: 1000,
        completed: 1,
        failed: 3,
    };
    assert_eq!(record.counts, counts);
}

#[test]
fn a_group_ends_once_every_line_is_in_a_part() {
    let mut feeder = feeder(2, 256);
    let mut record = feeder.record().clone();
    feed(&mut feeder);
    feeder.collect(1, ItemOutcome::Completed, NOW);
    assert!(!record.finalize());
    feeder.collect(0, ItemOutcome::Failed, NOW);
    commit(&mut feeder, &mut record, NOW);
    assert_eq!(feeder.next_step(NOW), GroupStep::Finalize);
    assert!(record.finalize() && feeder.observe(&record));
    assert_eq!(feeder.next_step(NOW), GroupStep::Join);
    assert!(!record.cancel() && !record.expire());
    assert!(record.end() && feeder.observe(&record) && !record.end());
    assert_eq!(record.state, GroupState::Completed);
    assert_eq!(feeder.next_step(NOW), GroupStep::Ended);
}

#[test]
fn an_empty_group_completes_and_a_bad_file_fails() {
    assert_eq!(feeder(0, 256).next_step(NOW), GroupStep::Finalize);
    let mut record = GroupRecord::new();
    let mut feeder = GroupFeeder::resume(record.clone(), 1, 256);
    assert_eq!(feeder.next_step(NOW), GroupStep::Validate);
    assert!(record.fail() && !record.begin(5) && record.state.is_ended());
}

#[test]
fn a_cancelled_group_feeds_no_more_and_keeps_what_there_is() {
    let mut feeder = feeder(100, 4);
    let mut record = feeder.record().clone();
    feed(&mut feeder);
    feeder.collect(0, ItemOutcome::Completed, NOW);
    assert!(record.cancel() && feeder.observe(&record));
    assert_eq!(feeder.next_step(NOW), GroupStep::Wait);
    for line in 1..4 {
        feeder.collect(line, ItemOutcome::Canceled, NOW);
    }
    commit(&mut feeder, &mut record, NOW);
    assert_eq!(feeder.next_step(NOW), GroupStep::Join);
    assert!(record.end());
    assert_eq!(record.state.as_str(), "cancelled");
    assert_eq!((record.counts.completed, record.counts.failed), (1, 0));
}

#[test]
fn the_rest_of_an_expired_group_is_in_the_error_file() {
    let mut feeder = feeder(2500, 4);
    let mut record = feeder.record().clone();
    feed(&mut feeder);
    assert!(record.expire() && feeder.observe(&record));
    for line in 0..4 {
        feeder.collect(line, ItemOutcome::Expired, NOW);
    }
    loop {
        match feeder.next_step(NOW) {
            GroupStep::Expire(lines) => feeder.record_expired(lines.end, NOW),
            GroupStep::Commit(_) => drop(commit(&mut feeder, &mut record, NOW)),
            step => break assert_eq!(step, GroupStep::Finalize),
        }
    }
    assert!(record.finalize() && record.end());
    assert_eq!(
        (record.state, record.counts.failed),
        (GroupState::Expired, 2500)
    );
}

#[test]
fn a_replaced_feeder_changes_nothing() {
    let mut old = feeder(100, 4);
    let mut record = old.record().clone();
    feed(&mut old);
    let mut new = GroupFeeder::resume(record.clone(), 2, 4);
    feed(&mut new);
    for feeder in [&mut old, &mut new] {
        feeder.collect(0, ItemOutcome::Completed, NOW);
        feeder.collect(1, ItemOutcome::Completed, NOW);
    }
    let GroupStep::Commit(stale) = old.next_step(NOW) else {
        panic!("two of four");
    };
    let part = commit(&mut new, &mut record, NOW);
    assert_ne!(part.name, stale.name);
    assert_eq!(record.commit(&stale), CheckpointAnswer::Stale);
    assert_eq!(record.commit(&part), CheckpointAnswer::Already);
    assert!(!old.observe(&record) && new.observe(&record));
    assert!(!new.collect(0, ItemOutcome::Completed, NOW));
    assert_eq!(record.counts.completed, 2);
}

/// Store of a random run: what survives every crash.
struct Store {
    record: GroupRecord,
    /// Items by line: none while in the queue or running.
    items: BTreeMap<u32, Option<ItemOutcome>>,
    outputs: HashMap<PartName, Vec<u32>>,
    errors: HashMap<PartName, Vec<u32>>,
}

impl Store {
    fn submit(&mut self, lines: Range<u32>) {
        for line in lines {
            self.items.entry(line).or_default();
        }
    }

    fn finish_one(&mut self, choice: u8) {
        let mut running = self.items.iter_mut().filter(|(_, end)| end.is_none());
        if let Some((line, end)) = running.nth(usize::from(choice) % 5) {
            let is_good = !line.is_multiple_of(3);
            *end = Some(if is_good {
                ItemOutcome::Completed
            } else {
                ItemOutcome::Failed
            });
        }
    }

    fn write(&mut self, checkpoint: &GroupCheckpoint) {
        self.outputs
            .insert(checkpoint.name, checkpoint.output_lines().collect());
        self.errors
            .insert(checkpoint.name, checkpoint.error_lines().collect());
    }

    fn commit(&mut self, checkpoint: &GroupCheckpoint) -> CheckpointAnswer {
        let answer = self.record.commit(checkpoint);
        if answer == CheckpointAnswer::Applied {
            for line in checkpoint.items.keys() {
                self.items.remove(line);
            }
        }
        answer
    }

    fn joined(&self) -> Vec<u32> {
        let output = self
            .record
            .output_parts
            .iter()
            .flat_map(|name| &self.outputs[name]);
        let error = self
            .record
            .error_parts
            .iter()
            .flat_map(|name| &self.errors[name]);
        let mut lines: Vec<_> = output.chain(error).copied().collect();
        lines.sort_unstable();
        lines
    }
}

/// Goes one step, which a crash may cut; returns false when the feeder is lost.
fn step(store: &mut Store, feeder: &mut GroupFeeder, crash: u8, now: Millis) -> bool {
    for (line, end) in &store.items {
        if let Some(outcome) = end {
            feeder.collect(*line, *outcome, now);
        }
    }
    match feeder.next_step(now) {
        GroupStep::Feed(lines) => {
            let cut = lines.end - u32::from(crash).min(lines.end - lines.start);
            store.submit(lines.start..cut);
            if crash == 0 {
                feeder.record_fed(lines.end);
            }
            crash == 0
        }
        GroupStep::Expire(lines) => {
            feeder.record_expired(lines.end, now);
            crash == 0
        }
        GroupStep::Commit(checkpoint) => {
            store.write(&checkpoint);
            if crash == 1 {
                return false;
            }
            let mut answer = store.commit(&checkpoint);
            if crash == 2 {
                return false;
            }
            if crash == 4 {
                // The answer is lost, and the feeder goes on.
                return answer != CheckpointAnswer::Stale;
            }
            if crash == 3 {
                answer = store.commit(&checkpoint);
            }
            feeder.confirm(&checkpoint, now);
            answer != CheckpointAnswer::Stale
        }
        _ => true,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Feeders crash between all steps, old ones go on beside new ones: each line is in the files exactly once.
    #[test]
    fn each_line_is_in_the_files_exactly_once(
        total in 0_u32..120,
        window in 1_u32..20,
        expires_at in proptest::option::of(0_usize..300),
        steps in proptest::collection::vec((0_u8..6, 0_u8..12, any::<u8>()), 0..300),
    ) {
        let mut record = GroupRecord::new();
        record.begin(total);
        let mut store = Store { record, items: BTreeMap::new(), outputs: HashMap::new(), errors: HashMap::new() };
        let mut fencing = 1;
        let mut feeders = vec![GroupFeeder::resume(store.record.clone(), 1, window)];
        let rest = std::iter::repeat_n((0, 9, 0), 2000);
        for (at, (kind, crash, choice)) in steps.into_iter().chain(rest).enumerate() {
            let now = Millis(at as u64 * 1000);
            if expires_at == Some(at) {
                store.record.expire();
            }
            store.finish_one(choice);
            if kind == 5 && feeders.len() < 3 {
                // The lease has run out, but its holder does not know.
                fencing += 1;
                feeders.push(GroupFeeder::resume(store.record.clone(), fencing, window));
            }
            let number = usize::from(choice) % feeders.len();
            let feeder = &mut feeders[number];
            let is_current = feeder.observe(&store.record) || kind >= 3;
            let crash = if crash < 5 { crash } else { 0 };
            prop_assert!(feeder.in_flight() <= window);
            if !is_current || !step(&mut store, feeder, crash, now) {
                fencing += 1;
                feeders[number] = GroupFeeder::resume(store.record.clone(), fencing, window);
            }
        }
        prop_assert!(store.record.finalize(), "{:?}", store.record);
        prop_assert_eq!(store.joined(), (0..total).collect::<Vec<_>>());
        let counts = store.record.counts;
        prop_assert_eq!(counts.completed + counts.failed, total);
        prop_assert!(expires_at.is_some() || counts.failed == total.div_ceil(3));
        prop_assert!(store.record.end());
    }
}
