//! vLLM: takes a share of each device, and can sleep.
//!
//! Not its API. Options: <https://docs.vllm.ai/en/latest/cli/serve/>; sleep:
//! <https://docs.vllm.ai/en/latest/features/sleep_mode/>. `--api-key` guards `/v1` alone, so the routes of sleep are open
//! to every process that reaches the port: <https://docs.vllm.ai/en/stable/usage/security/>.

use infergate_core::model::SleepLevel;
use infergate_core::vram::Split;

use super::preset::{
    AdapterOption, EstimateOptions, HttpCall, MemorySource, Preset, Program, ReservedOption,
    SleepLevelCalls, SleepSupport,
};

pub(super) const PRESET: Preset = Preset {
    name: "vllm",
    about: "vLLM, for folders with safetensors",
    backends: &["vllm", "openai"],
    program: Program::Named("vllm"),
    arguments: &[
        "serve",
        "{model_path}",
        "--served-model-name",
        "{model}",
        "--host",
        "{host}",
        "--port",
        "{port}",
        "--gpu-memory-utilization",
        "{gpu_fraction}",
        "--max-model-len",
        "{context}",
        "--max-num-seqs",
        "{parallel}",
        "--tensor-parallel-size",
        "{gpu_count}",
    ],
    environment: &[("VLLM_API_KEY", "{api_key}")],
    split_arguments: &[],
    adapters: Some(AdapterOption {
        arguments: &["--enable-lora", "--lora-modules"],
        is_named: true,
        is_joined: false,
    }),
    ready_path: "/health",
    memory: MemorySource::Share { beside_mib: 0 },
    estimate: EstimateOptions::NONE,
    split: Split::Equal,
    out_of_memory: &[
        "out of memory",
        "CUDA_ERROR_OUT_OF_MEMORY",
        "failed to allocate",
        "No available memory for the cache blocks",
        "is less than desired GPU memory utilization",
        "is larger than the available KV cache memory",
        "tokens that can be stored in KV cache",
    ],
    address_in_use: &["address already in use"],
    sleep: Some(SleepSupport {
        arguments: &["--enable-sleep-mode"],
        environment: &[("VLLM_SERVER_DEV_MODE", "1")],
        levels: &[
            SleepLevelCalls {
                level: SleepLevel::Weights,
                sleep: &[HttpCall {
                    path: "/sleep?level=1",
                    body: None,
                }],
                wake: &[HttpCall {
                    path: "/wake_up",
                    body: None,
                }],
            },
            SleepLevelCalls {
                level: SleepLevel::Dropped,
                sleep: &[HttpCall {
                    path: "/sleep?level=2",
                    body: None,
                }],
                // Memory of the cache comes last: weights need theirs first.
                wake: &[
                    HttpCall {
                        path: "/wake_up?tags=weights",
                        body: None,
                    },
                    HttpCall {
                        path: "/collective_rpc",
                        body: Some(r#"{"method":"reload_weights"}"#),
                    },
                    HttpCall {
                        path: "/wake_up?tags=kv_cache",
                        body: None,
                    },
                ],
            },
        ],
        state_path: "/is_sleeping",
    }),
    reserved: &[
        ReservedOption {
            names: &["--host", "--port", "--uds"],
            allowed: None,
            why: "the gateway chooses the address; set `process.listen` and `gpu.ports`",
        },
        ReservedOption {
            names: &["--gpu-memory-utilization", "--kv-cache-memory-bytes"],
            allowed: None,
            why: "the lease rules; set `vram.mib`",
        },
        ReservedOption {
            names: &["--max-model-len"],
            allowed: None,
            why: "set `process.context`",
        },
        ReservedOption {
            names: &["--max-num-seqs"],
            allowed: None,
            why: "set `process.parallel`",
        },
        ReservedOption {
            names: &[
                "--tensor-parallel-size",
                "-tp",
                "--pipeline-parallel-size",
                "-pp",
                "--data-parallel-size",
                "-dp",
            ],
            allowed: None,
            why: "the placement decides on the devices; set `vram.split`",
        },
        ReservedOption {
            names: &["--api-key"],
            allowed: None,
            why: "each instance gets a key of its own",
        },
        ReservedOption {
            names: &["--enable-sleep-mode"],
            allowed: None,
            why: "set `process.sleep`",
        },
    ],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lease_is_its_share_and_requests_bound_its_batch() {
        let line = PRESET.arguments.join(" ");
        assert!(line.starts_with("serve {model_path} "), "{line}");
        for part in [
            "--gpu-memory-utilization {gpu_fraction}",
            "--max-model-len {context} --max-num-seqs {parallel}",
            "--tensor-parallel-size {gpu_count}",
        ] {
            assert!(line.contains(part), "{part}");
        }
    }

    #[test]
    fn dropped_weights_are_read_before_the_cache_has_its_memory_again() {
        let sleep = PRESET.sleep.as_ref().unwrap();
        assert_eq!(sleep.environment, [("VLLM_SERVER_DEV_MODE", "1")]);
        let [light, deep] = sleep.levels else {
            panic!("two levels")
        };
        assert_eq!(light.level, SleepLevel::Weights);
        let wake: Vec<&str> = deep.wake.iter().map(|call| call.path).collect();
        assert_eq!(
            wake,
            [
                "/wake_up?tags=weights",
                "/collective_rpc",
                "/wake_up?tags=kv_cache"
            ]
        );
    }
}
