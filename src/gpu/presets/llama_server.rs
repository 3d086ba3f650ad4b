//! llama-server of llama.cpp: one GGUF model, its cache shared out over slots of fixed size.
//!
//! Not its API, which the backend of the same name speaks.
//! Options: <https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md>

use infergate_core::vram::Split;

use super::preset::{
    AdapterOption, EstimateOptions, MemorySource, Preset, Program, ReservedOption,
};

pub(super) const PRESET: Preset = Preset {
    name: "llama-server",
    about: "llama.cpp's server, for GGUF files",
    backends: &["llama-server", "openai"],
    program: Program::Named("llama-server"),
    arguments: &[
        "-m",
        "{model_path}",
        "--alias",
        "{model}",
        "--host",
        "{host}",
        "--port",
        "{port}",
        // The cache is shared out: each of `-np` slots has `-c` ÷ `-np` tokens.
        "-c",
        "{context_total}",
        "-np",
        "{parallel}",
        "-ngl",
        "999",
        // On by default, and then fewer layers or tokens are a silent answer to a lack of memory.
        "--fit",
        "off",
        // 8 GiB of the host's memory by default.
        "--cache-ram",
        "0",
        "--metrics",
    ],
    environment: &[("LLAMA_API_KEY", "{api_key}")],
    split_arguments: &["--tensor-split", "{tensor_split}"],
    adapters: Some(AdapterOption {
        arguments: &["--lora"],
        is_named: false,
        is_joined: true,
    }),
    ready_path: "/health",
    memory: MemorySource::Header,
    estimate: EstimateOptions {
        ubatch: &["-ub", "--ubatch-size"],
        key_type: &["-ctk", "--cache-type-k"],
        value_type: &["-ctv", "--cache-type-v"],
        projector: &["-mm", "--mmproj"],
        draft: &["-md", "--model-draft", "--spec-draft-model"],
    },
    split: Split::Proportional,
    out_of_memory: &[
        "out of memory",
        "cudaMalloc failed",
        "CUDA_ERROR_OUT_OF_MEMORY",
        "failed to allocate",
    ],
    address_in_use: &["couldn't bind HTTP server socket", "address already in use"],
    sleep: None,
    reserved: &[
        ReservedOption {
            names: &["-fit", "--fit"],
            allowed: Some("off"),
            why: "it changes layers and context by the free memory of the moment, so that no estimate holds",
        },
        ReservedOption {
            names: &["--host", "--port", "--reuse-port"],
            allowed: None,
            why: "the gateway chooses the address; set `process.listen` and `gpu.ports`",
        },
        ReservedOption {
            names: &["-c", "--ctx-size", "--kv-unified-per-slot"],
            allowed: None,
            why: "set `process.context`, the tokens of one request",
        },
        ReservedOption {
            names: &["-np", "--parallel"],
            allowed: None,
            why: "set `process.parallel`",
        },
        ReservedOption {
            names: &["--api-key", "--api-key-file"],
            allowed: None,
            why: "each instance gets a key of its own",
        },
        ReservedOption {
            names: &[
                "-m",
                "--model",
                "-mu",
                "--model-url",
                "-hf",
                "-hfr",
                "--hf-repo",
            ],
            allowed: None,
            why: "set `process.model_path`: only files of this host are estimated",
        },
        ReservedOption {
            names: &["--models-dir", "--models-preset"],
            allowed: None,
            why: "a server that loads models itself takes memory without a lease: write a model for each",
        },
    ],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_sized_for_all_slots_and_nothing_shrinks_by_itself() {
        let line = PRESET.arguments.join(" ");
        assert!(line.starts_with("-m {model_path}"), "{line}");
        for part in [
            "--host {host} --port {port}",
            "-c {context_total} -np {parallel}",
            "--fit off --cache-ram 0 --metrics",
        ] {
            assert!(line.contains(part), "{part}");
        }
        assert_eq!(PRESET.split_arguments, ["--tensor-split", "{tensor_split}"]);
    }
}
