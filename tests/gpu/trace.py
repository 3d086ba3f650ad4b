#!/usr/bin/env python3
"""Trace C of `benches/swap` with real processes on a simulated card, 20 times faster: `turns` against `lru`.

The trace, and what both policies make of it in virtual time, come from the bench. Each policy serves it once through a
gateway of its own, both at the same time: `turns` must load less and have the lower p99, as there. A short trace on a busy
machine only shows that both serve it: starts of processes take longer than loads then. Times in the table are those of the trace.
"""

import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from simulated import ROOT, gpu_section, managed_model, options_parser

from kit import Table, accounts, bearer, gateway, quantile

POLICIES = ("turns", "lru")
FASTER = 20
ACCOUNTS = 5
# Tokens are the simulated server's unit of work: one each 5 ms.
TOKENS_PER_SEC = 200
# Far longer than any request waits; only a hang meets it.
DEADLINE_SECS = 900
PAGES_PER_1000_MIB = 10
# Minutes of the trace, and its seeds.
QUICK = (8, (1,))
FULL = (40, (1, 2, 3))


def trace(seed, minutes):
    """The head of the trace, and its requests."""
    # Of the whole workspace, as every test is built: its libraries are there then.
    command = ["cargo", "test", "--quiet", "--workspace", "--bench", "swap", "--"]
    command += ["--print", "C", str(seed), str(minutes)]
    printed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    head, *requests = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return head, requests


def account(number):
    return f"a{number}"


def configuration(head, policy, folder):
    models = [
        managed_model(
            f"m{number}",
            model["mib"],
            [
                "--load-mib-per-sec", model["mib"] * 1000 * FASTER // model["load_ms"],
                "--vram-release-ms", head["stop_ms"] // FASTER,
                "--ttft-ms", 0,
                "--tokens-per-sec", TOKENS_PER_SEC,
            ],
            {"parallel": head["permits"]},
            keep_alive_secs=-1,
            queue={"algorithm": "fair", "capacity": 4096},
        )
        for number, model in enumerate(head["models"])
    ]  # fmt: skip
    swap = {"policy": policy, "aging_secs": 1, "demand_memory_secs": 3}
    pages = head["card_mib"] * PAGES_PER_1000_MIB // 1000
    gpu = gpu_section(folder, ["card"], head["card_mib"], pages, swap=swap)
    ceiling = f"timeouts: {{ ceiling_secs: {DEADLINE_SECS} }}\n"
    return f"{accounts(map(account, range(ACCOUNTS)))}{ceiling}{gpu}models:\n{''.join(models)}"


def play(binary, head, requests, policy, seed):
    """Loads, and the latencies of all requests in seconds of the trace; requests that failed."""
    folder = ROOT / "target" / "gpu-trace" / f"{policy}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    latencies, failed, lock = [], [], threading.Lock()

    def one(node, due, request):
        tokens = max(1, round(request["service_ms"] / 1000 / FASTER * TOKENS_PER_SEC))
        headers = bearer(account(request["account"]))
        try:
            status, answer = node.chat(f"m{request['model']}", tokens, headers, DEADLINE_SECS)
        except OSError as problem:
            status, answer = 0, str(problem)
        with lock:
            latencies.append((time.monotonic() - due) * FASTER)
            if status != 200:
                failed.append(answer)

    with gateway(binary, configuration(head, policy, folder)) as node:
        begun, threads = time.monotonic(), []
        for request in requests:
            due = begun + request["at_ms"] / 1000 / FASTER
            time.sleep(max(0, due - time.monotonic()))
            thread = threading.Thread(target=one, args=(node, due, request))
            thread.start()
            threads.append(thread)
        for thread in threads:
            thread.join()
        slots = node.slots()
    return sum(slot["loads"] for slot in slots), latencies, failed


def main():
    options = options_parser(__doc__, "three seeds of 40 minutes: 7 minutes in all").parse_args()
    minutes, seeds = FULL if options.full else QUICK
    table = Table()
    for seed in seeds:
        head, requests = trace(seed, minutes)
        print(f"trace C, seed {seed}: {len(requests)} requests in {minutes} min, {FASTER} times faster", flush=True)
        print("                       loads  mean s   p99 s   in virtual time: loads  mean s   p99 s", flush=True)
        with ThreadPoolExecutor() as pool:
            plays = {policy: pool.submit(play, options.binary, head, requests, policy, seed) for policy in POLICIES}
        figures = {}
        for policy in POLICIES:
            loads, latencies, failed = plays[policy].result()
            mean, p99 = sum(latencies) / len(latencies), quantile(latencies, 0.99)
            model = head[policy]
            print(
                f"{policy:20} {loads:7} {mean:7.1f} {p99:7.1f}                   "
                f"{model['loads']:5} {model['mean_secs']:7.1f} {model['p99_secs']:7.1f}",
                flush=True,
            )
            table.row(f"seed {seed}, {policy}: all answered", f"{len(latencies) - len(failed)}, failed {failed[:1]}", not failed)
            figures[policy] = (loads, p99)
        (loads, p99), (lru_loads, lru_p99) = figures["turns"], figures["lru"]
        if options.full:
            table.row(f"seed {seed}: loads of turns against lru", f"{loads / lru_loads:.2f} ×", loads <= lru_loads)
            table.row(f"seed {seed}: p99 of turns against lru", f"{p99 / lru_p99:.2f} ×", p99 <= lru_p99)
    return table.finish()


if __name__ == "__main__":
    sys.exit(main())
