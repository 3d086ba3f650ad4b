"""A headless Chromium, driven through two pipes: no port, and no library.

The protocol is <https://chromedevtools.github.io/devtools-protocol/>; messages are JSON, each ended by a zero byte.
"""

import base64
import contextlib
import json
import os
import select
import subprocess
import time

from outside import PATIENCE_SECS


class Browser:
    """One page of a browser."""

    def __init__(self, profile):
        to_browser, self.out = os.pipe()
        self.into, from_browser = os.pipe()

        def pipes():
            # The browser reads from 3 and writes to 4; the ends may have these very numbers already.
            high = [os.dup(to_browser), os.dup(from_browser)]
            spare = [os.dup2(end, end + 100) for end in high]
            for end, place in zip(spare, (3, 4)):
                os.dup2(end, place)

        self.process = subprocess.Popen(
            [
                "chromium",
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                "--no-first-run",
                "--disable-extensions",
                "--remote-debugging-pipe",
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            close_fds=False,
            preexec_fn=pipes,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self.number, self.session, self.received = 0, None, b""
        targets = self.ask("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        attached = self.ask("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self.session = attached["sessionId"]
        self.errors = []
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.next_message()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.note(answer)

    def next_message(self):
        until = time.monotonic() + PATIENCE_SECS
        while b"\0" not in self.received:
            ready, _, _ = select.select([self.into], [], [], max(0, until - time.monotonic()))
            more = os.read(self.into, 1 << 16) if ready else b""
            if not more:
                raise RuntimeError("the browser says nothing more")
            self.received += more
        message, self.received = self.received.split(b"\0", 1)
        return json.loads(message)

    def note(self, event):
        """Remembers what the page's console shows as an error: scripts that fail, and what the policy bars."""
        if event.get("method") == "Runtime.exceptionThrown":
            details = event["params"]["exceptionDetails"]
            self.errors.append(str(details.get("exception", {}).get("description") or details))
        if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.errors.append(event["params"]["entry"]["text"])

    def open(self, url):
        self.ask("Page.navigate", url=url)

    def size(self, width, height, is_dark=False):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def evaluate(self, expression):
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def until(self, expression, limit_secs=PATIENCE_SECS):
        """Polls until an expression is true in the page."""
        ends = time.monotonic() + limit_secs
        while not self.evaluate(f"!!({expression})"):
            if time.monotonic() > ends:
                raise TimeoutError(f"never so: {expression}\n{self.evaluate('document.body.innerText')}")
            time.sleep(0.05)

    def screenshot(self, file, is_whole=False):
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=is_whole)
        file.write_bytes(base64.b64decode(shot["data"]))

    def close(self):
        with contextlib.suppress(OSError, RuntimeError):
            self.session = None
            self.ask("Browser.close")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=10)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.out)
        os.close(self.into)
