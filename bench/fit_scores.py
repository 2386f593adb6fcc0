#!/usr/bin/env python3
"""Fits and measures the score that users see (src/recall/score.c), with the standard library alone.

    make build/release/tests/llama_score_pairs
    build/release/tests/llama_score_pairs 1 8 > fit.jsonl      # seeds below 1000: to fit
    build/release/tests/llama_score_pairs 1001 8 > test.jsonl  # others: to report
    bench/fit_scores.py fit.jsonl test.jsonl

The first file is fitted: a logistic regression of the cosine and the ground in units of the
embedder's calibration and of the square of the words' share. Every memory's size and every kind of
question has its own weight, however many there are. Then, for every file and size of memory, what
the constants in the source and the fitted ones give: the area under the curve of best hits that are
right against those of questions that nothing answers, and the shares below 0.3.
"""
import json
import math
import sys

IN_SOURCE = (-0.3, 5.8, -2.7, 4.8)
FAR = -2
KINDS = {"answered": 1.0, "untold": 1.0, "foreign": 0.3, "word": 0.5}
SIZES = {"1": 0.5, "2": 0.5, "4": 0.5, "8": 0.5, "one person": 2.0, "ten people": 2.0}


def read(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def features(r):
    spread = r["high"] - r["low"]
    ground = (r["ground"] - r["low"]) / spread - FAR
    return (1.0, (r["cosine"] - r["low"]) / spread, max(0.0, ground), r["share"] ** 2)


def score(r, constants):
    x = sum(a * b for a, b in zip(constants, features(r)))
    return 0.01 + 0.99 / (1 + math.exp(-x)) if x > -500 else 0.01


def is_counted(r):
    """A wrong hit of a question that has an answer says nothing of either kind."""
    return r["right"] or r["kind"] in ("untold", "foreign")


def weights(rows):
    counts = {}
    for r in rows:
        key = (r["memory"], r["kind"])
        counts[key] = counts.get(key, 0) + 1
    return [KINDS[r["kind"]] * SIZES[r["memory"]] / counts[r["memory"], r["kind"]] for r in rows]


def solve(a, b):
    """Gaussian elimination; a is positive definite."""
    n = len(b)
    a = [row[:] + [b[i]] for i, row in enumerate(a)]
    for i in range(n):
        for j in range(i + 1, n):
            f = a[j][i] / a[i][i]
            a[j] = [x - f * y for x, y in zip(a[j], a[i])]
    x = [0.0] * n
    for i in reversed(range(n)):
        x[i] = (a[i][n] - sum(a[i][j] * x[j] for j in range(i + 1, n))) / a[i][i]
    return x


def fit(rows):
    """Newton's method, with next to no penalty on large constants."""
    rows = [r for r in rows if is_counted(r)]
    w, xs = weights(rows), [features(r) for r in rows]
    ys = [1.0 if r["right"] else 0.0 for r in rows]
    b, n = [0.0] * 4, range(4)
    for _ in range(40):
        g = [-1e-4 * v for v in b]
        h = [[1e-4 if i == j else 0.0 for j in n] for i in n]
        for x, y, wi in zip(xs, ys, w):
            p = 1 / (1 + math.exp(-max(-500.0, sum(u * v for u, v in zip(b, x)))))
            for i in n:
                g[i] += wi * (y - p) * x[i]
                for j in n:
                    h[i][j] += wi * p * (1 - p) * x[i] * x[j]
        b = [u + v for u, v in zip(b, solve(h, g))]
    return tuple(b)


def area(right, wrong):
    wins = sum((a > b) + (a == b) / 2 for a in right for b in wrong)
    return wins / (len(right) * len(wrong)) if right and wrong else math.nan


def below(values):
    return sum(v < 0.3 for v in values) / len(values) if values else math.nan


def report(rows, constants):
    print(f"  {'memory':<11}{'area':>6}{'answered':>22}{'word':>8}{'untold':>8}{'foreign':>9}"
          "   (below 0.3)")
    for memory in SIZES:
        of = {k: [score(r, constants) for r in rows
                  if r["memory"] == memory and r["kind"] == k and is_counted(r)] for k in KINDS}
        if not of["answered"]:
            continue
        middle = sorted(of["answered"])[len(of["answered"]) // 2]
        print(f"  {memory:<11}{area(of['answered'], of['untold']):6.3f}{below(of['answered']):6.2f}"
              f" (median {middle:.2f}){below(of['word']):8.2f}{below(of['untold']):8.2f}"
              f"{below(of['foreign']):9.2f}   n = {', '.join(str(len(of[k])) for k in KINDS)}")


def main():
    files = [(path, read(path)) for path in sys.argv[1:]]
    if not files:
        sys.exit(__doc__)
    fitted = fit(files[0][1])
    print("fitted: " + ", ".join(f"{v:.2f}" for v in fitted))
    for path, rows in files:
        for name, constants in (("in the source", IN_SOURCE), ("fitted", fitted)):
            print(f"{path}, constants {name}:")
            report(rows, constants)


if __name__ == "__main__":
    main()
