"""Which model it is: the hash of its weights, and what else its rows depend on.

Weight files are hashed in full, since a fine-tune may change one layer only; a file's hash is kept beside its identity (inode, size,
time of change) in the user's cache folder, so that a restart costs nothing. All workers read the same files and get the same hash."""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
CHUNK = 16 << 20


def weights(config: VllmConfig) -> str:
    """Hex. RuntimeError with the reason if the weights cannot be identified."""
    model, load = config.model_config, str(config.load_config.load_format)
    if load == "dummy":
        # Made up from a fixed seed for each tensor, on the device, whose generator is its own: these settings say everything.
        return _digest({"dummy": _settings(model.hf_config), "seed": model.seed, "tp": config.parallel_config.tensor_parallel_size,
                        "device": str(config.device_config.device_type)})
    files = weight_files(model.model, model.revision)
    with ThreadPoolExecutor(4) as pool:
        hashes = list(pool.map(_file_hash, files))
    return _digest(sorted((path.name, value) for path, value in zip(files, hashes, strict=True)))


def identity(config: VllmConfig) -> dict[str, str]:
    """What besides the weights, the dtype and the geometry decides a row."""
    model = config.model_config
    quantisation = getattr(model.hf_config, "quantization_config", None)
    return {
        "architecture": ",".join(model.architectures), "quantization": str(model.quantization),
        "quantization_config": json.dumps(quantisation, sort_keys=True, default=str),
        "kv_cache_dtype": str(config.cache_config.cache_dtype), "mla": str(bool(model.use_mla)), "lora": "none",
        "text_config": _digest(_settings(model.hf_text_config)),
    }


def _settings(hf_config: Any) -> dict[str, Any]:
    """The model's settings without what only says where they came from."""
    return {k: v for k, v in hf_config.to_dict().items() if not k.startswith("_") and k != "transformers_version"}


def _digest(value: object) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True, default=str).encode(), digest_size=32).hexdigest()


def weight_files(model: str, revision: str | None) -> list[Path]:
    folder = Path(model)
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(model, revision=revision, local_files_only=True))
    for suffix in WEIGHTS:  # one format: a folder may hold the same weights in several
        found = sorted(p for p in folder.iterdir() if p.suffix == suffix)
        if found:
            return found
    raise RuntimeError(f"no weight files in {folder}: the model cannot be identified")


def _cache_path() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "inferscale" / "vllm-weights"


def _file_hash(path: Path) -> str:
    real = path.resolve()
    st = real.stat()
    key = _digest([str(real), st.st_ino, st.st_size, st.st_mtime_ns])
    kept = _cache_path() / key
    try:
        value = kept.read_text("ascii")
        if len(value) == 64:
            return value
    except OSError:
        pass
    state = hashlib.blake2b(digest_size=32)
    with real.open("rb") as file:
        while chunk := file.read(CHUNK):
            state.update(chunk)
    value = state.hexdigest()
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_name(f"{key}.{os.getpid()}")
        part.write_text(value, "ascii")
        part.rename(kept)  # another rank may write the same
    except OSError:
        pass  # hashed again next time
    return value
