"""Two memories of the same facts: ours, behind `inferscale serve`, and Mem0 in this process."""
import json
import os
import resource
import shutil
import subprocess

from servers import Clock

OWNER = "rivals"


class Mem0:
    """The mem0ai package with its embedded Qdrant in `folder`; `embedder` is our server, so that
    both sides embed with the same model. infer is off: facts are kept word for word."""

    def __init__(self, folder, embedder, embedder_name, fresh):
        if fresh:
            shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder, exist_ok=True)
        os.environ.update(MEM0_TELEMETRY="False", MEM0_DIR=folder, OPENAI_API_KEY="unused")
        from mem0 import Memory  # after the variables that it reads
        self.memory = Memory.from_config({
            "vector_store": {"provider": "qdrant", "config": {
                "path": os.path.join(folder, "qdrant"), "on_disk": True,
                "embedding_model_dims": 384, "collection_name": "rivals"}},
            "embedder": {"provider": "openai", "config": {
                "model": embedder_name, "openai_base_url":
                "http://127.0.0.1:%d/v1" % embedder.port}},
            "llm": {"provider": "openai", "config": {"api_key": "unused"}},
            "history_db_path": os.path.join(folder, "history.db")})

    def add(self, index, fact):
        self.memory.add(fact["text"], user_id=OWNER, infer=False,
                        metadata={"date": fact["event_time"][:10], "index": index})

    def search(self, question, k):
        """(indices, best first; Clock.read()). No threshold: k facts are wanted, as everywhere."""
        clock = Clock()
        found = self.memory.search(question, filters={"user_id": OWNER}, top_k=k, threshold=0.0)
        took = clock.read()
        return [r["metadata"]["index"] for r in found["results"]], took


class Ours:
    """The owner's facts in a running server. index: memory id -> index of the fact."""

    def __init__(self, server, facts):
        self.server = server
        place = {f["text"]: i for i, f in enumerate(facts)}
        self.index, after = {}, ""
        while after is not None:
            page = server.get("/memories?user_id=%s&limit=500%s" % (OWNER, after))
            self.index.update({m["id"]: place[m["memory"]] for m in page["results"]})
            after = "&after=%s" % page["next"] if page.get("next") else None

    def search(self, question, k):
        self.server.fresh()
        clock = Clock()
        found = self.server.post("/search", {"query": question, "user_id": OWNER, "top_k": k})
        took = clock.read()
        rows = found["results"] if isinstance(found, dict) else found
        return [self.index[r["id"]] for r in rows], took

    def ask(self, question, k, mode, stage, max_tokens):
        r = self.server.chat({
            "messages": [{"role": "user", "content": question}], "max_tokens": max_tokens,
            "memory": {"user_id": OWNER, "k": k, "mode": mode, "stage": stage}})
        r.update(r["memory"]["tokens"],
                 refined=sum((f.get("policy") or "").startswith("company")
                             for f in r["memory"]["facts"]),
                 found=[self.index[f["id"]] for f in r["memory"]["facts"]])
        return r


def adder(server):
    """The same as Mem0.add, for our server."""
    def add(_, fact):
        server.post("/memories", {"user_id": OWNER, "text": fact["text"], "infer": False,
                                  "timestamp": fact["event_time"]})
    return add


def encode(binary, home, model, stage, threads):
    """Encodes what waits; the program's own report, and cpu_s, its processor time, the load of the
    model included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    out = subprocess.run([binary, "encode", "--home", home, "--user", OWNER, "--model", model,
                          "--stage", stage, "--threads", str(threads), "--json"], check=True,
                         stdout=subprocess.PIPE)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return dict(json.loads(out.stdout), cpu_s=after.ru_utime + after.ru_stime -
                before.ru_utime - before.ru_stime)


def time_encoding(binary, home, model, facts, threads):
    """Both stages over some facts in a home of their own: {"facts", stage: {seconds, cpu_s,
    computed, stored}}. The processor time of a call that encodes one fact, which is nearly all for
    loading the model, is taken off."""
    shutil.rmtree(home, ignore_errors=True)
    def add(some):
        lines = "".join(json.dumps({"text": f["text"], "event_time": f["event_time"]}) + "\n"
                        for f in some)
        subprocess.run([binary, "import", "--later", "--home", home, "--user", OWNER, "--model",
                        model, "-"], input=lines.encode(), check=True, stdout=subprocess.DEVNULL)

    add(facts[:1])
    load = encode(binary, home, model, "first", threads)["cpu_s"]
    add(facts[1:])
    out = {"facts": len(facts) - 1}
    for stage in ("first", "refine"):
        r = encode(binary, home, model, stage, threads)
        out[stage] = {"seconds": r["ms"] / 1000, "cpu_s": round(r["cpu_s"] - load, 3),
                      "computed": r["tokens_computed"], "stored": r["tokens_stored"]}
    shutil.rmtree(home)
    return out
