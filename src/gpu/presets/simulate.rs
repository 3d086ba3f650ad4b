//! The simulator of this program: a server without a model, on a simulated card.
//!
//! For tests and demonstrations: it takes exactly its lease.

use infergate_core::model::SleepLevel;
use infergate_core::vram::Split;

use super::preset::{
    EstimateOptions, HttpCall, MemorySource, Preset, Program, ReservedOption, SleepLevelCalls,
    SleepSupport,
};

pub(super) const PRESET: Preset = Preset {
    name: "simulate",
    about: "simulated server on a simulated card",
    backends: &["openai"],
    program: Program::Gateway,
    arguments: &[
        "simulate",
        "--address",
        "{host}:{port}",
        "--concurrency",
        "{parallel}",
        "--vram-card",
        "{gpu_uuids}",
        "--vram-mib",
        "{vram_mib}",
    ],
    environment: &[],
    split_arguments: &[],
    adapters: None,
    ready_path: "/health",
    memory: MemorySource::Fixed,
    estimate: EstimateOptions::NONE,
    split: Split::Never,
    out_of_memory: &["out of memory"],
    address_in_use: &["address already in use", "address in use"],
    sleep: Some(SleepSupport {
        arguments: &["--sleepable"],
        environment: &[],
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
                wake: &[HttpCall {
                    path: "/wake_up",
                    body: None,
                }],
            },
        ],
        state_path: "/is_sleeping",
    }),
    reserved: &[
        ReservedOption {
            names: &["--address"],
            allowed: None,
            why: "the gateway chooses the address; set `process.listen` and `gpu.ports`",
        },
        ReservedOption {
            names: &["--vram-card", "--vram-mib"],
            allowed: None,
            why: "the lease rules; set `vram.mib`",
        },
        ReservedOption {
            names: &["--sleepable"],
            allowed: None,
            why: "set `process.sleep`",
        },
        ReservedOption {
            names: &["--concurrency"],
            allowed: None,
            why: "set `process.parallel`",
        },
    ],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulated_server_takes_its_lease_of_the_card_that_it_is_given() {
        assert_eq!(
            PRESET.arguments.join(" "),
            "simulate --address {host}:{port} --concurrency {parallel} --vram-card {gpu_uuids} --vram-mib {vram_mib}"
        );
    }
}
