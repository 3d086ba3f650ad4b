//! The command `infergate upgrade`: asks the process that serves to be followed by this program.
//!
//! No process is started here: the process that serves does, so that its successor has its environment, its log and its place
//! below the service manager.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::time::timeout;

use super::messages::{UpgradeAnswer, UpgradeRequest, receive, send};
use super::offer::SOCKET;
use crate::app::allow_missing::load_allowing_missing;
use crate::telemetry::printable;

/// Longest upgrade: longer than the gateway waits for a successor.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(420);

/// Runs the command with the configuration `file`, and prints what happens.
pub fn upgrade(file: &Path) -> ExitCode {
    let state_dir = match load_allowing_missing(file) {
        Ok(loaded) => loaded.config.state_dir,
        Err(problems) => {
            for problem in problems {
                let problem = problem.to_string();
                eprintln!("{}: error: {}", file.display(), printable(&problem));
            }
            return failed("the configuration does not load");
        }
    };
    // A relative directory is looked for here, and by the gateway where that was started.
    let socket =
        std::path::absolute(state_dir.join(SOCKET)).unwrap_or_else(|_| state_dir.join(SOCKET));
    let asked = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .and_then(|runtime| {
            let asked =
                runtime.block_on(async { timeout(ANSWER_TIMEOUT, ask(file, &socket)).await });
            asked.map_err(|_| io::Error::other("the gateway does not answer"))?
        });
    match asked {
        Ok(Ok(pid)) => {
            println!("process {pid} serves; the one before it ends with its last request");
            ExitCode::SUCCESS
        }
        Ok(Err(reason)) => failed(&reason),
        Err(error) => failed(&format!("{}: {error}", socket.display())),
    }
}

fn failed(reason: &str) -> ExitCode {
    let reason = printable(reason);
    eprintln!("infergate: error: {reason}\nnothing has changed: a gateway that served serves on");
    ExitCode::FAILURE
}

/// Asks, prints the progress, and returns the successor or the reason why there is none.
async fn ask(file: &Path, socket: &Path) -> io::Result<Result<u32, String>> {
    let request = UpgradeRequest {
        binary: std::env::current_exe()?,
        config: std::path::absolute(file)?,
    };
    let mut stream = match UnixStream::connect(socket).await {
        Ok(stream) => stream,
        Err(error) => {
            let socket = socket.display();
            return Ok(Err(format!(
                "no gateway can be asked at {socket}: {error}; does one serve with this `state_dir`, and was the \
                 directory there when it started?"
            )));
        }
    };
    send(&mut stream, &request).await?;
    loop {
        match receive(&mut stream).await {
            Ok(UpgradeAnswer::Progress(step)) => {
                println!("{}", printable(&step));
                io::stdout().flush()?;
            }
            Ok(UpgradeAnswer::Done { pid }) => return Ok(Ok(pid)),
            Ok(UpgradeAnswer::Failed(reason)) => return Ok(Err(reason)),
            Err(error) => {
                return Ok(Err(format!(
                    "the gateway has closed the connection ({error}); its log tells why"
                )));
            }
        }
    }
}
