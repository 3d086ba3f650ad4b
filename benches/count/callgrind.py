"""Instructions, allocations and clock reads of a window, by valgrind's callgrind.

Not a time. callgrind counts what the processor runs in user space, on all threads; each byte of `rep movsb` (copies
above about 4 KB) is one instruction. Its processor has no SHA and no AVX-512, so that SHA-256 shows 3,500
instructions where the real one needs 300.
"""

import collections
import pathlib
import re
import shutil
import subprocess
import time

from windows import Window, serving, waited_share

ALLOCATING = {
    "malloc",
    "calloc",
    "realloc",
    "aligned_alloc",
    "memalign",
    "posix_memalign",
}
CLOCK = "clock_gettime"
INSTRUCTIONS, ALLOCATIONS, CLOCK_READS = "instructions", "allocations", "clock reads"
FIGURES = (INSTRUCTIONS, ALLOCATIONS, CLOCK_READS)
# Instructions less those of the whole idle window, second for second. What fires a few times a second fires as often on
# a thread that is busy, or waits for a processor; what fires more often does not, so that this is too little of all.
# Without the looks of the GPU host, which find more to do where requests run: a slow machine has more for each request.
WITHOUT_TIMERS = "instructions without timers"
# The task that looks at the models of the host, and the most looks a request, above which they are no timer's.
LOOKING = "infergate::app::gpu::driver::Driver::run::{{closure}}"
LOOKS, LOOK_INSTRUCTIONS = "looks", "instructions of looks"
LOOKS_MAX = 0.5
# Windows of which the least counts: what happens twice a second is not in all of them.
WINDOWS = 4
# Seconds of the idle window at least: threads that look at something once a second show in it.
IDLE_SECS_MIN = 4
PREFIX = (
    "valgrind",
    "--quiet",
    "--tool=callgrind",
    "--instr-atstart=no",
    "--separate-threads=yes",
    "--callgrind-out-file=%FOLDER%/callgrind",
)
NAME = re.compile(r"c?fn=\((\d+)\)(?: (.*))?")
CONTROL_LIMIT_SECS = 120


def missing():
    """The program of this tool that is not installed, or None."""
    return next((name for name in ("valgrind", "vgdb") if shutil.which(name) is None), None)


def control(pids, command):
    """Sends a monitor command of callgrind to processes."""
    for pid in pids:
        done = subprocess.run(
            ["vgdb", f"--pid={pid}", *command.split()],
            capture_output=True,
            text=True,
            timeout=CONTROL_LIMIT_SECS,
        )
        if done.returncode != 0:
            raise RuntimeError(f"vgdb {command}: {done.stdout}{done.stderr}")


class Profile(collections.Counter):
    """Instructions, allocations and clock reads."""

    @classmethod
    def read(cls, path):
        """Reads a profile as callgrind writes it.

        A call counts where it enters a family of functions: `realloc` may call `malloc`, and the clock of the
        standard library that of the C library.
        """
        found, names = cls(), {}
        caller = callee = ""
        with open(path, errors="replace") as lines:
            for line in lines:
                if line.startswith(("fn=", "cfn=")):
                    number, name = NAME.match(line.rstrip()).groups()
                    names.setdefault(number, name)
                    if line.startswith("fn="):
                        caller = names[number]
                    else:
                        callee = names[number]
                elif line.startswith("calls="):
                    count = int(line[6:].split()[0])
                    if base(callee) == LOOKING:
                        found[LOOKS] += count
                        found[LOOK_INSTRUCTIONS] += int(next(lines).split()[-1])
                    if base(callee) in ALLOCATING and base(caller) not in ALLOCATING:
                        found[ALLOCATIONS] += count
                    if CLOCK in callee and CLOCK not in caller:
                        found[CLOCK_READS] += count
                elif line.startswith(("totals:", "summary:")):
                    found[INSTRUCTIONS] = max(found[INSTRUCTIONS], int(line.split()[1]))
        return found


def base(name):
    """A function's name without the marks of recursion and of symbol versions."""
    return name.split("'")[0].split("@")[0]


def count(gateway, binary, traffic, annotate=None):
    """Figures of one request: the least of several windows, each without what an idle window has as well."""
    with gateway.running(binary, PREFIX) as pids:
        load = traffic()
        control(pids, "instrumentation on")
        load.warm_up()
        gateway.settle()
        control(pids, "zero")
        busy = [busy_window(gateway, pids, load) for _ in range(WINDOWS)]
        idle = Window(pids)
        time.sleep(max(IDLE_SECS_MIN, busy[-1].secs))
        idle.end()
        control(pids, "dump")
        control(pids, "instrumentation off")
        load.finish()
    totals = [collections.Counter() for _ in busy]
    for pid, node in zip(pids, gateway.nodes):
        shares = [(waited_share(window, idle, pid), window.secs / idle.secs) for window in busy]
        add_serving(totals, node.folder, shares)
    names = (*FIGURES, WITHOUT_TIMERS)
    for total in totals:
        if total[LOOKS] <= LOOKS_MAX * load.parts:
            total[WITHOUT_TIMERS] -= total[LOOK_INSTRUCTIONS]
    found = [{name: total[name] / load.parts for name in names} for total in totals]
    if annotate:
        for node in gateway.nodes:
            write_annotated(node.folder, annotate, node.name, load.parts)
    return {name: min(figures[name] for figures in found) for name in names}


def busy_window(gateway, pids, load):
    """Plays the traffic once and has callgrind write a profile of it."""
    window = Window(pids)
    load.play()
    gateway.settle()
    window.end()
    control(pids, "dump")
    return window


def add_serving(totals, folder, shares):
    """Adds the profiles of the threads that serve requests, window by window, without their shares of the idle one:
    by the time waited, and by the time.

    A thread serves or does not in all of them: what it did counts beside an idle window of the same length.
    """
    idle = profiles(folder, WINDOWS + 1)
    busy = [profiles(folder, number) for number in range(1, WINDOWS + 1)]
    done = collections.Counter()
    for window in busy:
        done.update({thread: profile[INSTRUCTIONS] for thread, profile in window.items()})
    times_longer = sum(by_time for _, by_time in shares)
    idled = {thread: times_longer * profile[INSTRUCTIONS] for thread, profile in idle.items()}
    for thread in serving(done, idled):
        for total, window, (waited, by_time) in zip(totals, busy, shares):
            for name in FIGURES:
                total[name] += window[thread][name] - waited * idle[thread][name]
            total[LOOKS] += window[thread][LOOKS]
            total[LOOK_INSTRUCTIONS] += window[thread][LOOK_INSTRUCTIONS]
            fired = idle[thread][INSTRUCTIONS] - idle[thread][LOOK_INSTRUCTIONS]
            total[WITHOUT_TIMERS] += window[thread][INSTRUCTIONS] - by_time * fired


def profiles(folder, number):
    """The profile of each thread from one dump."""
    found = {path.suffix: Profile.read(path) for path in folder.glob(f"callgrind.{number}-*")}
    return collections.defaultdict(Profile, {name.split("-")[1]: found[name] for name in found})


def write_annotated(folder, target, node, parts):
    """Writes the profiles of all threads, and their functions by own and by inclusive instructions."""
    target_folder, scenario = pathlib.Path(target[0]), target[1]
    target_folder.mkdir(parents=True, exist_ok=True)
    copied = []
    for profile in sorted(folder.glob("callgrind.1-*")):
        copied.append(target_folder / f"{scenario}.{node}.callgrind{profile.suffix[2:]}")
        shutil.copy(profile, copied[-1])
    for kind, inclusive in (("self", "no"), ("inclusive", "yes")):
        command = ["callgrind_annotate", f"--inclusive={inclusive}", "--auto=no", "--threshold=99"]
        done = subprocess.run([*command, *copied], capture_output=True, text=True)
        text = f"{parts} requests or events, with what runs beside them\n{done.stdout}{done.stderr}"
        (target_folder / f"{scenario}.{node}.{kind}.txt").write_text(text)
