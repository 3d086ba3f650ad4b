//! `models[].process` and what stands beside it: commands, presets, placeholders, variables, places.
//!
//! No file is looked at and no memory estimated: `infergate check` does that with the whole file.

use std::collections::HashMap;

use crate::config::document::{Cursor, NodeData};
use crate::config::problem::Problems;
use crate::gpu::presets::{
    MemorySource, PRESETS, PlaceholderFault, Preset, TemplatePiece, preset, reserved_uses,
    template_pieces,
};

/// Variables that the gateway writes.
const RESERVED_VARIABLES: [&str; 3] = [
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "INFERGATE_INSTANCE",
];
/// Keys beside `process` that mean nothing without it.
const KEYS_OF_PROCESSES: [&str; 6] = [
    "vram",
    "replicas",
    "pin",
    "preload",
    "keep_alive_secs",
    "loading_state",
];

pub fn check(root: &Cursor<'_>, problems: &mut Problems, warnings: &mut Problems) {
    let models = root.list("models");
    for model in &models {
        match model.key("process") {
            Some(process) if process.is_map() => check_process(model, &process, problems, warnings),
            Some(_) => {}
            None => warn_of_unused(model, warnings),
        }
    }
    check_bases(&models, problems);
    warn_of_shared_files(&models, warnings);
}

/// Weights are exchanged in servers that are there, not in processes that come and go.
fn check_bases(models: &[Cursor<'_>], problems: &mut Problems) {
    for model in models {
        let Some(base) = model.key("base").and_then(|base| base.key("model")) else {
            continue;
        };
        let is_named = |other: &&Cursor<'_>| other.text_of("id") == base.text();
        let named = models.iter().find(is_named);
        if named.is_some_and(|named| named.key("process").is_some()) {
            problems.add(base.problem(
                "has a `process`, and only servers under `endpoints` exchange their weights: give this model a process of \
                 its own",
            ));
        }
    }
}

fn warn_of_unused(model: &Cursor<'_>, warnings: &mut Problems) {
    for key in KEYS_OF_PROCESSES {
        if let Some(found) = model.key(key) {
            warnings.add(found.problem("no effect: the model has no `process`"));
        }
    }
}

fn check_process(
    model: &Cursor<'_>,
    process: &Cursor<'_>,
    problems: &mut Problems,
    warnings: &mut Problems,
) {
    if let Some(fault) = platform_fault(cfg!(target_os = "linux")) {
        problems.add(process.problem(fault));
    }
    for other in ["discovery", "base"] {
        if let Some(found) = model.key(other) {
            problems.add(found.problem(format!(
                "cannot stand beside `process`: the slots of the process are its endpoints, remove one of `process` and `{other}`"
            )));
        }
    }
    check_replicas(model, problems);
    let row = process.text_of("preset").and_then(preset);
    match (process.key("preset"), process.list("command").is_empty()) {
        (None, true) => problems.add(process.problem(format!(
            "what to run is missing: add `preset`, one of {}, or `command`",
            preset_names()
        ))),
        (Some(_), false) => {
            let command = process.key("command");
            problems.add(command.as_ref().unwrap_or(process).problem(
                "a preset has a command of its own: remove `preset` or `command`, and add further \
                 arguments under `arguments`",
            ));
        }
        _ => {}
    }
    if let Some(row) = row {
        check_preset(model, process, row, problems);
    }
    check_texts(process, problems);
    check_model_path(process, row, problems, warnings);
    check_environment(process, problems);
    check_sleep(process, row, problems, warnings);
    check_adapters(process, row, problems);
    if let Some(path) = process.key("warmup").and_then(|warmup| warmup.key("path"))
        && path.text().is_some_and(|text| !text.starts_with('/'))
    {
        problems.add(path.problem("must begin with a slash, such as /v1/chat/completions"));
    }
}

/// Processes are watched and ended by means that Linux alone has.
fn platform_fault(is_linux: bool) -> Option<&'static str> {
    (!is_linux).then_some(
        "processes are started on Linux only: remove `process`, and name the server under `endpoints`",
    )
}

fn preset_names() -> String {
    let names: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
    names.join(", ")
}

fn check_replicas(model: &Cursor<'_>, problems: &mut Problems) {
    let Some(replicas) = model.key("replicas") else {
        return;
    };
    let (min, max) = (replicas.number_of("min"), replicas.number_of("max"));
    if let (Some(min), Some(key)) = (min, replicas.key("min"))
        && min > max.unwrap_or(1)
    {
        problems.add(key.problem(format!(
            "above `max`, {}: at most as many slots stay loaded as there are",
            max.unwrap_or(1)
        )));
    }
}

/// Rules of a preset: its protocol, its options, its memory.
fn check_preset(model: &Cursor<'_>, process: &Cursor<'_>, row: &Preset, problems: &mut Problems) {
    if let Some(backend) = model.key("backend")
        && let Some(name) = backend.text()
        && !row.backends.contains(&name)
    {
        problems.add(backend.problem(format!(
            "the preset {} does not speak it: use {}",
            row.name,
            row.backends.join(" or ")
        )));
    }
    let arguments = process.list("arguments");
    let texts: Vec<&str> = arguments
        .iter()
        .map(|argument| argument.text().unwrap_or_default())
        .collect();
    for found in reserved_uses(row, &texts) {
        problems.add(arguments[found.at].problem(format!(
            "`{}` cannot be set here: {}",
            found.name, found.why
        )));
    }
    let mib = model.key("vram").and_then(|vram| vram.number_of("mib"));
    if row.memory == MemorySource::Fixed
        && mib.unwrap_or(0) == 0
        && let Some(key) = process.key("preset")
    {
        problems.add(key.problem(format!(
            "{} takes exactly the memory that it is told: add `vram: {{ mib: … }}` to the model",
            row.name
        )));
    }
}

/// Texts that become arguments: placeholders, and bytes that no argument has.
fn check_texts(process: &Cursor<'_>, problems: &mut Problems) {
    let command = process.list("command");
    if let Some(program) = command.first()
        && program.text() == Some("")
    {
        problems.add(program.problem("must not be empty: name a program"));
    }
    for argument in command.iter().chain(&process.list("arguments")) {
        let Some(text) = argument.text() else {
            continue;
        };
        if text.contains('\0') {
            problems.add(argument.problem("has a byte of value 0, which no argument can have"));
        }
        if let Err(fault) = template_pieces(text) {
            problems.add(argument.problem(fault.to_string()));
        }
    }
}

fn check_model_path(
    process: &Cursor<'_>,
    row: Option<&Preset>,
    problems: &mut Problems,
    warnings: &mut Problems,
) {
    const NAME: TemplatePiece<'_> = TemplatePiece::Placeholder("model_path");
    let command = process.list("command");
    let texts = command.iter().filter_map(Cursor::text);
    let own = row.map(|row| row.arguments).unwrap_or_default();
    let mut texts = texts.chain(own.iter().copied());
    let is_used = texts.any(|text| template_pieces(text).is_ok_and(|it| it.contains(&NAME)));
    match process.key("model_path") {
        None if is_used => problems.add(process.problem(
            "`model_path` is missing, and the command names it: add the file or folder of the model",
        )),
        Some(path) if path.text() == Some("") => {
            problems.add(path.problem("must not be empty: name the file or folder of the model"));
        }
        Some(path) if !is_used && !command.is_empty() => warnings.add(path.problem(
            "only estimated by: no argument of `command` has {model_path}",
        )),
        _ => {}
    }
}

fn check_environment(process: &Cursor<'_>, problems: &mut Problems) {
    for (name, value) in process.entries("environment") {
        if let Some(fault) = variable_fault(name) {
            problems.add(value.problem(fault));
        }
        let Some(text) = value.text() else { continue };
        if text.contains('\0') {
            problems.add(value.problem("has a byte of value 0, which no variable can have"));
        }
        // The name of what is no placeholder may be a part of a secret.
        match template_pieces(text) {
            Err(PlaceholderFault::Unknown(_)) => problems.add(value.problem(
                "has a placeholder that is none: write `{{` for a brace that stands for itself",
            )),
            Err(fault) => problems.add(value.problem(fault.to_string())),
            Ok(_) => {}
        }
    }
    for name in process.list("pass_environment") {
        if let Some(fault) = name.text().and_then(variable_fault) {
            problems.add(name.problem(fault));
        }
    }
}

/// Fault of the name of a variable.
fn variable_fault(name: &str) -> Option<String> {
    if RESERVED_VARIABLES.contains(&name) {
        return Some(format!("`{name}` is written by the gateway: remove it"));
    }
    let is_fit = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let begins = |c: char| !c.is_ascii_digit();
    match name.starts_with(begins) && name.chars().all(is_fit) {
        true => None,
        false => Some(format!(
            "{name:?} is no name of a variable: use letters, digits and _"
        )),
    }
}

fn check_sleep(
    process: &Cursor<'_>,
    row: Option<&Preset>,
    problems: &mut Problems,
    warnings: &mut Problems,
) {
    let Some(sleep) = process.key("sleep") else {
        return;
    };
    let NodeData::Number(level) = &sleep.node.data else {
        return;
    };
    let support = row.and_then(|row| row.sleep.as_ref());
    let is_known = |number: u64| {
        let levels = support.iter().flat_map(|support| support.levels);
        let mut numbers = levels.map(|calls| u64::from(calls.level.number()));
        numbers.any(|known| known == number)
    };
    if !level.as_u64().is_some_and(is_known) {
        let able = PRESETS.iter().filter(|preset| preset.sleep.is_some());
        let able: Vec<&str> = able.map(|preset| preset.name).collect();
        problems.add(sleep.problem(format!(
            "only servers of the preset {} can sleep: write `sleep: none`",
            able.join(" or ")
        )));
    } else if process.text_of("listen") == Some("any") {
        warnings.add(sleep.problem(
            "its routes for sleep ask for no key, and with `listen: any` other hosts reach them: write `listen: loopback`",
        ));
    }
}

fn check_adapters(process: &Cursor<'_>, row: Option<&Preset>, problems: &mut Problems) {
    let adapters = process.list("adapters");
    let Some(key) = process.key("adapters").filter(|_| !adapters.is_empty()) else {
        return;
    };
    if row.is_none_or(|row| row.adapters.is_none()) {
        problems.add(key.problem(match row {
            Some(row) => format!("the preset {} loads no adapters: remove them", row.name),
            None => "only presets load adapters: name them in `command`".to_owned(),
        }));
    }
    let mut names: HashMap<&str, String> = HashMap::new();
    for adapter in &adapters {
        let Some(name) = adapter.key("name") else {
            continue;
        };
        let Some(text) = name.text() else { continue };
        if let Some(first) = names.get(text) {
            problems.add(name.problem(format!("{text:?} already stands at `{first}`")));
        } else if text.contains(['=', ',', '\0']) {
            problems.add(name.problem("must have no `=` and no comma"));
        } else {
            names.insert(text, name.path.clone());
        }
    }
}

/// Two processes of one file take its memory twice, which is seldom meant.
fn warn_of_shared_files(models: &[Cursor<'_>], warnings: &mut Problems) {
    let mut first: HashMap<&str, (&Cursor<'_>, String)> = HashMap::new();
    for model in models {
        let Some(path) = model.key("process").and_then(|it| it.key("model_path")) else {
            continue;
        };
        let Some(text) = path.text() else { continue };
        let Some((other, place)) = first.get(text) else {
            first.insert(text, (model, path.path.clone()));
            continue;
        };
        let settings = |model: &Cursor<'_>| model.key("process").map(|it| it.node.to_value());
        if settings(other) != settings(model) {
            warnings.add(path.problem(format!(
                "`{place}` has the same file with other settings: both processes have its memory, use `aliases` where one \
                 is enough"
            )));
        }
    }
}

#[cfg(test)]
pub(in crate::config::check) mod tests {
    use super::*;
    use crate::config::{LoadedConfig, Problem, parse};

    fn load(model: &str, more: &str) -> Result<LoadedConfig, Vec<Problem>> {
        let text = format!(
            "listen: {{ clients: [{{ address: \"127.0.0.1:8080\" }}] }}\nanonymous: allow\nmodels:\n  - {{ id: m, task: text-generation, {model} }}\n{more}\n"
        );
        parse(&text, &|_: &str| None)
    }

    fn pair(problem: &Problem) -> (String, String) {
        (problem.path.clone(), problem.message.clone())
    }

    /// The one problem of a file with this model: path and message.
    pub(in crate::config::check) fn problem(model: &str, more: &str) -> (String, String) {
        let found = load(model, more).unwrap_err();
        assert_eq!(found.len(), 1, "{model} {more} {found:#?}");
        pair(&found[0])
    }

    /// The one warning of a good file with this model.
    pub(in crate::config::check) fn warning(model: &str, more: &str) -> (String, String) {
        let found = load(model, more).unwrap().warnings;
        assert_eq!(found.len(), 1, "{model} {more} {found:#?}");
        pair(&found[0])
    }

    /// A model of llama-server with further keys of its process.
    fn llama(more: &str) -> String {
        format!(
            "backend: llama-server, process: {{ preset: llama-server, model_path: m.gguf, {more} }}"
        )
    }

    #[test]
    fn a_model_with_a_process_needs_no_endpoints() {
        let loaded = load(&llama(""), "").unwrap();
        assert_eq!(loaded.warnings, []);
        assert!(loaded.config.models[0].endpoints.is_empty());
        let process = loaded.config.models[0].process.as_ref().unwrap();
        assert_eq!((process.context, process.parallel), (8192, 4));
        let beside = format!("{}, endpoints: [{{ url: \"http://a:1\" }}]", llama(""));
        assert_eq!(load(&beside, "").unwrap().warnings, []);
    }

    #[test]
    fn exactly_one_of_preset_and_command_says_what_to_run() {
        let neither = problem("backend: openai, process: {}", "");
        assert_eq!(neither.0, "models[0].process");
        assert!(
            neither
                .1
                .contains("one of llama-server, vllm, sglang, tgi, tei, simulate")
        );
        let both = problem(&llama("command: [x]"), "");
        assert_eq!(both.0, "models[0].process.command");
        let unknown = problem("backend: openai, process: { preset: vlmm }", "");
        assert!(unknown.1.contains("did you mean `vllm`?"), "{unknown:?}");
    }

    #[test]
    fn places_that_exclude_each_other_are_named() {
        let found = problem(&format!("{}, discovery: {{ dns: \"a:1\" }}", llama("")), "");
        assert_eq!(found.0, "models[0].discovery");
        let found = problem(&format!("{}, replicas: {{ min: 2 }}", llama("")), "");
        assert_eq!(found.0, "models[0].replicas.min");
        let sized = format!("{}, replicas: {{ min: 2, max: 2 }}", llama(""));
        assert!(load(&sized, "").is_ok());
    }

    #[test]
    fn a_process_is_no_base_of_another_model() {
        let other = "  - { id: n, task: text-generation, backend: llama-server, base: { model: m, weights: w } }";
        let found = load(&llama("parallel: 1"), other).unwrap_err();
        let named = found.iter().find(|it| it.path == "models[1].base.model");
        assert!(
            named.unwrap().message.contains("has a `process`"),
            "{found:?}"
        );
    }

    #[test]
    fn options_that_break_the_accounting_are_refused_where_they_stand() {
        let fit = problem(&llama("arguments: [\"--fit\", \"on\"]"), "");
        assert_eq!(fit.0, "models[0].process.arguments[0]");
        assert!(fit.1.contains("`--fit` cannot be set here"), "{fit:?}");
        let port = problem(&llama("arguments: [-fa, \"on\", \"--port=9\"]"), "");
        assert_eq!(port.0, "models[0].process.arguments[2]");
        assert!(port.1.contains("gpu.ports"), "{port:?}");
        assert!(load(&llama("arguments: [\"--fit\", \"off\", -ub, \"256\"]"), "").is_ok());
    }

    #[test]
    fn placeholders_are_known_and_a_path_that_is_used_is_given() {
        let command = |command: &str| format!("backend: openai, process: {{ command: {command} }}");
        let unknown = problem(&command("[serve, \"{prot}\"]"), "");
        assert_eq!(unknown.0, "models[0].process.command[1]");
        assert!(
            unknown.1.starts_with("`{prot}` is no placeholder"),
            "{unknown:?}"
        );
        let missing = problem(&command("[serve, \"{model_path}\"]"), "");
        assert!(
            missing.1.starts_with("`model_path` is missing"),
            "{missing:?}"
        );
        let preset = problem("backend: vllm, process: { preset: vllm }", "");
        assert_eq!(preset.0, "models[0].process");
        let unused = warning(
            "backend: openai, process: { command: [serve, \"{port}\"], model_path: m }",
            "",
        );
        assert_eq!(unused.0, "models[0].process.model_path");
        assert!(load(&command("[serve, \"{port}\", \"{{}\"]"), "").is_ok());
    }

    #[test]
    fn variables_have_names_and_their_values_are_not_repeated() {
        let reserved = problem(&llama("environment: { CUDA_VISIBLE_DEVICES: \"0\" }"), "");
        assert!(
            reserved.1.contains("written by the gateway"),
            "{reserved:?}"
        );
        let name = problem(&llama("pass_environment: [\"A=B\"]"), "");
        assert_eq!(name.0, "models[0].process.pass_environment[0]");
        let secret = problem(&llama("environment: { TOKEN: \"{hunter2}\" }"), "");
        assert!(!secret.1.contains("hunter2"), "{secret:?}");
        let typed = problem(&llama("environment: { TOKEN: [hunter2] }"), "");
        assert!(!typed.1.contains("hunter2"), "{typed:?}");
    }

    #[test]
    fn only_a_server_that_can_sleeps() {
        let vllm = |more: &str| {
            format!("backend: vllm, process: {{ preset: vllm, model_path: m, {more} }}")
        };
        assert_eq!(load(&vllm("sleep: 2"), "").unwrap().warnings, []);
        assert_eq!(load(&vllm("sleep: none"), "").unwrap().warnings, []);
        let llama = problem(&llama("sleep: 1"), "");
        assert_eq!(llama.0, "models[0].process.sleep");
        assert!(
            llama.1.contains("the preset vllm or simulate can sleep"),
            "{llama:?}"
        );
        let level = problem(&vllm("sleep: 3"), "");
        assert!(level.1.contains("only servers") || level.1.contains("none, 1, 2"));
        let open = warning(&vllm("sleep: 1, listen: any"), "");
        assert!(open.1.contains("ask for no key"), "{open:?}");
    }

    #[test]
    fn a_preset_has_a_protocol_and_may_need_its_memory() {
        let found = problem("backend: tgi, process: { preset: vllm, model_path: m }", "");
        assert_eq!(found.0, "models[0].backend");
        assert!(found.1.contains("use vllm or openai"), "{found:?}");
        let found = problem("backend: openai, process: { preset: simulate }", "");
        assert_eq!(found.0, "models[0].process.preset");
    }

    #[test]
    fn adapters_have_names_of_their_own_and_a_server_that_loads_them() {
        let adapter = "{ name: a, path: a.gguf }";
        assert!(load(&llama(&format!("adapters: [{adapter}]")), "").is_ok());
        let twice = problem(&llama(&format!("adapters: [{adapter}, {adapter}]")), "");
        assert_eq!(twice.0, "models[0].process.adapters[1].name");
        let tei = format!(
            "backend: openai, process: {{ preset: tei, model_path: m, adapters: [{adapter}] }}"
        );
        assert!(problem(&tei, "").1.contains("loads no adapters"));
    }

    #[test]
    fn keys_without_a_process_and_files_with_two_settings_are_odd() {
        let remote = "backend: openai, endpoints: [{ url: \"http://a:1\" }], pin: true";
        assert_eq!(warning(remote, "").0, "models[0].pin");
        let second = "  - { id: n, task: text-generation, backend: llama-server, process: { preset: llama-server, model_path: m.gguf, context: 4096 } }";
        let shared = warning(&llama(""), second);
        assert_eq!(shared.0, "models[1].process.model_path");
        assert!(shared.1.contains("the same file with other settings"));
    }

    #[test]
    fn processes_need_linux() {
        assert_eq!(platform_fault(true), None);
        assert!(platform_fault(false).unwrap().contains("Linux only"));
    }
}
