//! The GPU host as far as a configuration is concerned: what `check` finds.
//!
//! No process is started here.

use crate::config::{LoadedConfig, Problem};
use crate::gpu::{HostCheck, check_host};

/// Checks the host of a configuration. Adds warnings to it, and returns the problems.
pub fn check(loaded: &mut LoadedConfig) -> (Option<HostCheck>, Vec<Problem>) {
    let gpu = loaded.config.gpu.clone().unwrap_or_default();
    let host = check_host(&loaded.config.models, &gpu);
    let mut problems = Vec::new();
    for finding in host.iter().flat_map(HostCheck::findings) {
        let problem = loaded.places.problem(&finding.path, finding.message);
        match finding.is_error {
            true => problems.push(problem),
            false => loaded.warnings.push(problem),
        }
    }
    (host, problems)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    fn load(models: &str) -> LoadedConfig {
        let text = format!(
            "listen: {{ clients: [{{ address: \"127.0.0.1:8080\" }}] }}\nanonymous: allow\ngpu: {{ devices: simulated, simulated: {{ cards: [{{ name: sim0, total_mib: 10000 }}] }} }}\nmodels:\n{models}"
        );
        parse(&text, &|_: &str| None).unwrap()
    }

    fn simulated(id: &str, mib: u64, more: &str) -> String {
        format!(
            "  - {{ id: {id}, task: text-generation, backend: openai, process: {{ preset: simulate }}, vram: {{ mib: {mib} }}{more} }}\n"
        )
    }

    #[test]
    fn findings_stand_at_their_keys() {
        let models = simulated("a", 6000, ", pin: true")
            + &simulated("b", 5000, ", pin: true")
            + &simulated("c", 20_000, "");
        let mut loaded = load(&models);
        let (host, problems) = check(&mut loaded);
        assert!(host.is_some());
        assert_eq!((&*problems[0].path, problems[0].line), ("models[1].pin", 6));
        let warned: Vec<&str> = loaded.warnings.iter().map(|it| &*it.path).collect();
        assert_eq!(warned, ["models[2].vram.mib"]);
    }
}
