"""A model server that answers at once, and a client that sends one request after the other.

Not a load generator: nothing is timed and nothing happens at once. Of a stream the server writes the head and the
first event; the further ones are written by the counting program, which knows when the client has read the last.
"""

import queue
import re
import socket
import sys
import threading

from scenarios import EVENTS, HOLDER

# Far longer than an answer takes under valgrind on a busy machine; only a hang meets it.
PATIENCE_SECS = 120
WARM_UP_REQUESTS = 20
REFUSED_MAX = 200
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
CHUNK_OF_A_STREAM = b'{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"bench",'
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.I)


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


EVENT = chunk(
    b"data: "
    + CHUNK_OF_A_STREAM
    + b'"choices":[{"index":0,"delta":{"content":"token "},"finish_reason":null}]}\n\n'
)
STREAM_END = (
    chunk(
        b"data: "
        + CHUNK_OF_A_STREAM
        + b'"choices":[],"usage":{"prompt_tokens":400,"completion_tokens":64,"total_tokens":464}}\n\n'
    )
    + chunk(b"data: [DONE]\n\n")
    + b"0\r\n\r\n"
)
COMPLETION = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"bench","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"' + b"x" * 360 + b'"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":400,"completion_tokens":90,"total_tokens":490}}'
)
WHOLE_RESPONSE = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
    % (len(COMPLETION), COMPLETION)
)


class UnexpectedStatus(RuntimeError):
    """A response that the scenario does not expect; it was read to its end."""


class Wire:
    """A socket, and the bytes read from it that belong to nothing yet."""

    def __init__(self, connection):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self.unread = b""

    def send(self, data):
        self.connection.sendall(data)

    def read_past(self, mark):
        """The bytes up to the end of `mark`; None at the end of the connection."""
        while (at := self.unread.find(mark)) < 0:
            if not self.read_more():
                return None
        return self.take(at + len(mark))

    def read_exactly(self, length):
        while len(self.unread) < length:
            if not self.read_more():
                return None
        return self.take(length)

    def take(self, length):
        taken, self.unread = self.unread[:length], self.unread[length:]
        return taken

    def read_more(self):
        data = self.connection.recv(1 << 20)
        self.unread += data
        return bool(data)


class ModelServer:
    """Answers on a loopback port until the process ends; a thread for each connection."""

    def __init__(self, port=0):
        self.streams = queue.Queue(maxsize=1024)
        self.listener = socket.create_server(("127.0.0.1", port), backlog=128)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(Wire(connection),), daemon=True).start()

    def serve(self, wire):
        try:
            while (head := wire.read_past(b"\r\n\r\n")) is not None:
                length = LENGTH.search(head)
                body = wire.read_exactly(int(length.group(1))) if length else b""
                if body is None:
                    return
                if b'"stream":true' in body:
                    wire.send(STREAM_HEAD + EVENT)
                    self.streams.put(wire)
                else:
                    wire.send(WHOLE_RESPONSE)
        except OSError:
            # The gateway closed it.
            pass


class Client:
    """One connection of a client."""

    def __init__(self, port):
        self.wire = Wire(socket.create_connection(("127.0.0.1", port), PATIENCE_SECS))

    def begin(self, scenario):
        """Sends the request and reads the head of its response."""
        self.wire.send(scenario.request())
        head = self.wire.read_past(b"\r\n\r\n")
        if head is None:
            raise RuntimeError(f"{scenario.name}: the gateway closed the connection")
        if not head.startswith(b"HTTP/1.1 %d " % scenario.status):
            self.wire.read_exactly(int(LENGTH.search(head).group(1)))
            raise UnexpectedStatus(f"{scenario.name}: {head.decode(errors='replace')}")
        return head

    def exchange(self, scenario):
        """Sends the request and reads its response to the end."""
        head = self.begin(scenario)
        if self.wire.read_exactly(int(LENGTH.search(head).group(1))) is None:
            raise RuntimeError(f"{scenario.name}: the response broke off")


class Requests:
    """One request after the other on one connection."""

    def __init__(self, scenario, gateway):
        self.scenario = scenario
        self.parts = scenario.requests
        self.holder = None
        if scenario.is_full:
            self.holder = Client(gateway.port)
            self.holder.begin(HOLDER)
        self.client = Client(gateway.port)

    def warm_up(self):
        """Opens connections, and lets tables grow to their size.

        A node that has just come under the tool is late with its reports: requests to it are refused at first.
        """
        refused, left = 0, WARM_UP_REQUESTS
        while left > 0:
            try:
                self.client.exchange(self.scenario)
                left -= 1
            except UnexpectedStatus:
                refused += 1
                if not self.scenario.is_forwarded or refused > REFUSED_MAX:
                    raise

    def play(self):
        """Sends as many requests as are counted."""
        for _ in range(self.parts):
            self.client.exchange(self.scenario)

    def finish(self):
        """Leaves nothing open that the gateway would have to wait for."""
        if self.holder is not None:
            self.holder.wire.connection.close()


class Streams:
    """Events of several streams, one after the other; each stream has had its first."""

    def __init__(self, scenario, gateway):
        self.streams = []
        self.parts = scenario.requests * EVENTS
        for _ in range(scenario.requests):
            client = Client(gateway.port)
            client.begin(scenario)
            client.wire.read_past(b"\n\n")
            server = gateway.model_server.streams.get(timeout=PATIENCE_SECS)
            self.streams.append((client, server))

    def warm_up(self):
        self.write_events(2)

    def play(self):
        """Writes and reads so many events on every stream as a stream of that length has."""
        self.write_events(EVENTS)

    def write_events(self, count):
        for client, server in self.streams:
            for _ in range(count):
                server.send(EVENT)
                if client.wire.read_past(b"\n\n") is None:
                    raise RuntimeError("a stream broke off")

    def finish(self):
        for client, server in self.streams:
            server.send(STREAM_END)
            client.wire.read_past(b"0\r\n\r\n")


def traffic(scenario, gateway):
    """Opens what a scenario needs; `play` then makes `parts` requests or events."""
    return (Streams if scenario.is_stream else Requests)(scenario, gateway)


if __name__ == "__main__":
    # As a managed model, on the port that the gateway has chosen.
    ModelServer(int(sys.argv[1]))
    threading.Event().wait()
