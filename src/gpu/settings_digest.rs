//! Digest of what decides a model's process, by which a later gateway knows that it would start the same one.
//!
//! Stable between releases: a text of named parts under SHA-256, in which a setting that leaves command, environment and
//! limits as they are does not stand. Not the files' content, whose change is an update of its own.

use infergate_core::model::{ModelSpec, ProcessSpec};
use sha2::{Digest, Sha256};

use super::launch::{preset_of, template};
use super::presets::Program;

/// Name of the gateway's own program, whatever its file is called.
const OWN_PROGRAM: &str = "infergate";

/// Returns the digest of a model with a process; that of nothing for one without.
pub fn settings_digest(spec: &ModelSpec) -> String {
    let mut parts = Parts(Sha256::new());
    if let Some(process) = &spec.process {
        parts.add_process(process);
        parts.add("model", spec.id.as_str());
        // The lease, which servers are told, and the devices that it may be spread over.
        parts.add("vram_mib", &spec.vram.mib.to_string());
        parts.add("split", &format!("{:?}", spec.vram.split).to_lowercase());
    }
    hex::encode(parts.0.finalize())
}

/// Returns the digest of a process with its command, files by their paths, environment and limits, whatever its model is called.
pub fn process_digest(process: &ProcessSpec) -> String {
    let mut parts = Parts(Sha256::new());
    parts.add_process(process);
    hex::encode(parts.0.finalize())
}

struct Parts(Sha256);

impl Parts {
    /// Adds a part so that no two lists of parts are one text.
    fn add(&mut self, name: &str, value: &str) {
        for text in [name, value] {
            self.0.update((text.len() as u64).to_le_bytes());
            self.0.update(text.as_bytes());
        }
    }

    fn add_process(&mut self, process: &ProcessSpec) {
        let known = preset_of(process);
        let program = known.map(|preset| match preset.program {
            Program::Named(name) => name.to_owned(),
            Program::Gateway => OWN_PROGRAM.to_owned(),
        });
        for is_split in [false, true] {
            for text in template(process, known, program.clone(), is_split) {
                self.add("argument", &text);
            }
        }
        let sleep = known.and_then(|preset| preset.sleep.as_ref());
        let sleep = sleep.filter(|_| process.sleep.number() > 0);
        let of_sleep = sleep.map_or(&[][..], |sleep| sleep.environment);
        let of_preset = known.map_or(&[][..], |preset| preset.environment);
        for (name, value) in of_preset.iter().chain(of_sleep) {
            self.add(name, value);
        }
        for (name, value) in &process.environment {
            self.add(name, value.reveal());
        }
        for name in &process.pass_environment {
            self.add("pass", name);
        }
        let path = process.model_path.as_deref();
        let path = path.map_or_else(String::new, |path| path.display().to_string());
        self.add("model_path", &path);
        for adapter in &process.adapters {
            self.add(&adapter.name, &adapter.path.display().to_string());
        }
        let directory = process.working_directory.display().to_string();
        self.add("working_directory", &directory);
        let limits = &process.limits;
        let numbers = [
            ("context", process.context.into()),
            ("parallel", process.parallel.into()),
            ("stop_timeout_secs", process.stop_timeout_secs),
            ("memory_mib", limits.memory_mib),
            ("pids", limits.pids.into()),
            ("open_files", limits.open_files.into()),
        ];
        for (name, number) in numbers {
            self.add(name, &number.to_string());
        }
        self.add("nice", &limits.nice.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(json: &str) -> String {
        let text = format!(r#"{{"id":"m","task":"text-generation","backend":"openai",{json}}}"#);
        settings_digest(&serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn only_what_decides_the_process_makes_another_digest() {
        let plain = digest(r#""process":{"preset":"vllm","model_path":"/m"}"#);
        for same in [
            r#""process":{"preset":"vllm","model_path":"/m","update":"rolling"}"#,
            r#""process":{"preset":"vllm","model_path":"/m","ready_timeout_secs":7,"listen":"any"}"#,
            r#""process":{"preset":"vllm","model_path":"/m"},"pin":true,"replicas":{"max":3}"#,
        ] {
            assert_eq!(digest(same), plain, "{same}");
        }
        for other in [
            r#""process":{"preset":"sglang","model_path":"/m"}"#,
            r#""process":{"preset":"vllm","model_path":"/other"}"#,
            r#""process":{"preset":"vllm","model_path":"/m","context":1}"#,
            r#""process":{"preset":"vllm","model_path":"/m","arguments":["--x"]}"#,
            r#""process":{"preset":"vllm","model_path":"/m","environment":{"A":"1"}}"#,
            r#""process":{"preset":"vllm","model_path":"/m","sleep":1}"#,
            r#""process":{"preset":"vllm","model_path":"/m","limits":{"pids":9}}"#,
            r#""process":{"preset":"vllm","model_path":"/m"},"vram":{"mib":9}"#,
            r#""process":{"preset":"vllm","model_path":"/m"},"vram":{"split":"never"}"#,
        ] {
            assert_ne!(digest(other), plain, "{other}");
        }
    }

    /// A release that changes this number reloads every model at its upgrade.
    #[test]
    fn the_digest_is_the_same_in_each_release() {
        let process = r#""process":{"command":["serve","{port}"],"model_path":"/m.gguf","environment":{"A":"1"}}"#;
        let known = "08296691680c38b59aca42b73043ebbf3fe0384eb65db5992a3fa477064e06a2";
        assert_eq!(digest(process), known);
    }
}
