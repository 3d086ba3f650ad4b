"""The unmodified cloudflare package for Python against all 14 tasks, in every way they are served.

Environment, set by `tests/sdk/run` from `hall.py`: HALL_URL, an infergate; HALL_KEY, its account's
key; HALL_TASKS, the tasks with their titles; HALL_MODELS, its models with their tasks. A check with
`of` runs once for each model of its task. Nothing is tried twice: what one request does counts.
"""

import asyncio
import base64
import functools
import io
import itertools
import json
import os
import pathlib
import sys
import wave
from urllib.parse import quote

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))

import cloudflare  # noqa: E402
import httpx  # noqa: E402
from checks import check, equal, raises, run  # noqa: E402

ACCOUNT = "hall"
TASKS = json.loads(os.environ["HALL_TASKS"])
MODELS = json.loads(os.environ["HALL_MODELS"])

# Far longer than any answer takes; only a hang meets it.
OPTIONS = {
    "base_url": os.environ["HALL_URL"] + "/client/v4",
    "api_token": os.environ["HALL_KEY"],
    "max_retries": 0,
    "timeout": 120,
}
client = cloudflare.Cloudflare(**OPTIONS)

# More than ASCII, more than 16 bits, quotes, and no space at the ends, where the simulator cuts.
WORDS = 'wörd 世界 😀 "\\ </b>'
LONG = "wörd 世界 " * 10_000
# Neither is one, but for its first bytes; nobody looks further.
PICTURE = b"\x89PNG\r\n\x1a\n\0{}\xff"
SOUND = b"RIFF\0\xff{}WAVE"
TEXTS_MAX = 100
DIMS = 4


def of(*tasks):
    """Registers a check of a model for each model of these tasks."""

    def register(function):
        for model, task in MODELS.items():
            if task in tasks:
                one = functools.partial(function, model)
                one.__doc__ = f"{model}: {function.__doc__}"
                check(one)
        return function

    return register


def plain(value):
    """A result as JSON has it: the client makes objects of some."""
    if isinstance(value, cloudflare.BaseModel):
        return plain(value.to_dict())
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value


def ask(model, **options):
    return plain(client.ai.run(model, account_id=ACCOUNT, **options))


def raw(model, **options):
    return client.ai.with_raw_response.run(model, account_id=ACCOUNT, **options)


def path(model):
    """Where `run` goes, for what it cannot send or read."""
    return f"/accounts/{ACCOUNT}/ai/run/{quote(model, safe='')}"


def posted(model, content, content_type):
    """The answer to bytes: the client's `run` sends JSON alone, its `post` sends anything."""
    return client.post(
        path(model),
        cast_to=httpx.Response,
        content=content,
        options={"headers": {"Content-Type": content_type}},
    )


def result(answer):
    """What stands in the envelope of a good answer that the client did not open."""
    body = answer.json()
    equal((body["success"], body["errors"], body["messages"]), (True, [], []))
    return body["result"]


def assert_refused(model, pointer, function=ask, **options):
    """The client's error for input of the wrong shape: 5006, and the place first in its message."""
    error = raises(cloudflare.BadRequestError, function, model, **options)
    shown = f"{options!r:.120}: {error.message}"
    assert [one.code for one in error.errors] == [5006], shown
    assert error.errors[0].message.startswith(f"{pointer}: "), f"{shown} is not at {pointer}"
    assert pointer in str(error), shown


def is_checked(model):
    """Whether the task's schema is enforced; without one the face checks what it converts."""
    return model.split("/")[1] in ("builtin", "wasm", "openai-checked", "tei-checked")


def data_uri(media, content):
    return f"data:{media};base64,{base64.b64encode(content).decode()}"


def forms(media, content):
    """A file in each form that JSON has for it. The client's types say a list of floats."""
    floats = [float(byte) for byte in content]
    return [list(content), floats, base64.b64encode(content).decode(), data_uri(media, content)]


def assert_labels(rows, more=()):
    assert rows, "no labels"
    for row in rows:
        equal(set(row), {"label", "score", *more})
        assert isinstance(row["label"], str) and 0 <= row["score"] <= 1, row


def assert_vectors(answer, count):
    equal(set(answer), {"shape", "data"})
    equal(answer["shape"], [count, DIMS])
    equal([len(row) for row in answer["data"]], [DIMS] * count)
    assert all(isinstance(number, float) for row in answer["data"] for number in row), answer


@check
def every_task():
    """models.list names every model under the title of its task, page by page"""
    found = {}
    for model in client.ai.models.list(account_id=ACCOUNT, per_page=5):
        found[model["name"]] = model["task"]["id"]
        equal(model["task"]["name"], TASKS[model["task"]["id"]])
    equal(found, MODELS)
    equal(set(MODELS.values()), set(TASKS))


@check
def models_of_a_task():
    """models.list by task, by author and by part of a name gives those and no others"""
    for task, title in TASKS.items():
        listed = client.ai.models.list(account_id=ACCOUNT, task=title)
        wanted = [model for model, its in MODELS.items() if its == task]
        equal([model["name"] for model in listed], wanted)
    listed = client.ai.models.list(account_id=ACCOUNT, author="builtin")
    equal([model["name"] for model in listed], [f"@cf/builtin/{task}" for task in TASKS])
    listed = client.ai.models.list(account_id=ACCOUNT, search="TRANSLAT")
    equal({model["task"]["id"] for model in listed}, {"translation"})


@of(*[task for task in TASKS if task != "dumb-pipe"])
def schemas(model):
    """models.schema.get gives what the task takes and gives"""
    schema = client.ai.models.schema.get(account_id=ACCOUNT, model=model)
    assert schema.input.description and schema.output.description, schema
    equal(schema.input.type, "object")
    named = schema.to_dict()["input"]["properties"]
    for pointer, _ in REFUSED[MODELS[model]]:
        assert pointer.split("/")[1] in named, f"{pointer} is not of {list(named)}"


@of("dumb-pipe")
def no_schema(model):
    """models.schema.get says that anything goes"""
    schema = client.ai.models.schema.get(account_id=ACCOUNT, model=model)
    equal(schema.to_dict(), {"input": {}, "output": {}})


# Input that is wrong whoever checks it, with its place. What the client's own parameters cannot
# say stands in `extra_body`; None is sent as null, which is as good as nothing.
REFUSED = {
    "text-generation": [
        ("/prompt", {}),
        ("/prompt", {"prompt": ""}),
        ("/prompt", {"prompt": 7}),
        ("/prompt", {"prompt": None}),
        ("/messages", {"messages": []}),
        ("/messages/1", {"messages": [{"role": "user", "content": "a"}, "b"]}),
        ("/max_tokens", {"prompt": "a", "max_tokens": "many"}),
        ("/temperature", {"prompt": "a", "temperature": "hot"}),
        ("/stop", {"prompt": "a", "extra_body": {"stop": 7}}),
    ],
    "text-classification": [
        ("/text", {}),
        ("/text", {"text": ""}),
        ("/text", {"text": None}),
        ("/text", {"text": ["a"]}),
    ],
    "text-embeddings": [
        ("/text", {}),
        ("/text", {"text": ""}),
        ("/text", {"text": 7}),
        ("/text", {"text": None}),
        ("/text", {"text": []}),
        ("/text", {"text": ["a"] * (TEXTS_MAX + 1)}),
        ("/text/1", {"text": ["a", ""]}),
        ("/text/1", {"text": ["a", 7]}),
    ],
    "text-to-image": [
        ("/prompt", {}),
        ("/prompt", {"prompt": ""}),
        ("/width", {"prompt": "a", "width": 1}),
        ("/height", {"prompt": "a", "height": 4096}),
        ("/num_steps", {"prompt": "a", "num_steps": 5.5}),
        ("/image/1", {"prompt": "a", "image": [1, 256]}),
        ("/image_b64", {"prompt": "a", "image_b64": ""}),
    ],
    "text-to-speech": [
        ("/text", {}),
        ("/prompt", {"prompt": ""}),
        ("/prompt", {"prompt": {}}),
        ("/prompt", {"prompt": None}),
        ("/lang", {"prompt": "a", "lang": ""}),
    ],
    "automatic-speech-recognition": [
        ("/audio", {}),
        ("/audio", {"audio": []}),
        ("/audio/1", {"audio": [1, 256]}),
        ("/audio", {"extra_body": {"audio": "not base64!"}}),
        ("/source_lang", {"audio": [1], "source_lang": 7}),
    ],
    "image-classification": [
        ("/image", {}),
        ("/image", {"image": []}),
        ("/image", {"image": 7}),
        ("/image/1", {"image": [1, "2"]}),
    ],
    "image-to-text": [
        ("/image", {"prompt": "a"}),
        ("/image", {"image": "not base64!"}),
        ("/prompt", {"image": [1], "prompt": ""}),
        ("/max_tokens", {"image": [1], "max_tokens": 0}),
    ],
    "image-text-to-text": [
        ("/messages", {}),
        ("/messages", {"image": "AAAA", "messages": []}),
        ("/messages/0/role", {"messages": [{"content": "a"}]}),
        ("/image", {"image": "not base64!", "prompt": "a"}),
        ("/image", {"image": None, "prompt": "a"}),
        ("/prompt", {"image": "AAAA", "prompt": ""}),
    ],
    "object-detection": [
        ("/image", {}),
        ("/image", {"image": ""}),
        ("/image/0", {"image": [-1]}),
        ("/threshold", {"image": [1], "extra_body": {"threshold": 2}}),
    ],
    "translation": [
        ("/text", {"target_lang": "fr"}),
        ("/target_lang", {"text": "a"}),
        ("/text", {"text": "", "target_lang": "fr"}),
        ("/target_lang", {"text": "a", "target_lang": 7}),
        ("/source_lang", {"text": "a", "target_lang": "fr", "source_lang": ["en"]}),
    ],
    "summarization": [
        ("/input_text", {}),
        ("/input_text", {"input_text": ""}),
        ("/max_length", {"input_text": "a", "max_length": -1}),
        ("/max_length", {"input_text": "a", "max_length": "short"}),
    ],
    "multimodal-embeddings": [
        ("/text", {}),
        ("/text", {"text": []}),
        ("/text/1", {"text": ["a", ""]}),
        ("/image", {"image": "not base64!"}),
        ("/image", {"image": None}),
        ("/text", {"text": ["a"] * (TEXTS_MAX + 1)}),
    ],
}


@of(*REFUSED)
def refused(model):
    """what the task does not take is a BadRequestError with code 5006 and its place"""
    for pointer, options in REFUSED[MODELS[model]]:
        assert_refused(model, pointer, **options)


@of("text-generation", "image-text-to-text")
def out_of_range(model):
    """a number out of its range is refused where a schema is enforced, else left to the server"""
    options = {**echoing(model), "temperature": 77}
    if is_checked(model):
        assert_refused(model, "/temperature", **options)
    else:
        equal(ask(model, **options)["response"], WORDS)


@of("text-to-image", "text-to-speech")
def refused_raw(model):
    """where bytes are expected, wrong input is the same error"""
    assert_refused(model, "/prompt", function=raw, prompt=7)


@of("text-generation")
def generation(model):
    """a prompt and messages are answered with their usage"""
    for options in (
        {"prompt": f"echo: {WORDS}"},
        {"messages": [{"role": "user", "content": f"echo: {WORDS}"}]},
    ):
        answer = ask(model, **options)
        equal(answer["response"], WORDS)
        usage = answer["usage"]
        equal(usage["completion_tokens"], len(WORDS.split(" ")))
        equal(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])


@of("text-generation")
def generation_edges(model):
    """limits, a system message, nulls, tools and members nobody knows are taken"""
    equal(ask(model, prompt="echo: one two three", max_tokens=2)["response"], "one two")
    chat = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "echo: in parts"}]},
    ]
    equal(ask(model, messages=chat, temperature=0.5, seed=7)["response"], "in parts")
    # The client sends None as null.
    equal(ask(model, prompt="echo: hi", max_tokens=None, top_p=None)["response"], "hi")
    tool = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
    equal(ask(model, messages=chat, tools=[tool])["response"], "in parts")
    unknown = {"unknown": {"a": [1]}, "x_client_id": "c"}
    equal(ask(model, prompt="echo: hi", extra_body=unknown)["response"], "hi")
    assert ask(model, prompt=LONG)["response"], "nothing said about a long prompt"


@of("text-generation", "image-text-to-text")
def streams(model):
    """a stream is pieces that add up, usage in the last one, then [DONE]"""
    equal(streamed(model), (WORDS, len(WORDS.split(" "))))


def streamed(model):
    """What a stream said, and the tokens it counted."""
    with client.ai.with_streaming_response.run(
        model, account_id=ACCOUNT, stream=True, **echoing(model)
    ) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream"), answer.headers
        return said([line for line in answer.iter_lines() if line])


def said(lines):
    equal(lines[-1], "data: [DONE]")
    pieces = [json.loads(line[len("data: ") :]) for line in lines[:-1]]
    return "".join(piece["response"] for piece in pieces), pieces[-1]["usage"]["completion_tokens"]


def echoing(model):
    options = {"prompt": f"echo: {WORDS}"}
    if MODELS[model] == "image-text-to-text":
        options["image"] = "AAAA"
    return options


@of("text-generation")
def stream_class(model):
    """the client's Stream decodes the pieces, and may be left"""
    # Read to its end it fails at [DONE], which is no JSON, here as anywhere.
    with client.post(
        path(model),
        cast_to=object,
        body={"prompt": "echo: a b c", "stream": True},
        stream=True,
        stream_cls=cloudflare.Stream[object],
    ) as stream:
        pieces = [piece["response"] for piece in stream_head(stream, 3)]
    equal("".join(pieces), "a b c")


def stream_head(stream, count):
    """The first pieces that say something."""
    return list(itertools.islice((piece for piece in stream if piece["response"]), count))


@of("text-generation")
def stream_async(model):
    """the asynchronous client streams too"""

    async def go():
        async with cloudflare.AsyncCloudflare(**OPTIONS) as busy:
            async with busy.ai.with_streaming_response.run(
                model, account_id=ACCOUNT, stream=True, **echoing(model)
            ) as answer:
                return said([line async for line in answer.iter_lines() if line])

    equal(asyncio.run(go()), (WORDS, len(WORDS.split(" "))))


@of("text-generation")
def stream_refused(model):
    """a stream of wrong input is the same error before it begins"""
    assert_refused(model, "/prompt", function=raw, prompt=7, stream=True)


@of("text-classification")
def classification(model):
    """labels with scores; any script, a long text and members nobody knows are taken"""
    for text in ("fine", WORDS, LONG):
        rows = ask(model, text=text, extra_body={"unknown": [1]})
        assert_labels(rows)
        equal([row["label"] for row in rows], ["POSITIVE", "NEGATIVE"])


@of("text-embeddings")
def embeddings(model):
    """one text or a list become rows with their shape"""
    assert_vectors(ask(model, text="a"), 1)
    pair = ask(model, text=["a", WORDS])
    assert_vectors(pair, 2)
    assert pair["data"][0] != pair["data"][1], "two texts, one vector"
    equal(ask(model, text=WORDS)["data"], pair["data"][1:])


@of("text-embeddings")
def embeddings_edges(model):
    """a hundred texts in their order, a long one and members nobody knows are taken"""
    texts = [f"text {number}" for number in range(TEXTS_MAX)]
    all_at_once = ask(model, text=texts)
    assert_vectors(all_at_once, TEXTS_MAX)
    equal(all_at_once["data"][99:], ask(model, text="text 99")["data"])
    assert_vectors(ask(model, text=LONG), 1)
    assert_vectors(ask(model, text=" ", extra_body={"unknown": {"a": 1}}), 1)


@of("text-to-image")
def image(model):
    """an image comes as its bytes, the same in each of the client's ways to read them"""
    options = {"prompt": WORDS, "width": 256, "height": 512, "num_steps": 4, "seed": 7}
    answer = raw(model, **options)
    equal(answer.headers["content-type"], "image/png")
    whole = answer.read()
    assert_png(whole, 256, 512)
    with client.ai.with_streaming_response.run(model, account_id=ACCOUNT, **options) as answer:
        equal(answer.status_code, 200)
        assert b"".join(answer.iter_bytes()) == whole, "read in pieces it is another image"


def assert_png(content, width, height):
    equal(content[:8], b"\x89PNG\r\n\x1a\n")
    sides = content[16:20], content[20:24]
    equal([int.from_bytes(side, "big") for side in sides], [width, height])


@of("text-to-image")
def image_edges(model):
    """an image to begin with in each form, nulls, and an answer in JSON are taken"""
    size = {"width": 256, "height": 256}
    for start in forms("image/png", PICTURE):
        extra = {"image": start, "unknown": 1}
        assert_png(raw(model, prompt="a", strength=0.5, extra_body=extra, **size).read(), 256, 256)
    assert_png(raw(model, prompt="a", negative_prompt=None, seed=None, **size).read(), 256, 256)
    in_json = ask(model, prompt="a", extra_headers={"x-sim-answer": "json"}, **size)
    equal(list(in_json), ["image"])
    assert_png(base64.b64decode(in_json["image"]), 256, 256)


@of("text-to-speech")
def speech(model):
    """a sound comes as its bytes, the same in each of the client's ways to read them"""
    for name in ("prompt", "text"):
        options = {name: "one two", "lang": "fr"}
        answer = raw(model, **options)
        equal(answer.headers["content-type"], "audio/wav")
        whole = answer.read()
        assert_wav(whole, 2)
        with client.ai.with_streaming_response.run(model, account_id=ACCOUNT, **options) as answer:
            assert b"".join(answer.iter_bytes()) == whole, "read in pieces it is another sound"


def assert_wav(content, words):
    """The simulator says a word in a tenth of a second."""
    with wave.open(io.BytesIO(content)) as sound:
        equal(sound.getnframes() * 10, words * sound.getframerate())


@of("text-to-speech")
def speech_edges(model):
    """any script, a member nobody knows, no language, and an answer in JSON are taken"""
    words = len(WORDS.split())
    assert_wav(raw(model, prompt=WORDS, lang=None, extra_body={"unknown": 1}).read(), words)
    in_json = ask(model, prompt="one", extra_headers={"x-sim-answer": "json"})
    equal(list(in_json), ["audio"])
    assert_wav(base64.b64decode(in_json["audio"]), 1)


@of("automatic-speech-recognition")
def recognition(model):
    """a sound becomes a text with its words and subtitles, however it was sent"""
    answers = [ask(model, audio=form) for form in forms("audio/wav", SOUND)]
    for kind in ("audio/wav", "application/octet-stream"):
        answers.append(result(posted(model, SOUND, kind)))
    # All forms are the same to the server.
    for heard in answers:
        equal(heard, answers[0])
    # Without a language, and with a member nobody knows.
    answers.append(ask(model, audio=list(SOUND), source_lang=None, extra_body={"unknown": [1]}))
    for heard in (answers[0], answers[-1]):
        equal(set(heard), {"text", "word_count", "words", "vtt"})
        equal(heard["word_count"], 3)
        equal(" ".join(word["word"] for word in heard["words"]), heard["text"])
        assert all(word["start"] < word["end"] for word in heard["words"]), heard
        assert heard["vtt"].startswith("WEBVTT\n"), heard


@of("automatic-speech-recognition", "image-classification", "image-to-text", "object-detection")
def empty_file(model):
    """an empty body is no file, and parts are not taken"""
    errors = [raises(cloudflare.BadRequestError, posted, model, b"", "image/png")]
    parts = {
        "cast_to": httpx.Response,
        "files": {"file": PICTURE},
        "options": {"headers": {"Content-Type": "multipart/form-data"}},
    }
    errors.append(raises(cloudflare.BadRequestError, client.post, path(model), **parts))
    for error in errors:
        equal([one.code for one in error.errors], [5006])


@of("image-classification", "object-detection")
def images(model):
    """an image becomes labels, or boxes, however it was sent"""
    has_boxes = MODELS[model] == "object-detection"
    more = ["box"] if has_boxes else []
    answers = [ask(model, image=form) for form in forms("image/png", PICTURE)]
    answers += [result(posted(model, PICTURE, kind)) for kind in ("image/png", "text/plain")]
    for rows in answers:
        equal(rows, answers[0])
    assert_labels(answers[0], more)
    for row in answers[0] if has_boxes else []:
        place = row["box"]
        equal(set(place), {"xmin", "ymin", "xmax", "ymax"})
        assert place["xmin"] < place["xmax"] and place["ymin"] < place["ymax"], place
    assert_labels(ask(model, image=[0] * 50_000, extra_body={"unknown": 1}), more)


@of("image-to-text")
def description(model):
    """an image is described, however it was sent, by the prompt where there is one"""
    answers = [ask(model, image=form) for form in forms("image/png", PICTURE)]
    answers.append(result(posted(model, PICTURE, "image/jpeg")))
    for answer in answers:
        equal(answer, answers[0])
        assert isinstance(answer["description"], str) and answer["description"], answer
    asked = {"image": list(PICTURE), "prompt": f"echo: {WORDS}", "max_tokens": 99, "seed": 7}
    equal(ask(model, **asked, extra_body={"unknown": 1}), {"description": WORDS})


@of("image-text-to-text")
def question(model):
    """a question about an image is answered, as a prompt and as messages"""
    for form in forms("image/png", PICTURE):
        equal(ask(model, image=form, prompt=f"echo: {WORDS}")["response"], WORDS)
    parts = [
        {"type": "text", "text": f"echo: {WORDS}"},
        {"type": "image_url", "image_url": {"url": data_uri("image/png", PICTURE)}},
    ]
    answer = ask(model, messages=[{"role": "user", "content": parts}], max_tokens=None)
    equal(answer["response"], WORDS)
    equal(answer["usage"]["completion_tokens"], len(WORDS.split(" ")))


@of("translation")
def translation(model):
    """a text is translated; any script, no source language and unknown members are taken"""
    unknown = {"extra_body": {"unknown": {"a": [1]}}}
    for options in ({}, {"source_lang": "en"}, {"source_lang": None}, unknown):
        answer = ask(model, text=f"echo: {WORDS}", target_lang="french", **options)
        equal(answer, {"translated_text": WORDS})
    assert ask(model, text=LONG, target_lang="fr")["translated_text"], "nothing of a long text"


@of("summarization")
def summarization(model):
    """a text is made shorter, and no longer than max_length"""
    equal(ask(model, input_text=f"echo: {WORDS}"), {"summary": WORDS})
    equal(ask(model, input_text="echo: one two three", max_length=2), {"summary": "one two"})
    odd = {"max_length": None, "extra_body": {"unknown": 1}}
    equal(ask(model, input_text="echo: a", **odd), {"summary": "a"})
    assert ask(model, input_text=LONG)["summary"], "nothing of a long text"


@of("multimodal-embeddings")
def multimodal(model):
    """texts and images become rows of one width"""
    assert_vectors(ask(model, text=["a", WORDS]), 2)
    texts = [f"text {number}" for number in range(TEXTS_MAX)]
    assert_vectors(ask(model, text=texts), TEXTS_MAX)
    for form in forms("image/png", PICTURE):
        assert_vectors(ask(model, image=form, extra_body={"unknown": 1}), 1)


@of("dumb-pipe")
def pipe(model):
    """anything passes unchanged both ways: JSON without an envelope, and bytes"""
    answer = raw(model, text=WORDS, extra_body={"unknown": {"a": [1, None]}})
    equal(answer.http_response.json(), {"text": WORDS, "unknown": {"a": [1, None]}})
    every_byte = bytes(range(256)) * 300
    for content in (every_byte, b"\0", b""):
        answer = posted(model, content, "application/x-anything; v=1")
        equal(answer.headers["content-type"], "application/x-anything; v=1")
        assert answer.content == content, f"{len(content)} bytes came back as {len(answer.content)}"


@check
def all_at_once():
    """every model of every text task at once, by the asynchronous client"""
    inputs = {
        "text-generation": ({"prompt": "echo: x"}, lambda answer: answer["response"]),
        "translation": ({"text": "echo: x", "target_lang": "fr"}, lambda a: a["translated_text"]),
        "summarization": ({"input_text": "echo: x"}, lambda answer: answer["summary"]),
        "text-classification": ({"text": "x"}, lambda rows: "x" if rows[0]["label"] else ""),
        "text-embeddings": ({"text": "x"}, lambda answer: "x" * answer["shape"][0]),
        "multimodal-embeddings": ({"text": ["x"]}, lambda answer: "x" * answer["shape"][0]),
    }

    async def one(busy, model, task):
        options, read = inputs[task]
        return read(plain(await busy.ai.run(model, account_id=ACCOUNT, **options)))

    async def go():
        asked = [pair for pair in MODELS.items() if pair[1] in inputs] * 4
        async with cloudflare.AsyncCloudflare(**OPTIONS) as busy:
            answers = await asyncio.gather(*(one(busy, *pair) for pair in asked))
        equal(answers, ["x"] * len(asked))

    asyncio.run(go())


run("cloudflare-python tasks")
