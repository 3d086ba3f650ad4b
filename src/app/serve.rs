//! The process of a gateway: configuration, log and worker threads around a [`Gateway`].
//!
//! Exit codes are those of `infergate serve --help`.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use pingora_timeout::fast_timeout::set_fast_timeout_to_tokio_threshold;
use tokio::runtime::{Builder, Runtime};

use super::gateway::Gateway;
use super::heap;
use super::load::{Loader, PreparedConfig};
use super::upgrade::{Predecessor, Turn};
use crate::config::{self, LoadedConfig, Problem};
use crate::plugin::{CompileWait, PluginSnapshot};
use crate::telemetry::log::LogHandle;
use crate::telemetry::{Clock, Metrics, log, printable};

/// A configuration that does not load at start, or an address that is taken.
const EXIT_CANNOT_START: u8 = 2;
/// For the last lines of the log; a reader that has stopped must not keep the process.
const LOG_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// For idle tasks to notice the end of the runtime.
const RUNTIME_CLOSE_TIMEOUT: Duration = Duration::from_millis(100);

/// Runs a gateway with the configuration `file`, until a signal or a successor ends it.
pub fn serve(file: &Path) -> ExitCode {
    heap::keep_large_blocks();
    // Pingora's own timer is a thread that wakes a hundred times a second from its first use on.
    set_fast_timeout_to_tokio_threshold(Some(Duration::ZERO));
    let mut predecessor = match Predecessor::of_environment() {
        Ok(predecessor) => predecessor,
        Err(problem) => return fail(&problem),
    };
    let loaded = match config::load(file) {
        Ok(loaded) => loaded,
        Err(problems) => return cannot_start(file, &problems, predecessor.as_mut()),
    };
    let clock = Clock::start();
    let logs = match log::init(&loaded.config.log, clock) {
        Ok(logs) => logs,
        Err(error) => return fail(&error.to_string()),
    };
    let code = serve_logged((file, loaded), clock, logs.clone(), predecessor);
    logs.close(LOG_CLOSE_TIMEOUT);
    code
}

/// The same once there is a log.
fn serve_logged(
    (file, loaded): (&Path, LoadedConfig),
    clock: Clock,
    logs: LogHandle,
    mut predecessor: Option<Predecessor>,
) -> ExitCode {
    let metrics = Arc::new(Metrics::new(
        env!("CARGO_PKG_VERSION"),
        env!("INFERGATE_GIT_HASH"),
        clock.wall().unix_timestamp() as f64,
    ));
    let state_dir = Some(loaded.config.state_dir.clone());
    let loader = Loader::new(file, state_dir, Arc::clone(metrics.plugins()));
    if let Some(predecessor) = &mut predecessor {
        predecessor.report_progress("its configuration is read; plugins are loaded");
    }
    let ready = match loader.complete(loaded, &PluginSnapshot::default(), CompileWait::Whole) {
        Ok(ready) => ready,
        Err(unready) => return cannot_start(file, &unready.problems, predecessor.as_mut()),
    };
    for warning in &ready.loaded.warnings {
        tracing::warn!(
            path = warning.path,
            line = warning.line,
            "{}",
            warning.message
        );
    }
    let runtime = match runtime(ready.loaded.config.threads) {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("cannot start worker threads: {error}")),
    };
    let began = (metrics, clock, logs);
    let code = runtime.block_on(serve_in_turn((file, ready), loader, began, predecessor));
    runtime.shutdown_timeout(RUNTIME_CLOSE_TIMEOUT);
    code
}

/// Builds the gateway and runs it: that of a successor once its turn has come.
async fn serve_in_turn(
    (file, ready): (&Path, PreparedConfig),
    loader: Loader,
    began: (Arc<Metrics>, Clock, LogHandle),
    predecessor: Option<Predecessor>,
) -> ExitCode {
    let mut turn = match predecessor {
        Some(predecessor) => match predecessor.await_turn().await {
            Ok(turn) => Some(turn),
            Err(problem) => return fail(&problem),
        },
        None => None,
    };
    match Gateway::build(file, ready, loader, began, turn.as_mut()).await {
        Ok(node) => node.run(turn).await,
        Err(problem) => fail_in_turn(turn, &problem).await,
    }
}

/// Reports to the predecessor that this process cannot serve, where there is one.
pub async fn fail_in_turn(turn: Option<Turn>, problem: &str) -> ExitCode {
    if let Some(turn) = turn {
        turn.report_failure(problem).await;
    }
    fail(problem)
}

/// Prints problems as `check` does; for start only, before there is a log.
fn cannot_start(
    file: &Path,
    problems: &[Problem],
    predecessor: Option<&mut Predecessor>,
) -> ExitCode {
    for problem in problems {
        let problem = problem.to_string();
        eprintln!("{}: error: {}", file.display(), printable(&problem));
    }
    if let (Some(predecessor), Some(first)) = (predecessor, problems.first()) {
        let (file, count) = (file.display(), problems.len());
        predecessor.report_failure(&format!("{file}: {first}; {count} problem(s) in all"));
    }
    eprintln!(
        "the configuration does not load; `infergate check {}` repeats this",
        file.display()
    );
    ExitCode::from(EXIT_CANNOT_START)
}

pub fn fail(problem: &str) -> ExitCode {
    eprintln!("infergate: error: {problem}");
    ExitCode::from(EXIT_CANNOT_START)
}

pub fn runtime(threads: u32) -> std::io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    if threads > 0 {
        builder.worker_threads(threads as usize);
    }
    builder.enable_all().thread_name("worker").build()
}
