"""Clients of HTTP/2 and of WebSockets, each for one thread, that keep to the rules where they are asked to go elsewhere.

RFC 9113 and RFC 6455. Nothing is judged but the rules of both. Standard library only.
"""

import base64
import hashlib
import http.client
import os
import socket
import ssl
import struct

import frames as f

# Longer than any silence of a server.
LIMIT_SECS = 120
# Windows that no answer fills.
STREAM_WINDOW_BYTES, CONNECTION_WINDOW_BYTES = 1 << 24, 1 << 28
REFUSED_STREAM = 7

TEXT, CLOSE = 0x1, 0x8
FIN, MASKED = 0x80, 0x80
ACCEPT_SUFFIX = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def connected(port):
    plain = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_SECS)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return plain


class Http2:
    """A connection with some requests at a time; `context` and `session` are those of TLS. Once it `is_leaving`, another one is
    to be made for the next requests."""

    def __init__(self, port, context=None, session=None):
        self.socket = connected(port)
        if context:
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost", session=session)
            if self.socket.selected_alpn_protocol() != "h2":
                raise ValueError("the server has not chosen h2")
        self.received, self.number, self.is_leaving = b"", -1, False
        # Data of streams under way, and of those that have ended; none where a stream was refused before it began.
        self.open, self.ended = {}, {}
        hello = f.PREFACE + f.settings((4, STREAM_WINDOW_BYTES)) + f.window(0, CONNECTION_WINDOW_BYTES)
        self.socket.sendall(hello)

    def close(self):
        self.socket.close()

    def exchange(self, path, bodies):
        """Posts bodies together; returns the data of their answers, with none for a request that has not begun. On a connection
        that is to be left nothing is sent, and there are no answers."""
        self.look()
        if self.is_leaving:
            return []
        numbers, out = [], b""
        for body in bodies:
            self.number += 2
            numbers.append(self.number)
            self.open[self.number] = b""
            out += f.headers(
                self.number,
                *[(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost")],
                ("content-type", "application/json"),
            )
            out += f.frame(f.DATA, f.END_STREAM, self.number, body)
        self.socket.sendall(out)
        while self.open:
            self.take(*self.frame())
        return [self.ended.pop(number) for number in numbers]

    def look(self):
        """Takes what has come, without a wait."""
        self.socket.settimeout(0)
        try:
            while more := self.socket.recv(65536):
                self.received += more
            self.is_leaving = True
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        except OSError:
            self.is_leaving = True
        self.socket.settimeout(LIMIT_SECS)
        while self.has_frame():
            self.take(*self.frame())

    def has_frame(self):
        return len(self.received) >= 9 and len(self.received) >= 9 + int.from_bytes(self.received[:3], "big")

    def frame(self):
        while not self.has_frame():
            more = self.socket.recv(65536)
            if not more:
                raise ConnectionError(f"closed with {len(self.open)} streams under way")
            self.received += more
        length, kind, flags = int.from_bytes(self.received[:3], "big"), self.received[3], self.received[4]
        number, payload = int.from_bytes(self.received[5:9], "big") & 0x7FFFFFFF, self.received[9 : 9 + length]
        self.received = self.received[9 + length :]
        return kind, flags, number, payload

    def take(self, kind, flags, number, payload):
        if kind == f.SETTINGS and not flags & f.ACK:
            self.acknowledge(f.frame(f.SETTINGS, f.ACK))
        elif kind == f.PING and not flags & f.ACK:
            self.acknowledge(f.frame(f.PING, f.ACK, 0, payload))
        elif kind == f.GOAWAY:
            last, code = struct.unpack(">II", payload[:8])
            if code:
                raise ConnectionError(f"the connection ended with code {code}: {payload[8:]}")
            self.is_leaving = True
            for above in [stream for stream in self.open if stream > last]:
                self.end(above, None)
        elif number not in self.open:
            return
        elif kind == f.RST_STREAM:
            (code,) = struct.unpack(">I", payload)
            if code != REFUSED_STREAM:
                raise ConnectionError(f"stream {number} was reset with code {code}, after {self.open[number][-200:]}")
            self.end(number, None)
        elif kind in (f.DATA, f.HEADERS):
            if kind == f.DATA:
                self.open[number] += payload
            if flags & f.END_STREAM:
                self.end(number, self.open[number])

    def end(self, number, data):
        del self.open[number]
        self.ended[number] = data

    def acknowledge(self, frame):
        try:
            self.socket.sendall(frame)
        except OSError:
            # Where streams are under way, reading tells of them.
            self.is_leaving = True


class WebSocket:
    """A WebSocket with short messages."""

    def __init__(self, port, path):
        self.socket = connected(port)
        self.reader = self.socket.makefile("rb")
        key = base64.b64encode(os.urandom(16))
        self.socket.sendall(
            b"GET %b HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n\r\n" % (path.encode(), key)
        )
        line, fields = self.reader.readline(), http.client.parse_headers(self.reader)
        accept = base64.b64encode(hashlib.sha1(key + ACCEPT_SUFFIX).digest()).decode()
        if not line.startswith(b"HTTP/1.1 101 ") or fields["sec-websocket-accept"] != accept:
            length = int(fields["content-length"] or 0)
            raise ValueError(f"no WebSocket: {line} {self.reader.read(length)[:200]}")

    def close(self):
        self.reader.close()
        self.socket.close()

    def send(self, opcode, payload):
        mask = os.urandom(4)
        masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))
        self.socket.sendall(bytes([FIN | opcode, MASKED | len(payload)]) + mask + masked)

    def frame(self):
        """Opcode and payload of the next frame."""
        first, length = self.read(2)
        return first & 0xF, self.read(length)

    def read(self, count):
        data = self.reader.read(count)
        if len(data) < count:
            raise ConnectionError("the WebSocket ended without a close frame")
        return data

    def leave(self):
        """Closes with 1000; returns the other side's code and whether the connection has ended then."""
        self.send(CLOSE, struct.pack(">H", 1000))
        opcode, payload = self.frame()
        code = struct.unpack(">H", payload[:2])[0] if opcode == CLOSE else None
        return code, not self.reader.read(1)
