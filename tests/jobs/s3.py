#!/usr/bin/env python3
"""Files in a store that speaks S3: flat memory, parts that are aborted, ranges, expiry.

Fetches moto from PyPI into target/s3 (once) and runs it with checks of signatures; the gateway is a process of its own.
What cannot be fetched is skipped by name.

    tests/jobs/s3.py target/debug/infergate --mib 512
"""

import argparse
import hashlib
import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "scripts"))

from kit import accounts, bearer  # noqa: E402
from outside import ROOT, Unreachable, free_ports, is_listening, venv  # noqa: E402

FOLDER = ROOT / "target" / "s3"
ACCOUNT = "a"
BUCKET = "files"
MIB = 1 << 20
# One part, what the connection and the digests hold, and what the allocator keeps.
GROWTH_MAX_MIB = 16
# Actions of SETUP, after which each request must be signed.
OPEN_ACTIONS = 4

SETUP = """
import boto3, json, sys
made = dict(region_name="us-east-1", endpoint_url=sys.argv[1], aws_access_key_id="a", aws_secret_access_key="b")
iam = boto3.client("iam", **made)
iam.create_user(UserName="gateway")
policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
iam.put_user_policy(UserName="gateway", PolicyName="all", PolicyDocument=json.dumps(policy))
key = iam.create_access_key(UserName="gateway")["AccessKey"]
boto3.client("s3", **made).create_bucket(Bucket=sys.argv[2])
print(json.dumps([key["AccessKeyId"], key["SecretAccessKey"]]))
"""

LIST = """
import boto3, json, sys
s3 = boto3.client("s3", region_name="us-east-1", endpoint_url=sys.argv[1], aws_access_key_id=sys.argv[3],
                  aws_secret_access_key=sys.argv[4])
objects = s3.list_objects_v2(Bucket=sys.argv[2]).get("Contents", [])
uploads = s3.list_multipart_uploads(Bucket=sys.argv[2]).get("Uploads", [])
print(json.dumps([len(objects), len(uploads)]))
"""

CONFIG = """\
listen:
  clients: [{{ address: "127.0.0.1:{client}" }}]
  admin: {{ address: "127.0.0.1:{admin}" }}
{accounts}state_dir: "{state}"
jobs: {{}}
files:
  file_max_mib: 1024
  expires_secs: {expires}
  s3: {{ bucket: {bucket}, endpoint: "{endpoint}", path_style: true, prefix: "gateway/", access_key: "{access}", secret_key: "{secret}" }}
"""


def eventually(what, check, limit=60):
    end = time.monotonic() + limit
    while time.monotonic() < end:
        found = check()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"in {limit} s: {what}")


class Store:
    """A moto server that checks signatures."""

    def __init__(self, python, log):
        self.python = python
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        environment = {**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": str(OPEN_ACTIONS)}
        command = [python, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        eventually("moto listens", lambda: is_listening(port))
        self.access, self.secret = self.run(SETUP, BUCKET)

    def run(self, script, *arguments):
        command = [self.python, "-c", script, self.url, *arguments]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    def counts(self):
        """Objects, and uploads in parts that are not finished."""
        return tuple(self.run(LIST, BUCKET, self.access, self.secret))


class Gateway:
    def __init__(self, binary, folder, store, expires=3600, secret=None):
        self.port, self.admin = free_ports(2)
        config = folder / "infergate.yaml"
        config.write_text(
            CONFIG.format(
                client=self.port,
                admin=self.admin,
                accounts=accounts([ACCOUNT]),
                state=folder / "state",
                expires=expires,
                bucket=BUCKET,
                endpoint=store.url,
                access=store.access,
                secret=secret or store.secret,
            )
        )
        self.log = folder / "gateway.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([binary, "serve", "--config", str(config)], stdout=log, stderr=log)
        eventually("the gateway listens", lambda: is_listening(self.port))

    def rss_mib(self, key="VmRSS"):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith(key))
        return int(line.split()[1]) / 1024

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.wait(60)

    def ask(self, method, path, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        path = path[path.index("/v1/") :]
        connection.request(method, path, headers={**bearer(ACCOUNT), **(headers or {})})
        return connection.getresponse()

    def begin(self, size):
        """A connection with the head of an upload of `size` bytes."""
        head = b'--b\r\nContent-Disposition: form-data; name="content"; filename="f"\r\n\r\n'
        tail = b"\r\n--b--\r\n"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        connection.putrequest("POST", "/v1/files")
        connection.putheader("authorization", bearer(ACCOUNT)["authorization"])
        connection.putheader("content-type", "multipart/form-data; boundary=b")
        connection.putheader("content-length", str(len(head) + size + len(tail)))
        connection.endheaders(head)
        return connection, tail

    def upload(self, pieces, size):
        connection, tail = self.begin(size)
        for piece in pieces:
            connection.send(piece)
        connection.send(tail)
        answer = connection.getresponse()
        body = answer.read()
        return answer.status, json.loads(body)


class Watch:
    """Largest memory of a gateway while it is entered."""

    def __init__(self, gateway):
        self.gateway, self.is_over = gateway, threading.Event()
        self.before = self.most = gateway.rss_mib()
        self.thread = threading.Thread(target=self.look)

    def look(self):
        while not self.is_over.wait(0.02):
            self.most = max(self.most, self.gateway.rss_mib())

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.is_over.set()
        self.thread.join()

    def __str__(self):
        return f"{self.before:.1f} MiB before, {self.most:.1f} MiB at most"


def pieces_of(mib):
    for at in range(mib):
        yield bytes([at % 251]) * MIB


def digest_of(answer):
    digest, size = hashlib.sha256(), 0
    while piece := answer.read(MIB):
        digest.update(piece)
        size += len(piece)
    return digest.hexdigest(), size


def flat_memory(gateway, mib):
    status, warm = gateway.upload([b"warm"], 4)
    assert status == 201, warm
    began = time.monotonic()
    with Watch(gateway) as watch:
        status, file = gateway.upload(pieces_of(mib), mib * MIB)
    assert status == 201, file
    print(f"upload of {mib} MiB: {time.monotonic() - began:.1f} s, memory {watch}", flush=True)
    assert watch.most - watch.before <= GROWTH_MAX_MIB, str(watch)
    url = file["urls"]["download"]
    with Watch(gateway) as watch:
        whole = digest_of(gateway.ask("GET", url))
    print(f"download: memory {watch}", flush=True)
    assert whole == (file["checksums"]["sha256"], mib * MIB), whole
    assert watch.most - watch.before <= GROWTH_MAX_MIB, str(watch)
    # Where no file is left, the sweep waits for the next one, and not a minute.
    assert gateway.ask("DELETE", warm["urls"]["get"]).status == 204
    return file


def ranges(gateway, file, mib):
    url = file["urls"]["download"]
    at = 8 * MIB - 2
    answer = gateway.ask("GET", url, {"range": f"bytes={at}-{at + 3}"})
    assert (answer.status, answer.read()) == (206, bytes([7, 7, 8, 8]))
    assert answer.getheader("content-range") == f"bytes {at}-{at + 3}/{mib * MIB}"
    assert gateway.ask("GET", url, {"range": f"bytes={mib * MIB}-"}).status == 416
    print("ranges: ok", flush=True)


def begin_parts(gateway, store):
    connection, _ = gateway.begin(64 * MIB)
    for piece in pieces_of(12):
        connection.send(piece)
    eventually("parts are there", lambda: store.counts()[1] == 1)
    return connection


def check(binary, mib, store, folder):
    gateway = Gateway(binary, folder, store)
    try:
        file = flat_memory(gateway, mib)
        ranges(gateway, file, mib)
        kept = store.counts()
        begin_parts(gateway, store).close()
        eventually("parts of an aborted upload are gone", lambda: store.counts() == kept)
        print("aborted upload: nothing left", flush=True)
        connection = begin_parts(gateway, store)
        gateway.end(signal.SIGKILL)
        connection.close()
        gateway = Gateway(binary, folder, store)
        eventually("parts of a killed gateway are gone", lambda: store.counts() == kept)
        print("killed gateway: nothing left", flush=True)
        assert gateway.ask("GET", file["urls"]["get"]).status == 200
        assert gateway.ask("DELETE", file["urls"]["get"]).status == 204
        assert gateway.ask("GET", file["urls"]["download"]).status == 404
        assert store.counts() == (kept[0] - 1, 0), store.counts()
        gateway.end()
        gateway = Gateway(binary, folder, store, expires=1)
        assert gateway.upload([b"short"], 5)[0] == 201
        eventually("an expired object is gone", lambda: store.counts() == (kept[0] - 1, 0))
        print("expiry: ok", flush=True)
        gateway.end()
        gateway = Gateway(binary, folder, store, secret="not-the-secret")
        status, body = gateway.upload([b"x"], 1)
        assert status == 503, (status, body)
        print("wrong secret: 503", flush=True)
        shown = gateway.log.read_text()
        admin = http.client.HTTPConnection("127.0.0.1", gateway.admin, timeout=10)
        for path in ("/state", "/config"):
            admin.request("GET", path)
            shown += admin.getresponse().read().decode()
        for secret in (store.secret, store.access, "not-the-secret", "signature="):
            assert secret not in shown, "a secret is shown"
    finally:
        gateway.process.kill()
        gateway.process.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary", nargs="?", default=str(ROOT / "target" / "debug" / "infergate"))
    parser.add_argument("--mib", type=int, default=16)
    options = parser.parse_args()
    try:
        python = venv(FOLDER, HERE / "requirements.txt")
    except Unreachable as error:
        print(f"skipped: S3 ({error})")
        return
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        with (folder / "moto.log").open("wb") as log:
            store = Store(str(python), log)
            try:
                check(options.binary, options.mib, store, folder)
            except BaseException:
                for name in ("gateway.log", "moto.log"):
                    print((folder / name).read_text(errors="replace")[-3000:])
                raise
            finally:
                store.process.kill()
                store.process.wait()
    print("all held")


if __name__ == "__main__":
    main()
