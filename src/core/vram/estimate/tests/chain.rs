//! The chain of sources: the first that answers is the estimate, and all are shown.

use super::super::*;
use super::fixture::*;

fn files() -> ModelFiles {
    let file = llama_of_434_mib(GgufBuilder::new());
    ModelFiles {
        format: FileFormat::Gguf,
        bytes: 455_344_000,
        header: Some(file.header()),
        projector: None,
        draft: None,
    }
}

fn inputs<'a>(files: &'a ModelFiles, settings: &'a RunSettings) -> EstimateInputs<'a> {
    EstimateInputs {
        manifest_mib: None,
        measured_mib: &[],
        files: Some(files),
        name: "tiny-1b-q4_0",
        settings,
    }
}

fn figures(estimate: &VramEstimate) -> Vec<Option<u64>> {
    let figures = estimate.figures.iter();
    figures.map(|figure| figure.mib.clone().ok()).collect()
}

#[test]
fn the_first_source_that_answers_is_the_estimate_and_all_are_shown() {
    let (files, settings) = (files(), settings(4096, 1));
    let without = inputs(&files, &settings);
    let header = estimate(&without);
    // 434.24 + 144 + 95 + 450; 434.25 × 1.1 + 144 + 450; 1 billion × 4.89 bits × 1.2 + 450.
    assert_eq!(
        figures(&header),
        [None, None, Some(1124), Some(1072), Some(1150)]
    );
    assert_eq!(header.chosen, Some((EstimateSource::Header, 1124)));
    let measured = EstimateInputs {
        measured_mib: &[9000, 1000, 900, 1000, 800, 700],
        ..without.clone()
    };
    let measured = estimate(&measured);
    assert_eq!(measured.chosen, Some((EstimateSource::Measured, 1094)));
    let manifest = EstimateInputs {
        manifest_mib: Some(2000),
        measured_mib: &[1000],
        ..without.clone()
    };
    let manifest = estimate(&manifest);
    assert_eq!(manifest.chosen, Some((EstimateSource::Manifest, 2000)));
    assert_eq!(
        figures(&manifest),
        [Some(2000), Some(1094), Some(1124), Some(1072), Some(1150)]
    );
    let names: Vec<_> = manifest.figures.iter().map(|it| it.source.name()).collect();
    assert_eq!(names, ["manifest", "measured", "header", "file", "name"]);
}

#[test]
fn a_measurement_beats_a_configured_figure_that_it_exceeds_by_more_than_5_percent() {
    let (files, settings) = (files(), settings(4096, 1));
    let with = |peak: &[u64]| {
        estimate(&EstimateInputs {
            manifest_mib: Some(1000),
            measured_mib: peak,
            ..inputs(&files, &settings)
        })
    };
    let kept = with(&[1050]);
    assert_eq!(
        (kept.chosen, kept.excess),
        (Some((EstimateSource::Manifest, 1000)), None)
    );
    let beaten = with(&[1051]);
    let excess = ManifestExcess {
        manifest_mib: 1000,
        peak_mib: 1051,
    };
    assert_eq!(beaten.chosen, Some((EstimateSource::Measured, 1147)));
    assert_eq!(beaten.excess, Some(excess));
}

#[test]
fn without_a_header_the_size_of_the_files_answers_and_without_files_the_name() {
    let settings = settings(4096, 1);
    let mut broken = files();
    broken.header = Some(Err(HeaderError::NotGguf));
    let by_size = estimate(&inputs(&broken, &settings));
    assert_eq!(by_size.chosen, Some((EstimateSource::File, 928)));
    let unreadable = UnknownFigure::Header(HeaderError::NotGguf);
    assert_eq!(by_size.figures[2].mib, Err(unreadable));
    for (format, expected) in [(FileFormat::Safetensors, 1015), (FileFormat::Other, 972)] {
        let other = ModelFiles {
            format,
            header: None,
            ..files()
        };
        let estimate = estimate(&inputs(&other, &settings));
        assert_eq!(estimate.chosen, Some((EstimateSource::File, expected)));
    }
    let named = EstimateInputs {
        files: None,
        ..inputs(&broken, &settings)
    };
    assert_eq!(estimate(&named).chosen, Some((EstimateSource::Name, 1150)));
    let nothing = EstimateInputs {
        name: "model",
        ..named
    };
    let nothing = estimate(&nothing);
    assert_eq!(nothing.chosen, None);
    assert_eq!(nothing.fit(1 << 40, 1), None);
    for figure in nothing.figures {
        assert!(!figure.mib.unwrap_err().to_string().is_empty());
    }
}

#[test]
fn projector_and_draft_are_added_and_each_device_has_a_context() {
    let both = ModelFiles {
        projector: files().header.unwrap().ok(),
        draft: files().header.unwrap().ok(),
        ..files()
    };
    let split = RunSettings {
        devices: 3,
        ..settings(4096, 1)
    };
    let parts = estimate(&inputs(&both, &split)).parts.unwrap();
    let weights = parts.weights_bytes;
    assert_eq!(parts.projector_bytes, Some(weights));
    assert_eq!(parts.draft_bytes, Some(weights + (144 << 20) + (95 << 20)));
    assert_eq!(parts.context_bytes, Some(1350 << 20));
    let total = 3 * weights + 2 * ((144 << 20) + (95 << 20)) + (1350 << 20);
    assert_eq!(parts.total_bytes(), total);
}

#[test]
fn an_estimate_fits_beside_the_reserve_of_each_device() {
    let (files, settings) = (files(), settings(4096, 1));
    let estimate = estimate(&inputs(&files, &settings));
    let fit = |mib, devices| estimate.fit(mib, devices).unwrap();
    assert_eq!(
        fit(1124 + 512, 1),
        DeviceFit::Fits {
            left_mib: 0,
            reserve_mib: 512
        }
    );
    assert_eq!(
        fit(1124 + 1023, 2),
        DeviceFit::TooLarge {
            missing_mib: 1,
            reserve_mib: 1024
        }
    );
}

#[test]
fn settings_without_measure_saturate() {
    let files = ModelFiles {
        draft: files().header.unwrap().ok(),
        bytes: u64::MAX,
        ..files()
    };
    let settings = RunSettings {
        context: Some(u64::MAX),
        parallel: u64::MAX,
        ubatch: u64::MAX,
        devices: u64::MAX,
        context_mib: u64::MAX,
        ..settings(1, 1)
    };
    let estimate = estimate(&inputs(&files, &settings));
    assert_eq!(
        estimate.chosen,
        Some((EstimateSource::Header, mib(u64::MAX)))
    );
}
