"""A chat server of the OpenAI dialect as an ASGI application, for uvicorn: `uvicorn burst_app:app`.

Answers in a few milliseconds, whole or streamed. `GET /seen` tells how often each request came, by its
`user`; `GET /health` answers 200.
"""

import asyncio
import collections
import json

TOKENS = 5
# Long enough that a burst waits for permits.
TOKEN_SECS = 0.004

seen = collections.Counter()


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        return await lifespan(receive, send)
    if scope["method"] == "GET":
        # A health check reads a line, not a history.
        told = seen if scope["path"] == "/seen" else {}
        return await respond(send, json.dumps(told).encode())
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    request = json.loads(body)
    seen[request["user"]] += 1
    if request.get("stream"):
        await stream(send)
    else:
        await asyncio.sleep(TOKENS * TOKEN_SECS)
        await respond(send, json.dumps(whole()).encode())


async def lifespan(receive, send):
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def respond(send, body):
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def stream(send):
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for event in events():
        await asyncio.sleep(TOKEN_SECS)
        await send({"type": "http.response.body", "body": event, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def whole():
    message = {"role": "assistant", "content": "x " * TOKENS}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": TOKENS, "total_tokens": TOKENS + 1}
    return {"id": "b", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}


def events():
    """A stream as bytes, event by event."""
    for number in range(TOKENS):
        last = number == TOKENS - 1
        choice = {"index": 0, "delta": {"content": "x "}, "finish_reason": "stop" if last else None}
        chunk = {"id": "b", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"
