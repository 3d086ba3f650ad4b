//! Start of the process of an instance, in two steps: the keeper starts this binary, which becomes the command.
//!
//! The step between sets what only a process itself can set without unsafe code: its end with the keeper, limits and
//! its control group.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, PipeReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use rustix::process::{
    Resource, Rlimit, Signal, getppid, getrlimit, set_parent_process_death_signal,
    setpriority_process, setrlimit,
};
use serde::{Deserialize, Serialize};

use crate::gpu::process::cgroup;
use crate::gpu::process::protocol::{InstanceSpec, ProcessLimits};
use crate::gpu::processes::ProcessId;

/// Arguments before those of the command.
pub const KEEPER_COMMAND: &str = "keep";
pub const EXEC_FLAG: &str = "--exec";
/// Path of this binary, also when its file has been replaced.
const OWN_BINARY: &str = "/proc/self/exe";
/// Models go first when the host runs out of memory, the gateway stays.
const OOM_SCORE: &str = "500";
/// Statuses of a shell for commands that cannot be run, and that are not there.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Settings of the step between.
#[derive(Debug, Serialize, Deserialize)]
struct ExecPlan {
    keeper: u32,
    working_directory: Option<PathBuf>,
    cgroup: Option<PathBuf>,
    limits: ProcessLimits,
}

/// Starts the process of an instance in a group of its own, with its output in a pipe.
///
/// # Errors
/// The system has no room for a process.
pub fn start(spec: &InstanceSpec) -> io::Result<(ProcessId, PipeReader)> {
    let plan = ExecPlan {
        keeper: std::process::id(),
        working_directory: spec.working_directory.clone(),
        cgroup: spec.cgroup.clone(),
        limits: spec.limits.clone(),
    };
    let (output, writer) = io::pipe()?;
    rustix::io::ioctl_fionbio(&output, true)?;
    let environment: BTreeMap<_, _> = spec.environment.iter().cloned().collect();
    let mut command = Command::new(OWN_BINARY);
    command.arg0("infergate");
    command.args([KEEPER_COMMAND, EXEC_FLAG]);
    command.arg(serde_json::to_string(&plan)?).args(&spec.argv);
    command.env_clear().envs(environment).process_group(0);
    command.stdin(Stdio::null());
    command.stdout(writer.try_clone()?).stderr(writer);
    let child = command.spawn()?;
    // A process that was not waited for has its number still.
    let process =
        ProcessId::of(child.id()).ok_or_else(|| io::Error::other("/proc is not there"))?;
    Ok((process, output))
}

/// Becomes the command. Comes back only when that fails.
pub fn become_command(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let plan = arguments.next().and_then(|plan| plan.into_string().ok());
    let plan = plan.and_then(|plan| serde_json::from_str::<ExecPlan>(&plan).ok());
    let (Some(plan), Some(program)) = (plan, arguments.next()) else {
        eprintln!("infergate: a keeper runs this");
        return ExitCode::from(NOT_EXECUTABLE);
    };
    if let Err(error) = prepare(&plan) {
        eprintln!("infergate: {error}");
        return ExitCode::from(NOT_EXECUTABLE);
    }
    let error = Command::new(&program).args(arguments).exec();
    eprintln!("infergate: {}: {error}", Path::new(&program).display());
    ExitCode::from(match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_EXECUTABLE,
    })
}

fn prepare(plan: &ExecPlan) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // A keeper that ended before the line above sends no signal any more.
    let parent = getppid().map(|parent| parent.as_raw_nonzero().get().cast_unsigned());
    if parent != Some(plan.keeper) {
        return Err(io::Error::other("the keeper has ended"));
    }
    let named = |what: &Path, error: io::Error| {
        io::Error::new(error.kind(), format!("{}: {error}", what.display()))
    };
    if let Some(cgroup) = &plan.cgroup {
        let members = cgroup.join("cgroup.procs");
        std::fs::write(&members, "0").map_err(|error| named(&members, error))?;
    }
    if let Some(directory) = &plan.working_directory {
        std::env::set_current_dir(directory).map_err(|error| named(directory, error))?;
    }
    // Absent in some sandboxes.
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    let group = plan.cgroup.as_deref();
    apply(&plan.limits, group.is_some_and(cgroup::limits_memory))
}

/// Sets limits of the process itself. A limit above that of the gateway becomes the gateway's.
fn apply(limits: &ProcessLimits, is_memory_limited: bool) -> io::Result<()> {
    if limits.open_files > 0 {
        lower(Resource::Nofile, limits.open_files)?;
    }
    // Private memory that can be written: address space that a GPU's driver reserves is not counted.
    if limits.memory_mib > 0 && !is_memory_limited {
        lower(Resource::Data, limits.memory_mib.saturating_mul(1 << 20))?;
    }
    if limits.nice != 0 {
        setpriority_process(None, limits.nice)?;
    }
    Ok(())
}

fn lower(resource: Resource, limit: u64) -> io::Result<()> {
    let present = getrlimit(resource);
    let limit = present.maximum.map_or(limit, |maximum| maximum.min(limit));
    let limit = Rlimit {
        current: Some(limit),
        maximum: Some(limit),
    };
    Ok(setrlimit(resource, limit)?)
}
