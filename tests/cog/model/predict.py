"""A model that fails, works and reports as its input says."""

import os
import time
from typing import Any

from cog import BasePredictor, Input, current_scope


class Predictor(BasePredictor):
    def setup(self) -> None:
        print("weights read", flush=True)
        if os.environ.get("SETUP_FAILS"):
            raise RuntimeError("no weights here")

    def predict(
        self,
        prompt: str = Input(description="A text"),
        secs: float = Input(default=0.0),
        mode: str = Input(default="echo"),
    ) -> Any:
        if mode == "fail":
            raise ValueError("the prompt is not to its taste")
        if mode == "crash":
            os._exit(3)
        until = time.monotonic() + secs
        while time.monotonic() < until:
            time.sleep(0.01)
        if mode == "metrics":
            scope = current_scope()
            scope.record_metric("input_token_count", 3)
            scope.record_metric("output_token_count", 4)
            scope.record_metric("steps", 2.5)
        return ["echo: ", prompt] if mode == "pieces" else f"echo: {prompt}"
