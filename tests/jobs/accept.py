#!/usr/bin/env python3
"""Durable jobs under kills: what was acknowledged ends once, and is billed once.

Runs a gateway and simulated servers as processes of its own, kills the gateway at seeded moments, and holds what
clients, servers and the event file saw against each other. Standard library only.

    tests/jobs/accept.py --binary target/debug/infergate --jobs 10000 --kills 200
"""

import argparse
import http.client
import random
import sys
import threading
import time

from kit import Receiver, Table, ask, gateway, simulators

MODELS = 4
PERMITS = 8


def refusing(refusals_max):
    """Refuses a fifth of the webhooks, each at most so often; counts both."""
    accepted, refused = {}, {}

    def treat(body):
        job = body["id"]
        if random.random() < 0.2 and refused.get(job, 0) < refusals_max:
            refused[job] = refused.get(job, 0) + 1
            return 500
        accepted[job] = accepted.get(job, 0) + 1
        return 200

    return treat, accepted, refused


def configuration(servers, receiver):
    models = "".join(
        f"""  - id: acme/m{number}
    task: text-generation
    backend: openai
    endpoints: [{{ url: "http://127.0.0.1:{port}", max_concurrent_requests: {PERMITS} }}]
    tariff: {{ coefficients: {{ input_tokens: 1, output_tokens: 2 }} }}
    jobs: {{ attempts_max: 20 }}
"""
        for number, port in enumerate(servers)
    )
    return f"""anonymous: allow
jobs:
  keep_secs: 86400
  webhooks: {{ allow_http: true, ports: [{receiver}], allow_networks: ["127.0.0.0/8"] }}
replicate: {{ show_neurons: true }}
models:
{models}"""


def submit_all(node, count, acknowledged, stop, receiver):
    """Submits jobs one after the other; one without an answer is repeated by its key."""
    for number in range(count):
        body = {
            "input": {"prompt": f"job {number}"},
            "webhook": f"http://127.0.0.1:{receiver}/",
            "webhook_events_filter": ["completed"],
        }
        path = f"/v1/models/acme/m{number % MODELS}/predictions"
        while not stop.is_set():
            try:
                status, answer = node.ask("POST", path, body, {"Idempotency-Key": f"k-{number}"})
                if status == 201:
                    acknowledged[number] = answer["id"]
                    break
            except (OSError, http.client.HTTPException, ValueError):
                pass
            time.sleep(0.05)


def run(options):
    random.seed(options.seed)
    treat, accepted, refused = refusing(options.refusals_max)
    receiver = Receiver(treat)
    work = ("--concurrency", 64, "--ttft-ms", options.run_ms, "--tokens-per-sec", 0, "--output-tokens", 4)
    acknowledged, stop = {}, threading.Event()
    with (
        simulators(options.binary, MODELS, *work) as servers,
        gateway(options.binary, configuration(servers, receiver.port)) as node,
    ):
        arguments = (node, options.jobs, acknowledged, stop, receiver.port)
        submitter = threading.Thread(target=submit_all, args=arguments, daemon=True)
        submitter.start()
        try:
            begun = time.monotonic()
            expected = options.jobs * options.run_ms / 1000 / (MODELS * PERMITS)
            for kill in range(options.kills):
                time.sleep(random.expovariate(1 / max(0.2, expected / max(1, options.kills))))
                node.kill()
                node.start()
                if (kill + 1) % 20 == 0:
                    print(f"{kill + 1} kills, {len(acknowledged)} acknowledged, "
                          f"{len(node.events_by_job())} ended, {time.monotonic() - begun:.0f} s", flush=True)
            submitter.join()
            while len(node.events_by_job()) < options.jobs or len(accepted) < options.jobs:
                time.sleep(1)
                if time.monotonic() - begun > options.limit:
                    break
            return check(options, node, servers, acknowledged, accepted, refused)
        finally:
            stop.set()
            print(f"folder: {node.folder}")


def check(options, node, servers, acknowledged, accepted, refused):
    by_job, torn = node.events_by_job(), node.events()[1]
    neurons_of_events = sum(event["neurons"] for ends in by_job.values() for event in ends)
    lost, not_succeeded, neurons_of_records = [], [], 0.0
    for job in acknowledged.values():
        status, answer = node.ask("GET", f"/v1/predictions/{job}")
        if status != 200 or not answer["completed_at"]:
            lost.append(job)
            continue
        if answer["status"] != "succeeded":
            not_succeeded.append((job, answer["infergate"]["reason"]))
        neurons_of_records += answer["metrics"].get("neurons", 0.0)
    executions = 0
    for port in servers:
        stats = ask(port, "GET", "/sim/stats")[1]
        executions += stats["served"] + stats["cancelled"]
    double = [job for job, ends in by_job.items() if len(ends) > 1]
    # Ends that were not committed at a kill run again: at most as many as permits.
    bound = len(acknowledged) + 2 * options.kills * MODELS * PERMITS
    table = Table()
    for name, figure, is_good in [
        ("acknowledged", len(acknowledged), len(acknowledged) == options.jobs),
        ("acknowledged and lost", len(lost), not lost),
        ("ended otherwise than succeeded", not_succeeded[:5], not not_succeeded),
        ("jobs with two ends", len(double), not double),
        ("jobs with an event", len(by_job), len(by_job) == len(acknowledged)),
        ("executions", f"{executions} (at most {bound})", executions <= bound),
        ("neurons of records", neurons_of_records, neurons_of_records == neurons_of_events),
        ("neurons of events", neurons_of_events, True),
        ("torn lines of events", torn, True),
        ("jobs whose end the receiver accepted", len(accepted), len(accepted) == options.jobs),
        ("refused by the receiver", sum(refused.values()), True),
        ("accepted twice", sum(count > 1 for count in accepted.values()), True),
    ]:
        table.row(name, figure, is_good)
    return table.finish()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default="target/debug/infergate")
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--run-ms", type=int, default=200, help="time that a server works on a job")
    parser.add_argument("--refusals-max", type=int, default=2, help="refusals of one webhook by its receiver")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=int, default=3600, help="seconds after which it gives up")
    sys.exit(run(parser.parse_args()))


if __name__ == "__main__":
    main()
