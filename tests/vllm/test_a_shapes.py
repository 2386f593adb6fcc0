"""The ground itself: which shapes of models this vLLM runs on the CPU, and that it then computes what transformers computes from the same
weights: without that, comparing anything with the reference would mean nothing. It comes behind test_a_reference.py: models that vLLM runs by
transformers' own classes (phi, smollm3) change these classes for the rest of the process, so their reference is made before."""
import numpy
import pytest

# (shape, what vLLM must not support on the CPU, if it does not)
SHAPES = ["llama", "llama3-rope", "yarn", "qwen2", "qwen3", "gemma3", "stablelm", "glm4", "phi", "smollm3", "deepseek2", "deepseek3"]


def prompt(n, seed=1):
    return [int(t) for t in numpy.random.default_rng(seed).integers(3, 259, n)]


@pytest.mark.parametrize("shape", SHAPES)
def test_plain_prefill_is_that_of_transformers(dummy, shape):
    from reference import reference
    from support.engine import Engine
    tokens = prompt(150)  # more than Gemma's window of 64, more than a block
    path = dummy(shape)
    expected = reference(path).plain(tokens)
    with Engine(path) as vllm:
        got = vllm.prompt_logprobs(tokens)
        last, _ = vllm.next_logprobs(tokens)
    assert got.shape == (149, expected.shape[1])
    assert numpy.abs(got - expected[:-1]).max() < 1e-3
    assert numpy.abs(last[0] - expected[-1]).max() < 1e-3
    assert expected.std() > 0.5  # the weights matter: a flat distribution would equal any other
