#!/usr/bin/env python3
"""Forms with a sound of 25 MB, as clients of Whisper send them: each comes whole, and the gateway's memory has its bound.

A form whose model stands before its file goes on to the server as it comes, more of them at once than there are permits. One
with the file first is held whole until its answer comes, with a copy where the server has another name for the model. All of
those together take `limits.buffered_bodies_mib`, and each worker thread one copy more that it has just made. A form that finds
no room is 503 with `Retry-After`, and its client comes again. The server behind reads every form and answers with the digest
of its file. Standard library only.

    tests/edge/uploads.py                    3 forms one after the other, 7 at once (8 s)
    tests/edge/uploads.py --full             40, and 40 at once, with the budget that is the default
"""

import argparse
import concurrent.futures
import hashlib
import http.server
import json
import os
import pathlib
import random
import re
import select
import socket
import socketserver
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "jobs")]

from kit import PATIENCE_SECS, Table, ask, free_port, gateway, until  # noqa: E402

MIB = 1 << 20
# The most that OpenAI's own API takes.
FILE_BYTES = 25 * MIB
PATH = "/v1/audio/transcriptions"
BOUNDARY = "----form-of-a-test"
MODEL, MODEL_THERE = "ears", "whisper-1"
PERMITS = 4
# A server works so long on a sound.
WORK_SECS = 0.1
# One after the other, at once, and MiB for all bodies.
COUNTS = {False: (3, 7, 128), True: (40, 40, 512)}
# A form.
ONE_MIB = FILE_BYTES // MIB + 1
# What is not bodies: connections, heaps of threads, pages of the program that are read for the first time.
BASE_MIB = 64
# A form that goes on as it comes: 256 KiB to begin with, in twice the room, once more with another name of the model.
PASSING_MIB = 1
PASSED_BASE_MIB = 24
# After the last one: the heap of each worker keeps up to 32.
KEPT_MIB = 32 * os.cpu_count() + 16


class Form:
    """A form with a file of its own, which differs from others in its last bytes."""

    sound = b"RIFF" + os.urandom(FILE_BYTES - 36)
    digest = hashlib.sha256(sound)

    def __init__(self, file_first):
        own = os.urandom(32)
        digest = Form.digest.copy()
        digest.update(own)
        self.expected = digest.hexdigest()
        model = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="model"\r\n\r\n{MODEL}\r\n'
        file = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
        before, behind = ("", model) if file_first else (model, "")
        end = f"\r\n{behind}--{BOUNDARY}--\r\n"
        # Not joined: forms share the sound.
        self.pieces = [(before + file).encode(), Form.sound, own + end.encode()]

    def length(self):
        return sum(map(len, self.pieces))


class Transcriber(http.server.BaseHTTPRequestHandler):
    """Answers a form with the digest of its file in place of a text."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        self.answer(200, {"object": "list", "data": []})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        boundary = re.search('boundary="?([^";]+)', self.headers["content-type"])[1]
        fields = {}
        for part in (b"\r\n" + body).split(f"\r\n--{boundary}".encode())[1:-1]:
            head, _, data = part.partition(b"\r\n\r\n")
            fields[re.search(rb'\bname="([^"]*)"', head)[1].decode()] = data
        if fields["model"].decode() != MODEL_THERE:
            return self.answer(404, {"error": {"message": f"no model {fields['model'][:100]}"}})
        time.sleep(WORK_SECS)
        text = hashlib.sha256(fields["file"]).hexdigest()
        self.answer(200, {"text": text, "usage": {"type": "duration", "seconds": 60}})


class TranscribingServer(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128


class Client:
    """A client that sends forms until each has been taken."""

    def __init__(self, port):
        self.port, self.refused, self.mute = port, 0, 0

    def send_file_first(self, number):
        return self.send(number, file_first=True)

    def send(self, _, file_first=False):
        """True once a form was answered with the digest of its file, else what came. A form that there is no room for is sent
        again."""
        form, deadline = Form(file_first), time.monotonic() + PATIENCE_SECS
        while True:
            try:
                status, again, answer = self.once(form)
            except (OSError, IndexError, ValueError) as error:
                return repr(error)
            if status != 503 or time.monotonic() > deadline:
                return (status == 200 and json.loads(answer)["text"] == form.expected) or f"{status} {answer[:200]}"
            self.refused += 1
            self.mute += not again
            time.sleep(float(again or 1) * random.uniform(0.5, 1))

    def once(self, form):
        """Status, Retry-After and body of one try. What comes before the form is sent ends it, as in good clients."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_SECS) as connection:
            head = (
                f"POST {PATH} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {form.length()}\r\n"
                f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n"
            )
            connection.sendall(head.encode())
            self.upload(connection, form)
            reader = connection.makefile("rb")
            status = int(reader.readline().split()[1])
            fields = {}
            while line := reader.readline().strip():
                name, _, value = line.decode().partition(":")
                fields[name.lower()] = value.strip()
            return status, fields.get("retry-after"), reader.read()

    def upload(self, connection, form):
        for piece in form.pieces:
            view = memoryview(piece)
            while view:
                readable, _, _ = select.select([connection], [connection], [], PATIENCE_SECS)
                if readable:
                    return
                try:
                    view = view[connection.send(view[: 256 * 1024]) :]
                except BrokenPipeError:
                    # The answer has come between the two calls, and the rest is not waited for.
                    return


def resident_mib(node, name="VmRSS"):
    """Resident memory, or by `VmHWM` the most of it since the start."""
    status = pathlib.Path(f"/proc/{node.process.pid}/status").read_text()
    return int(re.search(rf"{name}:\s*(\d+)", status)[1]) / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/debug/infergate")
    parser.add_argument("--full", action="store_true", help="the counts of the acceptance")
    options = parser.parse_args()
    in_a_row, at_once, budget_mib = COUNTS[options.full]
    table = Table()
    server = TranscribingServer(("127.0.0.1", free_port()), Transcriber)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    text = f"""anonymous: allow
limits: {{ buffered_bodies_mib: {budget_mib} }}
models:
  - id: {MODEL}
    task: automatic-speech-recognition
    backend: openai
    queue: {{ capacity: 64 }}
    endpoints: [{{ url: "{url}", backend_model: {MODEL_THERE}, max_concurrent_requests: {PERMITS} }}]
"""
    with gateway(options.binary, text) as node:
        until("the gateway serves", lambda: ask(node.admin, "GET", "/readyz")[0] == 200)
        client, before = Client(node.port), resident_mib(node)

        def judge(name, found, allowed):
            wrong = [answer for answer in found if answer is not True]
            table.row(f"forms {name} that did not come whole, of {len(found)}", wrong[:1] or 0, not wrong)
            peak = resident_mib(node, "VmHWM") - before
            table.row(f"resident MiB beside {before:.0f}, and allowed", f"{peak:.0f}, {allowed}", peak <= allowed)

        def at_once_by(send):
            with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
                return list(pool.map(send, range(at_once)))

        judge("that go on as they come, at once", at_once_by(client.send), at_once * PASSING_MIB + PASSED_BASE_MIB)
        in_turn = [client.send_file_first(number) for number in range(in_a_row)]
        judge("with the file first, one after the other", in_turn, 2 * ONE_MIB + BASE_MIB)
        table.row("of them found no room", client.refused, client.refused == 0)
        allowed = budget_mib + os.cpu_count() * ONE_MIB + BASE_MIB
        judge("with the file first, at once", at_once_by(client.send_file_first), allowed)
        table.row("tries that found no room, and those without Retry-After", f"{client.refused}, {client.mute}", client.refused and not client.mute)
        left = until("memory is given back", lambda: (now := resident_mib(node) - before) <= KEPT_MIB and now, 60)
        table.row(f"resident MiB after them, of {KEPT_MIB}", f"{left:.0f}", True)
    return table.finish()


if __name__ == "__main__":
    sys.exit(main())
