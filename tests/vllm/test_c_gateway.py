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
    """A vLLM with the connector and a gateway before it, on a home of their own. arguments: vLLM's."""

    def __init__(self, folder, model, *arguments, home="gateway"):
        self.home, self.folder = str(folder / home), folder
        os.makedirs(self.home, 0o700)
        config = {"kv_connector": "InferScaleConnector", "kv_connector_module_path": "inferscale_vllm.connector", "kv_role": "kv_both",
                  "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"home": self.home}}
        self.vllm = process.vllm(model, folder, "--dtype", "float32", "--served-model-name", "theirs", "--kv-transfer-config", json.dumps(config),
                                 *arguments)
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
        got = self.call("POST", "/memories", {"messages": [{"role": "user", "content": t} for t in texts], "user_id": user, "infer": False,
            "timestamp": "2026-11-30"})
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

    def ask(self, user, question, mode="kv", k=1, **more):  # more: other fields, or these otherwise
        return self.call("POST", "/v1/chat/completions", dict({"messages": [{"role": "user", "content": question}], "temperature": 0,
                         "max_tokens": 12, "memory": {"user_id": user, "mode": mode, "k": k}}, **more))

    def stop(self):
        self.gateway.stop()
        self.tap.shutdown()
        self.vllm.stop()


@pytest.fixture(scope="module")
def pair(folder, smollm2):
    made = Pair(folder, smollm2, "--block-size", "32")  # small enough that later turns have facts worth a block's rest
    yield made
    made.stop()


def chances(answer):
    return [{t["token"]: t["logprob"] for t in step["top_logprobs"]} for step in answer["choices"][0]["logprobs"]["content"]]


def far(a, b):
    """How far two answers' chances are apart, of the tokens that both have."""
    return max(abs(x[t] - y[t]) for x, y in zip(chances(a), chances(b)) for t in x if t in y and math.isfinite(x[t]))


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


TOLD = ["Anna is allergic to peanuts and to hazelnuts.", "Anna bakes bread on every Sunday morning.", "Bert sails a blue boat called Marie.",
        "Bert moors his boat in the harbour of Ostend.", "Carla plays the cello in an orchestra in Ghent.", "Carla's cello was made in 1790 in Cremona."]
ASKED = ["What is Anna allergic to?", "Which boat does Bert sail?", "Which instrument does Carla play?", "Where does Bert moor his boat?"]


class Talk:
    """A conversation of one owner, whose client sends all of its messages each time."""

    def __init__(self, pair, user):
        self.pair, self.user, self.messages = pair, user, []
        pair.remember(user, *TOLD)

    def turn(self, question, mode="kv", keep=True):
        asked = [*self.messages, {"role": "user", "content": question}]
        said = self.pair.ask(self.user, None, mode, k=2, messages=asked, max_tokens=10, logprobs=True, top_logprobs=5,
                             memory={"user_id": self.user, "mode": mode, "k": 2, "return_text": True})
        if keep:
            self.messages = [*asked, {"role": "assistant", "content": said["choices"][0]["message"]["content"]}]
        return said

    @staticmethod
    def facts(said):
        return [f["text"] for f in said["memory"]["facts"]]


def test_turns_go_on_after_the_gateway_was_killed(pair):
    """Two owners are told the same and ask the same; before the fourth turn of the one the gateway is killed. Where the facts of the earlier turns stand is
    in the bank, so the prompt is the same, and so is the answer."""
    stays, killed = Talk(pair, "stays"), Talk(pair, "killed")
    for question in ASKED[:3]:
        a, b = stays.turn(question), killed.turn(question)
        assert a["memory"]["fallback"] == b["memory"]["fallback"] == "" and a["memory"]["mode"] == b["memory"]["mode"] == "kv", (a, b)
        assert far(a, b) <= TOLERANCE
    expected = stays.turn(ASKED[3], keep=False)
    before = killed.turn(ASKED[3], keep=False)
    pair.gateway.kill()
    pair.start()
    got, text = killed.turn(ASKED[3], keep=False), killed.turn(ASKED[3], "text", keep=False)
    for said in (before, got, text):  # the same facts in the same places, so the same prompt; the text twin too
        assert Talk.facts(said) == Talk.facts(expected) and len(Talk.facts(said)) == 6
        assert said["memory"]["tokens"]["prompt"] == expected["memory"]["tokens"]["prompt"]
        assert said["memory"]["placed"] == {"kept": 3, "new": 1, "lost": 0}, said["memory"]
    tokens = got["memory"]["tokens"]
    assert got["memory"]["mode"] == "kv" and got["memory"]["fallback"] == "" and {f["source"] for f in got["memory"]["facts"]} == {"stored"}, got["memory"]
    assert tokens["injected"] > 0 and tokens["injected"] + tokens["resident"] + tokens["computed"] == tokens["prompt"], tokens
    assert text["memory"]["tokens"]["computed"] == text["memory"]["tokens"]["prompt"]
    assert got["choices"][0]["message"]["content"] == expected["choices"][0]["message"]["content"]
    assert all("in the harbour" in said["choices"][0]["message"]["content"] for said in (got, text))
    assert far(expected, got) <= TOLERANCE


def test_vllm_is_gone_and_comes_back(pair):
    """What is down is an error that says so, never a wrong answer; the memory itself goes on."""
    pair.vllm.kill()
    with pytest.raises(Refused) as failed:
        pair.ask("anna", "Which food is Anna allergic to?")
    assert failed.value.status >= 500
    found = pair.call("POST", "/search", {"query": "peanuts", "user_id": "anna"})
    assert any("peanuts" in r["memory"] for r in found["results"])
    assert pair.call("GET", "/inferscale/info")["upstreams"][0]["up"] is False
