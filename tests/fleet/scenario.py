"""One scenario: its load, its measurements and the promises it checks.

Verdicts come from clients, model servers and events. Figures of the gateways count only for permits, which
must be released.
"""

import statistics
import time

import counts
from client import Load
from topology import CAPACITY, HEALED_SECS, NODES, PERMITS, SERVERS, Failed, say


class Scenario:
    """A scenario: its measurements and verdicts."""

    def __init__(self, cluster, name, quick, secs):
        self.cluster, self.name, self.quick, self.secs = cluster, name, quick, secs
        self.verdicts = []
        cluster.wait_until_whole()
        counts.forget_counts(cluster)
        self.offsets = counts.event_offsets(cluster)

    def load(self, rates, secs=0.0):
        """Clients beside each node, `rates` requests a second; `secs`: length of their streams."""
        return [
            Load(self.cluster.loops[node], rate, lambda _, node=node: node, secs)
            for node, rate in rates.items()
            if rate > 0
        ]

    def stop(self, loads):
        for load in loads:
            load.stopped = True
        return sorted((a for load in loads for a in load.stop()), key=lambda request: request.sent)

    def judge(self, promise, measured, ok):
        """Records a verdict. `ok` is none for a figure without a promise."""
        self.verdicts.append((self.name, promise, measured, ok))
        say(f"  {'   ' if ok is None else 'ok ' if ok else 'NOT'} {promise}: {measured}")

    def share(self, promise, requests, least):
        """At least so many in a hundred succeed; failures are shown."""
        failed = [a for a in requests if not a.ok]
        share = 100 * (len(requests) - len(failed)) / max(1, len(requests))
        ok = None if least is None else bool(requests) and share >= least
        self.judge(promise, f"{share:.2f} % of {len(requests)} ({len(failed)} failed)", ok)
        for a in failed[:4]:
            say(f"        {a.node} {a.took:.2f} s, {a.bytes} bytes, {a.request_id}: {a.error}")

    def only_started_failed(self, promise, requests):
        """Failed requests had started at the lost node, and were not repeated."""
        failed = [a for a in requests if not a.ok]
        started = [a for a in failed if a.error.startswith("502") and "not repeated" in a.error]
        measured = f"{len(requests)} sent, {len(started)} started there, {len(failed) - len(started)} others failed"
        self.judge(promise, measured, bool(requests) and len(started) == len(failed))
        for a in [a for a in failed if a not in started][:4]:
            say(f"        {a.node} {a.took:.2f} s, {a.bytes} bytes, {a.request_id}: {a.error}")

    def latency(self, promise, requests):
        took = sorted(a.took * 1000 for a in requests if a.ok)
        if len(took) > 1:
            cuts = statistics.quantiles(took, n=100, method="inclusive")
            worst = f"p50 {cuts[49]:.0f} ms, p99 {cuts[98]:.0f} ms, most {took[-1]:.0f} ms"
            self.judge(promise, worst, None)

    def permits_are_released(self):
        def free():
            return all(counts.permits_used(self.cluster, node) == 0 for node in NODES)

        try:
            took = self.cluster.wait_until("permits are free again", 10, free)
            self.judge("permits free again <= 5 s", f"{took:.1f} s", took <= 5)
        except Failed:
            used = {node: counts.permits_used(self.cluster, node) for node in NODES}
            self.judge("permits free again <= 5 s", f"still used: {used}", False)

    def orphans(self, fault, limit):
        """Streams that a forwards; after the fault their permits at other nodes must be released."""
        cluster, others = self.cluster, [node for node in NODES if node != "a"]
        loads = self.load({"a": 6}, secs=20)
        time.sleep(4)
        held = sum(counts.permits_used(cluster, node) for node in others)
        fault()
        took = cluster.wait_until(
            "the others' permits are free",
            30,
            lambda: all(counts.permits_used(cluster, node) == 0 for node in others),
        )
        for load in loads:
            load.stopped = True
        promise = f"its forwards' permits are free <= {limit} s after"
        self.judge(promise, f"{held} held, {took:.1f} s", held > 0 and took <= limit)
        return loads

    def no_server_above_permits(self):
        """By the model servers' own count."""
        most_used = {key: stats["high_water"] for key, stats in counts.servers(self.cluster).items() if stats}
        ok = len(most_used) == len(NODES) * len(SERVERS) and max(most_used.values()) <= PERMITS
        most = ", ".join(f"{node} {most_used.get((node, SERVERS[0]))}/{most_used.get((node, SERVERS[1]))}"
                         for node in NODES)  # fmt: skip
        self.judge(f"no server above its {PERMITS} permits", f"at most {most}", ok)

    def no_loops(self):
        """No request returns to a node: each path contains a node once."""
        events = counts.events(self.cluster, self.offsets)
        paths = [event["path"] for event in events]
        loops = [path for path in paths if len(set(path)) < len(path)]
        forwarded = sum(len(path) > 1 for path in paths)
        longest = max(map(len, paths), default=0)
        self.judge(
            "no request goes in a circle",
            f"{len(loops)} of {len(paths)}; {forwarded} forwarded, longest path {longest} nodes",
            not loops and bool(paths),
        )
        # Not promised: a node that lost the connection back may have reported a whole response.
        reported, priced = {}, {}
        for event in events:
            reported[event["request_id"]] = reported.get(event["request_id"], 0) + 1
            if event["neurons"]:
                priced[event["request_id"]] = priced.get(event["request_id"], 0) + 1
        twice = [sum(count > 1 for count in by_id.values()) for by_id in (reported, priced)]
        self.judge("reported by two events", f"{twice[0]}, with neurons in both {twice[1]}", None)
        return events

    def full_capacity(self, healed, at):
        """All load to one node, more than all can do: time until full capacity."""
        loads = self.load({at: 1.15 * CAPACITY})
        until = healed + HEALED_SECS + 5
        time.sleep(max(0.0, until - time.monotonic()))
        requests = self.stop(loads)
        done = sorted(a.ended for a in requests if a.ok)

        def rate(begin, end):
            return sum(begin <= at < end for at in done) / (end - begin)

        share = 100 * rate(healed + HEALED_SECS, until) / CAPACITY
        # The first second with 90 % of the capacity.
        steps = (step / 10 for step in range(0, 100))
        first = next((s for s in steps if rate(healed + s, healed + s + 1) >= 0.9 * CAPACITY), None)
        when = "never" if first is None else f"first full second began {first:.1f} s after"
        self.judge(
            f"full capacity <= {HEALED_SECS} s after",
            f"{share:.0f} % of {CAPACITY:.0f}/s; {when}",
            share >= 90,
        )
