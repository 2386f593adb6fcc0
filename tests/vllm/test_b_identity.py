"""Identity: rows that a plain prefill computed, captured, stored, rotated and injected, give the log-probabilities of that prefill; rows
that are wrong in one respect do not. All through the real engine, on models of every shape that it runs."""
import gc

import numpy
import pytest
from memory import ask, batch, difference, engine, part, prompt, rows_of, turned

COUNTS = (1, 31, 32, 127, 128, 129)


@pytest.mark.parametrize("shape", ["llama", "llama3-rope", "yarn", "qwen2", "qwen3", "gemma3", "stablelm", "glm4", "phi", "smollm3", "deepseek2",
                                   "deepseek3"])
def test_every_shape_in_fp32(dummy, folder, shape):
    tokens = prompt(200, seed=2)
    with engine(folder, dummy(shape)) as (vllm, gateway):
        assert gateway.said["can_inject"], gateway.said["why_not"]
        plain = ask(vllm, tokens)
        name, captured = gateway.capture(vllm, tokens)
        assert difference(plain, captured) == 0
        for n in (*COUNTS, 199):
            got = ask(vllm, tokens, gateway.inject(tokens, [part(name, 0, n, 0)]))
            assert got.said["injected"] == n == got.cached
            assert difference(plain, got) <= 1e-4, n
        # moved: the same span behind other tokens, against the engine's own computation of a prompt of which it is the head
        shifted = tokens[:100] + tokens[:90]
        wrong = ask(vllm, shifted, gateway.inject(shifted, [part(name, 0, 100, 0), part(name, 0, 89, 100)]))
        assert wrong.said["injected"] == 189
        assert difference(ask(vllm, shifted), wrong) > 1e-2  # the second copy never saw the first: an approximation, and not by accident equal


@pytest.mark.parametrize("freeze", [True, False], ids=["frozen", "as-on-the-cpu"])
def test_a_frozen_heap_hides_no_module(dummy, folder, monkeypatch, freeze):
    """A GPU's worker freezes the heap before the handshake, and frozen objects are found by nobody. With it and without: the same layers."""
    from inferscale_vllm.worker import WorkerSide
    from support import engine as support
    seen, report = [], WorkerSide.report

    def counted(side):
        seen.append(gc.get_freeze_count())
        return report(side)
    monkeypatch.setattr(support, "FREEZE", freeze)
    monkeypatch.setattr(WorkerSide, "report", counted)
    tokens = prompt(60, seed=13)
    with engine(folder, dummy("llama")) as (vllm, gateway):
        assert len(seen) == 1 and (seen[0] > 0) is freeze, seen
        assert gateway.said["can_inject"], gateway.said["why_not"]
        name, _ = gateway.capture(vllm, tokens)
        got = ask(vllm, tokens, gateway.inject(tokens, [part(name, 0, 59, 0)]))
        assert got.said["injected"] == 59 and difference(ask(vllm, tokens), got) <= 1e-4


@pytest.mark.parametrize("shape", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize("eager,rotated", [(True, False), (True, True), (False, True)], ids=["eager", "eager-rotated", "inductor"])
def test_bf16_loses_nothing(dummy, folder, shape, eager, rotated):
    """Exactly 0 at every count. Under inductor the capturing step runs without the graph, so its keys are those of the eager model, which
    differ from the graph's by rounding; kept as the graph stores them ("rotated") they are the graph's, and the difference is 0 again."""
    tokens = prompt(200, seed=3)
    extra = {"capture": "rotated"} if rotated else {}
    with engine(folder, dummy(shape, dtype="bfloat16"), "bfloat16", eager, extra) as (vllm, gateway):
        assert gateway.said["dtype"] == ("f32" if rotated else "bf16") and compiles(vllm) is not eager
        plain = ask(vllm, tokens)
        name, _ = gateway.capture(vllm, tokens)
        for n in COUNTS:
            got = ask(vllm, tokens, gateway.inject(tokens, [part(name, 0, n, 0)]))
            assert got.said["injected"] == n
            assert difference(plain, got) == 0, n


def compiles(vllm):
    return vllm.llm.llm_engine.vllm_config.compilation_config.mode > 0


def test_inductor_in_fp32_seen_before_rope(dummy, folder):
    tokens = prompt(200, seed=4)
    with engine(folder, dummy("llama"), eager=False) as (vllm, gateway):
        assert compiles(vllm)
        plain = ask(vllm, tokens)
        name, _ = gateway.capture(vllm, tokens)
        for n in (*COUNTS, 199):
            assert difference(plain, ask(vllm, tokens, gateway.inject(tokens, [part(name, 0, n, 0)]))) <= 1e-4


def test_the_default_model_in_bf16(smollm2, folder):
    tokens = prompt(200, seed=5, low=100, high=40000)
    with engine(folder, smollm2, "bfloat16") as (vllm, gateway):
        plain = ask(vllm, tokens)
        name, _ = gateway.capture(vllm, tokens)
        for n in COUNTS:
            assert difference(plain, ask(vllm, tokens, gateway.inject(tokens, [part(name, 0, n, 0)]))) == 0, n


def test_all_but_one_in_bf16_and_a_capture_in_chunks(dummy, folder):
    """With steps of 199 tokens the plain prefill computes the last token alone too, as an injection of N - 1 does; and the capture takes
    two steps."""
    tokens = prompt(200, seed=6)
    with engine(folder, dummy("llama", dtype="bfloat16"), "bfloat16", max_num_batched_tokens=199, max_num_seqs=8) as (vllm, gateway):
        plain = ask(vllm, tokens)
        name, _ = gateway.capture(vllm, tokens)
        assert difference(plain, ask(vllm, tokens, gateway.inject(tokens, [part(name, 0, 199, 0)]))) == 0


def test_a_capture_among_others(dummy, folder):
    """Spans captured in steps that are full of other requests are the same as alone."""
    first, second, third = prompt(150, 7), prompt(170, 8), prompt(160, 9)
    with engine(folder, dummy("llama")) as (vllm, gateway):
        a, b = gateway.capture_ticket(first, 20, 130), gateway.capture_ticket(second, 0, 170)
        answers = batch(vllm, [(third, None), (first, gateway.sign(a)), (second, gateway.sign(b)), (prompt(40, 10), None)])
        assert answers[1].said["ok"] and answers[2].said["ok"]
        alone, _ = gateway.capture(vllm, first, 20, 130)
        header, _ = gateway.capture(vllm, first, 0, 20)
        together = gateway.keep(gateway.spool(a))
        whole = gateway.keep(gateway.spool(b))
        plain = ask(vllm, first)
        for name in (alone, together):
            got = ask(vllm, first, gateway.inject(first, [part(header, 0, 20, 0), part(name, 0, 129, 20)]))
            assert got.said["injected"] == 149
            assert difference(plain, got) <= 1e-4
        assert difference(ask(vllm, second), ask(vllm, second, gateway.inject(second, [part(whole, 0, 169, 0)]))) <= 1e-4


# ---- Controls: what must be seen ------------------------------------------------------------------------------------------------


def test_negative_controls(dummy, folder):
    """Not rotated, one position off, layers swapped, values of another token: each differs by far more than identity allows."""
    import torch
    tokens, n = prompt(200, seed=11), 199
    with engine(folder, dummy("llama")) as (vllm, gateway):
        plain = ask(vllm, tokens)
        name, _ = gateway.capture(vllm, tokens)
        scheduler = vllm.scheduler.connector.scheduler_side
        model, shape = scheduler.model, scheduler.shape
        planes = shape.planes()
        good = rows_of(gateway, gateway.path(name), shape)

        def with_rows(rows):
            spool = gateway.home / "vllm/spool/control"
            tensors = [torch.from_numpy(numpy.ascontiguousarray(r)) for r in rows]
            model.write(spool, tokens, 0, (0, len(planes)), (0, planes[0][0].total_heads), 0, tensors)
            return difference(plain, ask(vllm, tokens, gateway.inject(tokens, [part(gateway.keep(spool), 0, n, 0)])))

        positions = numpy.arange(len(tokens))
        keys = [not is_v for _, is_v in planes]
        assert with_rows(good) <= 1e-4
        controls = {
            "not rotated": [turned(p[0], r, -positions) if k else r for p, r, k in zip(planes, good, keys)],
            "position + 1": [turned(p[0], r, numpy.ones(len(tokens))) if k else r for p, r, k in zip(planes, good, keys)],
            "layers swapped": good[2:4] + good[0:2] + good[4:],
            "values of another token": [r if k else numpy.roll(r, 1, 0) for r, k in zip(good, keys)],
        }
        for what, rows in controls.items():
            assert with_rows(rows) > 1e-2, what


def test_latent_attention_that_is_spelt_out_is_computed_exactly(dummy, folder, monkeypatch):
    """Where vLLM runs such a model without latent attention, its keys are put together behind the rotation: the check of a capture finds that, no
    segment comes to be, and rows of the same model's latents are another model's."""
    monkeypatch.setenv("VLLM_MLA_DISABLE", "1")
    tokens = prompt(150, seed=12)
    with engine(folder, dummy("deepseek2")) as (vllm, gateway):
        plain = ask(vllm, tokens)
        ticket = gateway.capture_ticket(tokens)
        captured = ask(vllm, tokens, gateway.sign(ticket))
        assert not captured.said["ok"] and not gateway.spool(ticket).exists(), captured.said
        assert difference(plain, captured) == 0
