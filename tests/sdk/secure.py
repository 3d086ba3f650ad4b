"""A gateway with a listener of TLS, whose `public_url` is https: file outputs are URLs there. Not a test itself."""

import hashlib
import json
import pathlib
import shutil
import subprocess

from outside import free_ports, running

KEY = "secure-key"
HERE = pathlib.Path(__file__).resolve().parent


def config(folder, secure, admin, image):
    """The configuration in JSON, which is YAML too."""
    server = {"url": f"http://127.0.0.1:{image}", "max_concurrent_requests": 8}
    tls = {"certificate": str(folder / "certificate.pem"), "private_key": str(folder / "key.pem")}
    return {
        "listen": {
            "clients": [{"address": f"127.0.0.1:{secure}", "tls": tls}],
            "admin": {"address": f"127.0.0.1:{admin}"},
        },
        "public_url": f"https://127.0.0.1:{secure}",
        "accounts": [{"id": "secure", "api_keys_sha256": [hashlib.sha256(KEY.encode()).hexdigest()]}],
        "state_dir": str(folder / "state"),
        "jobs": {},
        "models": [
            {"id": "acme/image", "task": "text-to-image", "backend": "http", "endpoints": [server]},
            {"id": "live", "task": "dumb-pipe", "backend": "http", "endpoints": [server]},
        ],
        "events": {"file": {"path": str(folder / "events.jsonl")}},
    }


def secure_gateway(binary, folder, stack, simulate, python):
    """Starts gateway and simulated server; the environment that names them."""
    secure, admin, image = free_ports(3)
    folder = folder / "secure"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    subprocess.run([python, HERE / "authority.py", folder], check=True)
    options = ("--dialect", "http", "--task", "text-to-image", "--ttft-ms", "0")
    stack.enter_context(simulate(binary, "secure-image", image, *options))
    file = folder / "infergate.yaml"
    file.write_text(json.dumps(config(folder, secure, admin, image)))
    stack.enter_context(
        running(
            [binary, "serve", "--config", file],
            folder / "gateway.log",
            f"http://127.0.0.1:{admin}/readyz",
            "infergate serve with TLS",
        )
    )
    return {"SECURE_URL": f"https://127.0.0.1:{secure}", "SECURE_CA": str(folder / "ca.pem")}
