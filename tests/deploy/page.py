"""The page of operators in a browser, over a gateway with simulated servers, jobs, a simulated card and odd names."""

import contextlib
import hashlib
import json
import threading
import urllib.error
import urllib.request

from browser import Browser
from outside import ROOT, free_ports, running, until

FOLDER = ROOT / "target" / "deploy"
# Must show as text wherever it comes from, and must not run.
MARKUP = "<img src=x onerror='window.planted=1'>"
KEYS = {"acme": "key-acme", "initech": "key-initech", "umbrella": "key-umbrella"}


def configuration(scratch, ports):
    clients, admin, first, second, gone = ports
    accounts = "\n".join(
        f"  - {{ id: {name}, api_keys_sha256: [{hashlib.sha256(key.encode()).hexdigest()}]{limit} }}"
        for (name, key), limit in zip(KEYS.items(), (", neurons_per_day: 20000", ", neurons_per_day: 5000", ""))
    )
    tariff = "tariff: { coefficients: { input_tokens: 0.6, output_tokens: 1.2 } }"
    return f"""
state_dir: {scratch}/state
listen: {{ clients: [{{ address: "127.0.0.1:{clients}" }}], admin: {{ address: "127.0.0.1:{admin}" }} }}
node: {{ id: gpu-1, site: fra }}
accounts:
{accounts}
jobs: {{}}
events: {{ file: {{ path: {scratch}/events.jsonl }} }}
gpu:
  devices: simulated
  ports: {admin + 2000}-{admin + 2099}
  reserve_mib: 512
  ledger: {{ directory: {scratch}/ledger }}
  simulated: {{ directory: {scratch}/cards, cards: [{{ name: "sim-24g", total_mib: 24000 }}] }}
models:
  - id: acme/llama-3.1-70b
    task: text-generation
    backend: openai
    {tariff}
    endpoints:
      - {{ url: "http://127.0.0.1:{first}", max_concurrent_requests: 4 }}
      - {{ url: "http://127.0.0.1:{second}", max_concurrent_requests: 4 }}
  - id: "@cf/baai/bge-m3"
    task: text-embeddings
    backend: openai
    endpoints: [{{ url: "http://127.0.0.1:{second}", max_concurrent_requests: 4 }}]
  - id: mistral-small
    task: text-generation
    backend: openai
    endpoints: [{{ url: "http://127.0.0.1:{gone}", max_concurrent_requests: 2 }}]
  - id: qwen-7b
    task: text-generation
    backend: openai
    vram: {{ mib: 9000 }}
    process: {{ preset: simulate, arguments: ["--ttft-ms", "40"] }}
  - id: code-14b
    task: text-generation
    backend: openai
    vram: {{ mib: 16000 }}
    process: {{ preset: simulate, arguments: ["--ttft-ms", "40"] }}
"""


def post(port, path, body, key, status=(200, 201, 202)):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
            got = answer.status
    except urllib.error.HTTPError as error:
        got = error.code
    if got not in status:
        raise RuntimeError(f"{path} answers {got}")


def chat(model, tokens=24):
    return {"model": model, "max_tokens": tokens, "messages": [{"role": "user", "content": "What is admission control?"}]}


@contextlib.contextmanager
def load(port):
    """Requests until the block ends: some run, some wait, some are refused."""
    ended = threading.Event()

    def ask(key, model, tokens, pause):
        while not ended.is_set():
            with contextlib.suppress(OSError, RuntimeError):
                post(port, "/v1/chat/completions", chat(model, tokens), key)
            ended.wait(pause + 0.2)

    def submit():
        path, body = "/v1/models/acme/llama-3.1-70b/predictions", {"input": {"prompt": "a job", "max_tokens": 90}}
        while not ended.is_set():
            with contextlib.suppress(OSError, RuntimeError):
                post(port, path, body, "key-initech")
            ended.wait(0.7)

    kinds = [("key-acme", "acme/llama-3.1-70b", 60, 0)] * 9 + [("key-initech", "acme/llama-3.1-70b", 30, 0.1)] * 3
    kinds += [("key-umbrella", "mistral-small", 8, 0.6), ("key-umbrella", "qwen-7b", 20, 0.3), ("key-wrong", "qwen-7b", 1, 1)]
    threads = [threading.Thread(target=ask, args=kind, daemon=True) for kind in kinds]
    threads.append(threading.Thread(target=submit, daemon=True))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(timeout=30)


def get(port, path, **headers):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.headers, answer.read().decode()


def check_head(admin):
    headers, page = get(admin, "/dashboard")
    policy = headers["Content-Security-Policy"]
    for part in ("default-src 'none'", "script-src 'sha256-", "connect-src 'self'", "frame-ancestors 'none'"):
        if part not in policy:
            yield f"the policy lacks {part}: {policy}"
    if not headers["Content-Type"].startswith("text/html") or "unsafe" in policy:
        yield f"{headers}"
    if get(admin, "/", Accept="text/html,*/*;q=0.8")[1] != page:
        yield "a browser at / does not get the page"
    if "GET  /dashboard" not in get(admin, "/", Accept="*/*")[1]:
        yield "a tool at / does not get the list of paths"


def check(binary, scratch):
    FOLDER.mkdir(parents=True, exist_ok=True)
    ports = free_ports(5)
    clients, admin, first, second, _ = ports
    file = scratch / "infergate.yaml"
    file.write_text(configuration(scratch, ports))
    with contextlib.ExitStack() as stack:
        for port, pace in ((first, 30), (second, 45)):
            command = [binary, "simulate", "--address", f"127.0.0.1:{port}", "--concurrency", "16", "--ttft-ms", "150",
                       "--tokens-per-sec", str(pace)]
            stack.enter_context(running(command, FOLDER / f"simulate-{pace}.log", f"http://127.0.0.1:{port}/health", "simulate"))
        gateway = stack.enter_context(
            running([binary, "serve", "--config", file], FOLDER / "gateway.log", f"http://127.0.0.1:{admin}/readyz", "the gateway"))
        yield from check_head(admin)
        browser = Browser(scratch / "profile")
        stack.callback(browser.close)
        browser.size(1320, 1420)
        browser.open(f"http://127.0.0.1:{admin}/dashboard")
        post(clients, "/v1/chat/completions", chat("qwen-7b"), "key-umbrella")
        with load(clients):
            yield from check_page(browser)
            # A client's own words for a model, and those of a file that is refused.
            post(clients, "/v1/chat/completions", chat(MARKUP), "key-umbrella", status=(404,))
            file.write_text(configuration(scratch, ports) + f"threads: {json.dumps(MARKUP)}\n")
            yield from check_markup(browser)
        yield from check_loss(browser, gateway)
        if browser.errors:
            yield f"errors of the page: {browser.errors[:5]}"


def click(browser, selector):
    browser.evaluate(f"document.querySelector({json.dumps(selector)}).click()")


def explains(browser):
    """Whether a click on the newest request explains it. On a busy machine it may be overwritten, or its answer late."""
    click(browser, "[data-request]")
    browser.until("!document.querySelector('#dialog[open] p.soft')")
    if browser.evaluate("!!document.querySelector('#dialog[open] .steps li, #dialog[open] pre')"):
        return True
    click(browser, "[data-close]")
    return False


def check_page(browser):
    text = "document.body.innerText"
    for shown in ("acme/llama-3.1-70b", "ready", "Cards", "qwen-7b", "Jobs", "Accounts", "initech", "Last requests", "completed", "down"):
        browser.until(f"{text}.includes({json.dumps(shown)})")
    browser.until("document.querySelectorAll('[data-request]').length > 20")
    # It is live: the clock of the last look goes on.
    before = browser.evaluate("document.getElementById('live').textContent")
    browser.until(f"document.getElementById('live').textContent !== {json.dumps(before)}")
    # A model that is unfolded stays so, and what has the focus keeps it, while the page is renewed.
    click(browser, "[data-fold='mistral-small']")
    browser.until(f"{text}.includes('health check')")
    browser.evaluate("document.querySelector(\"[data-fold='mistral-small']\").focus()")
    before = browser.evaluate("document.getElementById('live').textContent")
    browser.until(f"document.getElementById('live').textContent !== {json.dumps(before)}")
    if browser.evaluate("document.activeElement.dataset.fold") != "mistral-small":
        yield "the focus is lost when the page is renewed"
    # Some samples for the curves.
    browser.until("document.querySelectorAll('.tile path').length > 0")
    browser.until("(document.querySelector('.tile path').getAttribute('d').match(/L/g) || []).length > 3")
    yield from check_overflow(browser, "1320 px")
    browser.until("seen.state.jobs.queued > 0")
    browser.screenshot(FOLDER / "dashboard.png")
    browser.size(1320, 1180, is_dark=True)
    browser.screenshot(FOLDER / "dashboard-dark.png")
    browser.size(390, 2400)
    yield from check_overflow(browser, "390 px")
    browser.screenshot(FOLDER / "dashboard-phone.png")
    browser.size(1320, 1100)
    # A click on a request shows its explanation, and the dialog closes again.
    until(lambda: explains(browser), "the explanation of a request is shown")
    shown = browser.evaluate("document.getElementById('dialog').innerText")
    for part in ("Ended", "For", "Deadline", "Began"):
        if part not in shown:
            yield f"the explanation lacks {part}: {shown}"
    browser.screenshot(FOLDER / "dashboard-request.png")
    click(browser, "[data-close]")
    if browser.evaluate("document.getElementById('dialog').open"):
        yield "the dialog stays open"
    # Paused, it asks no more; then it goes on.
    click(browser, "#pause")
    browser.until("document.getElementById('live').textContent === 'paused'")
    click(browser, "#pause")
    browser.until("document.getElementById('live').textContent.startsWith('live')")


def check_markup(browser):
    text = "document.body.innerText"
    browser.until(f"{text}.includes('The newest configuration is not in effect')")
    browser.until(f"{text}.includes({json.dumps(MARKUP)})")
    browser.until("[...document.querySelectorAll('#content tr')].some((row) => row.innerText.includes('unknown'))")
    browser.evaluate("""[...document.querySelectorAll('[data-request]')].find((button) =>
        button.closest('tr').innerText.includes('unknown') && button.closest('tr').innerText.includes("umbrella")).click()""")
    browser.until(f"document.getElementById('dialog').innerText.includes({json.dumps(MARKUP)})")
    click(browser, "[data-close]")
    # A configuration bars such a name of a model; a page that trusted that would be one change away from a hole.
    browser.evaluate(f"""{{
        const real = window.fetch;
        window.fetch = async (path, options) => {{
            const answer = await real(path, options);
            const text = (await answer.text()).replaceAll('mistral-small', {json.dumps(json.dumps(MARKUP)[1:-1])});
            return new Response(text, {{ status: answer.status, headers: answer.headers }});
        }};
    }}""")
    name = json.dumps(MARKUP)
    browser.until(f"[...document.querySelectorAll('[data-fold]')].some((button) => button.textContent === {name})")
    browser.evaluate(f"[...document.querySelectorAll('[data-fold]')].find((button) => button.textContent === {name}).click()")
    browser.until(f"[...document.querySelectorAll('caption')].some((caption) => caption.textContent.includes({name}))")
    if browser.evaluate("document.querySelectorAll('main img, dialog img').length || window.planted"):
        yield "markup is taken as markup"


def check_overflow(browser, width):
    wide = browser.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    if wide > 0:
        outside = browser.evaluate("""[...document.querySelectorAll('main *')].filter((element) =>
            element.getBoundingClientRect().right > document.documentElement.clientWidth + 1).slice(0, 5).map((element) => element.outerHTML.slice(0, 80))""")
        yield f"at {width} the page is {wide} px too wide: {outside}"


def check_loss(browser, gateway):
    """A page that has lost its gateway says so and keeps what it has seen."""
    gateway.kill()
    gateway.wait()
    before = len(browser.errors)
    browser.until("document.body.innerText.includes('cannot be reached')")
    if not browser.evaluate("document.body.innerText.includes('acme/llama-3.1-70b')"):
        yield "what was seen last is gone"
    # Failed requests are errors of the network, which the console shows.
    del browser.errors[before:]
