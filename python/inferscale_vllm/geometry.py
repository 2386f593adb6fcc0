"""The shape of a live model's KV cache, read from its modules and never guessed from its name.

A worker sees the layers it holds. What it finds is described in plain data (LayerShape, RopeShape), which the scheduler puts
together to the whole model (model.py); the modules themselves stay here. What cannot be done exactly is said in `why_not`, and
every capture checks again that the keys an engine stores are the rotated ones of what was seen before the rotation."""

from __future__ import annotations

import gc
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from .library import PAIR_ADJACENT, PAIR_HALVES

if TYPE_CHECKING:
    from vllm.config import VllmConfig

# Rotary embeddings whose angle is not a function of (position, pair) alone, or that rotate by several positions
NOT_PLAIN = ("MRotary", "DualChunk", "Phi3LongRoPE", "Fourier", "XDRotary", "Llama4Vision")


@dataclass(frozen=True)
class RopeShape:
    """One rotary embedding: radians per position of each pair, and the magnitude (YaRN's) that its table holds as well."""

    w: tuple[float, ...]
    mscale: float
    n_pos: int
    adjacent: bool


@dataclass(frozen=True)
class LayerShape:
    """One attention layer: what one token takes in its cache."""

    index: int
    mla: bool
    total_heads: int
    k_dim: int
    v_dim: int  # 0: latent attention, which has one plane
    rot_begin: int
    rot_dim: int
    window: int
    rope: RopeShape | None


@dataclass
class LiveLayer:
    """A layer of this worker: its shape and the modules that compute it."""

    name: str
    shape: LayerShape
    module: Any
    rope: Any | None
    n_heads: int  # KV heads of this worker


@dataclass
class LiveModel:
    """What a worker holds."""

    layers: list[LiveLayer] = field(default_factory=list)
    why_not: str = ""
    dtype: torch.dtype = torch.float32
    head_begin: int = 0  # of the model's KV heads, where this worker's begin
    n_params: int = 0
    writes: bool = True  # False: another rank holds the same heads and writes them
    compiled: bool = False  # the model runs as a compiled graph


def read_model(config: VllmConfig, tp_rank: int) -> LiveModel:
    """The attention layers of this process. Never raises for a model that cannot be done: `why_not` says it."""
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    live = LiveModel(why_not=_refused(config))
    attention = {
        name: module
        for name, module in config.compilation_config.static_forward_context.items()
        if isinstance(module, AttentionLayerBase)
    }
    if live.why_not:
        return live
    try:
        parents = _parents()
        ropes: dict[int, RopeShape] = {}
        for name, module in attention.items():
            layer = _layer(name, module, parents.get(id(module)), config, ropes)
            if layer is not None:
                live.layers.append(layer)
        live.n_params = _n_params(attention, parents)
        live.layers.sort(key=lambda layer: layer.shape.index)
        _place(live, config, tp_rank)
    except NotExact as e:
        live.why_not, live.layers = str(e), []
    return live


class NotExact(Exception):
    """The model has something that stored rows could not reproduce."""


def _refused(config: VllmConfig) -> str:
    """Reasons that the configuration alone gives."""
    model, parallel, cache = config.model_config, config.parallel_config, config.cache_config
    speculative = config.speculative_config
    dtype = str(cache.cache_dtype)
    reasons = {
        "several positions a token (M-RoPE)": model.uses_mrope,
        "an encoder-decoder model (cross attention)": model.is_encoder_decoder,
        "context parallelism": parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1,
        "data parallelism (a REVOKE would reach one of its engines)": parallel.data_parallel_size > 1 or _is_one_of_many(config),
        f"a quantised KV cache ({dtype})": dtype not in ("auto", "bfloat16", "float16", "float32"),
        "a pooling model": model.runner_type == "pooling",
        "a draft model with a cache of its own (speculative decoding)": speculative is not None
        and (speculative.use_eagle() or speculative.uses_draft_model()),
    }
    return "; ".join(reason for reason, holds in reasons.items() if holds)


def _is_one_of_many(config: VllmConfig) -> bool:
    """One engine of several under data parallelism. vLLM tells those of a dense model that they are alone; their transfer's name has the rank."""
    transfer = config.kv_transfer_config
    return transfer is not None and re.search(r"_dp\d+$", transfer.engine_id or "") is not None


def _parents() -> dict[int, Any]:
    """Module -> the module that holds it. vLLM gives a connector no model, only attention layers: the rest of a layer (its
    rotary embedding) is found by looking for whoever holds it, once, when the worker starts.

    The garbage collector lists no object of a frozen heap (gc.freeze), and vLLM's GPU worker freezes it when it has warmed up.
    So this has to run before that: see WorkerSide.look."""
    parents: dict[int, Any] = {}
    for found in gc.get_objects():
        if issubclass(type(found), torch.nn.Module):
            for child in found.__dict__.get("_modules", {}).values():
                if child is not None:
                    parents[id(child)] = found
    return parents


def _n_params(attention: dict[str, Any], parents: dict[int, Any]) -> int:
    """Parameters of the model that these layers are in, tied ones once."""
    root = next(iter(attention.values()), None)
    while root is not None and id(root) in parents:
        root = parents[id(root)]
    return sum(p.numel() for p in root.parameters()) if root is not None else 0


def _layer(name: str, module: Any, parent: Any, config: VllmConfig, ropes: dict[int, RopeShape]) -> LiveLayer | None:
    """ropes: shapes of the rotary embeddings seen so far, by id(). Most models share one among all layers."""
    from vllm.model_executor.layers.attention import Attention, MLAAttention

    mla = isinstance(module, MLAAttention)
    if not mla and type(module) is not Attention:
        raise NotExact(f"layer {name} is a {type(module).__name__} (state-space, cross or other attention)")
    if getattr(module, "kv_sharing_target_layer_name", None) is not None:
        return None  # reads another layer's rows, has none
    if not hasattr(module.impl, "do_kv_cache_update") or (
        not mla and module.attn_backend.forward_includes_kv_cache_update
    ):
        raise NotExact(f"attention backend {module.attn_backend.get_name()} has no cache update of its own")
    if mla and (getattr(module, "indexer", None) is not None or getattr(module, "hisparse_cache", None) is not None):
        raise NotExact("sparse latent attention (its indexer keeps keys of its own)")
    rope = _rope_of(name, parent)
    if mla:
        k_dim, v_dim, heads = module.kv_lora_rank + module.qk_rope_head_dim, 0, 1
        rot_begin, rot_dim = module.kv_lora_rank, module.qk_rope_head_dim if rope is not None else 0
    else:
        k_dim, v_dim, heads = module.head_size, module.head_size_v, module.num_kv_heads
        rot_begin, rot_dim = 0, rope.rotary_dim if rope is not None else 0
    if rope is not None and id(rope) not in ropes:
        ropes[id(rope)] = _rope_shape(rope)
    shape = LayerShape(
        index=_index(name), mla=mla, total_heads=1 if mla else _total_heads(heads, config), k_dim=k_dim, v_dim=v_dim,
        rot_begin=rot_begin if rot_dim else 0, rot_dim=rot_dim, window=int(module.sliding_window or 0),
        rope=ropes[id(rope)] if rope is not None else None,
    )
    return LiveLayer(name=name, shape=shape, module=module, rope=rope, n_heads=heads)


def _index(name: str) -> int:
    """The layer's number in its name: "model.layers.11.self_attn.attn" -> 11."""
    numbers = re.findall(r"(?:^|\.)(\d+)(?=\.|$)", name)
    if len(numbers) != 1:
        raise NotExact(f"layer {name} does not say which one it is")
    return int(numbers[0])


def _rope_of(name: str, parent: Any) -> Any | None:
    """The rotary embedding that this layer's keys pass, None for a layer without position."""
    if parent is None:
        raise NotExact(f"the module that holds layer {name} was not found")
    if getattr(parent, "nope", False) or getattr(parent, "use_rope", True) is False:
        return None
    found = getattr(parent, "rotary_emb", None)
    if found is None:
        others = [m for m in parent._modules.values() if hasattr(m, "cos_sin_cache")]
        if len(others) > 1:
            raise NotExact(f"layer {name} has {len(others)} rotary embeddings")
        found = others[0] if others else None
    if found is not None and (
        not hasattr(found, "cos_sin_cache") or any(part in type(found).__name__ for part in NOT_PLAIN)
    ):
        raise NotExact(f"rotary embedding {type(found).__name__} is not one angle for each position and pair")
    return found


def _total_heads(local: int, config: VllmConfig) -> int:
    """KV heads of the whole layer. Tensor parallelism replicates them where there are fewer than ranks."""
    tp = config.parallel_config.tensor_parallel_size
    return local if tp == 1 else int(config.model_config.get_total_num_kv_heads())


def _rope_shape(rope: Any) -> RopeShape:
    """Angles as its own formula gives them in F32: the table that is multiplied by may be rounded, and is taken as it is."""
    table = rope.cos_sin_cache
    if table.dim() != 2 or table.shape[1] != rope.rotary_dim:
        raise NotExact(f"rotary embedding {type(rope).__name__} has a table of shape {tuple(table.shape)}")
    with _FirstPositions(int(table.shape[0]), rope.rotary_dim):
        exact = rope._compute_cos_sin_cache().detach()[:2].to("cpu", torch.float64)
    half = rope.rotary_dim // 2
    mscale = float(exact[0, 0])
    w = torch.atan2(exact[1, half:], exact[1, :half])
    return RopeShape(w=tuple(w.tolist()), mscale=mscale, n_pos=int(table.shape[0]), adjacent=not rope.is_neox_style)


class _FirstPositions(TorchFunctionMode):
    """Inside, a rotary embedding's formula is computed for positions 0 and 1 only: its list of all positions, arange(n_pos), is
    cut. The formula itself is the module's own, and its other numbers (some depend on n_pos) stay as they are. A formula that
    makes its list in another way computes the whole table, as it would outside."""

    def __init__(self, n_pos: int, dim: int) -> None:
        super().__init__()
        self.n_pos = n_pos if n_pos > max(dim, 2) else 0  # arange(n) with n up to dim counts pairs or dims

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func is torch.arange and self.n_pos and len(args) == 1 and math.ceil(args[0]) == self.n_pos:
            args = (2,)
        return func(*args, **(kwargs or {}))


def rope_table(rope: Any, dtype: torch.dtype) -> torch.Tensor:
    """[n_pos][rot_dim] F32 on the CPU: cosines, then sines, rounded as the engine multiplies by them."""
    table = rope.cos_sin_cache.detach()
    if not getattr(rope, "use_flashinfer", False):
        table = table.to(dtype)
    return table.to("cpu", torch.float32).contiguous()


def _place(live: LiveModel, config: VllmConfig, tp_rank: int) -> None:
    """Which of the model's heads are here, and whether this rank is the one that writes them."""
    from vllm.config import CompilationMode

    live.dtype, live.compiled = config.model_config.dtype, config.compilation_config.mode != CompilationMode.NONE
    tp = config.parallel_config.tensor_parallel_size
    indices = [layer.shape.index for layer in live.layers]
    if not live.layers:
        raise NotExact("no attention layer was found")
    if len(set(indices)) != len(indices):
        raise NotExact("two attention layers have one number")
    kinds = {(layer.n_heads, layer.shape.total_heads) for layer in live.layers}
    if tp > 1 and len(kinds) > 1:
        raise NotExact("layers with unlike numbers of KV heads under tensor parallelism")
    local, total = live.layers[0].n_heads, live.layers[0].shape.total_heads
    copies = max(1, tp * local // total)
    if local * tp != total * copies:
        raise NotExact(f"{total} KV heads over {tp} ranks")
    live.head_begin = tp_rank // copies * local
    live.writes = tp_rank % copies == 0


def rotation_sample(rope: Any, dtype: torch.dtype, compiled: bool, heads: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Keys [64][heads][head_size] and what the engine makes of them at positions 1, 2, ...: from their bits the library finds out how
    the engine rounds. None where the rotation is inside a compiled graph and cannot be asked."""
    native = getattr(getattr(rope, "_forward_method", None), "__name__", "") == "forward_native"
    if compiled and native:
        return None
    n, device, head = 64, rope.cos_sin_cache.device, rope.head_size
    keys = torch.randn(n, heads * head, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    flat = keys.view(n, heads, head) if "Deepseek" in type(rope).__name__ else keys  # as the models call them
    key = flat.clone()
    with torch.inference_mode():
        rotated = rope(torch.arange(1, n + 1, device=device), key.clone(), key)[1]
    return keys.view(n, heads, head).cpu().contiguous(), rotated.reshape(n, heads, head).cpu().contiguous()


def pairing(rope: RopeShape) -> int:
    return PAIR_ADJACENT if rope.adjacent else PAIR_HALVES
