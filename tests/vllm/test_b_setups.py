"""Set-ups of vLLM that change who computes what and when: adapters (LoRA), steps that are scheduled before the one before has ended, prefill in small
steps, no prefix cache. In all of them what is injected is what was captured, and what cannot be is computed exactly."""
import json
import secrets
from pathlib import Path

import pytest
from memory import ask, batch, difference, engine, part, prompt

CLOSE, FAR = 1e-4, 1e-2
COUNTS = (1, 31, 127, 128, 129, 199)


# ---- LoRA -------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adapter(folder, dummy):
    """A LoRA of the llama shape on all of its attention, with weights that count."""
    import torch
    from safetensors.torch import save_file
    from vllm.lora.request import LoRARequest
    path, generator, weights = folder / "adapter", torch.Generator().manual_seed(20261130), {}
    path.mkdir()
    sizes = {"q_proj": (128, 128), "k_proj": (128, 64), "v_proj": (128, 64), "o_proj": (128, 128)}
    for layer in range(3):
        for name, (n_in, n_out) in sizes.items():
            at = "base_model.model.model.layers.%d.self_attn.%s." % (layer, name)
            weights[at + "lora_A.weight"] = torch.randn(8, n_in, generator=generator) / n_in ** 0.5
            weights[at + "lora_B.weight"] = torch.randn(n_out, 8, generator=generator)
    save_file(weights, path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 8, "lora_alpha": 16, "bias": "none", "target_modules": list(sizes),
        "base_model_name_or_path": str(dummy("llama"))}))
    return LoRARequest("adapter", 1, str(path))


def test_a_lora_is_another_model(dummy, folder, adapter):
    """A server that can do LoRA injects for the model itself, also rows that a server without LoRA captured; a request with an adapter is
    computed exactly, whatever ticket it brings, and nothing of it becomes a segment. (Two slots, one adapter: vLLM 0.32's operators for the
    CPU give tokens without an adapter the last slot's, which must be empty.)"""
    tokens, model = prompt(200, seed=61), dummy("llama")
    with engine(folder, model) as (vllm, gateway):
        elsewhere, fingerprint = gateway.path(gateway.capture(vllm, tokens)[0]), gateway.fingerprint
    with engine(folder, model, enable_lora=True, max_lora_rank=8, max_loras=2) as (vllm, gateway):
        assert gateway.said["can_inject"] and gateway.fingerprint == fingerprint, gateway.said["why_not"]
        plain, adapted = ask(vllm, tokens, salt="plain"), ask(vllm, tokens, salt="adapted", lora=adapter)
        assert difference(plain, adapted) > FAR  # or nothing below would mean anything
        here, apart = gateway.capture(vllm, tokens)[0], gateway.capture(vllm, tokens[50:])[0]
        for name in (here, gateway.keep(elsewhere)):
            for n in (31, 128, 199):
                got = ask(vllm, tokens, gateway.inject(tokens, [part(name, 0, n, 0)]))
                assert got.said["injected"] == n and difference(plain, got) <= CLOSE, n
        # The same ticket with the adapter: refused, and none of the model's rows is used, neither stored nor cached ones.
        pieces, salt = [part(here, 0, 50, 0), part(apart, 0, 140, 50)], secrets.token_bytes(32)
        approximate = ask(vllm, tokens, gateway.inject(tokens, pieces, salt=salt))
        assert approximate.said["injected"] == 190 and difference(plain, approximate) > FAR
        refused = ask(vllm, tokens, gateway.inject(tokens, pieces, salt=salt), lora=adapter)
        assert refused.said["reason"] == "model" and refused.said["injected"] == 0 == refused.cached, refused.said
        assert difference(adapted, refused) <= CLOSE
        ticket = gateway.capture_ticket(tokens)
        captured = ask(vllm, tokens, gateway.sign(ticket), lora=adapter)
        assert not captured.said["ok"] and captured.said["reason"] == "model" and not gateway.spool(ticket).exists(), captured.said
        # All in one step: a capture and an injection of the model beside requests of the adapter.
        ticket = gateway.capture_ticket(tokens)
        four = batch(vllm, [(tokens, gateway.sign(ticket)), (tokens, gateway.inject(tokens, pieces)), (tokens, None),
                            (tokens, gateway.inject(tokens, pieces))], salt="together", lora=[None, None, adapter, adapter])
        assert four[0].said["ok"] and four[1].said["injected"] == 190 and four[3].said["reason"] == "model"
        for got, expected in zip(four, (plain, approximate, adapted, adapted), strict=True):
            assert difference(expected, got) <= CLOSE
        beside = gateway.keep(gateway.spool(ticket))
        assert difference(plain, ask(vllm, tokens, gateway.inject(tokens, [part(beside, 0, 199, 0)]))) <= CLOSE


# ---- Asynchronous scheduling ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def asynchronous(monkeypatch):
    """vLLM's platform for the CPU says `scheduler_config.async_scheduling = False` whatever was asked for. Its asynchronous scheduler and its engine's
    queue of two steps run there all the same once that line is undone, which is done here: the next step is scheduled before this one's results."""
    from vllm.platforms.cpu import CpuPlatform
    update = CpuPlatform.check_and_update_config.__func__

    def but_for_that(platform, config):
        asked = config.scheduler_config.async_scheduling
        update(platform, config)
        config.scheduler_config.async_scheduling = asked
    monkeypatch.setattr(CpuPlatform, "check_and_update_config", classmethod(but_for_that))
    return {"async_scheduling": True}


def runs_ahead(vllm):
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    return isinstance(vllm.scheduler, AsyncScheduler) and vllm.core.batch_queue is not None


def spoil_between(side, path, how):
    """The segment goes bad right when it was found good: the load is planned, the worker will fail. Returns what undoes it."""
    check, spoiled = side._check, []

    def then_spoil(state, found):
        result = check(state, found)
        if result == ("", "") and found.name.hex() in path.name and not spoiled:
            spoiled.append(how(path))
        return result
    side._check = then_spoil
    return lambda: setattr(side, "_check", check)


def tear(path):
    good = path.read_bytes()
    path.write_bytes(good[:-200] + bytes(200))


@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_steps_ahead_of_their_results(dummy, folder, asynchronous, policy):
    """A load has a step of its own, before the steps that need it are scheduled: one that fails costs its request what the policy says, and nobody
    else anything. (vLLM 0.32 ends the whole engine if the load of a step fails whose next step is scheduled already: tried here before.)"""
    tokens, neighbour = prompt(200, seed=62), prompt(150, seed=63)
    with engine(folder, dummy("llama"), policy=policy, **asynchronous) as (vllm, gateway):
        assert runs_ahead(vllm)
        side = vllm.scheduler.connector.scheduler_side
        free = vllm.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        plain, other = ask(vllm, tokens, max_tokens=4), ask(vllm, neighbour, max_tokens=4)
        name, captured = gateway.capture(vllm, tokens)
        assert difference(ask(vllm, tokens), captured) == 0
        for n in COUNTS:
            got = ask(vllm, tokens, gateway.inject(tokens, [part(name, 0, n, 0)]), max_tokens=4)
            assert got.said["injected"] == n and difference(plain, got) <= CLOSE, n
        together = batch(vllm, [(tokens, gateway.inject(tokens, [part(name, 0, n, 0)])) for n in COUNTS], max_tokens=4)
        assert [a.said["injected"] for a in together] == list(COUNTS) and all(difference(plain, a) <= CLOSE for a in together)
        over = gateway.capture_ticket(tokens, 150, parts=(part(name, 0, 150, 0),))
        assert ask(vllm, tokens, gateway.sign(over)).said["injected"] == 150 and gateway.spool(over).exists()
        # Torn from the beginning; torn, or gone, when the load was planned already.
        for how, before in ((tear, True), (tear, False), (Path.unlink, False)):
            bad = gateway.keep(gateway.path(name))
            undo = spoil_between(side, gateway.path(bad), how) if not before else how(gateway.path(bad))
            got, beside = batch(vllm, [(tokens, gateway.inject(tokens, [part(bad, 0, 150, 0)])), (neighbour, None)], max_tokens=4, salt="anew")
            if undo:
                undo()
            assert difference(other, beside) <= CLOSE
            if policy == "fail":
                assert got.finish == "error" and not got.tokens
            else:
                assert got.said["reason"] in ("torn", "missing") and got.said["injected"] == 0 == got.cached, got.said
                assert difference(plain, got) <= CLOSE
            again = ask(vllm, tokens, gateway.inject(tokens, [part(bad, 0, 150, 0)]), max_tokens=4)  # not tried once more
            assert again.said["reason"] in ("torn", "missing") and difference(plain, again) <= CLOSE, again.said
            good = ask(vllm, tokens, gateway.inject(tokens, [part(name, 0, 150, 0)]), max_tokens=4)
            assert good.said["injected"] == 150 and difference(plain, good) <= CLOSE
        assert not side.live and not side.loads and vllm.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free


# ---- Small steps, no prefix cache -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [dict(max_num_batched_tokens=32, max_num_seqs=8), dict(enable_prefix_caching=False),
                                      dict(enable_prefix_caching=False, max_num_batched_tokens=48, max_num_seqs=8)],
                         ids=["steps of 32", "no prefix cache", "neither"])
def test_small_steps_and_no_prefix_cache(dummy, folder, settings):
    """Prefill in steps of so few tokens that a capture takes many and an injection is followed by several; blocks that are never a hit."""
    tokens, cached = prompt(200, seed=64), settings.get("enable_prefix_caching", True)
    with engine(folder, dummy("llama"), block_size=32, **settings) as (vllm, gateway):
        plain = ask(vllm, tokens, max_tokens=3)
        name, _ = gateway.capture(vllm, tokens)
        apart, _ = gateway.capture(vllm, tokens, 50)
        for n in COUNTS:
            got = ask(vllm, tokens, gateway.inject(tokens, [part(name, 0, n, 0)]), max_tokens=3)
            assert got.said["injected"] == n and difference(plain, got) <= CLOSE, n
        # Two parts, a gap, a third; then once more under the same salt.
        salt, parts = secrets.token_bytes(32), [part(name, 0, 50, 0), part(apart, 0, 61, 50), part(name, 131, 30, 131)]
        for again in (False, True):
            got = ask(vllm, tokens, gateway.inject(tokens, parts, salt=salt), max_tokens=3)
            local = 192 if again and cached else 0
            assert (got.said["local"], got.said["injected"]) == (local, 0 if local else 111), got.said
            assert difference(plain, got) <= CLOSE
        # A capture on stored rows, three at once in steps that they share.
        kept = [part(name, 0, 50, 0), part(apart, 0, 30, 50)]
        asked = [gateway.capture_ticket(tokens, 80, parts=tuple(kept)) for _ in range(3)]
        answers = batch(vllm, [(tokens, gateway.sign(t)) for t in asked])
        for answer, ticket in zip(answers, asked, strict=True):
            assert answer.said["ok"] and answer.said["injected"] == 80, answer.said
            rest = part(gateway.keep(gateway.spool(ticket)), 0, 119, 80)
            got = ask(vllm, tokens, gateway.inject(tokens, [*kept, rest]), max_tokens=3)
            assert got.said["injected"] == 199 and difference(plain, got) <= CLOSE
