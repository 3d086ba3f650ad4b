"""Clients: an event loop inside a network namespace, plain HTTP/1.1, and load at a fixed rate.

Not an SDK: a client records what arrived, broken responses included.
"""

import asyncio
import ctypes
import json
import os
import threading
import time

from topology import CLIENT_PATIENCE_SECS, CLIENTS_PORT, Failed, SERVICE_SECS, TOKENS_PER_SEC, address

CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)


class NamespaceLoop(threading.Thread):
    """An event loop whose sockets are in one network namespace: `setns` moves only its thread."""

    def __init__(self, namespace):
        super().__init__(daemon=True)
        self.namespace = namespace
        self.loop = asyncio.new_event_loop()
        self.ready = threading.Event()
        self.error = None
        self.start()
        self.ready.wait()
        if self.error:
            raise Failed(self.error)

    def run(self):
        asyncio.set_event_loop(self.loop)
        with open(f"/run/netns/{self.namespace}") as file:
            if LIBC.setns(file.fileno(), CLONE_NEWNET) != 0:
                self.error = f"setns: {os.strerror(ctypes.get_errno())}"
        self.ready.set()
        if not self.error:
            self.loop.run_forever()

    def submit(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def call(self, coroutine, limit=30):
        return self.submit(coroutine).result(limit)

    def end(self):
        async def cut():
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.call(cut())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.join(5)


async def http(host, port, method, path, body=b"", limit=5.0, seen=None):
    """Status and body of a request on its own connection. `seen` gets the part that arrived before a break."""
    seen = {} if seen is None else seen
    seen.update(status=0, bytes=0, request_id=None)

    async def exchange():
        reader, writer = await asyncio.open_connection(host, port)
        try:
            head = (
                f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
            seen["status"] = int(head[0].split(" ")[1])
            seen["request_id"] = headers.get("x-request-id")
            response = bytearray()
            while piece := await reader.read(65536):
                response += piece
                seen["bytes"] = len(response)
            if "content-length" in headers:
                whole = len(response) == int(headers["content-length"])
            else:
                whole = "chunked" not in headers.get("transfer-encoding", "") or response.endswith(
                    b"0\r\n\r\n"
                )
            if not whole:
                raise ConnectionError("the response ended too early")
            return seen["status"], bytes(response)
        finally:
            writer.close()

    return await asyncio.wait_for(exchange(), limit)


class ClientRequest:
    """A request as its client saw it."""

    __slots__ = ("sent", "ended", "node", "stream", "status", "bytes", "error", "request_id")

    @property
    def ok(self):
        return self.error is None

    @property
    def took(self):
        return self.ended - self.sent


async def send_chat(node, secs, requests):
    """Sends a chat request. `secs` is the length of the stream; 0 for a whole response."""
    record, seen = ClientRequest(), {}
    stream = secs > 0
    record.sent, record.node, record.stream, record.error = time.monotonic(), node, stream, None
    # The first token comes with the service time, each further one after its pause.
    tokens = 1 + round((secs - SERVICE_SECS) * TOKENS_PER_SEC) if stream else 1
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": stream,
    }
    try:
        status, response = await http(
            address(node),
            CLIENTS_PORT,
            "POST",
            "/v1/chat/completions",
            json.dumps(body).encode(),
            CLIENT_PATIENCE_SECS,
            seen,
        )
        if status != 200:
            record.error = f"{status} {response[:160].decode(errors='replace')}"
        elif stream and b"[DONE]" not in response:
            record.error = f"stream without its end: {response[-160:].decode(errors='replace')}"
    except asyncio.TimeoutError:
        record.error = f"no answer within {CLIENT_PATIENCE_SECS} s"
    except (OSError, asyncio.IncompleteReadError, ValueError) as error:
        record.error = f"{type(error).__name__}: {error}"
    record.ended = time.monotonic()
    record.status, record.bytes = seen.get("status", 0), seen.get("bytes", 0)
    record.request_id = seen.get("request_id")
    requests.append(record)


class Load:
    """Requests at a fixed rate, independent of earlier responses (open loop)."""

    def __init__(self, loop, rate, choose, secs=0.0):
        self.requests, self.stopped = [], False
        self.future = loop.submit(self._run(rate, choose, secs))

    async def _run(self, rate, choose, secs):
        began, count, open_requests = time.monotonic(), 0, set()
        while not self.stopped:
            await asyncio.sleep(max(0.0, began + count / rate - time.monotonic()))
            count += 1
            task = asyncio.ensure_future(send_chat(choose(count), secs, self.requests))
            open_requests.add(task)
            task.add_done_callback(open_requests.discard)
        if open_requests:
            await asyncio.wait(open_requests)

    def stop(self):
        """Stops sending and returns all requests, once every one has ended."""
        self.stopped = True
        self.future.result(CLIENT_PATIENCE_SECS + 20)
        return self.requests
