"""Isolation and failure: what is approximate stays where it belongs, what is wrong is computed exactly, what is forgotten is gone."""
import secrets
import time

import pytest
from memory import Gateway, ask, batch, connector, difference, part, prompt, tickets

TOLERANCE = 1e-4


class Ground:
    """One engine in fp32 with two stored pieces that did not see each other: injecting both is an approximation that can be measured."""

    def __init__(self, folder, model, name, policy="recompute", **settings):
        from support.engine import Engine
        home = folder / name
        home.mkdir()
        self.gateway = Gateway(home)
        self.vllm = Engine(model, "float32", True, kv_transfer_config=connector(home, policy), **settings)
        self.gateway.describe(self.vllm)
        self.tokens = prompt(300, 21)
        self.header, _ = self.gateway.capture(self.vllm, self.tokens[:100])
        self.fact, _ = self.gateway.capture(self.vllm, self.tokens[100:300])
        self.plain = ask(self.vllm, self.tokens)

    def parts(self):
        return [part(self.header, 0, 100, 0), part(self.fact, 0, 190, 100)]

    def inject(self, **fields):
        return self.gateway.inject(self.tokens, self.parts(), **fields)

    def exact(self, answer):
        return difference(self.plain, answer) <= TOLERANCE

    def side(self):
        return self.vllm.scheduler.connector.scheduler_side


@pytest.fixture(scope="module")
def ground(dummy, folder):
    made = Ground(folder, dummy("llama"), "isolation")
    yield made
    made.vllm.close()


def test_injected_is_approximate_and_stays_in_its_salt(ground):
    salt = secrets.token_bytes(32)
    first = ask(ground.vllm, ground.tokens, ground.inject(salt=salt))
    assert first.said == {"ok": True, "injected": 290, "local": 0, "reason": "", "why": ""}
    assert not ground.exact(first)  # or nothing below would mean anything
    again = ask(ground.vllm, ground.tokens, ground.inject(salt=salt))
    assert again.said["local"] == 256 and again.said["injected"] == 34  # its own blocks, extended
    assert difference(first, again) <= TOLERANCE
    plain = ask(ground.vllm, ground.tokens)
    assert plain.said is None and ground.exact(plain)


def test_without_a_salt_it_would_pollute(ground, monkeypatch):
    """The negative control: the same with the salt left out."""
    from inferscale_vllm import scheduler
    tokens = prompt(300, 22)
    parts = [part(ground.gateway.capture(ground.vllm, tokens[:100])[0], 0, 100, 0),
             part(ground.gateway.capture(ground.vllm, tokens[100:])[0], 0, 190, 100)]
    monkeypatch.setattr(scheduler, "_salt", lambda request, salt: None)
    ask(ground.vllm, tokens, ground.gateway.inject(tokens, parts))
    polluted = ask(ground.vllm, tokens)
    assert polluted.cached == 256
    monkeypatch.undo()
    exact = ask(ground.vllm, tokens, salt="fresh")
    assert exact.cached == 0 and difference(exact, polluted) > 1e-2
    ground.vllm.llm.reset_prefix_cache()


def test_a_client_cannot_name_our_salts(ground):
    salt = secrets.token_bytes(32)
    assert ask(ground.vllm, ground.tokens, ground.inject(salt=salt)).said["injected"] == 290
    for claimed in ("inferscale:" + salt.hex(), salt.hex()):
        got = ask(ground.vllm, ground.tokens, salt=claimed)
        assert got.cached == 0 and ground.exact(got)
        assert ask(ground.vllm, ground.tokens, salt=claimed).cached == 256  # its own blocks are its own


@pytest.mark.parametrize("reason", ["unsigned", "foreign", "expired", "prompt", "model", "missing", "tokens", "gap", "nonsense", "number"])
def test_what_is_no_good_is_computed_exactly_and_counted(ground, reason):
    gateway, other, salt = ground.gateway, prompt(300, 23), secrets.token_bytes(32)
    ticket = gateway.ticket(tickets.INJECT, ground.tokens, parts=tuple(ground.parts()), salt=salt)
    text, expected, params = {
        "unsigned": (None, "unsigned", {"inferscale": "AAAA"}),
        "nonsense": (None, "unsigned", {"inferscale": "\x00\u20ac not base64"}),
        "number": (None, "unsigned", {"inferscale": 17}),
        "foreign": (gateway.sign(ticket, secrets.token_bytes(32)), "unsigned", None),
        "expired": (gateway.inject(ground.tokens, ground.parts(), salt=salt, expires=int(time.time()) - 5), "expired", None),
        "prompt": (gateway.inject(other, ground.parts(), salt=salt), "prompt", None),
        "model": (gateway.inject(ground.tokens, ground.parts(), salt=salt, fingerprint=secrets.token_bytes(32)), "model", None),
        "missing": (gateway.inject(ground.tokens, [part(secrets.token_bytes(32), 0, 100, 0)], salt=salt), "missing", None),
        "tokens": (gateway.inject(ground.tokens, [part(ground.fact, 0, 100, 0)], salt=salt), "tokens", None),
        "gap": (gateway.inject(ground.tokens, [part(ground.header, 10, 90, 10)], salt=salt), "gap", None),
    }[reason]
    got = ask(ground.vllm, ground.tokens, text, params=params)
    assert got.said["reason"] == expected and got.said["injected"] == 0
    assert ground.exact(got)
    assert not ground.side().live  # nothing is kept of a request that has ended
    if reason == "tokens":  # the segment is as good as before, for prompts that hold its tokens
        assert ask(ground.vllm, ground.tokens, ground.inject()).said["injected"] == 290


def test_gaps_inside_are_computed(ground):
    """The first parts are injected, what is behind the gap is computed on them."""
    parts = [part(ground.header, 0, 100, 0), part(ground.fact, 50, 100, 150)]
    got = ask(ground.vllm, ground.tokens, ground.gateway.inject(ground.tokens, parts))
    assert got.said["injected"] == 100 and got.said["reason"] == "gap"
    assert ground.exact(got)  # the header alone is exact


@pytest.mark.parametrize("how", ["missing", "torn", "model", "short"])
def test_a_file_that_goes_bad_between_check_and_load(ground, how):
    """The request is computed exactly, the next one does not try again, and a file that is written anew is used again."""
    name = ground.gateway.keep(ground.gateway.path(ground.header))
    path, salt = ground.gateway.path(name), secrets.token_bytes(32)
    parts = [part(name, 0, 100, 0), part(ground.fact, 0, 190, 100)]
    good, spoiled = path.read_bytes(), []
    side, ticket = ground.side(), ground.gateway.ticket(tickets.INJECT, ground.tokens, parts=tuple(parts), salt=salt)
    check = side._check

    def then_spoil(state, found):
        result = check(state, found)
        if found.name == name and result == ("", "") and not spoiled:
            spoiled.append(how)
            if how == "missing":
                path.unlink()
            elif how == "torn":
                path.write_bytes(good[:-200] + bytes(200))
            elif how == "short":
                path.write_bytes(good[: len(good) // 2])
            else:
                path.write_bytes(good.replace(ground.gateway.fingerprint, bytes(32)))
        return result

    side._check = then_spoil
    try:
        got = ask(ground.vllm, ground.tokens, ground.gateway.sign(ticket))
    finally:
        side._check = check
    assert ground.exact(got), how
    assert got.said["injected"] == 0 == got.cached and got.said["reason"] in ("missing", "torn", "model"), (got.said, got.cached)
    again = ask(ground.vllm, ground.tokens, ground.gateway.inject(ground.tokens, parts, salt=secrets.token_bytes(32)))
    assert again.said["injected"] == 0 and ground.exact(again)
    status = ask(ground.vllm, [7], ground.gateway.sign(ground.gateway.ticket(tickets.STATUS, [7], id=ticket.id))).said
    assert status["ok"] and status["injected"] == 0 and status["reason"] == got.said["reason"]
    ground.gateway.keep(ground.gateway.path(ground.header), name=name)
    renewed = ask(ground.vllm, ground.tokens, ground.gateway.inject(ground.tokens, parts, salt=secrets.token_bytes(32)))
    assert renewed.said["injected"] == 290


def test_revoke_evicts_and_outdated_tickets_are_none(ground):
    tag, salt = secrets.token_bytes(32), secrets.token_bytes(32)
    first = ask(ground.vllm, ground.tokens, ground.inject(tag=tag, salt=salt, epoch=4))
    assert first.said["injected"] == 290
    pool = ground.vllm.scheduler.kv_cache_manager.block_pool
    before = len(pool.cached_block_hash_to_block)
    neighbour = ask(ground.vllm, ground.tokens, ground.inject(tag=secrets.token_bytes(32)))
    revoke = ground.gateway.sign(ground.gateway.ticket(tickets.REVOKE, [9], tag=tag, epoch=5))
    said = ask(ground.vllm, [9], revoke).said
    assert said["ok"] and said["evicted"] == 2  # 300 tokens are two full blocks of 128
    assert len(pool.cached_block_hash_to_block) == before + 2 - 2  # the neighbour's two came, these two went
    stale = ask(ground.vllm, ground.tokens, ground.inject(tag=tag, salt=salt, epoch=4))
    assert stale.said["reason"] == "epoch" and stale.said["injected"] == 0 and ground.exact(stale)  # an ordinary request, on ordinary blocks
    fresh = ask(ground.vllm, ground.tokens, ground.inject(tag=tag, salt=salt, epoch=5))
    assert fresh.said["injected"] == 290 and fresh.said["local"] == 0
    assert difference(neighbour, fresh) <= TOLERANCE


def test_revoke_ends_what_runs(ground):
    """A request of the memory that is generating when it is revoked produces no further token; others go on."""
    from vllm import SamplingParams
    tag, core = secrets.token_bytes(32), ground.vllm.llm.llm_engine
    add = lambda rid, tokens, ticket: core.add_request(  # noqa: E731
        rid, {"prompt_token_ids": list(tokens)},
        SamplingParams(temperature=0, max_tokens=400, ignore_eos=True, detokenize=False,
                       extra_args={"kv_transfer_params": {"inferscale": ticket}} if ticket else None))
    add("mine", ground.tokens, ground.inject(tag=tag, epoch=1))
    add("other", ground.tokens, None)
    for _ in range(3):
        core.step()
    mine = next(r for r in ground.vllm.scheduler.running if r.kv_transfer_params is None and "mine" in r.request_id)
    had = mine.num_output_tokens
    add("revoke", [9], ground.gateway.sign(ground.gateway.ticket(tickets.REVOKE, [9], tag=tag, epoch=2)))
    outputs = [o for _ in range(3) for o in core.step()]
    assert mine.is_finished() and mine.num_output_tokens == had
    assert any("other" in o.request_id for o in outputs) and not any("mine" in o.request_id for o in outputs)
    core.abort_request(["mine", "other"])
    while core.has_unfinished_requests():
        core.step()
    assert not ground.side().live


def test_abort_before_the_load_leaves_nothing(ground):
    from vllm import SamplingParams
    core = ground.vllm.llm.llm_engine
    core.add_request("gone", {"prompt_token_ids": list(ground.tokens)},
                     SamplingParams(max_tokens=5, extra_args={"kv_transfer_params": {"inferscale": ground.inject()}}))
    core.abort_request(["gone"])
    while core.has_unfinished_requests():
        core.step()
    assert not ground.side().live and not ground.side().loads
    assert ground.exact(ask(ground.vllm, ground.tokens))


def test_eight_memories_at_once(ground):
    """Each gets what it gets alone."""
    asks = []
    for i in range(8):
        tokens = prompt(160 + i, 40 + i)
        a, _ = ground.gateway.capture(ground.vllm, tokens[:60])
        b, _ = ground.gateway.capture(ground.vllm, tokens[60:])
        asks.append((tokens, [part(a, 0, 60, 0), part(b, 0, len(tokens) - 70, 60)]))
    alone = [ask(ground.vllm, t, ground.gateway.inject(t, p), max_tokens=3) for t, p in asks]
    together = batch(ground.vllm, [(t, ground.gateway.inject(t, p)) for t, p in asks], max_tokens=3)
    for x, y in zip(alone, together):
        assert y.said["injected"] == x.said["injected"] > 0
        assert difference(x, y) <= TOLERANCE


def test_a_capture_over_stored_context(ground):
    """Its context is injected, its span computed on it; a salt of its own leaves nothing behind."""
    ticket = ground.gateway.capture_ticket(ground.tokens, 100, 200, parts=(part(ground.header, 0, 100, 0),))
    answer = ask(ground.vllm, ground.tokens, ground.gateway.sign(ticket))
    assert answer.said["ok"] and answer.said["injected"] == 100
    name = ground.gateway.keep(ground.gateway.spool(ticket))
    parts = [part(ground.header, 0, 100, 0), part(name, 0, 199, 100)]
    got = ask(ground.vllm, ground.tokens, ground.gateway.inject(ground.tokens, parts))
    assert got.said["injected"] == 299 and ground.exact(got)  # together they are the plain prefill


def test_a_capture_is_made_once(ground):
    """Whoever saw the request can send it again: the gateway has taken the rows away by then, and would not know of others."""
    ticket = ground.gateway.capture_ticket(ground.tokens, 100, 150)
    text, spool = ground.gateway.sign(ticket), ground.gateway.spool(ticket)
    assert ask(ground.vllm, ground.tokens, text).said["ok"]
    spool.unlink()
    again = ask(ground.vllm, ground.tokens, text)
    assert not again.said["ok"] and again.said["reason"] == "expired" and ground.exact(again), again.said
    assert not spool.exists()
    status = ask(ground.vllm, [7], ground.gateway.sign(ground.gateway.ticket(tickets.STATUS, [7], id=ticket.id))).said
    assert status["ok"] and status["reason"] == "", status  # of the first one, still


def test_policy_fail_fails_that_request_only(dummy, folder, ground):
    ground.vllm.close()  # one engine at a time; this is the last test of the module
    strict = Ground(folder, dummy("llama"), "strict", policy="fail")
    try:
        name = strict.gateway.keep(strict.gateway.path(strict.header))
        path, side = strict.gateway.path(name), strict.side()
        check = side._check
        side._check = lambda state, found: (check(state, found), path.unlink(missing_ok=True))[0]
        bad = strict.gateway.inject(strict.tokens, [part(name, 0, 100, 0)])
        failed, good = batch(strict.vllm, [(strict.tokens, bad), (strict.tokens[:250], None)])
        side._check = check
        assert failed.finish == "error" and not failed.tokens
        assert good.finish == "length"
        assert strict.exact(ask(strict.vllm, strict.tokens))
        again = ask(strict.vllm, strict.tokens, bad)
        assert again.said["reason"] == "missing" and strict.exact(again)
    finally:
        strict.vllm.close()
