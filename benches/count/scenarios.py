"""The requests that are counted: names, bytes, and what is expected of each.

Not the traffic: `traffic.py` sends them. `tests/allocations/scenarios.rs` has scenarios of the same names.
"""

import dataclasses

MODEL = "bench"
# A model whose only permit is taken, and whose queue has no place.
FULL_MODEL = "bench-full"
KEY = "sk-bench-acme"
# Events of a stream, before its usage and its end.
EVENTS = 64
PLUGINS_SUFFIX = "+plugins"


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A request, the gateway it meets, and how often it is sent in a window of a tool."""

    name: str
    status: int = 200
    body_bytes: int = 2048
    model: str = MODEL
    key: str = KEY
    is_stream: bool = False
    is_forwarded: bool = False
    has_plugins: bool = False
    # The endpoint has a key, as a managed model has.
    is_keyed: bool = False
    # The gateway itself runs the model server.
    is_managed: bool = False
    requests: int = 100

    @property
    def is_full(self):
        """Whether a stream has to take the model's permit first."""
        return self.status == 429

    def request(self):
        """Head and body of the request."""
        opening = '{"messages":[{"role":"user","content":"'
        stream = ',"stream":true' if self.is_stream else ""
        closing = f'"}}],"model":"{self.model}","max_tokens":90{stream}}}'
        body = opening + "a" * (self.body_bytes - len(opening) - len(closing)) + closing
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: bench.test\r\n"
            f"authorization: Bearer {self.key}\r\ncontent-type: application/json\r\n"
            "accept: application/json\r\nuser-agent: bench/1\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        return (head + body).encode()


PLAIN = (
    Scenario("small"),
    Scenario("32k", body_bytes=32 << 10, requests=60),
    Scenario("256k", body_bytes=256 << 10, requests=20),
    # Requests are streams here, open at the same time; their events are counted, not their heads.
    Scenario("event", is_stream=True, requests=4),
    Scenario("429", status=429, model=FULL_MODEL),
    Scenario("401", status=401, key="sk-of-no-account"),
    Scenario("forwarded", is_forwarded=True),
    Scenario("keyed", is_keyed=True),
    Scenario("managed", is_managed=True),
)

# A ready managed model against the same endpoint given by URL, and the share by which it may cost more, by profile: what is
# its own are small steps, of which the optimiser leaves less than of the rest.
MANAGED, BY_URL = "managed", "keyed"
MANAGED_SHARES = {"count": 0.01, "dev": 0.015}

# The stream that takes the permit of the full model.
HOLDER = Scenario("holder", model=FULL_MODEL, is_stream=True)


def with_plugins(scenario):
    name = scenario.name + PLUGINS_SUFFIX
    return dataclasses.replace(scenario, name=name, has_plugins=True)


ALL = {
    scenario.name: scenario
    for plain in PLAIN
    for scenario in (plain, with_plugins(plain))
}
