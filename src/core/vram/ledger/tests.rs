//! Tests of the ledger: the verbs one by one, and random events of three pools whose holders die.

use std::collections::BTreeMap;

use fastrand::Rng;

use super::super::device::{DeviceInfo, DeviceKind, DeviceSample, ProcessUse};
use super::super::fit::Split;
use super::super::job_lease::{JobRequest, JobStep};
use super::*;
use crate::Millis;

const NOW: HostTime = HostTime(1_000_000);
const BOOT: &str = "boot-1";
const TOTAL_MIB: u64 = 24_000;
const RESERVE_MIB: u64 = 512;
/// Events of a usual run; `INFERGATE_LEDGER_EVENTS` sets another number.
const EVENTS: u64 = 150_000;

fn device(index: u32) -> DeviceView {
    DeviceView {
        info: DeviceInfo {
            id: format!("GPU-{index}").as_str().into(),
            index,
            name: "card".into(),
            total_mib: TOTAL_MIB,
            kind: DeviceKind::Gpu,
        },
        reserve_mib: RESERVE_MIB,
        sample: None,
    }
}

fn idle(index: u32) -> DeviceView {
    let mut view = device(index);
    view.sample = Some(DeviceSample {
        used_mib: Some(0),
        free_mib: None,
        processes: Some(Vec::new()),
        utilization_percent: None,
        taken_at: NOW,
    });
    view
}

fn holder(pid: u32) -> Holder {
    Holder {
        kind: HolderKind::Job,
        name: format!("job-{pid}").into(),
        node: "a1".into(),
        pid,
        start: u64::from(pid) * 10,
        pid_namespace: None,
        uid: 1000,
    }
}

fn share(index: u32, mib: u64) -> DeviceShare {
    DeviceShare {
        device: format!("GPU-{index}").as_str().into(),
        mib,
    }
}

fn need(mib: u64, devices: u32) -> PlacementRequest {
    PlacementRequest {
        mib,
        devices,
        split: Split::Never,
        context_mib: 0,
    }
}

fn job(pid: u32, mib: u64, priority: u8) -> JobRequest {
    JobRequest {
        holder: holder(pid),
        placement: need(mib, 1),
        priority,
        claims: true,
        until: NOW + Millis(1000),
    }
}

#[test]
fn a_group_is_granted_whole_or_not_at_all() {
    let mut ledger = Ledger::new(BOOT, NOW);
    let views = [idle(0), idle(1)];
    ledger
        .acquire(&holder(1), 5, &[share(1, 20_000)], &views, NOW)
        .unwrap();
    let before = ledger.clone();
    let both = [share(0, 10_000), share(1, 10_000)];
    let refused = ledger.acquire(&holder(2), 5, &both, &views, NOW);
    let no_room = AcquireError::NoRoom {
        device: "GPU-1".into(),
        free_mib: 3488,
    };
    assert_eq!(refused, Err(no_room));
    let twice = [share(0, 10), share(0, 10)];
    assert!(ledger.acquire(&holder(2), 5, &twice, &views, NOW).is_err());
    let foreign = [share(7, 10)];
    assert!(
        ledger
            .acquire(&holder(2), 5, &foreign, &views, NOW)
            .is_err()
    );
    assert_eq!(ledger, before);
}

#[test]
fn a_stale_sample_grants_nothing() {
    let mut ledger = Ledger::new(BOOT, NOW);
    let later = NOW + Millis(5001);
    let refused = ledger.acquire(&holder(1), 5, &[share(0, 1)], &[idle(0)], later);
    let unknown = AcquireError::Unknown("GPU-0".into(), UnknownCause::Stale);
    assert_eq!(refused, Err(unknown));
}

#[test]
fn verbs_of_another_epoch_change_nothing() {
    let mut ledger = Ledger::new(BOOT, NOW);
    let views = [idle(0)];
    let group = ledger
        .acquire(&holder(1), 5, &[share(0, 10)], &views, NOW)
        .unwrap();
    ledger.hold(&group).unwrap();
    assert_eq!(ledger.leases()[0].state, LeaseState::Held);
    let before = ledger.clone();
    let stale = LeaseGroup {
        epoch: group.epoch - 1,
        ..group.clone()
    };
    assert_eq!(ledger.hold(&stale), Err(StaleLease));
    assert_eq!(ledger.hand_over(&stale, &holder(2)), Err(StaleLease));
    assert_eq!(ledger.release(&stale), Err(StaleLease));
    assert_eq!(ledger, before);
    ledger.release(&group).unwrap();
    assert_eq!(ledger.release(&group), Err(StaleLease));
}

#[test]
fn a_holder_that_cannot_be_seen_keeps_its_lease_and_one_that_is_gone_does_not_get_it_back() {
    let mut ledger = Ledger::new(BOOT, NOW);
    let group = ledger
        .acquire(&holder(1), 5, &[share(0, 10)], &[idle(0)], NOW)
        .unwrap();
    let end = NOW + Millis::from_secs(60);
    ledger.expire(end, |_| HolderLife::Unknown);
    assert_eq!(ledger.leases()[0].state, LeaseState::Granted);
    ledger.expire(end, |_| HolderLife::Dead);
    assert_eq!(ledger.leases()[0].state, LeaseState::Reclaiming);
    assert_eq!(ledger.hold(&group), Err(StaleLease), "it is over");
    ledger.expire(end + RECLAIM_MAX, |_| HolderLife::Unknown);
    assert!(ledger.leases().is_empty());
}

#[test]
fn a_lease_whose_holder_is_there_all_the_same_is_as_before() {
    let mut ledger = Ledger::new(BOOT, NOW);
    let group = ledger
        .acquire(&holder(1), 5, &[share(0, 10)], &[idle(0)], NOW)
        .unwrap();
    ledger.hold(&group).unwrap();
    let before = ledger.leases().to_vec();
    ledger.expire(NOW, |_| HolderLife::Dead);
    assert!(awaits_memory(&ledger));
    ledger.expire(NOW + Millis(1), |_| HolderLife::Alive);
    assert_eq!(ledger.leases(), before);
    ledger.expire(NOW + RECLAIM_MAX, |_| HolderLife::Alive);
    assert_eq!(ledger.leases(), before, "its end is not awaited any more");
}

fn awaits_memory(ledger: &Ledger) -> bool {
    let mut leases = ledger.leases().iter();
    leases.any(|lease| lease.state == LeaseState::Reclaiming)
}

fn life_but_of_the_first(holder: &Holder) -> HolderLife {
    match holder.pid {
        1 => HolderLife::Dead,
        _ => HolderLife::Alive,
    }
}

/// Two commands on a device of which `processes` are listed, the first of which is gone.
fn with_a_dead_holder(processes: Option<Vec<ProcessUse>>) -> (Ledger, DeviceView) {
    let mut ledger = Ledger::new(BOOT, NOW);
    for pid in [1, 2] {
        let share = [share(0, 10_000)];
        ledger
            .acquire(&holder(pid), 5, &share, &[idle(0)], NOW)
            .unwrap();
    }
    ledger.expire(NOW + Millis(100), life_but_of_the_first);
    let mut view = idle(0);
    let sample = view.sample.as_mut().unwrap();
    // The second one uses a part of its lease, and nothing has returned of the first one's.
    (sample.used_mib, sample.processes) = (Some(11_000), processes);
    (ledger, view)
}

#[test]
fn memory_of_a_holder_that_is_gone_is_not_granted_before_it_can_have_returned() {
    let (mut ledger, mut view) = with_a_dead_holder(None);
    let mut acquire = |now: HostTime| {
        ledger.expire(now, life_but_of_the_first);
        view.sample.as_mut().unwrap().taken_at = now;
        let views = std::slice::from_ref(&view);
        let granted = ledger.acquire(&holder(3), 5, &[share(0, 10_000)], views, now);
        (granted.is_ok(), awaits_memory(&ledger))
    };
    assert_eq!(acquire(NOW + Millis(101)), (false, true));
    assert_eq!(acquire(NOW + Millis(5099)), (false, true));
    assert_eq!(acquire(NOW + Millis(5100)), (true, false));
}

#[test]
fn a_lease_ends_at_once_where_what_has_not_returned_is_seen_to_be_of_others() {
    let second = ProcessUse {
        pid: 2,
        holder_pid: Some(2),
        used_mib: Some(1000),
    };
    let (mut ledger, mut view) = with_a_dead_holder(Some(vec![second]));
    ledger.free_returned(std::slice::from_ref(&view));
    assert!(awaits_memory(&ledger), "the sample is of before its end");
    let now = NOW + Millis(150);
    view.sample.as_mut().unwrap().taken_at = now;
    ledger.free_returned(std::slice::from_ref(&view));
    assert!(!awaits_memory(&ledger));
    let account = ledger.account(&view, now);
    assert_eq!((account.leased_mib, account.outside_mib), (10_000, 10_000));
}

#[test]
fn a_lease_on_a_device_that_lists_no_processes_ends_once_it_is_as_before_the_grant() {
    let mut ledger = Ledger::new(BOOT, NOW);
    let mut view = idle(0);
    let sample = view.sample.as_mut().unwrap();
    (sample.used_mib, sample.processes) = (Some(300), None);
    let views = std::slice::from_ref(&view);
    ledger
        .acquire(&holder(1), 5, &[share(0, 10_000)], views, NOW)
        .unwrap();
    ledger.expire(NOW, |_| HolderLife::Dead);
    for (used_mib, is_awaited) in [(301, true), (300, false)] {
        view.sample.as_mut().unwrap().used_mib = Some(used_mib);
        ledger.free_returned(std::slice::from_ref(&view));
        assert_eq!(awaits_memory(&ledger), is_awaited, "{used_mib}");
    }
}

#[test]
fn another_boot_empties_the_ledger_and_its_epochs_go_on() {
    let mut ledger = Ledger::new(BOOT, NOW);
    ledger
        .acquire(&holder(1), 5, &[share(0, 10)], &[idle(0)], NOW)
        .unwrap();
    let text = serde_json::to_vec(&ledger).unwrap();
    assert_eq!(Ledger::from_json(&text, BOOT, NOW).unwrap(), ledger);
    let next = Ledger::from_json(&text, "boot-2", HostTime(5)).unwrap();
    assert!(next.leases().is_empty() && next.generation() > ledger.generation());
}

#[test]
fn a_ledger_of_another_version_and_a_torn_one_are_errors() {
    let ledger = Ledger::new(BOOT, NOW);
    let text = serde_json::to_string(&ledger).unwrap();
    let newer = text.replace("\"version\":1", "\"version\":2");
    let error = Ledger::from_json(newer.as_bytes(), BOOT, NOW).unwrap_err();
    assert_eq!(error.to_string(), "a ledger of version 2, not 1");
    let torn = &text.as_bytes()[..text.len() - 1];
    assert!(Ledger::from_json(torn, BOOT, NOW).is_err());
}

#[test]
fn claims_are_served_by_urgency_then_age_and_a_large_one_is_not_passed() {
    let mut ledger = Ledger::new(BOOT, NOW);
    let views = [idle(0)];
    let step = |ledger: &mut Ledger, request: &JobRequest, claim: Option<&ClaimId>| {
        ledger.step_job(request, claim, &views, NOW).unwrap()
    };
    let JobStep::Granted(first) = step(&mut ledger, &job(1, 20_000, 5), None) else {
        panic!("the device is free");
    };
    let JobStep::Waiting(Some(large)) = step(&mut ledger, &job(2, 22_000, 5), None) else {
        panic!("there is no room");
    };
    let small = job(3, 1000, 5);
    let JobStep::Waiting(Some(behind)) = step(&mut ledger, &small, None) else {
        panic!("the large one comes first");
    };
    let urgent = step(&mut ledger, &job(4, 1000, 1), None);
    assert!(matches!(urgent, JobStep::Granted(_)), "{urgent:?}");
    ledger.release(&first).unwrap();
    let waiting = step(&mut ledger, &small, Some(&behind));
    assert_eq!(waiting, JobStep::Waiting(Some(behind.clone())));
    let granted = step(&mut ledger, &job(2, 22_000, 5), Some(&large));
    assert!(matches!(granted, JobStep::Granted(_)), "{granted:?}");
    assert_eq!(
        ledger.claims().len(),
        1,
        "the claim of the granted one is gone"
    );
}

#[test]
fn a_job_waits_until_its_time_is_over_and_a_hopeless_one_not_at_all() {
    let mut ledger = Ledger::new(BOOT, NOW);
    let mut views = [idle(0)];
    ledger
        .acquire(&holder(1), 5, &[share(0, 20_000)], &views, NOW)
        .unwrap();
    let request = job(2, 10_000, 7);
    let JobStep::Waiting(claim) = ledger.step_job(&request, None, &views, NOW).unwrap() else {
        panic!("there is no room");
    };
    if let Some(sample) = &mut views[0].sample {
        sample.taken_at = request.until;
    }
    let end = ledger.step_job(&request, claim.as_ref(), &views, request.until);
    assert_eq!(end, Ok(JobStep::TimedOut));
    assert!(ledger.claims().is_empty());
    let passive = JobRequest {
        claims: false,
        ..request
    };
    let waiting = ledger.step_job(&passive, None, &views, NOW).unwrap();
    assert_eq!(waiting, JobStep::Waiting(None));
    let hopeless = ledger.step_job(&job(3, 23_489, 7), None, &views, NOW);
    assert_eq!(
        hopeless,
        Ok(JobStep::DoesNotFit {
            largest_mib: 23_488
        })
    );
}

/// Fault that a run is made with, to see that the checks find it.
#[derive(Clone, Copy, PartialEq)]
enum PlantedFault {
    None,
    /// A store that does not serialize changes: a pool decides on a ledger read earlier and writes it whole.
    DoubleGrant,
    /// Dead holders are taken to be alive.
    DeadHolderKept,
    /// Leases end with their holders.
    EndedAtOnce,
}

/// Process with memory on devices, by device index.
struct RunningProcess {
    group: LeaseGroup,
    uses: BTreeMap<u32, u64>,
    leased: BTreeMap<u32, u64>,
}

/// A host: devices, processes, and three pools that change one ledger.
struct World {
    rng: Rng,
    fault: PlantedFault,
    /// The driver gives figures of processes. Without them, memory of others is known while no lease is on a device.
    lists_processes: bool,
    now: HostTime,
    ledger: Ledger,
    /// Memory of programs without a lease, by device.
    outside: [u64; 3],
    /// Memory of killed holders by device, with the moments of its return.
    returning: Vec<(HostTime, BTreeMap<u32, u64>)>,
    /// Living holders, by pid.
    processes: BTreeMap<u32, RunningProcess>,
    /// Waiting holders and their claims.
    waiting: Vec<(JobRequest, Option<ClaimId>)>,
    next_pid: u32,
    grants: u64,
    /// Ledger that a faulty pool has read earlier.
    earlier: Ledger,
}

impl World {
    fn new(seed: u64, fault: PlantedFault) -> World {
        let ledger = Ledger::new(BOOT, NOW);
        World {
            rng: Rng::with_seed(seed),
            fault,
            lists_processes: !seed.is_multiple_of(3),
            now: NOW,
            earlier: ledger.clone(),
            ledger,
            outside: [0; 3],
            returning: Vec::new(),
            processes: BTreeMap::new(),
            waiting: Vec::new(),
            next_pid: 100,
            grants: 0,
        }
    }

    fn used(&self, index: u32) -> u64 {
        let own = self.processes.values().map(|process| &process.uses);
        let returning = self.returning.iter().map(|(_, uses)| uses);
        let own: u64 = own.chain(returning).filter_map(|it| it.get(&index)).sum();
        self.outside[index as usize] + own
    }

    /// Samples of all devices.
    fn views(&self) -> Vec<DeviceView> {
        (0..3).map(|index| self.view(index)).collect()
    }

    fn view(&self, index: u32) -> DeviceView {
        let uses = self.processes.iter().filter_map(|(pid, process)| {
            Some(ProcessUse {
                pid: pid + 1_000_000,
                holder_pid: Some(*pid),
                used_mib: Some(*process.uses.get(&index)?),
            })
        });
        let mut view = device(index);
        view.sample = Some(DeviceSample {
            used_mib: Some(self.used(index)),
            free_mib: None,
            processes: self.lists_processes.then(|| uses.collect()),
            utilization_percent: None,
            taken_at: self.now,
        });
        view
    }

    fn expire(&mut self) {
        let (processes, waiting, fault) = (&self.processes, &self.waiting, self.fault);
        self.ledger.expire(self.now, |holder| {
            let waits = waiting.iter().any(|(job, _)| job.holder.pid == holder.pid);
            match processes.contains_key(&holder.pid) || waits {
                true => HolderLife::Alive,
                false if fault == PlantedFault::DeadHolderKept => HolderLife::Alive,
                false => HolderLife::Dead,
            }
        });
        if fault == PlantedFault::EndedAtOnce {
            let is_over = |lease: &Lease| lease.state == LeaseState::Reclaiming;
            self.ledger.leases.retain(|lease| !is_over(lease));
        }
    }

    fn event(&mut self) {
        self.now = self.now + Millis(self.rng.u64(0..200));
        let now = self.now;
        self.returning.retain(|(until, _)| now < *until);
        match self.rng.u32(0..100) {
            0..25 => self.acquire(),
            25..40 => self.wait_for_room(),
            40..55 => self.step_waiting(),
            55..75 => self.allocate(),
            75..85 => self.end(true),
            85..93 => self.end(false),
            93..98 => self.use_outside(),
            _ => self.earlier = self.ledger.clone(),
        }
        self.check();
    }

    /// A pool grants itself leases on one or two devices, as its own placement says.
    fn acquire(&mut self) {
        self.expire();
        let views = self.views();
        let pid = self.pid();
        let devices = self.rng.u32(1..=2);
        let first = self.rng.u32(0..3);
        let shares: Vec<_> = (0..devices)
            .map(|nth| share((first + nth) % 3, self.rng.u64(1..14_000)))
            .collect();
        if self.fault == PlantedFault::DoubleGrant {
            self.ledger = self.earlier.clone();
        }
        if let Ok(group) = self
            .ledger
            .acquire(&holder(pid), 5, &shares, &views, self.now)
        {
            self.start(pid, group);
        }
    }

    fn wait_for_room(&mut self) {
        let pid = self.pid();
        let mut request = job(pid, self.rng.u64(1..20_000), self.rng.u8(0..9));
        request.placement.devices = self.rng.u32(1..=3);
        request.claims = self.rng.u32(0..4) > 0;
        request.until = self.now + Millis(self.rng.u64(1..5000));
        self.waiting.push((request, None));
        self.step(self.waiting.len() - 1);
    }

    fn step_waiting(&mut self) {
        if !self.waiting.is_empty() {
            let at = self.rng.usize(0..self.waiting.len());
            self.step(at);
        }
    }

    fn step(&mut self, at: usize) {
        self.expire();
        let views = self.views();
        let (request, claim) = &self.waiting[at];
        let step = self
            .ledger
            .step_job(request, claim.as_ref(), &views, self.now);
        match step.unwrap() {
            JobStep::Granted(group) => {
                let (request, _) = self.waiting.swap_remove(at);
                self.start(request.holder.pid, group);
            }
            JobStep::Waiting(claim) => self.waiting[at].1 = claim,
            JobStep::TimedOut | JobStep::DoesNotFit { .. } => drop(self.waiting.swap_remove(at)),
        }
    }

    fn pid(&mut self) -> u32 {
        self.next_pid += 1;
        self.next_pid
    }

    fn start(&mut self, pid: u32, group: LeaseGroup) {
        self.grants += 1;
        for index in 0..3 {
            // The grant itself keeps the bound, with what others used at that moment.
            let id = device(index).info.id;
            let on_device = self
                .ledger
                .leases()
                .iter()
                .filter(|lease| lease.device == id);
            let (mut leased, mut is_own) = (0, false);
            for lease in on_device {
                leased += lease.mib;
                is_own |= lease.group == group.id;
            }
            let taken = leased + RESERVE_MIB + self.outside[index as usize];
            let is_bounded = !is_own || taken <= TOTAL_MIB;
            assert!(is_bounded, "over-commit at a grant: {taken} MiB on {id}");
        }
        self.ledger.hold(&group).unwrap();
        let own = self.ledger.leases().iter();
        let own = own.filter(|lease| lease.group == group.id);
        let leased = own.map(|lease| (index_of(&lease.device), lease.mib));
        let process = RunningProcess {
            leased: leased.collect(),
            uses: BTreeMap::new(),
            group,
        };
        self.processes.insert(pid, process);
    }

    /// A granted holder takes a part of its lease, which must always be there.
    fn allocate(&mut self) {
        let Some(pid) = self.any_process() else {
            return;
        };
        let process = self.processes.get_mut(&pid).unwrap();
        for (index, leased) in &process.leased {
            let used = process.uses.entry(*index).or_default();
            *used += self.rng.u64(0..=leased - *used);
        }
        for index in 0..3 {
            assert!(self.used(index) <= TOTAL_MIB, "out of memory on {index}");
        }
    }

    /// A process ends, with or without a release. Memory of a killed one comes back later, and may never do so where that
    /// is seen.
    fn end(&mut self, is_clean: bool) {
        let Some(pid) = self.any_process() else {
            return;
        };
        let process = self.processes.remove(&pid).unwrap();
        if is_clean {
            self.ledger.release(&process.group).unwrap();
        } else if self.lists_processes && self.rng.bool() {
            for (index, used) in process.uses {
                self.outside[index as usize] += used;
            }
        } else {
            let until = self.now + Millis(self.rng.u64(0..RECLAIM_MAX.0));
            self.returning.push((until, process.uses));
        }
    }

    fn any_process(&mut self) -> Option<u32> {
        let count = self.processes.len();
        let nth = (count > 0).then(|| self.rng.usize(0..count))?;
        self.processes.keys().nth(nth).copied()
    }

    /// A program without a lease takes memory that is neither leased nor used, or gives it back.
    fn use_outside(&mut self) {
        let index = self.rng.u32(0..3);
        let id = device(index).info.id;
        let leases = self.ledger.leases().iter();
        let leased: u64 = leases
            .filter(|lease| lease.device == id)
            .map(|lease| lease.mib)
            .sum();
        if leased > 0 && !self.lists_processes {
            return;
        }
        let own = self.used(index) - self.outside[index as usize];
        // What a dead holder gives back later may be leased no more.
        let returning = self.returning.iter();
        let returning = returning.filter_map(|(_, uses)| uses.get(&index));
        let taken = leased + returning.sum::<u64>();
        let room = TOTAL_MIB.saturating_sub(taken.max(own));
        self.outside[index as usize] = self.rng.u64(0..=room.min(6000));
    }

    fn check(&mut self) {
        let views: Vec<_> = (0..3).map(device).collect();
        self.ledger.check(&views);
        for process in self.processes.values() {
            let has_lease = |lease: &Lease| lease.group == process.group.id;
            let is_there = self.ledger.leases().iter().any(has_lease);
            assert!(is_there, "a living holder has lost its lease");
        }
        self.expire();
        for lease in self.ledger.leases() {
            let is_alive = self.processes.contains_key(&lease.holder.pid);
            let since = lease.reclaiming_since_ms;
            let is_ending = since.is_some_and(|since| self.now.since(since) < RECLAIM_MAX);
            assert!(is_alive || is_ending, "a dead holder keeps its lease");
        }
    }
}

fn index_of(id: &DeviceId) -> u32 {
    let number = id.as_str().strip_prefix("GPU-").unwrap();
    number.parse().unwrap()
}

fn run(seed: u64, events: u64, fault: PlantedFault) -> World {
    let mut world = World::new(seed, fault);
    for nth in 0..events {
        world.event();
        if nth % 64 == 0 {
            let text = serde_json::to_vec(&world.ledger).unwrap();
            world.ledger = Ledger::from_json(&text, BOOT, world.now).unwrap();
        }
    }
    world
}

#[test]
fn random_events_of_three_pools_never_commit_more_than_there_is() {
    let events = std::env::var("INFERGATE_LEDGER_EVENTS");
    let events = events.map_or(EVENTS, |text| text.parse().unwrap());
    let seeds = 10;
    let grants: u64 = (0..seeds)
        .map(|seed| run(seed, events / seeds, PlantedFault::None).grants)
        .sum();
    println!("{events} events, {grants} grants, 0 over-commits");
    assert!(grants > events / 20, "{grants} grants of {events} events");
}

fn is_found(fault: PlantedFault) -> bool {
    found_by([0, 1, 2, 3], 2000, fault) == 4
}

fn found_by(seeds: [u64; 4], events: u64, fault: PlantedFault) -> usize {
    let runs = seeds.map(|seed| std::panic::catch_unwind(|| run(seed, events, fault)));
    runs.iter().filter(|run| run.is_err()).count()
}

#[test]
fn a_double_grant_is_found() {
    assert!(is_found(PlantedFault::DoubleGrant));
}

#[test]
fn a_lease_kept_by_a_dead_holder_is_found() {
    assert!(is_found(PlantedFault::DeadHolderKept));
}

#[test]
fn a_lease_that_ends_before_its_memory_has_returned_is_found() {
    // The drivers of these hosts list no processes.
    let found = found_by([0, 3, 6, 9], 20_000, PlantedFault::EndedAtOnce);
    assert!(found > 0, "{found} of 4 runs");
}

#[test]
fn claims_of_slots_are_replaced_keep_their_age_and_do_not_stand_before_commands() {
    let mut ledger = Ledger::new(BOOT, NOW);
    let slot = |name: &str| Holder {
        kind: HolderKind::Slot,
        name: name.into(),
        ..holder(5)
    };
    let claimed = |name: &str, mib| ClaimedNeed {
        holder: slot(name),
        placement: need(mib, 1),
        priority: 3,
    };
    let process = (5, 50);
    let set = |ledger: &mut Ledger, needs: &[ClaimedNeed], now: HostTime| {
        let until = now + Millis(15_000);
        ledger.claim_for_slots(needs, process, now, until).unwrap();
        let claims = ledger.claims().iter();
        claims
            .map(|it| (it.holder.name.to_string(), it.mib, it.since_ms))
            .collect::<Vec<_>>()
    };
    let later = NOW + Millis(5000);
    set(&mut ledger, &[claimed("a", 1000), claimed("b", 2000)], NOW);
    let found = set(
        &mut ledger,
        &[claimed("a", 1000), claimed("b", 2500)],
        later,
    );
    let a = ("a".to_owned(), 1000, NOW);
    assert_eq!(found, [a, ("b".to_owned(), 2500, later)]);
    let generation = ledger.generation();
    assert!(
        ledger.has_turn(7, None),
        "a command takes turns with models by the pools"
    );
    assert_eq!(set(&mut ledger, &[], later), []);
    assert!(ledger.generation() > generation);
    let empty = ledger.generation();
    set(&mut ledger, &[], later);
    assert_eq!(ledger.generation(), empty, "nothing has changed");
}

#[test]
fn a_group_shrinks_and_grows_in_what_is_free_and_keeps_its_epoch() {
    let mut ledger = Ledger::new(BOOT, NOW);
    let views = [idle(0), idle(1)];
    let both = [share(0, 10_000), share(1, 10_000)];
    let group = ledger.acquire(&holder(1), 5, &both, &views, NOW).unwrap();
    let small = [share(0, 500), share(1, 500)];
    ledger.resize(&group, &small, &views, NOW).unwrap();
    ledger
        .acquire(&holder(2), 5, &[share(1, 14_000)], &views, NOW)
        .unwrap();
    let before = ledger.clone();
    let refused = ledger.resize(&group, &both, &views, NOW);
    let no_room = AcquireError::NoRoom {
        device: "GPU-1".into(),
        free_mib: 8988,
    };
    assert_eq!((refused, &ledger), (Err(no_room), &before));
    let grown = [share(0, 23_488), share(1, 9488)];
    ledger.resize(&group, &grown, &views, NOW).unwrap();
    let own = ledger.leases().iter().filter(|it| it.group == group.id);
    let own: Vec<(u64, u64)> = own.map(|it| (it.mib, it.epoch)).collect();
    assert_eq!(own, [(23_488, group.epoch), (9488, group.epoch)]);
    assert!(ledger.resize(&group, &[share(7, 1)], &views, NOW).is_err());
    ledger.check(&views);
    ledger.release(&group).unwrap();
    assert!(ledger.resize(&group, &small, &views, NOW).is_err());
}
