"""Frames of HTTP/2 as bytes, right and wrong, and a connection that sends them and reads what comes back.

RFC 9113 and RFC 7541. Fields are literals without an index, so that any name and value can be sent. Standard library only.
"""

import contextlib
import socket
import struct
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS, PADDED, PRIORITY_FLAG, ACK = 0x1, 0x4, 0x8, 0x20, 0x1


def frame(kind, flags=0, stream=0, payload=b"", length=None):
    """A frame; `length` is announced in place of the payload's own."""
    announced = len(payload) if length is None else length
    return struct.pack(">I", announced)[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def integer(value, prefix, first=0):
    """An integer in the form of HPACK, behind the bits of `first` (RFC 7541 section 5.1)."""
    limit = (1 << prefix) - 1
    if value < limit:
        return bytes([first | value])
    out = [first | limit]
    value -= limit
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    return bytes([*out, value])


def field(name, value):
    """A literal field that gets no index."""
    name, value = (text.encode() if isinstance(text, str) else text for text in (name, value))
    return b"\x00" + integer(len(name), 7) + name + integer(len(value), 7) + value


def block(*fields):
    return b"".join(field(name, value) for name, value in fields)


def settings(*pairs):
    return frame(SETTINGS, payload=b"".join(struct.pack(">HI", key, value) for key, value in pairs))


def headers(stream, *fields, flags=END_HEADERS):
    return frame(HEADERS, flags, stream, block(*fields))


def window(stream, size):
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", size))


def reset(stream, code=8):
    return frame(RST_STREAM, 0, stream, struct.pack(">I", code))


class Http2Connection:
    """A raw connection: frames out, frames in."""

    def __init__(self, port, limit):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.limit = limit
        self.received = b""
        self.is_over = False

    def close(self):
        self.socket.close()

    def send(self, *pieces):
        """Sends as much as the other side takes; false once it has closed."""
        self.socket.settimeout(self.limit)
        try:
            self.socket.sendall(b"".join(pieces))
        except OSError:
            self.is_over = True
        return not self.is_over

    def frames(self, until):
        """Frames that come until `until` holds for one of them or the connection ends; none in time is None."""
        found, deadline = [], time.monotonic() + self.limit
        while True:
            while len(self.received) >= 9:
                length = int.from_bytes(self.received[:3], "big")
                if len(self.received) < 9 + length:
                    break
                kind, flags, stream = self.received[3], self.received[4], int.from_bytes(self.received[5:9], "big")
                found.append((kind, flags, stream & 0x7FFFFFFF, self.received[9 : 9 + length]))
                self.received = self.received[9 + length :]
                if until(found[-1]):
                    return found
            if self.is_over or time.monotonic() > deadline:
                return found if self.is_over else None
            self.socket.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                more = self.socket.recv(65536)
                self.is_over = not more
                self.received += more
            except TimeoutError:
                return None
            except OSError:
                self.is_over = True


@contextlib.contextmanager
def connected(port, limit):
    connection = Http2Connection(port, limit)
    try:
        yield connection
    finally:
        connection.close()
