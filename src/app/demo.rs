//! `demo` and `simulate`: something to try the gateway on.

use std::process::ExitCode;

use tokio::net::TcpListener;

use super::{fail, runtime, signals::Signals};
use crate::config;
use crate::simulate;

/// What the demo serves, beside the curl lines that use it.
const BANNER: &str = r#"
infergate demo: the gateway on 127.0.0.1:8080 in front of two simulated GPU containers.

OpenAI chat
  curl -s http://127.0.0.1:8080/v1/chat/completions -H 'Authorization: Bearer demo-key' \
    -H 'Content-Type: application/json' \
    -d '{"model":"llama-3.1-8b","messages":[{"role":"user","content":"hello"}]}'

OpenAI chat, streaming
  curl -sN http://127.0.0.1:8080/v1/chat/completions -H 'Authorization: Bearer demo-key' \
    -H 'Content-Type: application/json' \
    -d '{"model":"llama-3.1-8b","stream":true,"messages":[{"role":"user","content":"hello"}]}'

Workers AI run
  curl -s http://127.0.0.1:8080/client/v4/accounts/demo/ai/run/@cf/meta/llama-3.1-8b-instruct \
    -H 'Authorization: Bearer demo-key' -d '{"prompt":"hello"}'

Embeddings
  curl -s http://127.0.0.1:8080/v1/embeddings -H 'Authorization: Bearer demo-key' \
    -H 'Content-Type: application/json' \
    -d '{"model":"@cf/baai/bge-base-en-v1.5","input":["hello"],"encoding_format":"float"}'

Look inside
  http://127.0.0.1:9090/state   http://127.0.0.1:9090/metrics   http://127.0.0.1:9090/readyz

Ctrl-C ends it.
"#;

/// Runs the gateway on the quickstart configuration in front of two simulated containers.
pub fn demo() -> ExitCode {
    let _containers = match Containers::start() {
        Ok(containers) => containers,
        Err(problem) => return fail(&problem),
    };
    let file = match quickstart_file() {
        Ok(file) => file,
        Err(error) => return fail(&format!("cannot write the demo's configuration: {error}")),
    };
    println!("{BANNER}");
    println!(
        "The configuration is {}: edit it and watch the reload.\n",
        file.display()
    );
    super::serve(&file)
}

/// Where the demo keeps its configuration: in the working directory when that has the project's
/// own, else in a temporary folder.
fn quickstart_file() -> std::io::Result<std::path::PathBuf> {
    let own = std::path::PathBuf::from("config/quickstart.yaml");
    if own.exists() {
        return Ok(own);
    }
    let folder = std::env::temp_dir().join(format!("infergate-demo-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("quickstart"))?;
    for (path, bytes) in config::QUICKSTART_PLUGINS {
        std::fs::write(folder.join(path), bytes)?;
    }
    let file = folder.join("quickstart.yaml");
    std::fs::write(&file, config::QUICKSTART)?;
    Ok(file)
}

/// The demo's simulated containers, on a runtime of their own; they end with this value.
struct Containers {
    _runtime: tokio::runtime::Runtime,
}

impl Containers {
    fn start() -> Result<Containers, String> {
        let loaded = config::parse(config::QUICKSTART, &|_| None)
            .map_err(|problems| format!("the quickstart configuration is broken: {problems:?}"))?;
        let mut addresses: Vec<String> = loaded
            .config
            .models
            .iter()
            .flat_map(|model| &model.endpoints)
            .filter_map(|endpoint| endpoint.url.strip_prefix("http://").map(str::to_owned))
            .collect();
        addresses.sort();
        addresses.dedup();
        let runtime = runtime(1).map_err(|e| format!("cannot start the containers: {e}"))?;
        for address in addresses {
            let listener = runtime
                .block_on(TcpListener::bind(&address))
                .map_err(|e| format!("cannot listen on {address}: {e}"))?;
            let simulated = simulate::Config::default();
            runtime.spawn(async move {
                if let Err(error) =
                    simulate::serve(simulated, listener, std::future::pending()).await
                {
                    tracing::error!(%error, "a simulated container ended");
                }
            });
        }
        Ok(Containers { _runtime: runtime })
    }
}

/// Runs one simulated container until a signal ends it.
pub fn simulate(simulated: simulate::Config) -> ExitCode {
    let runtime = match runtime(1) {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error.to_string()),
    };
    runtime.block_on(async {
        let address = simulated.address;
        let listener = match TcpListener::bind(address).await {
            Ok(listener) => listener,
            Err(error) => return fail(&format!("cannot listen on {address}: {error}")),
        };
        let mut signals = match Signals::listen() {
            Ok(signals) => signals,
            Err(error) => return fail(&error.to_string()),
        };
        println!("simulated container on http://{address}");
        match simulate::serve(
            simulated,
            listener,
            async move { signals.terminate().await },
        )
        .await
        {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error.to_string()),
        }
    })
}
