"""A model server that holds memory of its first visible card through CUDA's driver, and answers with the card's UUID.

Usage: cuda_server.py PORT MIB. Needs libcuda.so.1 and nothing else.
"""

import ctypes
import http.server
import json
import sys
import uuid

OUT_OF_MEMORY = 2


class Card:
    """A context on the card, and the memory that it holds for the life of the process."""

    def __init__(self, mib):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
        raw = (ctypes.c_ubyte * 16)()
        self.call("cuInit", ctypes.c_uint(0))
        self.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
        self.call("cuDeviceGetUuid", ctypes.byref(raw), device)
        self.call("cuCtxCreate_v2", ctypes.byref(context), ctypes.c_uint(0), device)
        self.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(mib << 20))
        self.uuid = f"GPU-{uuid.UUID(bytes=bytes(raw))}"

    def call(self, name, *arguments):
        code = getattr(self.cuda, name)(*arguments)
        if code == OUT_OF_MEMORY:
            sys.exit(f"{name}: CUDA error: out of memory")
        if code != 0:
            sys.exit(f"{name}: CUDA error {code}")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer({"status": "ok", "object": "list", "data": []})

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        message = {"role": "assistant", "content": self.server.card.uuid}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        self.answer({"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage})

    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    card = Card(int(sys.argv[2]))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    server.card = card
    server.serve_forever()
