"""A chat server that closes its connections without saying so. Usage: burst_server.py PORT ANSWERS

Closes after so many answers on a connection. `GET /seen` tells how often each request came, by its
`user`; `GET /health` answers 200.
"""

import collections
import json
import socket
import sys
import threading
import time

from burst_app import TOKEN_SECS, TOKENS, events, whole

seen = collections.Counter()
lock = threading.Lock()


def read_request(connection, buffered):
    while b"\r\n\r\n" not in buffered:
        data = connection.recv(65536)
        if not data:
            return None, None, b""
        buffered += data
    head, rest = buffered.split(b"\r\n\r\n", 1)
    length = 0
    for line in head.split(b"\r\n")[1:]:
        name, value = line.split(b":", 1)
        if name.lower() == b"content-length":
            length = int(value)
    while len(rest) < length:
        data = connection.recv(65536)
        if not data:
            return None, None, b""
        rest += data
    return head, rest[:length], rest[length:]


def respond(connection, body):
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    connection.sendall(head % len(body) + body)


def answer(connection, body):
    request = json.loads(body)
    with lock:
        seen[request["user"]] += 1
    if not request.get("stream"):
        time.sleep(TOKENS * TOKEN_SECS)
        return respond(connection, json.dumps(whole()).encode())
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    connection.sendall(head)
    for event in events():
        time.sleep(TOKEN_SECS)
        connection.sendall(b"%x\r\n%s\r\n" % (len(event), event))
    connection.sendall(b"0\r\n\r\n")


def serve(connection, answers):
    buffered = b""
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(answers):
            try:
                head, body, buffered = read_request(connection, buffered)
                if head is None:
                    return
                if head.startswith(b"GET "):
                    # A health check reads a line, not a history.
                    with lock:
                        told = json.dumps(seen if b" /seen " in head else {})
                    respond(connection, told.encode())
                else:
                    answer(connection, body)
            except OSError:
                return


def main(port, answers):
    listener = socket.create_server(("127.0.0.1", port), backlog=256)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection, answers), daemon=True).start()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
