"""Real llama.cpp, asked by the openai client: directly, then through the gateway.

The same checks run both ways, so that what fails only through the gateway is the gateway's doing.
Environment: CHAT_URL and EMBED_URL (bases ending in /v1), KEY, SLOTS_URL (llama.cpp's own), and
for the gateway STATE_URL and EVENTS_FILE. Argument: `direct` or `gateway`.
"""

import json
import math
import os
import pathlib
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))

import openai  # noqa: E402
from checks import at_once, check, equal, raises, run  # noqa: E402
from outside import get_json, until  # noqa: E402

WAY = sys.argv[1]
THROUGH_GATEWAY = WAY == "gateway"
CHAT_MODEL, EMBED_MODEL = "noise", "noise-embed"

# The gateway promises 250 ms and llama.cpp itself takes about 25; the rest is a busy machine, on
# which the server's one thread may have to wait for its turn. What it took is printed.
FREE_LIMIT_SECS = 30.0

chat_client = openai.OpenAI(base_url=os.environ["CHAT_URL"], api_key=os.environ["KEY"])
embed_client = openai.OpenAI(base_url=os.environ["EMBED_URL"], api_key=os.environ["KEY"])


def ask(prompt="hello", **options):
    options = {"model": CHAT_MODEL, "max_tokens": 16, "temperature": 0, **options}
    return chat_client.chat.completions.create(
        messages=[{"role": "user", "content": prompt}], **options
    )


def busy_slots():
    return sum(slot["is_processing"] for slot in get_json(os.environ["SLOTS_URL"]))


def permits_used():
    state = get_json(os.environ["STATE_URL"])
    return sum(
        endpoint["permits"]["used"]
        for model in state["models"]
        for endpoint in model["endpoints"]
    )


def events():
    # A line being written has no end yet.
    lines = pathlib.Path(os.environ["EVENTS_FILE"]).read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines]


@check
def whole():
    """a chat is answered with usage"""
    answer = ask()
    equal(answer.usage.completion_tokens, 16)
    equal(answer.choices[0].finish_reason, "length")
    assert answer.choices[0].message.content


@check
def streamed():
    """a stream joins to the whole answer"""
    # Greedy, so the same prompt gives the same text each time.
    chunks = list(ask(stream=True))
    assert all(chunk.choices for chunk in chunks), "a chunk without choices nobody asked for"
    assert all(chunk.usage is None for chunk in chunks), "usage nobody asked for"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    equal(text, ask().choices[0].message.content)
    equal(chunks[-1].choices[0].finish_reason, "length")


@check
def streamed_with_usage():
    """a stream carries usage once when asked"""
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    usages = [chunk.usage for chunk in chunks if chunk.usage]
    equal([usage.completion_tokens for usage in usages], [16])
    equal(chunks[-1].choices, [])


@check
def noise_survives():
    """broken characters of a random model pass unharmed"""
    options = {"max_tokens": 400, "temperature": 2.0, "extra_body": {"ignore_eos": True}}
    chunks = list(ask(stream=True, **options))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "\ufffd" in text, "random weights made only clean text"
    equal(chunks[-1].choices[0].finish_reason, "length")


@check
def embeddings():
    """embeddings answer base64 and float alike, as unit vectors"""
    texts = ["a gate", "a queue of gates", "x" * 200]
    # The client asks for base64 unless told otherwise.
    packed = embed_client.embeddings.create(model=EMBED_MODEL, input=texts)
    plain = embed_client.embeddings.create(
        model=EMBED_MODEL, input=texts, encoding_format="float"
    )
    equal([item.index for item in packed.data], [0, 1, 2])
    for one, other in zip(packed.data, plain.data):
        equal(len(one.embedding), 64)
        assert all(math.isclose(a, b, abs_tol=1e-4) for a, b in zip(one.embedding, other.embedding))
        assert math.isclose(math.hypot(*one.embedding), 1.0, abs_tol=1e-3)
    assert packed.usage.prompt_tokens > 0


@check
def embeddings_crowded():
    """twelve embeddings at once share two slots and are all unit vectors"""

    def one(number):
        answer = embed_client.embeddings.create(
            model=EMBED_MODEL, input=f"gate {number}", encoding_format="float"
        )
        return answer.data[0].embedding

    # Not compared with those of one after the other: batches differ in llama.cpp itself.
    for vector in at_once(12, one):
        assert math.isclose(math.hypot(*vector), 1.0, abs_tol=1e-3)


@check
def too_long():
    """a prompt beyond the context is a BadRequestError with llama.cpp's words"""
    error = raises(openai.BadRequestError, ask, "gate " * 20_000)
    assert "context" in error.message, error.message


@check
def leaving():
    """a client that leaves mid-stream frees the slot"""
    stream = ask(stream=True, max_tokens=8000, extra_body={"ignore_eos": True})
    next(stream)
    # What came before may give back what it held a moment after its answer.
    until(lambda: busy_slots() == 1, "one slot busy", FREE_LIMIT_SECS)
    if THROUGH_GATEWAY:
        until(lambda: permits_used() == 1, "one permit used", FREE_LIMIT_SECS)
    stream.close()
    took = until(lambda: busy_slots() == 0, "slot free", FREE_LIMIT_SECS)
    print(f"# slot free {took * 1000:.0f} ms after the client left")
    if THROUGH_GATEWAY:
        until(lambda: permits_used() == 0, "permit free", FREE_LIMIT_SECS)


@check
def crowded():
    """six streams share two slots and all end well"""
    finished = []

    def one():
        chunks = list(ask(stream=True, max_tokens=60, extra_body={"ignore_eos": True}))
        finished.append(chunks[-1].choices[0].finish_reason)

    threads = [threading.Thread(target=one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(finished, ["length"] * 6)
    until(lambda: busy_slots() == 0, "slots free", FREE_LIMIT_SECS)


if THROUGH_GATEWAY:

    @check
    def leaving_in_line():
        """clients that leave while queued give their place back and never reach llama.cpp"""
        forever = {"stream": True, "max_tokens": 8000, "extra_body": {"ignore_eos": True}}
        holding = [ask(**forever), ask(**forever)]
        for stream in holding:
            next(stream)
        impatient = chat_client.with_options(timeout=0.5, max_retries=0)
        raises(
            openai.APITimeoutError,
            impatient.chat.completions.create,
            model=CHAT_MODEL,
            messages=[{"role": "user", "content": "hello"}],
        )
        until(lambda: busy_slots() == 2, "two slots busy", FREE_LIMIT_SECS)
        until(
            lambda: all(model["queue"]["depth"] == 0 for model in get_json(os.environ["STATE_URL"])["models"]),
            "line empty",
            FREE_LIMIT_SECS,
        )
        for stream in holding:
            stream.close()
        until(lambda: permits_used() == 0, "permits free", FREE_LIMIT_SECS)
        until(lambda: busy_slots() == 0, "slots free", FREE_LIMIT_SECS)

    @check
    def outcomes():
        """events tell completed from left, with llama.cpp's own token counts"""
        until(
            lambda: sum(event["outcome"] == "cut-by-client" for event in events()) >= 4,
            "four departures in the events",
            FREE_LIMIT_SECS,
        )
        completed = [event for event in events() if event["outcome"] == "completed"]
        assert completed, "no completed event"
        for event in completed:
            if event["model_id"] == CHAT_MODEL and event["status"] == 200:
                equal(event["metrics_source"], "reported")
                assert event["metrics"]["output_tokens"] > 0, event


run(f"llama.cpp {WAY}")
