"""How the Python checks make a model busy, and read the gateway's events.

It relies on the configuration that `tests/sdk/run` starts the gateway with: a model `busy` of one
permit and no queue, and an events file.
"""

import contextlib
import json
import os
import pathlib
import time

import httpx

from outside import get_json, until

# Events are written at least every 100 ms; the rest is a busy machine.
EVENTS_LIMIT_SECS = 60
# An event is handed over a moment after its answer: this is many such moments.
SETTLE_SECS = 0.4


def state():
    return get_json(os.environ["CROWDED_ADMIN"] + "/state")


def permits_used(model):
    [endpoints] = [one["endpoints"] for one in state()["models"] if one["id"] == model]
    return sum(endpoint["permits"]["used"] for endpoint in endpoints)


@contextlib.contextmanager
def busy():
    """While inside, the one permit of the model `busy` is taken by a long stream."""
    body = {
        "model": "busy",
        "stream": True,
        "max_tokens": 10_000,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": "hold the permit"}],
    }
    headers = {"authorization": "Bearer sdk-key"}
    url = os.environ["CROWDED_URL"] + "/v1/chat/completions"
    with httpx.stream("POST", url, json=body, headers=headers, timeout=30) as answer:
        assert answer.status_code == 200, answer.status_code
        # Held by name: a generator that is dropped closes the answer.
        pieces = answer.iter_bytes()
        next(pieces)
        yield
    until(lambda: permits_used("busy") == 0, "the permit is back", EVENTS_LIMIT_SECS)


def events():
    path = pathlib.Path(os.environ["EVENTS_FILE"])
    if not path.exists():
        return []
    # A line being written has no end yet.
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def settled():
    """Waits until all events that were handed over are written, however slow the disk."""
    time.sleep(SETTLE_SECS)

    def is_written():
        counts = state()["events"]
        return counts["emitted"] == counts["written"] + counts["dropped"]

    until(is_written, "all events written", EVENTS_LIMIT_SECS)


def mark():
    """How many events there are, those of earlier requests all written."""
    settled()
    return len(events())


def requests_since(before, wanted):
    """The events after the first `before`, when `wanted` have come and a moment has passed for
    any that should not."""
    until(lambda: len(events()) >= before + wanted, f"{wanted} events", EVENTS_LIMIT_SECS)
    settled()
    return events()[before:]
