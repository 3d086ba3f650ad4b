#!/usr/bin/env python3
"""How soon a request for a cold model starts its process, and how soon one that waits is sent to a server that is ready.

Each round asks for a model that was unloaded. Its process notes when it runs, when it first says that it is ready, and
when the request reaches it. Times are those of the processes, taken from outside the gateway. Standard library only.

    tests/gpu/start.py --binary target/release/infergate [--full]
"""

import collections
import http.server
import json
import pathlib
import random
import sys
import tempfile
import time

from simulated import gpu_section, options_parser

from kit import Table, gateway, quantile, until

# Rounds, and the bounds of the 99th percentiles in ms. Those of the small run say only that nothing hangs.
Size = collections.namedtuple("Size", "rounds started_ms noticed_ms")
QUICK = Size(rounds=8, started_ms=2000, noticed_ms=2000)
FULL = Size(rounds=200, started_ms=20, noticed_ms=30)
# A server becomes ready so long after it has begun to listen, at most.
LOAD_MAX_SECS = 0.8

Round = collections.namedtuple("Round", "asked started able good reached")


class ModelServer(http.server.BaseHTTPRequestHandler):
    """Is ready a while after its start; writes the moments down."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.note("probed")
        is_ready = time.monotonic() >= self.server.able_at
        if is_ready:
            self.note("good")
        self.answer(200 if is_ready else 503, {"object": "list", "data": []})

    def do_POST(self):
        self.note("reached")
        self.rfile.read(int(self.headers["content-length"]))
        message = {"role": "assistant", "content": "ok"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        self.answer(200, {"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage})

    def note(self, name):
        self.server.moments.setdefault(name, time.time())
        if name == "reached":
            self.server.file.write_text(json.dumps(self.server.moments))

    def answer(self, status, value):
        body = json.dumps(value).encode()
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self.wfile.write(head.encode() + body)

    def log_message(self, *_):
        pass


def serve(port, file):
    """Serves for the life of the process."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), ModelServer)
    load_secs = random.uniform(0, LOAD_MAX_SECS)
    server.able_at = time.monotonic() + load_secs
    server.moments = {"able": time.time() + load_secs}
    server.file = pathlib.Path(file)
    server.serve_forever()


def host(folder):
    """A model whose shell notes the moment of its start, before the server begins."""
    started = f'echo "$EPOCHREALTIME" > {folder}/started; exec "$@"'
    command = ["bash", "--norc", "-c", started, "model", sys.executable, "-SE", __file__, "--serve", "{port}", f"{folder}/moments"]
    process = {"command": command, "parallel": 4, "stop_timeout_secs": 1}
    model = {"id": "m", "task": "text-generation", "backend": "openai", "vram": {"mib": 100}, "process": process}
    gpu = gpu_section(folder, ["sim0"], 8000, ports="11000-11999")
    return f"anonymous: allow\n{gpu}models:\n  - {json.dumps(model)}\n"


def one_round(node, folder):
    """Moments of one load, in seconds."""
    asked = time.time()
    status, answer = node.chat("m")
    if status != 200:
        sys.exit(f"a cold model was not served: {status} {answer}")
    moments = json.loads((folder / "moments").read_text())
    started = float((folder / "started").read_text())
    node.order("m", "unload")
    until("the model has left", lambda: node.slot("m")["state"] == "cold")
    return Round(asked, started, moments["able"], moments["good"], moments["reached"])


def main():
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
    options = options_parser(__doc__, "200 rounds, about 4 minutes").parse_args()
    size = FULL if options.full else QUICK
    table = Table()
    with tempfile.TemporaryDirectory(prefix="infergate-start-") as name:
        folder = pathlib.Path(name)
        with gateway(options.binary, host(folder)) as node:
            node.slot("m")
            rounds = [one_round(node, folder) for _ in range(size.rounds)]

    def figures(what, spans, most):
        spans = [span * 1000 for span in spans]
        p99 = quantile(spans, 0.99)
        text = f"p50 {quantile(spans, 0.5):.1f}, p99 {p99:.1f}, longest {max(spans):.1f} ms of {size.rounds} (at most {most})"
        table.row(what, text, p99 <= most)

    figures("from a request to its process", [it.started - it.asked for it in rounds], size.started_ms)
    figures("from the first good answer to the request at the server", [it.reached - it.good for it in rounds], size.noticed_ms)
    # Probes come every 25 ms in the first second.
    since_able = [it.reached - max(it.able, it.started) for it in rounds]
    figures("from the end of the load to the request at the server", since_able, size.noticed_ms + 25)
    sys.exit(table.finish())


if __name__ == "__main__":
    main()
