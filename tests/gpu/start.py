#!/usr/bin/env python3
"""How soon a request for a cold model starts its process, and how soon one that waits is sent to a server that is ready.

Each round asks for a model that was unloaded. Its process notes when it runs, when it first says that it is ready, and
when the request reaches it. Times are those of the processes, taken from outside the gateway. Standard library only.

Where the gateway makes control groups, a start waits for the kernel's move into one, which takes a grace period unless the
tree is mounted with `favordynmods`. Such moves are measured, and their time is allowed.

    tests/gpu/start.py --binary target/release/infergate [--full]
"""

import collections
import http.server
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

from simulated import gpu_section, options_parser

from kit import Table, gateway, quantile, until

# Rounds, and the bounds of the 99th percentiles in ms. Those of the small run say only that nothing hangs.
Size = collections.namedtuple("Size", "rounds plain_rounds started_ms noticed_ms")
QUICK = Size(rounds=8, plain_rounds=2, started_ms=2000, noticed_ms=2000)
FULL = Size(rounds=200, plain_rounds=200, started_ms=20, noticed_ms=30)
# A server becomes ready so long after it has begun to listen, at most.
LOAD_MAX_SECS = 0.8
# Moves of a process into a control group, and the pause before each.
MOVES = 40
MOVE_PAUSE_SECS = 0.2

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


def own_group():
    """Directory of the control group of this process; none where there is none."""
    groups = pathlib.Path("/proc/self/cgroup").read_text().splitlines()
    mounts = [line.split() for line in pathlib.Path("/proc/self/mounts").read_text().splitlines()]
    own = next((line[4:] for line in groups if line.startswith("0::/")), None)
    root = next((mount[1] for mount in mounts if mount[2] == "cgroup2"), None)
    return None if own is None or root is None else pathlib.Path(root, own)


def move_secs():
    """Seconds that the kernel needs to move a process into a new control group; 0 where none can be made.

    A move is quick for some time after another.
    """
    time.sleep(MOVE_PAUSE_SECS)
    own = own_group()
    if own is None or not os.access(own, os.W_OK):
        return 0.0
    group = own / f"start-{os.getpid()}"
    group.mkdir()
    process = subprocess.Popen(["sleep", "60"])
    try:
        begun = time.monotonic()
        (group / "cgroup.procs").write_text(str(process.pid))
        return time.monotonic() - begun
    finally:
        process.kill()
        process.wait()
        until("the group is empty", lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


def host(folder, cgroup):
    """A model whose shell notes the moment of its start, before the server begins."""
    started = f'echo "$EPOCHREALTIME" > {folder}/started; exec "$@"'
    command = ["bash", "--norc", "-c", started, "model", sys.executable, "-SE", __file__, "--serve", "{port}", f"{folder}/moments"]
    process = {"command": command, "parallel": 4, "stop_timeout_secs": 1}
    model = {"id": "m", "task": "text-generation", "backend": "openai", "vram": {"mib": 100}, "process": process}
    gpu = gpu_section(folder, ["sim0"], 8000, ports="11000-11999", cgroup=cgroup)
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


def rounds_with(options, cgroup, count):
    """So many rounds of a gateway with this `gpu.cgroup`."""
    with tempfile.TemporaryDirectory(prefix="infergate-start-") as name:
        folder = pathlib.Path(name)
        with gateway(options.binary, host(folder, cgroup)) as node:
            node.slot("m")
            # The first start reads what is not in memory yet.
            one_round(node, folder)
            return [one_round(node, folder) for _ in range(count)]


def main():
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
    options = options_parser(__doc__, "400 rounds, about 4 minutes").parse_args()
    size = FULL if options.full else QUICK
    table = Table()
    plain = rounds_with(options, "off", size.plain_rounds)
    rounds = rounds_with(options, "auto", size.rounds)
    move_ms = 1000 * quantile([move_secs() for _ in range(MOVES if options.full else 2)], 0.99)

    def figures(what, spans, most):
        spans = [span * 1000 for span in spans]
        p99 = quantile(spans, 0.99)
        text = f"p50 {quantile(spans, 0.5):.1f}, p99 {p99:.1f}, longest {max(spans):.1f} ms of {len(spans)} (at most {most:.1f})"
        table.row(what, text, p99 <= most)

    figures("from a request to its process, without a control group", [it.started - it.asked for it in plain], size.started_ms)
    what = f"the same with one, into which a move takes {move_ms:.1f} ms (p99)"
    figures(what, [it.started - it.asked for it in rounds], size.started_ms + move_ms)
    figures("from the first good answer to the request at the server", [it.reached - it.good for it in rounds], size.noticed_ms)
    # Probes come every 25 ms in the first second.
    since_able = [it.reached - max(it.able, it.started) for it in rounds]
    figures("from the end of the load to the request at the server", since_able, size.noticed_ms + 25)
    sys.exit(table.finish())


if __name__ == "__main__":
    main()
