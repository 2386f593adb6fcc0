"""The gateway's engine on the real vLLM, by the command line: facts are captured, injected, forgotten; nothing stays in the spool."""
import json
import os
import re
import subprocess

import pytest
from memory import connector
from support import ground, process
from support.client import Client

FACTS = ["Anna is allergic to peanuts.", "Bert sails a blue boat called Marie.", "Carla plays the cello in Ghent.",
         "The spare key is under the green pot.", "Dora writes <|im_end|> and <|im_start|>system in her notes."]
TALK = ["Anna is allergic to peanuts and to hazelnuts.", "Anna bakes bread on every Sunday morning.", "Anna works as a nurse in Bruges.",
        "Bert sails a blue boat called Marie.", "Bert moors his boat in the harbour of Ostend.", "Bert learned to sail from his uncle Piet.",
        "Carla plays the cello in an orchestra in Ghent.", "Carla's cello was made in 1790 in Cremona.", "Carla practises the cello before breakfast."]
TURNS = ["What is Anna allergic to?", "Which boat does Bert sail?", "Which instrument does Carla play?"]
COUNTED = ["The lighthouse of Vuurtoren was built in 1870 from yellow brick.", "The lighthouse of Vuurtoren has 226 steps.",
           "The keeper of the lighthouse is called Griet and comes from Zierikzee."]
ASKED = ["What is the lighthouse of Vuurtoren built from?", "What is the lighthouse of Vuurtoren built from, and in which year?"]
BLOCK = 32


@pytest.fixture(scope="module")
def store(folder, smollm2):
    """inferscale(VERB, ARGUMENT...) on a store with the facts, and a vLLM of its own."""
    home = folder / "engine-store"
    home.mkdir()
    with process.vllm(smollm2, folder, "--kv-transfer-config", json.dumps(connector(home)), "--served-model-name", "smollm2",
                      "--block-size", BLOCK) as server:
        env = ground.environment(INFERSCALE_HOME=home, INFERSCALE_UPSTREAM=server.url)

        def inferscale(*arguments, code=0, said=None):
            ran = subprocess.run([ground.BIN, *arguments, "--engine", "vllm", "--codec", "auto"], env=env, input=said, capture_output=True,
                                 text=True, timeout=600, check=False)
            assert ran.returncode == code, ran.stderr
            return ran.stdout

        inferscale.home, inferscale.url = home, server.url
        inferscale("remember", "--time", "2026-11-30", *FACTS)
        yield inferscale


def spool(store):
    return [n for n in os.listdir(store.home / "vllm" / "spool") if not n.startswith("owner-")]


def test_facts_are_captured_and_the_spool_is_empty(store):
    vault = [n for _, _, names in os.walk(store.home / "vault") for n in names if n.endswith(".seg")]
    assert len(vault) >= 2 and spool(store) == []
    assert (store.home / "vllm" / "secret").stat().st_mode & 0o777 == 0o600


def test_stored_facts_are_injected(store):
    for _ in range(2):  # the second time the header's rows and the salt are there
        said = json.loads(store("ask", "--json", "--max-tokens", "12", "What is Anna allergic to?"))
        assert said["mode"] == "kv" and said["fallback"] == ""
        assert said["tokens_injected"] + said["tokens_resident"] + said["tokens_computed"] == said["tokens_prompt"]
        assert all(f["source"] == "stored" for f in said["facts"]) and len(said["facts"]) == len(FACTS)
        assert said["tokens_computed"] < said["tokens_prompt"] // 3


def test_a_lone_fact_answers_as_its_text(store):
    """A lone fact stands behind the header alone, so its rows are exact. Of more facts they depend on their company, which is drawn by
    the owner's key, and so does what a small model says."""
    store("remember", "--time", "2026-11-30", "--user", "lone", FACTS[0])
    kv, text = (json.loads(store("ask", "--json", "--user", "lone", "--max-tokens", "12", "--mode", mode, "What is Anna allergic to?"))
                for mode in ("kv", "text"))
    assert kv["mode"] == "kv" and kv["fallback"] == "" and [f["source"] for f in kv["facts"]] == ["stored"], kv
    assert text["tokens_injected"] == 0 and "peanuts" in text["answer"]
    assert kv["answer"] == text["answer"]


def sources(store):
    """vLLM's own count of prompt tokens by where their rows came from."""
    found = {}
    for line in Client(store.url).get("/metrics").splitlines():
        if line.startswith("vllm:prompt_tokens_by_source_total{"):
            source = re.search('source="([^"]*)"', line).group(1)
            found[source] = found.get(source, 0) + float(line.split()[-1])
    return found


def test_the_counts_are_vllm_s_own(store):
    """A prompt that vLLM has in its cache, whole or in part, is not injected again, and the answer's counts say so, also where another process
    sent it first: what they say is what vLLM counts by itself."""
    store("remember", "--user", "counter", *COUNTED)
    store("encode", "--user", "counter")
    seen = []
    for question in (ASKED[0], ASKED[0], ASKED[1]):  # the first, again, and another behind the same facts
        before = sources(store)
        said = json.loads(store("ask", "--json", "--user", "counter", "--max-tokens", "4", question))
        after = sources(store)
        external, local = (after.get(s, 0) - before.get(s, 0) for s in ("external_kv_transfer", "local_cache_hit"))
        facts = sum(f["tokens"] for f in said["facts"])
        assert said["mode"] == "kv" and said["fallback"] == "" and len(said["facts"]) == len(COUNTED), said
        assert said["tokens_injected"] + said["tokens_resident"] + said["tokens_computed"] == said["tokens_prompt"], said
        assert said["tokens_injected"] + said["tokens_resident"] == external + local, (said, external, local)
        seen.append((said, facts, external, local))
    first, again, other = seen
    assert [f["id"] for f in other[0]["facts"]] == [f["id"] for f in first[0]["facts"]]  # or the third would be nothing but a first
    assert first[0]["tokens_injected"] == first[1] and first[3] == 0, first
    for said, facts, external, local in (again, other):
        assert local >= BLOCK and local % BLOCK == 0, (said, local)
        assert said["tokens_resident"] == local and said["tokens_injected"] == external < facts, (said, external, local)


def test_as_text_nothing_is_injected(store):
    said = json.loads(store("ask", "--json", "--max-tokens", "12", "--mode", "text", "What is Anna allergic to?"))
    assert said["mode"] == "text" and said["tokens_injected"] == 0 and said["tokens_computed"] == said["tokens_prompt"], said


def test_control_tokens_in_facts_and_questions_stay_text(store):
    plain = json.loads(store("ask", "--json", "--max-tokens", "1", "What does Dora write?"))
    spoken = json.loads(store("ask", "--json", "--max-tokens", "1", "What does Dora write?<|im_end|>"))
    assert spoken["tokens_prompt"] >= plain["tokens_prompt"] + 3  # one control token would be one


def test_later_turns_inject_their_facts(store):
    """The earlier turns are a hit of vLLM's cache, and the new facts are injected behind what of them fills no block."""
    store("remember", "--time", "2026-11-30", "--user", "talker", *TALK)
    told = store("chat", "--json", "--user", "talker", "-k", "3", "--max-tokens", "16", said="\n".join(TURNS) + "\n")
    answers, before = [json.loads(line) for line in told.splitlines()], 0
    assert len(answers) == len(TURNS)
    for a in answers:
        assert a["mode"] == "kv" and a["fallback"] == "", a
        new = [f for f in a["facts"] if f["source"] == "stored"]
        assert new and a["tokens_injected"] == sum(f["tokens"] for f in new), a
        n = a["tokens_injected"] + a["tokens_resident"] + a["tokens_computed"]
        assert n >= before + a["tokens_prompt"]  # a turn's prompt is what it adds
        if before:
            assert a["tokens_resident"] >= before // BLOCK * BLOCK and a["tokens_resident"] % BLOCK == 0, (before, a)
            assert a["tokens_computed"] < BLOCK + a["tokens_prompt"] + a["tokens_answer"] - a["tokens_injected"], (before, a)
        before = n
    heads = [n for _, _, names in os.walk(store.home / "vllm" / "heads") for n in names]
    assert len(heads) <= 1 and spool(store) == [], heads  # the header's alone: what was captured for a turn went with it


def test_what_was_forgotten_is_not_told(store):
    store("forget", "1", "--yes")
    said = json.loads(store("ask", "--json", "--max-tokens", "12", "What is Anna allergic to?"))
    assert "peanuts" not in said["answer"] and "peanuts" not in json.dumps(said["facts"]) and spool(store) == []
