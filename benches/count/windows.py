"""A busy and an idle window, and what is left of the first without the work of timers.

Timers go on beside requests, and more of them fire on a busy machine, where the same requests take longer. Threads
that do as much while idle serve no requests and are left out. Of the others the idle window is taken off, in the
proportion of the times that the serving thread waited for work in both: while it runs, timers wait.
"""

import os
import pathlib
import time

# A thread that does more than this share of its busy window while idle serves no requests.
IDLE_SHARE_MAX = 0.25


class Window:
    """Times of the threads of processes, from its start to its end."""

    def __init__(self, pids):
        self.begun = {pid: processor_times(pid) for pid in pids}
        self.begun_at = time.monotonic()

    def end(self):
        self.secs = time.monotonic() - self.begun_at
        self.waited_secs = {pid: self.waited(pid) for pid in self.begun}

    def waited(self, pid):
        """Seconds in which the thread that ran most waited for work, neither running nor for a processor."""
        begun = self.begun[pid]
        spent = [
            (run - begun[thread][0], run + delayed - sum(begun[thread]))
            for thread, (run, delayed) in processor_times(pid).items()
            if thread in begun
        ]
        return max(0.0, self.secs - max(spent)[1] / 1e9)


def processor_times(pid):
    """Nanoseconds that each thread of a process ran, and that it waited for a processor."""
    times = {}
    for thread in os.listdir(f"/proc/{pid}/task"):
        text = pathlib.Path(f"/proc/{pid}/task/{thread}/schedstat").read_text()
        run, delayed = map(int, text.split()[:2])
        times[thread] = (run, delayed)
    return times


def waited_share(busy, idle, pid):
    """Share of the idle window's work that the busy window has as well."""
    return busy.waited_secs[pid] / max(idle.waited_secs[pid], 1e-3)


def serving(busy, idle):
    """Threads that serve requests, by the amounts of what each did in both windows: the busiest is one of them."""
    busiest = max(busy, key=busy.get)
    return [
        thread
        for thread, amount in busy.items()
        if thread == busiest or idle.get(thread, 0) <= IDLE_SHARE_MAX * amount
    ]
