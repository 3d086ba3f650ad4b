"""Bursts of requests through the gateway at servers that close their connections in their own ways.

Called by `tests/real/run`. A burst is 20 streams and 20 whole answers at once on 4 permits; bursts are
separated by pauses around the usual idle limits. All answers must be complete, and the server's own
log must show each request once.
"""

import contextlib
import http.client
import json
import os
import re
import shutil
import threading
import time
import urllib.request

from kit import accounts, bearer
from outside import free_ports, running, until

PERMITS = 4
STREAMS = WHOLE = 20
MAX_TOKENS = 16
ANSWER_LIMIT_SECS = 120
LOG_LIMIT_SECS = 5
ACCOUNT = "bursts"

CONFIG = """\
listen:
  clients: [{{ address: "127.0.0.1:{client}" }}]
  admin: {{ address: "127.0.0.1:{admin}" }}
{accounts}models:
"""

MODEL = """\
  - id: {name}
    task: text-generation
    backend: {backend}
    endpoints: [{{ url: "http://127.0.0.1:{port}", max_concurrent_requests: {permits} }}]
    queue: {{ algorithm: fifo, capacity: 20 }}
"""

HAPROXY_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"

# The way is closed after each request, which the gateway is not told.
HAPROXY = """\
global
  maxconn 256
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  option http-server-close
frontend front
  bind 127.0.0.1:{front}
  default_backend app
backend app
  server app 127.0.0.1:{app}
"""


class Server:
    """One server under bursts: its port, its kind, and the counts of its own log."""

    def __init__(self, name, port, counts, backend="openai"):
        self.name, self.port, self.counts, self.backend = name, port, counts, backend


def seen_at(port):
    """Requests by their mark, as a server of ours counted them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/seen", timeout=10) as answer:
        return json.load(answer)


def app(python, here, folder, port):
    """uvicorn with its own defaults: idle connections are closed after five seconds."""
    return running(
        [python, "-m", "uvicorn", "burst_app:app", "--app-dir", here, "--port", port, "--no-access-log"],
        folder / f"uvicorn-{port}.log",
        f"http://127.0.0.1:{port}/health",
        "uvicorn",
    )


def closing(python, here, folder, port, answers):
    return running(
        [python, here / "burst_server.py", port, answers],
        folder / f"closing-after-{answers}.log",
        f"http://127.0.0.1:{port}/health",
        f"a server that closes after {answers}",
    )


def haproxy(folder, port, behind):
    config = folder / "haproxy.cfg"
    config.write_text(HAPROXY.format(front=port, app=behind))
    return running(
        [shutil.which("haproxy", path=HAPROXY_PATH), "-db", "-f", config],
        folder / "haproxy.log",
        f"http://127.0.0.1:{port}/health",
        "haproxy",
    )


def has_haproxy():
    return shutil.which("haproxy", path=HAPROXY_PATH) is not None


def servers(python, here, folder, stack, tally, llama):
    """Starts all servers that can be had here."""
    uvicorn_port, behind, front, each, hundred, llama_port = free_ports(6)
    log = stack.enter_context(llama(llama_port))
    found = [Server("llama.cpp", llama_port, lambda: llama_counts(log), "llama-server")]
    stack.enter_context(app(python, here, folder, uvicorn_port))
    found.append(Server("uvicorn", uvicorn_port, lambda: seen_at(uvicorn_port)))
    for port, answers, name in [(each, 1, "closes-after-each"), (hundred, 100, "closes-after-100")]:
        stack.enter_context(closing(python, here, folder, port, answers))
        found.append(Server(name, port, lambda port=port: seen_at(port)))
    if has_haproxy():
        stack.enter_context(app(python, here, folder, behind))
        stack.enter_context(haproxy(folder, front, behind))
        found.append(Server("haproxy", front, lambda: seen_at(behind)))
    else:
        tally.skip("bursts haproxy", "haproxy is not installed")
    return found


def llama_counts(log):
    """Requests begun, by llama.cpp's own log; it does not write their marks."""
    return len(re.findall(r"launch_slot_: .* processing task", log.read_text(errors="replace")))


def gateway(binary, folder, found, client, admin):
    config = folder / "bursts.yaml"
    text = CONFIG.format(client=client, admin=admin, accounts=accounts([ACCOUNT]))
    for server in found:
        text += MODEL.format(
            name=server.name, backend=server.backend, port=server.port, permits=PERMITS
        )
    config.write_text(text)
    return running(
        [binary, "serve", "--config", config],
        folder / "bursts.log",
        f"http://127.0.0.1:{admin}/readyz",
        "infergate",
    )


def ask(client, model, mark, stream):
    """One request; what is wrong with its answer, or None."""
    body = {
        "model": model,
        "user": mark,
        "max_tokens": MAX_TOKENS,
        "messages": [{"role": "user", "content": "a gate and a queue"}],
    }
    if stream:
        body["stream"] = True
    connection = http.client.HTTPConnection("127.0.0.1", client, timeout=ANSWER_LIMIT_SECS)
    try:
        headers = {**bearer(ACCOUNT), "content-type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return repr(error)
    finally:
        connection.close()
    if answer.status != 200:
        return f"{answer.status} {text[:200]}"
    if stream:
        return None if text.rstrip().endswith("data: [DONE]") else f"stream ends with {text[-200:]!r}"
    return None if json.loads(text)["choices"][0]["finish_reason"] else "no finish_reason"


def burst(client, model, number):
    """All requests of one burst at once: what went wrong, and their marks."""
    problems, threads, marks = [], [], []

    def one(mark, stream):
        problem = ask(client, model, mark, stream)
        if problem:
            problems.append(f"{mark}: {problem}")

    for index in range(STREAMS + WHOLE):
        mark = f"{number}-{index}"
        marks.append(mark)
        threads.append(threading.Thread(target=one, args=(mark, index % 2 == 0)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return problems, marks


def wrong_counts(server, before, marks):
    """What is wrong with the server's own log since it was `before`."""
    counts = server.counts()
    if isinstance(counts, int):
        # It is written by a thread of its own.
        wanted = before + len(marks)
        with contextlib.suppress(TimeoutError):
            until(lambda: server.counts() >= wanted, "all requests in the log", LOG_LIMIT_SECS)
        counts = server.counts() - before
        return None if counts == len(marks) else f"{counts} requests in its log, {len(marks)} sent"
    wrong = {mark: counts.get(mark, 0) for mark in marks if counts.get(mark, 0) != 1}
    return f"not once in its log: {dict(list(wrong.items())[:5])}" if wrong else None


def check(tally, client, server, pauses, bursts):
    """All bursts of one server."""
    for pause in pauses:
        problems, all_marks, begun = [], [], time.monotonic()
        before = server.counts()
        for number in range(bursts):
            time.sleep(pause)
            failed, marks = burst(client, server.name, f"{server.name}/{pause}/{number}")
            problems += failed
            all_marks += marks
        name = f"bursts {server.name}: {bursts} of {STREAMS + WHOLE} on {PERMITS} permits, pause {pause} s"
        wrong = wrong_counts(server, before, all_marks)
        if problems:
            tally.fail(name, f"{len(problems)} failed: {problems[:3]}")
        elif wrong:
            tally.fail(name, wrong)
        else:
            tally.ok(f"{name} ({time.monotonic() - begun:.0f} s)")


def run(tally, binary, python, here, folder, llama, pauses, bursts):
    """Every server at once: most of the time is pauses."""
    with contextlib.ExitStack() as stack:
        found = servers(python, here, folder, stack, tally, llama)
        client, admin = free_ports(2)
        stack.enter_context(gateway(binary, folder, found, client, admin))
        threads = [
            threading.Thread(target=check, args=(tally, client, server, pauses, bursts))
            for server in found
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
