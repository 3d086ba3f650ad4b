"""The unmodified cloudflare package for Python against the gateway's Workers AI face.

Environment: as in `openai_checks.py`.
"""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))

import cloudflare  # noqa: E402
from checks import at_once, check, equal, raises, run  # noqa: E402
from crowd import busy, mark, requests_since  # noqa: E402

# The client sends the slashes of these names as %2F.
CHAT, EMBED = "@cf/meta/llama-3.1-8b-instruct", "@cf/baai/bge-base-en-v1.5"

demo = cloudflare.Cloudflare(base_url=os.environ["DEMO_URL"] + "/client/v4", api_token="demo-key")
crowded = cloudflare.Cloudflare(
    base_url=os.environ["CROWDED_URL"] + "/client/v4", api_token="sdk-key"
)


def ask(client=demo, model=CHAT, account="demo", **options):
    options = options or {"prompt": "echo: a warm gate"}
    return client.ai.run(model, account_id=account, **options)


def codes(error):
    return [one.code for one in error.errors]


@check
def prompt():
    """a prompt is answered"""
    answer = ask()
    equal(answer["response"], "a warm gate")
    equal(answer["usage"]["completion_tokens"], 3)


@check
def messages():
    """messages are answered, max_tokens honoured"""
    chat = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "echo: one two three four"},
    ]
    equal(ask(messages=chat, max_tokens=2)["response"], "one two")


@check
def embeddings():
    """embeddings come with their shape"""
    answer = ask(model=EMBED, text=["a", "b"])
    equal(answer["shape"], [2, 768])
    equal([len(vector) for vector in answer["data"]], [768, 768])
    equal(ask(model=EMBED, text="a")["shape"], [1, 768])


@check
def raw_stream():
    """a stream is events of `response`, then [DONE]"""
    # The client knows no streams for `run`: its raw response is what users read.
    with demo.ai.with_streaming_response.run(
        CHAT, account_id="demo", prompt="echo: a b", extra_body={"stream": True}
    ) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line]
    equal(lines[-1], "data: [DONE]")
    assert lines[0].startswith('data: {"response":"a"'), lines[0]


@check
def wrong_key():
    """a wrong key is an AuthenticationError with code 10000"""
    stranger = demo.with_options(api_token="not-a-key")
    error = raises(cloudflare.AuthenticationError, ask, stranger)
    equal((error.status_code, codes(error)), (401, [10000]))


@check
def foreign_account():
    """another account's path is refused"""
    try:
        ask(account="somebody-else")
    except (cloudflare.AuthenticationError, cloudflare.PermissionDeniedError):
        return
    raise AssertionError("served under another account's path")


@check
def unknown_model():
    """an unknown model is a BadRequestError with code 5007"""
    error = raises(cloudflare.BadRequestError, ask, model="@cf/nobody/nothing")
    equal((error.status_code, codes(error)), (400, [5007]))


@check
def bad_input():
    """an input of the wrong shape is a BadRequestError with code 5006"""
    error = raises(cloudflare.BadRequestError, ask, model=EMBED, text=7)
    equal(codes(error), [5006])


@check
def over_capacity():
    """over capacity is a RateLimitError with code 3040 after three tries"""
    with busy():
        before = mark()
        error = raises(
            cloudflare.RateLimitError, ask, crowded, model="busy", account="sdk"
        )
        equal((error.status_code, codes(error)), (429, [3040]))
        refused = requests_since(before, 3)
        equal([event["face"] for event in refused], ["workers-ai"] * 3)
        equal([event["error_code"] for event in refused], ["3040"] * 3)


@check
def reject_if_busy():
    """options.rejectIfBusy fails fast, and is served when not busy"""
    eager = crowded.with_options(max_retries=0)
    options = {"model": "busy", "account": "sdk", "prompt": "echo: hi"}
    fail_fast = {"extra_body": {"options": {"rejectIfBusy": True}}}
    with busy():
        error = raises(cloudflare.RateLimitError, ask, eager, **options, **fail_fast)
        equal(codes(error), [3040])
    equal(ask(eager, **options, **fail_fast)["response"], "hi")


@check
def crowd():
    """twenty calls at once on eight permits are all answered"""

    def one(number):
        options = {"account": "sdk", "prompt": f"echo: number {number}"}
        return ask(crowded, model="free", **options)["response"]

    equal(at_once(20, one), [f"number {number}" for number in range(20)])


@check
def models():
    """models.list pages through the models of the account and ends"""
    found = [model["name"] for model in demo.ai.models.list(account_id="demo", per_page=1)]
    assert CHAT in found and EMBED in found, found
    equal(len(found), len(set(found)))
    chat = demo.ai.models.list(account_id="demo", task="Text Generation", search="llama")
    assert CHAT in [model["name"] for model in chat]
    equal(list(demo.ai.models.list(account_id="demo", author="nobody")), [])


@check
def model_schema():
    """models.schema.get gives the schemas of input and output"""
    schema = demo.ai.models.schema.get(account_id="demo", model=CHAT).to_dict()
    assert isinstance(schema["input"], dict) and isinstance(schema["output"], dict), schema
    get = demo.ai.models.schema.get
    error = raises(cloudflare.BadRequestError, get, account_id="demo", model="@cf/no/such")
    equal(codes(error), [5007])


@check
def tasks():
    """tasks.list gives the tasks of the models, each once"""
    found = [task["name"] for task in demo.ai.tasks.list(account_id="demo")]
    equal(found, ["Text Generation", "Text Embeddings"])


@check
def finetunes():
    """finetunes.list gives the finetunes of the account, and a run takes no other"""
    listed = crowded.ai.finetunes.list(account_id="sdk")
    equal([(one.id, one.name) for one in listed], [("f-1", "sql"), ("f-2", "tone"), ("f-4", "filed")])
    equal({one.model for one in listed}, {"free"})
    public = list(crowded.ai.finetunes.public.list(account_id="sdk"))
    equal([(one.name, one.public) for one in public], [("sql", True), ("filed", True)])
    run = {"model": "free", "account": "sdk", "prompt": "echo: hi"}
    for name in ("sql", "f-2"):
        equal(ask(crowded, **run, lora=name)["response"], "hi")
    for name in ("theirs", "filed", "nothing"):
        error = raises(cloudflare.BadRequestError, ask, crowded, **run, lora=name)
        equal(codes(error), [3039])
    chat = {"model": "free", "lora": "sql", "messages": [{"role": "user", "content": "hi"}]}
    answer = crowded.post("/accounts/sdk/ai/v1/chat/completions", body=chat, cast_to=object)
    equal(answer["model"], "sql-v2")


run("cloudflare-python")
