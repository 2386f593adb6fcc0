"""Two tensor-parallel workers through the gateway: each captures its own heads, the gateway puts their parts together to one segment, and each injects
its own of it."""
import os

import pytest
from memory import Gateway, ask, engine, load, part, prompt
from support import ground
from support.client import Client
from test_c_gateway import Pair

CLOSE, FAR = 1e-4, 1e-2


@pytest.fixture(scope="module")
def pair(folder, dummy):
    made = Pair(folder, dummy("llama"), "--tensor-parallel-size", "2", "--block-size", "32",
                home="ranks")
    yield made
    made.stop()


class Signed(Gateway):
    """Tickets with the secret of a gateway that is there already."""

    def __init__(self, home, fingerprint):
        with open(os.path.join(home, "vllm/secret"), encoding="ascii") as f:
            secret = bytes.fromhex(f.read().strip())
        self.home, self.library, self.secret, self.fingerprint = home, load(ground.LIBRARY), secret, fingerprint


def chances(answer):
    """The largest log-probabilities of each step, in order: several of the tokens of bytes are written alike."""
    return [sorted((t["logprob"] for t in step["top_logprobs"]), reverse=True) for step in answer["choices"][0]["logprobs"]["content"]]


def far(a, b):
    assert len(chances(a)) == len(chances(b)) > 1
    return max(abs(x - y) for one, other in zip(chances(a), chances(b)) for x, y in zip(one, other, strict=True))


def asked(pair, messages, mode, k=1):
    return pair.ask("anna", None, mode, messages=messages, memory={"user_id": "anna", "mode": mode, "k": k}, logprobs=True, top_logprobs=10,
                    max_tokens=4, ignore_eos=True)


def test_parts_of_two_workers_answer_as_their_text_twin(pair):
    pair.remember("anna", "Anna is allergic to peanuts and to nothing else that she knows of.")
    question = [{"role": "user", "content": "Which food is Anna allergic to?"}]
    kv, text, none = (asked(pair, question, mode) for mode in ("kv", "text", "none"))
    assert kv["memory"]["mode"] == "kv" and kv["memory"]["fallback"] == "" and [f["source"] for f in kv["memory"]["facts"]] == ["stored"], kv["memory"]
    assert kv["memory"]["tokens"]["injected"] >= kv["memory"]["facts"][0]["tokens"] and text["memory"]["tokens"]["injected"] == 0
    assert kv["choices"][0]["message"]["content"] == text["choices"][0]["message"]["content"]
    assert far(kv, text) <= CLOSE and far(kv, none) > FAR
    assert [n for n in os.listdir(os.path.join(pair.home, "vllm/spool")) if not n.startswith("owner-")] == []
    # Both took part, in the captures and in the loads.
    metrics = Client(pair.vllm.url)
    captures, said = metrics.counted("inferscale_captures_total"), pair.call("GET", "/inferscale/info")["upstreams"][0]
    assert captures >= 4 and captures % 2 == 0, captures
    assert said["can_inject"] and said["tokens_injected"] > 0, said


def test_a_later_turn_over_two_workers(pair):
    """Its tail is captured by both and put together too."""
    pair.remember("anna", "Anna's brother Bert sails a blue boat called Marie, which he built himself.")
    talk = [{"role": "user", "content": "Which food is Anna allergic to?"}, {"role": "assistant", "content": "Peanuts."},
            {"role": "user", "content": "Which boat does the brother of Anna sail?"}]
    first = asked(pair, talk[:1], "kv")
    second, again = asked(pair, talk, "kv"), asked(pair, talk, "kv")
    for said in (first, second, again):
        assert said["memory"]["mode"] == "kv" and said["memory"]["fallback"] == "", said["memory"]
    assert second["memory"]["tokens"]["injected"] > 0 and far(second, again) <= CLOSE
    # Of the first step: an answer's tokens can be bytes of one character, so answers that differ have lists of different lengths.
    assert abs(chances(second)[0][0] - chances(asked(pair, talk, "none"))[0][0]) > FAR


def test_moved_pieces_are_what_one_worker_makes_of_them(pair, dummy, folder):
    """Pieces that did not see each other, put elsewhere: an approximation, and the same one by one worker and by two, of one segment."""
    tokens = prompt(200, seed=71)
    with engine(folder, dummy("llama")) as (one, gateway):
        names = [gateway.capture(one, t)[0] for t in (tokens, tokens[50:])]
        parts = [part(names[0], 0, 50, 0), part(names[1], 0, 140, 50)]
        expected = ask(one, tokens, gateway.inject(tokens, parts)).rows[0]
        plain = ask(one, tokens).rows[0]
        files = [gateway.path(n) for n in names]
    two = Signed(folder / "ranks", gateway.fingerprint)
    for name, file in zip(names, files, strict=True):
        two.keep(file, name=name)
    rows, answer = Client(pair.vllm.url).next_logprobs(tokens, kv_transfer_params={"inferscale": two.inject(tokens, parts)})
    assert answer["kv_transfer_params"]["inferscale"]["injected"] == 190, answer
    assert abs(rows[0] - expected).max() <= CLOSE and abs(rows[0] - plain).max() > FAR
    # And what they capture of a span: a file each, which hold the heads that are theirs.
    ticket = two.capture_ticket(tokens, 20)
    _, answer = Client(pair.vllm.url).next_logprobs(tokens, kv_transfer_params={"inferscale": two.sign(ticket)})
    assert answer["kv_transfer_params"]["inferscale"]["ok"], answer
    files = sorted(n for n in os.listdir(folder / "ranks/vllm/spool") if n.startswith(ticket.id.hex()))
    assert files == [ticket.id.hex() + end for end in (".0.0", ".0.1")]
    for name in files:
        os.unlink(folder / "ranks/vllm/spool" / name)
