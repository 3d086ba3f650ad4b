"""Bytes that a request copies, by valgrind's dhat.

Not every copy: dhat sees calls of `memcpy` and its kin, not moves that the compiler writes out. It cannot be
switched on for a window, so two runs are compared: one with requests, one that is idle for as long.
"""

import re
import time

PREFIX = (
    "valgrind",
    "--tool=dhat",
    "--mode=copy",
    "--dhat-out-file=/dev/null",
    "--log-file=%FOLDER%/dhat.log",
)
TOTAL = re.compile(r"Total: +([\d,]+) bytes")


def run(gateway, binary, traffic, act):
    """Bytes that all nodes copied from start to end of a run in which `act` is done with the open traffic."""
    with gateway.running(binary, PREFIX):
        load = traffic()
        load.warm_up()
        act(load)
        gateway.settle()
        load.finish()
    copied = 0
    for node in gateway.nodes:
        total = TOTAL.search((node.folder / "dhat.log").read_text(errors="replace"))
        if total is None:
            raise RuntimeError("dhat wrote no total")
        copied += int(total.group(1).replace(",", ""))
    return copied


def count(gateway, binary, traffic):
    """Bytes copied by one request or event."""
    secs = parts = 0

    def play(load):
        nonlocal secs, parts
        begun = time.monotonic()
        load.play()
        secs, parts = time.monotonic() - begun, load.parts

    busy = run(gateway, binary, traffic, play)
    idle = run(gateway, binary, traffic, lambda _: time.sleep(secs))
    return (busy - idle) / parts
