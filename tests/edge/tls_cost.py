#!/usr/bin/env python3
"""What TLS and HTTP/2 cost: processor time of the gateway for a request and for a handshake, beside HAProxy and nginx.

Each proxy stands in front of the same simulated server, which answers at once. Loads are h2load's (apt: nghttp2-client), new
connections openssl's; rounds of the proxies and protocols take turns, and the least figure of each counts. A proxy that is not
installed is left out by name.

    tests/edge/tls_cost.py                   a row for each protocol and proxy (3 minutes)
    tests/edge/tls_cost.py --rounds 1 --requests 500     whether it works (seconds)
"""

import argparse
import contextlib
import json
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "jobs")]

from kit import Table, free_port, gateway, simulators, until  # noqa: E402
from slow import certificate, model  # noqa: E402

PATH = "/v1/chat/completions"
CLIENTS = 8
PERMITS = 64
REQUEST_BYTES = 2000
# Seconds of one round of handshakes.
HANDSHAKE_SECS = 3

# Most that a request costs, of one over HTTP/1 in clear text by the same proxy.
TLS_MAX_RATIO = 1.3
HTTP2_MAX_RATIO = 1.5
# Most that a handshake costs, of HAProxy's.
HANDSHAKE_MAX_RATIO = 1.2

# Listener, scheme and further arguments of h2load.
PROTOCOLS = {
    "HTTP/1": ("plain", "http", ["--h1"]),
    "HTTP/1 under TLS": ("sealed", "https", ["--h1"]),
    "HTTP/2": ("clear", "http", []),
    "HTTP/2 under TLS": ("sealed", "https", []),
}


def processor_micros(pid):
    """Processor time of a process, user and system, microseconds."""
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1000


class Proxy:
    """A proxy that runs: the ports of its listeners for HTTP/1, for HTTP/2 in clear text, and for both under TLS."""

    def __init__(self, name, pid, plain, clear, sealed):
        self.name, self.pid = name, pid
        self.ports = {"plain": plain, "clear": clear, "sealed": sealed}

    def request(self, protocol, count, body):
        """Microseconds a request takes over kept connections."""
        listener, scheme, how = PROTOCOLS[protocol]
        url = f"{scheme}://127.0.0.1:{self.ports[listener]}{PATH}"
        command = ["h2load", *how, "-n", count, "-c", CLIENTS, "-m", 1, "-d", body, "-H", "content-type: application/json", url]
        before = processor_micros(self.pid)
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
        used = processor_micros(self.pid) - before
        found = re.search(r"status codes: (\d+) 2xx", done.stdout)
        if not found or int(found.group(1)) != count:
            raise SystemExit(f"{self.name}, {protocol}: not all were answered with 200\n{done.stdout}{done.stderr}")
        return used / count

    def handshake(self, secs):
        """Microseconds that a new connection with a whole handshake takes, without a request."""
        command = ["openssl", "s_time", "-connect", f"127.0.0.1:{self.ports['sealed']}", "-new", "-time", str(secs)]
        before = processor_micros(self.pid)
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        used = processor_micros(self.pid) - before
        found = re.search(r"(\d+) connections in", done.stdout)
        if not found or int(found.group(1)) == 0:
            raise SystemExit(f"{self.name}: no handshake\n{done.stdout}{done.stderr}")
        return used / int(found.group(1))


@contextlib.contextmanager
def process(name, arguments, *ports):
    """A proxy started by these arguments, for as long as the block lasts."""
    running = subprocess.Popen([str(word) for word in arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def listens():
        if running.poll() is not None:
            raise SystemExit(f"{name} ended: {running.stderr.read()[-2000:]}")
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", ports[0])).close()
            return True

    try:
        until(f"{name} listens", listens)
        yield Proxy(name, running.pid, *ports)
    finally:
        running.kill()
        running.wait()


def haproxy(folder, server, own, key):
    plain, tls = free_port(), free_port()
    both = folder / "haproxy.pem"
    both.write_text(pathlib.Path(own).read_text() + pathlib.Path(key).read_text())
    file = folder / "haproxy.cfg"
    file.write_text(
        f"""global
  nbthread 1
defaults
  mode http
  timeout connect 2s
  timeout client 60s
  timeout server 60s
  http-reuse always
frontend plain
  bind 127.0.0.1:{plain}
  default_backend server
frontend sealed
  bind 127.0.0.1:{tls} ssl crt {both} alpn h2,http/1.1
  default_backend server
backend server
  server s 127.0.0.1:{server}
"""
    )
    return process("HAProxy", ["haproxy", "-db", "-f", file], plain, plain, tls)


def nginx(folder, server, own, key):
    plain, clear, tls = free_port(), free_port(), free_port()
    place = 'proxy_pass http://server; proxy_http_version 1.1; proxy_set_header Connection "";'
    file = folder / "nginx.conf"
    places = "".join(f"  {kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    # One process: with a master and a worker the figures would be split over two.
    file.write_text(
        f"""daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/nginx.err crit;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  keepalive_requests 100000000;
{places}  upstream server {{ server 127.0.0.1:{server}; keepalive 1024; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{plain};
    listen 127.0.0.1:{clear} http2;
    listen 127.0.0.1:{tls} ssl http2;
    ssl_certificate {own};
    ssl_certificate_key {key};
    location / {{ {place} }}
  }}
}}
"""
    )
    return process("nginx", ["nginx", "-c", file, "-p", folder], plain, clear, tls)


@contextlib.contextmanager
def infergate(binary, server, own, key):
    """The gateway with a plain listener, which takes HTTP/2 too, and one with TLS."""
    tls = free_port()
    more = f'http2: clear }}, {{ address: "127.0.0.1:{tls}", tls: {{ certificate: "{own}", private_key: "{key}" }}'
    text = f"anonymous: allow\nlimits: {{ connections_per_client: 16384 }}\n{model(server, PERMITS)}"
    with gateway(binary, text, more) as node:
        until("the gateway serves", lambda: node.chat("m")[0] == 200)
        yield Proxy("infergate", node.process.pid, node.port, node.port, tls)


def measure(proxies, options, body):
    """The least figure of each proxy: by protocol, and of a handshake."""
    least = {}
    for _ in range(options.rounds):
        for proxy in proxies:
            for protocol in PROTOCOLS:
                figure = proxy.request(protocol, options.requests, body)
                least[proxy.name, protocol] = min(figure, least.get((proxy.name, protocol), figure))
            figure = proxy.handshake(options.handshake_secs)
            least[proxy.name, "handshake"] = min(figure, least.get((proxy.name, "handshake"), figure))
    return least


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/infergate", help="the gateway (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which the least counts (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=10_000, help="requests of a round (default: %(default)s)")
    parser.add_argument("--handshake-secs", type=int, default=HANDSHAKE_SECS, help="seconds of handshakes of a round (default: %(default)s)")
    options = parser.parse_args()
    table = Table()
    if not shutil.which("h2load"):
        table.skip("what TLS and HTTP/2 cost", "h2load is not installed: apt-get install nghttp2-client")
        return table.finish()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="infergate-edge-"))
    own, key = certificate(folder)
    body = folder / "body.json"
    messages = [{"role": "user", "content": "x" * REQUEST_BYTES}]
    body.write_text(json.dumps({"model": "m", "messages": messages, "max_tokens": 100}))
    with contextlib.ExitStack() as stack:
        simulated = ["--ttft-ms", 0, "--tokens-per-sec", 0, "--concurrency", PERMITS]
        (server,) = stack.enter_context(simulators(options.binary, 1, *simulated))
        proxies = [stack.enter_context(infergate(options.binary, server, own, key))]
        for name, start in (("haproxy", haproxy), ("nginx", nginx)):
            if shutil.which(name):
                proxies.append(stack.enter_context(start(folder, server, own, key)))
            else:
                table.skip(name, f"not installed: apt-get install {name}")
        least = measure(proxies, options, body)
    for proxy in proxies:
        figures = [f"{what} {micros:.1f}" for (name, what), micros in least.items() if name == proxy.name]
        table.row(f"{proxy.name}, µs of processor time", ", ".join(figures))
    clear = least["infergate", "HTTP/1"]
    for protocol, most in (("HTTP/1 under TLS", TLS_MAX_RATIO), ("HTTP/2", HTTP2_MAX_RATIO), ("HTTP/2 under TLS", HTTP2_MAX_RATIO)):
        ratio = least["infergate", protocol] / clear
        table.row(f"a request over {protocol}, of one over HTTP/1, at most {most}", f"{ratio:.2f}", ratio <= most)
    if ("HAProxy", "handshake") in least:
        ratio = least["infergate", "handshake"] / least["HAProxy", "handshake"]
        table.row(f"a handshake, of HAProxy's, at most {HANDSHAKE_MAX_RATIO}", f"{ratio:.2f}", ratio <= HANDSHAKE_MAX_RATIO)
    return table.finish()


if __name__ == "__main__":
    sys.exit(main())
