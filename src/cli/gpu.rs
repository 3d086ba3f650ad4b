//! `infergate gpu`: the device memory of models, the leases on it, and processes of models.
//!
//! The commands themselves are in files of their own.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::gpu_estimate::{self, EstimateArgs};
use super::gpu_host::{self, DeviceArgs, LogsArgs, OrderArgs, StatusArgs};
use super::gpu_leases::{self, LeasesArgs};
use super::gpu_presets::{self, PresetsArgs};
use super::gpu_sweep::{self, SweepArgs};
use super::gpu_trace::{self, TraceArgs};

/// Help below the options of `infergate gpu`.
pub const HELP: &str = "\
Examples:
  infergate gpu status                     devices with their memory, and the models on them
  infergate gpu estimate model.gguf --context 8192 --parallel 4 --device-mib 24576
  infergate gpu presets llama-server       what the gateway runs for a model server that it knows
  infergate gpu leases                     who has how much of which device, and who waits
  infergate gpu leases release l-4690-0    free a lease whose holder is gone
  infergate gpu sweep --config infergate.yaml    end what a gateway that is gone has left
  infergate gpu trace lifecycle.jsonl      what the other swap policy would have cost on a recorded day";

/// Arguments of `infergate gpu`.
#[derive(Args)]
pub struct GpuArgs {
    #[command(subcommand)]
    what: GpuCommand,
}

#[derive(Subcommand)]
enum GpuCommand {
    /// Estimate the device memory of a model from its files: every source with its figure, and the parts.
    #[command(after_help = gpu_estimate::HELP)]
    Estimate(EstimateArgs),
    /// Show devices with their memory, and the models on them, of a gateway that runs.
    #[command(after_help = gpu_host::HELP)]
    Status(StatusArgs),
    /// Load a model now.
    #[command(after_help = gpu_host::HELP)]
    Load(OrderArgs),
    /// Unload a model once its requests have ended.
    #[command(after_help = gpu_host::HELP)]
    Unload(OrderArgs),
    /// Replace the processes of a model one after the other.
    #[command(after_help = gpu_host::HELP)]
    Restart(OrderArgs),
    /// Load a model again that keeps failing.
    #[command(after_help = gpu_host::HELP)]
    Retry(OrderArgs),
    /// Keep a model loaded.
    #[command(after_help = gpu_host::HELP)]
    Pin(OrderArgs),
    /// Take the pin of a model back.
    #[command(after_help = gpu_host::HELP)]
    Unpin(OrderArgs),
    /// Load nothing on a device any more; what is there stays. Stands until `uncordon`, also over restarts.
    #[command(after_help = gpu_host::HELP)]
    Cordon(DeviceArgs),
    /// Load on a device again.
    #[command(after_help = gpu_host::HELP)]
    Uncordon(DeviceArgs),
    /// Load nothing on a device, and let its models leave once their requests have ended.
    #[command(after_help = gpu_host::HELP)]
    Drain(DeviceArgs),
    /// Show the last lines that a model's process has written.
    #[command(after_help = gpu_host::HELP)]
    Logs(LogsArgs),
    /// Show leases and claims, and free leases whose holder is gone.
    #[command(after_help = gpu_leases::HELP)]
    Leases(LeasesArgs),
    /// End the model processes that a gateway which is gone has left.
    #[command(after_help = gpu_sweep::HELP)]
    Sweep(SweepArgs),
    /// Show the model servers that the gateway knows: their commands, messages and options.
    #[command(after_help = gpu_presets::HELP)]
    Presets(PresetsArgs),
    /// Replay recorded lifecycle files: what another policy, other settings or another card would have cost.
    #[command(after_help = gpu_trace::HELP)]
    Trace(TraceArgs),
}

/// Runs a command about devices.
pub fn run(args: &GpuArgs) -> ExitCode {
    match &args.what {
        GpuCommand::Estimate(args) => gpu_estimate::run(args),
        GpuCommand::Status(args) => gpu_host::status(args),
        GpuCommand::Load(args) => gpu_host::order("load", args),
        GpuCommand::Unload(args) => gpu_host::order("unload", args),
        GpuCommand::Restart(args) => gpu_host::order("restart", args),
        GpuCommand::Retry(args) => gpu_host::order("retry", args),
        GpuCommand::Pin(args) => gpu_host::order("pin", args),
        GpuCommand::Unpin(args) => gpu_host::order("unpin", args),
        GpuCommand::Cordon(args) => gpu_host::order_device("cordon", args),
        GpuCommand::Uncordon(args) => gpu_host::order_device("uncordon", args),
        GpuCommand::Drain(args) => gpu_host::order_device("drain", args),
        GpuCommand::Logs(args) => gpu_host::logs(args),
        GpuCommand::Leases(args) => gpu_leases::run(args),
        GpuCommand::Sweep(args) => gpu_sweep::run(args),
        GpuCommand::Presets(args) => gpu_presets::run(args),
        GpuCommand::Trace(args) => gpu_trace::run(args),
    }
}
