#!/usr/bin/env python3
"""Several gateways and many leased commands on one host: no memory is promised twice.

Runs gateways with simulated servers, and `infergate lease` commands that take what they were granted, on two simulated
cards. Commands end by SIGTERM or SIGKILL. Standard library only.

    tests/gpu/ledger.py --binary target/debug/infergate [--full]
"""

import contextlib
import http.client
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from remains import leases
from simulated import gpu_section, managed_model, options_parser

from kit import Gateway, Table, until

CARDS = ("sim0", "sim1")
CARD_MIB, PAGES, RESERVE_MIB = 24000, 96, 512
PAGE_MIB = CARD_MIB // PAGES
# Models of each gateway: together more than both cards hold, and one of each gateway has room beside commands.
MODELS = {"small": 6000, "large": 14000}
# Gateways, commands at a time, and seconds of `--quick` and `--full`.
SIZES = {False: (2, 4, 12), True: (3, 20, 600)}
KILLED_MAX = 1.5
WAIT_SECS = 60
# Takes memory of each granted card, as a tensor parallel server does.
TAKE = (
    'exec "$INFERGATE" simulate --address 127.0.0.1:0 --vram-mib "$MIB" '
    "$(echo \"$CUDA_VISIBLE_DEVICES\" | tr , '\\n' | sed \"s|^|--vram-card $CARDS/|\")"
)


def configuration(folder, number):
    arguments = ["--ttft-ms", 50, "--tokens-per-sec", 0]
    models = [managed_model(f"{name}{number}", mib, arguments, keep_alive_secs=2) for name, mib in MODELS.items()]
    gpu = gpu_section(folder, CARDS, CARD_MIB, PAGES, reserve_mib=RESERVE_MIB)
    return f"anonymous: allow\n{gpu}models:\n{''.join(models)}"


class Findings:
    """Counts of all threads."""

    def __init__(self):
        self.lock = threading.Lock()
        self.granted = self.taken = self.without_room = 0
        self.failures, self.killed, self.overcommits = [], [], []
        self.answered = {}

    def add(self, name, value=1):
        with self.lock:
            setattr(self, name, getattr(self, name) + value)


def watch_ledger(directory, found, stop):
    """Looks whether more than a card is ever promised."""
    while not stop.wait(0.01):
        promised = dict.fromkeys(CARDS, 0)
        for lease in leases(directory):
            promised[lease["device"]] += lease["mib"]
        over = {card: mib for card, mib in promised.items() if mib > CARD_MIB - RESERVE_MIB}
        if over:
            found.add("overcommits", [over])


def run_jobs(binary, folder, seed, found, stop):
    """Commands of one thread, one after the other."""
    chance = random.Random(seed)
    while not stop.is_set():
        mib, cards = PAGE_MIB * chance.randint(2, 36), 2 if chance.random() < 0.25 else 1
        command = [binary, "lease", "--cards", folder / "cards", "--ledger", folder / "ledger", "--vram", f"{mib}MiB",
                   "--gpus", cards, "--wait", f"{WAIT_SECS}s", "--name", f"job-{seed}", "--", "sh", "-c", TAKE]
        environment = {**os.environ, "INFERGATE": binary, "CARDS": str(folder / "cards"), "MIB": str(mib)}
        job = subprocess.Popen([str(word) for word in command], env=environment, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        is_taken = any("taken" in line for line in job.stdout)
        if not is_taken:
            _, why = job.communicate()
            if job.returncode == 75:
                found.add("without_room")
            else:
                found.add("granted")
                found.add("failures", [f"{mib} MiB on {cards}: status {job.returncode}: {why[-200:]}"])
            continue
        found.add("granted")
        found.add("taken")
        stop.wait(chance.uniform(0.1, 1.0))
        if chance.random() < 0.5:
            job.send_signal(signal.SIGTERM)
        else:
            job.kill()
            begin = time.monotonic()
            directory = folder / "ledger"
            is_gone = lambda: all(it["holder"]["pid"] != job.pid for it in leases(directory))  # noqa: E731
            until("a killed command's lease is gone", is_gone)
            found.add("killed", [time.monotonic() - begin])
        job.communicate()


def ask_models(gateway, number, seed, found, stop):
    """Requests of one client for all models of a gateway, with pauses in which they are idle."""
    chance = random.Random(seed)
    while not stop.is_set():
        model = f"{chance.choice(list(MODELS))}{number}"
        with contextlib.suppress(OSError, http.client.HTTPException):
            status, _ = gateway.chat(model, timeout=WAIT_SECS)
            with found.lock:
                found.answered[model, status] = found.answered.get((model, status), 0) + 1
        stop.wait(chance.uniform(0, 1.5))


def report(table, found, gateways):
    table.row("commands that were granted memory, and took it", f"{found.taken} of {found.granted}",
              found.taken == found.granted and found.taken > 0)
    for failure in found.failures[:5]:
        table.row("command", failure, False)
    table.row(f"commands without room within {WAIT_SECS} s", found.without_room)
    logs = [(gateway.folder / "log").read_text() for gateway in gateways]
    starved = sum(log.count("failure=out_of_memory") for log in logs)
    table.row("models without memory that they had leased", starved, starved == 0)
    table.row("moments at which a card was promised twice", len(found.overcommits), not found.overcommits)
    served = {model: count for (model, status), count in found.answered.items() if status == 200}
    table.row("models that answered", f"{len(served)} of {len(gateways) * len(MODELS)}, {sum(served.values())} requests",
              len(served) == len(gateways) * len(MODELS))
    wrong = {status for _, status in found.answered if status not in (200, 408, 429)}
    table.row("other statuses than 200, 408 and 429", sorted(wrong) or "none", not wrong)
    slowest = max(found.killed, default=KILLED_MAX + 1)
    table.row(f"lease of a killed command is free, slowest of {len(found.killed)}", f"{slowest:.2f} s", slowest <= KILLED_MAX)


def main():
    options = options_parser(__doc__, "three gateways and 20 commands for 10 minutes").parse_args()
    binary = options.binary
    count, jobs, secs = SIZES[options.full]
    folder = pathlib.Path(tempfile.mkdtemp(prefix="infergate-ledger-"))
    ledger = folder / "ledger"
    ledger.mkdir()
    found, stop, table = Findings(), threading.Event(), Table()
    gateways = [Gateway(binary, configuration(folder, number)) for number in range(count)]
    work = [threading.Thread(target=run_jobs, args=(binary, folder, seed, found, stop)) for seed in range(jobs)]
    work += [threading.Thread(target=ask_models, args=(gateway, number, seed, found, stop))
             for number, gateway in enumerate(gateways) for seed in range(3)]
    watcher_stop = threading.Event()
    watcher = threading.Thread(target=watch_ledger, args=(ledger, found, watcher_stop))
    try:
        for thread in [watcher, *work]:
            thread.start()
        time.sleep(secs)
        stop.set()
        for thread in work:
            thread.join()
        until("idle models leave", lambda: not leases(ledger))
    finally:
        stop.set()
        watcher_stop.set()
        watcher.join()
        for gateway in gateways:
            gateway.process.terminate()
            gateway.process.wait()
    table.row("leases that are left", len(leases(ledger)), not leases(ledger))
    report(table, found, gateways)
    for each in (folder, *(gateway.folder for gateway in gateways)):
        shutil.rmtree(each, ignore_errors=True)
    return table.finish()


if __name__ == "__main__":
    sys.exit(main())
