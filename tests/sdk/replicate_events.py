"""Streams, webhooks and file outputs of durable jobs with the unmodified replicate package for Python.

Environment: as in `replicate_checks.py`, and RECEIVER_PORT, at which webhooks may arrive. `acme/long` answers with 30,000
tokens in about 13 s, `acme/image` with a picture. The signatures are checked with `standardwebhooks` and `svix` too.
"""

import contextlib
import http.server
import json
import os
import pathlib
import queue
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))

import httpx  # noqa: E402
import replicate  # noqa: E402
import standardwebhooks  # noqa: E402
import svix  # noqa: E402
from checks import check, equal, raises, run  # noqa: E402
from replicate.exceptions import ReplicateError  # noqa: E402
from replicate.helpers import FileOutput  # noqa: E402
from replicate.stream import ServerSentEvent  # noqa: E402
from replicate.webhook import InvalidSignatureError, Webhooks  # noqa: E402

BASE = os.environ["CROWDED_URL"]
PORT = int(os.environ["RECEIVER_PORT"])
ECHO, LONG, IMAGE = "acme/echo", "acme/long", "acme/image"
INPUT = {"prompt": "echo: a warm gate"}
EVENTS_MIN = 6000
# Fewer than the gateway keeps of a job.
KEPT = 3000
CUT_AFTER = 2500
# Far longer than a delivery takes.
PATIENCE_SECS = 60
OUTPUT, DONE = ServerSentEvent.EventType.OUTPUT, ServerSentEvent.EventType.DONE

sdk = replicate.Client(api_token="sdk-key", base_url=BASE)
sdk.poll_interval = 0.05


@contextlib.contextmanager
def receiver():
    """A queue of the webhooks that arrive, each its headers and its body."""
    arrived = queue.Queue()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()
            arrived.put(({name.lower(): text for name, text in self.headers.items()}, body))

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield arrived
    finally:
        server.shutdown()
        server.server_close()


def events_from(url, last=None, count=None):
    """The events of a stream after `last`; the client is gone after `count` of them."""
    headers = {"accept": "text/event-stream"} | ({"last-event-id": last} if last else {})
    found, event = [], {}
    with httpx.stream("GET", url, headers=headers, timeout=PATIENCE_SECS) as answer:
        equal(answer.status_code, 200)
        for line in answer.iter_lines():
            name, _, text = line.partition(":")
            if line and name:
                text = text.removeprefix(" ")
                event[name] = f"{event[name]}\n{text}" if name == "data" and name in event else text
            elif not line and event:
                found.append(event)
                event = {}
                if len(found) == count:
                    break
    return found


@check
def stream_text():
    """a stream is the output in pieces, and then done"""
    events = list(sdk.stream(ECHO, input=INPUT))
    equal("".join(str(event) for event in events), "a warm gate")
    assert all(event.event == OUTPUT for event in events[:-1]), events
    equal((events[-1].event, events[-1].data), (DONE, "{}"))


@check
def stream_long():
    """a stream of more than 6,000 events is whole and in order"""
    made = sdk.models.predictions.create(model=LONG, input={"prompt": "hi"}, stream=True)
    events = list(made.stream())
    assert len(events) > EVENTS_MIN, len(events)
    equal(len({event.id for event in events}), len(events))
    equal(events[-1].event, DONE)
    made.wait()
    equal("".join(str(event) for event in events), "".join(made.output))
    late = events_from(made.urls["stream"], events[-KEPT].id)
    equal([event["id"] for event in late], [event.id for event in events[1 - KEPT :]])
    equal(events_from(made.urls["stream"], events[0].id)[0]["event"], "error")


@check
def stream_resumed():
    """a client that is cut off goes on with Last-Event-ID, again and again, and misses nothing"""
    made = sdk.models.predictions.create(model=LONG, input={"prompt": "hi"}, stream=True)
    events = []
    while not events or events[-1]["event"] == "output":
        last = events[-1]["id"] if events else None
        events += events_from(made.urls["stream"], last, CUT_AFTER)
    equal(len({event["id"] for event in events}), len(events))
    made.wait()
    text = "".join(event["data"] for event in events if event["event"] == "output")
    equal((events[-1]["event"], text), ("done", "".join(made.output)))


@check
def stream_token():
    """a stream without its token, or with another's, is a 404"""
    one, other = (sdk.models.predictions.create(model=ECHO, input=INPUT, stream=True) for _ in "12")
    bare, _, token = one.urls["stream"].partition("?")
    for url in (bare, f"{bare}?{other.urls['stream'].partition('?')[2]}", f"{bare}?{token[:-1]}"):
        equal(httpx.get(url).status_code, 404)


def verified(secret, headers, body):
    """Checks a webhook with three libraries, each of which refuses another body."""
    Webhooks.validate(headers=headers, body=body, secret=secret, tolerance=PATIENCE_SECS)
    changed = body.replace('"id"', '"di"', 1)
    raises(InvalidSignatureError, Webhooks.validate, headers=headers, body=changed, secret=secret)
    for library in (standardwebhooks, svix):
        hook = library.Webhook(secret.key)
        hook.verify(body, headers)
        raises(library.WebhookVerificationError, hook.verify, changed, headers)
    return json.loads(body)


@check
def webhook_of_prediction():
    """webhooks are signed for replicate, standardwebhooks and svix, and the end comes last"""
    secret = sdk.webhooks.default.secret()
    options = {"webhook": f"http://127.0.0.1:{PORT}/", "webhook_events_filter": ["start", "completed"]}
    with receiver() as arrived:
        made = sdk.models.predictions.create(model=ECHO, input=INPUT, **options)
        seen = []
        while not seen or seen[-1]["status"] != "succeeded":
            seen.append(verified(secret, *arrived.get(timeout=PATIENCE_SECS)))
    made.reload()
    assert all(one["id"] == made.id for one in seen), seen
    equal((seen[-1]["output"], seen[-1]["completed_at"]), (made.output, made.completed_at))


@check
def webhook_of_training():
    """a training sends its end"""
    secret = sdk.webhooks.default.secret()
    version = f"{ECHO}:{sdk.models.get(ECHO).latest_version.id}"
    options = {"webhook": f"http://127.0.0.1:{PORT}/", "webhook_events_filter": ["completed"]}
    with receiver() as arrived:
        made = sdk.trainings.create(version=version, destination="acme/tuned", input={"steps": 3}, **options)
        told = verified(secret, *arrived.get(timeout=PATIENCE_SECS))
    equal((told["id"], told["status"]), (made.id, "succeeded"))


@check
def webhook_refused():
    """a receiver inside the network is refused when the job is made"""
    for url in ("http://169.254.169.254/latest", f"http://10.0.0.1:{PORT}/", "ftp://example.com/"):
        error = raises(
            ReplicateError, sdk.models.predictions.create, model=ECHO, input=INPUT, webhook=url
        )
        equal(error.status, 422)


@check
def file_output():
    """a picture is a FileOutput whose bytes are the picture"""
    output = sdk.run(IMAGE, input={"prompt": "a gate"})
    assert isinstance(output, FileOutput), type(output)
    data = output.read()
    equal(data[:8], b"\x89PNG\r\n\x1a\n")
    equal(b"".join(output), data)


if __name__ == "__main__":
    run("replicate-python events")
