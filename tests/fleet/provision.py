"""Namespaces, certificates and configuration files of the nodes. Processes are started in `cluster.py`."""

import json

from topology import (
    ADMIN_PORT,
    BRIDGE,
    CLIENTS_PORT,
    GOSSIP_PORT,
    NODES,
    PEERS_PORT,
    PERMITS,
    SERVERS,
    address,
    sh,
)


def make_network(namespace):
    """Makes the namespaces and the bridge; yields each name at once, so that it can be removed."""
    for node in (BRIDGE, *NODES):
        name = namespace(node)
        sh("ip", "netns", "add", name)
        yield name
        sh("ip", "-n", name, "link", "set", "lo", "up")
    bridge = namespace(BRIDGE)
    sh("ip", "-n", bridge, "link", "add", "bridge", "type", "bridge")
    sh("ip", "-n", bridge, "addr", "add", f"{address(BRIDGE)}/24", "dev", "bridge")
    sh("ip", "-n", bridge, "link", "set", "bridge", "up")
    for node in NODES:
        name = namespace(node)
        sh("ip", "-n", bridge, "link", "add", f"to-{node}", "type", "veth", "peer", "name",
           "eth0", "netns", name)  # fmt: skip
        sh("ip", "-n", bridge, "link", "set", f"to-{node}", "master", "bridge", "up")
        sh("ip", "-n", name, "addr", "add", f"{address(node)}/24", "dev", "eth0")
        sh("ip", "-n", name, "link", "set", "eth0", "up")


def certify(folder):
    """Writes a certificate authority, and a certificate and key for each node."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    ca, ca_key = folder / "ca.pem", folder / "ca-key.pem"
    sh("openssl", "req", "-x509", *key, "-days", "2", "-subj", "/CN=cluster", "-keyout",
       str(ca_key), "-out", str(ca))  # fmt: skip
    for node in NODES:
        request, path = folder / f"{node}.csr", str(folder / node)
        sh("openssl", "req", *key, "-subj", f"/CN={node}", "-addext",
           f"subjectAltName=DNS:{node}", "-keyout", f"{path}-key.pem", "-out",
           str(request))  # fmt: skip
        sh("openssl", "x509", "-req", "-in", str(request), "-CA", str(ca), "-CAkey",
           str(ca_key), "-CAcreateserial", "-days", "2", "-copy_extensions", "copy", "-out",
           f"{path}.pem")  # fmt: skip


def gateway_config(folder, node):
    """The configuration file of a node, as text."""
    here, path = address(node), folder / node
    endpoints = [
        {"url": f"http://127.0.0.1:{port}", "max_concurrent_requests": PERMITS}
        for port in SERVERS
    ]
    config = {
        "state_dir": str(path / "state"),
        "listen": {
            "clients": [{"address": f"{here}:{CLIENTS_PORT}"}],
            "admin": {"address": f"{here}:{ADMIN_PORT}"},
            "peers": {
                "address": f"{here}:{PEERS_PORT}",
                "tls": {
                    "certificate": f"{path}.pem",
                    "private_key": f"{path}-key.pem",
                    "client_ca": str(folder / "ca.pem"),
                },
            },
        },
        "node": {"id": node, "site": "here"},
        "cluster": {
            "gossip": f"{here}:{GOSSIP_PORT}",
            "seeds": [f"{address(other)}:{GOSSIP_PORT}" for other in NODES],
            "secret": "known-to-this-cluster-only",
        },
        "anonymous": "allow",
        "timeouts": {"drain_delay_secs": 1, "drain_timeout_secs": 30},
        "events": {"file": {"path": str(path / "events.jsonl")}},
        "models": [
            {
                "id": "m",
                "task": "text-generation",
                "backend": "openai",
                "endpoints": endpoints,
                "tariff": {"cost_per_infer": 1.0},
            }
        ],
    }
    return json.dumps(config, indent=1)  # JSON is YAML.
