//! Metrics of the GPU host: memory of devices, instances and loads of models, leases.
//!
//! Counts what it is told. A process without a GPU host has none of them. Models have registries of their own, so that
//! their series go with them; labels are models of the configuration, devices of the host, and words of this program.

use std::collections::BTreeMap;
use std::sync::Arc;

use infergate_core::ModelId;
use parking_lot::Mutex;
use prometheus::proto::MetricFamily;
use prometheus::{
    CounterVec, Gauge, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

use super::job_metrics::{counters, register};

/// Loads, and waits for room: from a server that is ready at once to weights from a slow disk.
const LOAD_BUCKETS: &[f64] = &[
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0,
];
const MIB: u64 = 1 << 20;

/// Device at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuDeviceLevels {
    /// Index and name.
    pub device: String,
    /// Memory by kind, MiB; kinds whose figure is not known are left out.
    pub memory_mib: Vec<(&'static str, u64)>,
    /// Use above leases, MiB.
    pub over_lease_mib: u64,
    /// Age of the newest sample, seconds; `None` before the first.
    pub sample_age_secs: Option<f64>,
    /// Share of the last moments in which it worked, 0 to 1; `None` where it is not told.
    pub utilization: Option<f64>,
    /// The newest sample is fresh enough to lease memory by.
    pub is_up: bool,
}

/// Requests that came while nothing served their model, by their results since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ColdCounts {
    /// Requests that got a permit.
    pub served: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Requests whose client left, or whose time was over.
    pub left: u64,
}

/// Managed model at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuModelLevels {
    /// States of its slots, and how many are in each.
    pub instances: BTreeMap<&'static str, u32>,
    /// Time to the next try after failures, seconds.
    pub backoff_secs: f64,
    /// Source of the estimate, and the estimate, MiB.
    pub estimate: Option<(&'static str, u64)>,
    /// Need by measured loads, MiB; none before the first.
    pub measured_mib: Option<u64>,
    /// Requests.
    pub cold: ColdCounts,
}

/// The GPU host at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuLevels {
    /// Devices.
    pub devices: Vec<GpuDeviceLevels>,
    /// Managed models.
    pub models: BTreeMap<ModelId, GpuModelLevels>,
    /// Leases by kind of their holder.
    pub leases: [(&'static str, u32); 2],
    /// Claims by kind of their holder.
    pub claims: [(&'static str, u32); 2],
}

/// Metrics of the GPU host of a process.
pub struct GpuMetrics {
    registry: Registry,
    memory: IntGaugeVec,
    up: IntGaugeVec,
    sample_age: GaugeVec,
    utilization: GaugeVec,
    over_lease: IntGaugeVec,
    swap_lost: CounterVec,
    leases: IntGaugeVec,
    claims: IntGaugeVec,
    orphans_killed: IntCounter,
    adopted: IntCounter,
    reports_dropped: IntCounter,
    /// Held for a look-up, or to drop models that are gone.
    models: Mutex<BTreeMap<ModelId, Arc<GpuModelMetrics>>>,
    /// Newest levels, shown at the next scrape. Held for one assignment.
    levels: Mutex<GpuLevels>,
}

impl Default for GpuMetrics {
    fn default() -> Self {
        let registry = Registry::new();
        let gauges = |name, help, labels: &[&str]| {
            register(&registry, IntGaugeVec::new(Opts::new(name, help), labels))
        };
        let age = Opts::new(
            "infergate_gpu_sample_age_seconds",
            "age of the newest sample of a device",
        );
        let utilization = Opts::new(
            "infergate_gpu_utilization_ratio",
            "share of the last moments in which a device worked",
        );
        let lost = Opts::new(
            "infergate_gpu_swap_lost_seconds_total",
            "time in which a device served neither the model that left nor the one that came",
        );
        let counter = |name, help| register(&registry, IntCounter::new(name, help));
        GpuMetrics {
            memory: gauges(
                "infergate_gpu_memory_bytes",
                "memory of a device by kind",
                &["device", "kind"],
            ),
            up: gauges(
                "infergate_gpu_device_up",
                "1 while the samples of a device are fresh",
                &["device"],
            ),
            sample_age: register(&registry, GaugeVec::new(age, &["device"])),
            utilization: register(&registry, GaugeVec::new(utilization, &["device"])),
            over_lease: gauges(
                "infergate_gpu_over_lease_mib",
                "use above leases by more than 5 percent",
                &["device"],
            ),
            swap_lost: register(&registry, CounterVec::new(lost, &["device"])),
            leases: gauges("infergate_vram_leases", "leases of the host", &["kind"]),
            claims: gauges("infergate_vram_claims", "claims of the host", &["kind"]),
            orphans_killed: counter(
                "infergate_orphans_killed_total",
                "processes without a keeper that were ended",
            ),
            adopted: counter(
                "infergate_instances_adopted_total",
                "processes of a former gateway that were taken over",
            ),
            reports_dropped: counter(
                "infergate_gpu_reports_dropped_total",
                "reports of instances and loads that could not be sent or written",
            ),
            models: Mutex::default(),
            levels: Mutex::default(),
            registry,
        }
    }
}

impl GpuMetrics {
    /// Makes the series of these managed models, and drops those of others.
    pub fn configure<'a>(&self, managed: impl IntoIterator<Item = &'a ModelId>) {
        let mut models = self.models.lock();
        let mut former = std::mem::take(&mut *models);
        for model in managed {
            let own = former.remove(model);
            let own = own.unwrap_or_else(|| Arc::new(GpuModelMetrics::new(model)));
            models.insert(model.clone(), own);
        }
    }

    /// Returns the metrics of a managed model; none of one that has gone and is still drained.
    pub fn model(&self, model: &ModelId) -> Option<Arc<GpuModelMetrics>> {
        self.models.lock().get(model).cloned()
    }

    /// Sets what the next scrape shows.
    pub fn set_levels(&self, levels: GpuLevels) {
        *self.levels.lock() = levels;
    }

    /// Records processes that a sweep has ended.
    pub fn record_orphans(&self, killed: usize) {
        self.orphans_killed.inc_by(killed as u64);
    }

    /// Records a process of a former gateway that was taken over.
    pub fn record_adoption(&self) {
        self.adopted.inc();
    }

    /// Raises the count of reports that could not be sent or written.
    pub fn raise_dropped_reports(&self, to: u64) {
        let dropped = &self.reports_dropped;
        dropped.inc_by(to.saturating_sub(dropped.get()));
    }

    /// Records time in which a device served nothing because one model made room for another.
    pub fn record_swap_lost(&self, device: &str, lost_ms: u64) {
        let lost = self.swap_lost.with_label_values(&[device]);
        lost.inc_by(lost_ms as f64 / 1e3);
    }

    /// Returns all series, for one scrape at a time: gauges are set, and then read.
    pub(super) fn gather(&self) -> Vec<MetricFamily> {
        let levels = self.levels.lock().clone();
        self.set_devices(&levels.devices);
        for (family, counts) in [(&self.leases, levels.leases), (&self.claims, levels.claims)] {
            for (kind, count) in counts.into_iter().filter(|(kind, _)| !kind.is_empty()) {
                family.with_label_values(&[kind]).set(count.into());
            }
        }
        let mut families = self.registry.gather();
        for (model, own) in &*self.models.lock() {
            if let Some(levels) = levels.models.get(model) {
                own.set(levels);
            }
            families.extend(own.registry.gather());
        }
        families
    }

    /// Devices that are gone have no series any more.
    fn set_devices(&self, devices: &[GpuDeviceLevels]) {
        for family in [&self.memory, &self.up, &self.over_lease] {
            family.reset();
        }
        self.sample_age.reset();
        self.utilization.reset();
        for levels in devices {
            let device = levels.device.as_str();
            for (kind, mib) in &levels.memory_mib {
                let bytes = self.memory.with_label_values(&[device, *kind]);
                bytes.set(i64::try_from(mib.saturating_mul(MIB)).unwrap_or(i64::MAX));
            }
            self.up
                .with_label_values(&[device])
                .set(levels.is_up.into());
            let over = i64::try_from(levels.over_lease_mib).unwrap_or(i64::MAX);
            self.over_lease.with_label_values(&[device]).set(over);
            if let Some(age) = levels.sample_age_secs {
                self.sample_age.with_label_values(&[device]).set(age);
            }
            if let Some(ratio) = levels.utilization {
                self.utilization.with_label_values(&[device]).set(ratio);
            }
        }
    }
}

/// Metrics of one managed model.
pub struct GpuModelMetrics {
    registry: Registry,
    instances: IntGaugeVec,
    loads: IntCounterVec,
    load_seconds: Histogram,
    evictions: IntCounterVec,
    crashes: IntCounter,
    backoff: Gauge,
    swap_wait: Histogram,
    estimate: IntGaugeVec,
    measured: IntGaugeVec,
    cold: IntCounterVec,
}

impl GpuModelMetrics {
    fn new(model: &ModelId) -> GpuModelMetrics {
        let label = [("model".to_owned(), model.as_str().to_owned())];
        let registry = Registry::new_custom(None, Some(label.into()))
            .expect("the label is a well-formed constant");
        let gauges = |name, help, label: &str| {
            register(&registry, IntGaugeVec::new(Opts::new(name, help), &[label]))
        };
        let histogram = |name, help| {
            let options = HistogramOpts::new(name, help).buckets(LOAD_BUCKETS.to_vec());
            register(&registry, Histogram::with_opts(options))
        };
        let by_label = |name, help, label: &str| counters(&registry, name, help, &[label]);
        let backoff = Gauge::new(
            "infergate_instance_backoff_seconds",
            "time to the next try after failures",
        );
        GpuModelMetrics {
            instances: gauges("infergate_instances", "slots by state", "state"),
            loads: by_label(
                "infergate_instance_loads_total",
                "loads that ended",
                "result",
            ),
            load_seconds: histogram(
                "infergate_instance_load_seconds",
                "start of a process until it was ready",
            ),
            evictions: by_label(
                "infergate_instance_evictions_total",
                "instances that had to leave",
                "reason",
            ),
            crashes: register(
                &registry,
                IntCounter::new(
                    "infergate_instance_crashes_total",
                    "processes that ended by themselves",
                ),
            ),
            backoff: register(&registry, backoff),
            swap_wait: histogram(
                "infergate_model_swap_wait_seconds",
                "choice of a load until it had its memory",
            ),
            estimate: gauges(
                "infergate_vram_estimate_mib",
                "memory by estimate",
                "source",
            ),
            measured: register(
                &registry,
                IntGaugeVec::new(
                    Opts::new("infergate_vram_measured_mib", "memory by measured loads"),
                    &[],
                ),
            ),
            cold: by_label(
                "infergate_cold_requests_total",
                "requests that came while nothing served the model",
                "result",
            ),
            registry,
        }
    }

    /// Records the end of a load.
    pub fn record_load(&self, result: &'static str) {
        self.loads.with_label_values(&[result]).inc();
    }

    /// Records the time of a load that succeeded.
    pub fn record_load_time(&self, took_ms: u64) {
        self.load_seconds.observe(took_ms as f64 / 1e3);
    }

    /// Records an instance that had to leave.
    pub fn record_eviction(&self, reason: &'static str) {
        self.evictions.with_label_values(&[reason]).inc();
    }

    /// Records a process that ended by itself.
    pub fn record_crash(&self) {
        self.crashes.inc();
    }

    /// Records the time from the choice of a load to its memory.
    pub fn record_swap_wait(&self, waited_ms: u64) {
        self.swap_wait.observe(waited_ms as f64 / 1e3);
    }

    fn set(&self, levels: &GpuModelLevels) {
        self.instances.reset();
        for (state, count) in &levels.instances {
            let own = self.instances.with_label_values(&[*state]);
            own.set((*count).into());
        }
        self.backoff.set(levels.backoff_secs);
        self.estimate.reset();
        if let Some((source, mib)) = levels.estimate {
            let own: IntGauge = self.estimate.with_label_values(&[source]);
            own.set(i64::try_from(mib).unwrap_or(i64::MAX));
        }
        self.measured.reset();
        if let Some(mib) = levels.measured_mib {
            let own = self.measured.with_label_values::<&str>(&[]);
            own.set(i64::try_from(mib).unwrap_or(i64::MAX));
        }
        let ColdCounts {
            served,
            refused,
            left,
        } = levels.cold;
        for (result, to) in [("served", served), ("refused", refused), ("left", left)] {
            let counter = self.cold.with_label_values(&[result]);
            counter.inc_by(to.saturating_sub(counter.get()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(metrics: &GpuMetrics) -> String {
        let encoder = prometheus::TextEncoder::new();
        let mut shown = String::new();
        for family in metrics.gather() {
            shown += &encoder.encode_to_string(&[family]).unwrap();
        }
        shown
    }

    fn levels() -> GpuLevels {
        let model = GpuModelLevels {
            instances: [("ready", 1), ("cold", 2)].into(),
            backoff_secs: 2.5,
            estimate: Some(("header", 7000)),
            measured_mib: Some(6800),
            cold: ColdCounts {
                served: 3,
                refused: 2,
                left: 1,
            },
        };
        GpuLevels {
            devices: vec![GpuDeviceLevels {
                device: "0 sim0".to_owned(),
                memory_mib: vec![("total", 24_000), ("free", 0)],
                over_lease_mib: 12,
                sample_age_secs: Some(0.5),
                utilization: Some(0.4),
                is_up: true,
            }],
            models: [(ModelId::from("m"), model)].into(),
            leases: [("slot", 2), ("job", 0)],
            claims: [("slot", 0), ("job", 1)],
        }
    }

    #[test]
    fn devices_models_and_leases_are_shown_and_go_with_their_host() {
        assert!(LOAD_BUCKETS.is_sorted_by(|a, b| a < b));
        let metrics = GpuMetrics::default();
        metrics.configure(&[ModelId::from("m")]);
        let model = metrics.model(&ModelId::from("m")).unwrap();
        model.record_load("ready");
        model.record_load_time(1500);
        model.record_eviction("victim");
        model.record_crash();
        model.record_swap_wait(250);
        metrics.record_orphans(2);
        metrics.record_adoption();
        metrics.raise_dropped_reports(3);
        metrics.raise_dropped_reports(2);
        metrics.record_swap_lost("0 sim0", 1250);
        metrics.set_levels(levels());
        let text = shown(&metrics);
        for line in [
            r#"infergate_gpu_memory_bytes{device="0 sim0",kind="total"} 25165824000"#,
            r#"infergate_gpu_memory_bytes{device="0 sim0",kind="free"} 0"#,
            r#"infergate_gpu_device_up{device="0 sim0"} 1"#,
            r#"infergate_gpu_sample_age_seconds{device="0 sim0"} 0.5"#,
            r#"infergate_gpu_utilization_ratio{device="0 sim0"} 0.4"#,
            r#"infergate_gpu_over_lease_mib{device="0 sim0"} 12"#,
            r#"infergate_gpu_swap_lost_seconds_total{device="0 sim0"} 1.25"#,
            r#"infergate_instances{state="cold",model="m"} 2"#,
            r#"infergate_instance_loads_total{result="ready",model="m"} 1"#,
            r#"infergate_instance_load_seconds_sum{model="m"} 1.5"#,
            r#"infergate_instance_evictions_total{reason="victim",model="m"} 1"#,
            r#"infergate_instance_crashes_total{model="m"} 1"#,
            r#"infergate_instance_backoff_seconds{model="m"} 2.5"#,
            r#"infergate_model_swap_wait_seconds_sum{model="m"} 0.25"#,
            r#"infergate_vram_estimate_mib{source="header",model="m"} 7000"#,
            r#"infergate_vram_measured_mib{model="m"} 6800"#,
            "infergate_instances_adopted_total 1",
            r#"infergate_cold_requests_total{result="refused",model="m"} 2"#,
            r#"infergate_vram_leases{kind="slot"} 2"#,
            r#"infergate_vram_claims{kind="job"} 1"#,
            "infergate_orphans_killed_total 2",
            "infergate_gpu_reports_dropped_total 3",
        ] {
            assert!(text.contains(line), "no {line} in\n{text}");
        }
        metrics.set_levels(GpuLevels::default());
        metrics.configure(&[]);
        let text = shown(&metrics);
        for gone in ["model=\"m\"", "infergate_gpu_device_up{"] {
            assert!(!text.contains(gone), "{gone} in\n{text}");
        }
    }

    #[test]
    fn counts_of_cold_requests_never_fall() {
        let metrics = GpuMetrics::default();
        metrics.configure(&[ModelId::from("m")]);
        metrics.set_levels(levels());
        shown(&metrics);
        let mut reset = levels();
        reset.models.values_mut().for_each(|it| it.cold.served = 0);
        metrics.set_levels(reset);
        let line = r#"infergate_cold_requests_total{result="served",model="m"} 3"#;
        assert!(shown(&metrics).contains(line));
    }
}
