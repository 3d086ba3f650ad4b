"""The test cluster: gateways and model servers as processes in namespaces, removed by `close`.

Not a judge: counts are read in `counts.py`, promises are checked in `scenario.py`.
"""

import asyncio
import concurrent.futures
import ctypes
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

import provision
from client import NamespaceLoop, http
from topology import (
    ADMIN_PORT,
    BRIDGE,
    NODES,
    SERVERS,
    SERVICE_SECS,
    TOKENS_PER_SEC,
    Failed,
    address,
    say,
    sh,
)

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


class Cluster:
    """Namespaces, certificates and processes, removed by `close`."""

    def __init__(self, binary):
        self.binary = str(binary)
        self.tag = f"igf{os.getpid()}"
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="infergate-cluster-"))
        self.namespaces, self.processes, self.loops = [], {}, {}

    def namespace(self, node):
        return f"{self.tag}-{node}"

    def build(self):
        for name in provision.make_network(self.namespace):
            self.namespaces.append(name)
        for node in (BRIDGE, *NODES):
            self.loops[node] = NamespaceLoop(self.namespace(node))
        provision.certify(self.folder)
        for node in NODES:
            (self.folder / node).mkdir()
            (self.folder / node / "infergate.yaml").write_text(provision.gateway_config(self.folder, node))
            for port in SERVERS:
                self.start(node, f"server-{port}", "simulate", "--address", f"127.0.0.1:{port}",
                           "--concurrency", "64", "--ttft-ms", str(round(SERVICE_SECS * 1000)),
                           "--tokens-per-sec", str(TOKENS_PER_SEC))  # fmt: skip
            self.start_gateway(node)
        self.wait_until_whole()

    def start(self, node, what, *arguments):
        def die_with_parent():
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

        with open(self.folder / node / f"{what}.log", "ab") as log:
            # `ip netns exec` becomes the program: the pid is the program's.
            self.processes[node, what] = subprocess.Popen(
                ["ip", "netns", "exec", self.namespace(node), self.binary, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def start_gateway(self, node):
        self.start(node, "gateway", "serve", "--config", str(self.folder / node / "infergate.yaml"))

    def signal_gateway(self, node, number):
        self.processes[node, "gateway"].send_signal(number)

    def wait_for_exit(self, node, limit=60):
        return self.processes[node, "gateway"].wait(limit)

    def get(self, node, port, path, method="GET", limit=5.0):
        """JSON from a listener in the node's own namespace; none when it does not answer."""
        host = "127.0.0.1" if port in SERVERS else address(node)
        try:
            loop = self.loops[node]
            status, body = loop.call(http(host, port, method, path, limit=limit), limit + 5)
            return (json.loads(body) if body.startswith(b"{") else {}) if status < 300 else None
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
            return None
        except concurrent.futures.TimeoutError:
            return None

    def state(self, node):
        return self.get(node, ADMIN_PORT, "/state")

    def wait_until(self, what, limit, check):
        """Seconds until `check` holds."""
        began = time.monotonic()
        while True:
            if check():
                return time.monotonic() - began
            if time.monotonic() - began > limit:
                raise Failed(f"{what}: not within {limit} s")
            time.sleep(0.1)

    def wait_until_whole(self, limit=60):
        """Waits until every node serves and knows the others."""

        def check(node):
            state = self.state(node)
            others = state["nodes"] if state else []
            fit = [n for n in others if n["proven"] and not n["gone"] and not n["draining"]]
            return len(fit) == len(NODES) - 1 and self.get(node, ADMIN_PORT, "/readyz") is not None

        for node in NODES:
            self.wait_until(f"{node} knows all others", limit, lambda node=node: check(node))

    def add_drop_rule(self, node, rule):
        nft = ("ip", "netns", "exec", self.namespace(node), "nft")
        sh(*nft, "add table inet fault")
        sh(*nft, "add chain inet fault arrives { type filter hook input priority 0; }")
        sh(*nft, f'add rule inet fault arrives iifname "eth0" {rule}')

    def remove_drop_rule(self, node):
        sh("ip", "netns", "exec", self.namespace(node), "nft", "delete", "table", "inet", "fault")

    def close(self, keep):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
        for process in self.processes.values():
            process.wait()
        for loop in self.loops.values():
            loop.end()
        for name in self.namespaces:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        if keep:
            say(f"logs and events are in {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)
