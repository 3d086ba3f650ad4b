"""Three models of real llama.cpp on a host with memory for two, asked by the openai client.

Each model answers with words of its own, and names its own file: an answer shows which server has made it.
Environment: BASE_URL (ends in /v1), KEY, ADMIN_URL, EVENTS_FILE, MODELS (names; the last one is unloaded after two idle
seconds), ROUNDS of each client.
"""

import collections
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))

import openai  # noqa: E402
from checks import at_once, check, equal, raises, run  # noqa: E402
from outside import get_json, until  # noqa: E402

MODELS = os.environ["MODELS"].split(",")
ROUNDS = int(os.environ["ROUNDS"])
CLIENTS = 20
# Fixed, so that the same clients ask for the same models in each run.
SEED = 13
PAUSE_SECS_MAX = 1.5
TOKENS = 16
# llama.cpp closes a connection that has been idle for five seconds.
CONNECTION_IDLE_SECS = 5.3

# A failed answer is a failed check: nothing is tried again.
client = openai.OpenAI(
    base_url=os.environ["BASE_URL"], api_key=os.environ["KEY"], max_retries=0, timeout=240
)


def ask(model, is_stream=False, **options):
    return client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "hello"}],
        stream=is_stream,
        **{"max_tokens": TOKENS, **options},
    )


def require_own(model, text, server):
    """The words are the model's, and so is the file that its server names."""
    assert re.fullmatch(rf"( ?{model}\d+)+", text), f"{model} answered {text!r}"
    equal(pathlib.Path(server).stem, model)


def served(model, is_stream=False):
    if not is_stream:
        answer = ask(model)
        equal(answer.usage.completion_tokens, TOKENS)
        return require_own(model, answer.choices[0].message.content, answer.model)
    chunks = list(ask(model, is_stream=True))
    equal(chunks[-1].choices[0].finish_reason, "length")
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    require_own(model, text, chunks[0].model)


def host():
    return get_json(os.environ["ADMIN_URL"] + "/gpu")


def slot(model):
    return next(slot for slot in host()["slots"] if slot["model"] == model)


def becomes(model, state):
    until(lambda: slot(model)["state"] == state, f"{model} is {state}")
    return slot(model)


def loads():
    return {slot["model"]: slot["loads"] for slot in host()["slots"]}


def events():
    # A line being written has no end yet.
    lines = pathlib.Path(os.environ["EVENTS_FILE"]).read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines]


class Watch:
    """Looks at the leases for as long as the block lasts: they are never more than the device has."""

    def __enter__(self):
        self.is_over, self.looks, self.faults = threading.Event(), 0, []
        self.thread = threading.Thread(target=self.look)
        self.thread.start()
        return self

    def look(self):
        while not self.is_over.wait(0.05):
            report = host()
            device = report["devices"][0]
            residents = sum(slot["leases"] != [] for slot in report["slots"])
            if device["leased_mib"] > device["total_mib"] or residents > 2:
                self.faults.append((device, residents))
            self.looks += 1

    def __exit__(self, *_):
        self.is_over.set()
        self.thread.join()
        assert self.looks > 0 and not self.faults, (self.looks, self.faults[:1])


@check
def on_demand():
    """each model is loaded when it is asked for, and the third makes another leave"""
    equal({slot(model)["state"] for model in MODELS}, {"cold"})
    with Watch():
        for model in MODELS:
            served(model)
            becomes(model, "ready")
    equal(loads(), dict.fromkeys(MODELS, 1))
    assert sum(slot["state"] == "ready" for slot in host()["slots"]) <= 2


@check
def crowd():
    """20 clients with pauses share the host: streams and whole answers, each by the model that was asked"""
    before, answered = loads(), collections.Counter()

    def one(number):
        chance = random.Random(SEED * 1000 + number)
        for _ in range(ROUNDS):
            time.sleep(chance.uniform(0, PAUSE_SECS_MAX))
            model = chance.choices(MODELS, (5, 3, 2))[0]
            served(model, is_stream=chance.random() < 0.5)
            answered[model] += 1

    with Watch():
        at_once(CLIENTS, one)
    equal(answered.total(), CLIENTS * ROUNDS)
    swaps = sum(loads().values()) - sum(before.values())
    print(f"# {answered.total()} answers, {swaps} loads: {dict(answered)}")
    assert swaps >= 2, f"{swaps} loads among {dict(answered)}"


@check
def killed():
    """a server that is killed while it streams ends that answer, is started again, and disturbs no other"""
    first, second = MODELS[:2]

    def both_are_ready():
        # Another one may have been a cheaper choice to leave for the second than the first is.
        for model in (first, second):
            served(model)
        return {slot(model)["state"] for model in (first, second)} == {"ready"}

    until(both_are_ready, "both are ready")
    victim = slot(first)
    stream = ask(first, is_stream=True, max_tokens=1800, extra_body={"ignore_eos": True})
    next(stream)
    os.kill(victim["pid"], signal.SIGKILL)
    with contextlib.closing(stream):
        error = raises(openai.APIError, list, stream)
    print(f"# the stream ended with: {error}")
    served(second)
    served(first, is_stream=True)
    restarted = becomes(first, "ready")
    assert restarted["instance"] != victim["instance"] and restarted["pid"] != victim["pid"]
    equal(restarted["loads"], victim["loads"] + 1)


@check
def idle():
    """after a pause that closes idle connections, and unloads a model, both answer at once again"""
    stays, leaves = MODELS[0], MODELS[-1]
    for model in (stays, leaves):
        at_once(4, lambda _, model=model: served(model))
    before = loads()
    time.sleep(CONNECTION_IDLE_SECS)
    becomes(leaves, "cold")
    for _ in range(2):
        at_once(4, lambda number: served(stays, is_stream=number % 2 == 0))
        at_once(4, lambda number: served(leaves, is_stream=number % 2 == 0))
        time.sleep(CONNECTION_IDLE_SECS)
    after = loads()
    equal(after[stays], before[stays])
    assert after[leaves] > before[leaves], after


@check
def outcomes():
    """every request but the killed one has completed, with llama.cpp's own counts"""
    until(
        lambda: all(
            endpoint["permits"]["used"] == 0
            for model in get_json(os.environ["ADMIN_URL"] + "/state")["models"]
            for endpoint in model["endpoints"]
        ),
        "permits free",
    )
    ended = collections.Counter(event["outcome"] for event in events())
    print(f"# outcomes {dict(ended)}")
    equal(ended.total() - ended["completed"], 1)
    for event in events():
        if event["outcome"] == "completed":
            equal(event["metrics_source"], "reported")
            equal(event["metrics"]["output_tokens"], TOKENS)


run("llama.cpp host")
