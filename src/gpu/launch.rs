//! Launch of a model's process: its command, environment and limits, from the model's settings and its leases.
//!
//! Starts nothing. Equal settings and leases make an equal command, but for its port, its key and its name.

use std::path::Path;

use infergate_core::model::{ListenScope as ListenChoice, ModelSpec, ProcessSpec};
use infergate_core::vram::{DeviceKind, DeviceShare};
use thiserror::Error;

use super::config::GpuConfig;
use super::monitor::ReadDevice;
use super::presets::{MemorySource, Preset, Program, preset};
use super::process::{
    CommandError, EnvironmentSources, InstanceId, InstanceSpec, ListenScope, PlaceholderValues,
    ProcessLimits, environment, expand_command, log_directory, run_directory, server_socket,
};
use super::settings_digest::settings_digest;

/// Address that servers are told to listen at.
const HOST: &str = "127.0.0.1";
/// Bytes of a MiB.
const MIB: u64 = 1 << 20;

/// Reason why a process cannot be started as configured.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// A placeholder, a variable or the program is wrong.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The file of the gateway is not known.
    #[error("the gateway's own file: {0}")]
    Gateway(std::io::Error),
    /// The model has neither preset nor command.
    #[error("the model has no process")]
    NoProcess,
}

/// Facts of one start.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    /// Model.
    pub spec: &'a ModelSpec,
    /// Settings of the host.
    pub gpu: &'a GpuConfig,
    /// Directory of the gateway's state.
    pub state_dir: &'a Path,
    /// Name of the life.
    pub instance: InstanceId,
    /// Leased memory.
    pub shares: &'a [DeviceShare],
    /// Devices of the host.
    pub devices: &'a [ReadDevice],
    /// Port of the server.
    pub port: u16,
    /// Key that the server asks for, where it can.
    pub api_key: &'a str,
    /// Generation of the ledger at the grant.
    pub lease_epoch: u64,
    /// State of the model's files before the start.
    pub files: Option<u64>,
}

impl Launch<'_> {
    /// Builds the specification of the instance.
    ///
    /// # Errors
    /// The command or a variable cannot be built.
    pub fn specification(&self) -> Result<InstanceSpec, LaunchError> {
        let process = self.spec.process.as_ref().ok_or(LaunchError::NoProcess)?;
        let known = preset_of(process);
        let values = self.values(process, known);
        let program = known.map(|preset| program(preset.program)).transpose()?;
        let template = template(process, known, program, self.shares.len() > 1);
        let argv = expand_command(&template, &values)?;
        let gpu = self.gpu;
        Ok(InstanceSpec {
            instance: self.instance.clone(),
            argv,
            environment: self.environment(process, known, &values)?,
            working_directory: Some(process.working_directory.clone())
                .filter(|path| !path.as_os_str().is_empty()),
            run_directory: run_directory(self.state_dir),
            log_directory: log_directory(self.state_dir),
            log_bytes: u64::from(gpu.logs.keep_mib) * MIB,
            limits: ProcessLimits {
                memory_mib: process.limits.memory_mib,
                pids: process.limits.pids.into(),
                open_files: process.limits.open_files.into(),
                nice: process.limits.nice.into(),
            },
            cgroup: None,
            orphan_grace_ms: gpu.grace_secs() * 1000,
            stop_timeout_ms: process.stop_timeout_secs * 1000,
            port: self.port,
            devices: values.devices.clone(),
            lease_epoch: self.lease_epoch,
            configuration_digest: settings_digest(self.spec),
            files: self.files,
            api_key: self.api_key.to_owned(),
        })
    }

    fn values(&self, process: &ProcessSpec, known: Option<&Preset>) -> PlaceholderValues {
        let device = |share: &DeviceShare| {
            let mut devices = self.devices.iter();
            devices.find(|device| device.view.info.id == share.device)
        };
        let smallest = self.shares.iter().filter_map(device);
        let smallest = smallest.map(|device| device.view.info.total_mib).min();
        let lease = self.shares.iter().map(|share| share.mib).min().unwrap_or(0);
        let beside = match known.map(|preset| preset.memory) {
            Some(MemorySource::Share { beside_mib }) => beside_mib,
            _ => 0,
        };
        let path = process.model_path.as_deref();
        let socket = server_socket(&run_directory(self.state_dir), &self.instance);
        PlaceholderValues {
            port: self.port,
            host: HOST.to_owned(),
            model_path: path.map_or_else(String::new, |path| path.display().to_string()),
            model: self.spec.id.as_str().to_owned(),
            context: process.context.into(),
            parallel: process.parallel.into(),
            devices: self
                .shares
                .iter()
                .map(|it| self.device_name(it, device(it)))
                .collect(),
            vram_mib: lease.saturating_sub(beside),
            device_mib: smallest.unwrap_or(0),
            tensor_split: self.shares.iter().map(|share| share.mib).collect(),
            api_key: self.api_key.to_owned(),
            instance: self.instance.as_str().to_owned(),
            socket: socket.map_or_else(String::new, |path| path.display().to_string()),
        }
    }

    /// Name of a device for a server: a simulated card is its folder.
    fn device_name(&self, share: &DeviceShare, device: Option<&ReadDevice>) -> String {
        let id = share.device.as_str();
        match device.map(|device| device.view.info.kind) {
            Some(DeviceKind::Simulated) => {
                let folder = self.gpu.simulated.directory.join(id);
                folder.display().to_string()
            }
            _ => id.to_owned(),
        }
    }

    fn environment(
        &self,
        process: &ProcessSpec,
        known: Option<&Preset>,
        values: &PlaceholderValues,
    ) -> Result<Vec<(String, String)>, LaunchError> {
        let mut set = std::collections::BTreeMap::new();
        let sleeps = process.sleep.number() > 0;
        let of_sleep = known.and_then(|preset| preset.sleep.as_ref());
        let of_sleep = of_sleep.filter(|_| sleeps).map(|sleep| sleep.environment);
        let of_preset = known.map_or(&[][..], |preset| preset.environment);
        for (name, value) in of_preset.iter().chain(of_sleep.unwrap_or_default()) {
            let value = expand_command(&[(*value).to_owned()], values)?;
            set.insert((*name).to_owned(), value.concat());
        }
        for (name, value) in &process.environment {
            set.insert(name.to_string(), value.reveal().to_owned());
        }
        let pass: Vec<String> = process
            .pass_environment
            .iter()
            .map(|it| it.to_string())
            .collect();
        let uuids: Vec<String> = self
            .shares
            .iter()
            .map(|it| it.device.as_str().to_owned())
            .collect();
        let sources = EnvironmentSources {
            pass: &pass,
            set,
            devices: &uuids,
        };
        Ok(environment(&sources, &self.instance, |name| {
            std::env::var(name).ok()
        })?)
    }
}

/// Returns the preset of a process; none of a command.
pub fn preset_of(process: &ProcessSpec) -> Option<&'static Preset> {
    process.preset.as_deref().and_then(preset)
}

/// Addresses that the server may listen at.
pub fn listen_scope(process: &ProcessSpec) -> ListenScope {
    match process.listen {
        ListenChoice::Loopback => ListenScope::Loopback,
        ListenChoice::Any => ListenScope::Any,
    }
}

/// Returns the program of a preset, as a part of a template.
fn program(program: Program) -> Result<String, LaunchError> {
    Ok(match program {
        Program::Named(name) => name.to_owned(),
        Program::Gateway => {
            let file = std::env::current_exe().map_err(LaunchError::Gateway)?;
            file.to_string_lossy().replace('{', "{{")
        }
    })
}

/// Returns the command of a process with its placeholders. `program`: that of its preset.
pub(super) fn template(
    process: &ProcessSpec,
    known: Option<&Preset>,
    program: Option<String>,
    is_split: bool,
) -> Vec<String> {
    let own = process.command.iter().map(|text| text.to_string());
    let mut template: Vec<String> = own.chain(program).collect();
    if let Some(preset) = known {
        let split = if is_split {
            preset.split_arguments
        } else {
            &[]
        };
        let arguments = preset.arguments.iter().chain(split);
        template.extend(arguments.map(|text| (*text).to_owned()));
        if let Some(sleep) = preset.sleep.as_ref().filter(|_| process.sleep.number() > 0) {
            template.extend(sleep.arguments.iter().map(|text| (*text).to_owned()));
        }
        template.extend(adapters(process, preset));
    }
    template.extend(process.arguments.iter().map(|text| text.to_string()));
    template
}

fn adapters(process: &ProcessSpec, preset: &Preset) -> Vec<String> {
    let Some(option) = preset
        .adapters
        .as_ref()
        .filter(|_| !process.adapters.is_empty())
    else {
        return Vec::new();
    };
    let named = process.adapters.iter().map(|adapter| {
        let path = adapter.path.display().to_string().replace('{', "{{");
        match option.is_named {
            true => format!("{}={path}", adapter.name),
            false => path,
        }
    });
    let named: Vec<String> = named.collect();
    let own = option.arguments.iter().map(|text| (*text).to_owned());
    match option.is_joined {
        true => own.chain([named.join(",")]).collect(),
        false => own.chain(named).collect(),
    }
}

#[cfg(test)]
mod tests {
    use infergate_core::vram::{DeviceInfo, DeviceView, HostTime, Ledger};

    use super::super::presets::PRESETS;
    use super::*;

    fn card(id: &str) -> ReadDevice {
        let view = DeviceView {
            info: DeviceInfo {
                id: id.into(),
                index: 0,
                name: "card".into(),
                total_mib: 24_000,
                kind: DeviceKind::Gpu,
            },
            reserve_mib: 0,
            sample: None,
        };
        ReadDevice {
            account: Ledger::new("boot", HostTime(0)).account(&view, HostTime(0)),
            view,
        }
    }

    /// Arguments of a model with this `process`, on two cards.
    fn argv(process: &str, state_dir: &Path) -> Result<Vec<String>, LaunchError> {
        let text = format!(
            r#"{{"id":"m","task":"text-generation","backend":"openai","process":{process}}}"#
        );
        let devices = ["GPU-a", "GPU-b"].map(card);
        let shares = devices.each_ref().map(|card| DeviceShare {
            device: card.view.info.id.clone(),
            mib: 8000,
        });
        let launch = Launch {
            spec: &serde_json::from_str(&text).unwrap(),
            gpu: &GpuConfig::default(),
            state_dir,
            instance: InstanceId::new("m#0", 1).unwrap(),
            shares: &shares,
            devices: &devices,
            port: 20_000,
            api_key: "key",
            lease_epoch: 1,
            files: None,
        };
        launch.specification().map(|it| it.argv)
    }

    #[test]
    fn no_argument_of_a_preset_is_empty() {
        for preset in PRESETS {
            let name = preset.name;
            let process = format!(r#"{{"preset":"{name}","model_path":"/models/m"}}"#);
            let argv = argv(&process, Path::new("/var/lib/infergate")).unwrap();
            assert!(argv.iter().all(|it| !it.is_empty()), "{name}: {argv:?}");
        }
    }

    #[test]
    fn a_state_directory_too_long_for_a_socket_is_said_where_one_is_needed() {
        let deep = format!("/{}", "d".repeat(100));
        let process = |preset: &str| format!(r#"{{"preset":"{preset}","model_path":"/m"}}"#);
        let error = argv(&process("tgi"), Path::new(&deep)).unwrap_err();
        assert!(error.to_string().contains("shorter `state_dir`"), "{error}");
        argv(&process("vllm"), Path::new(&deep)).unwrap();
    }
}
