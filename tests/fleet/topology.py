"""Names, addresses, ports and rates of the test cluster. Not a configuration of the gateway."""

import pathlib
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
NODES = ("a", "b", "c")
BRIDGE = "bridge"  # The namespace of the bridge; clients that choose among nodes stand here.
CLIENTS_PORT, ADMIN_PORT, PEERS_PORT, GOSSIP_PORT = 8080, 9090, 7070, 7071
SERVERS = (9001, 9002)
PERMITS = 4
SERVICE_SECS = 0.3
STREAM_SECS = 2.0
TOKENS_PER_SEC = 20
# Requests a second that one node's servers can do.
NODE_CAPACITY = len(SERVERS) * PERMITS / SERVICE_SECS
CAPACITY = NODE_CAPACITY * len(NODES)
CLIENT_PATIENCE_SECS = 40
HEALED_SECS = 5


class Failed(Exception):
    """The cluster could not be set up or did not come back: no promise can be checked."""


def say(text):
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def address(node):
    return f"10.77.0.{NODES.index(node) + 1}" if node in NODES else "10.77.0.254"


def sh(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
