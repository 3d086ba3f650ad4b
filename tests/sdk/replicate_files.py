"""File outputs behind an https `public_url`, with the unmodified replicate package for Python.

Environment: SECURE_URL and SECURE_CA, the gateway behind TLS and the authority of its certificate.
"""

import io
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
os.environ["SSL_CERT_FILE"] = os.environ["SECURE_CA"]

import httpx  # noqa: E402
import replicate  # noqa: E402
from checks import check, equal, run  # noqa: E402
from replicate.helpers import FileOutput  # noqa: E402

BASE = os.environ["SECURE_URL"]
IMAGE = "acme/image"
PNG = b"\x89PNG\r\n\x1a\n"

sdk = replicate.Client(api_token="secure-key", base_url=BASE)
sdk.poll_interval = 0.05


def picture():
    output = sdk.run(IMAGE, input={"prompt": "a gate"})
    assert isinstance(output, FileOutput), type(output)
    return output


@check
def output_is_a_url():
    """a picture is a FileOutput with a signed https URL, read by the SDK and by a browser without a key"""
    output = picture()
    assert output.url.startswith(f"{BASE}/v1/files/"), output.url
    data = output.read()
    equal(data[:8], PNG)
    equal(b"".join(output), data)
    plain = httpx.get(output.url)
    equal((plain.status_code, plain.content), (200, data))
    ranged = httpx.get(output.url, headers={"range": "bytes=0-7"})
    equal((ranged.status_code, ranged.content), (206, PNG))


@check
def signature_counts():
    """a URL with another signature, or for another file, gives nothing"""
    url = picture().url
    equal(httpx.get(url[:-1] + ("0" if url[-1] != "0" else "1")).status_code, 404)
    equal(httpx.get(url.split("?")[0]).status_code in (401, 404), True)


@check
def output_as_input():
    """a picture of more than 1 MiB is the input of the next job, by its URL and as an uploaded file"""
    first = picture()
    made = sdk.predictions.create(model=IMAGE, input={"prompt": "again", "image": first.url})
    made.wait()
    equal((made.status, made.error), ("succeeded", None))
    data = first.read()
    assert len(data) > 1 << 20, len(data)
    upload = io.BytesIO(data)
    made = sdk.predictions.create(model=IMAGE, input={"prompt": "again", "image": upload})
    assert made.input["image"].startswith(f"{BASE}/v1/files/"), made.input
    made.wait()
    equal((made.status, made.error), ("succeeded", None))


if __name__ == "__main__":
    run("replicate-python files")
