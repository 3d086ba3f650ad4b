//! Command and environment of an instance, from templates of the configuration.
//!
//! No shell is involved: an argument stays one argument, whatever stands in it. The environment begins empty, so that
//! the gateway's own secrets are not in it.

use std::collections::BTreeMap;

use thiserror::Error;

use super::identity::InstanceId;

/// Variable that marks each process of an instance.
pub const INSTANCE_VARIABLE: &str = "INFERGATE_INSTANCE";
/// Variables that every process gets from the gateway's environment.
const PASSED_ALWAYS: [&str; 6] = ["PATH", "HOME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH"];
/// Parts of a device that a share of its memory is rounded down to.
const FRACTION_PARTS: u64 = 10_000;

/// Fault in a command or an environment of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CommandError {
    /// A name that stands for nothing.
    #[error("unknown placeholder {{{0}}}: a brace that is meant is written {{{{")]
    UnknownPlaceholder(String),
    /// A brace without its counterpart.
    #[error("a placeholder without its `}}`: a brace that is meant is written {{{{")]
    OpenPlaceholder,
    /// No program.
    #[error("a command has a program at least")]
    NoProgram,
    /// A name that no variable can have.
    #[error("`{0}` is no name of a variable")]
    VariableName(String),
    /// A socket where no path of one is short enough.
    #[error("{{socket}}: the path of a socket has at most 107 bytes; set a shorter `state_dir`")]
    SocketPathTooLong,
    /// Text that no argument and no variable can have.
    #[error("an argument or a variable contains a zero byte")]
    ZeroByte,
}

/// Values of the placeholders.
#[derive(Clone, Debug, Default)]
pub struct PlaceholderValues {
    /// `{port}`
    pub port: u16,
    /// `{host}`
    pub host: String,
    /// `{model_path}`
    pub model_path: String,
    /// `{model}`
    pub model: String,
    /// `{context}`, tokens of a request.
    pub context: u64,
    /// `{parallel}`, requests at a time; `{context_total}` is the product of the two.
    pub parallel: u64,
    /// `{gpu_uuids}` with commas, `{gpu_count}`.
    pub devices: Vec<String>,
    /// `{vram_mib}`, the lease on each device.
    pub vram_mib: u64,
    /// Memory of the smallest device, MiB: `{gpu_fraction}` is the lease's share of it.
    pub device_mib: u64,
    /// `{tensor_split}` with commas, MiB of each device.
    pub tensor_split: Vec<u64>,
    /// `{api_key}`
    pub api_key: String,
    /// `{instance}`
    pub instance: String,
    /// `{socket}`; empty where the run directory has no path short enough for one.
    pub socket: String,
}

impl PlaceholderValues {
    /// Returns the value of a placeholder; none when there is no such placeholder.
    fn value(&self, name: &str) -> Option<String> {
        Some(match name {
            "port" => self.port.to_string(),
            "host" => self.host.clone(),
            "model_path" => self.model_path.clone(),
            "model" => self.model.clone(),
            "context" => self.context.to_string(),
            "context_total" => self.context.saturating_mul(self.parallel).to_string(),
            "parallel" => self.parallel.to_string(),
            "gpu_uuids" => self.devices.join(","),
            "gpu_count" => self.devices.len().to_string(),
            "vram_mib" => self.vram_mib.to_string(),
            "gpu_fraction" => self.fraction(),
            "tensor_split" => {
                let shares: Vec<_> = self.tensor_split.iter().map(u64::to_string).collect();
                shares.join(",")
            }
            "api_key" => self.api_key.clone(),
            "instance" => self.instance.clone(),
            "socket" => self.socket.clone(),
            _ => return None,
        })
    }

    /// Rounded down, so that the server never takes more than its lease.
    fn fraction(&self) -> String {
        let parts = self.vram_mib.saturating_mul(FRACTION_PARTS) / self.device_mib.max(1);
        let parts = parts.min(FRACTION_PARTS);
        format!("{}.{:04}", parts / FRACTION_PARTS, parts % FRACTION_PARTS)
    }
}

/// Puts values in place of the placeholders of a command.
///
/// # Errors
/// The command is empty, or a placeholder is unknown or open.
pub fn expand_command(
    template: &[String],
    values: &PlaceholderValues,
) -> Result<Vec<String>, CommandError> {
    if template.first().is_none_or(String::is_empty) {
        return Err(CommandError::NoProgram);
    }
    let expanded = template.iter().map(|argument| expand(argument, values));
    expanded.collect()
}

/// `{name}` is a placeholder, `{{` a brace, and `}` alone stands for itself.
fn expand(argument: &str, values: &PlaceholderValues) -> Result<String, CommandError> {
    let mut expanded = String::with_capacity(argument.len());
    let mut rest = argument;
    while let Some((before, behind)) = rest.split_once('{') {
        expanded.push_str(before);
        if let Some(behind) = behind.strip_prefix('{') {
            expanded.push('{');
            rest = behind;
            continue;
        }
        let (name, behind) = behind
            .split_once('}')
            .ok_or(CommandError::OpenPlaceholder)?;
        let value = values.value(name);
        let value = value.ok_or_else(|| CommandError::UnknownPlaceholder(name.to_owned()))?;
        if name == "socket" && value.is_empty() {
            return Err(CommandError::SocketPathTooLong);
        }
        expanded.push_str(&value);
        rest = behind;
    }
    expanded.push_str(rest);
    match expanded.contains('\0') {
        true => Err(CommandError::ZeroByte),
        false => Ok(expanded),
    }
}

/// Sources of an instance's environment, beside that of the gateway.
#[derive(Clone, Debug, Default)]
pub struct EnvironmentSources<'a> {
    /// Further names that are passed from the gateway's environment.
    pub pass: &'a [String],
    /// Variables of the configuration.
    pub set: BTreeMap<String, String>,
    /// Devices for `CUDA_VISIBLE_DEVICES`.
    pub devices: &'a [String],
}

/// Builds the environment of an instance from nothing; of two values of a name the later source has its way.
///
/// # Errors
/// A name is no name of a variable.
pub fn environment(
    sources: &EnvironmentSources<'_>,
    instance: &InstanceId,
    inherited: impl Fn(&str) -> Option<String>,
) -> Result<Vec<(String, String)>, CommandError> {
    let mut environment = BTreeMap::new();
    let passed = PASSED_ALWAYS.into_iter();
    for name in passed.chain(sources.pass.iter().map(String::as_str)) {
        if let Some(value) = inherited(name) {
            environment.insert(name.to_owned(), value);
        }
    }
    environment.extend(sources.set.clone());
    // NVML and CUDA count differently by default: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars
    let own = [
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()),
        ("CUDA_VISIBLE_DEVICES", sources.devices.join(",")),
        (INSTANCE_VARIABLE, instance.to_string()),
    ];
    environment.extend(own.map(|(name, value)| (name.to_owned(), value)));
    for (name, value) in &environment {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(CommandError::VariableName(name.clone()));
        }
        if value.contains('\0') {
            return Err(CommandError::ZeroByte);
        }
    }
    Ok(environment.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> PlaceholderValues {
        PlaceholderValues {
            port: 20_001,
            host: "127.0.0.1".to_owned(),
            model_path: "/models/a b.gguf".to_owned(),
            context: 4096,
            parallel: 4,
            devices: vec!["GPU-1".to_owned(), "GPU-2".to_owned()],
            vram_mib: 8191,
            device_mib: 24_576,
            tensor_split: vec![5000, 3191],
            ..PlaceholderValues::default()
        }
    }

    fn expand_one(argument: &str) -> Result<String, CommandError> {
        let template = [argument.to_owned()];
        Ok(expand_command(&template, &values())?.remove(0))
    }

    #[test]
    fn placeholders_become_values_and_an_argument_stays_one() {
        for (argument, expanded) in [
            ("--port={port}", "--port=20001"),
            ("{model_path}", "/models/a b.gguf"),
            ("{context_total}/{context}", "16384/4096"),
            ("{gpu_uuids} {gpu_count}", "GPU-1,GPU-2 2"),
            ("{gpu_fraction}", "0.3332"),
            ("{tensor_split}", "5000,3191"),
            ("no placeholder }", "no placeholder }"),
            (r#"{{"a":{{"b":1}}"#, r#"{"a":{"b":1}}"#),
            ("{{port}", "{port}"),
        ] {
            assert_eq!(expand_one(argument).unwrap(), expanded, "{argument}");
        }
    }

    #[test]
    fn an_unknown_placeholder_and_an_open_one_are_errors() {
        let unknown = expand_one("--x={prot}").unwrap_err();
        assert_eq!(unknown, CommandError::UnknownPlaceholder("prot".to_owned()));
        assert!(unknown.to_string().contains("{prot}"), "{unknown}");
        assert_eq!(expand_one("{port"), Err(CommandError::OpenPlaceholder));
        assert_eq!(expand_command(&[], &values()), Err(CommandError::NoProgram));
        assert_eq!(expand_one(""), Err(CommandError::NoProgram));
    }

    #[test]
    fn the_environment_has_what_is_named_and_later_sources_have_their_way() {
        let instance = InstanceId::new("m#0", 1).unwrap();
        let pass = ["HF_HOME".to_owned(), "ABSENT".to_owned()];
        let set = [("LANG", "C"), ("CUDA_VISIBLE_DEVICES", "9"), ("A", "{b}")];
        let sources = EnvironmentSources {
            pass: &pass,
            set: set
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            devices: &["GPU-1".to_owned()],
        };
        let inherited = |name: &str| match name {
            "PATH" | "LANG" | "HF_HOME" | "SECRET" => Some(format!("gateway's {name}")),
            _ => None,
        };
        let environment = environment(&sources, &instance, inherited).unwrap();
        let listed: Vec<_> = environment
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let expected = [
            "A={b}",
            "CUDA_DEVICE_ORDER=PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES=GPU-1",
            "HF_HOME=gateway's HF_HOME",
            "INFERGATE_INSTANCE=m#0-00000001",
            "LANG=C",
            "PATH=gateway's PATH",
        ];
        assert_eq!(listed, expected);
    }

    #[test]
    fn a_name_that_no_variable_can_have_is_an_error() {
        let instance = InstanceId::new("m#0", 1).unwrap();
        for name in ["", "A=B", "A\0"] {
            let sources = EnvironmentSources {
                set: BTreeMap::from([(name.to_owned(), String::new())]),
                ..EnvironmentSources::default()
            };
            assert!(environment(&sources, &instance, |_| None).is_err());
        }
    }
}
