"""A server of mosec with two workers: an echo, a translation that shouts, and pieces of a text as events."""

import time

from mosec import Runtime, Server, SSEWorker, ValidationError, Worker


class Echo(Worker):
    def forward(self, data):
        if "prompt" not in data:
            raise ValidationError("there is no prompt")
        if data.get("fails"):
            raise RuntimeError("the prompt is not to its taste")
        time.sleep(data.get("secs", 0))
        return {"echo": data["prompt"]}


class Translation(Worker):
    def forward(self, data):
        return {"translated_text": data["text"].upper()}


class Pieces(SSEWorker):
    def forward(self, data):
        for piece in data["prompt"].split():
            self.send_stream_event(piece)
        return ""


if __name__ == "__main__":
    server = Server()
    server.register_runtime(
        {
            "/inference": [Runtime(Echo, num=2)],
            "/run": [Runtime(Translation)],
            "/pieces": [Runtime(Pieces)],
        }
    )
    server.run()
