#!/usr/bin/env python3
"""Kills of gateways, keepers and models: no process, no page of a card and no lease is left.

Runs a gateway with simulated servers on a simulated card, as processes of its own. Servers obey SIGTERM, ignore it, fork
workers, or leave their group. Standard library only.

    tests/gpu/storms.py --binary target/debug/infergate [--full] [SCENARIO...]
"""

import atexit
import contextlib
import http.client
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import threading
import time

from remains import Card, instance_of, is_alive, keepers_of, leases, live_leases, marked
from simulated import gpu_section, managed_model, options_parser

from kit import Gateway, Table, until

# Manners of servers, by the names of their models.
MANNERS = {
    "obeys": [],
    "ignores": ["--ignore-term"],
    "escapes": ["--fork-worker", "--escape-group"],
    "forks": ["--ignore-term", "--fork-worker"],
}
# A worker that is alone in its session gets no SIGTERM and ends with SIGKILL, at once.
OBEDIENT = ("obeys", "escapes")
STOP_SECS = 2
CARD_MIB, MODEL_MIB = 24000, 4000
# Times in which nothing may be left: of the obedient and of others, after the start, after the kill of a model.
# Small runs are for machines that do other work: there a hang is a fault.
PATIENCE = 0 if "--full" in sys.argv else 10
OBEDIENT_MAX, OTHERS_MAX, START_MAX, MODEL_MAX = (most + PATIENCE for most in (1.0, STOP_SECS + 0.1, 3.0, 1.0))
# Rounds of `--quick` and `--full`: gateways, gateways with keepers, models that load, models that stream, restarts.
ROUNDS = {False: (4, 2, 3, 3, 3), True: (200, 50, 100, 100, 20)}
LOOK_SECS = 0.005


def model(name, manners, more):
    process = {"parallel": 4, "stop_timeout_secs": STOP_SECS}
    return managed_model(name, MODEL_MIB, ["--ttft-ms", 2, *manners, *more], process, keep_alive_secs=-1)


class Host:
    """A gateway with one card. Names of its models have a word of their own before them."""

    def __init__(self, binary, names, more=(), **gpu):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="infergate-storm-"))
        self.word = f"s{os.getpid()}x{random.randrange(1 << 24):06x}-"
        self.card = Card(self.folder / "cards/sim0")
        self.ledger = self.folder / "ledger"
        self.models = [self.word + name for name in names]
        manners = [MANNERS[name.split("-")[0]] for name in names]
        lines = [model(name, own, more) for name, own in zip(self.models, manners)]
        parallel = {"per_device": 4, "per_host": 4}
        # Below the ports of listeners, which `kit.free_port` chooses.
        ports = "10000-11999"
        section = gpu_section(self.folder, ["sim0"], CARD_MIB, pages=96, load_parallel=parallel, ports=ports, **gpu)
        text = f"anonymous: allow\ntimeouts: {{ drain_delay_secs: 1 }}\n{section}models:\n{''.join(lines)}"
        self.gateway = Gateway(binary, text)
        # A scenario that gives up leaves no gateway behind either.
        atexit.register(lambda: self.gateway.process.kill())

    def close(self):
        self.gateway.process.kill()
        self.gateway.process.wait()
        until("nothing is left of the host", lambda: not marked(self.word))
        for folder in (self.folder, self.gateway.folder):
            shutil.rmtree(folder, ignore_errors=True)

    def serve(self, name, stream=False, tokens=4):
        """Status and text of an answer; 0 where the connection has ended."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.gateway.chat(name, tokens, stream=stream)
        return 0, ""

    def warm(self):
        """Waits until each model has answered. Their loads begin together."""
        for name in self.models:
            self.gateway.order(name, "load")
        for name in self.models:
            until(f"{name} answers", lambda name=name: self.serve(name)[0] == 200)

    def left(self, word=None):
        """What is there of the models: marked processes, pages, leases with a holder."""
        return marked(word or self.word), self.card.holders(), live_leases(self.ledger)


class Restarts:
    """Clients that ask over restarts: what was asked while no gateway listened is asked again."""

    def __init__(self, host):
        self.host, self.is_over = host, threading.Event()
        self.answered, self.unheard, self.failed = 0, 0, []
        self.clients = [threading.Thread(target=self.run, args=(name,)) for name in host.models]
        for client in self.clients:
            client.start()

    def run(self, name):
        while not self.is_over.is_set():
            try:
                status, answer = self.host.gateway.chat(name)
            except (ConnectionError, http.client.HTTPException) as error:
                # Refused, or closed with the listener before a byte of the request was read.
                self.unheard += 1
                if not isinstance(error, (ConnectionError, http.client.RemoteDisconnected)):
                    self.failed.append(repr(error))
                self.is_over.wait(0.01)
                continue
            self.answered += status == 200
            if status != 200:
                self.failed.append((status, answer))

    def stop(self):
        self.is_over.set()
        for client in self.clients:
            client.join()


class Load:
    """Clients that ask all models without an end."""

    def __init__(self, host):
        self.host, self.is_over, self.answered = host, threading.Event(), 0
        self.clients = [threading.Thread(target=self.run, args=(name,)) for name in host.models * 2]
        for client in self.clients:
            client.start()

    def run(self, name):
        while not self.is_over.is_set():
            status = self.host.serve(name, stream=True, tokens=8)[0]
            self.answered += status == 200
            if status == 0:
                self.is_over.wait(0.05)

    def stop(self):
        self.is_over.set()
        for client in self.clients:
            client.join()


def took(condition, limit):
    """Seconds until the condition holds; infinite where it does not hold in three times the limit."""
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > 3 * limit:
            return float("inf")
        time.sleep(LOOK_SECS)
    return time.monotonic() - begun


def kill_gateway(host, keepers):
    """Kills the gateway, and its keepers where asked; returns the moment and the keepers."""
    own = keepers_of(host.gateway.process.pid)
    os.kill(host.gateway.process.pid, signal.SIGKILL)
    for pid, _ in own if keepers else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    host.gateway.process.wait()
    return own


def gateways(binary, rounds, table):
    """Gateways that are killed under load."""
    host = Host(binary, MANNERS)
    slowest = {name: 0.0 for name in ("obedient", "others")}
    lost, answered = 0, 0
    for nth in range(rounds):
        if nth:
            host.gateway.start()
        load = Load(host)
        # Every other one while models load.
        if nth % 2 == 0:
            host.warm()
        time.sleep(random.uniform(0.05, 0.5))
        keepers = kill_gateway(host, keepers=False)
        begun = time.monotonic()
        load.stop()
        answered += load.answered
        obedient = tuple(host.word + name for name in OBEDIENT)
        is_left = lambda: any(name.startswith(obedient) for name in marked(host.word).values())  # noqa: E731
        waited = time.monotonic() - begun
        slowest["obedient"] = max(slowest["obedient"], waited + took(lambda: not is_left(), OBEDIENT_MAX))
        waited = time.monotonic() - begun
        nothing = lambda: not any((*host.left(), *filter(is_alive, keepers)))  # noqa: E731
        slowest["others"] = max(slowest["others"], waited + took(nothing, OTHERS_MAX))
        lost += not nothing()
    host.close()
    table.row("gateway killed under load, rounds with anything left", f"{lost} of {rounds}; {answered} answers", not lost)
    table.row("the last process of servers that obey", f"{slowest['obedient']:.3f} s of {OBEDIENT_MAX}",
              slowest["obedient"] <= OBEDIENT_MAX)
    table.row("the last process, page and lease of others", f"{slowest['others']:.3f} s of {OTHERS_MAX}",
              slowest["others"] <= OTHERS_MAX)


def gateways_and_keepers(binary, rounds, table):
    """Gateways that are killed with their keepers, and started anew."""
    host = Host(binary, MANNERS)
    slowest, lost, orphaned = 0.0, 0, 0
    for nth in range(rounds):
        if nth:
            time.sleep(0.01)
        load = Load(host)
        host.warm()
        kill_gateway(host, keepers=True)
        load.stop()
        orphaned += bool(marked(host.word))
        groups = {lease["group"] for lease in leases(host.ledger)}
        begun = time.monotonic()
        threading.Thread(target=host.gateway.start).start()

        def nothing():
            former = [lease for lease in leases(host.ledger) if lease["group"] in groups]
            return not any((marked(host.word), host.card.holders(), former))

        slowest = max(slowest, took(nothing, START_MAX))
        lost += not nothing()
        until("the gateway is ready", host.gateway.is_ready)
    host.close()
    name = "gateway and keepers killed, rounds with anything left after a start"
    table.row(name, f"{lost} of {rounds}; {orphaned} had processes before it", not lost)
    table.row("the last process, page and lease after the start", f"{slowest:.3f} s of {START_MAX}", slowest <= START_MAX)


def adoptions(binary, rounds, table):
    """Restarts of a gateway that keeps its models: in order, and by a kill every fourth time."""
    host = Host(binary, MANNERS, when_exiting="keep", orphan_grace_secs=30)
    host.warm()
    before = {name: host.gateway.slot(name)["instance"] for name in host.models}
    kept, loads, answered, unheard, failed = 0, 0, 0, 0, []
    for nth in range(rounds):
        is_killed = nth % 4 == 3
        # Requests in flight of a gateway that is killed fail with it.
        clients = None if is_killed else Restarts(host)
        time.sleep(random.uniform(0.05, 0.3))
        os.kill(host.gateway.process.pid, signal.SIGKILL if is_killed else signal.SIGTERM)
        host.gateway.process.wait()
        host.gateway.start()
        clients = clients or Restarts(host)
        until("requests are answered again", lambda before=clients.answered: clients.answered > before + 8)
        clients.stop()
        slots = [host.gateway.slot(name) for name in host.models]
        kept += all(slot["state"] == "ready" and slot["instance"] == before[slot["model"]] for slot in slots)
        loads += sum(slot["loads"] for slot in slots)
        answered, unheard, failed = answered + clients.answered, unheard + clients.unheard, failed + clients.failed
    for name in host.models:
        host.gateway.order(name, "unload")
    until("the models are unloaded", lambda: not any(host.left()))
    host.close()
    table.row("restarts over which each model was kept", f"{kept} of {rounds}, {loads} loads", kept == rounds and not loads)
    table.row("failed requests over restarts", f"{len(failed)} of {answered + len(failed)}, "
              f"{unheard} before a gateway listened {failed[:2] or ''}", not failed)


def kill_model(host, name):
    """Kills the main process of a model, and returns the time until nothing of the instance is left."""
    slot = host.gateway.slot(name)
    own = slot["instance"]
    held = [lease["group"] for lease in leases(host.ledger) if lease["holder"]["name"] == slot["slot"]]
    with contextlib.suppress(ProcessLookupError):
        os.kill(slot["pid"], signal.SIGKILL)

    def nothing():
        # A later load of the model may begin meanwhile.
        pages = [pid for pid in host.card.holders() if instance_of(pid) in (None, own)]
        groups = [lease["group"] for lease in leases(host.ledger) if lease["group"] in held]
        return not (marked(own) or pages or groups)

    return took(nothing, MODEL_MAX)


def is_loading(host, name):
    slot = host.gateway.slot(name)
    return slot["state"] == "loading" and slot["pid"]


def kills_of_models(binary, rounds, table, what, stream):
    """Models that are killed while they load or stream. Each model is killed once: its next load is late for it."""
    manners = list(MANNERS)
    names = [f"{manners[nth % len(manners)]}-{nth}" for nth in range(rounds)]
    more = ["--tokens-per-sec", "50"] if stream else ["--load-mib-per-sec", str(MODEL_MIB * 2)]
    host = Host(binary, names, more)
    times, unserved, torn = [], 0, 0
    for name in host.models:
        statuses = []

        def client(tokens, name=name, statuses=statuses):
            statuses.append(host.serve(name, stream=stream, tokens=tokens))

        if stream:
            until(name, lambda: host.serve(name)[0] == 200)
        asked = [threading.Thread(target=client, args=(500 if stream else 4,)) for _ in range(3)]
        for thread in asked:
            thread.start()
        if not stream:
            until("the model loads", lambda: is_loading(host, name))
        time.sleep(random.uniform(0.05, 0.4))
        times.append(kill_model(host, name))
        host.gateway.order(name, "retry")
        for thread in asked:
            thread.join()
        # A stream has begun and cannot begin anew: its end says so. Others wait for the next load.
        torn += sum("[DONE]" not in str(text) and "error" in str(text) for _, text in statuses)
        unserved += sum(status != 200 for status, _ in statuses) if not stream else 0
        unserved += not until(name, lambda: host.serve(name)[0] == 200)
        host.gateway.order(name, "unload")
        until("the model is unloaded", lambda: host.gateway.slot(name)["state"] == "cold")
    left = host.left()
    host.close()
    slowest, lost = max(times), sum(each > 3 * MODEL_MAX for each in times)
    table.row(f"models killed while they {what}, rounds with anything left", f"{lost} of {rounds}", not lost)
    table.row(f"the last process, page and lease of models that {what}", f"{slowest:.3f} s of {MODEL_MAX}",
              slowest <= MODEL_MAX)
    table.row(f"requests for models that {what} that no later load has served", f"{unserved}", not unserved)
    if stream:
        table.row("streams cut by a kill that end with an error", f"{torn} of {3 * rounds}", torn == 3 * rounds)
    table.row(f"left at the end of models that {what}", f"{[len(part) for part in left]}", not any(left))


def loading(binary, rounds, table):
    kills_of_models(binary, rounds, table, "load", stream=False)


def streaming(binary, rounds, table):
    kills_of_models(binary, rounds, table, "stream", stream=True)


SCENARIOS = {
    "gateways": gateways,
    "keepers": gateways_and_keepers,
    "loading": loading,
    "streaming": streaming,
    "adoptions": adoptions,
}


def main():
    seed = random.randrange(1 << 32)
    parser = options_parser(__doc__, "200, 50, 100, 100 and 20 rounds", seed)
    parser.add_argument("scenario", nargs="*", choices=[[], *SCENARIOS])
    options = parser.parse_args()
    random.seed(options.seed)
    print(f"seed {options.seed}", flush=True)
    table = Table()
    for (name, scenario), rounds in zip(SCENARIOS.items(), ROUNDS[options.full]):
        if not options.scenario or name in options.scenario:
            begun = time.monotonic()
            scenario(options.binary, rounds, table)
            print(f"     {name}: {rounds} rounds in {time.monotonic() - begun:.0f} s", flush=True)
    return table.finish()


if __name__ == "__main__":
    sys.exit(main())
