#!/usr/bin/env python3
"""Faults around durable jobs: a busy and a full disk, damage, freezes, clocks, a crash of the machine, reloads,
take-overs by a second process.

Runs gateways and simulated servers as processes of its own. Scenarios that mount file systems need root; without it they
are skipped by name. Standard library only.

    tests/jobs/faults.py --binary target/debug/infergate [--full] [SCENARIO...]
"""

import argparse
import ctypes
import datetime
import http.client
import json
import os
import pathlib
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time

import manners
from kit import accounts, ask, free_port
from manners import MannerReceiver

FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"
CLONE_NEWNS = 0x20000
PATH = "/v1/models/acme/m0/predictions"
SHORT = {"input": {"prompt": "hello"}}
CHAT = {"model": "acme/m0", "messages": [{"role": "user", "content": "hello"}]}


class Skipped(Exception):
    """The machine lacks what a scenario needs."""


class Simulated:
    """A simulated server whose answers take `run_ms`."""

    def __init__(self, test, run_ms):
        self.port = free_port()
        test.spawn([test.binary, "simulate", "--address", f"127.0.0.1:{self.port}", "--concurrency", "64",
                    "--ttft-ms", str(run_ms), "--tokens-per-sec", "0", "--output-tokens", "4"])
        until("the simulated server answers", lambda: ask(self.port, "GET", "/sim/stats")[0] == 200)

    def worked(self):
        stats = ask(self.port, "GET", "/sim/stats")[1]
        return stats["served"] + stats["cancelled"]


class Test:
    """One scenario: its folder, its processes and what it found."""

    def __init__(self, options, name):
        self.binary, self.full, self.name = options.binary, options.full, name
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=f"infergate-{name}-"))
        self.processes, self.failed = [], 0

    def spawn(self, arguments, **more):
        more.setdefault("stdout", subprocess.DEVNULL)
        more.setdefault("stderr", subprocess.DEVNULL)
        process = subprocess.Popen(arguments, **more)
        self.processes.append(process)
        return process

    def check(self, name, figure, is_good):
        self.failed += not is_good
        print(f"{'ok  ' if is_good else 'FAIL'} {self.name}: {name}: {figure}", flush=True)

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        for point in ("disk", "copied"):
            if os.path.ismount(self.folder / point):
                subprocess.run(["umount", "--lazy", str(self.folder / point)], check=False)
        if not self.failed:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            print(f"folder: {self.folder}")


class Gateway:
    """A gateway that can be frozen, killed and configured anew."""

    def __init__(self, test, config, state=None, environment=None, jobs="{}"):
        self.test, self.folder = test, test.folder
        self.state = state or test.folder / "state"
        self.environment = {**os.environ, **(environment or {})}
        self.port, self.admin = free_port(), free_port()
        self.config, self.jobs = config, jobs
        self.write(config)
        self.log_path = self.folder / f"log-{self.port}"
        self.process = None
        self.start()

    def write(self, config):
        self.file = self.folder / f"c-{self.port}.yaml"
        self.file.write_text(
            f"""listen: {{ clients: [{{ address: "127.0.0.1:{self.port}" }}], admin: {{ address: "127.0.0.1:{self.admin}" }} }}
state_dir: {self.state}
events: {{ file: {{ path: {self.folder}/events.jsonl }} }}
jobs: {self.jobs}
log: {{ level: warn }}
{config}"""
        )

    def start(self):
        self.log = open(self.log_path, "a")
        arguments = [self.test.binary, "serve", "--config", str(self.file)]
        self.process = self.test.spawn(arguments, stdout=self.log, stderr=self.log, env=self.environment)
        until("the gateway is ready", lambda: ask(self.admin, "GET", "/healthz", timeout=2)[0] == 200)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def signal(self, number):
        os.kill(self.process.pid, number)

    def ask(self, method, path, body=None, key=None, **headers):
        if key:
            headers["authorization"] = f"Bearer {key}"
        return ask(self.port, method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})

    def create(self, body=None, path=PATH, key=None, **headers):
        status, answer = self.ask("POST", path, body or SHORT, key, **headers)
        if status != 201:
            raise AssertionError(f"create: {status} {answer}")
        return answer["id"]

    def job(self, job, key=None):
        return self.ask("GET", f"/v1/predictions/{job}", None, key)[1]

    def state_of_jobs(self):
        return ask(self.admin, "GET", "/state")[1]["jobs"]

    def metric(self, name):
        """A sample by name and labels; 0 where there is none."""
        lines = ask(self.admin, "GET", "/metrics")[1].splitlines()
        return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name} ")), 0.0)

    def reload(self, config):
        self.write(config)
        status, answer = ask(self.admin, "POST", "/reload")
        if status != 200:
            raise AssertionError(f"reload: {status} {answer}")

    def refused_create(self, body=None):
        """A create that is refused: status, whole answer, its headers and the seconds it took."""
        began = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("POST", PATH, json.dumps(body or SHORT), {"content-type": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode()
            return answer.status, text, answer.headers, time.monotonic() - began
        finally:
            connection.close()

    def errors(self):
        return [line for line in self.log_path.read_text().splitlines() if '"level":"ERROR"' in line or " ERROR " in line]


def until(what, check, seconds=60.0):
    """Waits until `check` is true; its own errors of connections count as false."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            found = check()
            if found:
                return found
        except (OSError, http.client.HTTPException, ValueError):
            pass
        time.sleep(0.05)
    raise AssertionError(f"in vain: {what}")


def model(number, port, permits=8, more=""):
    return f"""  - id: acme/m{number}
    task: text-generation
    backend: openai
    endpoints: [{{ url: "http://127.0.0.1:{port}", max_concurrent_requests: {permits} }}]
{more}"""


def one_model(port, permits=8, more=""):
    return f"anonymous: allow\nmodels:\n{model(0, port, permits, more)}"


def all_end(gateway, jobs, seconds=120.0, keys=None):
    """The objects of the jobs once all have ended."""
    objects = {}
    for job in jobs:
        def ended(job=job):
            found = gateway.job(job, (keys or {}).get(job))
            return found if found.get("completed_at") else None
        objects[job] = until(f"job {job} ends", ended, seconds)
    return objects


def ends_by_job(folder):
    ends = {}
    for line in (folder / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event.get("request_source") == "job":
            ends.setdefault(event["job_id"], set()).add(event["event_id"])
    return ends


def check_ends(test, gateway, jobs, expected=("succeeded",), keys=None):
    objects = all_end(gateway, jobs, keys=keys)
    statuses = {}
    for found in objects.values():
        statuses[found["status"]] = statuses.get(found["status"], 0) + 1
    test.check("ended jobs", statuses, set(statuses) <= set(expected))
    if not set(statuses) <= set(expected):
        print([found["infergate"] for found in objects.values() if found["status"] not in expected][:3])
    until("every job has its event", lambda: len(ends_by_job(test.folder)) >= len(jobs))
    double = [job for job, ends in ends_by_job(test.folder).items() if len(ends) != 1]
    test.check("jobs with two ends", len(double), not double)
    return objects


def in_private_mounts(test):
    """Makes mounts of this process its own."""
    # Python has it from 3.12 on.
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS):
        raise Skipped(f"no mounts of its own: {os.strerror(ctypes.get_errno())}")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True, capture_output=True)


def mount(arguments, point):
    point.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *arguments, str(point)], capture_output=True, text=True)
    if done.returncode:
        raise Skipped(f"mount {' '.join(arguments)}: {done.stderr.strip()}")


def busy(test):
    """Another program holds the file: a submit is refused within a second, and safe to repeat."""
    server = Simulated(test, 20)
    gateway = Gateway(test, one_model(server.port))
    first = gateway.create()
    other = sqlite3.connect(gateway.state / "jobs" / "jobs.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    status, text, headers, took = gateway.refused_create()
    test.check("status of a submit", status, status == 503)
    test.check("seconds of a submit", f"{took:.2f}", took <= 1.0 + test.slack)
    test.check("it can be repeated", text[:90], "outcome is unknown" in json.loads(text)["detail"])
    test.check("Retry-After", headers["retry-after"], headers["retry-after"] is not None)
    status = gateway.ask("POST", "/v1/chat/completions", CHAT)[0]
    test.check("status of a live request meanwhile", status, status == 200)
    other.execute("ROLLBACK")
    other.close()
    until("the store works again", lambda: gateway.state_of_jobs()["accepting"])
    job = until("a submit is taken", lambda: gateway.ask("POST", PATH, SHORT, idempotency_key="k")[1].get("id"))
    test.check("the same job by its key", "", gateway.create(idempotency_key="k") == job)
    check_ends(test, gateway, [first, job])


def disk_full(test):
    """The disk is full during submits and ends, then has room again."""
    in_private_mounts(test)
    disk = test.folder / "disk"
    mount(["-t", "tmpfs", "-o", "size=4m", "tmpfs"], disk)
    server = Simulated(test, 3000)
    gateway = Gateway(test, one_model(server.port, permits=2), state=disk / "state")
    jobs = [gateway.create() for _ in range(6)]
    until("two run", lambda: gateway.state_of_jobs()["running"] == 2)
    filler = disk / "filler"
    with open(filler, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    large = {"input": {"prompt": "x" * 200_000}}
    status, text, headers, took = gateway.refused_create(large)
    test.check("status of a submit", status, status == 503)
    test.check("its answer", text[:120], bool(json.loads(text)["detail"]) and headers["retry-after"] is not None)
    test.check("seconds of a submit", f"{took:.2f}", took <= 1.0 + test.slack)
    status = gateway.ask("POST", "/v1/chat/completions", CHAT)[0]
    test.check("status of a live request meanwhile", status, status == 200)
    until("the two running jobs are through", lambda: server.worked() == 3)
    time.sleep(10 if test.full else 4)
    state = gateway.state_of_jobs()
    test.check("/state.jobs", state["problem"], not state["accepting"] and "jobs.sqlite" in state["problem"])
    test.check("executions meanwhile, of jobs", server.worked() - 1, server.worked() == 3)
    status = gateway.ask("GET", f"/v1/predictions/{jobs[0]}")[0]
    test.check("status of a read meanwhile", status, status == 200)
    before = len(gateway.errors())
    filler.unlink()
    until("submits are taken again", lambda: gateway.ask("POST", PATH, SHORT, idempotency_key="k")[0] == 201, 20)
    jobs.append(gateway.create(idempotency_key="k"))
    check_ends(test, gateway, jobs)
    test.check("executions", server.worked() - 1, server.worked() - 1 == len(jobs))
    test.check("errors in the log while it was full", before, before <= 4)
    test.check("still the same process", gateway.process.pid, gateway.process.poll() is None)


def damage(test):
    """The end of the write-ahead log is damaged, then the file itself."""
    server = Simulated(test, 20)
    # Nothing listens there: the jobs stay queued.
    gateway = Gateway(test, one_model(free_port()))
    jobs = [gateway.create() for _ in range(20)]
    gateway.kill()
    folder = gateway.state / "jobs"
    log = folder / "jobs.sqlite-wal"
    data = bytearray(log.read_bytes())
    frame = 24 + 4096
    frames = (len(data) - 32) // frame
    bad = 32 + frame * (frames - 3)
    data[bad + 100] ^= 0x01
    log.write_bytes(data)
    gateway.start()
    errors = [line for line in gateway.errors() if "torn or damaged" in line]
    is_named = len(errors) == 1 and str(log) in errors[0] and str(bad) in errors[0]
    test.check("one line with file and offset", (errors or [""])[0][:260], is_named)
    kept = [job for job in jobs if gateway.ask("GET", f"/v1/predictions/{job}")[0] == 200]
    test.check("jobs before the damage", len(kept), 0 < len(kept) < len(jobs) and kept == jobs[: len(kept)])
    gateway.reload(one_model(server.port))
    more = gateway.create()
    check_ends(test, gateway, [*kept, more])
    gateway.kill()
    for path in folder.glob("jobs.sqlite-*"):
        path.unlink()
    file = folder / "jobs.sqlite"
    bytes_before = b"\x00" * 100 + file.read_bytes()[100:]
    file.write_bytes(bytes_before)
    gateway.start()
    status, text, _, _ = gateway.refused_create()
    test.check("unreadable: status of a submit", f"{status} {text[:90]}", status == 503)
    test.check("status of a read", "", gateway.ask("GET", f"/v1/predictions/{jobs[0]}")[0] == 503)
    test.check("status of a live request", "", gateway.ask("POST", "/v1/chat/completions", CHAT)[0] == 200)
    test.check("readiness", "", ask(gateway.admin, "GET", "/readyz")[0] == 200)
    problem = gateway.state_of_jobs()["problem"]
    test.check("/state.jobs", problem, str(file) in (problem or ""))
    test.check("the file is as it was", "", file.read_bytes() == bytes_before)


def crash(test):
    """The bytes of the file system at a moment, as a crash of the machine leaves them, have every acknowledged job."""
    in_private_mounts(test)
    image, disk, copied = test.folder / "image", test.folder / "disk", test.folder / "copied"
    with open(image, "wb") as file:
        file.truncate(64 << 20)
    made = subprocess.run(["mkfs.ext4", "-q", str(image)], capture_output=True, text=True)
    if made.returncode:
        raise Skipped(f"mkfs.ext4: {made.stderr.strip()}")
    # Nothing reaches the image by the passing of time alone.
    mount(["-o", "loop,commit=600", str(image)], disk)
    server = Simulated(test, 100)
    gateway = Gateway(test, one_model(server.port), state=disk / "state")
    acknowledged, stop = [], threading.Event()

    def submit():
        while not stop.is_set():
            try:
                acknowledged.append(gateway.create())
            except (AssertionError, OSError, http.client.HTTPException, ValueError):
                pass

    rounds = 5 if test.full else 1
    for number in range(rounds):
        before, stop = len(acknowledged), threading.Event()
        threads = [threading.Thread(target=submit, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        until("jobs are acknowledged", lambda: len(acknowledged) >= before + 100)
        control = disk / f"control-{number}"
        control.write_text("written and not synced")
        gateway.signal(signal.SIGSTOP)
        time.sleep(0.2)
        kept = list(acknowledged)
        shutil.copyfile(image, test.folder / "image-2")
        stop.set()
        gateway.signal(signal.SIGCONT)
        for thread in threads:
            thread.join()
        mount(["-o", "loop", str(test.folder / "image-2")], copied)
        is_discriminating = not (copied / control.name).exists() or not (copied / control.name).read_text()
        test.check("what was not synced is not in the image", "", is_discriminating)
        second = Gateway(test, one_model(server.port), state=copied / "state")
        lost = [job for job in kept if second.ask("GET", f"/v1/predictions/{job}")[0] != 200]
        test.check(f"acknowledged {len(kept)}, lost", len(lost), not lost and second.state_of_jobs()["accepting"])
        second.kill()
        subprocess.run(["umount", str(copied)], check=True)
    check_all = all_end(gateway, acknowledged)
    test.check("jobs of the first process", len(check_all), all(job["status"] == "succeeded" for job in check_all.values()))


def freeze(test):
    """The gateway is stopped while jobs run: they go on, and end once."""
    server = Simulated(test, 2000)
    gateway = Gateway(test, one_model(server.port))
    jobs = [gateway.create() for _ in range(20)]
    until("eight run", lambda: sum(gateway.job(job)["status"] == "processing" for job in jobs) == 8)
    gateway.signal(signal.SIGSTOP)
    time.sleep(60 if test.full else 3)
    gateway.signal(signal.SIGCONT)
    check_ends(test, gateway, jobs)
    test.check("executions", server.worked(), server.worked() == len(jobs))


def long_freeze(test):
    """The gateway is stopped until the ends of running jobs by time are over: their runs say what they came to, before
    the store does. The server was done in time."""
    server = Simulated(test, 2000)
    gateway = Gateway(test, one_model(server.port, more="    jobs: { predict_timeout_secs: 3, cancel_grace_secs: 1 }\n"))
    jobs = [gateway.create() for _ in range(8)]
    until("eight run", lambda: sum(gateway.job(job)["status"] == "processing" for job in jobs) == 8)
    gateway.signal(signal.SIGSTOP)
    time.sleep(5)
    gateway.signal(signal.SIGCONT)
    check_ends(test, gateway, jobs, ("succeeded", "failed"))
    refused = gateway.metric('infergate_jobs_refused_writes_total{verb="finish"}')
    test.check("runs whose end came too late", refused, refused == 0)


def clock(test):
    """The wall clock jumps by an hour while jobs run and wait: nothing changes."""
    if not pathlib.Path(FAKETIME).exists():
        raise Skipped("libfaketime is not installed")
    stamp = test.folder / "time"
    stamp.write_text("+0\n")
    server = Simulated(test, 1000)
    environment = {"LD_PRELOAD": FAKETIME, "FAKETIME_TIMESTAMP_FILE": str(stamp), "FAKETIME_NO_CACHE": "1",
                   "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    more = "    jobs: { predict_timeout_secs: 60, max_run_lifetime_secs: 600 }\n"
    receiver = MannerReceiver(manners.accepts)
    webhooks = f"{{ webhooks: {{ allow_http: true, ports: [{receiver.port}], allow_networks: [127.0.0.0/8] }} }}"
    gateway = Gateway(test, one_model(server.port, permits=2, more=more), environment=environment, jobs=webhooks)
    jobs = [gateway.create(cancel_after="90s") for _ in range(6)]
    told = {**SHORT, "webhook": receiver.url, "webhook_events_filter": ["start", "completed"]}
    for jump in ["+3600", "-3600", "+0"]:
        until("jobs run", lambda: gateway.state_of_jobs()["running"] > 0)
        stamp.write_text(f"{jump}\n")
        jobs += [gateway.create(told, cancel_after="90s"), *(gateway.create(cancel_after="90s") for _ in range(2))]
        messages = until("its end is told", lambda: len(found := receiver.of_job(jobs[-3])) >= 2 and found)
        # The receiver's clock has jumped like the gateway's.
        off = max(abs(one.wall + int(jump) - one.timestamp) for one in messages)
        test.check(f"timestamps of webhooks after {jump} s, seconds off", f"{off:.1f}", off <= 5 + test.slack)
    objects = check_ends(test, gateway, jobs)
    test.check("executions", server.worked(), server.worked() == len(jobs))
    created = [objects[job]["created_at"] for job in jobs]
    test.check("moments of creates go on", f"{created[0]} to {created[-1]}", created == sorted(created))
    jumps = gateway.metric("infergate_jobs_clock_jumps_total")
    test.check("jumps that were counted", jumps, jumps >= 3)
    gateway.kill()
    stamp.write_text("+3600\n")
    gateway.start()
    again = gateway.create()
    test.check("a start takes the present time", gateway.job(again)["created_at"],
               gateway.job(again)["created_at"] > created[-1])
    all_end(gateway, [again])


def reloads(test):
    """Models and accounts go and come under load: what waits for them ends by name, what runs finishes."""
    count = 100 if test.full else 20
    servers = [Simulated(test, 100), Simulated(test, 100)]
    both = accounts(["a", "b"])
    models = [model(number, server.port, permits=2) for number, server in enumerate(servers)]
    configs = [
        f"{both}models:\n{models[0]}{models[1]}",
        f"{both}models:\n{models[0]}",
        f"{accounts(['a'])}models:\n{models[0]}{models[1]}",
    ]
    gateway = Gateway(test, configs[0])
    jobs, stop, unexpected = {}, threading.Event(), []

    def submit(key, number, allowed):
        while not stop.is_set():
            path = f"/v1/models/acme/m{number}/predictions"
            status, answer = gateway.ask("POST", path, SHORT, key)
            if status == 201:
                jobs[answer["id"]] = (key, number)
            elif status not in allowed:
                unexpected.append((status, answer))
            # Some wait in each queue, and each queue comes to its end.
            time.sleep(0.03)

    loads = [("key-a", 0, ()), ("key-a", 1, (404,)), ("key-b", 0, (401,))]
    threads = [threading.Thread(target=submit, args=load, daemon=True) for load in loads]
    for thread in threads:
        thread.start()
    running = set()
    for number in range(count):
        time.sleep(0.15)
        mine = [job for job, (key, model) in list(jobs.items())[-40:] if (key, model) == ("key-a", 1)]
        running |= {job for job in mine[-6:] if gateway.job(job, "key-a")["status"] == "processing"}
        gateway.reload(configs[1 + number % 2] if number % 4 < 2 else configs[0])
    stop.set()
    for thread in threads:
        thread.join()
    gateway.reload(configs[0])
    keys = {job: key for job, (key, _) in jobs.items()}
    objects = check_ends(test, gateway, jobs, ("succeeded", "failed"), keys)
    test.check("reloads under load", f"{count}, {len(jobs)} jobs", not unexpected or unexpected[:3])
    test.check("unexpected answers", unexpected[:3], not unexpected)
    allowed = {("key-a", 0): set(), ("key-a", 1): {"model_removed"}, ("key-b", 0): {"not_permitted"}}
    reasons, wrong = {}, []
    for job, found in objects.items():
        reason = found["infergate"]["reason"] if found["status"] == "failed" else None
        reasons[reason] = reasons.get(reason, 0) + 1
        if reason is not None and reason not in allowed[jobs[job]]:
            wrong.append((jobs[job], reason))
    # Queued when their model went, or after it: none waits for more than a minute to be told.
    stranded = [
        (datetime.datetime.fromisoformat(found["completed_at"]) - datetime.datetime.fromisoformat(found["created_at"])).total_seconds()
        for found in objects.values()
        if found["infergate"]["reason"] == "model_removed"
    ]
    longest = max(stranded, default=0.0)
    test.check(f"longest of {len(stranded)} jobs whose model went, seconds", f"{longest:.1f}", longest <= 60)
    test.check("reasons", reasons, not wrong and {"model_removed", "not_permitted"} <= set(reasons))
    cut = [job for job in running if objects[job]["status"] != "succeeded"]
    test.check(f"running when their model went {len(running)}, cut", len(cut), not cut and running)


def takeover(test):
    """A second process takes the store over under load, five times: nothing is lost, and no submit fails."""
    server = Simulated(test, 1000)
    config = one_model(server.port)
    acknowledged, failed, canceled = [], [], []

    def submit(gateway, stop):
        while not stop.is_set():
            status, answer = gateway.ask("POST", PATH, SHORT)
            if status == 201:
                acknowledged.append(answer["id"])
            else:
                failed.append((status, answer))
            time.sleep(0.15)

    def load(gateway):
        stop = threading.Event()
        threads = [threading.Thread(target=submit, args=(gateway, stop), daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        return stop, threads

    former = Gateway(test, config)
    loaded = load(former)
    codes = []
    for _ in range(5):
        until("jobs run", lambda: former.state_of_jobs()["running"] > 0)
        time.sleep(0.5)
        successor = Gateway(test, config, environment={"INFERGATE_TAKE_OVER": "1"})
        # It has the store while the former process goes on.
        test.check("accepting", "", successor.state_of_jobs()["accepting"] and former.process.poll() is None)
        more = load(successor)
        # One that runs at the former process is canceled at the new one.
        running = [job for job in acknowledged[-30:] if successor.job(job)["status"] == "processing"]
        if running and successor.ask("POST", f"/v1/predictions/{running[-1]}/cancel")[1]["status"] == "canceled":
            canceled.append(running[-1])
        time.sleep(0.5)
        loaded[0].set()
        for thread in loaded[1]:
            thread.join()
        former.signal(signal.SIGTERM)
        codes.append(former.process.wait(30))
        former, loaded = successor, more
    loaded[0].set()
    for thread in loaded[1]:
        thread.join()
    all_end(former, acknowledged)
    test.check(f"executions for {len(acknowledged)} jobs", server.worked(), server.worked() == len(acknowledged))
    # A successor that is killed: the former process has the store again.
    successor = Gateway(test, config, environment={"INFERGATE_TAKE_OVER": "1"})
    acknowledged.append(successor.create())
    successor.kill()
    acknowledged.append(until("the store is back", lambda: former.ask("POST", PATH, SHORT)[1].get("id")))
    test.check("take-overs", codes, codes == [0] * 5)
    test.check("failed submits", failed[:2], not failed)
    objects = check_ends(test, former, acknowledged, ("succeeded", "canceled"))
    ended = [job for job in acknowledged if objects[job]["status"] == "canceled"]
    test.check("canceled at the new process", len(canceled), ended == canceled and canceled)


SCENARIOS = [busy, disk_full, damage, crash, freeze, long_freeze, clock, reloads, takeover]


def run_alone(options, scenario):
    """Runs a scenario; 0 when it is good, 1 when not, 2 when it was skipped."""
    test = Test(options, scenario.__name__)
    # A busy machine wakes late; only the full run holds the time itself.
    test.slack = 0.3 if test.full else 5
    began = time.monotonic()
    try:
        scenario(test)
    except Skipped as reason:
        print(f"skipped: {test.name} ({reason})", flush=True)
        test.close()
        return 2
    except (AssertionError, OSError, KeyError, http.client.HTTPException) as error:
        test.check("to the end", repr(error)[:500], False)
    finally:
        test.close()
    print(f"     {test.name}: {time.monotonic() - began:.1f} s", flush=True)
    return 1 if test.failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default="target/debug/infergate")
    parser.add_argument("--full", action="store_true", help="the counts of the acceptance")
    parser.add_argument("scenarios", nargs="*", help="some of: " + ", ".join(it.__name__ for it in SCENARIOS))
    options = parser.parse_args()
    options.binary = str(pathlib.Path(options.binary).resolve())
    chosen = [it for it in SCENARIOS if not options.scenarios or it.__name__ in options.scenarios]
    children = []
    for scenario in chosen:
        # A process each: mounts are its own, and all of them wait most of the time.
        child = os.fork()
        if child == 0:
            os._exit(run_alone(options, scenario))
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    skipped = codes.count(2)
    failed = len(codes) - codes.count(0) - skipped
    print(f"{codes.count(0)} passed, {failed} failed, {skipped} skipped")
    # The full run has everything that its scenarios need, or it proves less than it says.
    sys.exit(1 if failed or (skipped and options.full) else 0)


if __name__ == "__main__":
    main()
