#!/usr/bin/env python3
"""soak.py SECONDS TEST... - runs each test program with INFERSCALE_SOAK = its share of SECONDS, one after another, and prints one line of
JSON for each (what it reports, "ok", seconds) and the sums. Exit: 0 = all passed and nothing was lost."""
import json
import os
import re
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def run(test, seconds):
    environment = dict(os.environ, INFERSCALE_SOAK=str(seconds))
    build = os.path.join(ROOT, *os.path.relpath(os.path.abspath(test), ROOT).split(os.sep)[:2])
    environment["INFERSCALE_PLUGINS"] = build
    environment.setdefault("LSAN_OPTIONS", "suppressions=" + os.path.join(ROOT, "tests/support/lsan.supp"))
    start = time.monotonic()
    done = subprocess.run([test], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    reports = [json.loads(line[6:]) for line in done.stdout.split("\n") if line.startswith("soak: {")]
    if done.returncode:
        print(done.stdout[-4000:], file=sys.stderr)
    seeds = re.findall(r"INFERSCALE_SEED=(\d+)", done.stdout)
    for report in reports or [{"test": os.path.basename(test)}]:
        report.update(ok=done.returncode == 0, seconds=round(time.monotonic() - start, 1), first_seed=seeds[0] if seeds else None)
        print(json.dumps(report), flush=True)
        yield report


def main():
    tests = sys.argv[2:]
    reports = [report for test in tests for report in run(test, max(1.0, float(sys.argv[1]) / len(tests)))]
    total = {key: sum(r.get(key, 0) for r in reports) for key in ("points", "faults", "lost")}
    total["ok"] = all(r["ok"] and r.get("points") for r in reports) and total["lost"] == 0
    print(json.dumps(dict(test="soak", **total)))
    return 0 if total["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
