"""What is read off a rotary embedding: once for each of them, however many layers share it, and without computing its table of all positions."""
import sys
from types import SimpleNamespace

import pytest
import torch
from torch.overrides import TorchFunctionMode

from support import ground

ground.here()
sys.path.insert(0, ground.PACKAGE)

from inferscale_vllm import geometry  # noqa: E402

N_POS = 4096
FORMULAS = {
    "default": {"rope_type": "default"},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": N_POS // 8},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": N_POS // 4},
    "deepseek_yarn": {"rope_type": "deepseek_yarn", "factor": 4.0, "original_max_position_embeddings": N_POS // 4, "mscale": 1.0,
                      "mscale_all_dim": 0.707},
}


class Largest(TorchFunctionMode):
    """The most elements of one tensor that was made."""

    def __init__(self):
        super().__init__()
        self.n = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.n = max(self.n, out.numel())
        return out


@pytest.fixture
def rope():
    """rope(FORMULA): vLLM's own rotary embedding; those it made before are forgotten, so that each is made anew."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers import rotary_embedding

    def make(formula, dim=64):
        rotary_embedding._ROPE_DICT.clear()
        with set_current_vllm_config(VllmConfig()):
            return rotary_embedding.get_rope(dim, N_POS, rope_parameters=dict(FORMULAS[formula], rope_theta=10000.0),
                                             dtype=torch.bfloat16)
    return make


@pytest.mark.parametrize("formula", FORMULAS)
def test_two_positions_say_what_the_whole_table_says(rope, formula):
    one, dim = rope(formula), 64
    whole = one._compute_cos_sin_cache().double()
    with Largest() as made:
        shape = geometry._rope_shape(one)
    assert made.n <= 2 * dim, made.n
    n = whole.shape[0]
    assert shape.n_pos == n == one.cos_sin_cache.shape[0] and n >= N_POS
    assert shape.mscale == float(whole[0, 0]) and shape.w == tuple(torch.atan2(whole[1, dim // 2:], whole[1, :dim // 2]).tolist())
    # and the last row of the whole table is what these angles give: the formula is one angle for each position
    angles = (n - 1) * torch.tensor(shape.w, dtype=torch.float64)
    last = torch.cat((angles.cos(), angles.sin())) * shape.mscale
    assert (last - whole[-1]).abs().max() < 4e-3  # F32 angles of thousands of radians


def test_layers_that_share_a_rotary_embedding_have_it_looked_at_once(rope, monkeypatch):
    from vllm.model_executor.layers import attention as layers
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    counts = []
    formula = type(rope("default"))._compute_cos_sin_cache

    def counted(one):
        counts.append(id(one))
        return formula(one)

    class Layer(torch.nn.Module, AttentionLayerBase):
        head_size = head_size_v = 64
        num_kv_heads = 2
        sliding_window = None
        impl = SimpleNamespace(do_kv_cache_update=None)
        attn_backend = SimpleNamespace(forward_includes_kv_cache_update=False)

        def get_attn_backend(self):
            raise NotImplementedError

        def get_kv_cache_spec(self, vllm_config):
            raise NotImplementedError

    class Block(torch.nn.Module):
        def __init__(self, rotary_emb):
            super().__init__()
            self.attn, self.rotary_emb = Layer(), rotary_emb

    monkeypatch.setattr(layers, "Attention", Layer)
    shared, other = rope("default"), rope("default")
    blocks = [Block(shared if i % 6 else other) for i in range(30)]
    monkeypatch.setattr(type(shared), "_compute_cos_sin_cache", counted)
    config = SimpleNamespace(
        compilation_config=SimpleNamespace(static_forward_context={"model.layers.%d.attn" % i: b.attn for i, b in enumerate(blocks)}, mode=0),
        parallel_config=SimpleNamespace(tensor_parallel_size=1), model_config=SimpleNamespace(dtype=torch.float32))
    monkeypatch.setattr(geometry, "_refused", lambda config: "")
    live = geometry.read_model(config, 0)
    assert live.why_not == "" and len(live.layers) == 30
    assert sorted(counts) == sorted((id(shared), id(other))), len(counts)
    assert [layer.rope is shared for layer in live.layers] == [bool(i % 6) for i in range(30)]
