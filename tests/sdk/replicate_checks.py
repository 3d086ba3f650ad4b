"""The unmodified replicate package for Python against the gateway's durable jobs.

Environment: as in `openai_checks.py`. `acme/echo` answers at once, `acme/slow` and `acme/lone`, which has
one permit, after a minute. The trainer of
`acme/echo` answers with the request that it was sent.
"""

import asyncio
import io
import os
import pathlib
import sys
import time
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))

import replicate  # noqa: E402
from checks import at_once, check, equal, raises, run  # noqa: E402
from replicate.exceptions import ModelError, ReplicateError  # noqa: E402

from outside import until  # noqa: E402

ECHO, SLOW, LONE = "acme/echo", "acme/slow", "acme/lone"
INPUT = {"prompt": "echo: a warm gate"}
# One more than two parts of a list have. The account `other` has no further ones.
MANY = 201
# A job that is not waited for is seen to be started within this.
START_LIMIT_SECS = 30


def client(key="sdk-key", **headers):
    # Further headers of every request: the library has no option for them.
    found = replicate.Client(api_token=key, base_url=os.environ["CROWDED_URL"])
    found._client.headers.update({name.replace("_", "-"): text for name, text in headers.items()})
    found.poll_interval = 0.05
    return found


sdk = client()


def newest_version(model=ECHO):
    return sdk.models.get(model).latest_version


def create(use=sdk, model=ECHO, input=INPUT, **options):
    return use.models.predictions.create(model=model, input=input, **options)


def started(prediction):
    def is_started():
        prediction.reload()
        return prediction.status == "processing"

    until(is_started, "the job is started", START_LIMIT_SECS)
    return prediction


@check
def run_blocking():
    """run waits for the output of a model"""
    output = sdk.run(ECHO, input=INPUT)
    equal("".join(output), "a warm gate")


@check
def demo():
    """the demo runs, streams, shows, lists and cancels predictions, and refuses wrong inputs"""
    model = "meta/llama-3.1-8b-instruct"
    of_demo = replicate.Client(api_token="demo-key", base_url=os.environ["DEMO_URL"])
    made = create(of_demo, model=model, input={"prompt": "hello"}, wait=5)
    made.wait()
    equal(made.status, "succeeded")
    assert "".join(made.output), made
    assert "".join(of_demo.run(model, input={"prompt": "hello"})), "an output"
    assert "".join(str(event) for event in of_demo.stream(model, input={"prompt": "hi"})), "a stream"
    equal(of_demo.predictions.get(made.id).id, made.id)
    assert made.id in [one.id for one in of_demo.predictions.list().results]
    # A canceled prediction may have ended before.
    ended = of_demo.predictions.cancel(create(of_demo, model=model, input={"prompt": "x"}).id)
    assert ended.status in ("canceled", "succeeded", "processing"), ended.status
    equal(raises(ReplicateError, create, of_demo, model=model, input={"prompt": 7}).status, 422)
    assert of_demo.models.get(model).latest_version.openapi_schema["components"]["schemas"]["Input"]


@check
def run_version():
    """run of a version goes through the output piece by piece"""
    output = sdk.run(f"{ECHO}:{newest_version().id}", input=INPUT)
    assert not isinstance(output, list), output
    equal("".join(output), "a warm gate")


@check
def run_polling():
    """run without waiting polls until the end"""
    equal("".join(sdk.run(ECHO, input=INPUT, wait=False)), "a warm gate")
    output = sdk.run(f"{ECHO}:{newest_version().id}", input=INPUT, wait=False)
    equal("".join(output), "a warm gate")


@check
def run_async():
    """async_run waits for the output of a model"""

    async def ask():
        return await client().async_run(ECHO, input=INPUT)

    equal("".join(asyncio.run(ask())), "a warm gate")


@check
def run_failing():
    """what the model refuses is a ModelError with its sentence"""
    error = raises(ModelError, sdk.run, ECHO, input={"prompt": "x", "x_sim_fault": "status=400"})
    equal(error.prediction.status, "failed")
    assert error.prediction.error, error


@check
def input_refused():
    """an input that does not fit is refused at once, by its field"""
    before = len(sdk.predictions.list().results)
    error = raises(ReplicateError, sdk.run, ECHO, input={"prompt": 7})
    equal((error.status, error.title), (422, "Input validation failed"))
    assert "/input/prompt" in error.detail, error.detail
    equal(len(sdk.predictions.list().results), before)


@check
def over_quota():
    """a create of an account whose day is spent is a 429, and starts nothing"""
    spent = client("spent-key")
    equal(create(spent, wait=True).status, "succeeded")
    error = raises(ReplicateError, create, spent)
    equal(error.status, 429)
    equal(len(spent.predictions.list().results), 1)


@check
def never_started():
    """a prediction whose own deadline passes before its start is canceled for the library, aborted in truth"""
    held = create(model=LONE)
    started(held)
    late = create(client(cancel_after="5s"), model=LONE)
    late.wait()
    equal((late.status, late.started_at), ("canceled", None))
    shown = sdk._client.get(late.urls["get"]).json()
    equal(shown["infergate"]["status"], "aborted")
    held.cancel()


@check
def create_wait():
    """a prediction is created, waited for and told with its times"""
    prediction = create()
    assert prediction.status in ("starting", "processing", "succeeded"), prediction.status
    equal((prediction.model, prediction.input), (ECHO, INPUT))
    prediction.wait()
    equal((prediction.status, prediction.error), ("succeeded", None))
    equal("".join(prediction.output), "a warm gate")
    times = (prediction.created_at, prediction.started_at, prediction.completed_at)
    equal(times, tuple(sorted(times)))
    assert prediction.metrics["predict_time"] >= 0, prediction.metrics
    assert prediction.urls["get"].endswith(f"/v1/predictions/{prediction.id}"), prediction.urls


@check
def create_of_version():
    """a prediction is created of a version, by object, id and name"""
    version = newest_version()
    for named in (version, version.id, ECHO, f"{ECHO}:{version.id}"):
        prediction = sdk.predictions.create(version=named, input=INPUT, wait=True)
        equal((prediction.status, prediction.version), ("succeeded", version.id))


@check
def get_and_reload():
    """a prediction is got by its id and reloaded"""
    prediction = create()
    got = sdk.predictions.get(prediction.id)
    equal((got.id, got.created_at), (prediction.id, prediction.created_at))
    got.wait()
    prediction.reload()
    equal((prediction.status, prediction.output), (got.status, got.output))


@check
def wait_some_seconds():
    """wait=5 answers with the end, or after five seconds with a prediction that goes on"""
    equal(create(wait=5).status, "succeeded")
    begun = time.monotonic()
    prediction = create(model=SLOW, wait=5)
    took = time.monotonic() - begun
    assert 4 < took < 20, took
    equal(prediction.status, "starting")
    equal(sdk.predictions.get(prediction.id).status, "processing")
    prediction.cancel()
    equal(prediction.status, "canceled")


@check
def cancel():
    """a running prediction is canceled, and canceling it again changes nothing"""
    prediction = started(create(model=SLOW))
    prediction.cancel()
    equal((prediction.status, prediction.output), ("canceled", None))
    ended = prediction.completed_at
    again = sdk.predictions.cancel(prediction.id)
    equal((again.status, again.completed_at), ("canceled", ended))
    prediction = create(wait=True)
    prediction.cancel()
    equal(prediction.status, "succeeded")


@check
def canceled_while_waiting():
    """wait ends when somebody cancels"""
    prediction = started(create(model=SLOW))
    sdk.predictions.cancel(prediction.id)
    prediction.wait()
    equal(prediction.status, "canceled")


@check
def paginate():
    """the list comes newest first in parts of 100, each prediction once"""
    own = client("other-key")
    first = create(own).id
    made = {one.id for one in at_once(MANY - 2, lambda _: create(own))}
    last = create(own).id
    equal(len(made | {first, last}), MANY)
    pages = list(replicate.pagination.paginate(own.predictions.list))
    listed = [one for page in pages for one in page.results]
    equal([len(page) for page in pages], [100, 100, 1])
    equal((listed[0].id, listed[-1].id), (last, first))
    equal({one.id for one in listed}, made | {first, last})


@check
def foreign_prediction():
    """another account's prediction is unknown"""
    prediction = create(wait=True)
    stranger = client("other-key")
    for ask in (stranger.predictions.get, stranger.predictions.cancel):
        equal(raises(ReplicateError, ask, prediction.id).status, 404)


def train(use=sdk, **input):
    version = f"{ECHO}:{newest_version().id}"
    return use.trainings.create(version=version, destination="acme/tuned", input={"steps": 3, **input})


@check
def training():
    """a training is created, got, waited for and listed, apart from predictions"""
    made = train()
    equal((made.model, made.version, made.destination), (ECHO, newest_version().id, "acme/tuned"))

    def is_over():
        made.reload()
        return made.status == "succeeded"

    until(is_over, "the training is over", START_LIMIT_SECS)
    equal(made.output["steps"], 3)
    equal(made.output["context"]["destination"], "acme/tuned")
    assert made.urls["cancel"].endswith(f"/v1/trainings/{made.id}/cancel"), made.urls
    got = sdk.trainings.get(made.id)
    equal((got.status, got.completed_at), ("succeeded", made.completed_at))
    equal(sdk.trainings.list().results[0].id, made.id)
    assert made.id not in [one.id for one in sdk.predictions.list().results]
    equal(raises(ReplicateError, client("other-key").trainings.get, made.id).status, 404)


@check
def training_canceled():
    """a running training is canceled, by its method and by its id"""
    for cancel in (lambda one: one.cancel(), lambda one: sdk.trainings.cancel(one.id)):
        made = train(**{"x-sim-fault": "stall"})
        started(made)
        cancel(made)
        equal(sdk.trainings.get(made.id).status, "canceled")


@check
def training_refused():
    """a model without a trainer and a wrong destination are refused"""
    slow = f"{SLOW}:{newest_version(SLOW).id}"
    error = raises(
        ReplicateError, sdk.trainings.create, version=slow, destination="a/b", input={}
    )
    equal(error.status, 422)
    assert "trainer" in error.detail, error.detail


@check
def catalogue():
    """models, versions, hardware, account and search show what there is"""
    model = sdk.models.get(ECHO)
    equal((model.owner, model.name, model.id), ("acme", "echo", ECHO))
    version = model.latest_version
    equal([one.id for one in model.versions.list()], [version.id])
    equal(model.versions.get(version.id).id, version.id)
    schemas = version.openapi_schema["components"]["schemas"]
    assert "prompt" in schemas["Input"]["properties"], schemas
    equal(schemas["Output"]["type"], "array")
    assert all(one.sku and one.name for one in sdk.hardware.list())
    equal(sdk.accounts.current().username, "sdk")
    equal([one.id for one in sdk.models.search("ECHO")], [ECHO])
    equal(sdk.collections.list().results, [])


@check
def model_list():
    """the list of models is parsed, beside OpenAI's under the same path"""
    listed = {one.id for one in sdk.models.list()}
    assert {ECHO, SLOW} <= listed, listed


@check
def deployments():
    """a deployment is made, shown, listed, changed, run and deleted"""
    made = sdk.deployments.create(
        name="python", model=ECHO, version=newest_version().id, hardware="gpu-a100",
        min_instances=0, max_instances=1,
    )
    try:
        equal((made.owner, made.name, made.current_release.number), ("sdk", "python", 1))
        got = sdk.deployments.get("sdk/python")
        release = got.current_release
        equal((release.model, release.version), (ECHO, newest_version().id))
        equal(release.created_by.username, "sdk")
        assert "python" in [one.name for one in sdk.deployments.list().results]
        changed = sdk.deployments.update("sdk", "python", max_instances=3)
        equal(changed.current_release.number, 2)
        equal(changed.current_release.configuration.max_instances, 3)
        prediction = got.predictions.create(input=INPUT)
        prediction.wait()
        equal((prediction.status, "".join(prediction.output)), ("succeeded", "a warm gate"))
        prediction = sdk.deployments.predictions.create("sdk/python", INPUT)
        prediction.wait()
        equal(prediction.status, "succeeded")
        stranger = client("other-key")
        equal(raises(ReplicateError, stranger.deployments.get, "sdk/python").status, 404)
    finally:
        sdk.deployments.delete("sdk", "python")
    equal(raises(ReplicateError, sdk.deployments.get, "sdk/python").status, 404)


@check
def deployments_refused():
    """what cannot be a deployment is refused with its reason"""
    stranger = client("other-key")
    for use, change, status in (
        (sdk, {"hardware": "none"}, 422),
        (sdk, {"model": "acme/nothing"}, 422),
        (sdk, {"version": "0" * 64}, 422),
        (stranger, {}, 403),
    ):
        wanted = {
            "name": "refused", "model": ECHO, "version": newest_version().id,
            "hardware": "gpu-a100", "min_instances": 0, "max_instances": 1, **change,
        }
        error = raises(ReplicateError, use.deployments.create, **wanted)
        equal(error.status, status)


@check
def configured_deployment():
    """a deployment of the configuration runs, and is changed by no one"""
    prediction = sdk.deployments.predictions.create("acme/prod", INPUT)
    prediction.wait()
    equal(prediction.status, "succeeded")
    for change in (
        lambda: sdk.deployments.update("acme", "prod", max_instances=3),
        lambda: sdk.deployments.delete("acme", "prod"),
    ):
        equal(raises(ReplicateError, change).status, 403)


@check
def wrong_key():
    """a wrong key is a ReplicateError with status 401"""
    stranger = client("not-a-key")
    for ask in (lambda: stranger.run(ECHO, input=INPUT), stranger.accounts.current):
        error = raises(ReplicateError, ask)
        equal((error.status, error.title), (401, "Unauthenticated"))


@check
def unknown_names():
    """an unknown version is a 422, an unknown model, version of a model or id a 404"""
    unknown = "0" * 64
    error = raises(ReplicateError, sdk.predictions.create, version=unknown, input=INPUT)
    equal((error.status, error.title), (422, "Invalid version or not permitted"))
    for ask in (
        lambda: sdk.run("acme/nothing", input=INPUT),
        lambda: sdk.models.get("acme/nothing"),
        lambda: sdk.models.get(ECHO).versions.get(unknown),
        lambda: sdk.predictions.get("a" * 26),
        lambda: sdk.predictions.get("nothing"),
        lambda: sdk.predictions.cancel("a" * 26),
    ):
        equal(raises(ReplicateError, ask).status, 404)


@check
def idempotency():
    """a create that is repeated with its key is the same prediction, another one with it is refused"""
    eager = client(idempotency_key=str(uuid.uuid4()))
    first, second = create(eager), create(eager, wait=True)
    equal(second.id, first.id)
    equal(second.status, "succeeded")
    error = raises(ReplicateError, create, eager, input={"prompt": "another"})
    equal(error.status, 422)


@check
def cancel_after():
    """Cancel-After ends a prediction by itself, and is refused when it is no span"""
    hasty = client(cancel_after="5s")
    begun = time.monotonic()
    prediction = create(hasty, model=SLOW)
    prediction.wait()
    equal(prediction.status, "canceled")
    assert time.monotonic() - begun > 4
    equal(create(hasty, wait=True).status, "succeeded")
    for wrong in ("soon", "1s"):
        error = raises(ReplicateError, create, client(cancel_after=wrong))
        equal(error.status, 422)
        assert "Cancel-After" in error.detail, error.detail


@check
def files():
    """files are created, shown, listed and deleted; another account's is a 404"""
    made = sdk.files.create(io.BytesIO(b"0123456789"), filename="a.txt", content_type="text/plain")
    equal((made.name, made.content_type, made.size), ("a.txt", "text/plain", 10))
    equal(made.checksums["sha256"], "84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882")
    equal(sdk.files.get(made.id).id, made.id)
    assert made.id in [file.id for file in sdk.files.list()]
    equal(raises(ReplicateError, client("other-key").files.get, made.id).status, 404)
    sdk.files.delete(made.id)
    equal(raises(ReplicateError, sdk.files.get, made.id).status, 404)


@check
def file_inputs():
    """a file in an input is uploaded, or becomes a data URI"""
    uploaded = create(input={"prompt": io.BytesIO(b"a warm gate")}, wait=True)
    equal(uploaded.status, "succeeded")
    assert "/v1/files/" in uploaded.input["prompt"], uploaded.input
    inline = create(
        input={"prompt": io.BytesIO(b"a warm gate")}, file_encoding_strategy="base64", wait=True
    )
    equal(inline.status, "succeeded")
    assert inline.input["prompt"].startswith("data:"), inline.input


if __name__ == "__main__":
    run("replicate-python")
