//! Text Generation Inference: may use a share of each device, and bounds the tokens of a batch.
//!
//! Not its API. Options: <https://huggingface.co/docs/text-generation-inference/reference/launcher>. Two instances that
//! are split over devices need `--master-port` in their arguments: both would take 29500.

use infergate_core::vram::Split;

use super::preset::{
    AdapterOption, EstimateOptions, MemorySource, Preset, Program, ReservedOption,
};

pub(super) const PRESET: Preset = Preset {
    name: "tgi",
    about: "Text Generation Inference, for folders with safetensors",
    backends: &["tgi", "openai"],
    program: Program::Named("text-generation-launcher"),
    arguments: &[
        "--model-id",
        "{model_path}",
        "--hostname",
        "{host}",
        "--port",
        "{port}",
        "--cuda-memory-fraction",
        "{gpu_fraction}",
        "--max-total-tokens",
        "{context}",
        "--max-batch-total-tokens",
        "{context_total}",
        "--max-concurrent-requests",
        "{parallel}",
        "--num-shard",
        "{gpu_count}",
        // One path for all by default, by which two instances would meet.
        "--shard-uds-path",
        "{socket}",
    ],
    environment: &[("API_KEY", "{api_key}")],
    split_arguments: &[],
    adapters: Some(AdapterOption {
        arguments: &["--lora-adapters"],
        is_named: true,
        is_joined: true,
    }),
    ready_path: "/health",
    memory: MemorySource::Share { beside_mib: 0 },
    estimate: EstimateOptions::NONE,
    split: Split::Equal,
    out_of_memory: &[
        "out of memory",
        "CUDA_ERROR_OUT_OF_MEMORY",
        "failed to allocate",
        "Not enough memory to handle",
    ],
    address_in_use: &["address already in use"],
    sleep: None,
    reserved: &[
        ReservedOption {
            names: &["--hostname", "--port", "-p", "--shard-uds-path"],
            allowed: None,
            why: "the gateway chooses the address; set `process.listen` and `gpu.ports`",
        },
        ReservedOption {
            names: &["--cuda-memory-fraction"],
            allowed: None,
            why: "the lease rules; set `vram.mib`",
        },
        ReservedOption {
            names: &["--max-total-tokens", "--max-batch-total-tokens"],
            allowed: None,
            why: "set `process.context` and `process.parallel`",
        },
        ReservedOption {
            names: &["--max-concurrent-requests"],
            allowed: None,
            why: "set `process.parallel`",
        },
        ReservedOption {
            names: &["--num-shard", "--sharded"],
            allowed: None,
            why: "the placement decides on the devices; set `vram.split`",
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
    fn a_batch_has_the_tokens_of_all_requests_and_instances_have_sockets_of_their_own() {
        let line = PRESET.arguments.join(" ");
        for part in [
            "--model-id {model_path} --hostname {host} --port {port}",
            "--cuda-memory-fraction {gpu_fraction}",
            "--max-total-tokens {context} --max-batch-total-tokens {context_total}",
            "--num-shard {gpu_count} --shard-uds-path {socket}",
        ] {
            assert!(line.contains(part), "{part}");
        }
    }
}
