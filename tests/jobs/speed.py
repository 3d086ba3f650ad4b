#!/usr/bin/env python3
"""What durable jobs cost over HTTP: the time of a submit, the time to the server, memory of a running job.

Figures against targets, on the machine's own disk, whose sync is measured beside them. Standard library only.

    tests/jobs/speed.py --binary target/release/infergate
"""

import argparse
import http.client
import os
import sys
import tempfile
import threading
import time

from kit import ModelServer, Table, asked, gateway, quantile, simulators, until

RUNNING = 2000


def sync_secs(folder, count=100):
    """Times of a write of 4 KiB and its sync."""
    times = []
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        for _ in range(count):
            begun = time.monotonic()
            os.write(file.fileno(), b"x" * 4096)
            os.fdatasync(file.fileno())
            times.append(time.monotonic() - begun)
            time.sleep(0.005)
    return times


def configuration(port, permits):
    return f"""anonymous: allow
jobs: {{ worker: {{ concurrency_max: {permits} }} }}
models:
  - id: acme/m
    task: text-generation
    backend: openai
    endpoints: [{{ url: "http://127.0.0.1:{port}", max_concurrent_requests: {permits} }}]
"""


def create(connection, prompt):
    """Seconds of a submit, and the id of its job."""
    begun = time.monotonic()
    status, answer = asked(connection, "POST", "/v1/models/acme/m/predictions", {"input": {"prompt": prompt}})
    if status != 201:
        raise SystemExit(f"a create was answered {status}: {answer}")
    return time.monotonic() - begun, answer["id"]


def submits(table, options):
    """100 submits a second of 1 KiB, by one client."""
    with simulators(options.binary, 1, "--ttft-ms", 0, "--tokens-per-sec", 0, "--concurrency", 64) as (port,):
        with gateway(options.binary, configuration(port, 16)) as node:
            connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=20)
            create(connection, "first")
            syncs, times = [], []
            measured = threading.Thread(target=lambda: syncs.extend(sync_secs(node.folder)))
            begun = time.monotonic()
            for number in range(options.submits):
                time.sleep(max(0.0, begun + number / 100 - time.monotonic()))
                times.append(create(connection, "x" * 1000)[0])
                if number == options.submits // 2:
                    measured.start()
            measured.join()
            sync = quantile(syncs, 0.5)
            p99 = quantile(times, 0.99)
            table.row("sync of the disk: p50, p99 ms", f"{1e3 * sync:.1f}, {1e3 * quantile(syncs, 0.99):.1f}")
            table.row(f"submit, {len(times)} at 100/s: p50, p99 ms (p99 at most 3 syncs + 5, by the p99 of both)",
                      f"{1e3 * quantile(times, 0.5):.1f}, {1e3 * p99:.1f}", p99 <= 3 * quantile(syncs, 0.99) + 0.005)


def starts(table, options):
    """From the answer of a submit to the first byte at an idle server."""
    server = ModelServer()
    with gateway(options.binary, configuration(server.port, 16)) as node:
        connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=20)
        delays = []
        for number in range(options.submits // 5):
            _, job = create(connection, f"tag=t{number}")
            answered = time.monotonic()
            run = until("the server has it", lambda number=number: server.runs_of(f"t{number}"))[0]
            delays.append(max(0.0, run.begun - answered))
            node.ended(job)
        table.row(f"submit answered to request at the server, {len(delays)}: p50, p99 ms (at most 5, 20)",
                  f"{1e3 * quantile(delays, 0.5):.1f}, {1e3 * quantile(delays, 0.99):.1f}",
                  quantile(delays, 0.5) <= 0.005 and quantile(delays, 0.99) <= 0.02)


def running(table, options):
    """Memory of jobs that run."""
    with simulators(options.binary, 1, "--ttft-ms", 120_000, "--concurrency", 2 * RUNNING) as (port,):
        with gateway(options.binary, configuration(port, 2 * RUNNING)) as node:
            connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=20)
            before = node.memory_kib()
            for _ in range(RUNNING):
                _, job = create(connection, "hold")
            until("all of them run", lambda: node.get(job)["status"] == "processing")
            per_job = (node.memory_kib() - before) / RUNNING
            table.row(f"memory of one of {RUNNING} running jobs, KiB (at most 64)", f"{per_job:.1f}", per_job <= 64)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--binary", default="target/release/infergate")
    parser.add_argument("--submits", type=int, default=2000)
    options = parser.parse_args()
    table = Table()
    for part in (submits, starts, running):
        part(table, options)
    sys.exit(table.finish())


if __name__ == "__main__":
    main()
