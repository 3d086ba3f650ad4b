"""The unmodified anthropic package for Python against the gateway.

Environment, set by `tests/sdk/run`: DEMO_URL, a running `infergate demo`; CROWDED_URL and
CROWDED_ADMIN, an infergate whose model `busy` has one permit and no queue, whose model `tools` calls
tools and whose account `paced` has one request a minute; EVENTS_FILE, the events of the latter.
"""

import asyncio
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))

import anthropic  # noqa: E402
from checks import check, equal, raises, run  # noqa: E402
from crowd import busy, mark, requests_since  # noqa: E402

CHAT, ALIAS = "@cf/meta/llama-3.1-8b-instruct", "llama-3.1-8b"
TOOL = {
    "name": "get_weather",
    "description": "Weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}

demo = anthropic.Anthropic(base_url=os.environ["DEMO_URL"], api_key="demo-key")
crowded = anthropic.Anthropic(base_url=os.environ["CROWDED_URL"], api_key="sdk-key")


def question(prompt="echo: a warm gate", model=CHAT, **options):
    options = {"max_tokens": 64} | options
    return options | {"model": model, "messages": [{"role": "user", "content": prompt}]}


def ask(client=demo, *args, **options):
    return client.messages.create(**question(*args, **options))


def text_of(events):
    deltas = [event.delta for event in events if event.type == "content_block_delta"]
    return "".join(delta.text for delta in deltas if delta.type == "text_delta")


@check
def message():
    """a message is answered, with usage and the id of the request"""
    answer = ask()
    equal([(block.type, block.text) for block in answer.content], [("text", "a warm gate")])
    equal((answer.type, answer.role, answer.stop_reason), ("message", "assistant", "end_turn"))
    equal(answer.usage.output_tokens, 3)
    assert answer.usage.input_tokens > 0, answer.usage
    assert answer.id and answer._request_id, "no id"


@check
def message_by_alias():
    """an alias answers as its model does"""
    equal(ask(model=ALIAS).content[0].text, "a warm gate")


@check
def blocks_and_system():
    """a system prompt, blocks of text and an earlier turn are read"""
    answer = demo.messages.create(
        model=CHAT,
        max_tokens=64,
        system=[{"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}],
        metadata={"user_id": "u"},
        messages=[
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": [{"type": "text", "text": "yes?"}]},
            {"role": "user", "content": [{"type": "text", "text": "echo: cold start"}]},
        ],
    )
    equal(answer.content[0].text, "cold start")


@check
def max_tokens():
    """max_tokens is honoured and named as the reason of the end"""
    answer = ask(prompt="hello", max_tokens=5)
    equal((answer.usage.output_tokens, answer.stop_reason), (5, "max_tokens"))


@check
def stream():
    """a stream has its events in order, an estimate at its start and the usage at its end"""
    events = list(ask(stream=True))
    equal(text_of(events), "a warm gate")
    kinds = [event.type for event in events]
    equal(kinds[:2], ["message_start", "content_block_start"])
    equal(kinds[-3:], ["content_block_stop", "message_delta", "message_stop"])
    assert events[0].message.usage.input_tokens > 0, events[0]
    equal((events[-2].delta.stop_reason, events[-2].usage.output_tokens), ("end_turn", 3))


@check
def stream_helper():
    """the SDK's own helper puts a stream together"""
    with demo.messages.stream(**question()) as stream:
        equal("".join(stream.text_stream), "a warm gate")
        final = stream.get_final_message()
    equal((final.content[0].text, final.stop_reason), ("a warm gate", "end_turn"))
    equal(final.usage.output_tokens, 3)


@check
def stream_is_live():
    """tokens of a stream arrive as they are made"""
    options = {"max_tokens": 120, "extra_body": {"ignore_eos": True}}
    arrivals = [time.monotonic() for _ in ask(prompt="hello", stream=True, **options)]
    assert arrivals[-1] - arrivals[0] > 0.1, f"all within {arrivals[-1] - arrivals[0]:.3f} s"


@check
def stream_async():
    """the asynchronous client streams too"""

    async def go():
        url = os.environ["DEMO_URL"]
        async with anthropic.AsyncAnthropic(base_url=url, api_key="demo-key") as client:
            stream = await client.messages.create(stream=True, **question("echo: a b c"))
            return [event async for event in stream]

    equal(text_of(asyncio.run(go())), "a b c")


@check
def tool_use():
    """a call of a tool passes through, and its result back"""
    options = {"tools": [TOOL], "tool_choice": {"type": "auto"}}
    answer = ask(crowded, "what weather?", "tools", **options)
    equal(answer.stop_reason, "tool_use")
    equal([block.type for block in answer.content], ["text", "tool_use"])
    call = answer.content[1]
    equal((call.id, call.name, call.input), ("call_1", "get_weather", {"city": "Paris"}))
    equal((answer.usage.input_tokens, answer.usage.output_tokens), (21, 7))
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    answer = crowded.messages.create(
        model="tools",
        max_tokens=64,
        tools=[TOOL],
        messages=[
            {"role": "user", "content": "what weather?"},
            {"role": "assistant", "content": answer.content},
            {"role": "user", "content": [result]},
        ],
    )
    equal((answer.content[0].text, answer.stop_reason), ("it is sunny", "end_turn"))


@check
def tool_use_stream():
    """a call of a tool is streamed as pieces of its input"""
    question_of_tools = question("what weather?", "tools", tools=[TOOL])
    with crowded.messages.stream(**question_of_tools) as stream:
        events = list(stream)
        final = stream.get_final_message()
    pieces = [event.partial_json for event in events if event.type == "input_json"]
    equal("".join(pieces), '{"city": "Paris"}')
    equal([block.type for block in final.content], ["text", "tool_use"])
    equal((final.content[1].name, final.content[1].input), ("get_weather", {"city": "Paris"}))
    equal((final.stop_reason, final.usage.output_tokens), ("tool_use", 7))


@check
def bearer_key():
    """a key is taken as a bearer token as well"""
    client = anthropic.Anthropic(
        base_url=os.environ["DEMO_URL"], api_key=None, auth_token="demo-key"
    )
    equal(ask(client).content[0].text, "a warm gate")


@check
def wrong_key():
    """a wrong key is an AuthenticationError"""
    stranger = demo.with_options(api_key="not-a-key")
    error = raises(anthropic.AuthenticationError, ask, stranger)
    equal((error.status_code, error.body["error"]["type"]), (401, "authentication_error"))
    assert error.request_id and error.body["request_id"] == error.request_id, error.body
    raises(anthropic.AuthenticationError, ask, stranger, stream=True)


@check
def unknown_model():
    """an unknown model is a NotFoundError"""
    error = raises(anthropic.NotFoundError, ask, model="nothing-8b")
    equal(error.body["error"]["type"], "not_found_error")


@check
def bad_body():
    """a body of the wrong shape is a BadRequestError that names the place"""
    blocks = [{"type": "text"}]
    error = raises(anthropic.BadRequestError, ask, prompt=blocks)
    equal(error.body["error"]["type"], "invalid_request_error")
    assert "/messages/0/content/0/text" in error.body["error"]["message"], error.body


@check
def count_tokens():
    """counting tokens is refused in plain words"""
    messages = [{"role": "user", "content": "hello"}]
    count = demo.messages.count_tokens
    error = raises(anthropic.NotFoundError, count, model=CHAT, messages=messages)
    equal(error.body["error"]["type"], "not_found_error")
    assert "count" in error.body["error"]["message"], error.body


@check
def over_capacity():
    """over capacity is an OverloadedError after three tries that obey Retry-After"""
    with busy():
        before = mark()
        begun = time.monotonic()
        error = raises(anthropic.OverloadedError, ask, crowded, model="busy")
        took = time.monotonic() - begun
        equal((error.status_code, error.body["error"]["type"]), (529, "overloaded_error"))
        wait_secs = int(error.response.headers["retry-after"])
        assert took >= 2 * min(wait_secs, 1), f"{took:.2f} s for two waits of {wait_secs} s"
        refused = requests_since(before, 3)
        equal([event["error_code"] for event in refused], ["3040"] * 3)
    equal(ask(crowded, model="busy", max_tokens=1).usage.output_tokens, 1)


@check
def over_the_rate():
    """the account's own limit is a RateLimitError"""
    paced = crowded.with_options(api_key="paced-key", max_retries=0)
    ask(paced, model="free")
    error = raises(anthropic.RateLimitError, ask, paced, model="free")
    equal((error.status_code, error.body["error"]["type"]), (429, "rate_limit_error"))
    assert int(error.response.headers["retry-after"]) >= 1
    equal(error.response.headers["x-ratelimit-limit-requests"], "1")


@check
def deadline():
    """a passed deadline is a 408 that is not tried again"""
    before = mark()
    headers = {"x-infergate-timeout-ms": "200"}
    error = raises(anthropic.RequestTimeoutError, ask, crowded, model="slow", extra_headers=headers)
    equal(error.status_code, 408)
    equal(len(requests_since(before, 1)), 1)


@check
def usage_in_the_event():
    """the event has the dialect and the usage, of whole and streamed messages"""
    before = mark()
    ask(crowded, "echo: a b c", "free")
    equal(text_of(ask(crowded, "echo: d e", "free", stream=True)), "d e")
    events = requests_since(before, 2)
    equal([event["face"] for event in events], ["anthropic"] * 2)
    equal([event["outcome"] for event in events], ["completed"] * 2)
    equal([event["metrics"]["output_tokens"] for event in events], [3, 2])


@check
def lost_backend():
    """a backend that breaks mid-stream is an APIStatusError, never a quiet end"""
    fault = {"x_sim_fault": "reset-mid-stream"}
    stream = ask(crowded, "hello", "free", stream=True, extra_body=fault)
    error = raises(anthropic.APIStatusError, list, stream)
    assert error.message, "an error without words"


run("anthropic-python")
