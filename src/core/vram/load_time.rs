//! Load time of a model: from the start of its process to ready, and from there the expected time to the first request.
//!
//! Not a deadline. Wakes of a sleeping server are kept apart from loads. Half of an estimate is taken for the earliest
//! moment, so that an uncertain one refuses no request that could be served.

use super::slot::LoadKind;
use crate::Millis;

/// Loads that an estimate is the mean of.
const SAMPLES: usize = 5;
/// Part of a load that does not depend on its size.
const FIXED: Millis = Millis::from_secs(3);
/// Rate of a file system that has not been measured, MiB per second.
const RATE_DEFAULT_MIB: u64 = 1024;
/// Bytes of a MiB.
const MIB: u64 = 1024 * 1024;
/// Part of an estimate, as a divisor, that a load is taken to need still once it has outlasted the estimate.
const OVERDUE_DIVISOR: u64 = 10;

/// State of the page cache before a load: files in it are read some ten times as fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileCache {
    /// Files come from the storage.
    Cold,
    /// Files come from memory.
    Warm,
}

/// Size of a model on its storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredModel {
    /// Bytes of all files.
    pub bytes: u64,
    /// Rate of the file system, MiB per second; `None` where it has not been measured.
    pub rate_mib: Option<u64>,
}

/// Time until a model can serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyEstimate {
    /// Time before which it cannot.
    pub earliest: Millis,
    /// Time after which it is expected to.
    pub expected: Millis,
}

impl ReadyEstimate {
    /// Returns the estimate behind a delay that is known to the end.
    pub fn after(self, delay: Millis) -> ReadyEstimate {
        ReadyEstimate {
            earliest: self.earliest + delay,
            expected: self.expected + delay,
        }
    }
}

/// Load times of a model on one storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadTimes {
    /// Estimate before any load.
    fallback: Millis,
    loads: TimeSamples,
    caches: [Option<FileCache>; SAMPLES],
    wakes: TimeSamples,
}

impl LoadTimes {
    /// Returns the times of a model that has not been loaded from this storage.
    pub fn new(stored: StoredModel) -> LoadTimes {
        let rate_mib = stored.rate_mib.filter(|rate| *rate > 0);
        let rate = u128::from(rate_mib.unwrap_or(RATE_DEFAULT_MIB)) * u128::from(MIB);
        let reading_ms = (u128::from(stored.bytes) * 1000).div_ceil(rate);
        LoadTimes {
            fallback: FIXED + Millis(u64::try_from(reading_ms).unwrap_or(u64::MAX)),
            loads: TimeSamples::default(),
            caches: [None; SAMPLES],
            wakes: TimeSamples::default(),
        }
    }

    /// Records a load from the start of the process to ready.
    pub fn record_load(&mut self, took: Millis, cache: FileCache) {
        self.loads.push(took);
        self.caches.rotate_left(1);
        self.caches[SAMPLES - 1] = Some(cache);
    }

    /// Records a wake from its request to ready.
    pub fn record_wake(&mut self, took: Millis) {
        self.wakes.push(took);
    }

    /// Returns the expected time of a load or a wake. A wake that was never measured is taken for a load.
    pub fn expected(&self, kind: LoadKind) -> Millis {
        let load = self.loads.mean.unwrap_or(self.fallback);
        match kind {
            LoadKind::Start => load,
            LoadKind::Wake => self.wakes.mean.unwrap_or(load),
        }
    }

    /// Returns the last loads, oldest first, with the state of the page cache before each.
    pub fn loads(&self) -> impl Iterator<Item = (Millis, FileCache)> {
        let caches = self.caches.iter().flatten().copied();
        let skipped = SAMPLES - self.caches.iter().flatten().count();
        self.loads
            .samples
            .iter()
            .skip(skipped)
            .flatten()
            .copied()
            .zip(caches)
    }

    /// Returns the time until ready of a load that has run for `elapsed`.
    pub fn ready_estimate(&self, kind: LoadKind, elapsed: Millis) -> ReadyEstimate {
        let whole = self.expected(kind);
        let least = Millis(whole.0 / OVERDUE_DIVISOR);
        ReadyEstimate {
            earliest: Millis(whole.0 / 2) - elapsed,
            expected: (whole - elapsed).max(least),
        }
    }
}

/// Last samples, oldest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TimeSamples {
    samples: [Option<Millis>; SAMPLES],
    /// Mean of all, which each decision asks for.
    mean: Option<Millis>,
}

impl TimeSamples {
    fn push(&mut self, sample: Millis) {
        self.samples.rotate_left(1);
        self.samples[SAMPLES - 1] = Some(sample);
        self.mean = self.mean_of_all();
    }

    fn mean_of_all(&self) -> Option<Millis> {
        let (count, sum) = self
            .samples
            .iter()
            .flatten()
            .fold((0u64, 0u128), |(count, sum), sample| {
                (count + 1, sum + u128::from(sample.0))
            });
        let mean = sum.checked_div(u128::from(count))?;
        u64::try_from(mean).ok().map(Millis)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: u64 = 1024 * MIB;

    fn times(gib: u64, rate_mib: Option<u64>) -> LoadTimes {
        let bytes = gib * GIB;
        LoadTimes::new(StoredModel { bytes, rate_mib })
    }

    #[test]
    fn before_any_load_the_size_and_the_rate_of_the_storage_count() {
        let load = |times: &LoadTimes| times.expected(LoadKind::Start);
        assert_eq!(load(&times(4, None)), Millis(7000));
        assert_eq!(load(&times(4, Some(2048))), Millis(5000));
        assert_eq!(load(&times(4, Some(0))), Millis(7000), "no rate is none");
        assert_eq!(load(&times(0, None)), Millis(3000));
        let huge = StoredModel {
            bytes: u64::MAX,
            rate_mib: Some(1),
        };
        assert!(load(&LoadTimes::new(huge)) > Millis::from_secs(1 << 40));
    }

    #[test]
    fn the_estimate_is_the_mean_of_the_last_five_loads_cold_or_warm() {
        let mut times = times(1, None);
        times.record_load(Millis(90_000), FileCache::Cold);
        for ms in [1500, 170, 200, 180, 450] {
            let cache = if ms > 1000 {
                FileCache::Cold
            } else {
                FileCache::Warm
            };
            times.record_load(Millis(ms), cache);
        }
        assert_eq!(times.expected(LoadKind::Start), Millis(500));
        let kept: Vec<_> = times.loads().collect();
        assert_eq!(kept.len(), 5);
        assert_eq!(kept[0], (Millis(1500), FileCache::Cold));
        assert_eq!(kept[4], (Millis(450), FileCache::Warm));
    }

    #[test]
    fn kept_loads_are_paired_with_their_cache_before_there_are_five() {
        let mut times = times(1, None);
        times.record_load(Millis(10), FileCache::Cold);
        times.record_load(Millis(20), FileCache::Warm);
        let kept: Vec<_> = times.loads().collect();
        let expected = [(Millis(10), FileCache::Cold), (Millis(20), FileCache::Warm)];
        assert_eq!(kept, expected);
    }

    #[test]
    fn wakes_do_not_change_the_time_of_loads() {
        let mut times = times(1, None);
        times.record_load(Millis(10_000), FileCache::Cold);
        assert_eq!(times.expected(LoadKind::Wake), Millis(10_000));
        times.record_wake(Millis(400));
        assert_eq!(times.expected(LoadKind::Wake), Millis(400));
        assert_eq!(times.expected(LoadKind::Start), Millis(10_000));
    }

    #[test]
    fn the_earliest_moment_is_half_of_the_estimate_and_a_late_load_is_expected_soon() {
        let mut times = times(1, None);
        times.record_load(Millis(10_000), FileCache::Cold);
        let estimate = |elapsed| {
            let estimate = times.ready_estimate(LoadKind::Start, Millis(elapsed));
            (estimate.earliest.0, estimate.expected.0)
        };
        assert_eq!(estimate(0), (5000, 10_000));
        assert_eq!(estimate(4000), (1000, 6000));
        assert_eq!(estimate(8000), (0, 2000));
        assert_eq!(estimate(60_000), (0, 1000));
        let behind = times.ready_estimate(LoadKind::Start, Millis::ZERO);
        let behind = behind.after(Millis(2000));
        assert_eq!((behind.earliest.0, behind.expected.0), (7000, 12_000));
    }

    proptest! {
        /// An estimate lies between the fastest and the slowest of the loads that it is made of.
        #[test]
        fn the_estimate_lies_within_its_samples(
            loads in proptest::collection::vec(0u64..u64::MAX, 1..20),
            elapsed in 0u64..100_000,
        ) {
            let mut times = times(1, None);
            for load in &loads {
                times.record_load(Millis(*load), FileCache::Cold);
            }
            let newest = &loads[loads.len().saturating_sub(SAMPLES)..];
            let expected = times.expected(LoadKind::Start).0;
            prop_assert!(newest.iter().min().unwrap() <= &expected);
            prop_assert!(&expected <= newest.iter().max().unwrap());
            let estimate = times.ready_estimate(LoadKind::Start, Millis(elapsed));
            prop_assert!(estimate.earliest <= estimate.expected);
        }
    }
}
