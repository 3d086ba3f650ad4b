"""The unit of systemd: as its own checker reads it, and with what must and must not stand in it."""

import re
import subprocess

from outside import ROOT

FOLDER = ROOT / "deploy" / "systemd"
MUST = (
    "Type=notify",
    "NotifyAccess=all",
    "KillMode=mixed",
    "Delegate=yes",
    "ProtectSystem=strict",
    "CapabilityBoundingSet=",
    "NoNewPrivileges=yes",
    "RuntimeDirectory=infergate",
    "StateDirectory=infergate",
    "ExecStopPost=/usr/bin/infergate gpu sweep --config /etc/infergate/infergate.yaml",
)
# Cards, compiled plugins, control groups of models, and processes of other users with leases need what these take away.
MUST_NOT = (
    "PrivateDevices",
    "ProtectClock",
    "MemoryDenyWriteExecute",
    "ProtectControlGroups",
    "ProtectProc",
    "ProcSubset",
    "PrivatePIDs",
)
# Known from version 254 on, and without effect before.
LATER_KEYS = ("DelegateSubgroup",)


def settings(text):
    return [line for line in text.splitlines() if line and not line.startswith(("#", "["))]


def verify(unit):
    """Lines of the checker that are no consequence of an older version."""
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    own = [line for line in done.stdout.splitlines() if "infergate" in line]
    return [line for line in own if not any(f"'{key}'" in line for key in LATER_KEYS)]


def check(binary, scratch):
    text = (FOLDER / "infergate.service").read_text()
    lines = settings(text)
    yield from (f"{line} is missing" for line in MUST if line not in lines)
    names = {line.split("=")[0] for line in lines}
    yield from (f"{name} breaks what runs here" for name in MUST_NOT if name in names)
    # The checker looks whether the program is there.
    here = text.replace("/usr/bin/infergate", str(binary))
    unit = scratch / "infergate.service"
    unit.write_text(here)
    yield from verify(unit)
    # It can fail.
    unit.write_text(here.replace("KillMode=mixed", "KillMode=mixd"))
    if not verify(unit):
        yield "a wrong value is not found"
    unit.write_text(here)
    socket = scratch / "infergate.socket"
    socket.write_text((FOLDER / "infergate.socket").read_text())
    yield from verify(socket)
    socket.unlink()
    drop_in = scratch / "infergate.service.d" / "keep-models.conf"
    drop_in.parent.mkdir()
    drop_in.write_text((FOLDER / "keep-models.conf").read_text())
    yield from verify(unit)
    kept = settings(drop_in.read_text())
    if kept != ["KillMode=process", "ExecStopPost="]:
        yield f"{drop_in.name}: {kept}"
    for command in re.findall(r"^Exec\w+=(/usr/bin/infergate .*)$", text, re.M):
        words = command.replace("/usr/bin/infergate", str(binary)).split()
        options = [word for word in words if not word.startswith("/etc/")][:-1]
        done = subprocess.run([*options, "--help"], capture_output=True, text=True, timeout=60)
        if done.returncode != 0 or "--config" not in done.stdout:
            yield f"{command}: no such command"
