#!/usr/bin/env python3
"""Upgrades under load: clients notice nothing, permits stay within the limit, jobs run once, and a broken successor costs
nobody a request.

Fresh and kept connections, requests of two seconds, streams, HTTP/2 in clear and under TLS, WebSockets, and durable jobs,
while `infergate upgrade` replaces the gateway again and again. Three models of its own, on a simulated card, stay loaded.
Standard library only; the certificate is openssl's.

    tests/edge/upgrade.py                    two upgrades, three broken successors (20 s)
    tests/edge/upgrade.py --full             20 upgrades, streams of 30 seconds, 1,000 jobs
"""

import argparse
import contextlib
import http.client
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "jobs"), str(HERE.parent / "gpu")]

from simulated import gpu_section, managed_model  # noqa: E402

import clients  # noqa: E402
from kit import Gateway, Table, ask, certificate, free_port, simulators, until  # noqa: E402

PERMITS = 6
TOKENS_PER_SEC = 50
# Of a WebSocket; a short one lives for so long.
MESSAGES_PER_SEC, SOCKET_SECS = 20, 0.3
CHATS = "/v1/chat/completions"
# Upgrades, seconds of a stream, jobs.
COUNTS = {False: (2, 4, 40), True: (20, 30, 1000)}
MANAGED = ["own/a", "own/b", "own/c"]
CONFIGURATION = """anonymous: allow
timeouts: {{ model_floor_secs: 120 }}
jobs: {{}}
{gpu}models:
{managed}  - id: acme/live
    task: text-generation
    backend: openai
    queue: {{ capacity: 1000, total_capacity: 1000 }}
    endpoints: [{{ url: "http://127.0.0.1:{live}", max_concurrent_requests: {permits} }}]
  - id: acme/job
    task: text-generation
    backend: openai
    endpoints: [{{ url: "http://127.0.0.1:{job}", max_concurrent_requests: {permits} }}]
  - id: acme/socket
    task: dumb-pipe
    backend: http
    queue: {{ capacity: 1000, total_capacity: 1000 }}
    endpoints: [{{ url: "http://127.0.0.1:{socket}", max_concurrent_requests: {permits} }}]
"""


class Upgraded(Gateway):
    """A gateway whose process is replaced. `process` is the first one; `pid` the one that serves.

    Its listener takes HTTP/2 in clear; `tls` is the port and the context of another one, where there is openssl.
    """

    def __init__(self, binary, text):
        self.tls = None
        super().__init__(binary, text, "http2: clear")

    def write(self, text):
        (self.folder / "state").mkdir(mode=0o700, exist_ok=True)
        if shutil.which("openssl"):
            own, key = certificate(self.folder)
            context = ssl.create_default_context(cafile=own)
            context.set_alpn_protocols(["h2"])
            self.tls = free_port(), context
            files = f'certificate: "{own}", private_key: "{key}"'
            # The end of the first listener, and the beginning of the other one.
            self.listener += f' }}, {{ address: "127.0.0.1:{self.tls[0]}", tls: {{ {files} }}'
        super().write(text)

    def start(self):
        super().start()
        self.pid, self.pids = self.process.pid, [self.process.pid]

    def upgrade(self, config=None):
        """Runs the command. Returns its exit code and its words."""
        arguments = [self.binary, "upgrade", "--config", str(config or self.config)]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
        words = done.stdout + done.stderr
        if done.returncode == 0:
            self.pid = int(words.split("process ")[1].split()[0])
            self.pids.append(self.pid)
        return done.returncode, words

    def ask_for(self, program):
        """Asks for another program than ours, as no command does. Returns the last answer."""
        request = json.dumps({"binary": str(program), "config": str(self.config)}).encode()
        with socket.socket(socket.AF_UNIX) as command:
            command.connect(str(self.folder / "state/upgrade.sock"))
            command.settimeout(120)
            command.sendall(struct.pack(">I", len(request)) + request)
            answer = {"Progress": ""}
            while "Progress" in answer:
                (length,) = struct.unpack(">I", received(command, 4))
                answer = json.loads(received(command, length))
        return answer

    def live_events(self):
        """Events of requests, of all processes."""
        lines = self.events_path.read_text().splitlines()
        return sum(json.loads(line).get("request_source") != "job" for line in lines)

    def end(self):
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def received(stream, count):
    data = b""
    while len(data) < count:
        piece = stream.recv(count - len(data))
        if not piece:
            raise OSError("the gateway has closed the connection")
        data += piece
    return data


def is_alive(pid):
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def check_whole(text, tokens, stream=False):
    """An answer, or a stream of events, has its end and all its tokens."""
    if stream:
        assert text.rstrip().endswith(b"data: [DONE]"), text[-200:]
    counted = re.findall(rb'"completion_tokens": ?(\d+)', text)
    assert counted and int(counted[-1]) == tokens, text[-400:]


class Load:
    """Clients of one gateway, until they are stopped."""

    def __init__(self, gateway, stream_secs):
        self.port, self.stream_secs = gateway.port, stream_secs
        self.stream_tokens = stream_secs * TOKENS_PER_SEC
        self.models = itertools.cycle(["acme/live", *MANAGED])
        self.http2_ports = itertools.cycle([(gateway.port, None), gateway.tls or (gateway.port, None)])
        # The latest session under TLS: the next process cannot resume it, and may not refuse it.
        self.session = None
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        kinds = {
            **{self.fresh: 3, self.kept: 3, self.slow: 2, self.stream: 2, self.http2: 2, self.http2_stream: 2},
            # More than there are permits.
            **{self.websocket: 5, self.long_websocket: 3},
        }
        self.served = {kind.__name__: 0 for kind in kinds}
        self.failed, self.closed_idle, self.not_begun, self.offered = [], 0, 0, 0
        threads = [kind for kind, count in kinds.items() for _ in range(count)]
        self.threads = [threading.Thread(target=self.repeat, args=(kind,), daemon=True) for kind in threads]
        for thread in self.threads:
            thread.start()

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join(180)

    def repeat(self, kind):
        while not self.stopping.is_set():
            try:
                kind()
            except (OSError, http.client.HTTPException, ValueError, AssertionError) as error:
                with self.lock:
                    self.failed.append(f"{kind.__name__}: {error!r}")
                time.sleep(0.1)

    def count(self, kind):
        with self.lock:
            self.served[kind] += 1

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    def body(self, tokens, stream=False):
        """A chat whose answer has so many tokens."""
        body = {
            "model": next(self.models),
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": tokens,
            "ignore_eos": True,
        }
        streamed = {"stream": True, "stream_options": {"include_usage": True}}
        return json.dumps({**body, **(streamed if stream else {})}).encode()

    def chat(self, connection, tokens, stream=False):
        connection.request("POST", CHATS, self.body(tokens, stream), {"content-type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status == 200, (answer.status, text[:200])
        check_whole(text, tokens, stream)

    def once(self, kind, tokens, stream=False):
        with contextlib.closing(self.connect()) as connection:
            self.chat(connection, tokens, stream)
        self.count(kind)

    def fresh(self):
        self.once("fresh", 2)

    def slow(self):
        self.once("slow", 2 * TOKENS_PER_SEC)

    def stream(self):
        self.once("stream", self.stream_tokens, stream=True)

    def http2(self):
        self.over_http2("http2", 4, 2)

    def http2_stream(self):
        self.over_http2("http2_stream", 2, self.stream_tokens, stream=True)

    def over_http2(self, kind, count, tokens, stream=False):
        """Requests on one connection, `count` at a time, until it is to be left. One that was refused before it began is no
        failure: the next connection has another one in its place."""
        port, context = next(self.http2_ports)
        with contextlib.closing(clients.Http2(port, context, self.session if context else None)) as connection:
            with self.lock:
                self.offered += bool(context and self.session)
            while not (self.stopping.is_set() or connection.is_leaving):
                bodies = [self.body(tokens, stream) for _ in range(count)]
                for text in connection.exchange(CHATS, bodies):
                    if text is None:
                        with self.lock:
                            self.not_begun += 1
                        continue
                    check_whole(text, tokens, stream)
                    self.count(kind)
                time.sleep(0.05)
            if context:
                self.session = connection.socket.session

    def websocket(self):
        self.talk("websocket", SOCKET_SECS)

    def long_websocket(self):
        self.talk("long_websocket", self.stream_secs)

    def talk(self, kind, secs):
        """A WebSocket whose messages all come back, and that ends by the client's close."""
        with contextlib.closing(clients.WebSocket(self.port, "/ai/run/acme/socket")) as connection:
            for number in range(round(secs * MESSAGES_PER_SEC)):
                message = f"{number} {os.urandom(8).hex()}".encode()
                connection.send(clients.TEXT, message)
                answer = connection.frame()
                assert answer == (clients.TEXT, message), (message, answer)
                time.sleep(1 / MESSAGES_PER_SEC)
            left = connection.leave()
            assert left == (1000, True), left
        self.count(kind)

    def kept(self):
        """Requests on one connection. One that was closed between two requests is made anew, as clients do."""
        with contextlib.closing(self.connect()) as connection:
            for number in range(1000):
                if self.stopping.is_set():
                    return
                try:
                    self.chat(connection, 1)
                except (ConnectionError, http.client.RemoteDisconnected):
                    if number == 0:
                        raise
                    with self.lock:
                        self.closed_idle += 1
                    return
                self.count("kept")
                # An idle moment in which the gateway may close it.
                time.sleep(0.05)


class Jobs:
    """Predictions, created over the time of the load."""

    def __init__(self, gateway, count):
        self.gateway, self.ids, self.failed, self.repeated = gateway, [], [], 0
        self.thread = threading.Thread(target=self.create, args=(count,), daemon=True)
        self.thread.start()

    def create(self, count):
        for number in range(count):
            body = {"input": {"prompt": f"job {number}", "max_tokens": 10, "ignore_eos": True}}
            key = {"idempotency-key": f"job-{number}"}
            try:
                status, answer = self.gateway.ask("POST", "/v1/models/acme/job/predictions", body, key)
                while status == 503 and "Idempotency-Key" in answer["detail"]:
                    # A store that moves, or its disk, has taken longer than a create waits.
                    self.repeated += 1
                    status, answer = self.gateway.ask("POST", "/v1/models/acme/job/predictions", body, key)
            except (OSError, http.client.HTTPException) as error:
                self.failed.append(repr(error))
                continue
            if status in (200, 201):
                self.ids.append(answer["id"])
            else:
                self.failed.append(f"{status}: {answer}")
            time.sleep(0.02)


def upgrades(gateway, table, count):
    """Upgrades in a row."""
    slow = []
    for _ in range(count):
        former = gateway.pid
        time.sleep(1)
        code, words = gateway.upgrade()
        if code != 0:
            table.row(f"an upgrade of {former}", words[-300:], False)
            return
        slow.append(former)
    table.row("upgrades in a row", count)
    # The first process is this program's child, and stays as a zombie.
    until("the processes before have ended", lambda: not any(is_alive(pid) for pid in slow))


def broken(gateway, table, binary):
    """Successors that cannot serve: the gateway serves on."""
    pid = gateway.pid
    crash = gateway.folder / "crash"
    crash.write_text("#!/bin/sh\nsleep 1\nexit 3\n")
    crash.chmod(0o755)
    plain = gateway.folder / "plain"
    plain.write_text("not a program\n")
    plain.chmod(0o755)
    # A program that could serve, and crashes soon after.
    late = gateway.folder / "late"
    late.write_text(f'#!/bin/sh\nexec 3<&0\n"{binary}" "$@" <&3 3<&- & pid=$!\nexec 0</dev/null 3<&-\nsleep 1.2\nkill -9 $pid\nexit 3\n')
    late.chmod(0o755)
    for name, program in (("crashes", crash), ("is no program", plain), ("crashes when it could serve", late)):
        answer = gateway.ask_for(program)
        table.row(f"a successor that {name}", json.dumps(answer)[:160], "Failed" in answer and is_alive(pid))
    wrong = gateway.folder / "wrong.yaml"
    wrong.write_text(gateway.config.read_text().replace("backend: openai", "backend: nothing", 1))
    code, words = gateway.upgrade(wrong)
    reason = words.splitlines()[0][-140:]
    table.row("a successor whose configuration is wrong", reason, code == 1 and is_alive(pid))
    taken = gateway.folder / "taken.yaml"
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        text = gateway.config.read_text()
        taken.write_text(text.replace(f"127.0.0.1:{gateway.admin}", f"127.0.0.1:{other.getsockname()[1]}"))
        code, words = gateway.upgrade(taken)
    named = "cannot listen on" in words
    table.row("a successor whose admin address is taken", words[-200:], code == 1 and named and is_alive(pid))


def managed_models(gateway):
    """Process and loads of each model of the card, once all are ready."""
    def shown():
        slots = gateway.slots()
        is_ready = len(slots) == len(MANAGED) and all(slot["state"] == "ready" for slot in slots)
        return is_ready and {slot["model"]: (slot["pid"], slot["loads"]) for slot in slots}

    return until("the models of the card are ready", shown)


def jobs_once(gateway, table, jobs, count):
    """Each job has ended once, with one event."""
    jobs.thread.join()
    table.row(f"creates that failed of {count}", jobs.failed[:2], not jobs.failed)
    table.row("creates that were repeated by their key, for the store was slow", jobs.repeated)
    objects = [gateway.ended(job) for job in jobs.ids]
    wrong = [it["id"] for it in objects if it["status"] != "succeeded"]
    table.row(f"jobs of {len(objects)} that did not succeed", len(wrong), not wrong and objects)
    events = until(
        "all events are written",
        lambda: (found := gateway.events_by_job()) and len(found) >= len(objects) and found,
    )
    double = [job for job in jobs.ids if len(events.get(job, [])) != 1]
    table.row("jobs without exactly one event", len(double), not double)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default="target/debug/infergate")
    parser.add_argument("--full", action="store_true", help="the counts of the acceptance")
    options = parser.parse_args()
    binary = str(pathlib.Path(options.binary).resolve())
    count, stream_secs, job_count = COUNTS[options.full]
    table = Table()
    servers = simulators(binary, 2, "--dialect", "openai", "--concurrency", 64, "--tokens-per-sec", TOKENS_PER_SEC)
    echoes = simulators(binary, 1, "--dialect", "http", "--concurrency", 64)
    with servers as ports, echoes as echo, tempfile.TemporaryDirectory(prefix="infergate-cards-") as folder:
        arguments = ["--tokens-per-sec", TOKENS_PER_SEC]
        queue = {"capacity": 1000, "total_capacity": 1000}
        managed = [managed_model(name, 6000, arguments, {"parallel": PERMITS}, queue=queue) for name in MANAGED]
        gpu = gpu_section(folder, ["sim0"], 24000)
        own = {"permits": PERMITS, "gpu": gpu, "managed": "".join(managed)}
        text = CONFIGURATION.format(live=ports[0], job=ports[1], socket=echo[0], **own)
        gateway = Upgraded(binary, text)
        if not gateway.tls:
            table.skip("HTTP/2 under TLS", "openssl is not installed")
        try:
            for model in MANAGED:
                table.row(f"a first request to {model}", gateway.chat(model)[0])
            loaded = managed_models(gateway)
            load, jobs = Load(gateway, stream_secs), Jobs(gateway, job_count)
            broken(gateway, table, binary)
            table.row("failed requests while successors were broken", load.failed[:2], not load.failed)
            upgrades(gateway, table, count)
            # Streams that began before the last upgrade end.
            load.stop()
            jobs_once(gateway, table, jobs, job_count)
            pids = {model: (pid, 0) for model, (pid, _) in loaded.items()}
            kept = managed_models(gateway)
            table.row("models of the card with another process, or loads", {} if kept == pids else kept, kept == pids)
            table.row(f"failed requests of {load.served}", load.failed[:3], not load.failed)
            table.row("kept connections closed between requests", load.closed_idle)
            table.row("streams of HTTP/2 that were refused before they began", load.not_begun)
            table.row("connections under TLS that offered a session of the process before", load.offered)
            table.row("kinds of clients that were served", sum(map(bool, load.served.values())), all(load.served.values()))
            for name, port in zip(("live", "jobs", "WebSockets"), [*ports, *echo]):
                most = ask(port, "GET", "/sim/stats")[1]["high_water"]
                table.row(f"most requests at once at the server of {name}, of {PERMITS}", most, most <= PERMITS)
            served = sum(load.served.values()) + len(MANAGED) + jobs.repeated
            until("all events are written", lambda: gateway.live_events() >= served)
            events = gateway.live_events()
            table.row(f"events of {served} answers", events, events == served)
        finally:
            gateway.end()
    sys.exit(table.finish())


if __name__ == "__main__":
    main()
