"""A gateway whose `public_url` is https, behind a TLS relay: file outputs are URLs there. Not a test itself."""

import hashlib
import json
import pathlib
import shutil

from outside import free_ports, running

KEY = "secure-key"
HERE = pathlib.Path(__file__).resolve().parent


def config(folder, client, admin, image, secure):
    """The configuration in JSON, which is YAML too."""
    server = {"url": f"http://127.0.0.1:{image}", "max_concurrent_requests": 8}
    return {
        "listen": {
            "clients": [{"address": f"127.0.0.1:{client}"}],
            "admin": {"address": f"127.0.0.1:{admin}"},
        },
        "public_url": f"https://localhost:{secure}",
        "accounts": [{"id": "secure", "api_keys_sha256": [hashlib.sha256(KEY.encode()).hexdigest()]}],
        "state_dir": str(folder / "secure-state"),
        "jobs": {},
        "models": [
            {"id": "acme/image", "task": "text-to-image", "backend": "http", "endpoints": [server]}
        ],
        "events": {"file": {"path": str(folder / "secure-events.jsonl")}},
    }


def secure_gateway(binary, folder, stack, simulate, python):
    """Starts gateway, simulated server and relay; the environment that names them."""
    client, admin, image, secure, ready = free_ports(5)
    authority = folder / "secure-ca.pem"
    shutil.rmtree(folder / "secure-state", ignore_errors=True)
    options = ("--dialect", "http", "--task", "text-to-image", "--ttft-ms", "0")
    stack.enter_context(simulate(binary, "secure-image", image, *options))
    file = folder / "secure.yaml"
    file.write_text(json.dumps(config(folder, client, admin, image, secure)))
    stack.enter_context(
        running(
            [binary, "serve", "--config", file],
            folder / "secure.log",
            f"http://127.0.0.1:{admin}/readyz",
            "infergate serve behind TLS",
        )
    )
    stack.enter_context(
        running(
            [python, HERE / "tls_relay.py", secure, ready, client, authority],
            folder / "tls_relay.log",
            f"http://127.0.0.1:{ready}/",
            "the TLS relay",
        )
    )
    return {"SECURE_URL": f"https://localhost:{secure}", "SECURE_CA": str(authority)}
