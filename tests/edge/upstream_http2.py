#!/usr/bin/env python3
"""HTTP/2 towards a real server: nginx in front of a simulated one, with few streams on a connection and connections that end.

nginx takes 4 requests at once on a connection, ends each connection after 50 requests (GOAWAY) and after a second of silence,
and is reloaded and restarted under load. Every request is answered, over HTTP/2, and was worked on once: what nginx has
logged is counted against what clients have received. Needs nginx (apt-get install nginx-light) and openssl.

    tests/edge/upstream_http2.py             seconds
    tests/edge/upstream_http2.py --full      20 times as many requests
"""

import argparse
import collections
import concurrent.futures
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "jobs")]

from kit import PATIENCE_SECS, Table, ask, free_port, gateway, simulators, until  # noqa: E402

PERMITS = 16
CLIENTS = 40
STREAMS_OF_CONNECTION = 4
REQUESTS_OF_CONNECTION = 50
IDLE_SECS = 1


class Nginx:
    """nginx behind TLS, with its log of requests."""

    def __init__(self, folder, server):
        self.folder, self.server, self.port = folder, server, free_port()
        self.binary = shutil.which("nginx") or "/usr/sbin/nginx"
        self.log = folder / "requests.log"
        self.certify()
        self.write()
        self.process = None
        self.start()

    def certify(self):
        """An authority, and a certificate of its for `localhost`."""

        def openssl(*arguments):
            subprocess.run(["openssl", *map(str, arguments)], cwd=self.folder, check=True, capture_output=True)

        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        openssl("req", "-x509", *key, "-days", 2, "-subj", "/CN=authority", "-out", "ca.pem", "-keyout", "ca-key.pem")
        openssl("req", *key, "-subj", "/CN=localhost", "-out", "own.csr", "-keyout", "own-key.pem")
        (self.folder / "names").write_text("subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n")
        openssl("x509", "-req", "-in", "own.csr", "-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial", "-days", 2,
                "-extfile", "names", "-out", "own.pem")

    def write(self):
        places = "".join(
            f"  {kind}_temp_path {self.folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        user = "user root;\n" if os.getuid() == 0 else ""
        (self.folder / "nginx.conf").write_text(
            f"""daemon off;
{user}worker_processes 1;
pid {self.folder}/nginx.pid;
error_log {self.folder}/nginx.err warn;
events {{ worker_connections 1024; }}
http {{
  log_format short '$request_method $server_protocol $status $connection';
  access_log {self.log} short;
{places}  upstream server {{ server 127.0.0.1:{self.server}; keepalive 64; }}
  server {{
    listen 127.0.0.1:{self.port} ssl http2;
    http2_max_concurrent_streams {STREAMS_OF_CONNECTION};
    keepalive_requests {REQUESTS_OF_CONNECTION};
    keepalive_timeout {IDLE_SECS}s;
    ssl_certificate {self.folder}/own.pem;
    ssl_certificate_key {self.folder}/own-key.pem;
    location / {{ proxy_pass http://server; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }}
  }}
}}
"""
        )

    def start(self):
        command = [self.binary, "-c", self.folder / "nginx.conf", "-p", self.folder]
        with open(self.folder / "out", "a") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out)

    def stop(self):
        """Ends it once what it works on is answered."""
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(PATIENCE_SECS)

    def reload(self):
        self.process.send_signal(signal.SIGHUP)

    def posts(self):
        """(protocol, status, connection) of each POST so far."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [tuple(line.split()[1:]) for line in lines if line.startswith("POST ")]


class Load:
    """Requests of many clients, half of them streams; how often each answer came, and how long the longest took."""

    def __init__(self, node):
        self.node, self.answers, self.longest = node, collections.Counter(), 0.0
        self.lock = threading.Lock()

    def one(self, number):
        is_stream, begun = number % 2 == 1, time.monotonic()
        try:
            status, answer = self.node.chat("m", tokens=8, timeout=PATIENCE_SECS, stream=is_stream)
            is_whole = "[DONE]" in answer if is_stream else "usage" in answer
            found = "whole" if status == 200 and is_whole else f"{status} {str(answer)[:150]}"
        except (OSError, ValueError) as error:
            found = repr(error)
        with self.lock:
            self.answers[found] += 1
            self.longest = max(self.longest, time.monotonic() - begun)

    def send(self, count):
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(self.one, range(count)))

    @contextlib.contextmanager
    def going_on(self):
        """Requests of all clients from the beginning to the end of the block."""
        over = threading.Event()

        def client(number):
            while not over.is_set():
                self.one(number)

        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            clients = [pool.submit(client, number) for number in range(CLIENTS)]
            try:
                yield
            finally:
                over.set()
            for one in clients:
                one.result()

    def failed(self):
        return {found: count for found, count in self.answers.items() if found != "whole"}


def judge(table, options, node, nginx):
    load = Load(node)
    rounds = 20 if options.full else 1

    def row(name):
        table.row(f"{name}: not whole, of {load.answers.total()}", load.failed() or 0, not load.failed())

    load.send(200 * rounds)
    row(f"{CLIENTS} clients, {PERMITS} permits")
    for _ in range(2 * rounds):
        time.sleep(1.5 * IDLE_SECS)
        load.send(PERMITS)
    row("after pauses in which connections end")
    with load.going_on():
        for _ in range(3 * rounds):
            time.sleep(0.5)
            nginx.reload()
        time.sleep(0.5)
    row("while nginx is reloaded")
    sent = load.answers.total()
    # A line of the log follows the answer.
    until("all of them are in nginx's log", lambda: len(nginx.posts()) >= sent)
    posts = nginx.posts()
    protocols = {protocol for protocol, _, _ in posts}
    table.row("protocols of nginx's log", sorted(protocols), protocols == {"HTTP/2.0"})
    table.row("requests worked on, and sent", f"{len(posts)}, {sent}", len(posts) == sent)
    shares = collections.Counter(connection for _, _, connection in posts)
    most = max(shares.values())
    table.row("requests of a connection, mean and most", f"{len(posts) / len(shares):.1f}, {most}", 1 < most <= REQUESTS_OF_CONNECTION)
    table.row("longest request, seconds", f"{load.longest:.1f}", load.longest < 20)

    before = load.answers["whole"]
    with load.going_on():
        time.sleep(0.5)
        nginx.stop()
        nginx.start()
        until("requests are answered again", lambda: load.answers["whole"] > before + 200)
    told = all(found.startswith(("502", "503")) for found in load.failed())
    table.row("while nginx is restarted: told that it is away", load.failed() or 0, told)
    load.answers.clear()
    until("all are healthy again", lambda: node.chat("m")[0] == 200)
    load.send(100)
    row("after the restart")
    until("permits are given back", lambda: permits_used(node) == 0)
    table.row("permits in use after them", permits_used(node))


def permits_used(node):
    [model] = ask(node.admin, "GET", "/state")[1]["models"]
    return sum(endpoint["permits"]["used"] for endpoint in model["endpoints"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/debug/infergate")
    parser.add_argument("--full", action="store_true", help="20 times as many requests")
    options = parser.parse_args()
    table = Table()
    if not (shutil.which("nginx") or pathlib.Path("/usr/sbin/nginx").exists()):
        table.skip("HTTP/2 towards nginx", "not installed: apt-get install nginx-light")
        return table.finish()
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="infergate-nginx-")))
        speed = ("--ttft-ms", 5, "--tokens-per-sec", 2000, "--concurrency", PERMITS)
        (server,) = stack.enter_context(simulators(options.binary, 1, *speed))
        nginx = Nginx(folder, server)
        stack.callback(nginx.stop)
        endpoint = (
            f'{{ url: "https://localhost:{nginx.port}", max_concurrent_requests: {PERMITS}, http2: auto, '
            f'ca_file: "{folder}/ca.pem" }}'
        )
        text = f"""anonymous: allow
models: [{{ id: m, task: text-generation, backend: openai, queue: {{ capacity: 256 }}, endpoints: [{endpoint}] }}]
"""
        node = stack.enter_context(gateway(options.binary, text))
        until("the gateway serves", lambda: node.chat("m")[0] == 200)
        nginx.log.write_text("")
        judge(table, options, node, nginx)
    return table.finish()


if __name__ == "__main__":
    sys.exit(main())
