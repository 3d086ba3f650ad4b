//! Control group of an instance, where the system lets the gateway make groups (cgroup v2,
//! <https://docs.kernel.org/admin-guide/cgroup-v2.html>).
//!
//! A group is a second net below the keeper: `cgroup.kill` reaches every process at once. Limits need controllers that
//! are enabled for the gateway's own group, as systemd does with `Delegate=yes` and `DelegateSubgroup=`.

use std::io;
use std::path::{Path, PathBuf};

use super::identity::InstanceId;
use super::protocol::ProcessLimits;

/// Beginning of the names of the groups.
const PREFIX: &str = "infergate-";
/// Controllers of the limits of an instance, enabled one by one: a host may lack any of them.
const CONTROLLERS: [&str; 3] = ["+memory", "+pids", "+cpu"];
/// Weight of a group's share of processors, where the default is 100.
const CPU_WEIGHT: &str = "100";

/// Returns the directory of this process's own group in the second version's tree; none where there is none or where it
/// cannot be written.
pub fn own_group() -> Option<PathBuf> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let root = mounts.lines().find_map(|mount| {
        let mut fields = mount.split(' ').skip(1);
        let path = fields.next()?;
        (fields.next()? == "cgroup2").then_some(path)
    })?;
    let directory = Path::new(root).join(own);
    let is_writable =
        rustix::fs::access(directory.join("cgroup.procs"), rustix::fs::Access::WRITE_OK);
    is_writable.is_ok().then_some(directory)
}

/// Lets the next process enter a group at once: this process is moved to the group that it is in.
///
/// The first move waits until every processor has been quiet, some 5 to 15 ms; those that follow closely do not
/// (`percpu_down_write`, kernel/rcu/sync.c). Blocks for as long, and all other changes of groups with it: to be called when the
/// group is made, beside what else a start needs.
pub fn prepare_cgroup_entry() {
    // Read anew: whoever moved this process meant it.
    if let Some(own) = own_group() {
        let _ = std::fs::write(own.join("cgroup.procs"), "0");
    }
}

/// Returns the group below which those of instances are made, with the controllers of their limits enabled where the
/// system allows it; none where this process may make no group.
///
/// With `DelegateSubgroup=` that is the group above the gateway's own, which has no process: controllers can only be
/// enabled there.
pub fn delegated_group() -> Option<PathBuf> {
    let own = own_group()?;
    let above = own.parent().filter(|above| is_delegated(above));
    let group = above.map_or(own.clone(), Path::to_owned);
    if above.is_some() || own.join("cgroup.type").metadata().is_err() {
        // The root of the tree, which has no type, may have processes and controllers both.
        for controller in CONTROLLERS {
            let _ = std::fs::write(group.join("cgroup.subtree_control"), controller);
        }
    }
    Some(group)
}

/// Returns whether a group has no process and may be written by this one.
fn is_delegated(group: &Path) -> bool {
    let members = group.join("cgroup.procs");
    let is_empty = std::fs::read(&members).is_ok_and(|members| members.is_empty());
    let can_write =
        |file: &str| rustix::fs::access(group.join(file), rustix::fs::Access::WRITE_OK).is_ok();
    is_empty && can_write("cgroup.procs") && can_write("cgroup.subtree_control")
}

/// Returns whether a group limits the memory of its processes.
pub fn limits_memory(group: &Path) -> bool {
    group.join("memory.max").exists()
}

/// Makes the group of an instance below `parent`, with the limits that its controllers know.
///
/// # Errors
/// The group cannot be made.
pub fn create(parent: &Path, instance: &InstanceId, limits: &ProcessLimits) -> io::Result<PathBuf> {
    let group = parent.join(format!("{PREFIX}{}", instance.file_stem()));
    std::fs::create_dir(&group)?;
    // Files of controllers that are not enabled are not there.
    let set = |file: &str, value: &str| {
        let _ = std::fs::write(group.join(file), value);
    };
    if limits.memory_mib > 0 {
        let bytes = limits.memory_mib.saturating_mul(1 << 20);
        set("memory.max", &bytes.to_string());
    }
    if limits.pids > 0 {
        set("pids.max", &limits.pids.to_string());
    }
    set("cpu.weight", CPU_WEIGHT);
    Ok(group)
}

/// Ends every process of the group at once.
pub fn kill(group: &Path) {
    if is_ours(group) {
        let _ = std::fs::write(group.join("cgroup.kill"), "1");
    }
}

/// Removes the group once it is empty.
pub fn remove(group: &Path) {
    if is_ours(group) {
        let _ = std::fs::remove_dir(group);
    }
}

/// A record names the group: no other is touched for it.
fn is_ours(group: &Path) -> bool {
    let name = group.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with(PREFIX)) && group.join("cgroup.procs").exists()
}
