"""The Debian package: built, installed into a tree of its own, its files in place, its binary at work."""

import gzip
import os
import subprocess

from outside import ROOT

FILES = (
    "usr/bin/infergate",
    "usr/lib/systemd/system/infergate.service",
    "usr/lib/systemd/system/infergate.socket",
    "usr/lib/sysusers.d/infergate.conf",
    "etc/infergate/infergate.yaml",
    "usr/share/bash-completion/completions/infergate",
    "usr/share/zsh/vendor-completions/_infergate",
    "usr/share/fish/vendor_completions.d/infergate.fish",
    "usr/share/man/man1/infergate.1.gz",
    "usr/share/man/man1/infergate-serve.1.gz",
    "usr/share/doc/infergate/copyright",
    "usr/share/doc/infergate/example.yaml",
    "usr/share/doc/infergate/keep-models.conf",
    "usr/share/doc/infergate/alerts.yaml",
    "usr/share/doc/infergate/grafana.json",
)


def run(*command, **more):
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        **more,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]}: exit status {done.returncode}\n{done.stdout[-3000:]}")
    return done.stdout


def dpkg(tree, *arguments):
    # Its libraries are not in the new tree, and its scripts run here.
    force = "--force-depends,script-chrootless"
    return run("dpkg", f"--root={tree}", force, "--log=/dev/null", *arguments)


def check(binary, scratch):
    env = {**os.environ, "INFERGATE_DEB_COMPRESSION": "none"}
    made = run(ROOT / "deploy" / "deb", binary, scratch, env=env).strip()
    control = run("dpkg-deb", "--field", made)
    if "libc6 (>= 2." not in control:
        yield f"no version of libc6 in\n{control}"
    tree = scratch / "root"
    # Only root gives files to root, as an installation does.
    is_root = os.geteuid() == 0
    if is_root:
        (tree / "var/lib/dpkg/info").mkdir(parents=True)
        (tree / "var/lib/dpkg/updates").mkdir()
        (tree / "var/lib/dpkg/status").touch()
        dpkg(tree, "--install", made)
    else:
        run("dpkg-deb", "--extract", made, tree)
    yield from (f"{file} is not installed" for file in FILES if not (tree / file).is_file())
    manual = gzip.decompress((tree / "usr/share/man/man1/infergate-gpu-sweep.1.gz").read_bytes())
    if b"ExecStopPost" not in manual:
        yield "the man page of `gpu sweep` says nothing of its use"
    installed = tree / "usr/bin/infergate"
    yield from check_start(scratch)
    configuration = tree / "etc/infergate/infergate.yaml"
    said = run(installed, "check", configuration)
    if said.strip() != f"{configuration}: good":
        yield f"the configuration is not good: {said}"
    if is_root:
        yield from check_changes(tree, made, installed, configuration)


RESTART = "systemctl try-restart infergate.service"
UPGRADE = (
    "runuser -u infergate -- /usr/bin/infergate upgrade --config /etc/infergate/infergate.yaml"
)


def check_start(scratch):
    """What is done with a gateway that runs: it is upgraded, and restarted only where that fails."""
    host = scratch / "host"
    host.mkdir()
    said = host / "said"
    for name in ("systemctl", "systemd-sysusers", "runuser"):
        stub = host / name
        exits = name.upper()[:4] + "_EXIT"
        stub.write_text(f'#!/bin/sh\necho "{name} $*" >>{said}\neval "${exits}"\n')
        stub.chmod(0o755)
    # Its commands are those of a host with systemd, whatever runs here.
    script = (ROOT / "deploy" / "debian" / "postinst").read_text()
    script = script.replace("/run/systemd/system", str(host))
    inactive = "[ $1 != is-active ]"
    for former, active, upgraded, expected in (
        ("", "", "", []),
        ("0.1", inactive, "", []),
        ("0.1", "", "", [UPGRADE]),
        ("0.1", "", "exit 1", [UPGRADE, RESTART]),
    ):
        said.write_text("")
        env = {**os.environ, "PATH": f"{host}:{os.environ['PATH']}", "DPKG_ROOT": ""}
        env.update(SYST_EXIT=active, RUNU_EXIT=upgraded)
        run("sh", "-c", script, "postinst", "configure", former, env=env)
        done = [line for line in said.read_text().splitlines() if line in (UPGRADE, RESTART)]
        if done != expected:
            yield f"after {former!r} postinst does {done}, expected {expected}"


def check_changes(tree, made, installed, configuration):
    """An upgrade, a removal and a purge."""
    # A file of the operator's stays as it is, and goes with a purge.
    configuration.write_text("anonymous: deny\n")
    dpkg(tree, "--force-confold", "--install", made)
    if configuration.read_text() != "anonymous: deny\n":
        yield "an upgrade overwrites the configuration"
    dpkg(tree, "--remove", "infergate")
    if installed.exists() or not configuration.exists():
        yield "a removal leaves the binary, or takes the configuration"
    dpkg(tree, "--purge", "infergate")
    if configuration.exists():
        yield "a purge leaves the configuration"
