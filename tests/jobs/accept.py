#!/usr/bin/env python3
"""Durable jobs under kills: what was acknowledged ends once, and is billed once.

Runs a gateway and simulated servers as processes of its own, kills the gateway at seeded moments, and holds what
clients, servers and the event file saw against each other. Standard library only.

    tests/jobs/accept.py --binary target/debug/infergate --jobs 10000 --kills 200
"""

import argparse
import http.client
import http.server
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

MODELS = 4
PERMITS = 8


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(port, method, path, body=None, headers=None, timeout=20):
    """One request on a connection of its own; the status and the JSON of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"content-type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        data = answer.read()
        is_json = "json" in (answer.getheader("content-type") or "")
        return answer.status, json.loads(data) if is_json else data.decode()
    finally:
        connection.close()


class Receiver:
    """A receiver of webhooks that refuses a fifth of them."""

    def __init__(self, refusals_max):
        self.accepted, self.refused = {}, 0
        self.refused_by_job = {}
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                job = json.loads(body)["id"]
                before = outer.refused_by_job.get(job, 0)
                is_refused = random.random() < 0.2 and before < refusals_max
                if is_refused:
                    outer.refused += 1
                    outer.refused_by_job[job] = before + 1
                else:
                    outer.accepted[job] = outer.accepted.get(job, 0) + 1
                self.send_response(500 if is_refused else 200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Gateway:
    """A gateway that can be killed and started again."""

    def __init__(self, binary, folder, servers, receiver):
        self.binary, self.folder = binary, folder
        self.port, self.admin = free_port(), free_port()
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
        (folder / "c.yaml").write_text(
            f"""listen: {{ clients: [{{ address: "127.0.0.1:{self.port}" }}], admin: {{ address: "127.0.0.1:{self.admin}" }} }}
anonymous: allow
state_dir: {folder}/state
events: {{ file: {{ path: {folder}/events.jsonl }} }}
jobs:
  keep_secs: 86400
  webhooks: {{ allow_http: true, ports: [{receiver}], allow_networks: ["127.0.0.0/8"] }}
replicate: {{ show_neurons: true }}
log: {{ level: warn }}
models:
{models}"""
        )
        self.log = open(folder / "log", "a")
        self.process = None
        self.start()

    def start(self):
        arguments = [self.binary, "serve", "--config", str(self.folder / "c.yaml")]
        self.process = subprocess.Popen(arguments, stderr=self.log, stdout=self.log)
        self.until_ready()

    def until_ready(self):
        for _ in range(600):
            try:
                if ask(self.admin, "GET", "/healthz", timeout=2)[0] == 200:
                    return
            except (OSError, http.client.HTTPException, ValueError):
                pass
            if self.process.poll() is not None:
                raise SystemExit(f"the gateway ended: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)
        raise SystemExit("the gateway does not become ready")

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


def submit_all(gateway, count, acknowledged, stop, receiver):
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
                status, answer = ask(gateway.port, "POST", path, body, {"Idempotency-Key": f"k-{number}"})
                if status == 201:
                    acknowledged[number] = answer["id"]
                    break
            except (OSError, http.client.HTTPException, ValueError):
                pass
            time.sleep(0.05)


def ended_jobs(folder):
    """Jobs that have an event."""
    jobs = set()
    path = folder / "events.jsonl"
    if path.exists():
        with open(path, errors="replace") as lines:
            for line in lines:
                if line.endswith("\n"):
                    try:
                        jobs.add(json.loads(line)["job_id"])
                    except (ValueError, KeyError):
                        pass
    return jobs


def all_events(folder):
    events = {}
    torn = 0
    with open(folder / "events.jsonl", errors="replace") as lines:
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                torn += 1
                continue
            if event.get("request_source") == "job":
                events[event["event_id"]] = event
    return events, torn


def run(options):
    random.seed(options.seed)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="infergate-jobs-"))
    servers, processes = [], []
    for number in range(MODELS):
        port = free_port()
        arguments = [options.binary, "simulate", "--address", f"127.0.0.1:{port}", "--concurrency", "64",
                     "--ttft-ms", str(options.run_ms), "--tokens-per-sec", "0", "--output-tokens", "4"]
        processes.append(subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        servers.append(port)
    time.sleep(0.5)
    receiver = Receiver(options.refusals_max)
    gateway = Gateway(options.binary, folder, servers, receiver.port)
    acknowledged, stop = {}, threading.Event()
    submitter = threading.Thread(target=submit_all, args=(gateway, options.jobs, acknowledged, stop, receiver.port))
    submitter.start()
    begun = time.time()
    try:
        expected = options.jobs * options.run_ms / 1000 / (MODELS * PERMITS)
        for kill in range(options.kills):
            time.sleep(random.expovariate(1 / max(0.2, expected / max(1, options.kills))))
            gateway.kill()
            gateway.start()
            if (kill + 1) % 20 == 0:
                print(f"{kill + 1} kills, {len(acknowledged)} acknowledged, "
                      f"{len(ended_jobs(folder))} ended, {time.time() - begun:.0f} s", flush=True)
        submitter.join()
        while len(ended_jobs(folder)) < options.jobs:
            time.sleep(1)
            if time.time() - begun > options.limit:
                break
        while len(receiver.accepted) < options.jobs and time.time() - begun < options.limit:
            time.sleep(1)
        return check(options, gateway, folder, servers, acknowledged, receiver)
    finally:
        stop.set()
        gateway.process.kill()
        for process in processes:
            process.kill()
        print(f"folder: {folder}")


def check(options, gateway, folder, servers, acknowledged, receiver):
    time.sleep(1)
    events, torn = all_events(folder)
    by_job, neurons_of_events = {}, 0.0
    for event in events.values():
        by_job.setdefault(event["job_id"], []).append(event)
        neurons_of_events += event["neurons"]
    lost, not_succeeded, neurons_of_records = [], [], 0.0
    for job in acknowledged.values():
        status, answer = ask(gateway.port, "GET", f"/v1/predictions/{job}")
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
    rows = [
        ("acknowledged", len(acknowledged), len(acknowledged) == options.jobs),
        ("acknowledged and lost", len(lost), not lost),
        ("ended otherwise than succeeded", not_succeeded[:5], not not_succeeded),
        ("jobs with two ends", len(double), not double),
        ("jobs with an event", len(by_job), len(by_job) == len(acknowledged)),
        ("executions", f"{executions} (at most {bound})", executions <= bound),
        ("neurons of records", neurons_of_records, neurons_of_records == neurons_of_events),
        ("neurons of events", neurons_of_events, True),
        ("torn lines of events", torn, True),
        ("jobs whose end the receiver accepted", len(receiver.accepted), len(receiver.accepted) == options.jobs),
        ("refused by the receiver", receiver.refused, True),
        ("accepted twice", sum(count > 1 for count in receiver.accepted.values()), True),
    ]
    good = True
    for name, figure, is_good in rows:
        good &= is_good
        print(f"{'ok  ' if is_good else 'FAIL'} {name}: {figure}")
    failed = sum(not is_good for _, _, is_good in rows)
    print(f"{len(rows) - failed} passed, {failed} failed, 0 skipped")
    return 0 if good else 1


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
