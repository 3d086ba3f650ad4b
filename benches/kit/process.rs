//! Child processes: started pinned, watched until they answer, ended when dropped.
//! Not a supervisor: a child that dies stays dead and the bench says so.
//!
//! Called by both bench programs for upstreams, proxies and load generators.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::Fallible;

/// Longest wait for a child to accept connections; a debug build with a thousand models needs seconds.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Pause between two looks at something that is awaited.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Open files a proxy may have: the stream scenario opens two per stream.
const OPEN_FILES: u32 = 20_000;

/// A child process, killed when dropped.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with its output in `folder/name.log`, pinned to `cores` (a taskset list) if given.
    pub fn start(
        name: &str,
        command: Command,
        cores: Option<&str>,
        folder: &Path,
    ) -> Fallible<Self> {
        let log = folder.join(format!("{name}.log"));
        let output = File::create(&log)?;
        let child = pinned(command, cores)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .map_err(|error| format!("{name} did not start: {error}"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log,
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// Waits until `ready` says yes; an error carries the last lines of the child's output.
    pub fn wait_until(&mut self, mut ready: impl FnMut() -> bool) -> Fallible<()> {
        let began = Instant::now();
        loop {
            if ready() {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                return Err(
                    format!("{} ended ({status}): {}", self.name, self.last_words()).into(),
                );
            }
            if began.elapsed() > START_LIMIT {
                return Err(format!(
                    "{} was not ready within {START_LIMIT:?}: {}",
                    self.name,
                    self.last_words()
                )
                .into());
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    pub fn wait_for_port(&mut self, address: SocketAddr) -> Fallible<()> {
        self.wait_until(|| TcpStream::connect_timeout(&address, LOOK_EVERY * 10).is_ok())
    }

    /// Sends a signal by name (`TERM`, `HUP`), as an operator would.
    pub fn signal(&self, name: &str) -> Fallible<()> {
        Command::new("kill")
            .arg(format!("-{name}"))
            .arg(self.pid().to_string())
            .status()?;
        Ok(())
    }

    /// Waits for the child to end by itself; None when it is still there after `limit`.
    pub fn wait_for_end(&mut self, limit: Duration) -> Fallible<Option<i32>> {
        let began = Instant::now();
        while began.elapsed() < limit {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status.code().unwrap_or(-1)));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(None)
    }

    fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `command` under `taskset`, and with room for many sockets.
pub fn pinned(command: Command, cores: Option<&str>) -> Command {
    let mut shell = Command::new("sh");
    // `exec` keeps the pid, so the figures read from /proc are those of the program itself.
    let script = match cores {
        Some(cores) => {
            format!("ulimit -n {OPEN_FILES} 2>/dev/null; exec taskset -c {cores} \"$0\" \"$@\"")
        }
        None => format!("ulimit -n {OPEN_FILES} 2>/dev/null; exec \"$0\" \"$@\""),
    };
    shell.arg("-c").arg(script).arg(command.get_program());
    shell.args(command.get_args());
    shell
}

/// Moves a running process, with all its threads, to `cores`.
pub fn pin(pid: u32, cores: &str) -> Fallible<()> {
    let status = Command::new("taskset")
        .args(["-a", "-p", "-c", cores])
        .arg(pid.to_string())
        .stdout(Stdio::null())
        .status()?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("taskset does not move process {pid} to {cores}").into()),
    }
}

/// Returns a port without a listener. Another process may take the port first; the start then fails.
pub fn free_port() -> Fallible<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?.port())
}

pub fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// The program's path when it is installed. Debian keeps servers in sbin, which a user's PATH may lack;
/// `scripts/bench-peers` installs into a folder of the checkout.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/peers/bin");
    let extra = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    std::iter::once(tools)
        .chain(std::env::split_paths(&path))
        .chain(extra)
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file())
}
