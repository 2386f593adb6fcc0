"""Later turns: what vLLM has of the earlier ones is a hit under the conversation's salt, the rest of a block and the turn's opener are captured under
that salt, and the new facts are injected behind them. Here by the connector alone, tail and facts exact, so that the answer must be the plain
prefill's; the whole way is in test_c_engine.py."""
import os
import secrets

import pytest
from memory import Gateway, ask, connector, difference, part, prompt

BLOCK, HEADER, FIRST, SPOKEN, OPENED, SECOND, N = 32, 20, 60, 130, 171, 231, 245  # ends of: header, facts, turn 1, opener, new facts, question
HIT, FULL = SPOKEN // BLOCK * BLOCK, OPENED // BLOCK * BLOCK
HEADS = 1


@pytest.fixture(scope="module")
def talk(dummy, folder):
    from support.engine import Engine
    home = folder / "turns"
    home.mkdir()
    gateway = Gateway(home)
    with Engine(dummy("llama"), "float32", kv_transfer_config=connector(home), block_size=BLOCK) as engine:
        gateway.describe(engine)
        yield Talk(engine, gateway)


class Talk:
    def __init__(self, engine, gateway):
        self.engine, self.gateway, self.tokens = engine, gateway, prompt(N, seed=21)
        self.plain = ask(engine, self.tokens)
        rows = lambda begin, end: part(gateway.capture(engine, self.tokens[:end], begin)[0], 0, end - begin, begin)  # noqa: E731
        self.first, self.new = [rows(0, HEADER), rows(HEADER, FIRST)], rows(OPENED, SECOND)

    def begin(self):
        """A conversation with its first turn; its salt."""
        salt = secrets.token_bytes(32)
        said = ask(self.engine, self.tokens[:SPOKEN], self.gateway.inject(self.tokens[:SPOKEN], self.first, salt=salt)).said
        assert said["injected"] == FIRST and said["local"] == 0
        return salt

    def tail(self, salt, begin=FULL):
        tokens = self.tokens[:OPENED]
        ticket = self.gateway.capture_ticket(tokens, begin, salt=salt, parts=tuple(self.first))
        answer = ask(self.engine, tokens, self.gateway.sign(ticket))
        assert answer.said["ok"], answer.said
        return part(self.gateway.keep(self.gateway.spool(ticket), HEADS), 0, OPENED - begin, begin, HEADS), answer

    def go_on(self, salt, *parts):
        return ask(self.engine, self.tokens, self.gateway.inject(self.tokens, [*self.first, *parts], salt=salt))


def test_the_tail_brings_new_facts_within_reach(talk):
    salt = talk.begin()
    tail, captured = talk.tail(salt)
    assert captured.cached == HIT  # the earlier turn is a hit under its salt
    got = talk.go_on(salt, tail, talk.new)
    assert got.said["local"] == FULL and got.said["injected"] == SECOND - FULL, got.said  # so is what the capture computed
    assert got.cached == SECOND and difference(talk.plain, got) <= 1e-4


def test_without_the_tail_there_is_a_gap(talk):
    got = talk.go_on(talk.begin(), talk.new)
    assert got.said["injected"] == 0 and got.said["reason"] == "gap" and got.said["local"] == HIT, got.said
    assert difference(talk.plain, got) <= 1e-4


def test_a_tail_that_is_not_there_is_computed(talk):
    salt = talk.begin()
    tail, _ = talk.tail(salt)
    os.unlink(talk.gateway.path(tail.name, HEADS))
    got = talk.go_on(salt, tail, talk.new)
    assert got.said["injected"] == 0 and got.said["reason"] == "missing", got.said
    assert difference(talk.plain, got) <= 1e-4


def test_a_shorter_hit_is_a_gap(talk):
    salt = talk.begin()
    tail, _ = talk.tail(salt)
    talk.engine.llm.reset_prefix_cache()
    got = talk.go_on(salt, tail, talk.new)
    assert got.said["local"] == 0 and got.said["injected"] == FIRST, got.said
    assert difference(talk.plain, got) <= 1e-4


def test_another_conversation_has_no_hit(talk):
    talk.begin()
    _, captured = talk.tail(secrets.token_bytes(32))
    assert captured.cached == FIRST  # its stored parts, and nothing of the other's


def test_a_wrong_tail_would_be_seen(talk):
    """The control: rows of these tokens from another place of the prompt, a few positions off, are not the answer's."""
    salt = talk.begin()
    tail, _ = talk.tail(salt)
    other = talk.tokens[:40] + talk.tokens[FULL:OPENED]
    ticket = talk.gateway.capture_ticket(other, 40)
    assert ask(talk.engine, other, talk.gateway.sign(ticket)).said["ok"]
    wrong = part(talk.gateway.keep(talk.gateway.spool(ticket), HEADS), 0, OPENED - FULL, FULL, HEADS)
    got = talk.go_on(salt, wrong, talk.new)
    assert got.said["injected"] == SECOND - FULL and difference(talk.plain, got) > 1e-3
