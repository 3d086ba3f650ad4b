"""Fixtures of the programs that run gateways: one that can be killed, its accounts, and model servers that record runs.

Standard library only. Nothing here judges; the programs do.
"""

import contextlib
import hashlib
import http.client
import http.server
import json
import os
import pathlib
import re
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time

# Far longer than anything here takes on a busy machine; only a hang meets it.
PATIENCE_SECS = 120
POLL_SECS = 0.01


# Above those of model processes (`gpu.ports`, to 20999), which a configuration may not share with its listeners, and below
# Linux's ephemeral range (32768 on): those are given to any connection that begins in the meantime.
PORTS = (21000, 32000)
ports_lock = threading.Lock()
# The next port that each process of a program looks at; none is given out twice.
next_ports = {}


def free_port():
    """A loopback port that was free a moment ago."""
    first, end = PORTS
    with ports_lock:
        pid = os.getpid()
        for _ in range(first, end):
            port = next_ports.get(pid, first + pid * 101 % (end - first))
            next_ports[pid] = first if port + 1 == end else port + 1
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                with contextlib.suppress(OSError):
                    probe.bind(("127.0.0.1", port))
                    return port
    raise SystemExit(f"no free port between {first} and {end}")


def ask(port, method, path, body=None, headers=None, timeout=20):
    """One request on a connection of its own; the status and the JSON of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        return asked(connection, method, path, body, headers)
    finally:
        connection.close()


def asked(connection, method, path, body=None, headers=None):
    """One request on an open connection; the status and the JSON of the answer."""
    text = None if body is None else json.dumps(body)
    connection.request(method, path, text, {"content-type": "application/json", **(headers or {})})
    answer = connection.getresponse()
    data = answer.read()
    is_json = "json" in (answer.getheader("content-type") or "")
    return answer.status, json.loads(data) if is_json else data.decode()


def until(what, condition, limit=PATIENCE_SECS):
    """The first true value of `condition`."""
    deadline = time.monotonic() + limit
    while True:
        if found := condition():
            return found
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {limit} s: {what}")
        time.sleep(POLL_SECS)


def key(account):
    """Key of an account of `accounts`."""
    return f"key-{account}"


def bearer(account):
    """Headers with the key of an account of `accounts`."""
    return {"authorization": f"Bearer {key(account)}"}


def accounts(names, **members):
    """Accounts with the keys of `key`, each with these further members."""
    return "accounts:\n" + "".join(
        f"  - {json.dumps({'id': name, 'api_keys_sha256': [hashlib.sha256(key(name).encode()).hexdigest()], **members})}\n"
        for name in names
    )


def certificate(folder):
    """A certificate and its key, by openssl."""
    paths = [str(folder / name) for name in ("own.pem", "own-key.pem")]
    arguments = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                 "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-out", paths[0], "-keyout", paths[1]]
    subprocess.run(arguments, check=True, capture_output=True)
    return paths


def quantile(values, share):
    """The value below which `share` of the values lie; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class Gateway:
    """A gateway process in a folder of its own.

    `text` is its configuration without listeners, state and events, which are added; `listener` has further keys of the
    listener for clients.
    """

    def __init__(self, binary, text, listener=""):
        self.binary = binary
        self.listener = f", {listener}" if listener else ""
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="infergate-jobs-"))
        self.port, self.admin = free_port(), free_port()
        self.events_path = self.folder / "events.jsonl"
        self.config = self.folder / "c.yaml"
        self.write(text)
        self.log = open(self.folder / "log", "a")
        self.process = None
        self.start()

    def write(self, text):
        self.config.write_text(
            f"""listen: {{ clients: [{{ address: "127.0.0.1:{self.port}"{self.listener} }}], admin: {{ address: "127.0.0.1:{self.admin}" }} }}
state_dir: {self.folder}/state
events: {{ file: {{ path: {self.events_path} }} }}
log: {{ level: warn }}
{text}"""
        )

    def start(self):
        arguments = [self.binary, "serve", "--config", str(self.config)]
        self.process = subprocess.Popen(arguments, stderr=self.log, stdout=self.log)
        until("the gateway is ready", self.is_ready)

    def is_ready(self):
        if self.process.poll() is not None:
            raise SystemExit(f"the gateway ended: {(self.folder / 'log').read_text()[-2000:]}")
        try:
            return ask(self.admin, "GET", "/healthz", timeout=2)[0] == 200
        except (OSError, http.client.HTTPException, ValueError):
            return False

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def memory_kib(self):
        """Resident memory that is the process's own."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"RssAnon:\s*(\d+)", status).group(1))

    def ask(self, method, path, body=None, headers=None, timeout=20):
        return ask(self.port, method, path, body, headers, timeout)

    def chat(self, model, tokens=4, headers=None, timeout=20, **more):
        """Status and answer of a chat, whose answer of a simulated server has so many tokens."""
        messages = [{"role": "user", "content": "hi"}]
        body = {"model": model, "messages": messages, "max_tokens": tokens, "ignore_eos": True, **more}
        return self.ask("POST", "/v1/chat/completions", body, headers, timeout)

    def gpu(self):
        """Report of the GPU host."""
        return ask(self.admin, "GET", "/gpu")[1]

    def slots(self, model=None):
        """Slots of a model, or of all models."""
        return [slot for slot in self.gpu()["slots"] if model in (None, slot["model"])]

    def slot(self, model):
        """First slot of a model. A gateway that has just started shows no slots for a moment."""
        return until(f"{model} is shown", lambda: self.slots(model))[0]

    def order(self, model, order):
        """Gives an order about a model of the GPU host; returns the status."""
        return ask(self.admin, "POST", f"/gpu/models/{model}/{order}")[0]

    def create(self, model, prompt, headers=None, **more):
        """A prediction that was accepted."""
        body = {"input": {"prompt": prompt}, **more}
        status, answer = self.ask("POST", f"/v1/models/{model}/predictions", body, headers)
        if status != 201:
            raise SystemExit(f"a create was answered {status}: {answer}")
        return answer["id"]

    def get(self, job, headers=None):
        return self.ask("GET", f"/v1/predictions/{job}", headers=headers)[1]

    def cancel(self, job, headers=None):
        return self.ask("POST", f"/v1/predictions/{job}/cancel", {}, headers)

    def ended(self, job, headers=None):
        """The object of a job once it has ended."""

        def over():
            found = self.get(job, headers)
            return found if found.get("completed_at") else None

        return until(f"job {job} ends", over)

    def events(self):
        """Events of jobs, by their ids; and how many lines are torn."""
        found, torn = {}, 0
        if self.events_path.exists():
            for line in self.events_path.read_text(errors="replace").splitlines():
                try:
                    event = json.loads(line)
                except ValueError:
                    torn += 1
                    continue
                if event.get("request_source") == "job":
                    found[event["event_id"]] = event
        return found, torn

    def events_by_job(self):
        by_job = {}
        for event in self.events()[0].values():
            by_job.setdefault(event["job_id"], []).append(event)
        return by_job


@contextlib.contextmanager
def gateway(binary, text, listener=""):
    """A gateway for as long as the block lasts."""
    running = Gateway(binary, text, listener)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()


@contextlib.contextmanager
def simulators(binary, count, *arguments):
    """Ports of simulated servers."""
    ports = [free_port() for _ in range(count)]
    processes = [
        subprocess.Popen(
            [binary, "simulate", "--address", f"127.0.0.1:{port}", *map(str, arguments)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for port in ports
    ]

    def listens(port):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return True

    try:
        for port in ports:
            until("the simulated server listens", lambda port=port: listens(port))
        yield ports
    finally:
        for process in processes:
            process.kill()
            process.wait()


class Run:
    """What a model server saw of one request; times are those of `time.monotonic`."""

    def __init__(self, tag):
        self.tag = tag
        self.begun = time.monotonic()
        # When the answer was written, or the gateway closed the connection.
        self.answered = self.closed = None

    def end(self):
        return self.answered or self.closed or time.monotonic()


class ModelServer:
    """An OpenAI-compatible server that works as long as the prompt says, and writes down what it saw.

    A prompt is `tag=T hold=SECS tokens=N gap=SECS`: N tokens of a stream, SECS apart, after SECS of work.
    """

    WORDS = re.compile(rb"(tag|hold|tokens|gap)=([\w.-]+)")
    LENGTH = re.compile(rb"content-length: *(\d+)", re.I)

    def __init__(self):
        self.runs, self.lock = [], threading.Lock()
        # Connections of requests that are worked on, and how many there were at most.
        self.held, self.held_max = set(), 0
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def runs_of(self, tag):
        with self.lock:
            return [run for run in self.runs if run.tag == tag]

    def accept(self):
        while True:
            connection, _ = self.listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        unread = b""
        with connection:
            while True:
                try:
                    while (end := unread.find(b"\r\n\r\n")) < 0:
                        data = connection.recv(1 << 16)
                        if not data:
                            return
                        unread += data
                    head, unread = unread[: end + 4], unread[end + 4 :]
                    length = self.LENGTH.search(head)
                    wanted = int(length.group(1)) if length else 0
                    while len(unread) < wanted:
                        unread += connection.recv(1 << 16)
                    body, unread = unread[:wanted], unread[wanted:]
                    if not self.answer(connection, head, body):
                        return
                except OSError:
                    return

    def answer(self, connection, head, body):
        """Whether the connection goes on."""
        if not head.startswith(b"POST"):
            self.write(connection, b'{"object":"list","data":[]}')
            return True
        words = {name.decode(): value.decode() for name, value in self.WORDS.findall(body)}
        run = Run(words.get("tag", ""))
        with self.lock:
            self.runs.append(run)
            self.held.add(connection)
            if len(self.held) > self.held_max:
                # A thread may not have looked yet that the gateway has given its request up, for a deadline say.
                given_up, _, _ = select.select(list(self.held), [], [], 0)
                self.held_max = max(self.held_max, len(self.held) - len(given_up))

        def let_go():
            with self.lock:
                self.held.discard(connection)

        try:
            hold, gap = float(words.get("hold", 0)), float(words.get("gap", 0))
            tokens, is_stream = int(words.get("tokens", 4)), b'"stream":true' in body.replace(b" ", b"")
            goes_on = self.waits(connection, hold) and self.tell(connection, (tokens, gap), is_stream, let_go)
            if goes_on:
                run.answered = time.monotonic()
            else:
                run.closed = time.monotonic()
            return goes_on
        except OSError:
            run.closed = time.monotonic()
            return False
        finally:
            let_go()

    @staticmethod
    def waits(connection, secs):
        """Whether the gateway is still there after so long."""
        readable, _, _ = select.select([connection], [], [], secs) if secs else ([], [], [])
        return not readable

    def tell(self, connection, output, is_stream, let_go):
        """Answers; `let_go` is called before the last bytes, with which the gateway may send the next request."""
        tokens, gap = output
        usage = {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": 10 + tokens}
        if not is_stream:
            if gap and not self.waits(connection, gap * tokens):
                return False
            message = {"role": "assistant", "content": "token " * tokens}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            let_go()
            self.write(connection, json.dumps({"id": "x", "choices": [choice], "usage": usage}).encode())
            return True
        connection.sendall(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for _ in range(tokens):
            if gap and not self.waits(connection, gap):
                return False
            self.event(connection, {"choices": [{"index": 0, "delta": {"content": "token "}}]})
        self.event(connection, {"choices": [], "usage": usage})
        done = b"data: [DONE]\n\n"
        let_go()
        connection.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(done), done))
        return True

    @staticmethod
    def event(connection, value):
        data = b"data: %s\n\n" % json.dumps({"id": "x", "object": "chat.completion.chunk", **value}).encode()
        connection.sendall(b"%x\r\n%s\r\n" % (len(data), data))

    @staticmethod
    def write(connection, body):
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        connection.sendall(head + body)


class Receiver:
    """A receiver of webhooks; `treat` says what becomes of each body: a status, or None to never answer."""

    def __init__(self, treat):
        self.seen = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.seen.append((time.monotonic(), body["id"], body))
                status = treat(body)
                if status is None:
                    select.select([self.connection], [], [], PATIENCE_SECS)
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 1024

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Table:
    """Figures against what is asked of them, a line each."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def row(self, name, figure, is_good=True):
        self.passed += bool(is_good)
        self.failed += not is_good
        print(f"{'ok  ' if is_good else 'FAIL'} {name}: {figure}", flush=True)

    def skip(self, name, why):
        self.skipped += 1
        print(f"skipped: {name} ({why})", flush=True)

    def finish(self):
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        return 1 if self.failed else 0
