#!/usr/bin/env python3
"""What a client of HTTP/1 may do wrong: each head or body that two readers could understand differently is refused.

A gateway in front of a strict server that keeps what it gets. A request that is refused is answered once, with a status of
4xx, its connection closed, and no byte of it reaches the server; what is served reaches the server as it was meant. After
each a request on another connection has to be answered, with the answer to that request. Standard library only.

    tests/edge/http1.py                      every case (seconds)
"""

import argparse
import contextlib
import http.server
import itertools
import json
import pathlib
import re
import socket
import socketserver
import sys
import threading

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "jobs")]

from kit import Table, free_port, gateway, until  # noqa: E402

# Within this a case has its end; the gateway's own limits are far below.
LIMIT_SECS = 20
PATH = b"/v1/chat/completions"
TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"


def body_of(nonce):
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": nonce}], "max_tokens": 1}).encode()


BODY = body_of("case")
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)


class Strict(http.server.BaseHTTPRequestHandler):
    """A server that refuses what is not exactly a request, and keeps it."""

    protocol_version = "HTTP/1.1"

    def handle_one_request(self):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            byte = self.rfile.read(1)
            if not byte:
                self.close_connection = True
                return
            head += byte
        line, *fields = head[:-4].split(b"\r\n")
        parts = [one.partition(b":") for one in fields]
        names = [name.lower() for name, _, _ in parts]
        good = re.fullmatch(rb"[A-Z]+ /[!-~]* HTTP/1\.1", line) is not None
        good &= all(TOKEN.fullmatch(name) and colon and not re.search(rb"[\x00-\x08\x0a-\x1f\x7f]", value) for name, colon, value in parts)
        lengths = [value.strip() for name, _, value in parts if name.lower() == b"content-length"]
        good &= len(lengths) <= 1 and all(length.isdigit() for length in lengths) and b"transfer-encoding" not in names
        good &= names.count(b"host") == 1
        content = self.rfile.read(int(lengths[0])) if good and lengths else b""
        if not good or not line.startswith((b"GET /health", b"GET /v1/models", b"GET /metrics", b"GET /")) or b"smuggled" in head:
            self.server.seen.append((good, head, content))
        with contextlib.suppress(ValueError, KeyError):
            nonce = json.loads(content)["messages"][0]["content"] if content else ""
        answer = {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": nonce}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
        text = json.dumps(answer).encode()
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
        self.close_connection = not good


class StrictServer(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    seen = []


def post(fields=LENGTH, body=BODY, line=b"POST %s HTTP/1.1" % PATH, host=b"Host: h\r\n"):
    return line + b"\r\n" + host + b"Content-Type: application/json\r\n" + fields + b"\r\n" + body


def both_lengths():
    """Content-Length and Transfer-Encoding in one head, in any spelling that some reader takes for one of them."""
    spelled = [b"chunked", b"Chunked", b"CHUNKED", b" chunked", b"chunked ", b"\tchunked", b"identity", b"gzip, chunked", b"chunked, identity",
               b"xchunked", b"chunked;q=1", b'"chunked"', b"chunked,", b",chunked", b"chunked, chunked", b"", b"deflate", b"\x0bchunked", b"chun\x00ked"]
    for value in spelled:
        encoding = b"Transfer-Encoding:" + value + b"\r\n"
        smuggling = b"0\r\n\r\n" + SMUGGLED
        length = b"Content-Length: %d\r\n" % len(smuggling)
        for order in (encoding + length, length + encoding):
            yield f"length and encoding {value!r}", post(order, smuggling)
    for value in spelled[6:]:
        yield f"encoding {value!r}", post(b"Transfer-Encoding:" + value + b"\r\n", CHUNKS)
    yield "two encodings", post(CHUNKED + CHUNKED, CHUNKS)
    yield "encoding in HTTP/1.0", post(CHUNKED, CHUNKS, line=b"POST %s HTTP/1.0" % PATH)
    for name in (b"Transfer-Encoding ", b" Transfer-Encoding", b"Transfer-Encoding\t", b"Transfer\x00-Encoding", b"Transfer-Encoding\x0b"):
        yield f"encoding by the name {name!r}", post(LENGTH + name + b": chunked\r\n", BODY)


def lengths():
    n = len(BODY)
    for value in (b"", b"+%d" % n, b"-%d" % n, b"0x%x" % n, b"%d,%d" % (n, n), b"%d, %d" % (n, n + 1), b"%d %d" % (n, n), b"1e2", b"%d.0" % n, b"9" * 30,
                  b"%d\x00" % n, b"%d;" % n, b"'%d'" % n, b"\xd9\xa3", b"18446744073709551616", b"%d_" % n, b"one", b"%d\x0b" % n, b"\x0c%d" % n, b"--1"):
        yield f"length {value!r}", post(b"Content-Length: " + value + b"\r\n")
    for other in (n, n + 1, 0):
        yield f"a second length of {other}", post(LENGTH + b"Content-Length: %d\r\n" % other)
    for name in (b"Content-Length ", b"Content-Length\t", b"\tContent-Length", b"Content-Length\x00", b"Content\rLength"):
        yield f"length by the name {name!r}", post(name + b": %d\r\n" % n)


def chunks():
    n = len(BODY)
    size = b"%x" % n
    for line in (b"g", b"+" + size, b"-" + size, b"0x" + size, size + b" x", b" " + size, b"", b"f" * 17, size + b"\x00", size + b"\rx", b"1" + b"0" * 16, b"\t" + size, b"." + size):
        yield f"chunk of size {line!r}", post(CHUNKED, line + b"\r\n" + BODY + b"\r\n0\r\n\r\n")
    yield "chunk line ended by a line feed", post(CHUNKED, size + b"\n" + BODY + b"\r\n0\r\n\r\n")
    yield "chunk data ended by a line feed", post(CHUNKED, size + b"\r\n" + BODY + b"\n0\r\n\r\n")
    yield "chunk data without an end", post(CHUNKED, size + b"\r\n" + BODY + b"0\r\n\r\n")
    yield "chunk longer than it says", post(CHUNKED, b"%x\r\n" % (n - 1) + BODY + b"\r\n0\r\n\r\n")
    yield "chunk shorter than it says", post(CHUNKED, b"%x\r\n" % (n + 1) + BODY + b"\r\n0\r\n\r\n")
    yield "extension of 16 KiB", post(CHUNKED, size + b";" + b"x" * 16384 + b"\r\n" + BODY + b"\r\n0\r\n\r\n")
    yield "trailers of 64 KiB", post(CHUNKED, size + b"\r\n" + BODY + b"\r\n0\r\n" + b"x-t: %s\r\n" % (b"v" * 1000) * 64 + b"\r\n")
    for at in range(33):
        byte = bytes([at if at < 32 else 127])
        if byte not in b"\t\r\n":
            yield f"byte {byte!r} in an extension", post(CHUNKED, size + b";a" + byte + b"\r\n" + BODY + b"\r\n0\r\n\r\n")


def hosts():
    yield "no host", post(host=b"")
    for value in (b"", b"a b", b"a/b", b"u@h", b"u:p@h", b"h:x", b"h:99999999", b"h:1:2", b"[::1", b"::1", b"[]", b"h?x", b"h#x", b"h\x00", b"h,other", b"h\\x", b"<h>", b"h\xff", b'"h"'):
        yield f"host {value!r}", post(host=b"Host: " + value + b"\r\n")
    for second in (b"h", b"other"):
        yield f"a second host {second!r}", post(host=b"Host: h\r\nHost: " + second + b"\r\n")
    for target in (b"http://other" + PATH, b"http://h:81" + PATH, b"http://u@h" + PATH, b"https://other" + PATH, b"http://h.other" + PATH):
        yield f"target {target!r}", post(line=b"POST " + target + b" HTTP/1.1")


def request_lines():
    for version in (b"HTTP/1.2", b"HTTP/2.0", b"HTTP/0.9", b"http/1.1", b"HTTP/1", b"HTTP/11", b"HTTP/1.1x", b"HTTP/ 1.1", b"HTTP/1.1\x00", b"HTTPS/1.1", b"1.1", b"HTTP/1.10", b"HTTP/-1.1"):
        yield f"version {version!r}", post(line=b"POST " + PATH + b" " + version)
    yield "no version", post(line=b"POST " + PATH)
    for method in (b"PO ST", b"", b"POST\x00", b"P(ST", b"POST,", b"\tPOST", b"P\xc3\x96ST", b"POST:", b"<POST>"):
        yield f"method {method!r}", post(line=method + b" " + PATH + b" HTTP/1.1")
    for target in (b"", b"v1/chat/completions", b"*", PATH + b"#x", PATH + b" x", PATH + b"\tx", PATH + b"\x00", PATH + b"\x7f", PATH + b"\r", b"/v1/../v1/chat/completions",
                   b"/v1/./chat/completions", b"//v1/chat/completions", b"/v1//chat/completions", b"\\v1\\chat", b"/v1/%2e%2e/v1/chat/completions", PATH + b"%00", PATH + b"/..", b"/V1/CHAT/COMPLETIONS", PATH + b"%0d%0ax: y"):
        yield f"target {target!r}", post(line=b"POST " + target + b" HTTP/1.1")
    yield "two spaces", post(line=b"POST  " + PATH + b" HTTP/1.1")
    yield "tabs for spaces", post(line=b"POST\t" + PATH + b"\tHTTP/1.1")
    yield "line feeds alone", post().replace(b"\r\n", b"\n")
    yield "carriage returns alone", post().replace(b"\r\n", b"\r")
    yield "CONNECT", b"CONNECT h:80 HTTP/1.1\r\nHost: h:80\r\n\r\n"
    yield "TRACE", b"TRACE / HTTP/1.1\r\nHost: h\r\n\r\n"
    yield "HTTP/2 in plain text", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    yield "TLS", bytes.fromhex("160301020001000001fc0303") + bytes(500)
    yield "header of the PROXY protocol", b"PROXY TCP4 203.0.113.1 10.0.0.1 1 2\r\n" + post()
    yield "upgrade to HTTP/2 of nothing", b"\x00" * 64


CONTROLS = [bytes([at]) for at in (*range(32), 127)]


def controls():
    """Control bytes within the parts of a head."""
    for byte in CONTROLS:
        yield f"byte {byte!r} in a host", post(host=b"Host: h" + byte + b"x\r\n")
        yield f"byte {byte!r} in a target", post(line=b"POST " + PATH + byte + b"x HTTP/1.1")
        yield f"byte {byte!r} in a method", post(line=b"PO" + byte + b"ST " + PATH + b" HTTP/1.1")


def fields():
    for at in [*range(32), 127]:
        byte = bytes([at])
        if byte not in b"\t":
            # A line end within a value begins another line, which is none.
            yield f"byte {byte!r} in a value", post(LENGTH + b"x-a: b" + byte + b"c\r\n")
        yield f"byte {byte!r} in a name", post(LENGTH + b"x" + byte + b"a: b\r\n")
    for byte in b' "(),/;<=>?@[\\]{}\x80\xff':
        yield f"byte {bytes([byte])!r} in a name", post(LENGTH + b"x" + bytes([byte]) + b"a: b\r\n")
    yield "line without a colon", post(LENGTH + b"x-a\r\n")
    yield "empty name", post(LENGTH + b": b\r\n")
    yield "space before the colon", post(LENGTH + b"x-a : b\r\n")
    yield "folded line", post(LENGTH + b"x-a: b\r\n c\r\n")
    yield "folded by a tab", post(LENGTH + b"x-a: b\r\n\tc\r\n")
    yield "first line folded", post(line=b"POST %s HTTP/1.1\r\n x-a: b" % PATH)
    for end in (b"\n", b"\r", b"\n\r", b"\r\r\n"):
        yield f"line ended by {end!r}", post(LENGTH + b"x-a: b" + end)
    yield "101 lines", post(LENGTH + b"".join(b"x-%d: v\r\n" % at for at in range(98)))
    yield "500 lines", post(LENGTH + b"".join(b"x-%d: v\r\n" % at for at in range(497)))
    yield "head of 80 KiB", post(LENGTH + b"".join(b"x-%d: %s\r\n" % (at, b"v" * 4096) for at in range(20)))
    yield "one line of 80 KiB", post(LENGTH + b"x-a: " + b"v" * 81920 + b"\r\n")
    yield "target of 80 KiB", post(line=b"POST " + PATH + b"?" + b"x" * 81920 + b" HTTP/1.1")


def served():
    """Unusual requests that mean the same to every reader."""
    yield "plain", post()
    yield "chunks", post(CHUNKED, CHUNKS)
    yield "chunks of a byte", post(CHUNKED, b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n")
    yield "size in upper case with zeros", post(CHUNKED, b"000%X\r\n%s\r\n000\r\n\r\n" % (len(BODY), BODY))
    yield "an extension", post(CHUNKED, b'%x;a="b"\r\n%s\r\n0\r\n\r\n' % (len(BODY), BODY))
    yield "trailers", post(CHUNKED, b"%x\r\n%s\r\n0\r\nx-t: v\r\n\r\n" % (len(BODY), BODY))
    yield "length with zeros", post(b"Content-Length: 00%d\r\n" % len(BODY))
    yield "spaces around a value", post(b"Content-Length:  %d \t\r\n" % len(BODY))
    yield "a tab in a value", post(LENGTH + b"x-a: b\tc\r\n")
    yield "bytes beyond ASCII in a value", post(LENGTH + b"x-a: \xc3\xa4\xff\r\n")
    yield "absolute target", post(line=b"POST http://h%s HTTP/1.1" % PATH)
    yield "a query", post(line=b"POST %s?a=/../b HTTP/1.1" % PATH)
    yield "names in any case", post(b"cOnTeNt-LeNgTh: %d\r\n" % len(BODY))
    yield "an empty line before", b"\r\n" + post()
    yield "a host with a port", post(host=b"Host: h:8080\r\n")
    yield "an address as host", post(host=b"Host: [::1]:80\r\n")
    yield "HTTP/1.0", post(line=b"POST %s HTTP/1.0" % PATH)
    yield "expectation", post(LENGTH + b"Expect: 100-continue\r\n")
    yield "100 lines", post(LENGTH + b"".join(b"x-%d: v\r\n" % at for at in range(97)))
    yield "hop by hop lines", post(LENGTH + b"Connection: close, x-a\r\nx-a: b\r\nTE: trailers\r\nProxy-Connection: close\r\n")


class Edge:
    """A gateway with its strict server, and the canary on another connection."""

    def __init__(self, node, server):
        self.node, self.server = node, server
        self.numbers = itertools.count()

    def canary(self):
        """Whether another client gets the answer to its own request; what it adds to the server is taken back."""
        nonce = f"canary-{next(self.numbers)}"
        status, answer = self.node.ask("POST", PATH.decode(), json.loads(body_of(nonce)), timeout=LIMIT_SECS)
        self.server.seen = [one for one in self.server.seen if nonce.encode() not in one[2]]
        return status == 200 and answer["choices"][0]["message"]["content"] == nonce

    def send(self, text):
        """All that comes back until the gateway closes; None when it does not."""
        with socket.create_connection(("127.0.0.1", self.node.port), timeout=LIMIT_SECS) as client:
            # The gateway may have refused and closed before all of it is sent. The sending side stays open: its end is a
            # client's departure, which is not answered.
            with contextlib.suppress(OSError):
                client.sendall(text)
            received = b""
            while True:
                try:
                    more = client.recv(65536)
                except TimeoutError:
                    return None
                except OSError:
                    return received
                if not more:
                    return received
                received += more


def statuses(received):
    return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3}) ", received or b"") if code != b"100"]


def refused(edge, name, text):
    """Fault of a case that must be refused; none when it was."""
    received = edge.send(text)
    if received is None:
        return "no end within the limit"
    codes = statuses(received)
    if len(codes) != 1 or any(not 400 <= code < 500 for code in codes):
        return f"answered {codes}"
    if edge.server.seen:
        return f"the server got {edge.server.seen[:1]}"
    return None if edge.canary() else "the canary died"


def answered(edge, _, text):
    """Fault of a case that must be served."""
    with socket.create_connection(("127.0.0.1", edge.node.port), timeout=LIMIT_SECS) as client:
        client.sendall(text)
        received = b""
        with contextlib.suppress(OSError):
            while b'"usage"' not in received and (more := client.recv(65536)):
                received += more
    seen, edge.server.seen = edge.server.seen, []
    if statuses(received) != [200] or b'"content":"case"' not in received.replace(b": ", b":"):
        return f"answered {received[:200]}"
    if len(seen) != 1 or not seen[0][0] or json.loads(seen[0][2])["messages"] != json.loads(BODY)["messages"]:
        return f"the server got {seen}"
    return None if edge.canary() else "the canary died"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/debug/infergate")
    options = parser.parse_args()
    table = Table()
    port = free_port()
    server = StrictServer(("127.0.0.1", port), Strict)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    text = f"""anonymous: allow
limits: {{ header_timeout_secs: 5 }}
timeouts: {{ request_body_idle_secs: 5, keepalive_secs: 5 }}
models: [{{ id: m, task: text-generation, backend: openai, endpoints: [{{ url: "http://127.0.0.1:{port}", max_concurrent_requests: 4 }}] }}]
"""
    with gateway(options.binary, text) as node:
        edge = Edge(node, server)
        until("the gateway serves", edge.canary, LIMIT_SECS)
        for kind, cases, judge in [
            ("length against encoding", both_lengths(), refused),
            ("lengths", lengths(), refused),
            ("chunks", chunks(), refused),
            ("hosts", hosts(), refused),
            ("request lines", request_lines(), refused),
            ("control bytes", controls(), refused),
            ("fields", fields(), refused),
            ("unusual and right", served(), answered),
        ]:
            good, count = 0, 0
            for name, text in cases:
                fault = judge(edge, name, text)
                server.seen = []
                count += 1
                good += fault is None
                if fault:
                    table.row(f"{kind}: {name}", fault, False)
            table.row(f"{kind}, cases", f"{good} of {count}", good == count)
        table.row("the gateway lives", node.process.poll(), node.process.poll() is None)
    return table.finish()


if __name__ == "__main__":
    sys.exit(main())
