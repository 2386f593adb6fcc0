"""The worker's side: stored rows into the paged cache before a step, captured rows out of it after one.

A worker reads only its layers and heads. Whatever fails is said by block, and the scheduler computes those tokens exactly."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
from vllm.logger import init_logger

from . import fingerprint
from .bring import Bringer
from .capture import Capture
from .geometry import LiveModel, read_model
from .library import LibraryError, load
from .metrics import InferScaleStats
from .model import DTYPES, Model, ModelShape, WorkerReport
from .orders import Bad, Failure, LoadOrder, StepOrders, StepResult, slots
from .scheduler import REASONS, identity_of
from .settings import Settings

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = init_logger("vllm.inferscale")


class WorkerSide:
    def __init__(self, config: VllmConfig, settings: Settings, pp_rank: int, tp_rank: int) -> None:
        self.config, self.settings = config, settings
        self.pp_rank, self.tp_rank = pp_rank, tp_rank
        self.library = load(settings.library)
        self.live = LiveModel(why_not="the model has not been looked at yet")
        self.looked = False
        self.model: Model | None = None
        self.orders: StepOrders | None = None
        self.capture: Capture | None = None
        self.bringer: Bringer | None = None
        self.bad_blocks: set[int] = set()
        self.loaded: set[str] = set()  # requests that wait for their load, which is over, whatever came of it
        self.failures: list[Failure] = []
        self.stats = InferScaleStats()
        self.buffers: dict[tuple[int, int], torch.Tensor] = {}

    def look(self) -> None:
        """Looks at the live model, once, when weights and cache are there. The caches are registered before vLLM's GPU worker
        freezes the heap, the handshake comes after it: then the modules could not be found any more."""
        if not self.looked:
            self.live, self.looked = read_model(self.config, self.tp_rank), True

    def report(self) -> WorkerReport:
        """What the scheduler has to know of this worker, for the handshake."""
        self.look()  # a runner that registered no caches before
        weights, identity = "", {}
        if not self.live.why_not:
            try:
                weights, identity = fingerprint.weights(self.config), fingerprint.identity(self.config)
            except (OSError, RuntimeError, ValueError) as e:
                self.live.why_not = f"the model cannot be identified: {e}"
        return WorkerReport(
            layers=tuple(layer.shape for layer in self.live.layers), why_not=self.live.why_not,
            dtype=DTYPES[self.config.model_config.dtype][0], weights=weights, identity=identity, n_params=self.live.n_params,
            pp_rank=self.pp_rank, head_begin=self.live.head_begin, writes=self.live.writes,
        )

    # ---- a step ----------------------------------------------------------------------------------------------------------

    def begin(self, orders: StepOrders) -> None:
        """Orders of this step; hooks of a capture are in place before the forward (start_load_kv may come after it)."""
        self.orders = orders
        if self.capture is not None:
            for request_id in orders.over:
                self.capture.drop(request_id)
        if orders.forget:
            self._forget(orders.forget)
        if orders.model is not None and self.model is None:
            self._open(orders.model)
        if orders.captures and self.model is not None:
            if self.capture is None:
                if self.settings.gateway:
                    self.bringer = Bringer(self.settings)
                self.capture = Capture(self.live, self.model, self.settings, self.pp_rank, self.bringer)
            self.capture.begin(orders.captures)

    def _forget(self, names: list[bytes]) -> None:
        """Rows of revoked memory, and those that were loaded last, whoever's they were."""
        if self.model is not None:
            self.model.forget(names)
        for buffer in self.buffers.values():
            buffer.zero_()

    def _open(self, shape: ModelShape) -> None:
        try:
            # Rows that were un-rotated in F32 come back to their bits only if they are rotated in F32, however the engine rounds.
            self.model = Model(
                self.library, shape, self.settings.home, self.settings.ram_bytes, self.live, match=self.settings.capture == "exact"
            )
        except LibraryError as e:
            logger.error("InferScale: %s", e)

    def start_load(self) -> None:
        """Every stored row of this step into the cache, before the forward that attends to it: this step's, or, where steps are
        scheduled ahead of their results, a later one's."""
        if self.orders is None:
            return
        for order in self.orders.loads:
            started = time.perf_counter()
            try:
                self._load(order)
            except Exception as e:  # noqa: BLE001 - whatever it is, the answer must be computed from exact rows
                self._load_failed(order, e)
            else:
                self.stats.loaded(order.n_tokens, time.perf_counter() - started)
            if order.ahead:
                self.loaded.add(order.request_id)
        self.orders.loads = []

    def _load(self, order: LoadOrder) -> None:
        if self.model is None:
            raise RuntimeError("the library's model could not be opened on this worker")
        if sum(part.n_tokens for part in order.parts) != order.n_tokens:
            raise RuntimeError("the stored parts changed while the request was scheduled")
        planes = self.model.plane_range(self.live)
        heads = self.live.head_begin, self.live.head_begin + self.live.layers[0].n_heads
        slot_mapping = torch.tensor(slots(order.block_ids, order.block_size, order.begin, order.begin + order.n_tokens))
        _, c_type = DTYPES[self.live.dtype]
        with self.model.load(order.parts, planes, heads) as stored:
            plane = planes[0]
            for layer in self.live.layers:
                cache = layer.module.kv_cache
                at = slot_mapping.to(cache.device)
                keys = self._rows(0, order.n_tokens, layer.n_heads, layer.shape.k_dim)
                stored.read(plane, c_type, keys)
                if layer.shape.mla:
                    latent = layer.module.kv_lora_rank
                    rows = keys.to(cache.device)
                    layer.module.impl.do_kv_cache_update(
                        rows[:, 0, :latent], rows[:, :, latent:], cache, at, layer.module.kv_cache_dtype, layer.module._k_scale
                    )
                    plane += 1
                    continue
                values = self._rows(1, order.n_tokens, layer.n_heads, layer.shape.v_dim)
                stored.read(plane + 1, c_type, values)
                layer.module.impl.do_kv_cache_update(layer.module, keys.to(cache.device), values.to(cache.device), cache, at)
                plane += 2

    def _rows(self, which: int, n_tokens: int, n_heads: int, dim: int) -> torch.Tensor:
        """A reused buffer [n_tokens][n_heads][dim]; pinned where the cache is on another device. Copies from it are ordered
        before its next use: `.to` of pinned memory without non_blocking waits."""
        need, key = n_tokens * n_heads * dim, (which, dim)
        buffer = self.buffers.get(key)
        if buffer is None or buffer.numel() < need:
            pinned = self.live.layers[0].module.kv_cache.device.type == "cuda"
            buffer = torch.empty(need, dtype=self.live.dtype, pin_memory=pinned)
            self.buffers[key] = buffer
        return buffer[:need].view(n_tokens, n_heads, dim)

    def _load_failed(self, order: LoadOrder, error: Exception) -> None:
        """All tokens of the order are computed exactly: which rows were written before it failed does not matter."""
        self.bad_blocks |= order.touched_blocks()
        failure = Failure(order.request_id, "failed", f"stored rows could not be loaded: {error}")
        if isinstance(error, LibraryError):
            failure.reason = REASONS.get(error.status, "failed")
            if error.part is not None:
                failure.bad = self._bad_parts(order)
        elif not isinstance(error, RuntimeError):
            logger.exception("InferScale: a load failed")
        self.failures.append(failure)
        self.stats.failed(failure.reason)

    def _bad_parts(self, order: LoadOrder) -> list[Bad]:
        """All of the order's segments that cannot be read, not only the first: those that can are in memory now."""
        assert self.model is not None
        planes, heads = self.model.plane_range(self.live), (self.live.head_begin, self.live.head_begin + self.live.layers[0].n_heads)
        bad = []
        for part in order.parts:
            identity = identity_of(part.path(self.settings.home))
            try:
                with self.model.load([part], planes, heads):
                    pass
            except LibraryError as e:
                bad.append(Bad(part.name, part.where, REASONS.get(e.status, "failed"), str(e), identity))
        return bad

    def finish(self) -> None:
        """The forward is over: captured spans that are whole are written before the response is sent."""
        if self.capture is not None:
            self.failures += self.capture.finish(self.stats)

    def end(self) -> None:
        self.orders = None
        if self.capture is not None:
            self.capture.remove_hooks()  # also after a forward that raised

    def take_bad_blocks(self) -> set[int]:
        bad, self.bad_blocks = self.bad_blocks, set()
        return bad

    def take_loaded(self) -> set[str] | None:
        loaded, self.loaded = self.loaded, set()
        return loaded or None

    def take_result(self) -> StepResult | None:
        failures, self.failures = self.failures, []
        return StepResult(failures) if failures else None

    def take_stats(self) -> InferScaleStats | None:
        for _ in range(self.bringer.take_failures() if self.bringer is not None else 0):
            self.stats.failed("fetch")
        if self.stats.is_empty():
            return None
        stats, self.stats = self.stats, InferScaleStats()
        return stats

    def close(self) -> None:
        if self.model is not None:
            self.model.close()
            self.model = None
