"""Configurations of GPU hosts on simulated cards, and the options that all programs of this folder take.

Not a program. Below the folder of a host are `ledger` and `cards`. Standard library only.
"""

import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "jobs"))


def options_parser(doc, full, seed=None):
    """Parser with the options of all programs: `doc` is that of the program, `full` says what `--full` does."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--binary", type=lambda path: str(pathlib.Path(path).resolve()),
                        default=str(ROOT / "target/debug/infergate"))
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="small counts; the default")
    size.add_argument("--full", action="store_true", help=full)
    if seed is not None:
        parser.add_argument("--seed", type=int, default=seed)
    return parser


def gpu_section(folder, cards, total_mib, pages=None, **members):
    """Section `gpu` with cards of one size, and these further members."""
    size = {"total_mib": total_mib} if pages is None else {"total_mib": total_mib, "pages": pages}
    section = {
        "devices": "simulated",
        "reserve_mib": 0,
        "ledger": {"directory": f"{folder}/ledger"},
        "simulated": {"directory": f"{folder}/cards", "cards": [{"name": card, **size} for card in cards]},
        **members,
    }
    return f"gpu: {json.dumps(section)}\n"


def managed_model(name, mib, arguments=(), process=None, **members):
    """Entry of `models` with a simulated server; `process` and the others are further members."""
    entry = {
        "id": name,
        "task": "text-generation",
        "backend": "openai",
        "vram": {"mib": mib},
        "process": {"preset": "simulate", "arguments": [str(word) for word in arguments], **(process or {})},
        **members,
    }
    return f"  - {json.dumps(entry)}\n"
