#!/usr/bin/env python3
"""Requests for a model that is not loaded: one load for all, deadlines kept, hopeless ones refused at once.

A gateway with models on a simulated card, and a crowd of clients that ask at the same moment. The moments are
those of the gateway's own events, so that a slow client here is no slow gateway. Standard library only.

    tests/gpu/cold.py                        small counts, less than 30 s
    tests/gpu/cold.py --full                 500 clients, loads of 3 s
"""

import asyncio
import collections
import json
import random
import sys
import tempfile
import time

from simulated import gpu_section, managed_model, options_parser

from kit import Table, accounts, gateway, key, quantile, until

# On top of what load, requests ahead and service come to.
MARGIN = 1.2

# A refusal that needs no wait takes no longer than `refusal_ms`. Beyond its deadline an answer may be late by `late_ms`: a
# scheduler's rounding, and no wait of ours. Of those that can be served in time the share `answered` is. The small run is
# for machines that do other work: there a hang is a fault, and being slow is none.
Size = collections.namedtuple("Size", "clients load_secs permits service_ms hopeless refusal_ms late_ms answered")
QUICK = Size(
    clients=120, load_secs=2, permits=4, service_ms=100, hopeless=40, refusal_ms=1500, late_ms=2000, answered=0.5
)
FULL = Size(
    clients=500, load_secs=3, permits=8, service_ms=100, hopeless=200, refusal_ms=50, late_ms=100, answered=0.95
)

ACCOUNT = "a"
MODELS = ("crowd", "deadlines", "hopeless")

Answer = collections.namedtuple("Answer", "deadline_ms status headers event")


def host(size, folder):
    """Three models that fit on the card together."""
    arguments = [
        "--load-secs", size.load_secs, "--ttft-ms", size.service_ms, "--tokens-per-sec", 0, "--jitter", 0,
    ]  # fmt: skip
    process, queue = {"parallel": size.permits}, {"capacity": 1000}
    models = [managed_model(name, 1000, arguments, process, queue=queue) for name in MODELS]
    # Below the ports of listeners, which `kit.free_port` chooses.
    gpu = gpu_section(folder, ["sim0"], 8000, ports="11000-11999")
    return f"{accounts([ACCOUNT])}{gpu}models:\n{''.join(models)}"


async def exchange(reader, writer, model, deadline_ms):
    """One request on an open connection; its status and the fields of its head."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4})
    writer.write(
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key(ACCOUNT)}\r\nconnection: close\r\n"
        f"x-infergate-timeout-ms: {deadline_ms}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n{body}".encode()
    )
    head, _, _ = (await reader.read(-1)).partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    fields = dict(line.lower().split(": ", 1) for line in lines)
    writer.close()
    return int(first.split()[1]), fields


async def crowd(port, model, deadlines):
    """Status and fields of requests that are sent at the same moment, one for each deadline."""
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in deadlines]
    asked = [exchange(*connection, model, deadline) for connection, deadline in zip(connections, deadlines)]
    return await asyncio.gather(*asked)


def ask_all(node, model, deadlines):
    """What each client got, with the event of its request."""
    answers = asyncio.run(crowd(node.port, model, deadlines))

    def events():
        found = {}
        for line in node.events_path.read_text(errors="replace").splitlines():
            if line.endswith("}"):
                event = json.loads(line)
                found[event["request_id"]] = event
        ids = [fields["x-request-id"] for _, fields in answers]
        return found if all(id in found for id in ids) else None

    found = until("the events of all requests", events)
    return [
        Answer(deadline, status, fields, found[fields["x-request-id"]])
        for deadline, (status, fields) in zip(deadlines, answers)
    ]


def becomes(node, model, state):
    return until(f"{model} is {state}", lambda: node.slot(model)["state"] == state)


def counts(answers):
    by_status = collections.Counter(answer.status for answer in answers)
    return ", ".join(f"{count} × {status}" for status, count in sorted(by_status.items()))


def lateness_ms(answers):
    """How long after its deadline the latest one ended; negative where none was late."""
    return max(answer.event["request_time_ms"] - answer.deadline_ms for answer in answers)


def is_plain(answer):
    """An answer, a refusal with the time to come again, or the end of the deadline."""
    return answer.status in (200, 408) or (answer.status == 429 and "retry-after" in answer.headers)


def one_load(table, node, size):
    """Clients with time enough share one load."""
    answers = ask_all(node, "crowd", [60_000] * size.clients)
    table.row(f"{size.clients} at once with 60 s", counts(answers), all(it.status == 200 for it in answers))
    loads = node.slot("crowd")["loads"]
    table.row("loads for them", loads, loads == 1)
    waited = [int(it.headers["x-infergate-load-ms"]) for it in answers]
    table.row(
        "x-infergate-load-ms, at least and at most",
        f"{min(waited)}, {max(waited)}",
        all(it.event["cold_start"] and it.event["load_wait_ms"] == ms for it, ms in zip(answers, waited))
        and max(waited) >= size.load_secs * 1000,
    )
    instances = {it.event["container_id"] for it in answers}
    table.row("instances that served", ", ".join(map(str, instances)), instances == {node.slot("crowd")["instance"]})


def deadlines(table, node, size, name):
    """Clients whose deadlines are spread from a third of the load time to three times of it."""
    span = (size.load_secs * 1000 // 3, size.load_secs * 10_000 // 3)
    answers = ask_all(node, "deadlines", [random.randint(*span) for _ in range(size.clients)])
    table.row(f"{name}: {size.clients} with {span[0]} to {span[1]} ms", counts(answers), all(map(is_plain, answers)))
    late = lateness_ms(answers)
    table.row(f"{name}: latest after its deadline, ms", late, late <= size.late_ms)
    served = [it for it in answers if it.status == 200]
    load_ms = max((it.event["load_wait_ms"] for it in served), default=0)
    service_ms = quantile([it.event["inference_time_ms"] for it in served], 0.5)

    def is_in_time(answer):
        ahead = answer.event["local_queue_size"]
        return (load_ms + (ahead / size.permits + 1) * service_ms) * MARGIN <= answer.deadline_ms

    able = [it for it in answers if is_in_time(it)]
    share = sum(it.status == 200 for it in able) / max(len(able), 1)
    table.row(
        f"{name}: answered of {len(able)} that can be served in time (load {load_ms} ms, service {service_ms} ms)",
        f"{share:.1%}",
        share >= size.answered and len(able) >= size.clients // 10,
    )
    loads = node.slot("deadlines")["loads"]
    refused = [it for it in answers if it.status == 429 and it.event["queuing_time_ms"] == 0]
    slowest = max((it.event["request_time_ms"] for it in refused), default=0)
    table.row(f"{name}: {len(refused)} refused on arrival, slowest ms", slowest, slowest <= size.refusal_ms)
    return loads


def hopeless(table, node, size):
    """Clients for which even the fastest load is too late: refused at once, and yet the model is loaded."""
    answers = ask_all(node, "hopeless", [random.randint(50, size.load_secs * 300) for _ in range(size.hopeless)])
    is_refused = all(it.status == 429 and is_plain(it) for it in answers)
    table.row(f"{size.hopeless} without hope", counts(answers), is_refused)
    took = [it.event["request_time_ms"] for it in answers]
    table.row("refused within, ms, p99 and slowest", f"{quantile(took, 0.99)}, {max(took)}", max(took) <= size.refusal_ms)
    waits = [int(it.headers.get("retry-after", 0)) for it in answers]
    table.row("Retry-After, s", f"{min(waits)} to {max(waits)}", min(waits) >= 1 and max(waits) <= 60)
    begun = time.monotonic()
    becomes(node, "hopeless", "ready")
    table.row("the model is ready by refused requests alone, s", f"{time.monotonic() - begun:.1f}")
    answer = ask_all(node, "hopeless", [5000])[0]
    table.row("the next one is answered by it", answer.status, answer.status == 200 and not answer.event["cold_start"])


def main():
    options = options_parser(__doc__, "500 clients, loads of 3 s: about a minute", seed=1).parse_args()
    random.seed(options.seed)
    size = FULL if options.full else QUICK
    table = Table()
    with tempfile.TemporaryDirectory(prefix="infergate-cold-") as folder, gateway(
        options.binary, host(size, folder)
    ) as node:
        one_load(table, node, size)
        loads = deadlines(table, node, size, "never loaded")
        table.row("loads", loads, loads == 1)
        status = node.order("deadlines", "unload")
        becomes(node, "deadlines", "cold")
        loads = deadlines(table, node, size, "loaded before")
        table.row("loads with the second", loads, loads == 2 and status == 200)
        hopeless(table, node, size)
    sys.exit(table.finish())


if __name__ == "__main__":
    main()
