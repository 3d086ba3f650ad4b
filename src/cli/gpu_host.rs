//! `infergate gpu status`, `load`, `unload`, `restart`, `retry`, `pin`, `unpin`, `cordon`, `uncordon`, `drain`, `logs`: the GPU host of a gateway that runs.
//!
//! Decides nothing: each command is one request to the admin listener.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::admin::{self, AdminArgs, AdminTarget, FetchedResponse};
use super::output::{print, problem};

/// Exit status for what the gateway refuses.
pub const REFUSED: u8 = 1;
/// Exit status of a gateway that does not answer.
pub const FAILED: u8 = 2;
/// Between two looks of `--watch`.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Help below the options of these commands.
pub const HELP: &str = "\
Exit codes: 0 shown or accepted, 1 no such model or instance, or not done within --wait, 2 the gateway does not answer.
Examples:
  infergate gpu status                     devices with their memory, and the models on them
  infergate gpu status --watch             the same each second, until it is interrupted
  infergate gpu load qwen-7b               load a model now; idle models make room
  infergate gpu unload qwen-7b             unload it once its requests have ended
  infergate gpu restart qwen-7b --wait 300 replace its processes one after the other, and wait for it
  infergate gpu retry qwen-7b              load a model again that keeps failing
  infergate gpu pin qwen-7b                keep it loaded until `unpin`
  infergate gpu drain GPU-5d5ba0d6         let all models leave a device, and load none there until `uncordon`
  infergate gpu logs qwen-7b               the last lines of its process, also of one that has ended";

/// Place of the gateway.
#[derive(Args)]
pub struct GatewayPlace {
    #[command(flatten)]
    admin: AdminArgs,
    /// The configuration file whose `listen.admin` is asked.
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl GatewayPlace {
    /// Returns the admin listener.
    ///
    /// # Errors
    /// A sentence: a file or the name is no good.
    pub fn target(&self) -> Result<AdminTarget, String> {
        self.admin.target_of(self.config.as_deref())
    }

    /// Asks the admin listener.
    ///
    /// # Errors
    /// A sentence: it does not answer.
    pub fn ask(&self, method: &str, path: &str) -> Result<FetchedResponse, String> {
        let target = self.target()?;
        match method {
            "GET" => admin::get(&target, path),
            _ => admin::post(&target, path),
        }
    }

    fn order(&self, path: &str, wait: u64) -> Result<FetchedResponse, String> {
        let patience = Duration::from_secs(wait);
        admin::post_patiently(
            &self.target()?,
            &format!("{path}?wait_secs={wait}"),
            patience,
        )
    }
}

/// Arguments of `infergate gpu status`.
#[derive(Args)]
pub struct StatusArgs {
    #[command(flatten)]
    place: GatewayPlace,
    /// Show it each second.
    #[arg(long, conflicts_with = "json")]
    watch: bool,
    /// Print what the gateway answers, as JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of an order about a model.
#[derive(Args)]
pub struct OrderArgs {
    #[command(flatten)]
    place: GatewayPlace,
    /// Model, by its id.
    #[arg(value_name = "MODEL")]
    model: String,
    /// Wait until it is done, at most so many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    wait: u64,
}

/// Arguments of an order about a device.
#[derive(Args)]
pub struct DeviceArgs {
    #[command(flatten)]
    place: GatewayPlace,
    /// Device, by its id as `status` names it.
    #[arg(value_name = "DEVICE")]
    device: String,
}

/// Arguments of `infergate gpu logs`.
#[derive(Args)]
pub struct LogsArgs {
    #[command(flatten)]
    place: GatewayPlace,
    /// Model by its id, or instance as `status` names it.
    #[arg(value_name = "MODEL")]
    name: String,
    /// Lines.
    #[arg(long, short = 'n', value_name = "LINES", default_value_t = 100)]
    tail: usize,
}

/// Shows devices and slots.
pub fn status(args: &StatusArgs) -> ExitCode {
    loop {
        let body = match answer(args.place.ask("GET", "/gpu")) {
            Ok(body) => body,
            Err(code) => return code,
        };
        let text = match args.json {
            true => format!("{body:#}\n"),
            false => tables(&body),
        };
        let shown = print(&text);
        if !args.watch || shown != ExitCode::SUCCESS {
            return shown;
        }
        let _ = print("\n");
        std::thread::sleep(WATCH_EVERY);
    }
}

/// Gives an order about a model; `word` is its last part of the path.
pub fn order(word: &str, args: &OrderArgs) -> ExitCode {
    let model = utf8_percent_encode(&args.model, NON_ALPHANUMERIC);
    let path = format!("/gpu/models/{model}/{word}");
    match answer(args.place.order(&path, args.wait)) {
        Ok(body) => {
            let outcome = match body["reached"] == true {
                true => "done",
                false => "accepted",
            };
            print(&format!("{word} {}: {outcome}\n", args.model))
        }
        Err(code) => code,
    }
}

/// Gives an order about a device; `word` is its last part of the path.
pub fn order_device(word: &str, args: &DeviceArgs) -> ExitCode {
    let device = utf8_percent_encode(&args.device, NON_ALPHANUMERIC);
    let path = format!("/gpu/devices/{device}/{word}");
    match answer(args.place.ask("POST", &path)) {
        Ok(_) => print(&format!("{word} {}: accepted\n", args.device)),
        Err(code) => code,
    }
}

/// Shows the last lines of a process.
pub fn logs(args: &LogsArgs) -> ExitCode {
    let report = match answer(args.place.ask("GET", "/gpu")) {
        Ok(report) => report,
        Err(code) => return code,
    };
    let slots = report["slots"].as_array().into_iter().flatten();
    let of_model = slots.filter(|slot| slot["model"] == *args.name);
    let instance = of_model.filter_map(|slot| slot["instance"].as_str()).next();
    let instance = utf8_percent_encode(instance.unwrap_or(&args.name), NON_ALPHANUMERIC);
    let path = format!("/gpu/instances/{instance}/logs?tail={}", args.tail);
    match answer(args.place.ask("GET", &path)) {
        Ok(body) => print(body["log"].as_str().unwrap_or_default()),
        Err(code) => code,
    }
}

/// Returns the body of an answer. A refusal is told, and its exit status returned.
pub fn answer(asked: Result<FetchedResponse, String>) -> Result<Value, ExitCode> {
    match asked {
        Ok(response) => read_answer(response),
        Err(error) => {
            problem(&error);
            Err(ExitCode::from(FAILED))
        }
    }
}

/// Returns the body of a response, as above.
pub fn read_answer(response: FetchedResponse) -> Result<Value, ExitCode> {
    if response.status == 200 {
        return Ok(response.body);
    }
    let text = response.body["error"]
        .as_str()
        .or(response.body["message"].as_str());
    problem(text.unwrap_or("the gateway refuses it"));
    Err(ExitCode::from(match response.status {
        404 | 504 => REFUSED,
        _ => FAILED,
    }))
}

/// Devices and slots as tables.
fn tables(report: &Value) -> String {
    let mut lines = vec![format!(
        "{:<24} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "device", "total MiB", "used", "leased", "outside", "free"
    )];
    let mib = |value: &Value| match value.as_u64() {
        Some(mib) => mib.to_string(),
        None => "unknown".to_owned(),
    };
    for device in report["devices"].as_array().into_iter().flatten() {
        lines.push(format!(
            "{:<24} {:>9} {:>9} {:>9} {:>9} {:>9} {}",
            device["id"].as_str().unwrap_or("?"),
            mib(&device["total_mib"]),
            mib(&device["used_mib"]),
            mib(&device["leased_mib"]),
            mib(&device["outside_mib"]),
            mib(&device["free_mib"]),
            device["closed"].as_str().unwrap_or(""),
        ));
    }
    lines.push(format!(
        "{:<32} {:<10} {:>6} {:>9} {:>7} {}",
        "slot", "state", "loads", "lease MiB", "pid", "note"
    ));
    for slot in report["slots"].as_array().into_iter().flatten() {
        let leases = slot["leases"].as_array().into_iter().flatten();
        let leased: u64 = leases.filter_map(|lease| lease["mib"].as_u64()).sum();
        let pid = slot["pid"].as_u64().filter(|_| leased > 0);
        lines.push(format!(
            "{:<32} {:<10} {:>6} {:>9} {:>7} {}",
            slot["slot"].as_str().unwrap_or("?"),
            slot["state"].as_str().unwrap_or("?"),
            slot["loads"].as_u64().unwrap_or(0),
            leased,
            pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
            note(slot)
        ));
    }
    lines.extend(models_table(report));
    if let Some(trouble) = report["problem"].as_str() {
        lines.push(format!("devices: {trouble}"));
    }
    lines
        .iter()
        .map(|line| format!("{}\n", line.trim_end()))
        .collect()
}

/// Remarks about a slot: its problem, what it is loaded or leaves for, and other files on disk.
fn note(slot: &Value) -> String {
    let update = match (slot["restarts"] == true, slot["update_available"] == true) {
        (true, _) => Some("restarts"),
        (false, true) => Some("update available"),
        _ => None,
    };
    let parts = [slot["problem"].as_str(), slot["reason"].as_str(), update];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Models with requests, in flight or waiting, and those that cannot be loaded now.
fn models_table(report: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    for model in report["models"].as_array().into_iter().flatten() {
        let number = |key: &str| model[key].as_u64().unwrap_or(0);
        let why = model["why_not_loaded"].as_str().unwrap_or("");
        let is_broken = model["broken"] == true;
        if number("waiters") + number("in_flight") == 0 && why.is_empty() && !is_broken {
            continue;
        }
        let why = match is_broken {
            true => "broken",
            false => why,
        };
        lines.push(format!(
            "{:<32} {:>8} {:>9} {:>9.1} {:>9.1} {}",
            model["model"].as_str().unwrap_or("?"),
            number("waiters"),
            number("in_flight"),
            model["debt_request_secs"].as_f64().unwrap_or(0.0),
            number("expected_load_ms") as f64 / 1000.0,
            why
        ));
    }
    if !lines.is_empty() {
        let head = format!(
            "{:<32} {:>8} {:>9} {:>9} {:>9} {}",
            "model with requests", "waiting", "in flight", "debt", "load s", "why not loaded"
        );
        lines.insert(0, head);
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_figures_are_said_and_a_slot_without_memory_has_no_pid() {
        let text = tables(&json!({
            "devices": [{ "id": "sim0", "total_mib": 1000, "used_mib": null, "leased_mib": 5, "outside_mib": 0, "free_mib": null }],
            "slots": [
                { "slot": "m#0", "state": "ready", "loads": 2, "leases": [{ "mib": 5 }], "pid": 7, "update_available": true },
                { "slot": "n#0", "state": "failed", "loads": 0, "leases": [], "pid": 8, "problem": "the process ended" },
            ],
            "models": [
                { "model": "m", "waiters": 0, "in_flight": 0 },
                { "model": "n", "waiters": 3, "debt_request_secs": 4.5, "expected_load_ms": 2000, "why_not_loaded": "turn_not_over" },
            ],
            "problem": "no driver",
        }));
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines[1], ["sim0", "1000", "unknown", "5", "0", "unknown"]);
        assert_eq!(
            lines[3],
            ["m#0", "ready", "2", "5", "7", "update", "available"]
        );
        assert_eq!(
            lines[4],
            ["n#0", "failed", "0", "0", "-", "the", "process", "ended"]
        );
        assert_eq!(lines[5][..3], ["model", "with", "requests"]);
        assert_eq!(lines[6], ["n", "3", "0", "4.5", "2.0", "turn_not_over"]);
        assert_eq!(lines[7], ["devices:", "no", "driver"]);
    }
}
