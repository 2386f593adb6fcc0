"""How the gateway behaves towards a real vLLM as its users start it, with its own defaults: log-probabilities, refusals, a secret that is
replaced, a server that goes away, comes back, or comes back as another model. Nothing of it is the client's fault, and nothing is silent."""
import json
import os
import subprocess
import time
import urllib.error
import urllib.request

import openai
import pytest
from support import ground, process
from support.client import Client, Refused
from support.tap import Tap


class Pair:
    def __init__(self, folder, model):
        self.folder, self.model = folder, model
        self.home = str(folder / "manners")
        os.makedirs(self.home, 0o700)
        self.vllm = self.start(model)
        self.tap = Tap(self.vllm.url)
        self.gateway = process.inferscale(folder, "--home", self.home, "--engine", "vllm", "--upstream", self.tap.url, "--policy", "header",
                                          "--refine", "none")
        self.api = Client(self.gateway.url)

    def start(self, model, *arguments):
        """vLLM as its users have it: its own default of --max-logprobs, no --served-model-name."""
        config = {"kv_connector": "InferScaleConnector", "kv_connector_module_path": "inferscale_vllm.connector", "kv_role": "kv_both",
                  "kv_connector_extra_config": {"home": self.home}}
        return process.vllm(model, self.folder, "--max-logprobs", "20", "--kv-transfer-config", json.dumps(config), *arguments)

    def away(self):
        self.tap.close()

    def back(self, server=None):
        self.tap = Tap((server or self.vllm).url, self.tap.server_address[1])

    def call(self, method, path, body=None):
        return json.loads(self.api.request(method, path, body))

    def upstream(self):
        return self.call("GET", "/inferscale/info")["upstreams"][0]

    def ready(self):
        """(status, body, Retry-After) of /ready."""
        try:
            with urllib.request.urlopen(self.gateway.url + "/ready", timeout=10) as answer:
                return answer.status, json.load(answer), answer.headers["Retry-After"]
        except urllib.error.HTTPError as e:
            return e.code, json.load(e), e.headers["Retry-After"]

    def wait_ready(self, status, seconds=20):
        until = time.monotonic() + seconds
        while self.ready()[0] != status:
            assert time.monotonic() < until, (self.ready(), self.gateway.log())
            time.sleep(0.2)
        return self.ready()

    def remember(self, user, text):
        return self.call("POST", "/memories", {"messages": [{"role": "user", "content": text}], "user_id": user, "infer": False,
            "timestamp": "2026-11-30"})

    def encoded(self, seconds=120):
        until = time.monotonic() + seconds
        while True:
            e = self.call("GET", "/inferscale/encode")
            if e["n_unembedded"] + e["n_unencoded"] == 0:
                return e
            assert time.monotonic() < until, (e, self.gateway.log())
            time.sleep(0.1)

    def ask(self, user, question, **more):
        return self.call("POST", "/v1/chat/completions", dict({"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 8,
                                                               "memory": {"user_id": user, "k": 1}}, **more))

    def stop(self):
        self.gateway.stop()
        self.tap.close()
        self.vllm.stop()


@pytest.fixture(scope="module")
def pair(folder, smollm2):
    made = Pair(folder, smollm2)
    yield made
    made.stop()


def doctor(pair, url, *arguments):
    """(exit status, checks by name, seconds, what else it said)."""
    started = time.monotonic()
    done = subprocess.run([ground.BIN, "doctor", "--json", "--engine", "vllm", "--upstream", url, "--home", pair.home, *arguments],
                          capture_output=True, text=True, env=ground.environment(), timeout=120)
    said = json.loads(done.stdout) if done.stdout.strip() else {"checks": []}
    return done.returncode, {c["name"]: c for c in said.get("checks", [])}, time.monotonic() - started, done.stdout + done.stderr


def test_the_model_is_named_and_measured_as_people_do(pair):
    folder = os.path.basename(os.path.realpath(pair.model))
    assert [m["id"] for m in pair.call("GET", "/v1/models")["data"]][0] == folder
    info = pair.call("GET", "/inferscale/info")
    assert str(pair.model) not in json.dumps(info), info
    assert 130e6 < info["model"]["params"] < 140e6, info["model"]  # SmolLM2-135M, its tied embedding once


def test_log_probabilities_on_vllm_s_own_default(pair):
    client = openai.OpenAI(base_url=pair.gateway.url + "/v1", api_key="none", timeout=300, max_retries=0)
    model = client.models.list().data[0].id
    for top in (0, 1, 5, 20):
        said = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Name a colour."}], max_tokens=6, temperature=0,
                                              logprobs=True, top_logprobs=top)
        steps = said.choices[0].logprobs.content
        assert len(steps) >= 3
        for step in steps:
            assert len(step.top_logprobs) == top and -20 < step.logprob <= 0
            ranks = [t.logprob for t in step.top_logprobs]
            assert ranks == sorted(ranks, reverse=True)
            if top:  # greedy: the likeliest token is the one that was told
                assert step.top_logprobs[0].token == step.token and step.top_logprobs[0].logprob == step.logprob
    text = client.completions.create(model=model, prompt="The sky is", max_tokens=4, temperature=0, logprobs=3)
    assert all(len(t) >= 3 for t in text.choices[0].logprobs.top_logprobs)
    chunks = list(client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Name a colour."}], max_tokens=6, temperature=0,
                                                 logprobs=True, top_logprobs=2, stream=True))
    told = [s for c in chunks if c.choices and c.choices[0].logprobs for s in c.choices[0].logprobs.content]
    assert len(told) >= 3 and all(len(s.top_logprobs) == 2 for s in told)
    assert pair.upstream()["up"] and pair.upstream()["retries"] == 0


def test_a_request_that_vllm_refuses_is_the_request_s(pair):
    """A grammar that our own check passes and vLLM's does not; whatever it says, the server stays well."""
    before = Client(pair.vllm.url).counted("vllm:request_success_total")
    for more in ({"logit_bias": {"1": 100, "2": -100}}, {"presence_penalty": 2, "frequency_penalty": -2}):
        assert pair.ask("nobody", "Hello?", **more)["choices"]
    with pytest.raises(Refused) as refused:
        pair.ask("nobody", "Hello? " * 3000)
    assert refused.value.status == 400 and "context_length_exceeded" in refused.value.body
    assert pair.upstream()["up"] and pair.ready()[0] == 200
    assert Client(pair.vllm.url).counted("vllm:request_success_total") >= before


def test_a_secret_that_is_replaced(pair):
    pair.remember("anna", "Anna is allergic to peanuts.")
    pair.encoded()
    assert pair.ask("anna", "Which food is Anna allergic to?")["memory"]["fallback"] == ""
    path = os.path.join(pair.home, "vllm", "secret")
    with open(path + ".new", "w", encoding="ascii") as f:
        os.fchmod(f.fileno(), 0o600)
        f.write(os.urandom(32).hex() + "\n")
    os.replace(path + ".new", path)
    said = pair.ask("anna", "Which food is Anna allergic to?")
    assert said["memory"]["fallback"] == "" and "peanut" in said["choices"][0]["message"]["content"].lower(), said
    fact = pair.remember("anna", "Anna's cat is called Minka.")["results"][0]["id"]
    pair.encoded()
    report = pair.call("POST", "/inferscale/forget", {"ids": [int(fact)], "user_id": "anna"})
    assert report["pending"] == 0, report
    assert pair.upstream()["failures"].get("unsigned", 0) == 0 and pair.upstream()["failures"].get("failed", 0) == 0


def test_doctor_says_what_is_at_an_address(pair):
    status, checks, _, _ = doctor(pair, pair.vllm.url)
    assert status == 0 and checks["upstream"]["result"] == "ok", checks
    dead = "http://127.0.0.1:%d" % ground.free_port()
    status, checks, seconds, _ = doctor(pair, dead)
    assert status == 1 and seconds < 30, seconds
    assert dead in checks["model"]["detail"] and "start it, or check the address" in checks["model"]["detail"]
    assert "no model" in checks["extraction"]["detail"]
    status, checks, seconds, _ = doctor(pair, pair.gateway.url)
    assert status == 1 and seconds < 30 and "is an `inferscale serve`, not a vLLM" in checks["model"]["detail"], checks
    for url in ("http://127.0.0.1:99999", "http://127.0.0.1:0", "127.0.0.1:8000", "http://", "ftp://a", "http://u:p@a:1"):
        status, checks, seconds, told = doctor(pair, url)
        assert status == 2 and not checks and "upstream" in told and seconds < 5, (url, status, told)


def test_vllm_is_away_and_back(pair):
    pair.away()
    status, said, after = pair.wait_ready(503)  # nobody asked anything
    assert "vLLM" in said["reason"] and after
    assert 'inferscale_ready 0' in pair.api.get("/metrics")
    link, answer = pair.api.open("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello?"}]})
    error = json.loads(answer.read())["error"]
    link.close()
    assert answer.status == 503 and answer.headers["Retry-After"] and error["code"] == "upstream_unavailable", error
    pair.remember("bob", "Bob plays the cello.")  # memory goes on: it is durable, and found by words and meaning
    found = pair.call("POST", "/search", {"query": "cello", "user_id": "bob"})
    assert "cello" in found["results"][0]["memory"]
    assert pair.call("POST", "/v1/embeddings", {"input": "hello"})["data"]
    time.sleep(20)  # its tries have become rare
    assert pair.call("GET", "/inferscale/encode")["n_unencoded"] == 1
    pair.back()
    pair.wait_ready(200)
    back = time.monotonic()
    pair.encoded()
    assert time.monotonic() - back < 15, pair.gateway.log()  # not the minute that its pauses had come to
    said = pair.ask("bob", "What does Bob play?")
    assert said["memory"]["fallback"] == "" and "cello" in said["choices"][0]["message"]["content"].lower()


def test_vllm_comes_back_as_another_model(pair, dummy):
    other = pair.start(dummy("qwen3"), "--load-format", "dummy")
    try:
        pair.away()
        pair.wait_ready(503)
        pair.back(other)
        until = time.monotonic() + 30
        while "another model" not in pair.upstream()["why"]:
            assert time.monotonic() < until, (pair.upstream(), pair.gateway.log())
            time.sleep(0.2)
        assert pair.ready()[0] == 503
        with pytest.raises(Refused) as refused:
            pair.ask("anna", "Which food is Anna allergic to?")
        assert refused.value.status == 503 and "another model" in refused.value.body, refused.value.body
        assert Client(other.url).counted("inferscale_tokens_injected_total") == 0
        assert "gets no work: it serves another model" in pair.gateway.log(200)
        pair.away()
        time.sleep(3)
        pair.back()  # the right one again: it goes on by itself
        pair.wait_ready(200)
        assert pair.ask("anna", "Which food is Anna allergic to?")["choices"]
    finally:
        other.stop()
