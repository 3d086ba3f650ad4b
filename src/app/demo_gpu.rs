//! `demo --gpu`: three simulated models that share one simulated card.
//!
//! Leases, processes and swaps are those of a real card.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use super::demo::{Folder, free_ports};
use super::serve::{fail, serve};

/// Ports of clients and operators; a free port replaces one that is taken.
const PORTS: [u16; 2] = [8080, 9090];

const BANNER: &str = r#"
infergate demo --gpu: the gateway on 127.0.0.1:8080 with one simulated card of 24 GiB and three models.
Two of them fit beside each other, `large` beside `small` alone. Each is loaded when it is asked for.

Ask for one after the other, and see what is loaded and what leaves for it
  curl -s http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"model":"small","messages":[{"role":"user","content":"hello"}]}'
  curl -s http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"model":"middle","messages":[{"role":"user","content":"hello"}]}'
  curl -s http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"model":"large","messages":[{"role":"user","content":"hello"}]}'

The card and the models on it, in another terminal
  infergate gpu status --watch --admin 127.0.0.1:9090

Ctrl-C ends it, with every process.
"#;

/// Models: name, memory in MiB, seconds of a load.
const MODELS: [(&str, u32, u32); 3] = [
    ("small", 7000, 2),
    ("middle", 11_000, 3),
    ("large", 16_000, 4),
];
/// Memory of the card, MiB.
const CARD_MIB: u32 = 24_576;

/// Runs the gateway with models that share a simulated card.
pub fn demo_gpu() -> ExitCode {
    let (folder, file) = match Folder::make() {
        Ok(made) => made,
        Err(error) => return fail(&format!("cannot make the demo's folder: {error}")),
    };
    let ports = match free_ports(PORTS) {
        Ok(ports) => ports,
        Err(error) => return fail(&format!("the demo finds no ports: {error}")),
    };
    if let Err(error) = fill(folder.path(), &file, ports) {
        return fail(&format!("cannot write the demo's configuration: {error}"));
    }
    let banner = BANNER
        .replace("127.0.0.1:8080", &format!("127.0.0.1:{}", ports[0]))
        .replace("127.0.0.1:9090", &format!("127.0.0.1:{}", ports[1]));
    println!("{banner}");
    println!(
        "The configuration is {}: edit it and watch the reload. It goes with the demo.\n",
        file.display()
    );
    serve(&file)
}

fn fill(folder: &Path, file: &Path, [clients, admin]: [u16; 2]) -> io::Result<()> {
    // A path as a JSON string is one in YAML too, whatever is in it.
    let quoted = |name| serde_json::Value::from(folder.join(name).to_string_lossy()).to_string();
    let (state, cards, ledger) = (quoted("state"), quoted("cards"), quoted("ledger"));
    let models = MODELS.map(|(id, mib, secs)| {
        format!(
            "  - id: {id}\n    task: text-generation\n    backend: openai\n    \
             process: {{ preset: simulate, arguments: [\"--load-secs\", \"{secs}\"] }}\n    \
             vram: {{ mib: {mib} }}\n"
        )
    });
    let text = format!(
        "listen:\n  clients: [{{ address: \"127.0.0.1:{clients}\" }}]\n  admin: {{ address: \"127.0.0.1:{admin}\" }}\n\
         anonymous: allow\nstate_dir: {state}\n\
         gpu:\n  devices: simulated\n  ledger: {{ directory: {ledger} }}\n  \
         simulated: {{ directory: {cards}, cards: [{{ name: sim0, total_mib: {CARD_MIB} }}] }}\n\
         models:\n{}",
        models.concat()
    );
    std::fs::write(file, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_of_the_demo_is_good() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("c.yaml");
        fill(folder.path(), &file, [8080, 9090]).unwrap();
        let loaded = crate::config::load(&file).unwrap_or_else(|problems| panic!("{problems:?}"));
        assert_eq!(loaded.config.models.len(), MODELS.len());
    }
}
