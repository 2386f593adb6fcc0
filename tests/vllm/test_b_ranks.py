"""Several workers: each loads and captures its own heads, in a process of its own. What one worker captured, two inject, with the answers of their
own prefill."""
import pytest
from memory import ask, difference, engine, part, prompt


def test_two_workers_inject_what_one_captured(dummy, folder):
    tokens = prompt(200, seed=51)
    model = dummy("llama")
    with engine(folder, model) as (one, gateway):
        name, _ = gateway.capture(one, tokens)
        header, _ = gateway.capture(one, tokens[50:])  # did not see what is before it: an approximation, and the same one in both
        apart = [part(name, 0, 50, 0), part(header, 0, 140, 50)]
        approximate = ask(one, tokens, gateway.inject(tokens, apart))
        stored, fingerprint = gateway.path(name).parents[1], gateway.fingerprint
    with engine(folder, model, tensor_parallel_size=2) as (two, other):
        assert other.said["can_inject"] and other.said["fingerprint"] == fingerprint.hex(), other.said["why_not"]
        assert other.said["tensor_parallel"] == 2
        (other.home / "vault").rmdir()
        (other.home / "vault").symlink_to(stored)
        plain = ask(two, tokens)
        for n in (1, 31, 128, 199):
            got = ask(two, tokens, other.inject(tokens, [part(name, 0, n, 0)]))
            assert got.said["injected"] == n and difference(plain, got) <= 1e-4, n
        same = ask(two, tokens, other.inject(tokens, apart))
        assert same.said["injected"] == 190 and difference(approximate, same) <= 1e-4 and difference(plain, same) > 1e-2
        # A capture leaves one file a worker, each with its own part.
        ticket = other.capture_ticket(tokens)
        answer = ask(two, tokens, other.sign(ticket))
        files = sorted(p.name for p in (other.home / "vllm/spool").iterdir())
        assert answer.said["ok"] and difference(plain, answer) == 0
        assert files == [ticket.id.hex() + end for end in (".0.0", ".0.1")]


@pytest.mark.skip(reason="vLLM 0.32.0's eager runner for the CPU ends its second pipeline stage at the first request: "
                         "`assert self.intermediate_tensors is not None` (it makes that buffer while it warms up, which it leaves out when eager)")
def test_two_pipeline_stages():
    """What can be shown without: the gateway merges files of workers of several stages in C (tests/test_vllm_capture.c, test_segment_part.c)."""
