#!/usr/bin/env python3
"""Draws the project's reports as SVG, with the standard library alone.

    inferscale bench ttft --json > ttft.json;          bench/plot.py ttft.json > ttft.svg
    inferscale eval fidelity ... --json > fidelity.json; bench/plot.py fidelity.json > fidelity.svg

A second argument is the name of the model's file, for reports that lack it.
"""
import html
import json
import math
import sys

COLOURS = {"plain": "#dd8452", "text": "#c44e52", "injected": "#4c72b0", "floor": "#8c8c8c"}


def svg(width, height, body, title):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'font-family="sans-serif" font-size="12"><title>{html.escape(title)}</title>'
            f'<rect width="100%" height="100%" fill="white"/>{"".join(body)}</svg>\n')


def text(x, y, s, anchor="middle", size=12, colour="#222"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{html.escape(str(s))}</text>'


def rect(x, y, w, h, colour):
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(w, 0.5):.1f}" height="{max(h, 0.5):.1f}" fill="{colour}"/>'


def line(x1, y1, x2, y2, colour="#222", width=1):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'


def caption(report):
    """The model as its file is called beside the name it gives itself, its weights, the machine."""
    return ", ".join(str(report[k]) for k in ("model", "weights", "machine") if report.get(k))


def log_ticks(low, high):
    """1, 10, 100 ... that cover low .. high."""
    return [10.0 ** e for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]


def plot_ttft(report):
    """Bars of the arms by number of facts, vault in RAM, milliseconds on a logarithmic axis."""
    rows = [r for r in report["rows"] if r["vault"] == "ram"]
    arms = [(arm, colour) for arm, colour in COLOURS.items() if arm + "_ms" in rows[0]]
    values = [r[arm + "_ms"] for r in rows for arm, _ in arms]
    ticks = log_ticks(min(values), max(values))
    left, top, height, group = 60, 50, 300, 18 + 26 * len(arms)
    width = left + group * len(rows) + 20
    span = math.log10(ticks[-1] / ticks[0])

    def y(ms):
        return top + height * (1 - math.log10(ms / ticks[0]) / span)

    body = [text(width / 2, 20, "Time to first token (ms)", size=15), text(width / 2, 36, caption(report), size=9, colour="#666")]
    for t in ticks:
        body += [line(left, y(t), width - 20, y(t), "#ddd"), text(left - 6, y(t) + 4, f"{t:g}", "end")]
    for i, r in enumerate(rows):
        x = left + group * i + 10
        for j, (arm, colour) in enumerate(arms):
            ms = r[arm + "_ms"]
            body += [rect(x + 26 * j, y(ms), 22, top + height - y(ms), colour),
                     text(x + 26 * j + 11, y(ms) - 4, f"{ms:.0f}", size=9)]
        middle = x + (26 * len(arms) - 4) / 2
        labels = [(f"k = {r['k']}", 12), (f"{r['fact_tokens']} tokens", 9)]
        labels += [(f"{arm} / injected: {r[arm + '_over_injected']:.1f}", 9)
                   for arm, _ in arms if arm + "_over_injected" in r]
        for n, (label, size) in enumerate(labels):
            body.append(text(middle, top + height + 16 + 13 * n, label, size=size))
    bottom = top + height + 30 + 13 * (len(arms) - 2)
    for j, (arm, colour) in enumerate(arms):
        body += [rect(left + 90 * j, bottom + 12, 10, 10, colour),
                 text(left + 90 * j + 15, bottom + 21, arm, "start")]
    notes = ("Logarithmic axis: equal steps are equal ratios, so bars' lengths are not in proportion.",
             "text: the same tokens computed, with its own best settings. "
             "plain: the prompt of a usual memory stack, with text's settings.",
             "floor: the same tokens as an exact prefix hit, already in the engine's cache; nothing that serves these facts beats it.")
    width = max(width, 620)
    for i, note in enumerate(notes):
        body.append(text(left, bottom + 40 + 13 * i, note, "start", size=9, colour="#666"))
    return svg(width, bottom + 75, body, "Time to first token")


def name_of(row):
    arms = {"C": "no memory", "D": "gold facts only", "N": "numerical floor", "S": "reordered, best last", "S_free": "reordered"}
    if row["arm"] != "B":
        return arms.get(row["arm"], row["arm"])
    return row["policy"] + (f" + best {row['repair']} as text" if row["repair"] else "")


def plot_fidelity(report):
    """Horizontal bars of mean KL with 95% intervals on a logarithmic axis; the order ratio beside them."""
    rows = [r for r in report["rows"] if r["kl_mean"]]
    ticks = log_ticks(min(r["kl_lo"] or r["kl_mean"] for r in rows), max(r["kl_hi"] for r in rows))
    left, top, span_px, step = 170, 56, 420, 26
    width, height = left + span_px + 90, top + step * len(rows) + 30
    span = math.log10(ticks[-1] / ticks[0])

    def x(kl):
        return left + span_px * math.log10(max(kl, ticks[0]) / ticks[0]) / span

    body = [text(width / 2, 20, "Distance from the text twin: mean KL a token (ratio to a reordering)", size=14),
            text(width / 2, 36, f"{caption(report)}, k = {rows[0]['k']}, n = {rows[0]['n']}", size=9, colour="#666")]
    for t in ticks:
        body += [line(x(t), top - 8, x(t), height - 24, "#ddd"), text(x(t), height - 10, f"{t:g}")]
    for i, r in enumerate(rows):
        y = top + step * i
        colour = "#4c72b0" if r["arm"] == "B" else "#dd8452" if r["arm"].startswith("S") else "#8c8c8c"
        body += [text(left - 8, y + 12, name_of(r), "end"), rect(left, y, x(r["kl_mean"]) - left, 16, colour),
                 line(x(r["kl_lo"]), y + 8, x(r["kl_hi"]), y + 8, "#222", 1.5)]
        if r["order_ratio"] is not None:
            body.append(text(left + span_px + 8, y + 12, f"{r['order_ratio']:.2f}", "start"))
    notes = ("Logarithmic axis: equal steps are equal ratios, so bars' lengths are not in proportion.",
             "numerical floor: the same text computed in other batches; nothing can be told apart below it.")
    for i, note in enumerate(notes):
        body.append(text(left, height + 10 + 13 * i, note, "start", size=9, colour="#666"))
    return svg(width, height + 32, body, "Fidelity")


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as f:
        report = json.load(f)
    if len(sys.argv) == 3 and sys.argv[2] not in report["model"]:
        report["model"] += f" ({sys.argv[2]})"
    rows = report.get("rows") or sys.exit("the report has no rows; give the output of bench ttft or eval fidelity with --json")
    sys.stdout.write(plot_ttft(report) if "vault" in rows[0] else plot_fidelity(report))


if __name__ == "__main__":
    main()
