//! Text Embeddings Inference: one model on one device, which takes what its files and a batch need.
//!
//! Not its API. Options: <https://huggingface.co/docs/text-embeddings-inference/cli_arguments>. A request with many inputs
//! counts as many there, so that its own limit of requests stays as it is.

use infergate_core::vram::Split;

use super::preset::{EstimateOptions, MemorySource, Preset, Program, ReservedOption};

pub(super) const PRESET: Preset = Preset {
    name: "tei",
    about: "Text Embeddings Inference",
    backends: &["tei", "openai"],
    program: Program::Named("text-embeddings-router"),
    arguments: &[
        "--model-id",
        "{model_path}",
        "--hostname",
        "{host}",
        "--port",
        "{port}",
        // One path for all by default, by which two instances would meet.
        "--uds-path",
        "{socket}",
    ],
    environment: &[("API_KEY", "{api_key}")],
    split_arguments: &[],
    adapters: None,
    ready_path: "/health",
    memory: MemorySource::File,
    estimate: EstimateOptions::NONE,
    split: Split::Never,
    out_of_memory: &[
        "out of memory",
        "CUDA_ERROR_OUT_OF_MEMORY",
        "failed to allocate",
    ],
    address_in_use: &["address already in use", "Could not bind TCP Listener"],
    sleep: None,
    reserved: &[
        ReservedOption {
            names: &["--hostname", "--port", "-p", "--uds-path"],
            allowed: None,
            why: "the gateway chooses the address; set `process.listen` and `gpu.ports`",
        },
        ReservedOption {
            names: &["--api-key"],
            allowed: None,
            why: "each instance gets a key of its own",
        },
    ],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_has_an_address_a_socket_and_a_key_of_its_own() {
        assert_eq!(
            PRESET.arguments.join(" "),
            "--model-id {model_path} --hostname {host} --port {port} --uds-path {socket}"
        );
        assert_eq!(PRESET.environment, [("API_KEY", "{api_key}")]);
    }
}
