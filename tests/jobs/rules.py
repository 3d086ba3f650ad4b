#!/usr/bin/env python3
"""Durable jobs held to their rules: cancels, deadlines, tenants, receivers, listeners, sharing, fairness,
memory.

A gateway and model servers of its own for each part. Standard library only.

    tests/jobs/rules.py                      every part with small counts; times and shares are shown, not judged
    tests/jobs/rules.py --full cancels       one part with its full counts
"""

import argparse
import concurrent.futures
import contextlib
import datetime
import http.client
import itertools
import json
import random
import subprocess
import sys
import threading
import time

import manners
from kit import (
    ModelServer,
    Table,
    accounts,
    ask,
    asked,
    bearer,
    free_port,
    gateway,
    quantile,
    simulators,
    until,
)
from manners import MannerReceiver

TARIFF = "tariff: { coefficients: { input_tokens: 1, output_tokens: 2 } }"
# Prompt tokens that the model server reports, and what one of its answers of four tokens costs.
SUCCESS_NEURONS = 10 + 2 * 4
# Part `memory`: seconds that ended jobs are kept, and what the documentation counts for each: input, result, row.
KEEP_SECS = 60
ROW_BYTES = 828 + 215 + 400
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
        until("every exchange has ended", lambda: not server.held, 10)
        table.row("exchanges left open at the server", len(server.held), not server.held)
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
        until("permits are taken", lambda: all(len(servers[source].held) == count for source in ("own", "life")))
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
            cut_off = [each is not None and 0 < each < SUCCESS_NEURONS for each in neurons]
            is_good = neurons == good if good else all(cut_off) if is_cut else neurons == {0}
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
        self.key = bearer(name)
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
    text = f"""{accounts(names, deployments_max=1)}jobs: {{}}
hardware: [{{ sku: gpu, name: GPU }}]
models:
{model('acme/m', server.port, 8, more='    trainer: acme/t')}
{model('acme/t', trainer.port, 1)}"""
    with gateway(options.binary, text) as node:
        first = bearer(names[0])
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


# Delays before the second, third and fourth attempt, each a fifth more or less; and what a busy machine adds.
RETRY_SECS = [5, 30, 120]
RETRY_SLACK_SECS = 2.0
# Time of an attempt here: a receiver that hangs is left so much earlier.
ATTEMPT_SECS = 3
RETRY_AFTER_SECS = 8
TIMESTAMP_SLACK_SECS = 5


def receivers(table, options):
    """Receivers in all manners at once: each gets what it should, and none delays another."""
    waiting_count = 1000 if options.full else 60
    good_count = 200 if options.full else 20
    refusals = 3 if options.full else 2
    trap = MannerReceiver(manners.accepts)
    by_name = {
        "good": MannerReceiver(manners.accepts),
        "500": MannerReceiver(manners.refuses_first(refusals, manners.status(500))),
        "410": MannerReceiver(manners.refuses_first(1, manners.status(410))),
        "429": MannerReceiver(manners.refuses_first(1, manners.status(429, f"retry-after: {RETRY_AFTER_SECS}\r\n"))),
        "timeout": MannerReceiver(manners.trickles),
        "10 MB": MannerReceiver(manners.answers_at_length),
        "301": MannerReceiver(manners.redirects_to(trap.url)),
        "reset": MannerReceiver(manners.resets),
    }
    if tls := manners.self_signed():
        by_name["not trusted"] = MannerReceiver(manners.accepts, tls)
    else:
        table.skip("self-signed TLS", "no openssl")
    hanging = MannerReceiver(manners.hangs)
    ports = [trap.port, hanging.port, *(receiver.port for receiver in by_name.values())]
    # A run lasts a moment, so that news of it can be sent: what is under way is cut when the run ends.
    with simulators(options.binary, 1, "--ttft-ms", 200, "--tokens-per-sec", 0, "--output-tokens", 4,
                    "--concurrency", 64) as (port,):
        text = f"""anonymous: allow
jobs:
  webhooks: {{ allow_http: true, ports: {ports}, allow_networks: ["127.0.0.0/8"], timeout_secs: {ATTEMPT_SECS} }}
models:
{model('acme/m', port, 16)}"""
        with gateway(options.binary, text) as node:
            def submit(receiver, events=("completed",)):
                return node.create("acme/m", "x", webhook=receiver.url, webhook_events_filter=list(events))

            jobs = {name: submit(receiver) for name, receiver in by_name.items()}
            in_parallel(8, submit, [hanging] * waiting_count)
            until("they have ended", lambda: len(node.events()[0]) >= waiting_count + len(jobs))
            good = [submit(by_name["good"], ("start", "output", "completed")) for _ in range(good_count)]
            ended = lambda job: [one for one in by_name["good"].of_job(job) if one.id.endswith("-completed")]
            until("the good receiver has them all", lambda: all(map(ended, good)))
            # The last of the good ones may be with its receiver, and its answer not yet with the gateway.
            others = {*jobs.values(), *good}
            waiting = sum(one["job"] not in others for one in webhooks_of(node))
            table.row("events that wait for the hanging receiver", waiting, waiting == waiting_count)
            judge_delays(table, options, node, good, ended)
            judge_order(table, by_name["good"], good)
            judge_schedule(table, by_name["500"], jobs["500"], refusals)
            judge_results(table, node, jobs, by_name)
            table.row("connections at the target of a redirect", trap.connections, not trap.connections)
            table.row("connections at the hanging receiver at once, at most 4", hanging.open_max, hanging.open_max <= 4)
            judge_dead_letters(table, options, node, by_name["410"], jobs["410"])
            _, shown = ask(node.admin, "GET", "/metrics")
            for line in ['webhooks_sent_total{event="start",result="accepted"}', "webhooks_pending ",
                         'webhooks_sent_total{event="completed",result="unanswered"}', "webhooks_dead_total 1",
                         "webhook_delay_seconds_count "]:
                found = [one for one in shown.splitlines() if one.startswith(f"infergate_{line}")]
                table.row(f"metric {line.strip()}", found[:1], found)


def judge_delays(table, options, node, good, ended):
    # The wall clock of the end against that of the receiver.
    delays = [ended(job)[0].wall - parsed(node.get(job)["completed_at"]) for job in good]
    p99 = quantile(delays, 0.99)
    table.row(f"delay of the good receiver, {len(good)}: p50, p99 ms",
              f"{1000 * quantile(delays, 0.5):.0f}, {1000 * p99:.0f}", p99 <= 1.0 or not options.full)


def judge_order(table, receiver, jobs):
    """The end is the last message of a job and comes once; ids do not repeat, and times are those of the receiver."""
    wrong, news = [], 0
    for job in jobs:
        ids = [one.id for one in receiver.of_job(job)]
        news += len(ids) - 1
        if ids[-1] != f"{job}-completed" or len(set(ids)) != len(ids):
            wrong.append(ids)
    table.row(f"jobs whose end is not the last message, or with an id twice, {news} messages before ends", wrong[:2], not wrong)
    off = max(abs(one.wall - one.timestamp) for one in receiver.attempts)
    table.row("timestamps off the clock of the receiver, seconds", f"{off:.1f}", off <= TIMESTAMP_SLACK_SECS)


def judge_schedule(table, receiver, job, refusals):
    attempts = until("it is accepted", lambda: len(found := receiver.of_job(job)) > refusals and found, 240)
    gaps = [after.at - before.at for before, after in itertools.pairwise(attempts)]
    good = [0.8 * secs <= gap <= 1.2 * secs + RETRY_SLACK_SECS for gap, secs in zip(gaps, RETRY_SECS)]
    table.row(f"500 x {refusals}, then ok: seconds between attempts", [round(gap, 1) for gap in gaps], all(good))
    ids = {one.id for one in attempts}
    table.row("ids of these attempts", ids, ids == {f"{job}-completed"})
    fresh = [after.timestamp - before.timestamp >= 0.8 * secs - 1
             for (before, after), secs in zip(itertools.pairwise(attempts), RETRY_SECS)]
    table.row("timestamps fresh at each attempt", [one.timestamp for one in attempts], all(fresh))


def judge_results(table, node, jobs, by_name):
    """What stands in the list of those that wait, and what is delivered."""
    attempts = until("the busy one is asked again", lambda: len(found := by_name["429"].of_job(jobs["429"])) > 1 and found)
    gap = attempts[1].at - attempts[0].at
    is_good = RETRY_AFTER_SECS - 0.1 <= gap <= RETRY_AFTER_SECS + RETRY_SLACK_SECS
    table.row(f"429 + Retry-After {RETRY_AFTER_SECS}: seconds to the next attempt", f"{gap:.1f}", is_good)
    pending = {one["job"]: one for one in webhooks_of(node)}
    for name in ("timeout", "301", "reset", "not trusted"):
        if name in jobs:
            found = pending.get(jobs[name], {})
            is_good = found.get("last_result") == name and found.get("attempts", 0) >= 1
            table.row(f"{name}: waits after attempts", f"{found.get('attempts')}, {found.get('last_result')}", is_good)
    for name in ("good", "10 MB", "429"):
        table.row(f"{name}: delivered", jobs[name], jobs[name] not in pending)
    if "not trusted" in by_name:
        told = len(by_name["not trusted"].attempts)
        table.row("messages to a receiver that is not trusted", told, not told)


def judge_dead_letters(table, options, node, receiver, job):
    dead = webhooks_of(node, "?dead")
    is_one = [one["job"] for one in dead] == [job] and dead[0]["last_result"] == "410" and dead[0]["has_job"]
    table.row("dead letters", [(one["id"], one["last_result"]) for one in dead], is_one)

    def command(*arguments):
        line = [options.binary, "jobs", "webhooks", *arguments, "--admin", f"127.0.0.1:{node.admin}"]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        return done.returncode, (done.stdout + done.stderr).strip()

    name = f"{job}-completed"
    code, shown = command("--dead")
    table.row("jobs webhooks --dead", shown, code == 0 and name in shown)
    code, shown = command("retry", "none-completed")
    table.row("jobs webhooks retry of another", shown, code == 1)
    code, shown = command("retry", name)
    table.row("jobs webhooks retry", shown, code == 0)
    attempts = until("it is delivered", lambda: len(found := receiver.of_job(job)) > 1 and found)
    table.row("ids of its attempts", {one.id for one in attempts}, {one.id for one in attempts} == {name})
    until("it is gone from both lists", lambda: all(
        one["job"] != job for one in webhooks_of(node) + webhooks_of(node, "?dead")))


def listeners(table, options):
    """A listener that is bound gets no webhook, also when a reload names another address for it."""
    server = ModelServer()

    def text(ports):
        return f"""anonymous: allow
jobs: {{ webhooks: {{ allow_http: true, ports: {ports}, allow_networks: ["127.0.0.0/8", "::1"] }} }}
models:
{model('acme/m', server.port, 1)}"""

    with gateway(options.binary, text([80])) as node:
        bound, later = node.admin, free_port()
        node.admin = later
        node.write(text([bound, later, node.port]))
        node.admin = bound
        status, answer = ask(bound, "POST", "/reload")
        needs = answer.get("needs_restart")
        table.row("keys that need a restart", needs, status == 200 and needs == ["listen.admin.address"])
        for name, port in [("bound", bound), ("named by the reload", later), ("of clients", node.port)]:
            body = {"input": {"prompt": "tag=x"}, "webhook": f"http://127.0.0.1:{port}/"}
            status, answer = node.ask("POST", "/v1/models/acme/m/predictions", body)
            is_refused = status == 422 and "listener of this gateway" in json.dumps(answer)
            table.row(f"a webhook to the listener {name}", status, is_refused)
        node.create("acme/m", "tag=x", webhook=f"http://localhost:{bound}/", webhook_events_filter=["completed"])
        refused = until("it was tried", lambda: [one for one in webhooks_of(node) if one["attempts"]])
        result = refused[0]["last_result"]
        table.row("a name of the listener that is bound", result, result == "address not allowed: own listener")


def parsed(text):
    """Seconds since 1970 of an RFC 3339 time in UTC."""
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def webhooks_of(node, query=""):
    return ask(node.admin, "GET", f"/jobs/webhooks{query}")[1]["webhooks"]


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
            # One durable hold, and the own queue: what waits of it, by the permits that live requests can count on.
            own_permits = permits * 0.75
            bound = durable_hold + (3 * permits - own_permits) / own_permits * live_hold
            p99 = quantile(waits, 0.99)
            table.row(f"{name}: live requests, p99 wait s, at most",
                      f"{len(waits)}, {p99:.2f}, {bound:.2f}", p99 <= bound + 0.1 or not options.full)
            table.row(f"{name}: live requests refused", len(retry_after))
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
        big = bearer("big")
        in_parallel(8, lambda _: node.create("acme/m", f"tag=big hold={hold}", big), range(backlog))
        stop, delays = threading.Event(), []

        def one_at_a_time(name):
            key = bearer(name)
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
jobs: {{ keep_secs: {KEEP_SECS} }}
models:
{model('acme/m', port, 32)}"""
        with gateway(options.binary, text) as node:
            done, lock = itertools.count(), threading.Lock()
            accepted = [0]
            # At one pace: what is kept for KEEP_SECS grows with the pace, and a leak is what grows without it.
            pause, quit = 1 / options.pace, threading.Event()
            begun = time.monotonic()
            turn = [begun]

            def next_turn():
                """Waits its turn. What was missed is not caught up with, which would be a pace of its own."""
                with lock:
                    turn[0] = max(turn[0], time.monotonic()) + pause
                    at = turn[0]
                quit.wait(max(0.0, at - time.monotonic()))

            def submit(_):
                connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=60)
                body = {"input": {"prompt": "x" * 600}}
                while next(done) < jobs:
                    next_turn()
                    status = None
                    while status != 201:
                        status, _ = asked(connection, "POST", "/v1/models/acme/m/predictions", body)
                        if status != 201:
                            time.sleep(0.2)
                    with lock:
                        accepted[0] += 1

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
            # Twice `ends per second x keep_secs x (input + result + 400)`, at the fastest of the samples.
            paces = [
                (count - before) / (secs - since)
                for (before, _, _, since), (count, _, _, secs) in itertools.pairwise(samples)
            ]
            bound = 2 * max(paces) * KEEP_SECS * ROW_BYTES
            largest = max(size for _, _, size, _ in samples)
            table.row("largest file of the store, at most, MiB", f"{largest >> 20}, {bound / 2**20:.0f}",
                      largest <= bound or not options.full)


PARTS = [cancels, deadlines, tenants, receivers, listeners, sharing, fairness, memory]


def main():
    names = {part.__name__: part for part in PARTS}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="*", help=f"all of {', '.join(names)} unless named")
    parser.add_argument("--binary", default="target/debug/infergate")
    parser.add_argument("--full", action="store_true", help="the full counts: about 40 minutes")
    parser.add_argument("--jobs", type=int, help="jobs of the part `memory`")
    parser.add_argument("--pace", type=int, default=300, help="jobs a second of the part `memory`")
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
