#!/usr/bin/env python3
"""Counts right answers to the demo's questions over fresh stores, by who computed the facts.

    bench/demo_answers.py [--stores 10] [--text] [--refine] [--repair 1,2] [--policy page:16/6]

Which facts are encoded together is drawn by each store's own key, so one store says little. Each
store gets data/demo.jsonl and is asked data/demo-questions.txt as `inferscale demo` asks them: from
text (--text), from the first stage's rows, with the best facts computed (--repair), and after the
second stage's encoding (--refine). An answer is right if it has the word of the list below. The
last line is one JSON object.
"""
import argparse
import json
import os
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RIGHT = ("okafor", "organ", "dahl")


def run(program, *arguments):
    done = subprocess.run([program, *arguments, "--json"], capture_output=True, text=True,
                          check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments[:2])}: {done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def ask_all(program, home, questions, counts, name, *options):
    for question, word in zip(questions, RIGHT):
        answer = run(program, "ask", question, "--home", home, "--user", "nora", "--max-tokens",
                     "48", "-k", "10", *options)
        text = answer["answer"] if "answer" in answer else answer["text"]
        row = counts.setdefault(name, {"asked": 0, "right": 0, "computed": 0, "exact": 0,
                                       "wrong": []})
        row["asked"] += 1
        row["exact"] += answer.get("facts_exact", 0)
        row["computed"] += answer["tokens_computed"]
        if word in text.lower():
            row["right"] += 1
        else:
            row["wrong"].append({"answer": text.strip(), "exact": answer.get("facts_exact", 0)})


def encode(program, home, stage, policy, counts):
    start = time.monotonic()
    done = run(program, "encode", "--home", home, "--user", "nora", "--stage", stage, *policy)
    row = counts.setdefault(f"encoding, {stage}", {"seconds": [], "computed": []})
    row["seconds"].append(round(time.monotonic() - start, 1))
    row["computed"].append(done.get("tokens_computed"))


def one_store(options, questions, counts):
    policy = ["--policy", options.policy] if options.policy else []
    with tempfile.TemporaryDirectory() as home:
        run(options.bin, "import", os.path.join(ROOT, "data", "demo.jsonl"), "--home", home,
            "--user", "nora", "--later")
        encode(options.bin, home, "first", policy, counts)
        if options.text:
            ask_all(options.bin, home, questions, counts, "text", "--mode", "text")
        ask_all(options.bin, home, questions, counts, "first stage", *policy)
        for m in options.repair:
            ask_all(options.bin, home, questions, counts, f"first stage, repair {m}", "--repair",
                    m, *policy)
        if options.refine:
            encode(options.bin, home, "refine", policy, counts)
            ask_all(options.bin, home, questions, counts, "second stage", *policy)


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--stores", type=int, default=10)
    p.add_argument("--refine", action="store_true")
    p.add_argument("--text", action="store_true", help="ask from text too")
    p.add_argument("--repair", type=lambda s: s.split(","), default=[])
    p.add_argument("--policy")
    p.add_argument("--bin", default=os.path.join(ROOT, "build", "release", "inferscale"))
    options = p.parse_args()
    counts = {}
    with open(os.path.join(ROOT, "data", "demo-questions.txt"), encoding="utf-8") as f:
        questions = [line.strip() for line in f if line.strip()]
    for number in range(options.stores):
        one_store(options, questions, counts)
        for name, row in counts.items():
            said = f"{row['right']} of {row['asked']} right" if "right" in row else "done"
            print(f"store {number + 1}: {name}: {said}", flush=True)
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
