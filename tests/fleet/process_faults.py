"""Scenarios with faults of processes: killed, stopped and restarted nodes."""

import asyncio
import signal
import time

import counts
from client import Load, http
from topology import ADMIN_PORT, CAPACITY, BRIDGE, NODE_CAPACITY, NODES, SERVERS, STREAM_SECS, address


def kill(run):
    """kill -9 of a node that others have forwarded to."""
    cluster = run.cluster
    # The rest can do two nodes' work; b alone gets 60 % of it, more than its own servers can do.
    loads = run.load({"b": 0.6 * 2 * NODE_CAPACITY, "a": 4, "c": 2})
    time.sleep(5 if run.quick else 10)
    before = counts.forwards(cluster, "bc")
    cluster.signal_gateway("a", signal.SIGKILL)
    killed = time.monotonic()
    cluster.wait_for_exit("a")
    time.sleep(8 if run.quick else 20)
    after = counts.forwards(cluster, "bc")
    served = cluster.get("a", SERVERS[0], "/sim/stats")["served"]
    cluster.start_gateway("a")
    back = cluster.wait_until("the killed node is ready", 30, lambda: cluster.get("a", ADMIN_PORT, "/readyz") is not None)
    ready = time.monotonic()
    time.sleep(8)
    requests = run.stop(loads)
    run.permits_are_released()
    run.stop(run.orphans(lambda: cluster.signal_gateway("a", signal.SIGKILL), 5))
    cluster.wait_for_exit("a")
    cluster.start_gateway("a")
    cluster.wait_until_whole()
    others = [a for a in requests if a.node != "a"]
    run.share("others, before", [a for a in others if a.ended < killed], 99.9)
    # In flight, or sent before the loss was known: these must be saved.
    run.only_started_failed("others, +-2 s of the kill, all but those started there", [a for a in others if a.ended >= killed and a.sent < killed + 2])
    run.latency("how long those took", [a for a in others if a.ended >= killed and a.sent < killed + 2])
    run.share("others, from 2 s after", [a for a in others if a.sent >= killed + 2], 99.9)
    lost = {end: after.get(end, 0) - before.get(end, 0) for end in ("lost", "connect-failed")}
    run.judge("forwards that found it dead", f"{lost['lost']} lost, {lost['connect-failed']} not connected", None)
    run.share("the killed node's own, 1 s after its return", [a for a in requests if a.node == "a" and a.sent > ready + 1], 99.9)
    now = cluster.get("a", SERVERS[0], "/sim/stats")["served"]
    run.judge("it serves again", f"ready after {back:.1f} s, {now - served} at its first server", now > served + 4)
    run.no_server_above_permits()
    run.no_loops()


def frozen(run):
    """A node's process is stopped for a while; its kernel goes on acknowledging."""
    cluster = run.cluster
    rates = {"a": 2, "b": 0.6 * 2 * NODE_CAPACITY, "c": 2}
    loads, streams = run.load(rates), run.load({"b": 1.5}, STREAM_SECS)
    time.sleep(5)
    usual = max(a.took for load in loads for a in load.requests if a.ok)
    cluster.signal_gateway("a", signal.SIGSTOP)
    began = time.monotonic()
    time.sleep(12 if run.quick else 36)
    for load in loads + streams:
        load.stopped = True
    served = cluster.get("a", SERVERS[0], "/sim/stats"), cluster.get("a", SERVERS[1], "/sim/stats")
    cluster.signal_gateway("a", signal.SIGCONT)
    healed = time.monotonic()
    time.sleep(3)
    requests, streamed = run.stop(loads), run.stop(streams)
    run.permits_are_released()
    others = [a for a in requests if a.node != "a"]
    sent = [a for a in others if began - 1 <= a.sent < healed]
    run.only_started_failed("others, all but those started there", sent)
    run.latency("how long those took", sent)
    most = max(a.took for a in sent if a.ok)
    run.judge("none waits 2 s beyond the usual time", f"at most {most:.1f} s, usually {usual:.1f} s", most < usual + 2)
    ended = max((a.ended - began for a in sent if not a.ok), default=0.0)
    run.judge("requests started there end <= 5 s", f"the last {ended:.1f} s after", ended <= 5)
    cut = [a for a in streamed if not a.ok]
    last = max((a.ended - began for a in cut), default=0.0)
    run.judge("streams through it end <= 5 s", f"{len(cut)}, the last {last:.1f} s after", last <= 5)
    now = cluster.get("a", SERVERS[0], "/sim/stats"), cluster.get("a", SERVERS[1], "/sim/stats")
    of_others = [e for e in counts.events(cluster, run.offsets) if len(e["path"]) > 1 and e["node"] == "a"]
    late = sum(e["status"] == 0 for e in of_others)
    more = sum(n["served"] - s["served"] for n, s in zip(now, served))
    run.judge("served by it after it resumed", f"{more}, own clients' among them; {late} without an answer", None)
    cluster.wait_until_whole()
    run.no_server_above_permits()
    run.no_loops()


def rolling(run):
    """Every node is restarted in turn; clients use the nodes that report ready."""
    cluster, bridge = run.cluster, run.cluster.loops[BRIDGE]
    ready, watching = set(NODES), True

    async def watch(node):
        while watching:
            try:
                status, _ = await http(address(node), ADMIN_PORT, "GET", "/readyz", limit=0.5)
            except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
                status = 0
            (ready.add if status == 200 else ready.discard)(node)
            await asyncio.sleep(0.1)

    def choose(count):
        # Most go to one node, which has to forward what it cannot do.
        return sorted(ready)[0 if count % 4 else count // 4 % len(ready)]

    watchers = [bridge.submit(watch(node)) for node in NODES]
    loads = [Load(bridge, 0.2 * CAPACITY, choose), Load(bridge, 4, choose, STREAM_SECS)]
    time.sleep(4)
    for node in NODES:
        cluster.signal_gateway(node, signal.SIGTERM)
        began = time.monotonic()
        code = cluster.wait_for_exit(node)
        drained = time.monotonic() - began
        time.sleep(1)
        cluster.start_gateway(node)
        cluster.wait_until_whole()
        run.judge(f"{node} drains and comes back", f"drained in {drained:.1f} s, status {code}", code == 0)
        time.sleep(2)
    time.sleep(3)
    requests = run.stop(loads)
    watching = False
    for watcher in watchers:
        watcher.result(10)
    run.permits_are_released()
    run.share("whole answers", [a for a in requests if not a.stream], 100)
    run.share("whole streams of 2 s", [a for a in requests if a.stream], 100)
    run.latency("how long answers took", [a for a in requests if not a.stream])
    run.no_server_above_permits()
    run.no_loops()
