"""DESCRIBE: what a gateway must know to plan and tokenise for this engine. Made once, in a thread: a vocabulary takes a second."""

from __future__ import annotations

import base64
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vllm import __version__ as vllm_version
from vllm.logger import init_logger

from . import __version__
from .library import Library
from .model import Model, ModelShape, WorkerReport
from .name import served_name, shown_name
from .settings import Settings
from .size import n_params
from .vocabulary import read_vocabulary

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = init_logger("vllm.inferscale")


class Describer:
    def __init__(self, config: VllmConfig, settings: Settings, library: Library) -> None:
        self.config, self.settings, self.library = config, settings, library
        self.facts: dict[str, Any] = {}
        self.thread: threading.Thread | None = None

    def start(self, reports: Sequence[WorkerReport], shape: ModelShape | None, model: Model | None, why_not: str) -> None:
        self.facts = self._engine(reports, shape, model, why_not)
        self.thread = threading.Thread(target=self._read_vocabulary, name="inferscale-vocabulary", daemon=True)
        self.thread.start()

    def _read_vocabulary(self) -> None:
        try:
            self.facts.update(read_vocabulary(self.config.model_config))
            self.facts["n_params"] = n_params(self.config, self.facts["n_params"])
        except Exception as e:  # noqa: BLE001 - any tokenizer may come: without one the engine cannot be planned for, and says so
            logger.exception("InferScale: the tokenizer cannot be described")
            self.facts.update(can_inject=False, why_not=f"the tokenizer cannot be described: {e}")

    def answer(self, can_evict: bool, can_abort: bool) -> dict[str, Any]:
        if self.thread is None:
            return {"ok": False, "reason": "failed", "why": "the workers have not reported yet; ask again"}
        self.thread.join(timeout=30)
        if self.thread.is_alive():
            return {"ok": False, "reason": "failed", "why": "the vocabulary is still being read; ask again"}
        return {"ok": True, **self.facts, "can_evict": can_evict, "can_abort": can_abort}

    def _engine(
        self, reports: Sequence[WorkerReport], shape: ModelShape | None, model: Model | None, why_not: str
    ) -> dict[str, Any]:
        config, parallel = self.config.model_config, self.config.parallel_config
        served = served_name(config.served_model_name, config.model)
        disabled = "the connector is set to disabled" if self.settings.disabled else ""
        rotated = self.settings.capture == "rotated"
        return {
            "connector": __version__, "library": self.library.version, "vllm": vllm_version,
            "model": shown_name(served, config.model), "served": served, "arch": config.architectures[0],
            "fingerprint": shape.fingerprint.hex() if shape is not None else "",
            # un-rotated keys are kept in F32, which loses nothing
            "dtype": "f32" if rotated else (reports[0].dtype if reports else ""),
            "geometry": base64.b64encode(model.geometry()).decode() if model is not None else "",
            "can_inject": shape is not None and not disabled, "why_not": why_not or disabled,
            "block_size": self.config.cache_config.block_size,
            "prefix_caching": bool(self.config.cache_config.enable_prefix_caching),
            "n_layers": len(shape.layers) if shape is not None else config.get_total_num_hidden_layers(),
            "n_ctx": config.max_model_len, "max_logprobs": config.max_logprobs,
            # with tensor parallelism what is replicated counts more than once here: it is asked only if nothing else is known
            "n_params": sum(report.n_params for report in reports),
            "tensor_parallel": parallel.tensor_parallel_size, "pipeline_parallel": parallel.pipeline_parallel_size,
            "metrics": {"page": "/metrics", "prefix": "inferscale_"}, "capture": self.settings.capture,
        }
