"""Receivers of webhooks in good and bad manners, over plain sockets. Standard library only.

Nothing here judges: a receiver writes down what it got and when.
"""

import contextlib
import json
import pathlib
import select
import shutil
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import time

from kit import PATIENCE_SECS

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
LARGE_BYTES = 10_000_000


class Attempt:
    """One request; `number` is that of its connection, `at` is of `time.monotonic`, `wall` of `time.time`."""

    def __init__(self, number, headers, body):
        self.number = number
        self.at, self.wall = time.monotonic(), time.time()
        self.id = headers["webhook-id"]
        self.timestamp = int(headers["webhook-timestamp"])
        self.body = json.loads(body)
        self.job = self.body["id"]


class MannerReceiver:
    """A receiver whose `manner` is called with the connection, the attempt and how often its id came before."""

    def __init__(self, manner, tls=None):
        self.manner, self.tls = manner, tls
        self.attempts, self.lock = [], threading.Lock()
        self.connections, self.open, self.open_max = 0, set(), 0
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self.listener.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}/"
        threading.Thread(target=self.accept, daemon=True).start()

    def of_job(self, job):
        with self.lock:
            found = [attempt for attempt in self.attempts if attempt.job == job]
        # A thread of this program may be slower than the next one: connections come in their order.
        return sorted(found, key=lambda attempt: attempt.number)

    def accept(self):
        while True:
            connection, _ = self.listener.accept()
            with self.lock:
                self.connections += 1
                self.open.add(connection)
                self.open_max = max(self.open_max, sum(not has_left(one) for one in self.open))
            arguments = (connection, self.connections)
            threading.Thread(target=self.serve, args=arguments, daemon=True).start()

    def serve(self, connection, number):
        if self.tls:
            with self.lock:
                self.open.remove(connection)
                connection = self.tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
                self.open.add(connection)
        with contextlib.suppress(OSError, ValueError):
            if self.tls:
                connection.do_handshake()
            self.answer(connection, number)
        with self.lock:
            self.open.remove(connection)
        connection.close()

    def answer(self, connection, number):
        data = b""
        while (end := data.find(b"\r\n\r\n")) < 0:
            if not (more := connection.recv(1 << 16)):
                return
            data += more
        lines = data[:end].decode().split("\r\n")[1:]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = data[end + 4 :]
        while len(body) < int(headers["content-length"]):
            body += connection.recv(1 << 16)
        attempt = Attempt(number, headers, body)
        with self.lock:
            before = sum(other.id == attempt.id for other in self.attempts)
            self.attempts.append(attempt)
        self.manner(connection, attempt, before)


def has_left(connection):
    """Whether the client has closed it, which its thread here may learn later than that of the next one."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


def status(code, more=""):
    return f"HTTP/1.1 {code} X\r\n{more}content-length: 0\r\n\r\n".encode()


def accepts(connection, _attempt, _before):
    connection.sendall(OK)


def refuses_first(count, answer):
    """Gives `answer` to the first attempts of each webhook, then accepts."""

    def manner(connection, _attempt, before):
        connection.sendall(answer if before < count else OK)

    return manner


def hangs(connection, _attempt, _before):
    """Reads the request and never answers."""
    select.select([connection], [], [], PATIENCE_SECS)


def trickles(connection, _attempt, _before):
    """A byte of the head each second."""
    for place in range(len(OK)):
        connection.sendall(OK[place : place + 1])
        if select.select([connection], [], [], 1)[0]:
            return


def answers_at_length(connection, _attempt, _before):
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % LARGE_BYTES)
    connection.sendall(b"x" * LARGE_BYTES)


def resets(connection, _attempt, _before):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def redirects_to(url):
    def manner(connection, _attempt, _before):
        connection.sendall(status(301, f"location: {url}\r\n"))

    return manner


def self_signed():
    """TLS of a certificate that nothing trusts; none without openssl."""
    if not shutil.which("openssl"):
        return None
    with tempfile.TemporaryDirectory() as folder:
        key, certificate = pathlib.Path(folder) / "key.pem", pathlib.Path(folder) / "cert.pem"
        arguments = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1",
                     "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
        subprocess.run(arguments, check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        return context
