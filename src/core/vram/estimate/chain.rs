//! Chain of sources: the first that answers is the estimate, and the figures of all of them are shown.
//!
//! Neither reads nor measures: files, measurements and configuration are arguments. O(layers).

use super::header_error::{HeaderError, UnknownFigure};
use super::name;
use super::shape::{MemoryParts, ModelHeader, RunSettings, mib};

/// Loads that a measurement looks back on.
const MEASURED_LOADS: usize = 5;
/// Margin of a measurement, MiB, beside 3 percent of it.
const MEASURED_MARGIN_MIB: u64 = 64;
/// Memory that a device keeps free, MiB, unless configured otherwise (`gpu.reserve_mib`).
const RESERVE_MIB: u64 = 512;

/// Source of an estimate, in the order in which they are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EstimateSource {
    /// `vram.mib` of the configuration.
    Manifest,
    /// Loads of this model that were measured.
    Measured,
    /// Arithmetic over the header of its files.
    Header,
    /// Size of its files.
    File,
    /// Words of its name.
    Name,
}

impl EstimateSource {
    /// Returns the name in output and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            EstimateSource::Manifest => "manifest",
            EstimateSource::Measured => "measured",
            EstimateSource::Header => "header",
            EstimateSource::File => "file",
            EstimateSource::Name => "name",
        }
    }
}

/// Format of a model's files, which decides on the margin of their size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFormat {
    /// Files of llama.cpp.
    Gguf,
    /// Files of Hugging Face, run by engines that take a share of the card.
    Safetensors,
    /// Any other.
    Other,
}

impl FileFormat {
    /// Size of the files with its margin.
    fn with_margin(self, bytes: u64) -> u64 {
        let percent = match self {
            FileFormat::Gguf => 110,
            FileFormat::Safetensors => 130,
            FileFormat::Other => 120,
        };
        with_percent(bytes, percent)
    }
}

/// Files of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFiles {
    /// Format.
    pub format: FileFormat,
    /// Size of all files together.
    pub bytes: u64,
    /// Header over all files, or why it cannot be read; none in another format.
    pub header: Option<Result<ModelHeader, HeaderError>>,
    /// Projector of a model that sees or hears; none without one.
    pub projector: Option<ModelHeader>,
    /// Draft model for speculative decoding; none without one.
    pub draft: Option<ModelHeader>,
}

/// All that is known of a process before it has run.
#[derive(Clone, Debug)]
pub struct EstimateInputs<'a> {
    /// `vram.mib` of the configuration.
    pub manifest_mib: Option<u64>,
    /// Peaks of good loads on the device, oldest first, MiB.
    pub measured_mib: &'a [u64],
    /// Files of the model; none where they are elsewhere.
    pub files: Option<&'a ModelFiles>,
    /// Name of the model.
    pub name: &'a str,
    /// Settings of the process.
    pub settings: &'a RunSettings,
}

/// Figure of one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFigure {
    /// Source.
    pub source: EstimateSource,
    /// Memory, MiB, or why there is no figure.
    pub mib: Result<u64, UnknownFigure>,
}

/// Configured figure that a measurement exceeds by more than 5 percent, for a warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManifestExcess {
    /// Configured memory, MiB.
    pub manifest_mib: u64,
    /// Measured peak, MiB.
    pub peak_mib: u64,
}

/// Estimate with all that it could have been.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VramEstimate {
    /// Source and memory, MiB; none: the model may run alone on an empty device, or not at all.
    pub chosen: Option<(EstimateSource, u64)>,
    /// Figures of all sources, in their order.
    pub figures: Vec<SourceFigure>,
    /// Parts of the figure of the header.
    pub parts: Option<MemoryParts>,
    /// Configured figure that is too low.
    pub excess: Option<ManifestExcess>,
}

/// Room of devices that nothing else uses, compared with an estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceFit {
    /// Memory left over, MiB.
    Fits {
        /// Memory left beside the reserve.
        left_mib: u64,
        /// Reserve of the device.
        reserve_mib: u64,
    },
    /// Memory that is missing, MiB.
    TooLarge {
        /// Memory that is missing beside the reserve.
        missing_mib: u64,
        /// Reserve of the device.
        reserve_mib: u64,
    },
}

/// Estimates the memory of a process.
pub fn estimate(inputs: &EstimateInputs<'_>) -> VramEstimate {
    let recent = inputs.measured_mib.iter().rev().take(MEASURED_LOADS);
    let peak_mib = recent.copied().max();
    let parts = header_parts(inputs);
    let figures = vec![
        SourceFigure {
            source: EstimateSource::Manifest,
            mib: configured(inputs.manifest_mib),
        },
        SourceFigure {
            source: EstimateSource::Measured,
            mib: peak_mib
                .map(measured_need)
                .ok_or(UnknownFigure::NotMeasured),
        },
        SourceFigure {
            source: EstimateSource::Header,
            mib: parts.clone().map(|parts| mib(parts.total_bytes())),
        },
        SourceFigure {
            source: EstimateSource::File,
            mib: by_file_size(inputs),
        },
        SourceFigure {
            source: EstimateSource::Name,
            mib: by_name(inputs),
        },
    ];
    let excess = excess(inputs.manifest_mib, peak_mib);
    let mut answers = figures
        .iter()
        .filter(|figure| excess.is_none() || figure.source != EstimateSource::Manifest)
        .filter_map(|figure| Some((figure.source, *figure.mib.as_ref().ok()?)));
    VramEstimate {
        chosen: answers.next(),
        parts: parts.ok(),
        excess,
        figures,
    }
}

impl VramEstimate {
    /// Returns the figure of a source; none where it has none.
    pub fn mib_of(&self, source: EstimateSource) -> Option<u64> {
        let mut figures = self.figures.iter();
        let figure = figures.find(|figure| figure.source == source)?;
        figure.mib.as_ref().ok().copied()
    }

    /// Returns whether the estimate fits devices of `devices_mib` together; none without an estimate.
    pub fn fit(&self, devices_mib: u64, devices: u64) -> Option<DeviceFit> {
        let (_, need_mib) = self.chosen?;
        let reserve_mib = RESERVE_MIB.saturating_mul(devices);
        let need_mib = need_mib.saturating_add(reserve_mib);
        Some(match devices_mib.checked_sub(need_mib) {
            Some(left_mib) => DeviceFit::Fits {
                left_mib,
                reserve_mib,
            },
            None => DeviceFit::TooLarge {
                missing_mib: need_mib - devices_mib,
                reserve_mib,
            },
        })
    }
}

fn configured(manifest_mib: Option<u64>) -> Result<u64, UnknownFigure> {
    manifest_mib.ok_or(UnknownFigure::NotConfigured)
}

/// Returns the memory to lease for a measured peak: 3 percent and 64 MiB more.
pub fn measured_need(peak_mib: u64) -> u64 {
    with_percent(peak_mib, 103).saturating_add(MEASURED_MARGIN_MIB)
}

fn excess(manifest_mib: Option<u64>, peak_mib: Option<u64>) -> Option<ManifestExcess> {
    let (manifest_mib, peak_mib) = (manifest_mib?, peak_mib?);
    (peak_mib > with_percent(manifest_mib, 105)).then_some(ManifestExcess {
        manifest_mib,
        peak_mib,
    })
}

/// Parts of the process by the headers of all its files.
fn header_parts(inputs: &EstimateInputs<'_>) -> Result<MemoryParts, UnknownFigure> {
    let files = inputs.files.ok_or(UnknownFigure::NoFile)?;
    let header = files.header.as_ref().ok_or(UnknownFigure::OtherFormat)?;
    let header = header.as_ref().map_err(HeaderError::clone)?;
    let mut parts = header.parts(inputs.settings)?;
    parts.projector_bytes = files.projector.as_ref().map(|header| header.weights_bytes);
    if let Some(draft) = &files.draft {
        let mut draft = draft.parts(inputs.settings)?;
        // One process has one context on a device, whatever it loads.
        draft.context_bytes = None;
        parts.draft_bytes = Some(draft.total_bytes());
    }
    Ok(parts)
}

/// Size of all files with its margin, the cache where it is known, and the contexts of the process.
fn by_file_size(inputs: &EstimateInputs<'_>) -> Result<u64, UnknownFigure> {
    let files = inputs.files.ok_or(UnknownFigure::NoFile)?;
    let header = files
        .header
        .as_ref()
        .and_then(|header| header.as_ref().ok());
    let kv_bytes = header.and_then(|header| header.kv_bytes(inputs.settings).ok());
    let beside = [&files.projector, &files.draft].into_iter().flatten();
    let bytes = beside.fold(files.bytes, |sum, header| {
        sum.saturating_add(header.weights_bytes)
    });
    let bytes = files.format.with_margin(bytes);
    let bytes = bytes.saturating_add(kv_bytes.unwrap_or(0));
    Ok(mib(bytes.saturating_add(inputs.settings.context_bytes())))
}

fn by_name(inputs: &EstimateInputs<'_>) -> Result<u64, UnknownFigure> {
    let weights = name::weights_bytes(inputs.name).ok_or(UnknownFigure::NoSizeInName)?;
    let bytes = with_percent(weights, 120);
    Ok(mib(bytes.saturating_add(inputs.settings.context_bytes())))
}

/// Returns `percent` of a size, rounded up.
fn with_percent(size: u64, percent: u64) -> u64 {
    let size = u128::from(size) * u128::from(percent);
    u64::try_from(size.div_ceil(100)).unwrap_or(u64::MAX)
}
