"""Scripts, recipes and cargo targets: those that pages name are there, those that are there are named and run.

Not a runner: the scripts are run by `scripts/test`, or stand in `RUN_BY_HAND` with a reason.
"""

import re

from outside import ROOT

PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "justfile",
    ROOT / "plugins" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
)
# Scripts that no test runs.
RUN_BY_HAND = {
    "scripts/test": "it is what runs the others",
    "scripts/fuzz": "it builds all again under libFuzzer; `src/tests.rs` feeds the same parsers",
    "scripts/bench-peers": "it installs other proxies, for the bench alone",
    "tests/fleet/run": "it needs root and network namespaces",
}
SCRIPT = re.compile(r"(?<![\w/-])(?:\./)?((?:scripts|tests/\w+)/[\w-]+)(?![\w/.-])")
RECIPE = re.compile(r"(?:`|\$ )just ([\w-]+)")
TARGET = re.compile(r"--(bench|test) ([\w-]+)")
DECLARED = re.compile(r'^\[\[(bench|test)\]\]\nname = "([\w-]+)"', re.M)


def scripts():
    """Paths of the executable files in `scripts` and of the runners in `tests`."""
    found = [*(ROOT / "scripts").iterdir(), *(ROOT / "tests").glob("*/run")]
    return {str(file.relative_to(ROOT)) for file in found if file.stat().st_mode & 0o100}


def targets():
    """(kind, name) of each bench and test of the workspace."""
    for manifest in (ROOT / "Cargo.toml", ROOT / "src" / "core" / "Cargo.toml"):
        yield from DECLARED.findall(manifest.read_text())


def faults():
    """Each difference between what is named and what is there."""
    texts = {page.relative_to(ROOT): page.read_text() for page in PAGES}
    present, named = scripts(), set()
    justfile = (ROOT / "justfile").read_text()
    recipes = set(re.findall(r"^([\w-]+)(?: [^:\n]*)?:(?!=)", justfile, re.M))
    cargo = set(targets())
    for page, text in texts.items():
        mentioned = set(SCRIPT.findall(text))
        named |= mentioned
        gone = {path for path in mentioned - present if not (ROOT / path).exists()}
        yield from (f"{page}: {path} is not there" for path in sorted(gone))
        unknown = set(RECIPE.findall(text)) - recipes
        yield from (f"{page}: just {recipe} is not in the justfile" for recipe in sorted(unknown))
        missing = set(TARGET.findall(text)) - cargo
        yield from (f"{page}: --{kind} {name} is no target" for kind, name in sorted(missing))
    yield from (f"{path} is named by no page" for path in sorted(present - named))
    suite = "".join((ROOT / "scripts" / name).read_text() for name in ("test", "plugins"))
    for path in sorted(present):
        is_run = path != "scripts/test" and re.search(rf"^[^#\n]*\b{path}\b", suite, re.M)
        if bool(is_run) == (path in RUN_BY_HAND):
            yield f"{path}: run by scripts/test, or in RUN_BY_HAND, but not both"


def check(tally):
    """Counts one check."""
    found = list(faults())
    if found:
        tally.fail("scripts and recipes that pages name", "; ".join(found))
    else:
        tally.ok("scripts and recipes that pages name are there, and run")
