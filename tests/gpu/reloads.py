#!/usr/bin/env python3
"""Reloads of the configuration while models of a GPU host serve: no request fails, and no process restarts without need.

Runs a gateway with simulated servers on a simulated card, as processes of its own, with clients that never pause.
Standard library only.

    tests/gpu/reloads.py --binary target/debug/infergate [--full | --reloads N]
"""

import contextlib
import http.client
import pathlib
import random
import shutil
import sys
import tempfile
import threading
import time

from simulated import gpu_section, managed_model, options_parser

from kit import Gateway, Table, accounts, ask, until

CARD_MIB, MODEL_MIB = 48000, 4000
RELOADS = {False: 60, True: 1000}
# Of so many reloads one changes a model, adds one, removes one or renames one.
RELATED_EVERY = 10
# Models that clients ask without a pause, and slots of each.
STEADY = {"steady-a": 1, "steady-b": 1, "pair": 2, "changes": 1}
# Longer than the reloads that it goes on over take on a busy machine.
BACKOFF_MIN_MS = 3000
# MiB per second: a load takes half a second.
LOAD_RATE = 8000


class Settings:
    """What the file says; `text` writes it down."""

    def __init__(self, folder):
        self.folder = folder
        self.contexts = {name: 8192 for name in STEADY}
        self.slots = dict(STEADY)
        self.keep_alive, self.turn, self.patience, self.ceiling = 600, 4, 13, 300
        self.pins, self.accounts, self.priority = set(), 1, 5
        self.more = {}

    def model(self, name, slots, context, arguments=()):
        load = () if "--load-secs" in arguments else ("--load-mib-per-sec", LOAD_RATE)
        return managed_model(
            name,
            MODEL_MIB,
            ["--ttft-ms", 2, *load, *arguments],
            {"parallel": 4, "context": context, "stop_timeout_secs": 2},
            keep_alive_secs=self.keep_alive,
            replicas={"min": slots, "max": slots},
            pin=name in self.pins,
        )

    def text(self):
        listed = accounts([f"account-{number}" for number in range(self.accounts)], max_priority=self.priority)
        models = [self.model(name, self.slots[name], context) for name, context in self.contexts.items()]
        models += [self.model(name, 1, 8192, arguments) for name, arguments in self.more.items()]
        parallel, swap = {"per_device": 8, "per_host": 8}, {"turn": self.turn, "patience": self.patience}
        gpu = gpu_section(self.folder, ["sim0"], CARD_MIB, pages=96, load_parallel=parallel, swap=swap)
        ceiling = f"anonymous: allow\ntimeouts: {{ ceiling_secs: {self.ceiling} }}\n"
        return f"{ceiling}{listed}{gpu}models:\n{''.join(models)}"

    def change_unrelated(self):
        """A change that concerns no process."""
        what = random.randrange(6)
        if what == 0:
            self.turn, self.patience = random.randint(1, 8), random.randint(1, 30)
        elif what == 1:
            self.keep_alive = random.randint(500, 900)
        elif what == 2:
            self.pins ^= {random.choice(list(STEADY))}
        elif what == 3:
            self.accounts = random.randint(1, 5)
        elif what == 4:
            self.priority = random.randint(1, 9)
        else:
            self.ceiling = random.randint(200, 400)


class Clients:
    """Clients that ask the steady models without a pause, and count what is not a good answer of the model asked."""

    def __init__(self, gateway):
        self.gateway, self.is_over = gateway, threading.Event()
        self.answered, self.failed, self.lock = 0, [], threading.Lock()
        self.threads = [
            threading.Thread(target=self.run, args=(name, is_stream), daemon=True)
            for name in STEADY
            for is_stream in (False, True)
        ]
        for thread in self.threads:
            thread.start()

    def run(self, name, is_stream):
        while not self.is_over.is_set():
            problem = request(self.gateway, name, is_stream)
            with self.lock:
                self.answered += problem is None
                if problem:
                    self.failed.append(f"{name}: {problem}")
            time.sleep(0.005)

    def stop(self):
        self.is_over.set()
        for thread in self.threads:
            thread.join()


def request(gateway, name, is_stream=False, tokens=4):
    """None after a good answer of the model that was asked, else what came."""
    try:
        status, answer = gateway.chat(name, tokens, timeout=60, stream=is_stream)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return repr(error)
    if status != 200:
        return f"{status} {answer}"
    if is_stream:
        return None if "[DONE]" in answer else f"torn stream {answer[-80:]}"
    return None if answer["model"] == name else f"answered by {answer['model']}"


class Host:
    def __init__(self, binary):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="infergate-reloads-"))
        self.settings = Settings(self.folder)
        self.gateway = Gateway(binary, self.settings.text())
        self.refused = []

    def close(self):
        self.gateway.process.terminate()
        self.gateway.process.wait()
        for folder in (self.folder, self.gateway.folder):
            shutil.rmtree(folder, ignore_errors=True)

    def reload(self):
        self.gateway.write(self.settings.text())
        status, answer = ask(self.gateway.admin, "POST", "/reload", timeout=60)
        if status != 200:
            self.refused.append(answer)

    def model(self, name):
        """Report of a model; none where it is not configured."""
        return next((model for model in self.gateway.gpu()["models"] if model["model"] == name), None)

    def pids(self):
        """Processes of ready slots."""
        return {slot["slot"]: slot["pid"] for slot in self.gateway.slots() if slot["state"] == "ready"}

    def is_at_rest(self):
        """The processes, once each steady model has all its slots."""
        pids = self.pids()
        wanted = [f"{name}#{number}" for name, slots in STEADY.items() for number in range(slots)]
        restarting = [model["model"] for model in self.gateway.gpu()["models"] if model["restarting"]]
        return pids if all(name in pids for name in wanted) and not restarting else None

    def rest(self):
        return until("each steady model is ready", self.is_at_rest)


def changed(before, after):
    return sorted(slot for slot in before if after.get(slot) != before[slot])


class Judge:
    """Counts restarts that nothing asked for."""

    def __init__(self, host):
        self.host, self.unasked, self.missed, self.gaps = host, [], [], 0
        self.pids = host.rest()

    def check(self, models=()):
        """Holds the processes against those before; those of `models` have to be others."""
        after = self.host.rest()
        expected = sorted(slot for slot in self.pids if slot.rpartition("#")[0] in models)
        found = changed(self.pids, after)
        self.unasked += [slot for slot in found if slot not in expected]
        self.missed += [slot for slot in expected if slot not in found]
        self.pids = {slot: pid for slot, pid in after.items() if slot.rpartition("#")[0] in STEADY}

    def change_context(self, name):
        settings = self.host.settings
        settings.contexts[name] = random.choice([size for size in (1024, 2048, 4096) if size != settings.contexts[name]])
        self.host.reload()
        before = {slot: pid for slot, pid in self.pids.items() if slot.startswith(f"{name}#")}

        def is_over():
            now = self.host.pids()
            serving = [slot for slot in before if slot in now]
            # Of several slots one restarts at a time.
            self.gaps += len(serving) < len(before) - 1
            return all(slot in now and now[slot] != pid for slot, pid in before.items())

        until(f"{name} has other processes", is_over)
        self.check([name])


def come_and_go(host, number):
    """A model comes, serves, gets another name, and goes while it answers; returns what went wrong."""
    problems, settings = [], host.settings
    old, new = f"guest-{number}", f"renamed-{number}"
    settings.more = {old: ()}
    host.reload()
    problems += [request(host.gateway, old)]
    settings.more = {new: ()}
    host.reload()
    problems += [request(host.gateway, new)]
    answer = []
    slow = threading.Thread(target=lambda: answer.append(request(host.gateway, new, True, 40)))
    slow.start()
    until("the long answer runs", lambda: busy(host, new) or answer)
    settings.more = {}
    host.reload()
    slow.join()
    gone = f"{new} and {old} leave no process"
    until(gone, lambda: not host.gateway.slots(old) and not host.gateway.slots(new))
    return [problem for problem in problems + answer if problem]


def busy(host, name):
    model = host.model(name)
    return model and model["in_flight"]


def reload_while_loading(host):
    """A reload in the middle of a load; returns the processes that it began with and ended with."""
    settings = host.settings
    settings.more = {"slow": ("--load-secs", "2")}
    host.reload()
    host.gateway.order("slow", "load")
    began = until("slow loads", lambda: [slot["pid"] for slot in host.gateway.slots("slow") if is_loading(slot)])
    settings.change_unrelated()
    host.reload()
    slots = host.gateway.slots
    ended = until("slow is ready", lambda: [slot["pid"] for slot in slots("slow") if slot["state"] == "ready"])
    settings.more = {}
    host.reload()
    until("slow is gone", lambda: not host.gateway.slots("slow"))
    return began, ended


def is_loading(slot):
    return slot["state"] == "loading" and slot["pid"]


def reload_in_backoff(host):
    """Reloads while a model that keeps failing waits; returns whether its backoff went on."""
    settings = host.settings
    settings.more = {"broken": ("--no-such-option",)}
    host.reload()
    host.gateway.order("broken", "load")

    def backoff():
        model = host.model("broken")
        return (model and model["backoff_ms"]) or 0

    def is_long():
        left = backoff()
        return left if left >= BACKOFF_MIN_MS else 0

    before = until(f"broken waits for {BACKOFF_MIN_MS} ms or more", is_long)
    for _ in range(3):
        settings.change_unrelated()
        host.reload()
    after = backoff()
    settings.more = {}
    host.reload()
    until("broken is gone", lambda: not host.gateway.slots("broken"))
    return bool(after) and after <= before


def run(options):
    random.seed(options.seed)
    host = Host(options.binary)
    table = Table()
    try:
        judge = Judge(host)
        clients = Clients(host.gateway)
        until("clients are answered", lambda: clients.answered > 20)
        guests, begun = [], time.monotonic()
        for number in range(options.reloads):
            if number % RELATED_EVERY == RELATED_EVERY - 1:
                if number // RELATED_EVERY % 2:
                    guests += come_and_go(host, number)
                else:
                    judge.change_context(random.choice(list(STEADY)))
            else:
                host.settings.change_unrelated()
                host.reload()
                judge.check()
        took = time.monotonic() - begun
        began, ended = reload_while_loading(host)
        goes_on = reload_in_backoff(host)
        judge.check()
        clients.stop()
        table.row("reloads", f"{options.reloads} in {took:.0f} s, refused: {host.refused[:3]}", not host.refused)
        table.row("requests answered", clients.answered, clients.answered > options.reloads)
        table.row("requests failed", clients.failed[:5] or 0, not clients.failed)
        table.row("restarts that nothing asked for", judge.unasked[:5] or 0, not judge.unasked)
        table.row("restarts that did not come", judge.missed[:5] or 0, not judge.missed)
        table.row("looks at which a model had more than one slot away", judge.gaps, not judge.gaps)
        table.row("models that came, were renamed and went: problems", guests[:5] or 0, not guests)
        table.row("a load goes on over a reload", f"{began} {ended}", began == ended)
        table.row("a backoff goes on over reloads", goes_on, goes_on)
        return table.finish()
    finally:
        with contextlib.suppress(Exception):
            log = (host.gateway.folder / "log").read_text()
            if table.failed:
                print(log[-3000:])
        host.close()


def main():
    parser = options_parser(__doc__, "1,000 reloads", seed=1)
    parser.add_argument("--reloads", type=int)
    options = parser.parse_args()
    options.reloads = options.reloads or RELOADS[options.full]
    sys.exit(run(options))


if __name__ == "__main__":
    main()
