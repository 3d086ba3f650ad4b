//! NVIDIA devices through the real loading path: a library built here takes the place of the driver's.

use std::path::Path;
use std::process::{Command, Output};

use crate::support::NvmlDouble;

fn lease_on(machine: &NvmlDouble, vram: &str, visible: Option<&str>) -> Output {
    lease(machine.dir(), vram, visible, &machine.environment())
}

/// Runs a command that prints its devices, with the library in `dir`.
fn lease(
    dir: &Path,
    vram: &str,
    visible: Option<&str>,
    environment: &[(String, String)],
) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_infergate"));
    command.args(["lease", "--vram", vram, "--wait", "0s", "--ledger"]);
    command.arg(dir.join("ledger"));
    command.args(["--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]);
    command.env_remove("CUDA_VISIBLE_DEVICES");
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command.envs(visible.map(|devices| ("CUDA_VISIBLE_DEVICES", devices)));
    command.output().unwrap()
}

fn printed(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn a_lease_is_on_the_device_with_room_by_its_uuid() {
    let machine = NvmlDouble::new("gpu 24576 1000\ngpu 24576 18000\n");
    assert_eq!(printed(&lease_on(&machine, "20GiB", None)), "GPU-double-0");
    assert_eq!(printed(&lease_on(&machine, "5GiB", None)), "GPU-double-1");
    machine.set("gpu 24576 20000\ngpu 24576 18000\n");
    assert_eq!(lease_on(&machine, "20GiB", None).status.code(), Some(75));
}

#[test]
fn devices_that_are_not_visible_are_not_leased() {
    let machine = NvmlDouble::new("gpu 24576 0\ngpu 24576 18000\n");
    assert_eq!(
        printed(&lease_on(&machine, "1GiB", Some("0"))),
        "GPU-double-0"
    );
    let by_uuid = lease_on(&machine, "1GiB", Some("GPU-double-1"));
    assert_eq!(printed(&by_uuid), "GPU-double-1");
    assert_eq!(
        lease_on(&machine, "20GiB", Some("1")).status.code(),
        Some(75)
    );
    assert_eq!(lease_on(&machine, "1GiB", Some("")).status.code(), Some(69));
}

#[test]
fn a_lost_device_and_a_missing_library_are_69_with_a_sentence() {
    let machine = NvmlDouble::new("gpu 24576 0\nfail 15\n");
    let lost = lease_on(&machine, "1GiB", None);
    assert_eq!(lost.status.code(), Some(69));
    let without = tempfile::tempdir().unwrap();
    // Found before the driver's own, where there is one, and no library.
    std::fs::write(without.path().join(NvmlDouble::LIBRARY), "none").unwrap();
    let path = without.path().display().to_string();
    let environment = [("LD_LIBRARY_PATH".to_owned(), path)];
    let missing = lease(without.path(), "1GiB", None, &environment);
    assert_eq!(missing.status.code(), Some(69));
    let why = String::from_utf8_lossy(&missing.stderr);
    assert!(why.contains("no NVIDIA driver library"), "{why}");
}
