"""The unmodified openai package for Python over WebSockets: the realtime API.

Environment: as in `openai_checks.py`. The server is the simulated one, with two permits.
"""

import concurrent.futures
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))

import openai  # noqa: E402
from checks import check, equal, run  # noqa: E402
from crowd import EVENTS_LIMIT_SECS, mark, permits_used, requests_since  # noqa: E402
from outside import until  # noqa: E402
from websockets.exceptions import InvalidStatus  # noqa: E402

KEY = "sdk-key"
PERMITS = 2
LIMIT_SECS = 60


def opened(model="live", key=KEY):
    """A connection of the SDK, to be entered."""
    client = openai.OpenAI(base_url=os.environ["CROWDED_URL"] + "/v1", api_key=key, max_retries=0)
    options = {"open_timeout": LIMIT_SECS}
    return client.realtime.connect(model=model, websocket_connection_options=options)


def until_type(connection, wanted):
    """The events up to the first one of this type."""
    events = []
    for event in connection:
        events.append(event)
        if event.type == wanted:
            return events
    raise AssertionError(f"closed before {wanted}")


def turn(connection):
    """The text and the usage of one response."""
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
    connection.conversation.item.create(item=item)
    connection.response.create()
    events = until_type(connection, "response.done")
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    return "".join(deltas), events[-1].response.usage


@check
def a_conversation():
    """a session, its update and two responses are one request, billed by what the server reports"""
    before = mark()
    with opened() as connection:
        equal(connection.recv().type, "session.created")
        connection.session.update(session={"type": "realtime", "output_modalities": ["text"]})
        equal(connection.recv().type, "session.updated")
        turns = [turn(connection) for _ in range(2)]
    assert all(text and usage.output_tokens > 0 for text, usage in turns), turns
    [event] = requests_since(before, 1)
    equal((event["outcome"], event["face"]), ("completed", "openai"))
    metrics = event["metrics"]
    assert metrics["bytes_in"] > 0 and metrics["bytes_out"] > metrics["bytes_in"], metrics
    assert event["neurons"] >= 3, event


@check
def an_unknown_event():
    """an error of the server comes as an event, and the session goes on"""
    with opened() as connection:
        connection.recv()
        connection.send({"type": "no.such.event"})
        equal(connection.recv().type, "error")
        assert turn(connection)[0]


@check
def refusals():
    """a model that is unknown and a key that is wrong are refused before the session"""
    for options, status in [({"model": "none"}, 404), ({"key": "wrong"}, 401)]:
        try:
            with opened(**options):
                raise AssertionError(f"opened with {options}")
        except InvalidStatus as refused:
            equal(refused.response.status_code, status)
            assert b'"error"' in refused.response.body, refused.response.body


@check
def more_clients_than_permits():
    """a session waits for the permit of another one, which is free once that one has ended"""

    def talk(_):
        with opened() as connection:
            equal(connection.recv().type, "session.created")
            assert permits_used("live") <= PERMITS
            return turn(connection)[0]

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        texts = list(pool.map(talk, range(12)))
    assert all(texts), texts
    until(lambda: permits_used("live") == 0, "the permits are back", EVENTS_LIMIT_SECS)


@check
def a_client_that_leaves():
    """a session whose client is gone gives its permit back, and is billed"""
    before = mark()
    with opened() as connection:
        connection.recv()
        turn(connection)
        connection._connection.socket.close()
        [event] = requests_since(before, 1)
        assert event["neurons"] >= 3, event
    until(lambda: permits_used("live") == 0, "the permit is back", EVENTS_LIMIT_SECS)


run("openai-python realtime")
