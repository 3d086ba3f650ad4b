#!/usr/bin/env python3
"""Clients that hold on to what they have: slow heads, slow readers, connections at rest. None costs the others more than said.

Gateways in front of servers, each with one kind of such clients. Heads that come byte by byte end with the time for a head,
and a client beside them is served as quickly as without them. Readers that are slower than their answers, and connections
under TLS that rest, cost no more memory than their number times a bound. Standard library only; certificates are openssl's.

    tests/edge/slow.py                       tens of each (half a minute)
    tests/edge/slow.py --full                1,000 heads, 500 readers of 20 MB, 5,000 connections (3 minutes)
"""

import argparse
import contextlib
import http.server
import json
import multiprocessing
import pathlib
import resource
import selectors
import shutil
import socket
import socketserver
import ssl
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "jobs")]

import frames as f  # noqa: E402
from kit import Table, ask, certificate, free_port, gateway, quantile, simulators, until  # noqa: E402

# Within this everything has its end; the gateway's own limits are far below.
LIMIT_SECS = 60
PATH = "/v1/chat/completions"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})

# A slow head is closed within so long, and the limit of its gateway is a second less.
HEAD_MAX_SECS = 10
# A client beside slow heads: 99 of 100 requests take so much longer at most, of some 20 ms that a server takes.
P99_MAX_RATIO = 1.2
NORMAL_CLIENTS = 4

ANSWER_BYTES = 20_000_000
READERS_BASE_MIB = 128
READER_MAX_MIB = 0.5
READ_BYTES = 4096
READ_PAUSE_SECS = 0.5

IDLE_TLS_MAX_KIB = 40


def model(port, permits):
    endpoint = f'{{ url: "http://127.0.0.1:{port}", max_concurrent_requests: {permits} }}'
    return f"models: [{{ id: m, task: text-generation, backend: openai, timeout_secs: 200, endpoints: [{endpoint}] }}]\n"


def head_of(body, more=""):
    return f"POST {PATH} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n{more}Content-Length: {len(body)}\r\n\r\n"


# --- slow heads


def send_slowly(port, count, ready, results):
    """In a process of its own: `count` connections with a byte of a head a second; how long each lived, in seconds."""
    waiting = selectors.DefaultSelector()
    lives, open_ones = [], set()
    for _ in range(count):
        client = socket.create_connection(("127.0.0.1", port))
        client.setblocking(False)
        begun = time.monotonic()
        client.send(b"P")
        waiting.register(client, selectors.EVENT_READ, begun)
        open_ones.add(client)
    ready.set()
    text, at, next_byte = head_of("", "X-Slow: " + "v" * 1000 + "\r\n").encode(), 0, time.monotonic() + 1
    limit = time.monotonic() + LIMIT_SECS
    while open_ones and time.monotonic() < limit:
        for key, _ in waiting.select(max(0, next_byte - time.monotonic())):
            with contextlib.suppress(OSError):
                if key.fileobj.recv(4096):
                    continue
            lives.append(time.monotonic() - key.data)
            waiting.unregister(key.fileobj)
            open_ones.discard(key.fileobj)
            key.fileobj.close()
        if time.monotonic() >= next_byte:
            next_byte += 1
            at += 1
            for client in open_ones:
                # One that was closed is seen by its read.
                with contextlib.suppress(OSError):
                    client.send(text[at : at + 1])
    results.put((lives, len(open_ones)))


def normal_times(port, until_set):
    """How long requests of a few clients take until the event, in seconds, and how many failed."""
    times, failed = [], []

    def client():
        with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_SECS) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            request = (head_of(BODY) + BODY).encode()
            while not until_set.is_set():
                begun = time.monotonic()
                connection.sendall(request)
                received = b""
                while not received.endswith(b"}") or b'"usage"' not in received:
                    more = connection.recv(65536)
                    if not more:
                        failed.append(received)
                        return
                    received += more
                times.append(time.monotonic() - begun)
                if not received.startswith(b"HTTP/1.1 200 "):
                    failed.append(received)

    clients = [threading.Thread(target=client) for _ in range(NORMAL_CLIENTS)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    return times, failed


def slow_heads(options, table):
    count = 1000 if options.full else 50
    # Small counts are for machines that do other work: there a hang is a fault.
    limit, patience = (HEAD_MAX_SECS - 1, 1) if options.full else (2, 5)
    with simulators(options.binary, 1, "--ttft-ms", 20, "--tokens-per-sec", 0, "--concurrency", 64) as (server,):
        text = f"anonymous: allow\nlimits: {{ header_timeout_secs: {limit} }}\n{model(server, 64)}"
        with gateway(options.binary, text) as node:
            until("the gateway serves", lambda: node.chat("m")[0] == 200)

            def alone():
                over = threading.Event()
                timer = threading.Timer(limit, over.set)
                timer.start()
                return normal_times(node.port, over)

            # Before and after: what the machine does meanwhile is in both.
            before, _ = alone()
            ready, results = multiprocessing.Event(), multiprocessing.Queue()
            sender = multiprocessing.Process(target=send_slowly, args=(node.port, count, ready, results))
            sender.start()
            over, found = threading.Event(), []
            watching = threading.Thread(target=lambda: (found.append(results.get(timeout=LIMIT_SECS * 2)), over.set()))
            watching.start()
            ready.wait(LIMIT_SECS)
            beside, failed = normal_times(node.port, over)
            sender.join()
            after, _ = alone()
            lives, left = found[0]
            slowest = max(lives, default=0)
            table.row(f"of {count} slow heads, left open, and the longest, s", f"{left}, {slowest:.1f}", not left and slowest <= limit + patience)
            table.row("requests beside them, and failed", f"{len(beside)}, {len(failed)}", not failed)
            usual, now = quantile(before + after, 0.99), quantile(beside, 0.99)
            most = usual * P99_MAX_RATIO if options.full else usual + 1
            table.row("their p99 without and with slow heads, ms", f"{usual * 1000:.1f}, {now * 1000:.1f}", now <= most)


# --- slow readers


class Streaming(http.server.BaseHTTPRequestHandler):
    """Answers a chat with a stream of `ANSWER_BYTES`, as fast as it is read."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        # The gateway may leave at any time.
        with contextlib.suppress(OSError):
            for _ in range(self.server.pieces):
                self.wfile.write(self.server.piece)
                # Exact enough: it tells whether anything moves.
                self.server.sent += len(self.server.piece)
            self.wfile.write(b"data: [DONE]\n\n")


class StreamingServer(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, port):
        super().__init__(("127.0.0.1", port), Streaming)
        # What waits in the kernel is not what is measured.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [{"index": 0, "delta": {"content": "w" * 16000}}]}
        self.piece = b"data: " + json.dumps(chunk).encode() + b"\n\n"
        self.pieces, self.sent = ANSWER_BYTES // len(self.piece), 0

    def handle_error(self, *_):
        pass


class Reader:
    """A client that reads a little at a time."""

    def __init__(self, port):
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        self.socket.connect(("127.0.0.1", port))
        body = json.dumps({**json.loads(BODY), "stream": True})
        self.socket.sendall((head_of(body, "Connection: close\r\n") + body).encode())
        self.socket.settimeout(LIMIT_SECS)
        self.received, self.begin, self.end = 0, b"", b""

    def read(self, size):
        more = self.socket.recv(size)
        self.received += len(more)
        self.begin = (self.begin + more)[:16] if len(self.begin) < 16 else self.begin
        self.end = (self.end + more)[-32:]
        return more

    def is_whole(self, least):
        while self.read(1 << 20):
            pass
        return self.begin.startswith(b"HTTP/1.1 200 ") and b"[DONE]" in self.end + self.begin and self.received >= least


def peak_mib(node, server, count, meanwhile):
    """The most memory until all that lies between the server and its readers is full."""
    most, before, calm, end = 0, 0, 0, time.monotonic() + 2 * LIMIT_SECS
    while calm < 4 and time.monotonic() < end:
        meanwhile()
        most = max(most, node.memory_kib() / 1024)
        grown, before = server.sent - before, server.sent
        calm = calm + 1 if grown <= count * READ_BYTES * 4 else 0
    return most


def slow_readers(options, table):
    count = 500 if options.full else 40
    port = free_port()
    server = StreamingServer(port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    text = f"anonymous: allow\n{model(port, count)}"
    with gateway(options.binary, text) as node:
        until("the gateway serves", lambda: ask(node.admin, "GET", "/readyz")[0] == 200)
        readers = [Reader(node.port) for _ in range(count)]

        def read_a_little():
            time.sleep(READ_PAUSE_SECS)
            for reader in readers:
                reader.read(READ_BYTES)

        peak = peak_mib(node, server, count, read_a_little)
        most = READERS_BASE_MIB + count * READER_MAX_MIB
        table.row(f"{count} slow readers of {ANSWER_BYTES // 1_000_000} MB, resident MiB, and allowed", f"{peak:.0f}, {most:.0f}", peak <= most)
        least = server.pieces * len(server.piece)
        whole = [reader.is_whole(least) for reader in readers[:4]]
        table.row("answers that came whole, of those read on", f"{sum(whole)} of {len(whole)}", all(whole))
        for reader in readers:
            reader.socket.close()
        until("permits are back", lambda: permits_used(node) == 0)


def permits_used(node):
    lines = ask(node.admin, "GET", "/metrics")[1].splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("infergate_permits_used{"))


def http2_readers(options, table):
    """Connections of HTTP/2 whose clients open all windows and read nothing."""
    connections, streams = (5, 100) if options.full else (4, 25)
    port = free_port()
    server = StreamingServer(port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    text = f"anonymous: allow\n{model(port, connections * streams)}"
    with gateway(options.binary, text, "http2: clear") as node, contextlib.ExitStack() as opened:
        until("the gateway serves", lambda: ask(node.admin, "GET", "/readyz")[0] == 200)
        body = json.dumps({**json.loads(BODY), "stream": True}).encode()
        fields = [(":method", "POST"), (":scheme", "http"), (":path", PATH), (":authority", "h")]
        largest = 0x7FFFFFFF
        for _ in range(connections):
            connection = opened.enter_context(f.connected(node.port, LIMIT_SECS))
            connection.send(f.PREFACE, f.settings((4, largest)), f.window(0, largest - 65535))
            for number in range(streams):
                stream = 2 * number + 1
                connection.send(f.headers(stream, *fields), f.frame(f.DATA, f.END_STREAM, stream, body))
        count = connections * streams
        peak = peak_mib(node, server, count, lambda: time.sleep(READ_PAUSE_SECS))
        most = READERS_BASE_MIB + count * READER_MAX_MIB
        table.row(f"{count} readers of nothing over HTTP/2, resident MiB, and allowed", f"{peak:.0f}, {most:.0f}", peak <= most)


# --- connections at rest


def idle_tls(options, table):
    if not shutil.which("openssl"):
        return table.skip("connections under TLS at rest", "openssl is not installed")
    count = 5000 if options.full else 200
    folder = pathlib.Path(tempfile.mkdtemp(prefix="infergate-edge-"))
    own, key = certificate(folder)
    context = ssl.create_default_context(cafile=own)
    text = f"anonymous: allow\nlimits: {{ connections_per_client: 16384 }}\ntimeouts: {{ keepalive_secs: 600 }}\n{model(free_port(), 1)}"
    with gateway(options.binary, text, f'health: true, tls: {{ certificate: "{own}", private_key: "{key}" }}') as node:

        def connected():
            plain = socket.create_connection(("127.0.0.1", node.port), timeout=LIMIT_SECS)
            tls = context.wrap_socket(plain, server_hostname="localhost")
            tls.sendall(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
            return tls if tls.recv(4096).startswith(b"HTTP/1.1 200 ") else None

        # What is allocated once for all of them.
        open_ones = [connected() for _ in range(50)]
        before = node.memory_kib()
        open_ones += [connected() for _ in range(count)]
        each = (node.memory_kib() - before) / count
        table.row(f"{count} connections under TLS at rest, KiB each", f"{each:.1f}", all(open_ones) and each <= IDLE_TLS_MAX_KIB)
        for one in open_ones:
            one.close()
    shutil.rmtree(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/debug/infergate")
    parser.add_argument("--full", action="store_true", help="the counts of the acceptance")
    options = parser.parse_args()
    # Thousands of connections, here and in the gateway, which inherits the limit.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    table = Table()
    slow_heads(options, table)
    slow_readers(options, table)
    http2_readers(options, table)
    idle_tls(options, table)
    return table.finish()


if __name__ == "__main__":
    sys.exit(main())
