"""The unmodified openai package for Python: images, speech, transcriptions and responses; reranks by plain HTTP.

Environment: as in `openai_checks.py`. Each check reads what the event of its request is billed by.
"""

import base64
import io
import os
import pathlib
import sys
import wave

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))

import httpx  # noqa: E402
import openai  # noqa: E402
from checks import check, equal, raises, run  # noqa: E402
from crowd import mark, requests_since  # noqa: E402

KEY = "sdk-key"
client = openai.OpenAI(base_url=os.environ["CROWDED_URL"] + "/v1", api_key=KEY, max_retries=0)
PNG = b"\x89PNG\r\n\x1a\n"


def sound(seconds):
    """A silent WAV file of 8 kHz."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(8000)
        out.writeframes(bytes(16000 * seconds))
    return file.getvalue()


def billed(before, **expected):
    """Checks the one event since: completed, with these metrics."""
    [event] = requests_since(before, 1)
    equal((event["outcome"], event["face"]), ("completed", "openai"))
    for name, value in expected.items():
        equal((name, event["metrics"].get(name)), (name, value))
    assert event["neurons"] > 0, event
    return event


@check
def images():
    """images come as base64 and as addresses, and are counted"""
    before = mark()
    answer = client.images.generate(model="pictures", prompt="a cat", n=2, size="256x256")
    assert all(base64.b64decode(one.b64_json).startswith(PNG) for one in answer.data)
    billed(before, output_images=2, input_characters=5, image_tiles=2)
    before = mark()
    answer = client.images.generate(model="pictures", prompt="a cat", response_format="url")
    assert answer.data[0].url.startswith("https://"), answer
    billed(before, output_images=1)


@check
def image_stream():
    """partial images come as events"""
    before = mark()
    stream = client.images.generate(
        model="pictures", prompt="a cat", stream=True, partial_images=2
    )
    kinds = [event.type for event in stream]
    equal(kinds, ["image_generation.partial_image"] * 2 + ["image_generation.completed"])
    billed(before, output_images=1)


@check
def speech():
    """a text is spoken, whole and streamed"""
    before = mark()
    answer = client.audio.speech.create(model="voice", voice="alloy", input="one two")
    assert answer.read().startswith(b"RIFF"), "no sound"
    billed(before, input_characters=7)
    before = mark()
    options = {"model": "voice", "voice": "alloy", "input": "one two three"}
    with client.audio.speech.with_streaming_response.create(**options) as answer:
        read = b"".join(answer.iter_bytes())
    equal(len(read), 44 + 3 * 1600)
    billed(before, input_characters=13)


@check
def speech_events():
    """speech comes as events where their format is asked for"""
    before = mark()
    options = {"model": "voice", "voice": "alloy", "input": "one", "stream_format": "sse"}
    with client.audio.speech.with_streaming_response.create(**options) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert "speech.audio.delta" in lines[0] and "speech.audio.done" in lines[-1], lines
    billed(before, input_characters=3)


@check
def transcription():
    """a sound is written down, in each form, and billed by its seconds"""
    options = {"model": "ears", "prompt": "echo: good morning"}
    before = mark()
    answer = client.audio.transcriptions.create(file=("a.wav", sound(3)), **options)
    equal(answer.text, "good morning")
    event = billed(before, audio_seconds=3)
    equal(event["metrics_source"], "reported")
    before = mark()
    text = client.audio.transcriptions.create(
        file=("a.wav", sound(2)), response_format="text", **options
    )
    equal(text, "good morning\n")
    billed(before, audio_seconds=2)
    before = mark()
    verbose = client.audio.transcriptions.create(
        file=("a.wav", sound(1)), response_format="verbose_json", **options
    )
    equal(verbose.duration, 1.0)
    billed(before, audio_seconds=1)


@check
def transcription_stream():
    """a transcription is streamed"""
    before = mark()
    stream = client.audio.transcriptions.create(
        file=("a.wav", sound(2)), model="ears", prompt="echo: good morning", stream=True
    )
    events = list(stream)
    equal([event.type for event in events], ["transcript.text.delta"] * 2 + ["transcript.text.done"])
    equal(events[-1].text, "good morning")
    billed(before, audio_seconds=2)


@check
def translation():
    """a sound is translated"""
    before = mark()
    answer = client.audio.translations.create(
        file=("a.wav", sound(1)), model="ears", prompt="echo: hello"
    )
    equal(answer.text, "hello")
    billed(before, audio_seconds=1)


@check
def responses():
    """a response is given, whole and streamed"""
    before = mark()
    answer = client.responses.create(model="acme/echo", input="echo: a warm gate")
    equal(answer.output_text, "a warm gate")
    billed(before, output_tokens=3)
    before = mark()
    stream = client.responses.create(model="acme/echo", input="echo: a warm gate", stream=True)
    events = list(stream)
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    equal("".join(texts), "a warm gate")
    equal(events[-1].type, "response.completed")
    billed(before, output_tokens=3)


@check
def broken_stream():
    """a server that breaks off is an APIError, never a quiet end"""
    stream = client.responses.create(
        model="acme/echo",
        input="hello there",
        stream=True,
        extra_body={"x_sim_fault": "reset-mid-stream"},
    )
    raises(openai.APIError, list, stream)


@check
def refusals():
    """another model's API and another shape are BadRequestErrors with their place"""
    error = raises(openai.BadRequestError, client.images.generate, model="voice", prompt="x")
    equal((error.code, error.param), ("invalid_value", "/model"))
    error = raises(openai.BadRequestError, client.images.generate, model="pictures", prompt="")
    equal(error.param, "/prompt")
    error = raises(openai.BadRequestError, client.responses.create, model="ears", input="x")
    equal(error.param, "/model")


@check
def ranks():
    """documents are ranked, by plain HTTP"""
    before = mark()
    body = {
        "model": "ranks",
        "query": "warm gate",
        "documents": ["a cold door", "a warm gate"],
        "top_n": 1,
    }
    url = os.environ["CROWDED_URL"] + "/v1/rerank"
    answer = httpx.post(url, json=body, headers={"authorization": f"Bearer {KEY}"}, timeout=60)
    [best] = answer.json()["results"]
    equal((answer.status_code, best["index"], best["relevance_score"]), (200, 1, 1.0))
    event = billed(before)
    assert event["metrics"]["input_tokens"] > 0, event


run("openai-python media")
