#!/usr/bin/env python3
"""Durable jobs held to their rules: cancels, deadlines, tenants, receivers, sharing, fairness, memory.

A gateway and model servers of its own for each part. Standard library only.

    tests/jobs/rules.py                      every part with small counts; times and shares are shown, not judged
    tests/jobs/rules.py --full cancels       one part with its full counts
"""

import argparse
import concurrent.futures
import contextlib
import hashlib
import http.client
import itertools
import json
import random
import sys
import threading
import time

from kit import (
    ModelServer,
    Receiver,
    Table,
    asked,
    gateway,
    quantile,
    simulators,
    until,
)

TARIFF = "tariff: { coefficients: { input_tokens: 1, output_tokens: 2 } }"
# Prompt tokens that the model server reports, and what one of its answers of four tokens costs.
SUCCESS_NEURONS = 10 + 2 * 4
PERMIT_BACK_MAX_SECS = 0.25
STATUS_AFTER_DEADLINE_MAX_SECS = 1.0


def model(name, port, permits, jobs="{}", more=""):
    return f"""  - id: {name}
    task: text-generation
    backend: openai
    endpoints: [{{ url: "http://127.0.0.1:{port}", max_concurrent_requests: {permits} }}]
    {TARIFF}
    jobs: {jobs}
{more}"""


def accounts(names):
    """Accounts whose keys are `key-NAME`."""
    digests = ((name, hashlib.sha256(f"key-{name}".encode()).hexdigest()) for name in names)
    return "accounts:\n" + "".join(
        f"  - {{ id: {name}, api_keys_sha256: [{digest}] }}\n" for name, digest in digests
    )


def in_parallel(workers, function, items):
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        return list(pool.map(function, items))


# Cancels.


def canceled_running(node, server, tag, words, is_ready):
    """A job is canceled once `is_ready` says so; seconds until the job behind it has its permit."""
    job = node.create("acme/m", f"tag={tag} {words}")
    behind = node.create("acme/m", f"tag={tag}b")
    until("the job runs", lambda: is_ready(tag))
    begun = time.monotonic()
    node.cancel(job)
    next_run = until("the job behind it runs", lambda: server.runs_of(f"{tag}b"))[0]
    node.ended(behind)
    return job, next_run.begun - begun


def cancels(table, options):
    count = 100 if options.full else 5
    server = ModelServer()
    text = f"anonymous: allow\njobs: {{}}\nmodels:\n{model('acme/m', server.port, 1)}"
    with gateway(options.binary, text) as node:
        jobs, permit_back = {}, []

        def after_running(kind, words, is_ready):
            for number in range(count):
                job, secs = canceled_running(node, server, f"{kind}{number}", words, is_ready)
                jobs.setdefault(kind, []).append(job)
                permit_back.append(secs)

        after_running("running", "hold=60", server.runs_of)
        after_running("streaming", "tokens=4000 gap=0.02", lambda tag: [
            run for run in server.runs_of(tag) if time.monotonic() - run.begun > 0.05
        ])
        blocker = node.create("acme/m", "tag=blocker hold=600")
        until("the permit is taken", lambda: server.runs_of("blocker"))
        for number in range(count):
            job = node.create("acme/m", f"tag=queued{number}")
            node.cancel(job)
            jobs.setdefault("queued", []).append(job)
        node.cancel(blocker)
        for number in range(count):
            job = node.create("acme/m", f"tag=taken{number} hold=30")
            time.sleep(random.uniform(0, 0.004))
            node.cancel(job)
            jobs.setdefault("just taken", []).append(job)
            job = node.create("acme/m", f"tag=ending{number} hold=0.02")
            until("it runs", lambda number=number: server.runs_of(f"ending{number}"))
            time.sleep(random.uniform(0.008, 0.024))
            node.cancel(job)
            jobs.setdefault("while its end is written", []).append(job)
            job = node.create("acme/m", f"tag=over{number}")
            node.ended(job)
            node.cancel(job)
            jobs.setdefault("after its end", []).append(job)
            job = node.create("acme/m", f"tag=twice{number} hold=30")
            until("it runs", lambda number=number: server.runs_of(f"twice{number}"))
            in_parallel(2, lambda _, job=job: node.cancel(job), range(2))
            jobs.setdefault("twice", []).append(job)
        objects = {kind: [node.ended(job) for job in ids] for kind, ids in jobs.items()}
        by_job = until(
            "every job has its event",
            lambda: len(found := node.events_by_job()) >= sum(map(len, jobs.values())) + 1 and found,
        )
        time.sleep(0.1)
        for kind, found in objects.items():
            statuses = sorted({one["status"] for one in found})
            wanted = {"after its end": ["succeeded"]}.get(kind, ["canceled"])
            if kind == "while its end is written":
                wanted = ["canceled", "succeeded"]
            counts = {status: sum(one["status"] == status for one in found) for status in statuses}
            table.row(f"canceled {kind}, {len(found)}", counts, set(statuses) <= set(wanted))
        every = [one["id"] for found in objects.values() for one in found]
        table.row("jobs with one event", len(every), all(len(by_job[job]) == 1 for job in every))
        agree = all(by_job[one["id"]][0]["job_status"] == one["status"] for found in objects.values() for one in found)
        table.row("events that say what the objects say", len(every), agree)
        until("every exchange has ended", lambda: server.held == 0, 10)
        table.row("exchanges left open at the server", server.held, server.held == 0)
        # A closed connection is noticed a moment after its permit is given on.
        overlap = max(0.0, *(before.end() - after.begun for before, after in itertools.pairwise(server.runs)))
        table.row("longest overlap of two runs with one permit, ms", f"{1000 * overlap:.0f}", overlap < 0.1 or not options.full)
        worst = max(permit_back)
        table.row(
            f"permit of a canceled run given on, {len(permit_back)}: p50, worst ms",
            f"{1000 * quantile(permit_back, 0.5):.0f}, {1000 * worst:.0f}",
            worst <= PERMIT_BACK_MAX_SECS or not options.full,
        )


# Deadlines.


def hold_a_permit(node, name, stop):
    """A live request that goes on until `stop`."""
    body = {"model": name, "stream": True, "messages": [{"role": "user", "content": "tag=blocker tokens=2000 gap=0.1"}]}
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=300)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    stop.wait()
    connection.close()


def deadlines(table, options):
    """Three sources, before and while a job runs; a job may end before its deadline, too."""
    count = 10 if options.full else 2
    servers = {name: ModelServer() for name in ("own", "life", "time")}
    text = "anonymous: allow\njobs: {}\nreplicate: { show_neurons: true }\nmodels:\n"
    text += model("acme/own", servers["own"].port, count)
    text += model("acme/life", servers["life"].port, count, "{ max_run_lifetime_secs: 5 }")
    text += model("acme/time", servers["time"].port, count, "{ predict_timeout_secs: 5 }")
    # Source, own deadline, expected while running, expected before.
    sources = [
        ("own", "5s", ("canceled", "deadline"), ("canceled", "deadline")),
        ("life", None, ("failed", "lifetime"), ("failed", "lifetime")),
        ("time", None, ("failed", "timeout"), None),
    ]
    with gateway(options.binary, text) as node:

        def one(source, own, number, hold, expected):
            headers = {"cancel-after": own} if own else {}
            tag = f"{source}{hold}.{number}".replace(".", "_")
            begun = time.monotonic()
            job = node.create(f"acme/{source}", f"tag={tag} hold={hold}", headers)
            found = node.ended(job)
            return tag, expected, found, time.monotonic() - begun

        def rows(name, plan):
            done = in_parallel(len(plan), lambda each: one(*each), plan)
            good = [
                (found["status"], found["infergate"].get("reason")) == expected for _, expected, found, _ in done
            ]
            table.row(f"{name}, {len(done)}: as section 4 says", sum(good), all(good))
            return done

        late, started_after = [], 0
        during = [
            (source, own, number, hold, wanted)
            for source, own, wanted, _ in sources
            for number in range(count)
            for hold, wanted in [(60, wanted)]
        ]
        prices = {}
        for _, _, found, secs in rows("ended while they ran", during):
            late.append(secs - 5)
            prices.setdefault(found["infergate"]["reason"], set()).add(found["metrics"].get("neurons"))
        boundary = [
            (source, own, number, hold, wanted)
            for source, own, cut, _ in sources
            for number, (hold, wanted) in enumerate([(4.5, ("succeeded", None)), (5.5, cut)])
        ]
        # A busy machine may start a job half a second late: such rows are the full run's.
        for _, _, found, _ in rows("half a second on either side", boundary) if options.full else []:
            prices.setdefault(found["infergate"].get("reason"), set()).add(found["metrics"].get("neurons"))
        stop = threading.Event()
        blockers = [
            threading.Thread(target=hold_a_permit, args=(node, f"acme/{source}", stop), daemon=True)
            for source in ("own", "life")
            for _ in range(count)
        ]
        for blocker in blockers:
            blocker.start()
        until("permits are taken", lambda: all(servers[source].held == count for source in ("own", "life")))
        before = [
            (source, own, number, 61, wanted)
            for source, own, _, wanted in sources
            if wanted
            for number in range(count)
        ]
        for tag, _, found, secs in rows("ended before they ran", before):
            late.append(secs - 5)
            started_after += len(servers[tag.split("61")[0]].runs_of(tag))
            prices.setdefault(f"{found['infergate']['reason']} before a start", set()).add(
                found["metrics"].get("neurons")
            )
        table.row("started after their deadline", started_after, not started_after)
        stop.set()
        table.row(
            "latest end after its deadline, seconds",
            f"{max(late):.2f}",
            max(late) <= STATUS_AFTER_DEADLINE_MAX_SECS or not options.full,
        )
        table.row("earliest", f"{min(late):.2f}", min(late) > -0.05)
        # What was worked is charged: at least the input, never as much as a whole answer.
        for reason, neurons in sorted(prices.items(), key=str):
            is_cut = reason in ("deadline", "lifetime", "timeout")
            good = {None: {SUCCESS_NEURONS}}.get(reason)
            is_good = neurons == good if good else all((0 < each) if is_cut else each == 0 for each in neurons)
            table.row(f"neurons of {reason or 'succeeded'}", sorted(neurons), is_good)


# Tenants.


def uploaded(node, key):
    """The object of a small file."""
    body = '--b\r\nContent-Disposition: form-data; name="content"; filename="f"\r\n\r\nx\r\n--b--\r\n'
    headers = {**key, "content-type": "multipart/form-data; boundary=b"}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", node.port, timeout=20)) as connection:
        connection.request("POST", "/v1/files", body, headers)
        return json.loads(connection.getresponse().read())


def path_of(url):
    return "/" + url.split("?")[0].split("/", 3)[-1]


def token_of(url):
    return url.partition("?")[2]


class Tenant:
    """An account with an object of each kind."""

    def __init__(self, node, name, version):
        self.key = {"authorization": f"Bearer key-{name}"}
        self.job = node.ended(node.create("acme/m", "tag=x", self.key), self.key)
        self.file = uploaded(node, self.key)
        self.deployment = f"/v1/deployments/{name}/own"
        wanted = {"name": "own", "model": "acme/m", "version": version, "hardware": "gpu",
                  "min_instances": 0, "max_instances": 1}
        status, made = node.ask("POST", "/v1/deployments", wanted, self.key)
        if status != 200 and status != 201:
            raise SystemExit(f"a deployment was answered {status}: {made}")
        path = f"/v1/models/acme/m/versions/{version}/trainings"
        status, made = node.ask("POST", path, {"destination": "acme/n", "input": {"prompt": "tag=x"}}, self.key)
        if status != 201:
            raise SystemExit(f"a training was answered {status}: {made}")
        self.training = made["id"]
        self.tokens = [token_of(self.job["urls"]["stream"]), token_of(self.file["urls"]["download"])]


def foreign(mine, theirs):
    """Requests of `mine` for what `theirs` has: method, target, headers and body."""
    stream, download = theirs.job["urls"]["stream"], theirs.file["urls"]["download"]
    job, training, file = theirs.job["id"], theirs.training, theirs.file["id"]
    for method, target, body in [
        ("GET", f"/v1/predictions/{job}", None),
        ("POST", f"/v1/predictions/{job}/cancel", {}),
        ("GET", f"/v1/trainings/{job}", None),
        ("GET", f"/v1/trainings/{training}", None),
        ("POST", f"/v1/trainings/{training}/cancel", {}),
        ("GET", f"/v1/predictions/{training}", None),
        ("GET", path_of(stream), None),
        ("GET", f"/v1/files/{file}", None),
        ("DELETE", f"/v1/files/{file}", None),
        ("GET", path_of(download), None),
        ("GET", theirs.deployment, None),
        ("PATCH", theirs.deployment, {"max_instances": 2}),
        ("DELETE", theirs.deployment, None),
        ("POST", f"{theirs.deployment}/predictions", {"input": {"prompt": "tag=x"}}),
    ]:
        yield method, target, mine.key, body
    # A token is good for its own object alone.
    for url, token in zip((stream, download), mine.tokens):
        yield "GET", f"{path_of(url)}?{token}", {}, None


def tenants(table, options):
    """Objects of other accounts are not there."""
    names = [f"a{number}" for number in range(9 if options.full else 4)]
    server, trainer = ModelServer(), ModelServer()
    listed = accounts(names).replace(" }", ", deployments_max: 1 }")
    text = f"""{listed}jobs: {{}}
hardware: [{{ sku: gpu, name: GPU }}]
models:
{model('acme/m', server.port, 8, more='    trainer: acme/t')}
{model('acme/t', trainer.port, 1)}"""
    with gateway(options.binary, text) as node:
        first = {"authorization": f"Bearer key-{names[0]}"}
        version = node.ask("GET", "/v1/models/acme/m", headers=first)[1]["latest_version"]["id"]
        found = [Tenant(node, name, version) for name in names]
        pairs, wrong = 0, []
        for mine, theirs in itertools.permutations(found, 2):
            for method, target, headers, body in foreign(mine, theirs):
                status, answer = node.ask(method, target, body, headers)
                pairs += 1
                if status != 404:
                    wrong.append((method, target, status, answer))
        table.row(f"pairs of an account and a foreign object, {pairs}: not 404", wrong[:3] or 0, not wrong)
        lost = [
            tenant.deployment
            for tenant in found
            if node.ask("GET", tenant.deployment, headers=tenant.key)[0] != 200
            or node.ask("GET", f"/v1/files/{tenant.file['id']}", headers=tenant.key)[0] != 200
        ]
        table.row("files and deployments that their owners lost", lost or 0, not lost)
        log = (node.folder / "log").read_text()
        leaked = [token for tenant in found for token in tenant.tokens if token in log]
        table.row("tokens in the log", len(leaked), not leaked)


# Receivers.


def receivers(table, options):
    """Events of one receiver that hangs do not delay those of another."""
    count = 1000 if options.full else 60
    good_count = 200 if options.full else 20
    hanging, good = Receiver(lambda _: None), Receiver(lambda _: 200)
    with simulators(options.binary, 1, "--ttft-ms", 0, "--tokens-per-sec", 0, "--output-tokens", 4,
                    "--concurrency", 64) as (port,):
        text = f"""anonymous: allow
jobs: {{ webhooks: {{ allow_http: true, ports: [{hanging.port}, {good.port}], allow_networks: ["127.0.0.0/8"] }} }}
models:
{model('acme/m', port, 16)}"""
        with gateway(options.binary, text) as node:
            def submit(receiver):
                return node.create("acme/m", "x", webhook=f"http://127.0.0.1:{receiver.port}/",
                                   webhook_events_filter=["completed"])

            waiting = in_parallel(8, submit, [hanging] * count)
            until("they have ended", lambda: len(node.events()[0]) == count)
            jobs = []
            for _ in range(good_count):
                jobs.append(submit(good))
                time.sleep(0.02)
            until("the good receiver has them all", lambda: len(good.seen) == good_count)
            ends = {event["job_id"]: event for event in node.events()[0].values()}
            seen = {job: at for at, job, _ in good.seen}
            delays = []
            for job in jobs:
                # The wall clock of the end against the monotonic one of the receiver.
                ended_at = node.get(job)["completed_at"]
                delays.append(wall(seen[job]) - parsed(ended_at))
            dead = node_webhooks(node)
            table.row("events that wait for the hanging receiver", len(waiting) - dead, len(waiting) - dead == count)
            table.row("attempts at the hanging receiver at once, at most 4", len(hanging.seen), len(hanging.seen) <= 4)
            p99 = quantile(delays, 0.99)
            table.row(f"delay of the good receiver, {good_count}: p50, p99 ms",
                      f"{1000 * quantile(delays, 0.5):.0f}, {1000 * p99:.0f}", p99 <= 1.0 or not options.full)
            table.row("events of jobs", len(ends), len(ends) == count + good_count)


def wall(monotonic):
    return time.time() - time.monotonic() + monotonic


def parsed(text):
    """Seconds since 1970 of an RFC 3339 time in UTC."""
    head, _, fraction = text.rstrip("Z").partition(".")
    base = time.mktime(time.strptime(head, "%Y-%m-%dT%H:%M:%S")) - time.timezone
    return base + float(f"0.{fraction or 0}")


def node_webhooks(node):
    from kit import ask

    status, answer = ask(node.admin, "GET", "/jobs/webhooks?dead=true")
    return len(answer.get("webhooks", [])) if status == 200 else -1


# Sharing.


def sharing(table, options):
    """Live and durable work, both with a backlog, share the permits' time."""
    permits, secs = (8, 240) if options.full else (4, 15)
    plans = [(0.1, 10.0), (10.0, 0.1), (0.5, 0.5)] if options.full else [(0.1, 1.0)]
    for live_hold, durable_hold in plans:
        server = ModelServer()
        text = f"anonymous: allow\njobs: {{}}\nmodels:\n" + model(
            "acme/m", server.port, permits, "{ share_percent: 25, queue_max_per_account: 100000 }",
        )
        with gateway(options.binary, text) as node:
            stop = threading.Event()
            waits, retry_after = [], []

            def live():
                connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=120)
                while not stop.is_set():
                    body = {"model": "acme/m", "messages": [{"role": "user", "content": f"tag=live hold={live_hold}"}]}
                    begun = time.monotonic()
                    try:
                        status, _ = asked(connection, "POST", "/v1/chat/completions", body)
                    except (OSError, http.client.HTTPException):
                        connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=120)
                        continue
                    if status == 200:
                        waits.append(time.monotonic() - begun - live_hold)
                    else:
                        retry_after.append(status)
                        stop.wait(0.2)

            jobs = int(secs / durable_hold * permits) + 2 * permits
            in_parallel(8, lambda _: node.create("acme/m", f"tag=durable hold={durable_hold}"), range(jobs))
            clients = [threading.Thread(target=live, daemon=True) for _ in range(3 * permits)]
            begun = time.monotonic()
            for client in clients:
                client.start()
            until("the window is over", lambda: time.monotonic() - begun > secs, secs + 60)
            stop.set()
            begun += min(secs / 5, 2 * max(live_hold, durable_hold))
            end = time.monotonic()

            def time_of(tag):
                return sum(
                    max(0.0, min(run.end(), end) - max(run.begun, begun)) for run in server.runs_of(tag)
                )

            share = 100 * time_of("durable") / max(1e-9, time_of("durable") + time_of("live"))
            name = f"live {live_hold} s, durable {durable_hold} s, {secs} s, {permits} permits"
            table.row(f"{name}: durable share of permit time, %", f"{share:.1f}",
                      abs(share - 25) <= 3 or not options.full)
            table.row(f"{name}: live requests, p99 wait s, refused",
                      f"{len(waits)}, {quantile(waits, 0.99):.2f}, {len(retry_after)}")
            table.row(f"{name}: requests at once at the server", server.held_max, server.held_max <= permits)


# Fairness.


def jain(values):
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def fairness(table, options):
    """One account with a long backlog, twenty with one job at a time."""
    backlog, small, rounds_secs = (10000, 20, 60) if options.full else (200, 5, 5)
    permits, hold = 4, 0.2
    server = ModelServer()
    names = ["big", *(f"s{number}" for number in range(small))]
    text = accounts(names) + "jobs: {}\nmodels:\n" + model("acme/m", server.port, permits)
    with gateway(options.binary, text) as node:
        big = {"authorization": "Bearer key-big"}
        in_parallel(8, lambda _: node.create("acme/m", f"tag=big hold={hold}", big), range(backlog))
        stop, delays = threading.Event(), []

        def one_at_a_time(name):
            key = {"authorization": f"Bearer key-{name}"}
            number = 0
            while not stop.is_set():
                tag = f"{name}-{number}"
                number += 1
                job = node.create("acme/m", f"tag={tag} hold={hold}", key)
                queued = time.monotonic()
                node.ended(job, key)
                delays.append(server.runs_of(tag)[0].begun - queued)

        clients = [threading.Thread(target=one_at_a_time, args=(name,), daemon=True) for name in names[1:]]
        for client in clients:
            client.start()
        begun = time.monotonic()
        until("the window is over", lambda: time.monotonic() - begun > rounds_secs, rounds_secs + 60)
        stop.set()
        for client in clients:
            client.join()
        # A round gives every account that waits one job.
        round_secs = (small + 1) / permits * hold
        worst = max(delays)
        table.row(f"{len(delays)} jobs of {small} small accounts beside {backlog} of one: start p50, p99, latest, rounds",
                  ", ".join(f"{secs / round_secs:.2f}" for secs in (quantile(delays, 0.5), quantile(delays, 0.99), worst)),
                  worst <= 2 * round_secs or not options.full)


# Memory.


def memory(table, options):
    """Resident memory of one process stays flat, and the store's file stays small."""
    jobs = options.jobs or (1_000_000 if options.full else 3000)
    samples = []
    with simulators(options.binary, 1, "--ttft-ms", 0, "--tokens-per-sec", 0, "--output-tokens", 4,
                    "--concurrency", 64) as (port,):
        text = f"""anonymous: allow
jobs: {{ keep_secs: 60 }}
models:
{model('acme/m', port, 32)}"""
        with gateway(options.binary, text) as node:
            done, lock = itertools.count(), threading.Lock()
            accepted = [0]

            def submit(_):
                connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=60)
                body = {"input": {"prompt": "x" * 600}}
                while next(done) < jobs:
                    status = None
                    while status != 201:
                        status, _ = asked(connection, "POST", "/v1/models/acme/m/predictions", body)
                        if status != 201:
                            time.sleep(0.2)
                    with lock:
                        accepted[0] += 1

            begun = time.monotonic()
            pool = [threading.Thread(target=submit, args=(number,), daemon=True) for number in range(16)]
            for thread in pool:
                thread.start()
            store = node.folder / "state"

            def file_bytes():
                return sum(path.stat().st_size for path in store.rglob("*") if path.is_file() and "jobs" in str(path))

            step = max(jobs // 20, 1)
            for sample in range(step, jobs + 1, step):
                until("further jobs", lambda sample=sample: accepted[0] >= sample or accepted[0] >= jobs, 3600)
                samples.append((accepted[0], node.memory_kib(), file_bytes(), time.monotonic() - begun))
                print(f"     {accepted[0]} jobs, {samples[-1][1]} KiB, {samples[-1][2] >> 20} MiB of file, "
                      f"{samples[-1][3]:.0f} s", flush=True)
            # After the warm-up: the least-squares line through the later three quarters.
            later = samples[len(samples) // 4 :]
            mean_x = sum(count for count, *_ in later) / len(later)
            mean_y = sum(kib for _, kib, *_ in later) / len(later)
            slope = sum((count - mean_x) * (kib - mean_y) for count, kib, *_ in later) / max(
                1, sum((count - mean_x) ** 2 for count, *_ in later)
            )
            per_step = slope * 1e5 / 1024
            table.row("resident memory, MiB per 100,000 jobs", f"{per_step:.2f}", per_step <= 1 or not options.full)
            table.row("jobs a second", f"{samples[-1][0] / samples[-1][3]:.0f}")
            table.row("largest file of the store, MiB", f"{max(size for _, _, size, _ in samples) >> 20}")


PARTS = [cancels, deadlines, tenants, receivers, sharing, fairness, memory]


def main():
    names = {part.__name__: part for part in PARTS}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="*", help=f"all of {', '.join(names)} unless named")
    parser.add_argument("--binary", default="target/debug/infergate")
    parser.add_argument("--full", action="store_true", help="the full counts: about 40 minutes")
    parser.add_argument("--jobs", type=int, help="jobs of the part `memory`")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    random.seed(options.seed)
    if unknown := [name for name in options.part if name not in names]:
        parser.error(f"no part {unknown[0]}; there are {', '.join(names)}")
    table = Table()
    for name in options.part or names:
        begun = time.monotonic()
        print(f"## {name}", flush=True)
        names[name](table, options)
        print(f"     {time.monotonic() - begun:.0f} s", flush=True)
    sys.exit(table.finish())


if __name__ == "__main__":
    main()
