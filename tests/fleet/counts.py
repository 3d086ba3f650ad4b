"""Counts of the cluster: forwards, permits, model servers and events. Not a verdict."""

import json
import time

from client import http
from topology import ADMIN_PORT, NODES, SERVERS, address


def forwards(cluster, nodes):
    """Forwards of these nodes so far, by how they ended."""
    counts = {}
    for node in nodes:
        call = http(address(node), ADMIN_PORT, "GET", "/metrics")
        _, text = cluster.loops[node].call(call)
        for line in text.decode().splitlines():
            if line.startswith("infergate_forwards_total{"):
                result = line.split('result="')[1].split('"')[0]
                counts[result] = counts.get(result, 0) + int(float(line.rsplit(" ", 1)[1]))
    return counts


def permits_used(cluster, node):
    state = cluster.state(node)
    if state is None:
        return None
    models = state["models"]
    return sum(e["permits"]["used"] for model in models for e in model["endpoints"])


def servers(cluster):
    """Counts of each model server."""
    return {
        (node, port): cluster.get(node, port, "/sim/stats") for node in NODES for port in SERVERS
    }


def forget_counts(cluster):
    for node in NODES:
        for port in SERVERS:
            cluster.get(node, port, "/sim/stats", "DELETE")


def events(cluster, since):
    """Events after the offsets that `event_offsets` returned."""
    time.sleep(0.5)  # They are written at least every 100 ms.
    events = []
    for node in NODES:
        path = cluster.folder / node / "events.jsonl"
        if path.exists():
            with open(path, "rb") as file:
                file.seek(since.get(node, 0))
                lines = file.read().split(b"\n")[:-1]
            events += [json.loads(line) for line in lines]
    return events


def event_offsets(cluster):
    paths = {node: cluster.folder / node / "events.jsonl" for node in NODES}
    return {node: path.stat().st_size for node, path in paths.items() if path.exists()}
