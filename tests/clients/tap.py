"""TAP for the client tests, without a framework: `@case("name")` runs a function at once and prints its line; `finish()` ends with the plan."""
import os
import sys
import traceback

URL = os.environ.get("INFERSCALE_URL", "http://127.0.0.1:8080")
_count = 0
_failed = 0


def case(name):
    """Runs the decorated function now. What it raises is a failed case, printed with its trace."""
    def run(function):
        global _count, _failed
        _count += 1
        try:
            function()
            print("ok %d - %s" % (_count, name), flush=True)
        except Exception:  # a case may fail in any way; the next ones run all the same
            _failed += 1
            for line in traceback.format_exc().splitlines():
                print("# " + line)
            print("not ok %d - %s" % (_count, name), flush=True)
        return function
    return run


def finish():
    print("1..%d" % _count, flush=True)
    sys.exit(1 if _failed else 0)
