"""A list of named checks and the loop that runs them: what the Python check scripts share.

A check is a function; its docstring's first line is the name it is reported under. Not a test
framework: no fixtures, no collection, no order but the order of writing.
"""

import concurrent.futures
import sys
import traceback

_checks = []


def check(function):
    """Register a check."""
    _checks.append(function)
    return function


def raises(kind, function, *args, **kwargs):
    """The exception of exactly this type that the call raises."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        assert type(error) is kind, f"raised {type(error).__name__} ({error}), not {kind.__name__}"
        return error
    raise AssertionError(f"did not raise {kind.__name__}")


def equal(got, wanted):
    assert got == wanted, f"got {got!r}, wanted {wanted!r}"


def at_once(count, function):
    """What `function` gives for the numbers below `count`, all called at the same time."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=count) as pool:
        return list(pool.map(function, range(count)))


def run(prefix):
    """Run every check, a line each; ends the process with 1 when one failed."""
    failed = False
    for function in _checks:
        name = f"{prefix}: {function.__doc__.splitlines()[0]}"
        try:
            function()
        except Exception as error:
            failed = True
            where = traceback.extract_tb(error.__traceback__)[-1]
            why = f"{type(error).__name__}: {error}".replace("\n", " ")[:500]
            print(f"FAIL {name}: {why} ({where.name}:{where.lineno})", flush=True)
        else:
            print(f"ok {name}", flush=True)
    sys.exit(1 if failed else 0)
