"""The table and the report of a run, from its lines. Ratios are paired, question by question; 95%
intervals: 10,000 resamples of the questions, Wilson's for shares."""
import json
import os
import platform

import numpy

RESAMPLES = 10000
NAMES = {
    "injected": "InferScale, injected", "injected_first": "InferScale, injected, stage first",
    "text": "InferScale, the same facts as text", "mem0": "Mem0, facts in the prompt",
    "letta": "prompt of Letta", "graphiti": "prompt of Graphiti",
    "ordered": "prefix cache, cache-aware order", "whole": "whole memory as a cached prefix"}


def interval(values, of):
    """[low, high] of of(resample)."""
    values = numpy.asarray(values, dtype=float)
    draw = numpy.random.default_rng(1)
    got = [of(values[draw.integers(0, len(values), len(values))]) for _ in range(RESAMPLES)]
    return [round(float(x), 4) for x in numpy.percentile(got, [2.5, 97.5])]


def share(k, n):
    """k of n, with Wilson's interval."""
    z, p = 1.96, k / n
    mid, half = p + z * z / (2 * n), z * (p * (1 - p) / n + z * z / (4 * n * n)) ** 0.5
    low, high = ((mid - half) / (1 + z * z / n), (mid + half) / (1 + z * z / n))
    return {"n": n, "share": round(p, 4), "interval": [round(low, 4), round(high, 4)]}


def spread(values):
    return {"median": round(float(numpy.median(values)), 3),
            "p90": round(float(numpy.percentile(values, 90)), 3)}


def arm_row(rows, arm):
    one = [r["arms"][arm] for r in rows]
    row = {"arm": arm, "name": NAMES[arm], "n": len(one)}
    for clock in ("wall_ms", "cpu_ms"):
        ratio = [r["arms"][arm][clock] / r["arms"]["injected"][clock] for r in rows]
        row["first_token_" + clock] = spread([a[clock] for a in one])
        row["over_injected_" + clock] = {
            "median": round(float(numpy.median(ratio)), 4),
            "interval": interval(ratio, numpy.median)}
    for what in ("prompt", "computed", "injected"):
        row[what + "_tokens"] = float(numpy.median([a[what] for a in one]))
    row["recall"] = {"mean": round(float(numpy.mean([a["recall"] for a in one])), 4),
                     "interval": interval([a["recall"] for a in one], numpy.mean)}
    row["right"] = share(sum(a["right"] for a in one), len(one))
    return row


def break_even(encoding, rows):
    """Uses of a fact after which encoding it has paid: what encoding a fact costs over what a use
    of it saves, which is (text - injected) / k. In processor seconds, and in tokens."""
    facts = encoding["facts"]
    k = [(a["text"]["cpu_ms"] - a["injected"]["cpu_ms"]) / 1000 for a in (r["arms"] for r in rows)]
    tokens = [a["text"]["computed"] - a["injected"]["computed"] for a in (r["arms"] for r in rows)]
    out = []
    for stage in ("first", "refine"):
        cost = encoding[stage]["cpu_s"] / facts
        computed = encoding[stage]["computed"] / facts
        out.append({
            "stage": stage, "facts": facts, "cpu_s_a_fact": round(cost, 5),
            "tokens_computed_a_fact": round(computed, 2),
            "wall_s": encoding[stage]["seconds"],
            "uses_by_time": [cost, k], "uses_by_tokens": [computed, tokens]})
    out.append({
        "stage": "both", "facts": facts,
        "cpu_s_a_fact": round(sum(r["cpu_s_a_fact"] for r in out), 5),
        "tokens_computed_a_fact": round(sum(r["tokens_computed_a_fact"] for r in out), 2),
        "uses_by_time": [sum(r["uses_by_time"][0] for r in out), k],
        "uses_by_tokens": [sum(r["uses_by_tokens"][0] for r in out), tokens]})
    return out


def with_uses(table, k):
    for row in table:
        for how in ("uses_by_time", "uses_by_tokens"):
            cost, saved = row[how]
            row[how] = {"uses": round(cost / (float(numpy.median(saved)) / k), 2),
                        "interval": interval(saved, lambda s: cost / (numpy.median(s) / k))}
    return table


def machine():
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as f:
        model = next((line.split(":")[1].strip() for line in f if line.startswith("model name")),
                     platform.machine())
    return {"cpu": model, "cores": os.cpu_count()}


def report(path):
    with open(path, encoding="utf-8") as f:
        lines = [json.loads(line) for line in f]
    rows = [r for r in lines if "q" in r]
    step = {r["step"]: r for r in lines if "step" in r}
    config = lines[0]["config"]
    loads = [r["load"] for r in rows]
    out = {"config": config, "machine": machine(), "day": rows[-1]["day"], "questions": len(rows),
           "load_average": {"lowest": min(loads), "highest": max(loads)},
           "flash_attention": step["start"]["flash_attention"],
           "arms": [arm_row(rows, a) for a in NAMES],
           "search": {s: {c: spread([r["search"][s][c] for r in rows])
                          for c in ("wall_ms", "cpu_ms")} for s in ("ours", "mem0")},
           "whole": {k: step["whole"][k] for k in ("facts", "prompt", "seconds", "cpu_s")},
           "add": {s: dict(spread(step["add"][s]), n=len(step["add"][s]),
                           cpu_ms_a_fact=round(1000 * step["add"][s + "_cpu_s"] /
                                               len(step["add"][s]), 3))
                   for s in ("ours", "mem0")},
           "break_even": with_uses(break_even(step["encode"], rows), config["k"])}
    return out


def ranged(d, form):
    return ("%s [%s, %s]" % (form, form, form)) % (d[0], *d[1])


def table(r):
    out = ["| | first token, wall | processor | processor / injected | computed tokens | recall | "
           "right |", "|---|---|---|---|---|---|---|"]
    for a in r["arms"]:
        ratio = a["over_injected_cpu_ms"]
        out.append("| %s | %.0f ms | %.0f ms | %s | %.0f of %.0f | %.2f | %d of %d |" % (
            a["name"], a["first_token_wall_ms"]["median"], a["first_token_cpu_ms"]["median"],
            "1" if a["arm"] == "injected" else ranged((ratio["median"], ratio["interval"]), "%.1f"),
            a["computed_tokens"], a["prompt_tokens"], a["recall"]["mean"],
            round(a["right"]["share"] * a["n"]), a["n"]))
    out += ["", "| | InferScale | Mem0 |", "|---|---|---|"]
    for what, get in (
            ("add a fact, wall, median", lambda s: r["add"][s]["median"]),
            ("add a fact, wall, 90th percentile", lambda s: r["add"][s]["p90"]),
            ("add a fact, processor, mean", lambda s: r["add"][s]["cpu_ms_a_fact"]),
            ("search, wall, median", lambda s: r["search"][s]["wall_ms"]["median"]),
            ("search, processor, median", lambda s: r["search"][s]["cpu_ms"]["median"])):
        out.append("| %s | %.1f ms | %.1f ms |" % (what, get("ours"), get("mem0")))
    out += ["", "| encoded | processor time a fact | tokens computed a fact | uses that pay, by "
            "time | by tokens |", "|---|---|---|---|---|"]
    for b in r["break_even"]:
        by_time, by_tokens = b["uses_by_time"], b["uses_by_tokens"]
        out.append("| %s | %.0f ms | %.0f | %s | %s |" % (
            {"first": "first stage", "refine": "second stage", "both": "both"}[b["stage"]],
            1000 * b["cpu_s_a_fact"], b["tokens_computed_a_fact"],
            ranged((by_time["uses"], by_time["interval"]), "%.1f"),
            ranged((by_tokens["uses"], by_tokens["interval"]), "%.1f")))
    return "\n".join(out)


def write(path):
    """The report beside the lines, as .json, and the table on stdout."""
    r = report(path)
    with open(os.path.splitext(path)[0] + ".json", "w", encoding="utf-8") as f:
        json.dump(r, f, indent=1)
        f.write("\n")
    c = r["config"]
    print("%s, %d facts, k = %d, %d questions of seed %d, %s, %s (%d cores), load average %.1f to "
          "%.1f\n" % (c["model"], c["facts"], c["k"], r["questions"], c["seed"], r["day"],
                      r["machine"]["cpu"], r["machine"]["cores"], r["load_average"]["lowest"],
                      r["load_average"]["highest"]))
    print(table(r))
