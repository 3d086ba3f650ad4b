"""The unmodified openai package for Python against the gateway.

Environment, set by `tests/sdk/run`: DEMO_URL, a running `infergate demo`; CROWDED_URL and
CROWDED_ADMIN, an infergate whose model `busy` has one permit and no queue; EVENTS_FILE, the
events of the latter.
"""

import asyncio
import math
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))

import openai  # noqa: E402
from checks import at_once, check, equal, raises, run  # noqa: E402
from crowd import busy, mark, requests_since  # noqa: E402

CHAT, ALIAS, EMBED = "@cf/meta/llama-3.1-8b-instruct", "llama-3.1-8b", "@cf/baai/bge-base-en-v1.5"

demo = openai.OpenAI(base_url=os.environ["DEMO_URL"] + "/v1", api_key="demo-key")
crowded = openai.OpenAI(base_url=os.environ["CROWDED_URL"] + "/v1", api_key="sdk-key")


def ask(client=demo, prompt="echo: a warm gate", model=CHAT, **options):
    return client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": prompt}], **options
    )


def joined(chunks):
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


@check
def chat():
    """a chat is answered"""
    answer = ask()
    equal(answer.choices[0].message.content, "a warm gate")
    equal(answer.choices[0].finish_reason, "stop")
    equal(answer.usage.completion_tokens, 3)
    equal(answer.usage.total_tokens, answer.usage.prompt_tokens + 3)
    assert answer._request_id, "no x-request-id"


@check
def chat_by_alias():
    """an alias answers as its model does"""
    equal(ask(model=ALIAS).choices[0].message.content, "a warm gate")


@check
def max_tokens():
    """max_tokens is honoured"""
    answer = ask(prompt="hello", max_tokens=5)
    equal((answer.usage.completion_tokens, answer.choices[0].finish_reason), (5, "length"))


@check
def stream_without_usage():
    """a stream asked without usage carries none"""
    chunks = list(ask(stream=True))
    equal(joined(chunks), "a warm gate")
    assert all(chunk.usage is None for chunk in chunks), "usage nobody asked for"
    assert all(chunk.choices for chunk in chunks), "a chunk without choices nobody asked for"
    equal(chunks[-1].choices[0].finish_reason, "stop")


@check
def stream_with_usage():
    """a stream asked for usage carries it once, last"""
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    equal(joined(chunks), "a warm gate")
    equal([c.usage.completion_tokens for c in chunks if c.usage], [3])
    equal(chunks[-1].choices, [])


@check
def stream_is_live():
    """tokens of a stream arrive as they are made"""
    options = {"max_tokens": 120, "extra_body": {"ignore_eos": True}}
    arrivals = [time.monotonic() for _ in ask(prompt="hello", stream=True, **options)]
    # Two seconds of tokens at about 60 a second: were they held back, they would come at one moment.
    assert arrivals[-1] - arrivals[0] > 0.1, f"all within {arrivals[-1] - arrivals[0]:.3f} s"


@check
def stream_async():
    """the asynchronous client streams too"""

    async def go():
        url = os.environ["DEMO_URL"] + "/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="demo-key") as client:
            stream = await client.chat.completions.create(
                model=CHAT, stream=True, messages=[{"role": "user", "content": "echo: a b c"}]
            )
            return [chunk async for chunk in stream]

    equal(joined(asyncio.run(go())), "a b c")


@check
def completions():
    """a text completion is answered, whole and streamed"""
    options = {"model": CHAT, "prompt": "echo: cold start"}
    equal(demo.completions.create(**options).choices[0].text, "cold start")
    chunks = list(demo.completions.create(stream=True, **options))
    equal("".join(chunk.choices[0].text for chunk in chunks), "cold start")


@check
def embeddings():
    """embeddings agree in base64, the client's default, and float"""
    packed = demo.embeddings.create(model=EMBED, input=["a", "b"])
    plain = demo.embeddings.create(model=EMBED, input=["a", "b"], encoding_format="float")
    equal([len(item.embedding) for item in packed.data], [768, 768])
    for one, other in zip(packed.data, plain.data):
        assert all(
            math.isclose(a, b, abs_tol=1e-6) for a, b in zip(one.embedding, other.embedding)
        )
    assert packed.data[0].embedding != packed.data[1].embedding
    assert packed.usage.prompt_tokens > 0


@check
def models():
    """models are listed, and retrieved by a name with slashes"""
    names = [model.id for model in demo.models.list()]
    assert CHAT in names and EMBED in names, names
    one = demo.models.retrieve(CHAT)
    equal((one.id, one.object), (CHAT, "model"))
    raises(openai.NotFoundError, demo.models.retrieve, "@cf/nobody/nothing")


@check
def wrong_key():
    """a wrong key is an AuthenticationError"""
    stranger = demo.with_options(api_key="not-a-key")
    error = raises(openai.AuthenticationError, ask, stranger)
    equal((error.status_code, error.code, error.type), (401, "invalid_api_key", "authentication_error"))
    assert error.request_id, "no x-request-id"
    raises(openai.AuthenticationError, ask, stranger, stream=True)


@check
def unknown_model():
    """an unknown model is a NotFoundError"""
    error = raises(openai.NotFoundError, ask, model="nothing-8b")
    equal((error.code, error.type), ("model_not_found", "invalid_request_error"))


@check
def bad_body():
    """a body of the wrong shape is a BadRequestError"""
    error = raises(openai.BadRequestError, ask, extra_body={"stream": "perhaps"})
    equal(error.type, "invalid_request_error")


@check
def over_capacity():
    """over capacity is a RateLimitError after three tries that obey Retry-After"""
    with busy():
        before = mark()
        begun = time.monotonic()
        error = raises(openai.RateLimitError, ask, crowded, model="busy")
        took = time.monotonic() - begun
        equal((error.code, error.type), ("out_of_capacity", "rate_limit_error"))
        wait_secs = int(error.response.headers["retry-after"])
        assert wait_secs >= 1, wait_secs
        # Two pauses between three tries, each as long as the answer asked for.
        assert took >= 2 * min(wait_secs, 1), f"{took:.2f} s for two waits of {wait_secs} s"
        refused = requests_since(before, 3)
        equal([event["outcome"] for event in refused], ["refused"] * 3)
        equal([event["error_code"] for event in refused], ["3040"] * 3)
    equal(ask(crowded, model="busy", max_tokens=1).usage.completion_tokens, 1)


@check
def over_capacity_without_retry():
    """over capacity with retries off is one cheap request"""
    with busy():
        before = mark()
        error = raises(openai.RateLimitError, ask, crowded.with_options(max_retries=0), model="busy")
        equal(error.status_code, 429)
        equal(len(requests_since(before, 1)), 1)


@check
def fail_fast():
    """a request that asks to fail fast is refused when busy and served when not"""
    options = {"model": "busy", "max_tokens": 1}
    eager = crowded.with_options(max_retries=0)
    by_header = {"extra_headers": {"x-infergate-queue": "reject"}}
    by_body = {"extra_body": {"options": {"rejectIfBusy": True}}}
    with busy():
        raises(openai.RateLimitError, ask, eager, **options, **by_header)
        raises(openai.RateLimitError, ask, eager, **options, **by_body)
    equal(ask(eager, **options, **by_header).usage.completion_tokens, 1)
    equal(ask(eager, **options, **by_body).usage.completion_tokens, 1)


@check
def deadline():
    """a passed deadline is a 408 that is not tried again"""
    before = mark()
    error = raises(
        openai.APIStatusError,
        ask,
        crowded,
        model="slow",
        extra_headers={"x-infergate-timeout-ms": "200"},
    )
    equal((error.status_code, error.code), (408, "deadline_exceeded"))
    equal(len(requests_since(before, 1)), 1)


@check
def early_close():
    """closing right after [DONE] counts as completed"""
    before = mark()
    for number in range(20):
        # A client of its own each time: leaving its `with` closes the connection.
        with openai.OpenAI(base_url=os.environ["CROWDED_URL"] + "/v1", api_key="sdk-key") as client:
            text = joined(list(ask(client, f"echo: number {number}", model="free", stream=True)))
        equal(text, f"number {number}")
    seen = requests_since(before, 20)
    equal([event["outcome"] for event in seen], ["completed"] * 20)
    equal([event["metrics"]["output_tokens"] for event in seen], [2] * 20)


@check
def crowd():
    """twenty streams and whole answers at once on eight permits are all answered"""

    def one(number):
        prompt = f"echo: number {number}"
        if number % 2:
            return joined(list(ask(crowded, prompt, model="free", stream=True)))
        return ask(crowded, prompt, model="free").choices[0].message.content

    equal(at_once(20, one), [f"number {number}" for number in range(20)])


@check
def leaving():
    """leaving in the middle of a stream is recorded as the client's doing"""
    before = mark()
    stream = ask(crowded, "hello", model="busy", stream=True, max_tokens=10_000)
    next(stream)
    stream.close()
    equal([event["outcome"] for event in requests_since(before, 1)], ["cut-by-client"])


@check
def lost_backend():
    """a backend that breaks mid-stream is an APIError, never a quiet end"""
    stream = ask(
        crowded, "hello", model="free", stream=True, extra_body={"x_sim_fault": "reset-mid-stream"}
    )
    error = raises(openai.APIError, list, stream)
    assert error.message, "an error without words"


run("openai-python")
