"""The file of ceilings: one section read, judged by, or written anew with its comments kept.

Not a TOML library: a line is a `[section]`, `name = number` with a comment behind it, a comment, or empty.
`tests/allocations/ceilings.rs` reads the same file and judges by the same shares.
"""

import pathlib
import re

PATH = pathlib.Path(__file__).resolve().parents[1] / "ceilings.toml"
# Shares by which a figure may pass its ceiling, and fall below it before the ceiling has to follow.
PASSED_SHARE = 0.03
FALLEN_SHARE = 0.05
SECTION = re.compile(r"\[([\w-]+)\]")
ENTRY = re.compile(r"([\w-]+) = ([\d_.]+)(.*)")


def sections(text):
    """(section, line) of each line."""
    current = None
    for line in text.splitlines():
        if found := SECTION.fullmatch(line):
            current = found.group(1)
        yield current, line


def read(section):
    """Names and ceilings of a section."""
    ceilings = {}
    for current, line in sections(PATH.read_text()):
        if current == section and (entry := ENTRY.fullmatch(line)):
            ceilings[entry.group(1)] = float(entry.group(2).replace("_", ""))
    return ceilings


def write(section, figures):
    """Writes figures over those of the section; all other lines stay as they are."""
    lines = []
    for current, line in sections(PATH.read_text()):
        entry = ENTRY.fullmatch(line) if current == section else None
        if entry and entry.group(1) in figures:
            name, _, comment = entry.groups()
            line = f"{name} = {round(figures[name]):_}{comment}"
        lines.append(line)
    PATH.write_text("\n".join(lines) + "\n")


def judge(name, figure, ceiling):
    """(whether the ceiling holds, the sentence that says so)."""
    text = f"instructions of {name}: {figure:,.0f}, ceiling {ceiling:,.0f}"
    if figure > ceiling * (1 + PASSED_SHARE):
        return False, f"FAIL {text}: {100 * (figure / ceiling - 1):.1f} % over it"
    if figure < ceiling * (1 - FALLEN_SHARE):
        return True, f"ok {text}: the ceiling should follow (scripts/count --write count)"
    return True, f"ok {text}"
