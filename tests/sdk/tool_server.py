"""A model server that answers with calls of tools: what the simulator cannot.

It speaks OpenAI chat completions. A request that ends with the result of a tool is answered with that
result; any other with a call of its first tool, whole or streamed in three pieces.
"""

import contextlib
import http.server
import json
import threading

USAGE = {"prompt_tokens": 21, "completion_tokens": 7, "total_tokens": 28}
ARGUMENTS = ['{"city": ', '"Pa', 'ris"}']


def call(name, arguments, first=True):
    function = {"arguments": arguments} | ({"name": name} if first else {})
    return {"index": 0, "function": function} | ({"id": "call_1", "type": "function"} if first else {})


def chunks(body):
    """The deltas of a streamed answer, and the reason of its end."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return [{"content": f"it is {last['content']}"}], "stop"
    name = body["tools"][0]["function"]["name"]
    pieces = [call(name, "")] + [call(name, piece, first=False) for piece in ARGUMENTS]
    return [{"role": "assistant", "content": "I look."}] + [{"tool_calls": [p]} for p in pieces], "tool_calls"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, kind, body):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer("application/json", b'{"status": "ok", "object": "list", "data": []}')

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        deltas, reason = chunks(body)
        head = {"id": "chatcmpl-1", "model": body["model"], "created": 1}
        if not body.get("stream"):
            message = {"role": "assistant", "content": deltas[0].get("content")}
            if reason == "tool_calls":
                message["tool_calls"] = [call("get_weather", "".join(ARGUMENTS))]
            choice = {"index": 0, "message": message, "finish_reason": reason}
            whole = head | {"object": "chat.completion", "choices": [choice], "usage": USAGE}
            return self.answer("application/json", json.dumps(whole).encode())
        events = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        if body.get("stream_options", {}).get("include_usage"):
            events.append({"choices": [], "usage": USAGE})
        head["object"] = "chat.completion.chunk"
        text = "".join(f"data: {json.dumps(head | event)}\n\n" for event in events)
        self.answer("text/event-stream", (text + "data: [DONE]\n\n").encode())


@contextlib.contextmanager
def tool_server(port):
    """While inside, the server answers on this port."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
