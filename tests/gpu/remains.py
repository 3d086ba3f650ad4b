"""What a GPU host leaves behind: processes of models, their keepers, pages of simulated cards, leases.

Reads `/proc` and the ledger; takes no lock and signals nothing. Standard library only.
"""

import contextlib
import json
import os
import pathlib

MARK = b"INFERGATE_INSTANCE="


def start_of(pid):
    """Start of a process in clock ticks; none of one that has ended."""
    with contextlib.suppress(OSError):
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        if fields[0] not in "ZX":
            return int(fields[19])
    return None


def pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def instance_of(pid):
    """Instance that a process belongs to, by the mark in its environment."""
    with contextlib.suppress(OSError):
        for entry in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if entry.startswith(MARK):
                return entry[len(MARK):].decode()
    return None


def marked(prefix):
    """Processes by number, with their instance, whose name begins with `prefix`."""
    found = {pid: instance_of(pid) for pid in pids()}
    return {pid: name for pid, name in found.items() if name and name.startswith(prefix)}


def keepers_of(gateway):
    """Keepers that a gateway has started, as pairs of number and start."""
    found = []
    for pid in pids():
        with contextlib.suppress(OSError, IndexError):
            parent = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if int(parent) == gateway and words[:2] == [b"infergate", b"keep"]:
                found.append((pid, start_of(pid)))
    return found


def is_alive(process):
    pid, start = process
    return start is not None and start_of(pid) == start


class Card:
    """A simulated card by its folder."""

    def __init__(self, folder):
        self.folder = folder

    def holders(self):
        """Processes that hold pages, one entry for each page."""
        inodes = {str(page.stat().st_ino) for page in self.folder.glob("page-*")}
        held = []
        for line in pathlib.Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[5].rsplit(":", 1)[1] in inodes:
                held.append(int(words[4]))
        return held


def leases(directory):
    """Leases in the ledger of a folder; none of a ledger that is not there yet."""
    for file in directory.glob("ledger-*.json"):
        with contextlib.suppress(OSError):
            return json.loads(file.read_text())["leases"]
    return []


def live_leases(directory):
    """Leases whose holder is there; any change of the ledger frees the others."""
    held = leases(directory)
    return [lease for lease in held if is_alive((lease["holder"]["pid"], lease["holder"]["start"]))]
