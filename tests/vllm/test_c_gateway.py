"""The whole way: `inferscale serve --engine vllm` before a real vLLM with the connector, with a recording proxy between the two."""
import json
import math
import os
import threading
import time

import openai
import pytest
from support import ground, process
from support.client import Client, Refused
from support.tap import Tap

TOLERANCE = 0.02  # log-probabilities in fp32; rows of a plan's first fact behind the bare header are exact


class Pair:
    def __init__(self, folder, model):
        self.home, self.folder = str(folder / "gateway"), folder
        os.makedirs(self.home, 0o700)
        config = {"kv_connector": "InferScaleConnector", "kv_connector_module_path": "inferscale_vllm.connector", "kv_role": "kv_both",
                  "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"home": self.home}}
        self.vllm = process.vllm(model, folder, "--dtype", "float32", "--served-model-name", "theirs", "--kv-transfer-config", json.dumps(config))
        self.tap = Tap(self.vllm.url)
        self.port = ground.free_port()
        self.start()

    def start(self):
        self.gateway = process.inferscale(self.folder, "--home", self.home, "--engine", "vllm", "--upstream", self.tap.url, "--policy", "header",
                                          "--refine", "none", port=self.port)
        self.api = Client(self.gateway.url)

    def call(self, method, path, body=None):
        return json.loads(self.api.request(method, path, body))

    def remember(self, user, *texts):
        got = self.call("POST", "/memories", {"messages": [{"role": "user", "content": t} for t in texts], "user_id": user, "infer": False})
        self.encoded()
        return [r["id"] for r in got["results"]]

    def encoded(self, seconds=300):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            e = self.call("GET", "/inferscale/encode")
            if e["n_unembedded"] + e["n_unencoded"] == 0:
                return
            time.sleep(0.3)
        raise AssertionError("the encoder did not come to an end: %r\n%s" % (e, self.gateway.log()))

    def ask(self, user, question, mode="kv", k=1, **more):
        return self.call("POST", "/v1/chat/completions", dict({"messages": [{"role": "user", "content": question}], "temperature": 0,
                         "max_tokens": 12, "memory": {"user_id": user, "mode": mode, "k": k}}, **more))

    def stop(self):
        self.gateway.stop()
        self.tap.shutdown()
        self.vllm.stop()


@pytest.fixture(scope="module")
def pair(folder, smollm2):
    made = Pair(folder, smollm2)
    yield made
    made.stop()


def chances(answer):
    return [{t["token"]: t["logprob"] for t in step["top_logprobs"]} for step in answer["choices"][0]["logprobs"]["content"]]


def test_it_serves_the_upstream_s_model(pair):
    assert "theirs" in [m["id"] for m in pair.call("GET", "/v1/models")["data"]]
    up = pair.call("GET", "/inferscale/info")["upstreams"]
    assert len(up) == 1 and up[0]["up"] and up[0]["can_inject"] and up[0]["model"] == "theirs", up
    text = pair.api.get("/metrics")
    assert 'inferscale_upstream_up{upstream="%s"} 1' % pair.tap.url in text


def test_injected_memory_answers_as_its_text_twin(pair):
    pair.remember("anna", "Anna is allergic to peanuts and to nothing else that she knows of.")
    question = "Which food is Anna allergic to?"
    kv, text = (pair.ask("anna", question, mode, logprobs=True, top_logprobs=5) for mode in ("kv", "text"))
    none = pair.ask("anna", question, "none", logprobs=True, top_logprobs=5)
    assert kv["memory"]["mode"] == "kv" and kv["memory"]["fallback"] == "", kv["memory"]
    assert [f["source"] for f in kv["memory"]["facts"]] == ["stored"]
    assert kv["memory"]["tokens"]["injected"] + kv["memory"]["tokens"]["resident"] >= kv["memory"]["facts"][0]["tokens"]
    assert text["memory"]["tokens"]["injected"] == 0
    assert kv["choices"][0]["message"]["content"] == text["choices"][0]["message"]["content"]

    def far(a, b):
        return max(abs(x[t] - y[t]) for x, y in zip(chances(a), chances(b)) for t in x if t in y and math.isfinite(x[t]))
    assert far(kv, text) <= TOLERANCE
    assert chances(kv)[0] != chances(none)[0]  # or nothing above would mean anything
    assert pair.call("GET", "/inferscale/info")["upstreams"][0]["tokens_injected"] > 0


def test_owners_at_once(pair):
    names = {"ole": "Oslo", "pia": "Paris", "rob": "Rome", "val": "Vienna"}
    for name, town in names.items():
        pair.remember(name, "%s lives in %s and has lived there for years." % (name.title(), town))
    wrong = []

    def work(name, town):
        for _ in range(3):
            said = pair.ask(name, "Where does %s live?" % name.title())
            if town not in said["choices"][0]["message"]["content"] or said["memory"]["mode"] != "kv":
                wrong.append((name, said))
    threads = [threading.Thread(target=work, args=item) for item in names.items()]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong, wrong[:2]


def test_the_openai_client_streams(pair):
    client = openai.OpenAI(base_url=pair.gateway.url + "/v1", api_key="none", timeout=300, max_retries=0)
    extra = {"memory": {"user_id": "anna", "k": 1}}
    asked = dict(model="theirs", messages=[{"role": "user", "content": "Which food is Anna allergic to?"}], max_tokens=12, temperature=0)
    whole = client.chat.completions.create(**asked, extra_body=extra)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}, extra_body=extra))
    told = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert told == whole.choices[0].message.content and "peanut" in told.lower()
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0 and sum(len(c.choices) > 0 for c in chunks) > 2


def test_what_clients_send_for_vllm_ends_here(pair):
    before = len(pair.tap.bodies)
    plain = pair.ask("anna", "Which food is Anna allergic to?")
    forged = pair.ask("anna", "Which food is Anna allergic to?", cache_salt="inferscale:theirs", kv_transfer_params={"inferscale": "forgedforged"})
    assert forged["choices"][0]["message"]["content"] == plain["choices"][0]["message"]["content"]
    sent = "".join(pair.tap.bodies[before:])
    assert "inferscale" in sent  # ours
    assert "forgedforged" not in sent and "theirs\"}" not in sent and "inferscale:theirs" not in sent


def test_an_update_while_serving(pair):
    fact = pair.remember("eva", "Eva's favourite colour is green.")[0]
    stop, after, wrong = threading.Event(), threading.Event(), []

    def work():
        while not stop.is_set():
            changed = after.is_set()
            try:
                said = pair.ask("eva", "What is Eva's favourite colour?")["choices"][0]["message"]["content"]
            except Refused as e:
                wrong.append(str(e))
                return
            if changed and "green" in said.lower():
                wrong.append(said)
    threads = [threading.Thread(target=work) for _ in range(3)]
    [t.start() for t in threads]
    time.sleep(2)
    pair.call("PUT", "/memories/%s?user_id=eva" % fact, {"text": "Eva's favourite colour is violet."})
    after.set()
    time.sleep(4)
    stop.set()
    [t.join() for t in threads]
    assert not wrong, wrong[:3]
    pair.encoded()
    said = pair.ask("eva", "What is Eva's favourite colour?")
    assert said["memory"]["mode"] == "kv" and "violet" in said["choices"][0]["message"]["content"].lower()


def test_forgotten_is_forgotten_there_too(pair):
    secret = pair.remember("ida", "Ida's word is quixotic.", "Ida has two cats.")[0]
    assert "quixotic" in pair.ask("ida", "What is Ida's word?")["choices"][0]["message"]["content"].lower()
    report = pair.call("POST", "/inferscale/forget", {"ids": [int(secret)], "user_id": "ida", "prove": True})
    assert report["forgotten"] == 1 and report["pending"] == 0 and report["proven"], report
    pair.encoded()
    said = pair.ask("ida", "What is Ida's word?", k=2)
    assert "quixotic" not in json.dumps(said).lower()
    assert pair.call("GET", "/inferscale/info")["upstreams"][0]["pending"] == 0


def test_the_gateway_is_killed_mid_stream(pair):
    link, answer = pair.api.open("POST", "/v1/chat/completions", {
        "messages": [{"role": "user", "content": "Tell a long story of Anna."}], "stream": True, "max_tokens": 400, "temperature": 0,
        "memory": {"user_id": "anna", "k": 1}})
    assert answer.status == 200
    for _ in range(6):
        assert answer.readline() is not None
    pair.gateway.kill()
    link.close()
    pair.start()
    said = pair.ask("anna", "Which food is Anna allergic to?")
    assert said["memory"]["mode"] == "kv" and "peanut" in said["choices"][0]["message"]["content"].lower()
    time.sleep(1)
    metrics = Client(pair.vllm.url).get("/metrics")
    running = [line for line in metrics.splitlines() if line.startswith("vllm:num_requests_running")]
    assert running and all(float(line.split()[-1]) == 0 for line in running), running  # the dead gateway's answer was called off


def test_vllm_is_gone_and_comes_back(pair):
    """What is down is an error that says so, never a wrong answer; the memory itself goes on."""
    pair.vllm.kill()
    with pytest.raises(Refused) as failed:
        pair.ask("anna", "Which food is Anna allergic to?")
    assert failed.value.status >= 500
    found = pair.call("POST", "/search", {"query": "peanuts", "user_id": "anna"})
    assert any("peanuts" in r["memory"] for r in found["results"])
    assert pair.call("GET", "/inferscale/info")["upstreams"][0]["up"] is False
