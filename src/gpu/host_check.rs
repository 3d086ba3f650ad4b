//! Check of a GPU host before it runs: devices, estimates, where models fit, and which fit together.
//!
//! Takes no lease and changes nothing. Devices of a driver are listed, not sampled: what others use now is no fault of a
//! configuration.

use std::fmt::Write;

use infergate_core::ModelId;
use infergate_core::model::ModelSpec;
use infergate_core::vram::{
    DeviceInfo, DeviceRoom, DeviceShare, HostPlan, PlannedModel, PlannedPlace, plan_host,
};
use serde_json::{Value, json};

use super::config::{DeviceKindChoice, GpuConfig};
use super::device::{DeviceError, DeviceSource, NvmlDevices, RamDevice, described_cards};
use super::managed::{ManagedEstimate, estimate_managed};

/// Result of the check.
#[derive(Debug)]
pub struct HostCheck {
    devices: Vec<CheckedDevice>,
    /// Reason why there are none.
    no_devices: Option<String>,
    /// Without a driver the gateway does not start.
    needs_driver: bool,
    models: Vec<CheckedModel>,
    plan: HostPlan,
}

#[derive(Debug)]
struct CheckedDevice {
    info: DeviceInfo,
    reserve_mib: u64,
}

#[derive(Debug)]
struct CheckedModel {
    /// Place among all models of the configuration.
    at: usize,
    estimate: ManagedEstimate,
}

/// Finding about a key of the configuration.
#[derive(Debug, PartialEq, Eq)]
pub struct HostFinding {
    /// Path of the key.
    pub path: String,
    /// Fault and remedy.
    pub message: String,
    /// The configuration cannot work; else probably not what is meant.
    pub is_error: bool,
}

/// Checks the models with a process; none without any.
pub fn check_host(models: &[ModelSpec], gpu: &GpuConfig) -> Option<HostCheck> {
    let managed = models.iter().enumerate();
    let managed = managed.filter_map(|(at, spec)| {
        let estimate = estimate_managed(spec, gpu, &[])?;
        Some(CheckedModel { at, estimate })
    });
    let managed: Vec<CheckedModel> = managed.collect();
    if managed.is_empty() {
        return None;
    }
    let (listed, no_devices) = match devices(gpu) {
        Ok(devices) => (devices, None),
        Err(error) => (Vec::new(), Some(error.what)),
    };
    let used = listed
        .into_iter()
        .filter(|info| gpu.uses(info.id.as_str(), info.index));
    let devices: Vec<CheckedDevice> = used
        .map(|info| CheckedDevice {
            reserve_mib: gpu.reserve_of(info.id.as_str()),
            info,
        })
        .collect();
    let planned = managed.iter().map(|model| model.estimate.planned.clone());
    let planned: Vec<PlannedModel> = planned.collect();
    let rooms: Vec<DeviceRoom> = devices.iter().map(CheckedDevice::room).collect();
    Some(HostCheck {
        plan: plan_host(&planned, &rooms),
        devices,
        no_devices,
        needs_driver: gpu.devices == DeviceKindChoice::Nvml,
        models: managed,
    })
}

/// Lists the devices of the configuration.
fn devices(gpu: &GpuConfig) -> Result<Vec<DeviceInfo>, DeviceError> {
    match gpu.devices {
        DeviceKindChoice::Auto | DeviceKindChoice::Nvml => NvmlDevices::load()?.list(),
        DeviceKindChoice::Ram => RamDevice::new(Vec::new()).list(),
        DeviceKindChoice::Simulated => Ok(described_cards(&gpu.simulated.cards)),
        DeviceKindChoice::None => Ok(Vec::new()),
    }
}

impl CheckedDevice {
    fn room(&self) -> DeviceRoom {
        let room_mib = self.info.total_mib.saturating_sub(self.reserve_mib);
        DeviceRoom {
            id: self.info.id.clone(),
            index: self.info.index,
            kind: self.info.kind,
            name: self.info.name.clone(),
            empty_mib: room_mib,
            free_mib: room_mib,
            residents: 0,
        }
    }
}

impl CheckedModel {
    fn id(&self) -> &ModelId {
        &self.estimate.planned.model.id
    }

    fn path(&self, key: &str) -> String {
        format!("models[{}].{key}", self.at)
    }
}

impl HostCheck {
    /// Returns what is wrong or odd. Places are judged only where there are devices.
    pub fn findings(&self) -> Vec<HostFinding> {
        let mut findings = Vec::new();
        let unloadable = self.no_devices.iter().filter(|_| self.needs_driver);
        findings.extend(unloadable.map(|why| HostFinding {
            path: "gpu.devices".to_owned(),
            message: format!(
                "{why}: the gateway does not start here, write `auto` to start without devices"
            ),
            is_error: false,
        }));
        for (nth, model) in self.models.iter().enumerate() {
            let notes = model.estimate.notes.iter();
            findings.extend(notes.map(|note| HostFinding {
                path: model.path("process.model_path"),
                message: note.clone(),
                is_error: false,
            }));
            if !self.devices.is_empty() {
                findings.extend(self.finding_of_place(nth, model));
            }
        }
        findings
    }

    fn finding_of_place(&self, nth: usize, model: &CheckedModel) -> Option<HostFinding> {
        if self.plan.pins_without_room.contains(&nth) {
            let others = self.models.iter().enumerate();
            let others =
                others.filter(|(other, model)| *other != nth && model.estimate.planned.model.pin);
            let others: Vec<&str> = others.map(|(_, model)| model.id().as_str()).collect();
            let beside = match &others[..] {
                [] => String::new(),
                _ => format!(" beside the pinned {}", others.join(", ")),
            };
            return Some(HostFinding {
                path: model.path("pin"),
                message: format!(
                    "no device has room for it{beside}: a pinned model is never unloaded, unpin one or make it smaller"
                ),
                is_error: true,
            });
        }
        let message = match &self.plan.places[nth] {
            PlannedPlace::DoesNotFit { largest_mib } => format!(
                "{} MiB do not fit, the largest device has room for {largest_mib}: lower `context` or `parallel`, or \
                 take smaller weights",
                model.estimate.planned.mib.unwrap_or(0)
            ),
            PlannedPlace::Refused => {
                "its memory is not known, and `vram.unknown` is `refuse`: set `vram.mib`".to_owned()
            }
            PlannedPlace::Exclusive(_) => {
                "its memory is not known, so that it runs alone on a device: set `vram.mib`"
                    .to_owned()
            }
            PlannedPlace::Fits(_) => return None,
        };
        Some(HostFinding {
            path: model.path("vram.mib"),
            message,
            is_error: false,
        })
    }

    /// Returns the check as text, a line each.
    pub fn text(&self) -> String {
        let mut out = "devices\n".to_owned();
        if self.devices.is_empty() {
            let why = self.no_devices.as_deref();
            let why = why.unwrap_or("none are configured");
            let _ = writeln!(out, "  none: {why}");
        }
        for device in &self.devices {
            let _ = writeln!(
                out,
                "  {:<30} {:>9} MiB, {} reserved",
                device.info.id.as_str(),
                device.info.total_mib,
                device.reserve_mib
            );
        }
        out += "models\n";
        for (nth, model) in self.models.iter().enumerate() {
            let _ = writeln!(
                out,
                "  {:<30} {}{}",
                model.id().as_str(),
                memory_text(&model.estimate),
                self.place_text(nth)
            );
        }
        if !self.plan.together.is_empty() {
            out += "together\n";
        }
        for set in &self.plan.together {
            let _ = writeln!(out, "  {}", self.ids(set).join(" + "));
        }
        if self.plan.is_cut {
            out += "  and other sets\n";
        }
        out
    }

    fn place_text(&self, nth: usize) -> String {
        if self.devices.is_empty() {
            return String::new();
        }
        let pin = match self.models[nth].estimate.planned.model.pin {
            true => ", pinned",
            false => "",
        };
        match &self.plan.places[nth] {
            PlannedPlace::Fits(shares) => format!(", on {}{pin}", shares_text(shares)),
            PlannedPlace::Exclusive(share) => format!(", alone on {}{pin}", share.device),
            PlannedPlace::Refused => ", refused".to_owned(),
            PlannedPlace::DoesNotFit { largest_mib } => {
                format!(", does not fit: the largest device has room for {largest_mib}")
            }
        }
    }

    fn ids(&self, set: &[usize]) -> Vec<&str> {
        set.iter()
            .map(|nth| self.models[*nth].id().as_str())
            .collect()
    }

    /// Returns the check as JSON.
    pub fn json(&self) -> Value {
        let devices = self.devices.iter().map(|device| {
            json!({
                "id": device.info.id.as_str(),
                "total_mib": device.info.total_mib,
                "reserve_mib": device.reserve_mib,
            })
        });
        let models = self.models.iter().zip(&self.plan.places);
        let models = models.map(|(model, place)| {
            let planned = &model.estimate.planned;
            json!({
                "id": model.id().as_str(),
                "estimate_mib": planned.mib,
                "source": model.estimate.source.map(|source| source.name()),
                "pin": planned.model.pin,
                "place": place_name(place),
                "shares": shares_of(place).iter().map(|share| {
                    json!({ "device": share.device.as_str(), "mib": share.mib })
                }).collect::<Vec<_>>(),
            })
        });
        let together = self.plan.together.iter().map(|set| self.ids(set));
        json!({
            "devices": devices.collect::<Vec<_>>(),
            "models": models.collect::<Vec<_>>(),
            "together": together.collect::<Vec<_>>(),
            "together_is_cut": self.plan.is_cut,
        })
    }
}

fn memory_text(estimate: &ManagedEstimate) -> String {
    match (estimate.planned.mib, estimate.source) {
        (Some(mib), Some(source)) => format!("{mib:>9} MiB by {}", source.name()),
        _ => format!("{:>9} MiB", "unknown"),
    }
}

fn shares_text(shares: &[DeviceShare]) -> String {
    match shares {
        [share] => share.device.to_string(),
        shares => {
            let each = shares.iter();
            let each = each.map(|share| format!("{} ({} MiB)", share.device, share.mib));
            each.collect::<Vec<_>>().join(" and ")
        }
    }
}

fn shares_of(place: &PlannedPlace) -> &[DeviceShare] {
    match place {
        PlannedPlace::Fits(shares) => shares,
        PlannedPlace::Exclusive(share) => std::slice::from_ref(share),
        PlannedPlace::Refused | PlannedPlace::DoesNotFit { .. } => &[],
    }
}

fn place_name(place: &PlannedPlace) -> &'static str {
    match place {
        PlannedPlace::Fits(_) => "fits",
        PlannedPlace::Exclusive(_) => "exclusive",
        PlannedPlace::Refused => "refused",
        PlannedPlace::DoesNotFit { .. } => "does_not_fit",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu() -> GpuConfig {
        let text =
            r#"{"devices":"simulated","simulated":{"cards":[{"name":"sim0","total_mib":24576}]}}"#;
        serde_json::from_str(text).unwrap()
    }

    fn model(id: &str, mib: u64, more: &str) -> ModelSpec {
        let text = format!(
            r#"{{"id":"{id}","task":"text-generation","backend":"openai","process":{{"preset":"simulate"}},"vram":{{"mib":{mib}}}{more}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_configuration_without_processes_is_not_checked() {
        let text = r#"{"id":"m","task":"text-generation","backend":"openai"}"#;
        assert!(check_host(&[serde_json::from_str(text).unwrap()], &gpu()).is_none());
    }

    #[test]
    fn the_text_says_what_fits_where_and_what_fits_together() {
        let models = [
            model("a", 14_000, ""),
            model("b", 12_000, r#","pin":true"#),
            model("c", 9000, ""),
            model("d", 30_000, ""),
        ];
        let check = check_host(&models, &gpu()).unwrap();
        let text = check.text();
        let lines: Vec<String> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            lines,
            [
                "devices",
                "sim0 24576 MiB, 512 reserved",
                "models",
                "a 14000 MiB by manifest, on sim0",
                "b 12000 MiB by manifest, on sim0, pinned",
                "c 9000 MiB by manifest, on sim0",
                "d 30000 MiB by manifest, does not fit: the largest device has room for 24064",
                "together",
                "a + c",
                "b + c",
            ]
        );
        let findings = check.findings();
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(findings[0].path, "models[3].vram.mib");
        assert!(!findings[0].is_error);
        let json = check.json();
        assert_eq!(json["together"], json!([["a", "c"], ["b", "c"]]));
        assert_eq!(json["models"][3]["place"], "does_not_fit");
        assert_eq!(json["models"][0]["shares"][0]["device"], "sim0");
    }

    #[test]
    fn pins_that_do_not_fit_together_are_an_error() {
        let pin = r#","pin":true"#;
        let models = [model("a", 14_000, pin), model("b", 12_000, pin)];
        let findings = check_host(&models, &gpu()).unwrap().findings();
        let [finding] = &findings[..] else {
            panic!("{findings:?}")
        };
        assert!(finding.is_error);
        assert_eq!(finding.path, "models[1].pin");
        assert!(finding.message.contains("beside the pinned a"));
    }

    #[test]
    fn without_devices_nothing_is_said_of_places() {
        let config = GpuConfig {
            devices: DeviceKindChoice::None,
            ..gpu()
        };
        let check = check_host(&[model("a", 99_000, r#","pin":true"#)], &config).unwrap();
        assert_eq!(check.findings(), []);
        assert!(check.text().contains("none: none are configured"));
    }

    #[test]
    fn memory_of_the_host_is_a_device() {
        let config = GpuConfig {
            devices: DeviceKindChoice::Ram,
            reserve_mib: 0,
            ..gpu()
        };
        let check = check_host(&[model("a", 1, "")], &config).unwrap();
        assert_eq!(check.json()["models"][0]["place"], "fits");
    }
}
