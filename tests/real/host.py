"""Three llama.cpp models on one host with memory for two: loaded on demand, swapped, killed, and gone at the end.

`run` is called by `tests/real/run`: the memory of the host is the device, processes are llama.cpp's own, clients are
the openai SDK. `estimates` compares what the gateway expects of a GGUF file with what llama.cpp says that it takes.
"""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "jobs"))

from kit import accounts, gateway, key, until  # noqa: E402
from outside import free_ports  # noqa: E402

ACCOUNT = "real"
MODELS = ("amber", "birch", "cedar")
PERMITS = 4
CONTEXT_TOKENS = 2048
# Two thirds of the memory hold two models and not three, whatever else runs on the host.
SHARE_OF_MEMORY = 0.34
# The last model is unloaded after so many idle seconds; the others are not.
BRIEF_SECS = 2

CONFIG = """\
{accounts}timeouts: {{ ceiling_secs: 300 }}
gpu:
  devices: ram
  reserve_mib: 0
  ledger: {{ directory: {folder}/ledger }}
  swap: {{ turn: 1 }}
models:
{models}"""

MODEL = """\
  - id: {name}
    task: text-generation
    backend: llama-server
    process:
      command: [{python}, {server}, "{{model_path}}", "{{port}}", "{{parallel}}", --context-total, "{{context_total}}"]
      model_path: {folder}/{name}.gguf
      context: {context}
      parallel: {permits}
    vram: {{ mib: {mib} }}
    keep_alive_secs: {keep_alive}
    queue: {{ algorithm: fair, capacity: 64 }}
"""

# Shapes of the files whose estimates are compared: layers, width, tokens of a request, requests at a time.
SHAPES = ((2, 64, 4096, 2), (12, 256, 2048, 4), (4, 512, 8192, 1))
# llama.cpp logs hundredths.
LOGGED_MIB_STEP = 0.01
# What the estimate adds for buffers that depend on the device.
COMPUTE_MARGIN_MIB = 64
COMPUTE_DIFFERENCE_MAX = 0.1


def memory_mib():
    text = pathlib.Path("/proc/meminfo").read_text()
    return int(re.search(r"MemTotal: *(\d+)", text).group(1)) // 1024


def make(python, path, *options):
    subprocess.run([python, HERE / "make_gguf.py", path, *options], check=True, stdout=subprocess.DEVNULL)


def configuration(python, folder):
    models = [
        MODEL.format(
            name=name,
            python=python,
            server=HERE / "llama_server.py",
            folder=folder,
            context=CONTEXT_TOKENS,
            permits=PERMITS,
            mib=int(memory_mib() * SHARE_OF_MEMORY),
            keep_alive=BRIEF_SECS if name == MODELS[-1] else 600,
        )
        for name in MODELS
    ]
    return CONFIG.format(folder=folder, models="".join(models), accounts=accounts([ACCOUNT]))


def processes_of(folder):
    """Processes with the folder in their command line."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def run(tally, binary, python, folder, is_full):
    """With `is_full` more rounds, and weights of hundreds of MiB."""
    folder.mkdir(parents=True, exist_ok=True)
    size = ("--layers", "12", "--width", "768") if is_full else ()
    for name in MODELS:
        make(python, folder / f"{name}.gguf", "--word", name, *size)
    try:
        with gateway(binary, configuration(python, folder)) as node:
            env = {
                "KEY": key(ACCOUNT),
                "BASE_URL": f"http://127.0.0.1:{node.port}/v1",
                "ADMIN_URL": f"http://127.0.0.1:{node.admin}",
                "EVENTS_FILE": str(node.events_path),
                "ROUNDS": "20" if is_full else "4",
                "MODELS": ",".join(MODELS),
            }
            tally.script("llama.cpp host", [python, HERE / "host_checks.py"], env)
            os.kill(node.process.pid, signal.SIGTERM)
            node.process.wait(timeout=60)
        until("no process is left", lambda: not processes_of(folder), 10)
        tally.ok("llama.cpp host: no process is left once the gateway has ended")
        # One whose holder has ended holds nothing: the next change removes it.
        command = [binary, "gpu", "leases", "--ledger", folder / "ledger"]
        leases = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        if any("#0" in line and " dead " not in line for line in leases.splitlines()):
            tally.fail("llama.cpp host: no lease is left", leases)
        else:
            tally.ok("llama.cpp host: no lease is left")
    except (SystemExit, subprocess.SubprocessError) as problem:
        tally.fail("llama.cpp host: gateway and models end", problem)
    finally:
        if is_full:
            for name in MODELS:
                (folder / f"{name}.gguf").unlink(missing_ok=True)


def figures_of(python, path, folder, context, parallel):
    """Weights, cache and compute buffers in MiB, as llama.cpp logs them."""
    log = folder / "figures.log"
    [port] = free_ports(1)
    command = [python, HERE / "llama_server.py", path, port, parallel, "--figures", "--context-total", context * parallel]
    with open(log, "wb") as output:
        process = subprocess.Popen([str(part) for part in command], stdout=output, stderr=output)
    try:
        until("llama.cpp listens", lambda: "listening at" in log.read_text(errors="replace"))
    finally:
        process.kill()
        process.wait()
    text = log.read_text(errors="replace")

    def sum_of(words):
        return sum(float(mib) for mib in re.findall(words + r" = +([\d.]+) MiB", text))

    # The output buffer is a part of the compute figure: it holds what a batch computes.
    compute = sum_of("compute buffer size") + sum_of("output buffer size")
    return sum_of("model buffer size"), sum_of("KV buffer size"), compute


def estimates(tally, binary, python, folder):
    """Weights and cache of the gateway's estimate are llama.cpp's own; compute, without its margin, is near."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "figures.gguf"
    for layers, width, context, parallel in SHAPES:
        name = f"llama.cpp estimate: {layers} layers of {width}, {parallel} × {context} tokens"
        make(python, path, "--layers", str(layers), "--width", str(width))
        logged = figures_of(python, path, folder, context, parallel)
        command = [binary, "gpu", "estimate", path, "--context", context, "--parallel", parallel, "--json"]
        answer = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True)
        report = json.loads(answer.stdout)
        found = [report["parts"][f"{part}_bytes"] / 2**20 for part in ("weights", "kv", "compute")]
        print(f"# MiB estimated {found}, logged {list(logged)}", flush=True)
        is_exact = all(abs(mine - theirs) <= LOGGED_MIB_STEP for mine, theirs in zip(found[:2], logged[:2]))
        compute = found[2] - COMPUTE_MARGIN_MIB
        is_near = abs(compute - logged[2]) <= COMPUTE_DIFFERENCE_MAX * logged[2]
        if is_exact and is_near and logged[0] > 0:
            tally.ok(name)
        else:
            tally.fail(name, f"MiB of weights, cache, compute: estimated {found}, llama.cpp {logged}")
    path.unlink(missing_ok=True)
