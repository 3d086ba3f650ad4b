"""The preset `llama-server` with Debian's own binary, unpacked below target/real and run in a root of its own.

`run` is called by `tests/real/run`. Without root, apt or the package the part is skipped by name. Nothing is installed.
"""

import os
import pathlib
import subprocess
import sys
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "jobs"))

from kit import gateway  # noqa: E402

SUITE = "forky"
PACKAGE = "llama.cpp-tools"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
FETCH_LIMIT_SECS = 300
CONTEXT_TOKENS, PERMITS = 2048, 2

CONFIG = """\
anonymous: allow
gpu: {{ devices: ram, reserve_mib: 0, ledger: {{ directory: {folder}/preset-ledger }} }}
models:
  - id: acme/dove
    task: text-generation
    backend: llama-server
    process: {{ preset: llama-server, model_path: {model}, context: {context}, parallel: {permits} }}
"""


class Missing(Exception):
    """The binary cannot be had here."""


def call(command, what):
    try:
        done = subprocess.run(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=FETCH_LIMIT_SECS,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise Missing(f"{what}: {problem}") from None
    if done.returncode != 0:
        raise Missing(f"{what}: {done.stdout.strip().splitlines()[-1:]}")


def unpacked(folder):
    """The root with the binary, made once and kept."""
    root, stamp = folder / "root", folder / "root" / "unpacked"
    if stamp.exists():
        return root
    if os.geteuid() != 0:
        raise Missing("chroot needs root")
    for part in ("state/lists/partial", "cache/archives/partial", "root/dev", "root/tmp"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "status").touch()
    source = f"deb [signed-by={KEYRING}] http://deb.debian.org/debian {SUITE} main\n"
    (folder / "sources.list").write_text(source)
    options = {
        "Dir::State": folder / "state",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    call([*apt, "update"], "apt-get update")
    call([*apt, "install", "-y", "--download-only", "--no-install-recommends", PACKAGE], f"{PACKAGE} of {SUITE}")
    for package in sorted((folder / "cache" / "archives").glob("*.deb")):
        call(["dpkg-deb", "-x", package, root], package.name)
    for name in ("bin", "sbin", "lib", "lib64"):
        if not (root / name).exists():
            (root / name).symlink_to(f"usr/{name}")
    for name, minor in (("null", 3), ("urandom", 9)):
        call(["mknod", "-m", "666", root / "dev" / name, "c", "1", minor], "mknod")
    stamp.touch()
    return root


def program(folder):
    """A folder whose `llama-server` runs the one in the root."""
    root = unpacked(folder)
    call(["chroot", root, "/usr/bin/llama-server", "--version"], "llama-server --version")
    (folder / "bin").mkdir(exist_ok=True)
    script = folder / "bin" / "llama-server"
    script.write_text(f'#!/bin/sh\nexec chroot {root} /usr/bin/llama-server "$@"\n')
    script.chmod(0o755)
    return root, folder / "bin"


def run(tally, binary, python, folder):
    name = "llama-server preset: the model is loaded with its estimate, answers with its own words, and asks for its key"
    try:
        root, path = program(folder / SUITE)
    except Missing as why:
        tally.skip("llama-server preset", why)
        return
    # The same file at the same place inside.
    model, inside = folder / "dove.gguf", root / str(folder / "dove.gguf").lstrip("/")
    inside.parent.mkdir(parents=True, exist_ok=True)
    inside.unlink(missing_ok=True)
    make = [python, HERE / "make_gguf.py", model, "--word", "dove"]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    os.link(model, inside)
    os.environ["PATH"] = f"{path}:{os.environ['PATH']}"
    config = CONFIG.format(folder=folder, model=model, context=CONTEXT_TOKENS, permits=PERMITS)
    try:
        with gateway(binary, config) as node:
            body = {"model": "acme/dove", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
            status, answer = node.ask("POST", "/v1/chat/completions", body, timeout=120)
            [slot] = node.slots()
            words = answer["choices"][0]["message"]["content"].split() if status == 200 else answer
            is_own = status == 200 and all(word.startswith("dove") for word in words)
            tokens = ["--context", str(CONTEXT_TOKENS), "--parallel", str(PERMITS)]
            shown = subprocess.run(
                [binary, "gpu", "estimate", model, *tokens, "--json"], capture_output=True, text=True, check=True
            ).stdout
            is_estimate = f'"estimate_mib": {slot["leases"][0]["mib"]},' in shown
            found = (status, words, slot, without_key(slot["port"]))
            if is_own and is_estimate and found[-1] == 401:
                tally.ok(name)
            else:
                tally.fail(name, f"{found}; {shown}")
    except (SystemExit, OSError, LookupError) as problem:
        tally.fail(name, problem)


def without_key(port):
    """The status of a request that has no key."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/props")
    try:
        return urllib.request.urlopen(request, timeout=10).status
    except urllib.error.HTTPError as refused:
        return refused.code
