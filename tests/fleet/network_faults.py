"""Scenarios with faults of the network: a link down, one direction lost, packets lost, a slow link."""

import time

from topology import BRIDGE, NODE_CAPACITY, NODES, STREAM_SECS, address, sh


def partition(run, begin, end, rates, secs, busy):
    """A fault that separates nodes from each other, and the promises common to all such faults."""
    loads = run.load(rates)
    # A node's busy clients also take streams, of which each holds a permit for two seconds.
    streams = run.load({busy: 1.5}, STREAM_SECS)
    time.sleep(4)
    began = time.monotonic()
    begin()
    time.sleep(secs)
    end()
    healed = time.monotonic()
    for load in loads + streams:
        load.stopped = True
    run.full_capacity(healed, "a")
    requests, streamed = run.stop(loads), run.stop(streams)
    run.permits_are_released()
    run.only_started_failed("sent before it, or within 5 s of it, all but those started there", [a for a in requests if a.sent < began + 5])
    near = [a for a in requests if began - 1 <= a.sent < began + 5]
    run.latency("how long those took", near)
    most = max(a.took for a in near)
    run.judge("none waits for a silent node for long", f"at most {most:.1f} s", most < 10)
    later = [a for a in requests if began + 5 <= a.sent < healed]
    for node in rates:
        run.share(f"clients of {node} meanwhile", [a for a in later if a.node == node], 99.9)
    run.latency("how long they took meanwhile", later)
    run.share("streams meanwhile", [a for a in streamed if began + 5 <= a.sent < healed], 99.9)
    cut = [a for a in streamed if not a.ok and a.sent < began + 5]
    last = max((a.ended - began for a in cut), default=0.0)
    run.judge("streams cut by it are ended", f"{len(cut)}, the last {last:.1f} s after", last < 8)
    run.no_server_above_permits()
    run.no_loops()


def link(run):
    """The bridge port of a node goes down: it is alone, and its connections are silent."""
    bridge = run.cluster.namespace(BRIDGE)
    # What b cannot do itself goes to a and c alike; when a is away c can serve all of it.
    rates = {"a": 0.25 * NODE_CAPACITY, "b": 1.1 * NODE_CAPACITY, "c": 0.25 * NODE_CAPACITY}
    partition(
        run,
        lambda: sh("ip", "-n", bridge, "link", "set", "to-a", "down"),
        lambda: sh("ip", "-n", bridge, "link", "set", "to-a", "up"),
        rates,
        12 if run.quick else run.secs,
        "b",
    )
    streams = run.orphans(lambda: sh("ip", "-n", bridge, "link", "set", "to-a", "down"), 8)
    sh("ip", "-n", bridge, "link", "set", "to-a", "up")
    run.stop(streams)
    run.cluster.wait_until_whole()
    run.permits_are_released()


def one_way(run):
    """a does not get what b sends; b gets what a sends, and c hears both."""
    rates = {"a": 1.1 * NODE_CAPACITY, "b": 0.25 * NODE_CAPACITY, "c": 0.25 * NODE_CAPACITY}
    partition(
        run,
        lambda: run.cluster.add_drop_rule("a", f"ip saddr {address('b')} drop"),
        lambda: run.cluster.remove_drop_rule("a"),
        rates,
        12 if run.quick else run.secs,
        "a",
    )


def loss(run):
    """Every node loses 30 % of what arrives."""
    cluster = run.cluster
    loads = run.load({"a": 1.2 * NODE_CAPACITY, "b": 0.5 * NODE_CAPACITY, "c": 0.5 * NODE_CAPACITY})
    time.sleep(3)
    began = time.monotonic()
    for node in NODES:
        cluster.add_drop_rule(node, "numgen random mod 100 < 30 drop")
    time.sleep(10 if run.quick else 20)
    for node in NODES:
        cluster.remove_drop_rule(node)
    healed = time.monotonic()
    for load in loads:
        load.stopped = True
    run.full_capacity(healed, "a")
    requests = run.stop(loads)
    run.permits_are_released()
    under = [a for a in requests if a.ended >= began and a.sent < healed]
    run.share("under loss", under, 90)
    run.latency("how long they took", under)
    run.no_server_above_permits()
    run.no_loops()


def slow(run):
    """1 Mbit/s to and from a node that has more to do than its servers can."""
    cluster = run.cluster
    shape = ("root", "tbf", "rate", "1mbit", "burst", "16kb", "latency", "400ms")
    ends = ((BRIDGE, "to-a"), ("a", "eth0"))
    loads = run.load({"a": 1.3 * NODE_CAPACITY, "b": 0.4 * NODE_CAPACITY, "c": 0.4 * NODE_CAPACITY})
    time.sleep(2)
    began = time.monotonic()
    for node, device in ends:
        sh("tc", "-n", cluster.namespace(node), "qdisc", "replace", "dev", device, *shape)
    time.sleep(8 if run.quick else 20)
    ended = time.monotonic()
    requests = run.stop(loads)
    for node, device in ends:
        sh("tc", "-n", cluster.namespace(node), "qdisc", "del", "dev", device, "root")
    run.permits_are_released()
    within = [a for a in requests if began <= a.sent < ended]
    run.share("over the slow link", within, 99.9)
    run.latency("how long they took", [a for a in within if a.node == "a"])
    run.no_server_above_permits()
    events = run.no_loops()
    over = [e for e in events if e["path"][0] == "here/a" and len(e["path"]) > 1]
    run.judge("forwarded over the slow link", str(len(over)), None)
