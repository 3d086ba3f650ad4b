//! Settings of the pool, from those of the models and of the host. Facts of files are read before, one model at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use infergate_core::model::{ModelSpec, ProcessSpec, UnknownVram, UpdateChoice};
use infergate_core::vram::estimate::{EstimateSource, ManifestExcess};
use infergate_core::vram::{
    self, DemandSettings, LoadParallel, PlacementRequest, PlannedModel, PoolConfig, PoolModel,
    SlotLimits, Split, StoredModel, SwapRule,
};
use infergate_core::{Millis, ModelId};

use super::sleep::can_sleep;
use crate::gpu::{
    GpuConfig, HostReading, ManagedEstimate, MeasuredSettings, MeasuredStore, SwapConfig,
    SwapPolicy, estimate_managed, managed_model,
};

/// Urgency of a model without a request.
const IDLE_PRIORITY: u8 = 9;
/// Files of a model's folder that are looked at.
const FILES_MAX: usize = 4096;

/// Estimate of a model, for people.
#[derive(Clone, Debug)]
pub(super) struct EstimateFacts {
    pub mib: Option<u64>,
    pub source: Option<&'static str>,
    /// Need by measured loads, MiB.
    pub measured_mib: Option<u64>,
    /// Configured memory that a load has exceeded.
    pub excess: Option<ManifestExcess>,
}

/// Models and host that the settings of the pool are made of.
pub(super) struct HostPlan {
    pub specs: Vec<Arc<ModelSpec>>,
    pub gpu: Arc<GpuConfig>,
    /// Room of the largest device, MiB, which a model takes alone whose memory is not known.
    pub largest_mib: u64,
}

/// Models with what their files have told.
pub(super) struct ReadModels {
    pub plan: HostPlan,
    /// Facts of each model; none where its files have not answered, and where it has no process.
    pub facts: BTreeMap<ModelId, Option<Option<FileFacts>>>,
}

/// Settings of the pool, with the estimates that they stand on.
pub(super) struct EstimatedHost {
    pub pool: PoolConfig,
    pub estimates: BTreeMap<ModelId, EstimateFacts>,
}

/// Facts of a model that its files tell.
#[derive(Clone)]
pub(super) struct FileFacts {
    estimate: ManagedEstimate,
    /// Size of its files, bytes.
    stored_bytes: u64,
}

impl FileFacts {
    /// Reads the files of a model; none without a process. Blocks for as long as the disk takes.
    pub fn read(
        spec: &ModelSpec,
        gpu: &GpuConfig,
        store: &MeasuredStore,
        reading: &HostReading,
    ) -> Option<FileFacts> {
        let measured = measured_mib(spec, store, reading);
        Some(FileFacts {
            estimate: estimate_managed(spec, gpu, &measured)?,
            stored_bytes: stored_bytes(spec),
        })
    }

    /// Returns the facts of a model whose files have never answered; none where neither its configuration nor a process
    /// that was taken over tells its memory.
    fn without_files(
        spec: &ModelSpec,
        gpu: &GpuConfig,
        leased_mib: Option<u64>,
    ) -> Option<FileFacts> {
        let model = managed_model(spec)?;
        let configured = Some(spec.vram.mib).filter(|mib| *mib > 0);
        let mib = configured.or(leased_mib)?;
        Some(FileFacts {
            estimate: ManagedEstimate {
                planned: PlannedModel {
                    model,
                    mib: Some(mib),
                    context_mib: gpu.context_mib,
                },
                source: configured.map(|_| EstimateSource::Manifest),
                measured_mib: None,
                excess: None,
                notes: Vec::new(),
            },
            stored_bytes: 0,
        })
    }
}

/// Settings of all managed models. A model without `facts` is left out unless its memory is configured or in `leased`,
/// MiB.
pub(super) fn host_settings(
    plan: &HostPlan,
    facts: &BTreeMap<ModelId, FileFacts>,
    leased: &BTreeMap<ModelId, u64>,
) -> EstimatedHost {
    let gpu = &plan.gpu;
    let (mut models, mut estimates) = (BTreeMap::new(), BTreeMap::new());
    for spec in &plan.specs {
        let known = facts.get(&spec.id).cloned();
        let leased_mib = leased.get(&spec.id).copied();
        let known = known.or_else(|| FileFacts::without_files(spec, gpu, leased_mib));
        let (Some(mut known), Some(model)) = (known, managed_model(spec)) else {
            continue;
        };
        // Facts may be of a former configuration, where the files do not answer any more.
        known.estimate.planned.model = model;
        let estimate = &known.estimate;
        let facts = EstimateFacts {
            mib: estimate.planned.mib,
            source: estimate.source.map(EstimateSource::name),
            measured_mib: estimate.measured_mib,
            excess: estimate.excess,
        };
        estimates.insert(spec.id.clone(), facts);
        models.insert(spec.id.clone(), pool_model(spec, &known, plan.largest_mib));
    }
    EstimatedHost {
        pool: pool_config(gpu, models),
        estimates,
    }
}

/// Peaks of the latest good loads of a model on any of the devices: the largest counts, wherever it is placed.
fn measured_mib(spec: &ModelSpec, store: &MeasuredStore, reading: &HostReading) -> Vec<u64> {
    let names = reading.devices.iter().map(|it| &*it.view.info.name);
    let names: BTreeSet<&str> = names.collect();
    let peaks = names.into_iter().flat_map(|device| {
        let settings = MeasuredSettings::of(spec, device, reading.driver.as_deref());
        let key = settings.map(|settings| settings.key(spec));
        key.map_or_else(Vec::new, |key| store.peaks_mib(&key))
    });
    peaks.max().into_iter().collect()
}

fn pool_config(gpu: &GpuConfig, models: BTreeMap<ModelId, PoolModel>) -> PoolConfig {
    PoolConfig {
        load_parallel: LoadParallel {
            per_device: gpu.load_parallel.per_device,
            per_host: gpu.load_parallel.per_host,
        },
        swap: swap_rule(&gpu.swap),
        models,
    }
}

fn swap_rule(swap: &SwapConfig) -> SwapRule {
    SwapRule {
        policy: match swap.policy {
            SwapPolicy::Turns => vram::SwapPolicy::Turns,
            SwapPolicy::Lru => vram::SwapPolicy::Lru,
        },
        turn: swap.turn,
        patience: swap.patience,
        min_warm: Millis::from_secs(swap.min_warm_secs),
    }
}

/// Settings of what waits.
pub(super) fn demand_settings(swap: &SwapConfig) -> DemandSettings {
    DemandSettings {
        aging: Millis::from_secs(swap.aging_secs),
        memory: Millis::from_secs(swap.demand_memory_secs),
    }
}

fn pool_model(spec: &ModelSpec, facts: &FileFacts, largest_mib: u64) -> PoolModel {
    let estimate = &facts.estimate;
    let model = &estimate.planned.model;
    let is_exclusive =
        estimate.planned.mib.is_none() && matches!(model.unknown, UnknownVram::Exclusive);
    let mib = match (estimate.planned.mib, model.unknown) {
        (Some(mib), _) => mib,
        (None, UnknownVram::Exclusive) => largest_mib,
        // More than any host has.
        (None, UnknownVram::Refuse) => u64::MAX / 4,
    };
    let slots = |count: u32| u16::try_from(count).unwrap_or(u16::MAX);
    PoolModel {
        need: PlacementRequest {
            mib,
            devices: 1,
            split: match is_exclusive {
                true => Split::Never,
                false => model.split,
            },
            context_mib: estimate.planned.context_mib,
        },
        is_exclusive,
        // What a process keeps at least: its context on the device.
        asleep_mib: spec
            .process
            .as_ref()
            .is_some_and(can_sleep)
            .then_some(estimate.planned.context_mib),
        stored: StoredModel {
            bytes: facts.stored_bytes,
            rate_mib: None,
        },
        limits: SlotLimits {
            ready_timeout: model.ready_timeout,
            stop_timeout: model.stop_timeout,
        },
        priority: IDLE_PRIORITY,
        replicas_min: slots(model.slots_min),
        replicas_max: slots(model.slots_max),
        permits: model.parallel,
        is_pinned: model.pin,
        is_preloaded: model.preload,
        keep_alive: model.keep_alive,
        revision: revision(spec),
    }
}

/// Returns the number of the settings that a process is started with, for comparisons within this process.
fn revision(spec: &ModelSpec) -> u64 {
    let mut hasher = DefaultHasher::new();
    let process = spec.process.clone().map(|process| ProcessSpec {
        update: UpdateChoice::default(),
        ..process
    });
    let text = serde_json::to_string(&process).unwrap_or_default();
    text.hash(&mut hasher);
    for (name, value) in spec.process.iter().flat_map(|process| &process.environment) {
        (name, value.reveal()).hash(&mut hasher);
    }
    let vram = &spec.vram;
    format!("{} {:?}", vram.mib, vram.split).hash(&mut hasher);
    hasher.finish()
}

/// Returns the size of a model's files, or of its file.
pub(super) fn stored_bytes(spec: &ModelSpec) -> u64 {
    let path = spec
        .process
        .as_ref()
        .and_then(|it| it.model_path.as_deref());
    path.map_or(0, bytes_of)
}

fn bytes_of(path: &Path) -> u64 {
    let Ok(metadata) = path.metadata() else {
        return 0;
    };
    if !metadata.is_dir() {
        return metadata.len();
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let files = entries
        .take(FILES_MAX)
        .filter_map(|entry| entry.metadata().ok());
    files.filter(|it| it.is_file()).map(|it| it.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(json: &str) -> u64 {
        let text = format!(r#"{{"id":"m","task":"text-generation","backend":"openai",{json}}}"#);
        revision(&serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn a_model_whose_files_do_not_answer_is_planned_by_the_leases_of_its_process() {
        let text =
            r#"{"id":"m","task":"text-generation","backend":"openai","process":{"preset":"vllm"}}"#;
        let plan = HostPlan {
            specs: vec![Arc::new(serde_json::from_str(text).unwrap())],
            gpu: Arc::default(),
            largest_mib: 80_000,
        };
        let planned = |leased| {
            let pool = host_settings(&plan, &BTreeMap::new(), &leased).pool;
            let model = pool.models.get(&ModelId::from("m"));
            model.map(|model| (model.need.mib, model.is_exclusive))
        };
        assert_eq!(planned(BTreeMap::new()), None);
        let leased = BTreeMap::from([(ModelId::from("m"), 9000)]);
        assert_eq!(planned(leased), Some((9000, false)));
    }

    #[test]
    fn only_settings_that_a_process_is_started_with_make_another_revision() {
        let plain = number(r#""process":{"preset":"vllm"}"#);
        for same in [
            r#""process":{"preset":"vllm","update":"rolling"}"#,
            r#""process":{"preset":"vllm"},"pin":true,"keep_alive_secs":5"#,
            r#""process":{"preset":"vllm"},"replicas":{"max":3},"preload":true"#,
            r#""process":{"preset":"vllm"},"vram":{"over_lease":"restart","unknown":"refuse"}"#,
        ] {
            assert_eq!(number(same), plain, "{same}");
        }
        for other in [
            r#""process":{"preset":"vllm","context":1}"#,
            r#""process":{"preset":"vllm","environment":{"A":"1"}}"#,
            r#""process":{"preset":"vllm"},"vram":{"split":"never"}"#,
            r#""process":{"preset":"vllm"},"vram":{"mib":9}"#,
        ] {
            assert_ne!(number(other), plain, "{other}");
        }
    }
}
