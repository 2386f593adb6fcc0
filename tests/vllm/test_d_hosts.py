"""A gateway and vLLM on two hosts that share no folder: segments are fetched over HTTP and kept in the worker's cache, captured rows come back the
same way, what is forgotten leaves the other host's disk, and what goes wrong on the way is computed exactly and counted."""
import pytest
from support import hosts


@pytest.fixture(scope="module")
def pair(folder, smollm2):
    made = hosts.Pair(folder / "hosts", smollm2)
    yield made
    made.stop()


def answer(said):
    return said["choices"][0]["message"]["content"]


def test_facts_are_captured_there_and_injected_from_here(pair):
    pair.remember("anna", "Anna is allergic to peanuts and to nothing else that she knows of.")
    question = "Which food is Anna allergic to?"
    kv, text = (pair.ask("anna", question, mode) for mode in ("kv", "text"))
    assert kv["memory"]["mode"] == "kv" and kv["memory"]["fallback"] == "", (kv["memory"], pair.vllm.log())
    assert [f["source"] for f in kv["memory"]["facts"]] == ["stored"] and answer(kv) == answer(text)
    assert pair.stored() and pair.stored("vllm/heads")
    fetched = pair.metric("inferscale_segments_fetched_total")
    assert fetched >= 2
    pair.ask("anna", question + " Say it again.")
    assert pair.metric("inferscale_segments_fetched_total") == fetched  # out of the cache
    for spool in (pair.home / "vllm/spool", pair.cache / "vllm/spool"):
        assert [p.name for p in spool.iterdir() if not p.name.startswith("owner-")] == []
