"""Durable jobs on a real llama.cpp: more jobs than permits, streams, cancels, and kills of both sides.

`run` is called by `tests/real/run`; it starts its own server and its own gateways.
"""

import http.client
import pathlib
import sys
import threading
import urllib.parse
import uuid

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "jobs"))

from kit import ask, free_port, gateway, until  # noqa: E402
from outside import get_json  # noqa: E402

CREATES_MAX = 5
MODEL = "acme/noise"
PERMITS = 2
JOBS = 16
LIVE = 4
KILLS = 3
SHORT = 24
# Tokens of a run that is still under way whenever it is looked at.
LONG = 2000
# Jobs that may end before they are seen to run.
TRIES = 10
# llama.cpp sees a closed connection at its next token.
FREE_LIMIT_SECS = 10

CONFIG = """\
anonymous: allow
jobs: {{}}
replicate: {{ show_neurons: true }}
models:
  - id: {model}
    task: text-generation
    backend: llama-server
    endpoints: [{{ url: "http://127.0.0.1:{port}", max_concurrent_requests: {permits} }}]
    queue: {{ algorithm: fair, capacity: 32 }}
    tariff: {{ coefficients: {{ input_tokens: 1, output_tokens: 2 }} }}
    jobs: {{ attempts_max: 20 }}
"""


def require(condition, what):
    if not condition:
        raise AssertionError(what)


def create(node, tokens):
    body = {"input": {"prompt": "hello", "max_tokens": tokens}}
    key = {"idempotency-key": uuid.uuid4().hex}
    # A busy disk may leave the outcome of a create unknown; with its key it is safe to repeat.
    for _ in range(CREATES_MAX):
        status, answer = node.ask("POST", f"/v1/models/{MODEL}/predictions", body, key)
        if status != 503:
            break
    require(status in (200, 201), (status, answer))
    return answer


def text_of(job):
    return "".join(job["output"])


def succeeded(node, created):
    job = node.ended(created["id"])
    require(job["status"] == "succeeded", job)
    require(text_of(job), job)
    return job


def is_running(node, created):
    job = node.get(created["id"])
    return job["output"] and not job["completed_at"]


def running(node, tokens):
    """A job that runs and has output. A busy machine may see one only when it has ended: then another is made."""

    def look(created):
        job = node.get(created["id"])
        return "ended" if job["completed_at"] else "runs" if job["output"] else None

    for _ in range(TRIES):
        created = create(node, tokens)
        if until("it runs", lambda created=created: look(created)) == "runs":
            return created
    return require(False, f"{TRIES} jobs have ended before they were seen to run")


def followed(node, created, last=None):
    """The texts of a stream with their ids, and the name of its last event."""
    url = urllib.parse.urlsplit(created["urls"]["stream"])
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=120)
    connection.request("GET", f"{url.path}?{url.query}", headers={"last-event-id": last} if last else {})
    texts, name = [], None
    for event in connection.getresponse().read().decode().split("\n\n"):
        # Only these end a line of an event stream; a random model writes others that Python takes for one.
        lines = [line.partition(": ") for line in event.split("\n") if line and not line.startswith(":")]
        if not lines:
            continue
        name = next(value for kind, _, value in lines if kind == "event")
        place = next(value for kind, _, value in lines if kind == "id")
        if name == "output":
            texts.append((place, "\n".join(value for kind, _, value in lines if kind == "data")))
    connection.close()
    return texts, name


def crowd(node, slots):
    """16 jobs and 4 live requests share two slots: all succeed, each with llama.cpp's own counts"""
    answers = []

    def live():
        body = {"model": MODEL, "max_tokens": SHORT, "messages": [{"role": "user", "content": "hello"}]}
        answers.append(ask(node.port, "POST", "/v1/chat/completions", body, timeout=120)[0])

    created = [create(node, SHORT) for _ in range(JOBS)]
    threads = [threading.Thread(target=live) for _ in range(LIVE)]
    for thread in threads:
        thread.start()
    neurons = sum(succeeded(node, job)["metrics"]["neurons"] for job in created)
    for thread in threads:
        thread.join()
    require(answers == [200] * LIVE, answers)
    until("every event is written", lambda: len(node.events_by_job()) == JOBS)
    events = node.events()[0].values()
    require(sum(event["neurons"] for event in events) == neurons, "the bills of events and records differ")
    for event in events:
        require(event["metrics_source"] == "reported" and event["metrics"]["output_tokens"] > 0, event)


def stream(node, slots):
    """a stream has the text of the output, and goes on after the event that a client names"""
    created = create(node, 40)
    texts, end = followed(node, created)
    require(end == "done" and len(texts) > 3, (end, len(texts)))
    # An event stream has no carriage returns: each is the end of a line.
    whole = text_of(succeeded(node, created)).replace("\r\n", "\n").replace("\r", "\n")
    streamed = "".join(text for _, text in texts)
    require(streamed == whole, f"the stream has another text than the output: {streamed!r}, {whole!r}")
    rest, end = followed(node, created, texts[2][0])
    require((rest, end) == (texts[3:], "done"), "the rest is another")


def cancel(node, slots):
    """a cancel frees the slot of llama.cpp, and what was made is billed"""
    created = running(node, 3 * LONG)
    status, job = node.cancel(created["id"])
    require((status, job["status"]) == (200, "canceled"), (status, job))
    until("its slot is free", lambda: slots() == 0, FREE_LIMIT_SECS)
    event = until("its event", lambda: node.events_by_job().get(created["id"]))[0]
    require(event["reason"] == "canceled_by_user" and event["neurons"] > 0, event)


def killed_gateway(node, slots):
    """jobs outlast kills of the gateway: none is lost, each ends once, llama.cpp is freed"""
    created = []
    for _ in range(KILLS):
        fresh = [create(node, LONG) for _ in range(PERMITS)]
        until("one runs", lambda fresh=fresh: any(is_running(node, job) for job in fresh))
        created += fresh
        node.kill()
        node.start()
    attempts = [succeeded(node, job)["infergate"]["attempts"] for job in created]
    require(max(attempts) > 1, attempts)
    ids = {job["id"] for job in created}
    ends = until("all events", lambda: len(ids & node.events_by_job().keys()) == len(ids) and node.events_by_job())
    require(all(len(ends[job]) == 1 for job in ids), "a job has two ends")
    until("all slots are free", lambda: slots() == 0, FREE_LIMIT_SECS)


def killed_server(node, start):
    """a job whose llama.cpp is killed waits for the next one, and runs there from its beginning"""
    tokens = 3 * LONG
    for _ in range(TRIES):
        with start() as server:
            created = running(node, tokens)
            server.kill()
            server.wait()
        with start():
            job = succeeded(node, created)
        require(job["metrics"]["output_token_count"] == tokens, job)
        # A busy machine may let one end between the look and the kill.
        if job["infergate"]["attempts"] > 1:
            return
    require(False, f"{TRIES} jobs have ended before their server was killed")


def run(tally, binary, start_at):
    """All checks; `start_at` begins a server with two slots at a port, for as long as a block lasts."""
    port = free_port()

    def start():
        return start_at(port)

    def slots():
        return sum(slot["is_processing"] for slot in get_json(f"http://127.0.0.1:{port}/slots"))

    def one(check, *arguments):
        name = f"durable jobs: {check.__doc__}"
        try:
            check(*arguments)
            tally.ok(name)
        except (AssertionError, OSError, RuntimeError, SystemExit, TimeoutError) as problem:
            tally.fail(name, str(problem)[:500])

    with gateway(binary, CONFIG.format(model=MODEL, port=port, permits=PERMITS)) as node:
        with start():
            for check in [crowd, stream, cancel, killed_gateway]:
                one(check, node, slots)
        one(killed_server, node, start)
