"""System calls of a window, by strace.

Not their time. The gateway runs alone; one strace is attached to each of its threads, so that those which serve no
requests can be left out.
"""

import os
import shutil
import signal
import subprocess
import time

from windows import Window, serving, waited_share

ENDED_LIMIT_SECS = 30


def missing():
    """The program of this tool that is not installed, or None."""
    return None if shutil.which("strace") else "strace"


def counted(pids, act, folder):
    """System calls of each thread of each process while `act` runs, and that window."""
    threads = [(pid, thread) for pid in pids for thread in os.listdir(f"/proc/{pid}/task")]
    tracers = {}
    try:
        for pid, thread in threads:
            summary = folder / f"strace.{thread}"
            tracers[thread] = subprocess.Popen(
                ["strace", "-c", "-o", str(summary), "-p", thread],
                stderr=subprocess.PIPE,
                text=True,
            )
        for tracer in tracers.values():
            line = tracer.stderr.readline()
            if "attached" not in line:
                raise RuntimeError(f"strace: {line.strip()}")
        window = Window(pids)
        act()
        window.end()
    finally:
        for tracer in tracers.values():
            tracer.send_signal(signal.SIGINT)
        for tracer in tracers.values():
            tracer.communicate(timeout=ENDED_LIMIT_SECS)
    calls = {pid: {} for pid in pids}
    for pid, thread in threads:
        calls[pid][thread] = total(folder / f"strace.{thread}")
    return calls, window


def total(summary):
    """Sum of the calls in strace's table: `% time, seconds, usecs/call, calls, errors, syscall`."""
    calls = 0
    for line in summary.read_text().splitlines():
        words = line.split()
        if len(words) >= 5 and words[0][0].isdigit() and words[3].isdigit() and words[-1] != "total":
            calls += int(words[3])
    return calls


def count(gateway, binary, traffic):
    """Calls of one request, from a window of many and an idle one."""

    def play():
        load.play()
        gateway.settle()

    with gateway.running(binary) as pids:
        load = traffic()
        load.warm_up()
        gateway.settle()
        folder = gateway.nodes[0].folder
        of_busy, busy = counted(pids, play, folder)
        of_idle, idle = counted(pids, lambda: time.sleep(busy.secs), folder)
        load.finish()
    calls = 0
    for pid in pids:
        share = waited_share(busy, idle, pid)
        own, timers = of_busy[pid], of_idle[pid]
        calls += sum(own[thread] - share * timers.get(thread, 0) for thread in serving(own, timers))
    return calls / load.parts
