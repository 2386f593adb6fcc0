#!/usr/bin/env python3
"""run.py - InferScale and its rivals, question by question, on the same facts, model and machine.

bench/rivals.sh runs it and says what it needs. Each step is kept in --results (one line of JSON a
step or question, numbers only), so that the same command goes on where it was stopped; the stores
are kept in --work until they are removed.
"""
import argparse
import json
import os
import random
import shutil
import sys
import time

import figures
import prompts
import quiz
import stores
from servers import Clock, Llama, Ours

ARMS = ("injected", "injected_first", "text", "mem0", "letta", "graphiti", "ordered", "whole")
WARM = "Who is it?"
ROOM = 160          # tokens of the context that a question and its answer may need
ENCODED = 101       # facts over which encoding is timed
KEPT = 4            # earlier prompts in the RAM cache
DATE = "%Y-%m-%d"


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    p.add_argument("--binary", required=True, help="the program inferscale")
    p.add_argument("--llama-lib", required=True, help="folder of the libllama that set-up built")
    p.add_argument("--model", required=True, help="GGUF file")
    p.add_argument("--embedder", required=True, help="its name at /v1/embeddings")
    p.add_argument("--work", required=True, help="folder of the stores")
    p.add_argument("--results", required=True, help="lines of JSON, made or gone on with")
    p.add_argument("--seed", type=int, default=1000)
    p.add_argument("--facts", type=int, default=1000)
    p.add_argument("--questions", type=int, default=36)
    p.add_argument("--k", type=int, default=10)
    p.add_argument("--context", type=int, default=8192)
    p.add_argument("--answer", type=int, default=32, help="tokens of an answer, at most")
    p.add_argument("--stages", choices=("first", "both"), default="both",
                   help="what is encoded of the facts")
    p.add_argument("--ram-cache", action="store_true",
                   help="the servers of Mem0 and of the cache-aware order keep earlier prompts too")
    p.add_argument("--table", action="store_true", help="only print what is in --results")
    return p.parse_args()


class Log:
    """The lines of --results."""

    def __init__(self, path, config):
        self.path, self.rows = path, []
        if os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                whole = f.read().rpartition("\n")[0]
            self.rows = [json.loads(line) for line in whole.split("\n") if line]
            with open(path, "w", encoding="utf-8") as f:  # a torn last line goes
                f.write("".join(json.dumps(r) + "\n" for r in self.rows))
        if not self.rows:
            self.add({"config": config})
        if self.rows[0]["config"] != config:
            sys.exit("%s is of another run (%s); remove it, or give another --results" %
                     (path, self.rows[0]["config"]))

    def add(self, row):
        self.rows.append(row)
        with open(self.path, "a", encoding="utf-8") as f:
            f.write(json.dumps(row) + "\n")
            f.flush()
            os.fsync(f.fileno())

    def step(self, name):
        return next((r for r in self.rows if r.get("step") == name), None)

    def asked(self):
        return {r["q"] for r in self.rows if "q" in r}


def now(**more):
    return dict(more, load=round(os.getloadavg()[0], 2), day=time.strftime(DATE, time.gmtime()))


def say(text):
    print("rivals: %s" % text, file=sys.stderr, flush=True)


class Run:
    def __init__(self, o):
        self.o = o
        self.quiz = quiz.load(o.binary, o.seed, o.facts)
        self.facts = self.quiz.facts
        self.names = quiz.people(self.facts, {
            w for f in self.facts for w in f["text"].replace(".", " ").split() if w.islower()})
        self.home = os.path.join(o.work, "home")
        self.earlier = []
        os.makedirs(o.work, exist_ok=True)
        self.log = Log(o.results, {
            "model": os.path.basename(o.model), "seed": o.seed, "facts": o.facts, "k": o.k,
            "context": o.context, "answer": o.answer, "stages": o.stages,
            "ram_cache": o.ram_cache})

    def serve(self, refine):
        o = self.o
        return Ours(o.binary, self.home, o.model, 1, o.context, refine,
                    os.path.join(o.work, "serve.log"))

    # ---- Facts in -----------------------------------------------------------------------------

    def time_encoding(self):
        if self.log.step("encode"):
            return
        say("timing both stages over %d facts" % ENCODED)
        o = self.o
        r = stores.time_encoding(o.binary, os.path.join(o.work, "timed"), o.model,
                                 self.facts[:ENCODED], 1)
        self.log.add(now(step="encode", threads=1, **r))

    def add_facts(self):
        """Mem0 first: nothing is encoded in the background then."""
        if self.log.step("add"):
            return
        say("adding %d facts to each memory" % len(self.facts))
        shutil.rmtree(self.home, ignore_errors=True)
        server = self.serve(False)
        try:
            mem0 = stores.Mem0(os.path.join(self.o.work, "mem0"), server, self.o.embedder, True)
            row = {}
            for name, add in (("mem0", mem0.add), ("ours", stores.adder(server))):
                row[name], all_of_it = [], Clock()
                for i, fact in enumerate(self.facts):
                    clock = Clock()
                    add(i, fact)
                    row[name].append(round(1000 * clock.read()["wall"], 2))
                row[name + "_cpu_s"] = round(all_of_it.read()["cpu"], 3)
            mem0.memory.vector_store.client.close()
        finally:
            server.stop()
        self.log.add(now(step="add", **row))

    def encode_facts(self):
        if self.log.step("encoded"):
            return
        o = self.o
        for stage in ("first", "refine") if o.stages == "both" else ("first",):
            say("encoding, %s stage" % stage)
            r = stores.encode(o.binary, self.home, o.model, stage, 1)
            if r["facts_left"]:
                sys.exit("%d facts could not be encoded" % r["facts_left"])
        self.log.add(now(step="encoded"))

    # ---- Questions ----------------------------------------------------------------------------

    def start(self):
        o = self.o
        self.server = self.serve(o.stages == "both")
        self.ours = stores.Ours(self.server, self.facts)
        self.mem0 = stores.Mem0(os.path.join(o.work, "mem0"), self.server, o.embedder, False)
        info = self.server.get("/inferscale/info")
        env = dict(os.environ, LLAMA_CPP_LIB_PATH=o.llama_lib, PYTHONDONTWRITEBYTECODE="1")
        kept = KEPT * 400 * info["model"]["kv_bytes_per_token"]
        # Flash attention where it is faster on CPUs: in long prompts, not in short ones behind a
        # long prefix.
        self.llama = {
            name: Llama(name, sys.executable, o.model, 1, o.context, name != "whole",
                        os.path.join(o.work, name + ".log"), env,
                        kept if o.ram_cache and name in ("mem0", "ordered") else 0)
            for name in ("mem0", "letta", "graphiti", "ordered", "whole")}
        self.log.add(now(step="start", flash_attention=info["model"]["flash_attention"]))

    def stop(self):
        self.mem0.memory.vector_store.client.close()
        for s in [self.server, *self.llama.values()]:
            s.stop()

    def warm_up(self):
        """Each server has its header in place and its buffers touched, and the whole memory what
        fits of it."""
        for mode, stage in (("kv", "best"), ("text", "best"), ("kv", "first")):
            self.ours.ask(WARM, self.o.k, mode, stage, 1)
        self.mem0.search(WARM, self.o.k)
        for name in ("mem0", "letta", "graphiti", "ordered"):
            self.llama[name].ask(self.messages(name, list(range(self.o.k)), WARM), 1)
        n = self.fitting()
        self.window = list(range(len(self.facts) - n, len(self.facts)))
        say("the whole memory: the newest %d of %d facts fit" % (n, len(self.facts)))
        r = self.llama["whole"].ask(self.messages("whole", None, WARM), 1)
        self.log.add(now(step="whole", facts=n, seconds=round(r["last"]["wall"], 3),
                         cpu_s=round(r["last"]["cpu"], 3), prompt=r["prompt"]))

    def fitting(self):
        from llama_cpp import Llama as Model
        model = Model(self.o.model, vocab_only=True, verbose=False)
        left, n = self.o.context - ROOM, 0
        for f in reversed(self.facts):
            left -= len(model.tokenize((prompts.lines([f]) + "\n").encode(), add_bos=False))
            if left < 0:
                break
            n += 1
        return n

    def messages(self, arm, found, question):
        facts = [self.facts[i] for i in found or []]
        if arm == "mem0":
            return prompts.mem0(facts, question)
        if arm == "letta":
            return prompts.letta(facts, question, self.names, len(self.facts))
        if arm == "graphiti":
            return prompts.graphiti(facts, question, self.names)
        if arm == "whole":
            return prompts.ours([self.facts[i] for i in self.window], question)
        order = prompts.keep_prefix(found, self.earlier)
        self.earlier = [order] + (self.earlier[:KEPT - 1] if self.o.ram_cache else [])
        return prompts.ours([self.facts[i] for i in order], question)

    def ask(self, arm, text, found, searched):
        """(answer, what it took before its request, indices of the facts that it had)."""
        o, none = self.o, {"wall": 0, "cpu": 0}
        if arm in ("injected", "injected_first", "text"):  # they search themselves
            r = self.ours.ask(text, o.k, "text" if arm == "text" else "kv",
                              "first" if arm == "injected_first" else "best", o.answer)
            return r, none, r["found"]
        of = "mem0" if arm == "mem0" else "ours"
        r = self.llama[arm].ask(self.messages(arm, found[of], text), o.answer)
        return (r, none, self.window) if arm == "whole" else (r, searched[of], found[of])

    def question(self, n):
        q, o = self.quiz.questions[n], self.o
        row, found, searched = now(q=n, type=q["type"], search={}, arms={}), {}, {}
        for system in random.Random(n).sample(("ours", "mem0"), 2):
            store = self.ours if system == "ours" else self.mem0
            found[system], searched[system] = store.search(q["question"], o.k)
            row["search"][system] = {t + "_ms": round(1000 * s, 2)
                                     for t, s in searched[system].items()}
        for arm in random.Random(n).sample(ARMS, len(ARMS)):
            r, before, used = self.ask(arm, q["question"], found, searched)
            first = r["first"] or r["last"]
            row["arms"][arm] = {
                "wall_ms": round(1000 * (before["wall"] + first["wall"]), 2),
                "cpu_ms": round(1000 * (before["cpu"] + first["cpu"]), 2),
                "prompt": r["prompt"], "computed": r["computed"],
                "injected": r.get("injected", 0), "refined": r.get("refined", 0),
                "recall": round(len(set(q["facts"]) & set(used)) / len(q["facts"]), 4),
                "right": int(quiz.is_right(q, r["text"]))}
        self.log.add(row)

    def questions(self):
        asked = self.log.asked()
        left = [n for n in range(min(self.o.questions, len(self.quiz.questions)))
                if n not in asked]
        if not left:
            return
        if not os.path.isdir(self.home):
            sys.exit("the stores of %s are gone; remove it to measure again" % self.o.results)
        self.start()
        try:
            self.warm_up()
            for i, n in enumerate(left):
                self.question(n)
                say("question %d of %d" % (i + 1, len(left)))
        finally:
            self.stop()


def main():
    o = arguments()
    if not o.table:
        run = Run(o)
        run.time_encoding()
        run.add_facts()
        run.encode_facts()
        run.questions()
    figures.write(o.results)


if __name__ == "__main__":
    main()
