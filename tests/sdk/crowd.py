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
EVENTS_LIMIT_SECS = 10
# Several times as long as events wait to be written: after it, none is still to come.
SETTLE_SECS = 0.4


def permits_used(model):
    state = get_json(os.environ["CROWDED_ADMIN"] + "/state")
    [endpoints] = [one["endpoints"] for one in state["models"] if one["id"] == model]
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


def mark():
    """How many events there are, those of earlier requests all written."""
    time.sleep(SETTLE_SECS)
    return len(events())


def requests_since(before, wanted):
    """The events after the first `before`, when `wanted` have come and a moment has passed for
    any that should not."""
    until(lambda: len(events()) >= before + wanted, f"{wanted} events", EVENTS_LIMIT_SECS)
    time.sleep(SETTLE_SECS)
    return events()[before:]
