//! `infergate gpu estimate`: how much device memory a model needs, before it has run.
//!
//! Decides nothing: files are read by `gpu`, the arithmetic is the core's. Names from files are cleaned of what could
//! move a cursor.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use infergate_core::vram::estimate::{
    CacheType, DeviceFit, EstimateInputs, EstimateSource, FileFormat, MemoryParts, RunSettings,
    SourceFigure, VramEstimate, estimate, mib,
};
use serde_json::{Value, json};

use super::output::{print, problem};
use crate::gpu::{
    FoundModel, MeasuredStore, ModelFileError, files_digest, header_of_file, read_model,
};

const DOES_NOT_FIT: u8 = 1;
const FAILED: u8 = 2;

/// Tokens and requests that a command line may name.
const CONTEXT_MAX: u64 = 1 << 24;
const PARALLEL_MAX: u64 = 1 << 16;
/// Devices of one host.
const DEVICES_MAX: u64 = 256;
/// Memory that a command line may name, MiB: a PiB.
const MEMORY_MIB_MAX: u64 = 1 << 30;

/// Help below the options of `infergate gpu estimate`.
pub const HELP: &str = "\
The first source that answers is the estimate: `vram.mib` of a configuration, measured loads, the header of the
files, their size, the name. Here the configuration is not known, and loads only with --state-dir. No tensor is read.
With --device-mib it says whether the model fits beside the 512 MiB that a gateway keeps free on each device.

Exit codes: 0 shown, and it fits; 1 it does not fit, or a header is damaged; 2 a file cannot be read.
Examples:
  infergate gpu estimate qwen-7b-q4_k_m.gguf                            with the context the model was made for
  infergate gpu estimate qwen-7b-q4_k_m.gguf --context 8192 --parallel 4
  infergate gpu estimate qwen-72b-00001-of-00003.gguf --devices 2 --device-mib 24576
  infergate gpu estimate /models/Qwen2.5-7B-Instruct --context 8192     a folder with safetensors and config.json
  infergate gpu estimate llava.gguf --projector mmproj.gguf --json";

/// Arguments of `infergate gpu estimate`.
#[derive(Args)]
pub struct EstimateArgs {
    /// A GGUF or safetensors file, or the folder of a model. Any part of a split model finds the others.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Tokens of one request. Without it, those that the model was made for.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=CONTEXT_MAX))]
    context: Option<u64>,
    /// Requests at a time.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=PARALLEL_MAX))]
    parallel: u64,
    /// Tokens that llama.cpp computes at once.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..=PARALLEL_MAX))]
    ubatch: u64,
    /// Elements of the keys in the cache: f16, q8_0 and others. Without it, as the model has them.
    #[arg(long, value_name = "TYPE", value_parser = cache_type)]
    cache_type_k: Option<CacheType>,
    /// Elements of the values in the cache.
    #[arg(long, value_name = "TYPE", value_parser = cache_type)]
    cache_type_v: Option<CacheType>,
    /// The projector (mmproj) of a GGUF model that sees or hears.
    #[arg(long, value_name = "FILE")]
    projector: Option<PathBuf>,
    /// The GGUF draft model of speculative decoding.
    #[arg(long, value_name = "FILE")]
    draft: Option<PathBuf>,
    /// Devices that the model is split over.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=DEVICES_MAX))]
    devices: u64,
    /// Memory that a process takes on each device by using it, MiB.
    #[arg(long, value_name = "N", default_value_t = 450, value_parser = clap::value_parser!(u64).range(0..=MEMORY_MIB_MAX))]
    context_mib: u64,
    /// Memory of each device, MiB: says whether the model fits.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MEMORY_MIB_MAX))]
    device_mib: Option<u64>,
    /// State of a gateway of this host: loads that it has measured with these files, tokens and requests count.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Print the figures as JSON.
    #[arg(long)]
    json: bool,
}

/// All that the command shows.
struct EstimateReport {
    model: FoundModel,
    settings: RunSettings,
    estimate: VramEstimate,
    /// Memory of all devices together, MiB, and whether the estimate fits.
    fit: Option<(u64, DeviceFit)>,
}

/// Prints the estimate.
pub fn run(args: &EstimateArgs) -> ExitCode {
    let report = match report(args) {
        Ok(report) => report,
        Err(why) => {
            problem(&format!("error: {why}"));
            return ExitCode::from(FAILED);
        }
    };
    print(&match args.json {
        true => format!("{:#}\n", report.json()),
        false => report.text(),
    });
    if let Some((path, fault)) = report.fault() {
        problem(&format!("error: {path}: {fault}; copy the file again"));
        return ExitCode::from(DOES_NOT_FIT);
    }
    match report.fit {
        Some((_, DeviceFit::TooLarge { .. })) => ExitCode::from(DOES_NOT_FIT),
        _ => ExitCode::SUCCESS,
    }
}

fn report(args: &EstimateArgs) -> Result<EstimateReport, ModelFileError> {
    let mut model = read_model(&args.file)?;
    model.files.projector = args.projector.as_deref().map(header_of_file).transpose()?;
    model.files.draft = args.draft.as_deref().map(header_of_file).transpose()?;
    let header = model
        .files
        .header
        .as_ref()
        .and_then(|header| header.as_ref().ok());
    let trained = header.and_then(|header| header.trained_context());
    let settings = RunSettings {
        context: args.context.or(trained),
        parallel: args.parallel,
        ubatch: args.ubatch,
        key_type: args.cache_type_k,
        value_type: args.cache_type_v,
        devices: args.devices,
        context_mib: args.context_mib,
    };
    let measured_mib = measured(args, &settings);
    let estimate = estimate(&EstimateInputs {
        manifest_mib: None,
        measured_mib: &measured_mib,
        files: Some(&model.files),
        name: &model.name,
        settings: &settings,
    });
    let devices_mib = args.device_mib.map(|mib| mib * args.devices);
    let fit = devices_mib.and_then(|mib| Some((mib, estimate.fit(mib, args.devices)?)));
    Ok(EstimateReport {
        model,
        settings,
        estimate,
        fit,
    })
}

/// Peaks of the loads that a gateway has measured with these files and settings.
fn measured(args: &EstimateArgs, settings: &RunSettings) -> Vec<u64> {
    let found = args.state_dir.as_deref().and_then(|directory| {
        let files = files_digest(&args.file)?;
        let store = MeasuredStore::open(directory);
        Some(store.peaks_of_files(&files, settings.context?, settings.parallel))
    });
    found.unwrap_or_default()
}

impl EstimateReport {
    /// File whose header is damaged, and its fault.
    fn fault(&self) -> Option<(String, String)> {
        let path = self.model.faulty.as_ref()?;
        let fault = self.model.files.header.as_ref()?.as_ref().err()?;
        Some((path.display().to_string(), fault.to_string()))
    }

    fn text(&self) -> String {
        let mut out = format!(
            "model     {}\nrun       {}\n\n",
            self.about_model(),
            self.about_run()
        );
        let _ = writeln!(out, "{:<10}{:>10}", "source", "MiB");
        for figure in &self.estimate.figures {
            let (memory, why) = match &figure.mib {
                Ok(mib) => (mib.to_string(), self.explanation(figure)),
                Err(why) => ("-".to_owned(), why.to_string()),
            };
            let _ = writeln!(out, "{:<10}{memory:>10}  {why}", figure.source.name());
        }
        out.push('\n');
        let _ = match self.estimate.chosen {
            Some((source, mib)) => {
                writeln!(out, "{:<10}{mib:>10}  by {}", "estimate", source.name())
            }
            None => writeln!(
                out,
                "{:<10}{:>10}  alone on an empty device, or not at all",
                "estimate", "-"
            ),
        };
        if let Some((devices_mib, fit)) = self.fit {
            let _ = writeln!(
                out,
                "{:<10}{devices_mib:>10}  {}",
                "devices",
                fit_sentence(fit)
            );
        }
        out
    }

    fn about_model(&self) -> String {
        let files = &self.model.files;
        let header = files
            .header
            .as_ref()
            .and_then(|header| header.as_ref().ok());
        let architecture = header.map(|header| &*header.architecture);
        let architecture = architecture.filter(|name| !name.is_empty());
        let architecture = architecture.unwrap_or("unknown architecture");
        let count = match self.model.count {
            1 => "1 file".to_owned(),
            count => format!("{count} files"),
        };
        // A name of a file may have a line break.
        let name = self.model.name.escape_debug();
        let architecture = architecture.escape_debug();
        format!(
            "{name}: {}, {architecture}, {} MiB in {count}",
            format_name(files.format),
            decimals(files.bytes)
        )
    }

    fn about_run(&self) -> String {
        let context = match self.settings.context {
            Some(tokens) => format!("{tokens} tokens"),
            None => "unknown context".to_owned(),
        };
        let devices = match self.settings.devices {
            1 => "1 device".to_owned(),
            count => format!("{count} devices"),
        };
        format!(
            "{context} × {} at a time, {devices}",
            self.settings.parallel
        )
    }

    /// Text of a figure that is known: the parts of the header's, the margin of the others.
    fn explanation(&self, figure: &SourceFigure) -> String {
        match (figure.source, &self.estimate.parts) {
            (EstimateSource::Header, Some(parts)) => {
                let parts = named_parts(parts).into_iter();
                let parts = parts.filter_map(|(name, bytes)| {
                    bytes.map(|bytes| format!("{name} {}", decimals(bytes)))
                });
                parts.collect::<Vec<_>>().join(" + ")
            }
            (EstimateSource::File, _) => {
                let margin = match self.model.files.format {
                    FileFormat::Gguf => "1.1",
                    FileFormat::Safetensors => "1.3",
                    FileFormat::Other => "1.2",
                };
                format!("size × {margin} + kv where it is known + context")
            }
            (EstimateSource::Measured, _) => "largest of the last 5 loads × 1.03 + 64".to_owned(),
            (EstimateSource::Name, _) => "parameters × bits ÷ 8 × 1.2 + context".to_owned(),
            _ => String::new(),
        }
    }

    fn json(&self) -> Value {
        let figures = self.estimate.figures.iter().map(|figure| {
            json!({
                "source": figure.source.name(),
                "mib": figure.mib.as_ref().ok(),
                "unknown": figure.mib.as_ref().err().map(ToString::to_string),
            })
        });
        let parts = self.estimate.parts.as_ref().map(|parts| {
            let parts = named_parts(parts).into_iter();
            let parts = parts.map(|(name, bytes)| (format!("{name}_bytes"), json!(bytes)));
            Value::Object(parts.collect())
        });
        let chosen = self.estimate.chosen;
        let header = self
            .model
            .files
            .header
            .as_ref()
            .and_then(|header| header.as_ref().ok());
        json!({
            "model": self.model.name,
            "format": format_name(self.model.files.format),
            "architecture": header.map(|header| &header.architecture),
            "files": self.model.count,
            "file_bytes": self.model.files.bytes,
            "context": self.settings.context,
            "parallel": self.settings.parallel,
            "devices": self.settings.devices,
            "estimate_mib": chosen.map(|(_, mib)| mib),
            "source": chosen.map(|(source, _)| source.name()),
            "sources": figures.collect::<Vec<_>>(),
            "parts": parts,
            "fit": self.fit.map(fit_json),
            "fault": self.fault().map(|(path, fault)| json!({ "file": path, "error": fault })),
        })
    }
}

/// Parts of an estimate in the order in which they are shown.
fn named_parts(parts: &MemoryParts) -> [(&'static str, Option<u64>); 6] {
    [
        ("weights", Some(parts.weights_bytes)),
        ("kv", Some(parts.kv_bytes)),
        ("compute", Some(parts.compute_bytes)),
        ("projector", parts.projector_bytes),
        ("draft", parts.draft_bytes),
        ("context", parts.context_bytes),
    ]
}

fn fit_sentence(fit: DeviceFit) -> String {
    match fit {
        DeviceFit::Fits {
            left_mib,
            reserve_mib,
        } => format!("fits: {left_mib} MiB are left beside the reserve of {reserve_mib}"),
        DeviceFit::TooLarge {
            missing_mib,
            reserve_mib,
        } => format!(
            "does not fit: {missing_mib} MiB are missing beside the reserve of {reserve_mib}; a smaller --context or \
             --parallel, or more devices"
        ),
    }
}

fn fit_json((devices_mib, fit): (u64, DeviceFit)) -> Value {
    let (fits, left_mib, missing_mib, reserve_mib) = match fit {
        DeviceFit::Fits {
            left_mib,
            reserve_mib,
        } => (true, left_mib, 0, reserve_mib),
        DeviceFit::TooLarge {
            missing_mib,
            reserve_mib,
        } => (false, 0, missing_mib, reserve_mib),
    };
    json!({
        "fits": fits,
        "devices_mib": devices_mib,
        "reserve_mib": reserve_mib,
        "left_mib": left_mib,
        "missing_mib": missing_mib,
    })
}

fn format_name(format: FileFormat) -> &'static str {
    match format {
        FileFormat::Gguf => "GGUF",
        FileFormat::Safetensors => "safetensors",
        FileFormat::Other => "other format",
    }
}

/// Bytes as MiB with two decimals; whole ones where they are many.
fn decimals(bytes: u64) -> String {
    match mib(bytes) {
        many @ 1_000_000.. => many.to_string(),
        _ => format!("{:.2}", bytes as f64 / f64::from(1 << 20)),
    }
}

fn cache_type(name: &str) -> Result<CacheType, String> {
    let known = || CacheType::names().collect::<Vec<_>>().join(", ");
    CacheType::of_name(name).ok_or_else(|| format!("no such type; one of {}", known()))
}
