//! Table of the presets.
//!
//! Not their rows, which stand in the files of the servers.

use super::preset::Preset;
use super::{llama_server, sglang, simulate, tei, tgi, vllm};

/// Presets, in the order of the documentation.
pub const PRESETS: &[&Preset] = &[
    &llama_server::PRESET,
    &vllm::PRESET,
    &sglang::PRESET,
    &tgi::PRESET,
    &tei::PRESET,
    &simulate::PRESET,
];

/// Returns the preset of this name.
pub fn preset(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|preset| preset.name == name).copied()
}

#[cfg(test)]
mod tests {
    use super::super::placeholder::{TemplatePiece, template_pieces};
    use super::*;
    use crate::upstream::backend;

    #[test]
    fn every_preset_has_a_backend_messages_and_known_placeholders() {
        for preset in PRESETS {
            let name = preset.name;
            assert!(
                preset.backends.iter().all(|name| backend(name).is_some()),
                "{name}"
            );
            assert!(!preset.backends.is_empty(), "{name}");
            assert!(!preset.out_of_memory.is_empty(), "{name}");
            assert!(!preset.address_in_use.is_empty(), "{name}");
            assert!(preset.ready_path.starts_with('/'), "{name}");
            let arguments = preset.arguments.iter().chain(preset.split_arguments);
            let pieces: Vec<_> = arguments
                .flat_map(|argument| template_pieces(argument).unwrap())
                .collect();
            for needed in ["host", "port"] {
                assert!(
                    pieces.contains(&TemplatePiece::Placeholder(needed)),
                    "{name} {needed}"
                );
            }
        }
    }

    /// An option that the gateway writes must not be written by an operator too: the last one would win.
    #[test]
    fn options_of_the_template_that_bound_memory_or_address_are_reserved() {
        let is_bound = |value: &str| {
            let bounds = [
                "{port}",
                "{host}",
                "{gpu_fraction}",
                "{gpu_count}",
                "{vram_mib}",
                "{context",
                "{parallel}",
                "{api_key}",
                "{socket}",
            ];
            bounds.iter().any(|bound| value.contains(bound))
        };
        for preset in PRESETS {
            for pair in preset.arguments.windows(2) {
                if pair[0].starts_with('-') && is_bound(pair[1]) {
                    let is_reserved = preset
                        .reserved
                        .iter()
                        .any(|reserved| reserved.names.contains(&pair[0]));
                    assert!(is_reserved, "{} {}", preset.name, pair[0]);
                }
            }
        }
    }
}
