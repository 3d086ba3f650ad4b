#!/usr/bin/env python3
"""Each client gets its own answer, also where others leave in the middle of theirs.

Clients of 50 accounts ask over HTTP/1 and HTTP/2, for whole answers and streams, and each request has a word of its own that
the server repeats. Some leave: before the answer, or within it. At the end nothing is left of them. Standard library only.

    tests/edge/nonces.py                     4,000 requests (10 s)
    tests/edge/nonces.py --requests 1000000  those of the acceptance
"""

import argparse
import asyncio
import collections
import contextlib
import json
import multiprocessing
import os
import pathlib
import random
import re
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "jobs")]

import frames as f  # noqa: E402
from kit import PATIENCE_SECS, Table, accounts, ask, bearer, gateway, simulators, until  # noqa: E402

ACCOUNTS = [f"tenant-{number}" for number in range(50)]
# Part of the requests whose clients would leave within the time that an answer takes: some have theirs before.
LEAVING = 0.7
# That time at first, and the part of it that each answer decides.
FIRST_SECS, WEIGHT = 0.02, 0.02
# On a connection of HTTP/2 fewer leave, and later: streams that are reset before they are accepted are taken for a flood.
LEAVING_STREAMS, STREAM_SECS = 0.4, 0.02
PROCESSES, CONNECTIONS, STREAMS = 2, 16, 8
# Requests of a connection before it is closed.
KEPT = 200
NONCE = re.compile(rb"n[0-9a-f]{24}n")
CONFIGURATION = """limits: {{ connections: 4096 }}
{accounts}models:
  - id: m
    task: text-generation
    backend: openai
    queue: {{ capacity: 1000, total_capacity: 10000 }}
    endpoints: [{{ url: "http://127.0.0.1:{port}", max_concurrent_requests: 64 }}]
"""


class Wrong(Exception):
    """An answer that is not the request's own."""


def request():
    """A nonce, the account's key and the body of a request, and whether it is a stream."""
    nonce = f"n{random.getrandbits(96):024x}n"
    is_stream = random.random() < 0.5
    body = {"model": "m", "messages": [{"role": "user", "content": f"echo: {nonce}"}], "stream": is_stream}
    return nonce.encode(), bearer(random.choice(ACCOUNTS))["authorization"], json.dumps(body).encode(), is_stream


def judge(nonce, data, status=b"200"):
    """Raises where an answer is another's. A stream has the word in one event."""
    found = set(NONCE.findall(data))
    if status != b"200" or found != {nonce}:
        raise Wrong(f"{nonce} was answered {status} {found}: {data[:300]}")


class Client:
    """A client that leaves before some of its answers, however fast they come."""

    leaving = LEAVING

    def __init__(self, port, counts):
        self.port, self.counts, self.usual_secs = port, counts, FIRST_SECS

    async def answered(self, answer):
        """The answer; TimeoutError where it is left."""
        if random.random() < self.leaving:
            return await asyncio.wait_for(answer, random.uniform(0, self.leaves_within()))
        begun = time.monotonic()
        found = await asyncio.wait_for(answer, PATIENCE_SECS)
        self.usual_secs += WEIGHT * (time.monotonic() - begun - self.usual_secs)
        return found


    def leaves_within(self):
        """The longest time until this client leaves, seconds."""
        return self.usual_secs


class Http1(Client):
    """A connection of HTTP/1 at a time, kept for some requests."""

    def __init__(self, port, counts):
        super().__init__(port, counts)
        self.stream = None

    async def once(self):
        nonce, key, body, _ = request()
        if self.stream is None:
            self.stream, self.kept = await asyncio.open_connection("127.0.0.1", self.port), KEPT
        reader, writer = self.stream
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
            b"Authorization: %b\r\nContent-Length: %d\r\n\r\n%b" % (key.encode(), len(body), body)
        )
        try:
            status, answer = await self.answered(read_http1(reader))
        except TimeoutError:
            self.leave()
            return
        judge(nonce, answer, status)
        self.counts["http1"] += 1
        self.kept -= 1
        if self.kept == 0:
            self.leave(counts=False)

    def leave(self, counts=True):
        if self.stream:
            self.stream[1].transport.abort()
        self.stream = None
        self.counts["left"] += counts

    async def run(self, count):
        for _ in range(count):
            await self.once()
        self.leave(counts=False)


async def read_http1(reader):
    """Status and body of an answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    status = head.split(b" ", 2)[1]
    lowered = head.lower()
    if found := re.search(rb"content-length: (\d+)", lowered):
        return status, await reader.readexactly(int(found[1]))
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return status, body


class Http2(Client):
    """A connection of HTTP/2 with several requests at a time."""

    leaving = LEAVING_STREAMS

    def leaves_within(self):
        return STREAM_SECS

    async def run(self, count):
        while count > 0:
            many = min(count, KEPT)
            await self.connection(many)
            count -= many

    async def connection(self, count):
        reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        # A window that none of these answers fills.
        self.writer.write(f.PREFACE + f.settings((4, 1 << 24)) + f.window(0, 1 << 28))
        self.waiting = {}
        reading = self.reading = asyncio.ensure_future(self.read(reader))
        reading.add_done_callback(self.lose)
        numbers = iter(range(1, 2 * count + 1, 2))
        try:
            await asyncio.gather(*(self.ask_each(numbers) for _ in range(STREAMS)))
            if reading.done():
                await reading
        finally:
            reading.cancel()
            self.writer.transport.abort()

    def lose(self, reading):
        """Ends what waits on a connection that its server has ended."""
        if not reading.cancelled():
            for whole in self.waiting.values():
                if not whole.done():
                    whole.set_exception(Wrong(f"the connection ended: {reading.exception()!r}"))

    async def ask_each(self, numbers):
        for number in numbers:
            if self.reading.done():
                raise Wrong(f"the connection ended: {self.reading.exception()!r}")
            nonce, key, body, _ = request()
            whole = self.waiting[number] = asyncio.get_running_loop().create_future()
            whole.data = b""
            fields = [(":method", "POST"), (":scheme", "http"), (":path", "/v1/chat/completions"), (":authority", "a"),
                      ("content-type", "application/json"), ("authorization", key)]
            self.writer.write(f.headers(number, *fields) + f.frame(f.DATA, f.END_STREAM, number, body))
            try:
                judge(nonce, await self.answered(whole))
                self.counts["http2"] += 1
            except TimeoutError:
                self.writer.write(f.reset(number))
                self.counts["left"] += 1
            finally:
                del self.waiting[number]

    async def read(self, reader):
        """Gives each stream its data. Headers are not read: an error has no nonce in its body."""
        while True:
            head = await reader.readexactly(9)
            length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
            number = int.from_bytes(head[5:], "big")
            data = await reader.readexactly(length)
            if kind == f.SETTINGS and not flags & f.ACK:
                self.writer.write(f.frame(f.SETTINGS, f.ACK))
            whole = self.waiting.get(number)
            if whole is None or whole.done():
                continue
            if kind == f.DATA:
                whole.data += data
            if kind == f.RST_STREAM:
                whole.set_exception(Wrong(f"the stream was reset: {data.hex()}"))
            elif kind in (f.DATA, f.HEADERS) and flags & f.END_STREAM:
                whole.set_result(whole.data)


def clients(ports, count, seed, results):
    """Clients of one process."""
    random.seed(seed)
    counts = collections.Counter()

    async def all_of_them():
        each = count // CONNECTIONS
        kinds = [Http1(ports[0], counts) if number % 2 else Http2(ports[1], counts) for number in range(CONNECTIONS)]
        await asyncio.gather(*(kind.run(each) for kind in kinds))

    try:
        asyncio.run(all_of_them())
        results.put((counts, None))
    except (Wrong, OSError, EOFError, ValueError) as error:
        results.put((counts, repr(error)))


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def permits(node):
    models = ask(node.admin, "GET", "/state")[1]["models"]
    return sum(endpoint["permits"]["used"] for model in models for endpoint in model["endpoints"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default="target/debug/infergate")
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    table = Table()
    with simulators(options.binary, 1, "--ttft-ms", 2, "--tokens-per-sec", 0, "--concurrency", 256) as (port,):
        text = CONFIGURATION.format(accounts=accounts(ACCOUNTS), port=port)
        with gateway(options.binary, text, "http2: clear") as node:
            ask(node.port, "GET", "/v1/models", headers=bearer(ACCOUNTS[0]))
            until("nothing is in flight", lambda: permits(node) == 0)
            before = descriptors(node.process.pid)
            results, begun = multiprocessing.Queue(), time.monotonic()
            each = options.requests // PROCESSES
            workers = [
                multiprocessing.Process(target=clients, args=((node.port, node.port), each, options.seed + number, results))
                for number in range(PROCESSES)
            ]
            for worker in workers:
                worker.start()
            found = [results.get() for _ in workers]
            for worker in workers:
                worker.join()
            counts = sum((counts for counts, _ in found), collections.Counter())
            wrong = [error for _, error in found if error]
            rate = sum(counts.values()) / (time.monotonic() - begun)
            table.row(f"answers that were another's, or none, of {dict(counts)}; {rate:.0f} a second", wrong[:1] or 0, not wrong)
            left = counts["left"] / max(1, sum(counts.values()))
            table.row("part of the clients that left", f"{left:.2f}", left > 0.2)
            until("no permit is in use", lambda: permits(node) == 0)
            table.row("permits in use at the end", permits(node), permits(node) == 0)
            # Connections to the server stay for the next requests.
            with contextlib.suppress(SystemExit):
                until("descriptors are given back", lambda: descriptors(node.process.pid) <= before + 64, 30)
            after = descriptors(node.process.pid)
            table.row(f"descriptors at the end, {before} at the start, 64 kept ones at most", after, after <= before + 64)
            at_server = ask(port, "GET", "/sim/stats")[1]["current"]
            table.row("requests at the server at the end", at_server, at_server == 0)
    sys.exit(table.finish())


if __name__ == "__main__":
    main()
