"""What the tests with outside parts share: packages fetched once, processes, and the tally.

Not a test itself. `tests/docs/run`, `tests/sdk/run` and `tests/real/run` import it; it needs Python
3.9 and nothing else. Checks are lines on standard output: `ok NAME`, `FAIL NAME: WHY`, `skipped: NAME (WHY)`.
"""

import contextlib
import itertools
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Far longer than a start or an answer takes on a busy two-core machine; only a hang meets it.
PATIENCE_SECS = 120
# A registry that does not answer within this is treated as out of reach.
REGISTRY_PROBE_SECS = 15
# Fetching 200 MB of wheels over a slow line.
INSTALL_LIMIT_SECS = 900
INSTALL_TRIES = 3
# One script of checks, retries and their pauses included, on a machine ten times slower than ours.
SCRIPT_LIMIT_SECS = 1200


class Unreachable(Exception):
    """A registry cannot be reached, so its part is skipped by name."""


class Unfit(Exception):
    """A check that cannot be made on this machine; its text says why."""


class Tally:
    """Counts checks and prints each on a line."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def ok(self, name):
        self.passed += 1
        print(f"ok {name}", flush=True)

    def fail(self, name, why):
        self.failed += 1
        print(f"FAIL {name}: {why}", flush=True)

    def skip(self, name, why):
        self.skipped += 1
        print(f"skipped: {name} ({why})", flush=True)

    def script(self, name, command, env):
        """Run a script of checks and count the lines it prints."""
        try:
            done = subprocess.run(
                [str(part) for part in command],
                env={**os.environ, **env},
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=SCRIPT_LIMIT_SECS,
            )
            output, ended = done.stdout, f"exit status {done.returncode}"
            good = done.returncode == 0
        except subprocess.TimeoutExpired as expired:
            output, ended, good = expired.stdout or "", "out of time", False
            output = output.decode(errors="replace") if isinstance(output, bytes) else output
        failed_before = self.failed
        for line in output.splitlines():
            kind = line.split(" ", 1)[0]
            self.passed += kind == "ok"
            self.failed += kind == "FAIL"
            self.skipped += kind == "skipped:"
            print(line, flush=True)
        if not good and self.failed == failed_before:
            self.fail(name, ended)

    def finish(self):
        """Print the totals; the exit status of the runner."""
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped", flush=True)
        return 1 if self.failed else 0


def reachable(url):
    """Whether a registry answers at all; a 404 is an answer."""
    try:
        urllib.request.urlopen(url, timeout=REGISTRY_PROBE_SECS).close()
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):
        return False
    return True


def venv(folder, requirements):
    """The Python of a virtual environment with these packages, made once and kept.

    Raises Unreachable when PyPI is out of reach, and RuntimeError when an install fails though it
    is not.
    """
    python = folder / "venv" / "bin" / "python"
    stamp = folder / "venv" / "installed"
    wanted = requirements.read_text()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
    if not reachable(f"{index}/pip/"):
        raise Unreachable("PyPI not reachable")
    folder.mkdir(parents=True, exist_ok=True)
    install(folder, [sys.executable, "-m", "venv", "--clear", folder / "venv"])
    install(folder, [python, "-m", "pip", "install", "--quiet", "-r", requirements])
    stamp.write_text(wanted)
    return python


def node_modules(folder, manifest):
    """A folder with the packages of a package.json installed, made once and kept."""
    stamp = folder / "installed"
    wanted = manifest.read_text()
    if stamp.exists() and stamp.read_text() == wanted:
        return folder
    registry = os.environ.get("npm_config_registry", "https://registry.npmjs.org").rstrip("/")
    if not reachable(f"{registry}/openai/latest"):
        raise Unreachable("npm not reachable")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text(wanted)
    install(folder, ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"])
    stamp.write_text(wanted)
    return folder


def install(folder, command):
    """Tried again when it fails: a registry that answers may still break off in between."""
    log = folder / "install.log"
    for _ in range(INSTALL_TRIES):
        with open(log, "ab") as output:
            try:
                done = subprocess.run(
                    [str(part) for part in command],
                    cwd=folder,
                    stdout=output,
                    stderr=output,
                    stdin=subprocess.DEVNULL,
                    timeout=INSTALL_LIMIT_SECS,
                )
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"{command[0]} took more than {INSTALL_LIMIT_SECS} s") from None
        if done.returncode == 0:
            return
    raise RuntimeError(f"installing failed, see {log.relative_to(ROOT)}")


def free_ports(count):
    """Loopback ports that were free a moment ago: above those of model processes (`gpu.ports`, to 20999), and below Linux's
    ephemeral range (32768 on), which the kernel gives to any connection that begins in the meantime."""
    ports = []
    for port in itertools.chain(range(21000 + os.getpid() * 101 % 11000, 32000), range(21000, 32000)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise RuntimeError("no free ports between 21000 and 32000")


def is_listening(port):
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def get_json(url, timeout_secs=10):
    with urllib.request.urlopen(url, timeout=timeout_secs) as answer:
        return json.load(answer)


def is_ok(url):
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except OSError:
        return False
    return True


def until(condition, what, limit_secs=PATIENCE_SECS):
    """Poll until the condition holds; the seconds it took."""
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > limit_secs:
            raise TimeoutError(f"{what}: not within {limit_secs} s")
        time.sleep(0.005)
    return time.monotonic() - begun


@contextlib.contextmanager
def running(command, log, ready_url, what, limit_secs=PATIENCE_SECS):
    """A process, from ready to stopped; its output goes to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
    try:

        def ready():
            if process.poll() is not None:
                tail = log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{what} ended with {process.returncode}:\n{tail}")
            return is_ok(ready_url)

        until(ready, f"{what} ready at {ready_url}", limit_secs)
        yield process
    finally:
        stop(process)


def stop(process):
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def binary_argument():
    """The infergate binary: the runner's argument, or the debug build."""
    given = sys.argv[1] if len(sys.argv) > 1 else ROOT / "target" / "debug" / "infergate"
    binary = pathlib.Path(given).resolve()
    if not os.access(binary, os.X_OK):
        sys.exit(f"no binary at {binary}: run `cargo build` first, or give its path")
    return binary


def have(program):
    return shutil.which(program) is not None
