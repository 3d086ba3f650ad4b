"""Alert rules and the Grafana dashboard: each metric and label is one of docs/metrics.md, and each expression parses."""

import json
import re
import shutil
import subprocess

from outside import ROOT

RULES = ROOT / "deploy" / "prometheus" / "alerts.yaml"
EXAMPLES = RULES.with_name("alerts.test.yaml")
DASHBOARD = ROOT / "deploy" / "grafana" / "infergate.json"
METRICS = ROOT / "docs" / "metrics.md"
NAME = re.compile(r"\b(?:infergate|process)_[a-z0-9_]+\b")
# Made by Prometheus of a histogram, or given by it to every series.
SUFFIXES = ("_bucket", "_sum", "_count")
LABELS_OF_SCRAPES = {"instance", "job", "le"}
VARIABLES = {"$__rate_interval": "5m", "$instance": ".*", "$model": ".*"}


def documented():
    """Labels by metric."""
    rows = re.findall(r"^\| `([a-z_]+)` \| (.*?) \|", METRICS.read_text(), re.M)
    return {name: set(re.findall(r"`([a-z_]+)`", labels)) for name, labels in rows}


def expressions():
    """(where, expression) of every rule, panel, annotation and variable."""
    for line in RULES.read_text().splitlines():
        if found := re.match(r"\s+expr: (.*)$", line):
            yield "alerts.yaml", found[1]
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield f"panel {panel['title']!r}", target["expr"]
    for note in dashboard["annotations"]["list"]:
        yield "annotation", note["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            metric = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
            yield f"variable {variable['name']}", f"count by ({metric[2]}) ({metric[1]})"


def base(name, known):
    for suffix in SUFFIXES:
        if name.endswith(suffix) and name.removesuffix(suffix) in known:
            return name.removesuffix(suffix)
    return name


def faults_of(where, expression, known):
    names = {base(name, known) for name in NAME.findall(expression)}
    if not names:
        yield f"{where}: no metric in {expression}"
    yield from (f"{where}: {name} is not in docs/metrics.md" for name in sorted(names - known.keys()))
    selected = set(re.findall(r"[{,]\s*(\w+)\s*(?:=~|!~|!=|=)", expression))
    for group in re.findall(r"\b(?:by|on|ignoring)\s*\(([^)]*)\)", expression):
        selected |= {label.strip() for label in group.split(",")}
    labels = set().union(*(known.get(name, set()) for name in names)) | LABELS_OF_SCRAPES
    # A state of an endpoint's health stands in the words of the page.
    yield from (f"{where}: no label {label} in {expression}" for label in sorted(selected - labels))


def check_names(_binary, _scratch):
    known = documented()
    found = list(expressions())
    for where, expression in found:
        yield from faults_of(where, expression, known)
    used = {base(name, known) for _, text in found for name in NAME.findall(text)}
    if len(used) < 40 or len(found) < 60:
        yield f"only {len(used)} metrics in {len(found)} expressions: are they read?"
    # It can fail.
    for wrong in ("sum(infergate_nothing_total)", "sum by (modle) (infergate_requests_total)"):
        if not list(faults_of("planted", wrong, known)):
            yield f"{wrong} is not found"
    dashboard = json.loads(DASHBOARD.read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]
    if len(ids) != len(set(ids)):
        yield "two panels have one id"


def promtool(*arguments, cwd):
    done = subprocess.run(
        ["promtool", *arguments], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60
    )
    return [] if done.returncode == 0 else [f"promtool {arguments[0]} {arguments[1]}: {done.stdout[-2000:]}"]


def check_expressions(_binary, scratch):
    for file in (RULES, EXAMPLES):
        shutil.copy(file, scratch)
    yield from promtool("check", "rules", RULES.name, cwd=scratch)
    yield from promtool("test", "rules", EXAMPLES.name, cwd=scratch)
    # The dashboard's expressions as recording rules: they parse.
    lines = ["groups:", "  - name: dashboard", "    rules:"]
    for nth, (_, expression) in enumerate(expressions()):
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        lines += [f"      - record: expression_{nth}", f"        expr: {json.dumps(expression)}"]
    (scratch / "dashboard.yaml").write_text("\n".join(lines))
    yield from promtool("check", "rules", "dashboard.yaml", cwd=scratch)
    # Each alert that pages has an example.
    text, examples = RULES.read_text(), EXAMPLES.read_text()
    for rule in text.split("- alert: ")[1:]:
        name = rule.split()[0]
        if "severity: page" in rule and f"alertname: {name}" not in examples:
            yield f"{name} pages and has no example"
