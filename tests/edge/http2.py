#!/usr/bin/env python3
"""What a client of HTTP/2 may do wrong: each sequence of frames is ended or refused, and no other client notices.

A gateway in front of a simulated server. After each sequence a request on another connection has to be answered, with the
answer to that request. Floods are bounded: what they cost in memory and in work that reaches the server is looked at.
Standard library only.

    tests/edge/http2.py                      every sequence, floods of hundreds
    tests/edge/http2.py --full               floods of ten thousands
"""

import argparse
import itertools
import json
import pathlib
import re
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "jobs")]

import frames as f  # noqa: E402
from kit import Table, ask, gateway, simulators, until  # noqa: E402

# Within this a sequence has its end; the gateway's own limits are far below.
LIMIT_SECS = 20
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}).encode()
# Resident memory that floods may add, and that is not given back: MiB.
FLOOD_MEMORY_MAX_MIB = 32


def head(*more, path="/v1/chat/completions", method="POST", scheme="http", authority="localhost"):
    pseudo = [(":method", method), (":scheme", scheme), (":path", path), (":authority", authority)]
    return [pair for pair in pseudo if pair[1] is not None] + list(more)


OPEN = f.PREFACE + f.settings()
WHOLE = f.headers(1, *head()) + f.frame(f.DATA, f.END_STREAM, 1, BODY)


def block_in_pieces(stream, pieces):
    """A header block in CONTINUATION frames."""
    first, *rest = pieces
    out = f.frame(f.HEADERS, 0, stream, first)
    for at, piece in enumerate(rest):
        out += f.frame(f.CONTINUATION, f.END_HEADERS if at == len(rest) - 1 else 0, stream, piece)
    return out


def violations():
    """(name, bytes) of what ends the connection, or its stream: RFC 9113 in the order of its sections.

    Another frame before the first SETTINGS (section 3.4) is not among them: h2 lets it pass, and nothing depends on it.
    """
    get = [(":method", "GET"), (":scheme", "http"), (":path", "/v1/models"), (":authority", "localhost")]
    yield "3.4 broken preface", f.PREFACE[:18] + b"XX\r\n\r\n" + f.settings()
    yield "4.2 frame beyond the maximum", OPEN + f.frame(f.DATA, 0, 1, bytes(16385))
    yield "4.2 frame of 16 MiB announced", OPEN + f.frame(f.HEADERS, 4, 1, b"", length=0xFFFFFF)
    yield "4.3 index 0", OPEN + f.frame(f.HEADERS, 5, 1, b"\x80")
    yield "4.3 index beyond the table", OPEN + f.frame(f.HEADERS, 5, 1, b"\xff\x80\x01")
    yield "4.3 integer without an end", OPEN + f.frame(f.HEADERS, 5, 1, b"\xff" + b"\xff" * 20)
    yield "4.3 table larger than agreed", OPEN + f.frame(f.HEADERS, 5, 1, f.integer(1 << 20, 5, 0x20) + f.block(*get))
    yield "4.3 bad Huffman code", OPEN + f.frame(f.HEADERS, 5, 1, b"\x00\x84\xff\xff\xff\xff\x00")
    yield "4.3 block cut off", OPEN + f.frame(f.HEADERS, 5, 1, f.block(*get)[:-3])
    yield "5.1 DATA on an idle stream", OPEN + f.frame(f.DATA, 1, 1, b"x")
    yield "5.1 RST_STREAM on an idle stream", OPEN + f.reset(1)
    yield "5.1 WINDOW_UPDATE on an idle stream", OPEN + f.window(1, 1)
    yield "5.1 CONTINUATION on an idle stream", OPEN + f.frame(f.CONTINUATION, 4, 1, f.block(*get))
    yield "5.1 DATA after the end", OPEN + f.headers(1, *get, flags=5) + f.frame(f.DATA, 1, 1, b"x")
    yield "5.1 HEADERS after the end", OPEN + f.headers(1, *get, flags=5) + f.headers(1, *get, flags=5)
    yield "5.1.1 even stream", OPEN + f.headers(2, *get, flags=5)
    yield "5.1.1 stream 0", OPEN + f.headers(0, *get, flags=5)
    yield "5.1.1 number that goes back", OPEN + f.headers(5, *get, flags=5) + f.headers(3, *get, flags=5)
    yield "6.1 DATA on stream 0", OPEN + f.frame(f.DATA, 1, 0, b"x")
    yield "6.1 padding longer than DATA", OPEN + f.headers(1, *head()) + f.frame(f.DATA, 0x9, 1, b"\xffx")
    yield "6.2 padding longer than HEADERS", OPEN + f.frame(f.HEADERS, 0xD, 1, b"\xff" + f.block(*get))
    yield "6.2 frames within a block", OPEN + f.frame(f.HEADERS, 0, 1, f.block(*get)) + f.frame(f.PING, 0, 0, bytes(8))
    yield "6.2 DATA within a block", OPEN + f.frame(f.HEADERS, 0, 1, f.block(*get)) + f.frame(f.DATA, 1, 1, b"x")
    yield "6.2 another stream within a block", OPEN + f.frame(f.HEADERS, 0, 1, f.block(*get)) + f.headers(3, *get)
    yield "6.3 PRIORITY of a wrong length", OPEN + WHOLE + f.frame(f.PRIORITY, 0, 1, bytes(4))
    yield "6.3 PRIORITY on stream 0", OPEN + f.frame(f.PRIORITY, 0, 0, bytes(5))
    yield "6.4 RST_STREAM of a wrong length", OPEN + WHOLE + f.frame(f.RST_STREAM, 0, 1, bytes(3))
    yield "6.4 RST_STREAM on stream 0", OPEN + f.reset(0)
    yield "6.5 SETTINGS on a stream", OPEN + f.frame(f.SETTINGS, 0, 1)
    yield "6.5 SETTINGS of a wrong length", OPEN + f.frame(f.SETTINGS, 0, 0, bytes(5))
    yield "6.5 ACK with a payload", OPEN + f.frame(f.SETTINGS, f.ACK, 0, bytes(6))
    yield "6.5.2 ENABLE_PUSH of 2", OPEN + f.settings((2, 2))
    yield "6.5.2 window of 2^31", OPEN + f.settings((4, 1 << 31))
    yield "6.5.2 frames of 100 bytes", OPEN + f.settings((5, 100))
    yield "6.5.2 frames of 2^24 bytes", OPEN + f.settings((5, 1 << 24))
    yield "6.6 PUSH_PROMISE of a client", OPEN + WHOLE + f.frame(f.PUSH_PROMISE, 4, 1, struct.pack(">I", 2) + f.block(*get))
    yield "6.7 PING of a wrong length", OPEN + f.frame(f.PING, 0, 0, bytes(7))
    yield "6.7 PING on a stream", OPEN + f.frame(f.PING, 0, 1, bytes(8))
    yield "6.8 GOAWAY on a stream", OPEN + f.frame(f.GOAWAY, 0, 1, bytes(8))
    yield "6.9 WINDOW_UPDATE of 0", OPEN + f.window(0, 0)
    yield "6.9 WINDOW_UPDATE of a wrong length", OPEN + f.frame(f.WINDOW_UPDATE, 0, 0, bytes(3))
    yield "6.9.1 window of the connection beyond 2^31", OPEN + f.window(0, 0x7FFFFFFF) + f.window(0, 0x7FFFFFFF)
    yield "6.9.1 window of a stream beyond 2^31", OPEN + f.headers(1, *head()) + f.window(1, 0x7FFFFFFF) * 2
    yield "6.10 CONTINUATION without HEADERS", OPEN + WHOLE + f.frame(f.CONTINUATION, 4, 1, f.block(*get))
    yield "TLS in place of HTTP", bytes.fromhex("160301020001000001fc0303") + bytes(500)


def malformed_heads():
    """(name, fields) of requests that RFC 9113 section 8 calls malformed, or that two readers could understand differently."""
    yield "name in upper case", head(("X-Upper", "1"))
    yield "connection", head(("connection", "close"))
    yield "keep-alive", head(("keep-alive", "1"))
    yield "proxy-connection", head(("proxy-connection", "close"))
    yield "transfer-encoding", head(("transfer-encoding", "chunked"))
    yield "upgrade", head(("upgrade", "h2c"))
    yield "te: gzip", head(("te", "gzip"))
    yield "no method", head(method=None)
    yield "no scheme", head(scheme=None)
    yield "no path", head(path=None)
    yield "empty path", head(path="")
    yield "no host", head(authority=None)
    yield "empty host", head(authority="")
    yield "user in the host", head(authority="u@localhost")
    yield "two hosts", head(("host", "other"))
    yield "host with a path", head(authority=None) + [("host", "a/b")]
    yield "two methods", [(":method", "GET"), *head()]
    yield "two paths", [(":path", "/v1/models"), *head()]
    yield "two schemes", [(":scheme", "http"), *head()]
    yield "status in a request", [(":status", "200"), *head()]
    yield "unknown pseudo field", [(":x", "1"), *head()]
    yield "pseudo field behind a field", [("x-a", "1"), *head()]
    yield "CONNECT", [(":method", "CONNECT"), (":authority", "localhost:80")]
    yield "space in the path", head(path="/v1/chat completions")
    yield "line end in the path", head(path="/v1/models HTTP/1.1\r\nx-a: b")
    yield "NUL in the path", head(path="/v1\x00")
    yield "path without a slash", head(path="v1/models")
    yield "path of another host", head(path="http://other/v1/models")
    yield "line end in a value", head(("x-a", "b\r\nx-c: d"))
    yield "line feed in a value", head(("x-a", "b\nx-c: d"))
    yield "NUL in a value", head(("x-a", "b\x00"))
    yield "space in a name", head(("x a", "b"))
    yield "colon in a name", head(("x:a", "b"))
    yield "empty name", head(("", "b"))
    yield "line end in a name", head(("x\r\ny", "b"))
    yield "method with a space", head(method="POST /")
    yield "empty method", head(method="")
    yield "length that is none", head(("content-length", "x"))
    yield "negative length", head(("content-length", "-1"))
    yield "length with a sign", head(("content-length", f"+{len(BODY)}"))
    yield "two lengths", head(("content-length", "1"), ("content-length", "2"))
    yield "length too small", head(("content-length", str(len(BODY) - 1)))
    yield "length too large", head(("content-length", str(len(BODY) + 1)))
    yield "length beyond 2^64", head(("content-length", "9" * 30))
    yield "head of 80 KiB", head(*((f"x-{at}", "v" * 4096) for at in range(20)))
    yield "300 fields", head(*((f"x-{at}", "v") for at in range(300)))


def well_formed():
    """(name, bytes) of unusual sequences that are served: stream 1 gets a 200."""
    body = f.frame(f.DATA, f.END_STREAM, 1, BODY)
    yield "unknown frame", OPEN + f.frame(0xFA, 0, 0, b"x") + WHOLE
    yield "unknown setting", OPEN + f.settings((0xFF, 1)) + WHOLE
    yield "padding", OPEN + f.frame(f.HEADERS, 0xC, 1, b"\x03" + f.block(*head()) + bytes(3)) + f.frame(f.DATA, 9, 1, b"\x05" + BODY + bytes(5))
    yield "priority", OPEN + f.frame(f.HEADERS, 0x24, 1, bytes(4) + b"\x10" + f.block(*head())) + body
    yield "body byte by byte", OPEN + f.headers(1, *head()) + b"".join(f.frame(f.DATA, 0, 1, bytes([byte])) for byte in BODY) + f.frame(f.DATA, 1, 1)
    yield "empty DATA between", OPEN + f.headers(1, *head()) + f.frame(f.DATA, 0, 1) * 3 + body
    yield "trailers", OPEN + f.headers(1, *head()) + f.frame(f.DATA, 0, 1, BODY) + f.headers(1, ("x-t", "1"), flags=5)
    text = f.block(*head())
    yield "block in pieces", OPEN + block_in_pieces(1, [text[:3], text[3:9], text[9:]]) + body
    yield "block behind an empty HEADERS", OPEN + block_in_pieces(1, [b"", text]) + body
    yield "right length", OPEN + f.headers(1, *head(("content-length", str(len(BODY))))) + body
    yield "the same host twice", OPEN + f.headers(1, *head(("host", "localhost"))) + body
    yield "te: trailers", OPEN + f.headers(1, *head(("te", "trailers"))) + body
    yield "PING before", OPEN + f.frame(f.PING, 0, 0, bytes(8)) + WHOLE
    yield "expect", OPEN + f.headers(1, *head(("expect", "100-continue"))) + body


def is_end(frame):
    """GOAWAY, RST_STREAM of stream 1, or a whole response on it."""
    kind, flags, stream, _ = frame
    return kind == f.GOAWAY or (stream == 1 and (kind == f.RST_STREAM or kind in (f.HEADERS, f.DATA) and flags & f.END_STREAM))


def status_of(found, stream=1):
    """Status of the response on a stream, by the static table of HPACK (RFC 7541 appendix A); none without one."""
    indexed = {0x88: 200, 0x89: 204, 0x8A: 206, 0x8B: 304, 0x8C: 400, 0x8D: 404, 0x8E: 500}
    for kind, _, at, payload in found:
        if kind == f.HEADERS and at == stream:
            # A change of the table's size may stand before.
            while payload and payload[0] & 0xE0 == 0x20:
                payload = payload[1:]
            status = indexed.get(payload[0])
            if payload[0] in (0x48, 0x08, 0x18):
                length = payload[1] & 0x7F
                digits = payload[2 : 2 + length]
                status = int(digits) if not payload[1] & 0x80 else huffman_digits(digits)
            if status is not None and status >= 200:
                return status
    return None


def huffman_digits(text):
    """Three digits in the Huffman code of HPACK (RFC 7541 appendix B)."""
    codes = {"00000": 0, "00001": 1, "00010": 2, "011001": 3, "011010": 4, "011011": 5, "011100": 6, "011101": 7, "011110": 8, "011111": 9}
    bits = "".join(f"{byte:08b}" for byte in text)
    value, at = 0, 0
    for _ in range(3):
        size = 5 if bits[at : at + 5] in codes else 6
        value = value * 10 + codes[bits[at : at + size]]
        at += size
    return value


class Edge:
    """A gateway with its server, and the canary on another connection."""

    def __init__(self, node, server, table):
        self.node, self.server, self.table = node, server, table
        self.numbers = itertools.count()

    def canary(self, may_be_refused=False):
        """Whether another client gets the answer to its own request, or a refusal where the gateway is full."""
        number = next(self.numbers)
        status, answer = self.node.ask(
            "POST",
            "/v1/chat/completions",
            {**json.loads(BODY), "model": "m"},
            {"x-client-request-id": f"canary-{number}"},
            timeout=LIMIT_SECS,
        )
        return (may_be_refused and status == 429) or (status == 200 and answer["object"] == "chat.completion")

    def permits_used(self):
        metrics = ask(self.node.admin, "GET", "/metrics")[1]
        used = re.search(r'^infergate_permits_used\{[^}]*\} (\S+)$', metrics, re.M)
        return float(used.group(1))

    def served(self):
        return ask(self.server, "GET", "/sim/stats")[1]["served"]

    def send(self, text, end=is_end):
        """What comes back; None when the connection hangs."""
        with f.connected(self.node.port, LIMIT_SECS) as connection:
            connection.send(text)
            return connection.frames(end)

    def judge(self, kind, name, found, is_good):
        good = found is not None and is_good(found) and self.canary()
        if not good:
            shown = "no end within the limit" if found is None else [(one[0], one[2], one[3][:40]) for one in found[-3:]]
            self.table.row(f"{kind}: {name}", shown, False)
        return good


def check(edge, kind, cases, is_good):
    results = [edge.judge(kind, name, edge.send(text), is_good) for name, text in cases]
    edge.table.row(f"{kind}, sequences", f"{sum(results)} of {len(results)}", all(results))


def is_refused(found):
    """Ended by GOAWAY, RST_STREAM, the close, or a response that is no success."""
    status = status_of(found)
    return status is None or 400 <= status < 500


def heads(edge):
    before = edge.served()
    canaries = next(edge.numbers)
    cases = [(name, OPEN + f.headers(1, *fields) + f.frame(f.DATA, f.END_STREAM, 1, BODY)) for name, fields in malformed_heads()]
    check(edge, "malformed heads", cases, is_refused)
    asked = next(edge.numbers) - canaries - 1
    until("the server has counted", lambda: edge.served() - before >= asked)
    edge.table.row("malformed heads that reached the server", edge.served() - before - asked, edge.served() - before == asked)


def flood(edge, name, text, count, end=lambda frame: frame[0] == f.GOAWAY):
    """Sends `text(n)` so often, or until the gateway has enough; the canary lives, and memory is given back."""
    before, cost = edge.served(), edge.node.memory_kib()
    with f.connected(edge.node.port, LIMIT_SECS) as connection:
        connection.send(OPEN)
        sent = 0
        for sent in range(count):
            if not connection.send(text(sent)):
                break
        lives = edge.canary(may_be_refused=True)
    until("permits are back", lambda: edge.permits_used() == 0, LIMIT_SECS)
    reached = edge.served() - before - 1
    grown = (edge.node.memory_kib() - cost) / 1024
    good = lives and grown <= FLOOD_MEMORY_MAX_MIB and edge.canary()
    edge.table.row(f"flood of {name}: sent, reached the server, MiB more", f"{sent + 1}, {reached}, {grown:.1f}", good)


def floods(edge, count):
    whole = lambda n: f.headers(2 * n + 1, *head()) + f.frame(f.DATA, f.END_STREAM, 2 * n + 1, BODY)  # noqa: E731
    flood(edge, "rapid resets", lambda n: whole(n) + f.reset(2 * n + 1), count)
    # Each makes the gateway reset the stream (CVE-2025-8671).
    flood(edge, "resets that are provoked", lambda n: f.headers(2 * n + 1, *head()) + f.window(2 * n + 1, 0), count)
    flood(edge, "SETTINGS", lambda n: f.settings((4, 65535)) * 10, count // 10)
    flood(edge, "PING", lambda n: f.frame(f.PING, 0, 0, bytes(8)) * 10, count // 10)
    flood(edge, "PRIORITY", lambda n: f.frame(f.PRIORITY, 0, 2 * n + 1, bytes(5)), count)
    flood(edge, "WINDOW_UPDATE", lambda n: f.window(0, 1) * 10, count // 10)
    flood(edge, "empty DATA", lambda n: (f.headers(1, *head()) if n == 0 else b"") + f.frame(f.DATA, 0, 1) * 10, count // 10)
    flood(edge, "CONTINUATION", lambda n: f.frame(f.HEADERS, 0, 1, b"") if n == 0 else f.frame(f.CONTINUATION, 0, 1, f.block((f"x-{n}", "v" * 1000))), count)
    flood(edge, "empty CONTINUATION", lambda n: f.frame(f.HEADERS, 0, 1, b"") if n == 0 else f.frame(f.CONTINUATION, 0, 1, b""), count)
    flood(edge, "unknown frames", lambda n: f.frame(0xEE, 0, 0, bytes(100)) * 10, count // 10)
    # 4,000 references of a byte each to a field of 4 KB.
    bomb = f.block(*head()) + b"\x40" + f.integer(3, 7) + b"x-b" + f.integer(4000, 7) + b"v" * 4000 + b"\xbe" * 4000
    flood(edge, "HPACK bombs", lambda n: f.frame(f.HEADERS, 5, 2 * n + 1, bomb), min(count, 100))
    flood(edge, "requests that are not read", whole, min(count, 1000))


def small_windows(edge):
    """A client that takes one byte at a time gets the whole answer; one that takes none gets none, and holds no permit."""
    with f.connected(edge.node.port, LIMIT_SECS) as connection:
        connection.send(f.PREFACE + f.settings((4, 1)) + WHOLE)
        taken, ended = b"", False
        while not ended:
            found = connection.frames(lambda frame: frame[0] == f.DATA and frame[2] == 1)
            if found is None or connection.is_over:
                break
            kind, flags, _, payload = found[-1]
            taken += payload
            ended = bool(flags & f.END_STREAM)
            connection.send(f.window(1, 1))
        is_whole = ended and json.loads(taken)["object"] == "chat.completion"
        edge.table.row("an answer through a window of one byte, bytes", len(taken), is_whole)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/debug/infergate")
    parser.add_argument("--full", action="store_true", help="floods of ten thousands")
    options = parser.parse_args()
    table = Table()
    with simulators(options.binary, 1, "--ttft-ms", 0, "--tokens-per-sec", 0, "--concurrency", 64) as (port,):
        models = f'models: [{{ id: m, task: text-generation, backend: openai, endpoints: [{{ url: "http://127.0.0.1:{port}", max_concurrent_requests: 16 }}] }}]'
        text = f"anonymous: allow\ntimeouts: {{ stream_idle_secs: 5 }}\nlimits: {{ header_timeout_secs: 5 }}\n{models}\n"
        with gateway(options.binary, text, "http2: clear") as node:
            edge = Edge(node, port, table)
            check(edge, "violations", violations(), is_refused)
            heads(edge)
            check(edge, "unusual and right", well_formed(), lambda found: status_of(found) == 200)
            small_windows(edge)
            floods(edge, 20_000 if options.full else 500)
            table.row("the gateway lives", node.process.poll(), node.process.poll() is None)
    return table.finish()


if __name__ == "__main__":
    sys.exit(main())
