"""A gateway with a model for each of the 14 tasks, served in every way there is, and its simulated
servers: what `cloudflare_tasks.py` asks.

Not a test itself. A model is called `@cf/WAY/TASK`; a way is who checks the input and shapes the
answer, in front of which kind of server: `builtin` and `wasm` (the guests in `plugins/dist`) before
plain HTTP servers; `openai`, `tgi`, `llama-server` and `tei` before servers of that kind; and
`openai-checked` and `tei-checked` where the task's schema is enforced before these.
"""

import hashlib
import json

from outside import ROOT, free_ports, running

GUESTS = ROOT / "plugins" / "dist"
KEY = "hall-key"
# A debug build compiles 14 guests before it is ready, which takes a busy machine a minute.
READY_LIMIT_SECS = 600

# Slug and title of each task.
TASKS = {
    "text-generation": "Text Generation",
    "text-classification": "Text Classification",
    "text-embeddings": "Text Embeddings",
    "text-to-image": "Text-to-Image",
    "text-to-speech": "Text-to-Speech",
    "automatic-speech-recognition": "Automatic Speech Recognition",
    "image-classification": "Image Classification",
    "image-to-text": "Image-to-Text",
    "image-text-to-text": "Image-Text-to-Text",
    "object-detection": "Object Detection",
    "translation": "Translation",
    "summarization": "Summarization",
    "multimodal-embeddings": "Multimodal Embeddings",
    "dumb-pipe": "Dumb Pipe",
}
# Their servers may stream, so their guests are of the other world.
STREAMING = ("text-generation", "image-to-text", "image-text-to-text")

# Way, task, kind of server; with a schema enforced or as the face alone checks it.
NATIVE = (
    ("openai", "text-generation", "openai", False),
    ("openai-checked", "text-generation", "openai", True),
    ("tgi", "text-generation", "tgi", False),
    ("llama-server", "text-generation", "llama-server", False),
    ("openai", "text-embeddings", "openai", False),
    ("tei", "text-embeddings", "tei", False),
    ("tei-checked", "text-embeddings", "tei", True),
)


def are_guests_built():
    return all((GUESTS / f"{task}.wasm").exists() for task in TASKS)


def model(way, task, backend, port, plugin=None):
    """A model as the configuration spells it, in JSON, which is YAML too."""
    spec = {
        "id": f"@cf/{way}/{task}",
        "task": task,
        "backend": backend,
        "endpoints": [{"url": f"http://127.0.0.1:{port}", "max_concurrent_requests": 8}],
    }
    if plugin:
        spec["plugins"] = {"task": plugin}
    return spec


def guest(task):
    file = GUESTS / f"{task}.wasm"
    return {
        "name": f"wasm-{task}",
        "world": "task-schema-streaming" if task in STREAMING else "task-schema",
        "file": str(file),
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        # The longest there is: what is proven here is not how fast a busy machine is.
        "limits": {"deadline_ms": 500},
    }


def config(folder, client, admin, ports, with_guests):
    """The gateway's configuration; `ports` are the servers', by what `servers` calls them."""
    models = [model("builtin", task, "http", ports[task]) for task in TASKS]
    for way, task, backend, is_checked in NATIVE:
        models.append(model(way, task, backend, ports[backend], task if is_checked else None))
    if with_guests:
        models += [model("wasm", task, "http", ports[task], f"wasm-{task}") for task in TASKS]
    return {
        "listen": {
            "clients": [{"address": f"127.0.0.1:{client}"}],
            "admin": {"address": f"127.0.0.1:{admin}"},
        },
        "accounts": [
            {"id": "hall", "api_keys_sha256": [hashlib.sha256(KEY.encode()).hexdigest()]}
        ],
        # How a simulated server is asked for JSON instead of bytes.
        "headers": {"pass": ["x-sim-answer"]},
        "models": models,
        "plugins": [guest(task) for task in TASKS] if with_guests else [],
        "state_dir": str(folder / "hall-state"),
        "events": {"file": {"path": str(folder / "hall-events.jsonl")}},
    }


def servers():
    """What each simulated server is called, and its options."""
    pace = ("--ttft-ms", "0", "--tokens-per-sec", "0")
    answers = ("--output-tokens", "3", "--embedding-dims", "4")
    for task in TASKS:
        yield task, ("--dialect", "http", "--task", task, *pace, *answers)
    for dialect in sorted({backend for _, _, backend, _ in NATIVE}):
        yield dialect, ("--dialect", dialect, *pace, *answers)


def hall(binary, folder, stack, simulate, with_guests):
    """Starts all of it; the environment that names it."""
    starts = list(servers())
    client, admin, *own = free_ports(2 + len(starts))
    ports = {}
    for port, (name, options) in zip(own, starts):
        stack.enter_context(simulate(binary, name, port, *options))
        ports[name] = port
    settings = config(folder, client, admin, ports, with_guests)
    file = folder / "hall.yaml"
    file.write_text(json.dumps(settings, indent=1))
    stack.enter_context(
        running(
            [binary, "serve", "--config", file],
            folder / "hall.log",
            f"http://127.0.0.1:{admin}/readyz",
            "infergate serve",
            READY_LIMIT_SECS,
        )
    )
    return {
        "HALL_URL": f"http://127.0.0.1:{client}",
        "HALL_KEY": KEY,
        "HALL_TASKS": json.dumps(TASKS),
        "HALL_MODELS": json.dumps({one["id"]: one["task"] for one in settings["models"]}),
    }
