"""Gateways as operators run them: one, or two that form a cluster, each started below a tool or alone.

Not a fixture of tests. Configurations differ from the usual ones in rare health checks only, so that little
happens beside the requests.
"""

import contextlib
import hashlib
import os
import pathlib
import signal
import subprocess
import sys
import time

import guests
from scenarios import FULL_MODEL, KEY, MODEL
from traffic import PATIENCE_SECS, ModelServer

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))

from outside import free_ports, get_json, is_ok, until  # noqa: E402

# Under valgrind a start takes ten times as long.
START_LIMIT_SECS = 600
# Role of each plugin: its world in the configuration, and its settings.
PLUGINS = {
    "text-generation": ("task-schema-streaming", "shape: false"),
    "neurons": ("billing-formula", ""),
    "latency": ("routing-policy", ""),
}
# As long as the key that the gateway makes for a process.
ENDPOINT_KEY = "0123456789abcdef0123456789abcdef"
PERMITS = 2048
HOST = """gpu:
  devices: simulated
  simulated: {{ directory: "{folder}/cards", cards: [{{ name: card, total_mib: 4096, pages: 16 }}] }}
  ledger: {{ directory: "{folder}/ledger" }}
"""
WITH_PLUGINS = """    plugins: { task: text-generation, billing: neurons, routing: latency }
    tariff: { cost_per_infer: 0.5, coefficients: { input_tokens: 0.02561, output_tokens: 0.07515 } }
"""
# How often the sizes of the event files are compared, and how often in a row they must not have changed.
SETTLE_EVERY_SECS = 0.05
SETTLED_LOOKS = 6


def plugins_missing(folder):
    """Names of the plugins that are not built in this folder."""
    return [name for name in PLUGINS if not (folder / f"{name}.wasm").is_file()]


def plugins_text(folder):
    lines = ["plugins:"]
    for name, (world, settings) in PLUGINS.items():
        lines.append(
            f'  - {{ name: {name}, world: {world}, file: "{folder / name}.wasm", dev: true,'
            f" settings: {{ {settings} }} }}"
        )
    return "\n".join(lines) + "\n"


def model_text(model, port, permits, capacity, extra, key=None):
    """A model with one endpoint, or with none where there is no port; `capacity` is that of its queue."""
    text = f"  - id: {model}\n    task: text-generation\n    backend: openai\n{extra}"
    text += f"    queue: {{ algorithm: fair, capacity: {capacity} }}\n"
    if port is None:
        return text + "    endpoints: []\n"
    key = f' api_key: "{key}",' if key else ""
    return text + (
        f'    endpoints: [{{ url: "http://127.0.0.1:{port}", max_concurrent_requests: {permits},{key}'
        " health: { interval_secs: 600 } }]\n"
    )


def managed_text(model, extra):
    """A model whose process is the model server of this program."""
    server = pathlib.Path(__file__).resolve().parent / "traffic.py"
    return (
        model_text(model, None, 0, 2, extra)
        + f'    process: {{ command: ["{sys.executable}", "{server}", "{{port}}"], parallel: {PERMITS} }}\n'
        + "    vram: { mib: 1000 }\n    pin: true\n"
    )


class Node:
    """One gateway process and its folder."""

    def __init__(self, folder, name, ports):
        self.folder = folder / name
        self.folder.mkdir(exist_ok=True)
        # In a folder of its own, which the gateway watches: what is written beside it would be work of the watch.
        self.config = self.folder / "config" / "infergate.yaml"
        self.config.parent.mkdir(exist_ok=True)
        self.name = name
        self.clients, self.admin, self.peers, self.gossip = ports
        self.process = None

    def write_config(self, models, plugins, cluster=""):
        key = hashlib.sha256(KEY.encode()).hexdigest()
        peers = cluster and (
            f'  peers: {{ address: "127.0.0.1:{self.peers}", tls: {{ certificate: "{self.folder}/node.pem",'
            f' private_key: "{self.folder}/node-key.pem", client_ca: "{self.folder.parent}/ca.pem" }} }}\n'
        )
        self.config.write_text(
            f'listen:\n  clients: [{{ address: "127.0.0.1:{self.clients}" }}]\n'
            f'  admin: {{ address: "127.0.0.1:{self.admin}" }}\n{peers}{cluster}threads: 1\n'
            f'state_dir: "{self.folder}/state"\n'
            f'events:\n  file: {{ path: "{self.folder}/events.jsonl", max_size_mib: 1024 }}\n'
            f"{plugins}models:\n{models}accounts:\n  - id: acme\n    requests_per_minute: 3600000\n"
            f'    api_keys_sha256: ["{key}"]\n'
        )

    def start(self, binary, prefix):
        log = open(self.folder / "log", "wb")
        keeper = self.folder / guests.OWN_BINARY.decode()
        if not keeper.exists():
            keeper.symlink_to(binary)
        command = [*prefix, str(binary), "serve", "--config", str(self.config)]
        self.process = subprocess.Popen(
            [part.replace("%FOLDER%", str(self.folder)) for part in command],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            cwd=self.folder,
            env={**os.environ, "NO_COLOR": "1"},
        )

    def wait_until_ready(self):
        def is_ready():
            if self.process.poll() is not None:
                tail = (self.folder / "log").read_text(errors="replace")[-3000:]
                raise RuntimeError(f"the gateway ended with {self.process.returncode}:\n{tail}")
            return is_ok(f"http://127.0.0.1:{self.admin}/readyz")

        until(is_ready, "the gateway is ready", START_LIMIT_SECS)

    def has_loaded(self):
        slots = get_json(f"http://127.0.0.1:{self.admin}/gpu")["slots"]
        return [slot["state"] for slot in slots] == ["ready"]

    def knows_other(self):
        state = get_json(f"http://127.0.0.1:{self.admin}/state")
        return any(node.get("proven") for node in state["nodes"])

    def stop(self):
        """Ends the process and waits for it, so that a tool writes its totals."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=PATIENCE_SECS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Gateway:
    """What a client meets: a node, or two of which the other one has the model server."""

    def __init__(self, scenario, folder, plugins_folder):
        self.model_server = ModelServer()
        # Another port for the full model: an endpoint is listed once.
        self.full_server = ModelServer()
        extra = WITH_PLUGINS if scenario.has_plugins else ""
        plugins = plugins_text(plugins_folder) if scenario.has_plugins else ""
        self.is_managed = scenario.is_managed
        if scenario.is_managed:
            plugins += HOST.format(folder=folder)
            served = managed_text(MODEL, extra)
        else:
            key = ENDPOINT_KEY if scenario.is_keyed else None
            served = model_text(MODEL, self.model_server.port, PERMITS, 2, extra, key)
        full = model_text(FULL_MODEL, self.full_server.port, 1, 0, extra)
        if not scenario.is_forwarded:
            self.nodes = [Node(folder, "a1", free_ports(4))]
            self.nodes[0].write_config(served + full, plugins)
        else:
            ports = free_ports(8)
            self.nodes = [Node(folder, "a1", ports[:4]), Node(folder, "a2", ports[4:])]
            certify(folder, self.nodes)
            seeds = ", ".join(f'"127.0.0.1:{node.gossip}"' for node in self.nodes)
            models = (model_text(MODEL, None, 0, 2, extra), served)
            for node, model in zip(self.nodes, models):
                cluster = (
                    f"node: {{ id: {node.name}, site: fra }}\n"
                    f'cluster: {{ gossip: "127.0.0.1:{node.gossip}", seeds: [{seeds}], secret: "a-secret-of-the-cluster" }}\n'
                )
                node.write_config(model, plugins, cluster)
        self.port = self.nodes[0].clients

    @contextlib.contextmanager
    def running(self, binary, prefix=()):
        """Runs every node below the tool whose command line `prefix` is."""
        try:
            for node in self.nodes:
                node.start(binary, prefix)
            for node in self.nodes:
                node.wait_until_ready()
            if self.is_managed:
                until(self.nodes[0].has_loaded, "the model is ready", START_LIMIT_SECS)
            if len(self.nodes) > 1:
                for node in self.nodes:
                    until(node.knows_other, "the nodes know each other", START_LIMIT_SECS)
            yield [node.process.pid for node in self.nodes]
        finally:
            for node in self.nodes:
                node.stop()

    def settle(self):
        """Waits until the events of all requests are written."""
        sizes, looks = None, 0
        while looks < SETTLED_LOOKS:
            now = [
                file.stat().st_size for node in self.nodes for file in node.folder.glob("events*")
            ]
            looks = looks + 1 if now == sizes else 0
            sizes = now
            time.sleep(SETTLE_EVERY_SECS)


def certify(folder, nodes):
    """Writes an authority and a certificate for each node, as docs/configuration.md shows."""

    def openssl(*arguments):
        done = subprocess.run(
            ["openssl", *arguments], cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"openssl {arguments[0]}: {done.stderr[-500:]}")

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *curve, "-days", "30", "-subj", "/CN=count", "-keyout", "ca-key.pem", "-out", "ca.pem")
    for node in nodes:
        own = str(node.folder / "node")
        openssl("req", *curve, "-subj", f"/CN={node.name}", "-addext", f"subjectAltName=DNS:{node.name}",
                "-keyout", f"{own}-key.pem", "-out", f"{own}.csr")
        openssl("x509", "-req", "-in", f"{own}.csr", "-CA", "ca.pem", "-CAkey", "ca-key.pem", "-days", "30",
                "-CAcreateserial", "-copy_extensions", "copy", "-out", f"{own}.pem")

