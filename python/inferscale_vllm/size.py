"""How many parameters the model has. A backend may pack weights, or drop what it has packed, so the modules in memory do not say it."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .fingerprint import weight_files

if TYPE_CHECKING:
    from vllm.config import VllmConfig

HEADER_MAX = 100 << 20
FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")


def n_params(config: VllmConfig, in_memory: int) -> int:
    """Parameters as the model's author counts them, tied ones once: from the weight files' headers; where weights are packed there too
    (quantised), or in no such file, of the architecture, without weights; else what the workers hold."""
    for count in (_from_files, _from_architecture):
        try:
            n = count(config)
        except Exception:  # noqa: BLE001 - any file, any model: a size that is not known is no reason to serve nothing
            n = 0
        if n > 0:
            return n
    return in_memory


def _from_files(config: VllmConfig) -> int:
    if str(config.load_config.load_format) == "dummy":
        return 0
    model = config.model_config
    files = [f for f in weight_files(model.model, model.revision) if f.suffix == ".safetensors"]
    return count_tensors((t for f in files for t in tensors(f)), bool(getattr(model.hf_text_config, "tie_word_embeddings", False)))


def tensors(path: Path) -> Iterable[tuple[str, str, list[int]]]:
    """(name, type, shape) of each tensor in a safetensors file."""
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        if size > HEADER_MAX:
            raise ValueError(f"{path} has a header of {size} bytes")
        header: dict[str, Any] = json.loads(file.read(size))
    return [(name, t["dtype"], t["shape"]) for name, t in header.items() if name != "__metadata__"]


def count_tensors(found: Iterable[tuple[str, str, list[int]]], tied: bool) -> int:
    """0 if some are not plain numbers: then several stand in one. The output embedding of a model that ties it is the input's."""
    total, heads = 0, 0
    for name, kind, shape in found:
        n = 1
        for extent in shape:
            n *= extent
        if kind not in FLOATS:
            if n > 4096:
                return 0
            continue  # a table of positions, say: no parameter
        total += n
        if name.split(".")[-2:] == ["lm_head", "weight"]:
            heads += n
    return total - heads if tied else total


def _from_architecture(config: VllmConfig) -> int:
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config.model_config.hf_text_config)
    return sum(p.numel() for p in model.parameters())  # tied ones are one
