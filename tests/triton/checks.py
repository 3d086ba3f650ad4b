"""Checks with an unmodified tritonclient, against the gateway: the server behind it is Triton, or plays it.

GATEWAY is `host:port` of the gateway, EVENTS its file of events, KEY its key. A line for each check on standard output;
exit status 1 when one failed.
"""

import concurrent.futures
import json
import os
import sys
import time
import urllib.error
import urllib.request

import numpy
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

GATEWAY, EVENTS = os.environ["GATEWAY"], os.environ["EVENTS"]
AUTHORIZATION = f"Bearer {os.environ['KEY']}"
# 0.5 + 3 × 0.25 + 2.5 × 0.125 + 4 × 2, as the tariff says.
COST = 9.5625
EVENT_LIMIT_SECS = 20

failed = False


def key():
    """Made anew for each request: the client adds fields of its own to it."""
    return {"Authorization": AUTHORIZATION}


def check(name, action):
    global failed
    try:
        action()
        print(f"ok {name}", flush=True)
    except Exception as problem:  # noqa: BLE001 - any failure is a failed check
        failed = True
        print(f"FAIL {name}: {problem!r} {problem}", flush=True)


def equal(found, expected):
    assert found == expected, f"{found!r}, not {expected!r}"


def tensor(values, binary=True):
    made = triton.InferInput("INPUT0", list(values.shape), "FP32")
    made.set_data_from_numpy(values, binary_data=binary)
    return made


def texts(values, binary=True):
    made = triton.InferInput("INPUT1", [len(values)], "BYTES")
    made.set_data_from_numpy(numpy.array(values, dtype=object), binary_data=binary)
    return made


def infer(inputs, model="echo", client=None, **options):
    client = client or triton.InferenceServerClient(GATEWAY)
    return client.infer(model, inputs, headers=key(), **options)


def names(result):
    return [output["name"] for output in result.get_response()["outputs"]]


def events():
    with open(EVENTS) as file:
        return [json.loads(line) for line in file]


def billed(action, neurons, model):
    """The next event of the model after an action has this price. Events of other models may be late."""

    def own():
        return [event for event in events() if event["model_id"] == model]

    before = len(own())
    action()
    begun = time.monotonic()
    while len(own()) == before:
        assert time.monotonic() - begun < EVENT_LIMIT_SECS, "no event"
        time.sleep(0.02)
    equal(own()[-1]["neurons"], neurons)


def refused(action, status):
    try:
        action()
    except InferenceServerException as error:
        equal(error.status(), status)
        return error.message()
    raise AssertionError("not refused")


def post(path, body):
    request = urllib.request.Request(
        f"http://{GATEWAY}{path}", json.dumps(body).encode(), {**key(), "Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read().decode()
        assert "COST_METRIC" not in text, text
        return text


VALUES = numpy.arange(1000, dtype=numpy.float32) / 7


def pages():
    client = triton.InferenceServerClient(GATEWAY)
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("echo", headers=key())
    assert client.is_model_ready("echo", "1", headers=key())
    assert not client.is_model_ready("none", headers=key())
    for page in (client.get_model_metadata("echo", headers=key()), client.get_model_config("echo", headers=key())):
        equal(page["name"], "echo")
        assert "COST_METRIC" not in json.dumps(page), page
    equal(client.get_inference_statistics("echo", headers=key())["model_stats"][0]["name"], "echo")
    index = client.get_model_repository_index(headers=key())
    equal(sorted(model["name"] for model in index), ["echo", "summary", "text"])
    equal({model["state"] for model in index}, {"READY"})
    equal(client.get_server_metadata(headers=key())["name"], "infergate")


def orders():
    client = triton.InferenceServerClient(GATEWAY)
    refused(lambda: client.load_model("echo", headers=key()), "403")
    refused(lambda: client.unload_model("echo", headers=key()), "403")
    assert client.is_model_ready("echo", headers=key())


def in_binary():
    result = infer([tensor(VALUES), texts([b"a", "ü".encode(), b""])])
    assert (result.as_numpy("OUTPUT0") == VALUES).all()
    equal(list(result.as_numpy("OUTPUT1")), [b"a", "ü".encode(), b""])
    equal(names(result), ["OUTPUT0", "OUTPUT1"])


def in_json():
    outputs = [triton.InferRequestedOutput("OUTPUT0", binary_data=False)]
    result = infer([tensor(VALUES[:3], binary=False), texts([b"a"], binary=False)], outputs=outputs)
    equal(names(result), ["OUTPUT0"])
    assert "parameters" not in result.get_output("OUTPUT0"), result.get_output("OUTPUT0")
    assert numpy.allclose(result.as_numpy("OUTPUT0"), VALUES[:3])


def by_name():
    outputs = [triton.InferRequestedOutput("OUTPUT1")]
    result = infer([tensor(VALUES), texts([b"x", b"y"])], outputs=outputs, request_id="7")
    equal((names(result), result.get_response()["id"]), (["OUTPUT1"], "7"))
    equal(list(result.as_numpy("OUTPUT1")), [b"x", b"y"])


def with_version():
    assert (infer([tensor(VALUES)], model_version="1").as_numpy("OUTPUT0") == VALUES).all()


def large():
    values = numpy.random.default_rng(1).random(1 << 20, dtype=numpy.float32)
    assert (infer([tensor(values)]).as_numpy("OUTPUT0") == values).all()


def faults():
    wrong = triton.InferInput("INPUT0", [2], "FP32")
    wrong.set_data_from_numpy(VALUES[:2], binary_data=True)
    refused(lambda: infer([wrong], model="none"), "404")
    message = refused(lambda: infer([wrong], request_compression_algorithm="gzip"), "400")
    assert "compress" in message or "bytes of JSON" in message, message
    classes = [triton.InferRequestedOutput("OUTPUT0", class_count=2)]
    refused(lambda: infer([wrong], outputs=classes), "400")
    client = triton.InferenceServerClient(GATEWAY)
    refused(lambda: client.infer("echo", [wrong]), "401")


def crowd():
    def ask(number):
        client = triton.InferenceServerClient(GATEWAY)
        values = numpy.full(64, number, dtype=numpy.float32)
        return all((infer([tensor(values)], client=client).as_numpy("OUTPUT0") == values).all() for _ in range(5))

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        assert all(pool.map(ask, range(24)))


def summary():
    answer = json.loads(post("/ai/run/summary", {"input_text": "long echo: in short"}))
    equal(answer["result"], {"summary": "in short"})


def generated():
    answer = json.loads(post("/ai/run/text", {"prompt": "echo: one two three"}))
    equal(answer["result"]["response"], "one two three")


def streamed():
    lines = post("/ai/run/text", {"prompt": "echo: one two three", "stream": True}).splitlines()
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    equal(data[-1], "[DONE]")
    equal("".join(json.loads(piece).get("response") or "" for piece in data[:-1]), "one two three")


check("tritonclient: pages of the gateway and of a model", pages)
check("tritonclient: load and unload are the operator's", orders)
check("tritonclient: tensors in binary", in_binary)
check("tritonclient: tensors in JSON", in_json)
check("tritonclient: outputs by name", by_name)
check("tritonclient: a version", with_version)
check("tritonclient: four megabytes", large)
check("tritonclient: errors", faults)
check("tritonclient: more clients than permits", crowd)
check("tritonclient: costs of all outputs are billed", lambda: billed(in_binary, COST, "echo"))
check("tritonclient: costs are billed where they were not named", lambda: billed(by_name, COST, "echo"))
check("task: a summary by tensors", lambda: billed(summary, COST, "summary"))
# 0.5 + 5 × 0.25 + 3 × 2: the prompt has 19 bytes.
check("task: generated text", lambda: billed(generated, 7.75, "text"))
check("task: generated text as events", lambda: billed(streamed, 7.75, "text"))
sys.exit(1 if failed else 0)
