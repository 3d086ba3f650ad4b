//! Managed models before they have run: their preset, their estimate, and what is odd about their files.
//!
//! Neither starts nor places: the core plans with the result. Headers of files are read, tensors never; blocks for as long
//! as the disk takes.

use std::path::Path;

use infergate_core::model::{ModelSpec, ProcessSpec};
use infergate_core::vram::estimate::{
    CacheType, EstimateInputs, EstimateSource, FileFormat, ManifestExcess, ModelFiles, RunSettings,
    VramEstimate, estimate,
};
use infergate_core::vram::{ManagedModel, PlannedModel, Split};

use super::config::GpuConfig;
use super::model_files::{ModelFileError, header_of_file, read_model};
use super::presets::{EstimateOptions, MemorySource, Preset, option_value, preset};

/// Tokens that llama.cpp computes at once unless it is told otherwise.
const UBATCH: u64 = 512;

/// Managed model with its estimate.
#[derive(Clone, Debug)]
pub struct ManagedEstimate {
    /// The model as it is planned.
    pub planned: PlannedModel,
    /// Source of the estimate; none where nothing answers.
    pub source: Option<EstimateSource>,
    /// Need by measured loads, MiB; none before one.
    pub measured_mib: Option<u64>,
    /// Configured memory that a load has exceeded.
    pub excess: Option<ManifestExcess>,
    /// Oddities of its files, for a person.
    pub notes: Vec<String>,
}

/// Estimates a model with a process; none without one. `measured_mib`: peaks of its latest good loads, oldest first.
///
/// A server that takes as much as it is given is not measured by it: its share would grow from load to load.
pub fn estimate_managed(
    spec: &ModelSpec,
    gpu: &GpuConfig,
    measured_mib: &[u64],
) -> Option<ManagedEstimate> {
    let process = spec.process.as_ref()?;
    let preset = process.preset.as_deref().and_then(preset);
    let model = managed_model(spec)?;
    let mut notes = Vec::new();
    let takes_all = preset.is_some_and(|preset| {
        matches!(
            preset.memory,
            MemorySource::Share { .. } | MemorySource::Fixed
        )
    });
    let measured_mib: &[u64] = if takes_all { &[] } else { measured_mib };
    let estimated = estimate_process(spec, (process, measured_mib), preset, gpu, &mut notes);
    Some(ManagedEstimate {
        planned: PlannedModel {
            model,
            mib: estimated.chosen.map(|(_, mib)| mib),
            context_mib: gpu.context_mib,
        },
        source: estimated.chosen.map(|(source, _)| source),
        measured_mib: estimated.mib_of(EstimateSource::Measured),
        excess: estimated.excess,
        notes,
    })
}

/// Returns a model with a process as its configuration has it; none without one.
pub fn managed_model(spec: &ModelSpec) -> Option<ManagedModel> {
    let process = spec.process.as_ref()?;
    let preset = process.preset.as_deref().and_then(preset);
    ManagedModel::of(spec, preset.map_or(Split::Never, |preset| preset.split))
}

fn estimate_process(
    spec: &ModelSpec,
    (process, measured_mib): (&ProcessSpec, &[u64]),
    preset: Option<&Preset>,
    gpu: &GpuConfig,
    notes: &mut Vec<String>,
) -> VramEstimate {
    let memory = preset.map_or(MemorySource::Header, |preset| preset.memory);
    let options = preset.map_or(&EstimateOptions::NONE, |preset| &preset.estimate);
    let arguments: Vec<&str> = process.arguments.iter().map(|text| &**text).collect();
    let path = process.model_path.as_deref();
    let path = path.filter(|_| memory != MemorySource::Fixed);
    let files = path.and_then(|path| files_of(path, process, memory, notes));
    let files = files.map(|files| with_companions(files, &arguments, options, notes));
    let value = |names| option_value(&arguments, names);
    let settings = RunSettings {
        context: Some(process.context.into()),
        parallel: process.parallel.into(),
        ubatch: value(options.ubatch)
            .and_then(|text| text.parse().ok())
            .unwrap_or(UBATCH),
        key_type: value(options.key_type).and_then(CacheType::of_name),
        value_type: value(options.value_type).and_then(CacheType::of_name),
        devices: 1,
        context_mib: gpu.context_mib,
    };
    let name = match memory {
        MemorySource::Fixed => "",
        _ => path
            .and_then(Path::file_name)
            .and_then(|name| name.to_str())
            .unwrap_or(spec.id.as_str()),
    };
    estimate(&EstimateInputs {
        manifest_mib: (spec.vram.mib > 0).then_some(spec.vram.mib),
        measured_mib,
        files: files.as_ref(),
        name,
        settings: &settings,
    })
}

/// Files of the model; none, with a note, where they cannot be read.
fn files_of(
    path: &Path,
    process: &ProcessSpec,
    memory: MemorySource,
    notes: &mut Vec<String>,
) -> Option<ModelFiles> {
    let mut found = match read_model(path) {
        Ok(found) => found,
        Err(error) => {
            notes.push(format!("{error}; it is loaded once the file is there"));
            return None;
        }
    };
    match &found.files.header {
        Some(Err(fault)) => {
            let file = found.faulty.as_deref().unwrap_or(path);
            notes.push(format!("{}: {fault}; copy the file again", file.display()));
        }
        Some(Ok(header)) => {
            let trained = header.trained_context();
            if let Some(trained) = trained.filter(|trained| *trained < process.context.into()) {
                notes.push(format!(
                    "`context` is {}, and the model was made for {trained} tokens",
                    process.context
                ));
            }
        }
        None => {}
    }
    if memory == MemorySource::File {
        found.files.header = None;
    }
    Some(found.files)
}

/// Adds the projector and the draft that the arguments name.
fn with_companions(
    mut files: ModelFiles,
    arguments: &[&str],
    options: &EstimateOptions,
    notes: &mut Vec<String>,
) -> ModelFiles {
    if files.format != FileFormat::Gguf {
        return files;
    }
    let mut header = |names| {
        let path = option_value(arguments, names)?;
        let read = header_of_file(Path::new(path));
        read.map_err(|error: ModelFileError| notes.push(error.to_string()))
            .ok()
    };
    files.projector = header(options.projector);
    files.draft = header(options.draft);
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(json: &str) -> ModelSpec {
        let text = format!(
            r#"{{"id":"acme/m-7b-q4_0","task":"text-generation","backend":"openai",{json}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn estimated(json: &str) -> ManagedEstimate {
        estimate_managed(&spec(json), &GpuConfig::default(), &[]).unwrap()
    }

    /// A safetensors file with one tensor of 16 bytes, and a damaged GGUF file.
    fn folder() -> tempfile::TempDir {
        let json = br#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}"#;
        let file = [&(json.len() as u64).to_le_bytes()[..], json, &[0; 16]].concat();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("model.safetensors"), file).unwrap();
        std::fs::write(folder.path().join("bad-7b.gguf"), b"GGUF").unwrap();
        folder
    }

    #[test]
    fn a_model_without_a_process_has_no_estimate() {
        let spec = spec(r#""endpoints":[]"#);
        assert!(estimate_managed(&spec, &GpuConfig::default(), &[]).is_none());
    }

    #[test]
    fn measured_loads_count_before_a_header_and_against_a_low_figure() {
        let measured = |json: &str| {
            estimate_managed(&spec(json), &GpuConfig::default(), &[4000, 5000]).unwrap()
        };
        let command = measured(r#""process":{"command":["serve"]}"#);
        assert_eq!(command.source, Some(EstimateSource::Measured));
        assert_eq!(command.planned.mib, Some(5214));
        let low = measured(r#""process":{"command":["serve"]},"vram":{"mib":4700}"#);
        assert_eq!(low.source, Some(EstimateSource::Measured));
        assert_eq!(
            low.excess.map(|it| (it.manifest_mib, it.peak_mib)),
            Some((4700, 5000))
        );
        let share = measured(r#""process":{"preset":"vllm"},"vram":{"mib":4700}"#);
        assert_eq!((share.planned.mib, share.measured_mib), (Some(4700), None));
    }

    #[test]
    fn the_configured_memory_counts_first_and_the_name_last() {
        let set = estimated(r#""process":{"preset":"vllm"},"vram":{"mib":9000}"#);
        assert_eq!(set.planned.mib, Some(9000));
        assert_eq!(set.source, Some(EstimateSource::Manifest));
        assert_eq!(set.planned.model.split, Split::Equal);
        let named = estimated(r#""process":{"command":["serve"]}"#);
        assert_eq!(named.source, Some(EstimateSource::Name));
        assert_eq!(named.planned.model.split, Split::Never);
        let fixed = estimated(r#""process":{"preset":"simulate"}"#);
        assert_eq!((fixed.source, fixed.planned.mib), (None, None));
    }

    #[test]
    fn an_engine_for_embeddings_is_estimated_by_the_size_of_its_files() {
        let folder = folder();
        let path = folder.path().join("model.safetensors");
        let process = |preset: &str| {
            estimated(&format!(
                r#""process":{{"preset":"{preset}","model_path":"{}"}}"#,
                path.display()
            ))
        };
        assert_eq!(process("tei").source, Some(EstimateSource::File));
    }

    #[test]
    fn files_that_are_missing_or_damaged_are_named_and_leave_the_other_sources() {
        let missing = estimated(
            r#""process":{"preset":"llama-server","model_path":"/no/such/x-7b-q4_0.gguf"}"#,
        );
        assert_eq!(missing.source, Some(EstimateSource::Name));
        assert!(missing.notes[0].contains("/no/such/x-7b-q4_0.gguf"));
        let folder = folder();
        let damaged = estimated(&format!(
            r#""process":{{"preset":"llama-server","model_path":"{}"}}"#,
            folder.path().join("bad-7b.gguf").display()
        ));
        assert!(damaged.notes[0].contains("copy the file again"));
        assert_eq!(damaged.source, Some(EstimateSource::File));
    }
}
