//! Settings of the GPU host: devices, memory, ports, swaps, ledger, reports.
//!
//! Not those of a model, which stand in the core. The fields are the keys under `gpu`; memory is MiB, times are seconds.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use infergate_core::model::Secret;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Memory of a device that is never leased unless configured otherwise, MiB.
const RESERVE_MIB: u64 = 512;
/// Memory of a process on each device, MiB: what a driver's context takes.
const CONTEXT_MIB: u64 = 450;
/// Lowest port that needs no privilege.
const PORT_MIN: u16 = 1024;

/// Devices of this host and the model processes on them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GpuConfig {
    /// Source of the devices.
    pub devices: DeviceKindChoice,
    /// Devices that are used, by UUID or index; all of them when empty. `CUDA_VISIBLE_DEVICES` of the gateway counts too.
    #[schemars(length(max = 256))]
    pub only: Vec<DeviceSelector>,
    /// Memory of each device that is never leased, MiB.
    #[schemars(range(max = 1_073_741_824))]
    pub reserve_mib: u64,
    /// The same for single devices, by UUID or by the name of a simulated card.
    #[schemars(inner(range(max = 1_073_741_824)))]
    pub reserve: BTreeMap<Arc<str>, u64>,
    /// Memory that a process takes on each device by using it, MiB; for estimates.
    #[schemars(range(max = 1_048_576))]
    pub context_mib: u64,
    /// Ports of the processes, both ends included.
    pub ports: PortRange,
    /// Loads at a time.
    pub load_parallel: LoadParallel,
    /// Rule for the next model that gets a device.
    pub swap: SwapConfig,
    /// Place of the leases.
    pub ledger: LedgerConfig,
    /// Treatment of the processes when the gateway exits; an upgrade always keeps them.
    pub when_exiting: WhenExiting,
    /// Seconds that processes live on without a gateway; 0 is 60 where they are kept.
    #[schemars(range(max = 3600))]
    pub orphan_grace_secs: u64,
    /// Logs of the processes.
    pub logs: ProcessLogs,
    /// Reports of the instances.
    pub reports: ReportsConfig,
    /// Record of all transitions, leases and swaps, and of demand.
    pub events: LifecycleEvents,
    /// Simulated cards, for `devices: simulated`.
    pub simulated: SimulatedConfig,
    /// Control group of each process.
    pub cgroup: CgroupChoice,
}

impl Default for GpuConfig {
    fn default() -> Self {
        GpuConfig {
            devices: DeviceKindChoice::default(),
            only: Vec::new(),
            reserve_mib: RESERVE_MIB,
            reserve: BTreeMap::new(),
            context_mib: CONTEXT_MIB,
            ports: PortRange::default(),
            load_parallel: LoadParallel::default(),
            swap: SwapConfig::default(),
            ledger: LedgerConfig::default(),
            when_exiting: WhenExiting::default(),
            orphan_grace_secs: 0,
            logs: ProcessLogs::default(),
            reports: ReportsConfig::default(),
            events: LifecycleEvents::default(),
            simulated: SimulatedConfig::default(),
            cgroup: CgroupChoice::default(),
        }
    }
}

/// Seconds that kept processes wait for the next gateway, unless `orphan_grace_secs` says how many.
const KEPT_SECS: u64 = 60;

impl GpuConfig {
    /// Returns the seconds that processes live on without a gateway.
    pub fn grace_secs(&self) -> u64 {
        match (self.when_exiting, self.orphan_grace_secs) {
            (WhenExiting::Keep, 0) => KEPT_SECS,
            (_, secs) => secs,
        }
    }

    /// Returns the memory of a device that is never leased, MiB.
    pub fn reserve_of(&self, device: &str) -> u64 {
        self.reserve
            .get(device)
            .copied()
            .unwrap_or(self.reserve_mib)
    }

    /// Returns whether a device may be used.
    pub fn uses(&self, device: &str, index: u32) -> bool {
        let is_meant = |selector: &DeviceSelector| selector.matches(device, index);
        self.only.is_empty() || self.only.iter().any(is_meant)
    }
}

/// Source of the devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKindChoice {
    /// NVIDIA cards, or none without a driver.
    #[default]
    Auto,
    /// NVIDIA cards; without a driver the gateway does not start.
    Nvml,
    /// Memory of the host, for servers that compute on the CPU.
    Ram,
    /// Cards of page files, for tests and demonstrations.
    Simulated,
    /// No device.
    None,
}

/// Device by its UUID or its index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum DeviceSelector {
    /// By its place in the driver's list.
    Index(u32),
    /// By its UUID, or the name of a simulated card. Digits alone are an index that was written as a text.
    Uuid(Arc<str>),
}

impl DeviceSelector {
    fn matches(&self, device: &str, index: u32) -> bool {
        match self {
            DeviceSelector::Index(number) => *number == index,
            DeviceSelector::Uuid(text) => **text == *device || text.parse() == Ok(index),
        }
    }
}

impl JsonSchema for DeviceSelector {
    fn schema_name() -> Cow<'static, str> {
        "DeviceSelector".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "integer"], "minimum": 0, "maximum": 255 })
    }
}

/// Ports from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    /// First port.
    pub first: u16,
    /// Last port.
    pub last: u16,
}

impl PortRange {
    /// Returns whether the port is among them.
    pub fn contains(&self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl Default for PortRange {
    fn default() -> Self {
        PortRange {
            first: 20_000,
            last: 20_999,
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl FromStr for PortRange {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str =
            "expected two ports from 1024 on, such as \"20000-20999\", the lower one first";
        let (first, last) = text.split_once('-').ok_or(EXPECTED)?;
        let (Ok(first), Ok(last)) = (first.trim().parse(), last.trim().parse()) else {
            return Err(EXPECTED);
        };
        if first < PORT_MIN || last < first {
            return Err(EXPECTED);
        }
        Ok(PortRange { first, last })
    }
}

impl Serialize for PortRange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PortRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for PortRange {
    fn schema_name() -> Cow<'static, str> {
        "PortRange".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

/// Loads at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LoadParallel {
    /// Loads on one device.
    #[schemars(range(min = 1, max = 64))]
    pub per_device: u32,
    /// Loads on the host.
    #[schemars(range(min = 1, max = 256))]
    pub per_host: u32,
}

impl Default for LoadParallel {
    fn default() -> Self {
        LoadParallel {
            per_device: 1,
            per_host: 2,
        }
    }
}

/// Rule for the next model that gets a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SwapConfig {
    /// Rule by which a model gets its place.
    pub policy: SwapPolicy,
    /// Turn of a model with requests, in times of both loads: while it lasts, no other model takes its place.
    #[schemars(range(min = 1, max = 1000))]
    pub turn: u32,
    /// Factor by which the waits for a model must exceed what it costs to evict others for it.
    #[schemars(range(max = 100_000))]
    pub patience: u32,
    /// Seconds of waiting at which a request weighs twice its time; beyond, it weighs ever more.
    #[schemars(range(min = 1, max = 86_400))]
    pub aging_secs: u64,
    /// Seconds for which a model that has become ready stays.
    #[schemars(range(max = 86_400))]
    pub min_warm_secs: u64,
    /// Seconds for which a refused request counts as one that waits.
    #[schemars(range(max = 86_400))]
    pub demand_memory_secs: u64,
}

impl Default for SwapConfig {
    fn default() -> Self {
        SwapConfig {
            policy: SwapPolicy::default(),
            turn: 4,
            patience: 13,
            aging_secs: 25,
            min_warm_secs: 0,
            demand_memory_secs: 60,
        }
    }
}

/// Rule for the next model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SwapPolicy {
    /// Models in the order of their aged waits; a busy model leaves after its turn.
    #[default]
    Turns,
    /// Models in the order of their oldest request; the least recently used idle model leaves.
    Lru,
}

/// Place of the leases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LedgerConfig {
    /// Store of the leases.
    pub store: LedgerChoice,
    /// Folder of the ledger of the host; `/run/infergate/gpu`, or the user's runtime folder, when empty.
    pub directory: PathBuf,
    /// Redis that keeps the ledger, for `store: redis`.
    pub redis_url: Arc<str>,
}

/// Store of the leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LedgerChoice {
    /// A file of this host, for all gateways and jobs there.
    #[default]
    Host,
    /// Redis. Not supported yet.
    Redis,
    /// Memory of this gateway, which must be alone on the host.
    None,
}

/// Treatment of the processes when the gateway exits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WhenExiting {
    /// Stopped after their last request.
    #[default]
    Stop,
    /// Left for the next gateway, for `orphan_grace_secs`.
    Keep,
}

/// Logs of the processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProcessLogs {
    /// Output of each process that is kept, MiB.
    #[schemars(range(min = 1, max = 1024))]
    pub keep_mib: u32,
}

impl Default for ProcessLogs {
    fn default() -> Self {
        ProcessLogs { keep_mib: 4 }
    }
}

/// Reports of the instances.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ReportsConfig {
    /// URL that reports are posted to; none are when empty.
    pub url: Arc<str>,
    /// Sent as `Authorization: Bearer`; usually `"${SOME_TOKEN}"`.
    #[serde(skip_serializing, default)]
    pub token: Option<Secret>,
    /// Seconds between two reports of an instance.
    #[schemars(range(min = 1, max = 3600))]
    pub every_secs: u64,
    /// File for reports, a JSON object a line; none when empty.
    pub file: PathBuf,
}

impl Default for ReportsConfig {
    fn default() -> Self {
        ReportsConfig {
            url: "".into(),
            token: None,
            every_secs: 15,
            file: PathBuf::new(),
        }
    }
}

/// Record of transitions, leases, swaps and demand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LifecycleEvents {
    /// File, a JSON object a line; none when empty.
    pub file: PathBuf,
}

/// Simulated cards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SimulatedConfig {
    /// Folder of the cards.
    pub directory: PathBuf,
    /// Cards, which are made in the folder at start.
    #[schemars(length(max = 256))]
    pub cards: Vec<SimulatedCard>,
}

impl Default for SimulatedConfig {
    fn default() -> Self {
        SimulatedConfig {
            directory: PathBuf::from("./cards"),
            cards: Vec::new(),
        }
    }
}

/// Simulated card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SimulatedCard {
    /// Name of the card and of its folder.
    #[schemars(length(min = 1))]
    pub name: Arc<str>,
    /// Memory, MiB.
    #[schemars(range(min = 1, max = 1_073_741_824))]
    pub total_mib: u64,
    /// Pages that the memory is taken in.
    #[serde(default = "SimulatedCard::default_pages")]
    #[schemars(range(min = 1, max = 1024))]
    pub pages: u32,
}

impl SimulatedCard {
    fn default_pages() -> u32 {
        256
    }
}

/// Control group of each process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CgroupChoice {
    /// Where the gateway may make one.
    #[default]
    Auto,
    /// None.
    Off,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_section_has_the_defaults_that_are_documented() {
        let config: GpuConfig = serde_json::from_str("{}").unwrap();
        assert_eq!(config, GpuConfig::default());
        assert_eq!(config.ports.to_string(), "20000-20999");
        assert_eq!((config.reserve_mib, config.context_mib), (512, 450));
        assert_eq!((config.swap.turn, config.swap.patience), (4, 13));
        let load = &config.load_parallel;
        assert_eq!((load.per_device, load.per_host), (1, 2));
    }

    #[test]
    fn a_range_of_ports_has_its_lower_end_first_and_needs_no_privilege() {
        let range: PortRange = "20000 - 20001".parse().unwrap();
        assert!(range.contains(20_001) && !range.contains(20_002));
        for text in ["20001-20000", "80-90", "20000", "1024-70000", "-1", ""] {
            assert!(text.parse::<PortRange>().is_err(), "{text}");
        }
    }

    #[test]
    fn devices_are_chosen_by_uuid_or_index_and_may_have_reserves_of_their_own() {
        let text = r#"{"only":["GPU-a",1,"2"],"reserve":{"GPU-a":2048}}"#;
        let config: GpuConfig = serde_json::from_str(text).unwrap();
        assert!(config.uses("GPU-a", 7) && config.uses("GPU-x", 1) && config.uses("GPU-x", 2));
        assert!(!config.uses("GPU-b", 0));
        assert_eq!(
            (config.reserve_of("GPU-a"), config.reserve_of("GPU-b")),
            (2048, 512)
        );
        assert!(GpuConfig::default().uses("GPU-b", 0));
    }
}
