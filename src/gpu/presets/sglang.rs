//! SGLang: takes a share of each device for weights and cache, and more beside it for activations and graphs.
//!
//! Not its API. Options: <https://docs.sglang.io/advanced_features/server_arguments.html>. `--mem-fraction-static` leaves
//! the rest of the device to what is computed: <https://github.com/sgl-project/sglang/issues/4330>. Its key stands among
//! the arguments, where other users of the host can read it, since no variable is documented for it.

use infergate_core::vram::Split;

use super::preset::{
    AdapterOption, EstimateOptions, MemorySource, Preset, Program, ReservedOption,
};

pub(super) const PRESET: Preset = Preset {
    name: "sglang",
    about: "SGLang, for folders with safetensors",
    backends: &["sglang", "openai"],
    program: Program::Named("python3"),
    arguments: &[
        "-m",
        "sglang.launch_server",
        "--model-path",
        "{model_path}",
        "--served-model-name",
        "{model}",
        "--host",
        "{host}",
        "--port",
        "{port}",
        "--mem-fraction-static",
        "{gpu_fraction}",
        "--context-length",
        "{context}",
        "--max-running-requests",
        "{parallel}",
        "--tp-size",
        "{gpu_count}",
        "--api-key",
        "{api_key}",
    ],
    environment: &[],
    split_arguments: &[],
    adapters: Some(AdapterOption {
        arguments: &["--enable-lora", "--lora-paths"],
        is_named: true,
        is_joined: false,
    }),
    ready_path: "/health",
    memory: MemorySource::Share { beside_mib: 2048 },
    estimate: EstimateOptions::NONE,
    split: Split::Equal,
    out_of_memory: &[
        "out of memory",
        "CUDA_ERROR_OUT_OF_MEMORY",
        "failed to allocate",
        "Not enough memory",
    ],
    address_in_use: &["address already in use"],
    sleep: None,
    reserved: &[
        ReservedOption {
            names: &["--host", "--port"],
            allowed: None,
            why: "the gateway chooses the address; set `process.listen` and `gpu.ports`",
        },
        ReservedOption {
            names: &["--mem-fraction-static"],
            allowed: None,
            why: "the lease rules; set `vram.mib`",
        },
        ReservedOption {
            names: &["--context-length"],
            allowed: None,
            why: "set `process.context`",
        },
        ReservedOption {
            names: &["--max-running-requests"],
            allowed: None,
            why: "set `process.parallel`",
        },
        ReservedOption {
            names: &[
                "--tp",
                "--tp-size",
                "--tensor-parallel-size",
                "--dp",
                "--dp-size",
                "--data-parallel-size",
                "--pp-size",
                "--pipeline-parallel-size",
            ],
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
    fn memory_beside_the_share_is_taken_off_it() {
        let line = PRESET.arguments.join(" ");
        for part in [
            "-m sglang.launch_server --model-path {model_path}",
            "--mem-fraction-static {gpu_fraction}",
            "--context-length {context} --max-running-requests {parallel} --tp-size {gpu_count}",
        ] {
            assert!(line.contains(part), "{part}");
        }
        assert_eq!(PRESET.memory, MemorySource::Share { beside_mib: 2048 });
    }
}
