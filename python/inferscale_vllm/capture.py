"""Rows of a new span, as the model computed them: keys before RoPE and values, in the model's dtype.

While a step has something to capture, two kinds of hooks are in place: one before each rotary embedding keeps the keys that enter it,
and one around each layer's cache update takes these keys and the values for the tokens whose slots are wanted. So batches, chunks and
preemption need no thought: what a step computes for a wanted slot is taken, whoever else is in it. Each layer's keys are checked: the
one that was seen, rotated by the engine's table, must be the one that is stored. A model that does more to its keys than its modules
say is found out here, and no segment is written.

A compiled graph has no hooks. Capturing steps therefore run without it (forward context's skip_compiled), which vLLM does itself for
other models. With "capture": "rotated" the graph stays, and keys are un-rotated from what is stored, in F32 and kept in F32: at the
same position that gives the stored bits back; elsewhere it costs one more rounding than seeing them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.forward_context import get_forward_context, is_forward_context_available
from vllm.logger import init_logger

from .bring import Bringer
from .geometry import LiveLayer, LiveModel, rope_table
from .library import F32, LibraryError
from .metrics import InferScaleStats
from .model import DTYPES, Model
from .orders import CaptureOrder, Failure, slots
from .settings import Settings

logger = init_logger("vllm.inferscale")


class Mismatch(Exception):
    """The keys that were seen are not what the engine stores."""


@dataclass
class Span:
    """One capture under way: a buffer for each plane, and which tokens are there already, layer by layer."""

    order: CaptureOrder
    rows: dict[int, list[torch.Tensor]] = field(default_factory=dict)  # layer -> [K, V] or [latent]
    seen: dict[int, torch.Tensor] = field(default_factory=dict)  # layer -> bool for each token of the span
    failed: str = ""


class Capture:
    def __init__(self, live: LiveModel, model: Model, settings: Settings, pp_rank: int, bringer: Bringer | None = None) -> None:
        self.bringer = bringer  # where the gateway is on another host
        self.live, self.model, self.settings, self.pp_rank = live, model, settings, pp_rank
        self.exact = settings.capture == "exact"
        self.spans: dict[str, Span] = {}
        self.step: list[CaptureOrder] = []
        self.wanted: dict[int, tuple[str, int]] = {}  # slot -> (request, token of its span)
        self.picked: tuple[Any, list[tuple[str, torch.Tensor, torch.Tensor]]] | None = None
        self.before: tuple[torch.Tensor, torch.Tensor] | None = None  # positions and keys that entered the last rotary embedding
        self.undo: list[Callable[[], None]] = []
        self.tables: dict[int, torch.Tensor] = {}

    # ---- a step ----------------------------------------------------------------------------------------------------------

    def begin(self, orders: list[CaptureOrder]) -> None:
        self.remove_hooks()
        self.step, self.wanted, self.picked, self.before = orders, {}, None, None
        for order in orders:
            span = self.spans.setdefault(order.request_id, Span(order))
            span.order = order
            at = slots(order.block_ids, order.block_size, order.begin, order.end)
            for token, slot in enumerate(at, order.begin - order.first):
                self.wanted[slot] = (order.request_id, token)
        if self.exact and is_forward_context_available():
            get_forward_context().skip_compiled = True
        self._install_hooks()

    def _install_hooks(self) -> None:
        if self.exact:
            for rope in {id(layer.rope): layer.rope for layer in self.live.layers if layer.rope is not None}.values():
                self.undo.append(rope.register_forward_pre_hook(self._entering_rope, with_kwargs=True).remove)
        for layer in self.live.layers:
            self._wrap_update(layer)

    def _wrap_update(self, layer: LiveLayer) -> None:
        impl = layer.module.impl
        update = impl.do_kv_cache_update

        def observed(*args: Any, **kwargs: Any) -> Any:
            result = update(*args, **kwargs)
            try:
                if layer.shape.mla:
                    latent, key, slot_mapping = args[0], args[1], args[3]
                    self._take(layer, key, latent, slot_mapping)
                else:
                    self._take(layer, args[1], args[2], args[4] if len(args) > 4 else kwargs["slot_mapping"])
            except Exception as e:  # noqa: BLE001 - the request's answer does not depend on the capture
                self._fail_step(f"layer {layer.shape.index}: {e}")
            return result

        impl.do_kv_cache_update = observed
        self.undo.append(lambda: delattr(impl, "do_kv_cache_update"))

    def remove_hooks(self) -> None:
        while self.undo:
            self.undo.pop()()
        self.before = None

    def _entering_rope(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The rotary embedding may work in place, so the keys are copied before it."""
        key = args[2] if len(args) > 2 else kwargs.get("key")
        positions = args[0] if args else kwargs["positions"]
        self.before = (positions.clone(), key.clone()) if key is not None else None

    # ---- rows ------------------------------------------------------------------------------------------------------------

    def _pick(self, slot_mapping: torch.Tensor) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
        """(request, rows of this step, tokens of its span); the slots of all layers are one tensor, so this is done once a step."""
        if self.picked is not None and self.picked[0] is slot_mapping:
            return self.picked[1]
        by_request: dict[str, tuple[list[int], list[int]]] = {}
        for row, slot in enumerate(slot_mapping.flatten().tolist()):
            found = self.wanted.get(slot)
            if found is not None:
                rows, tokens = by_request.setdefault(found[0], ([], []))
                rows.append(row)
                tokens.append(found[1])
        picked = [
            (request, torch.tensor(rows, device=slot_mapping.device), torch.tensor(tokens))
            for request, (rows, tokens) in by_request.items()
        ]
        self.picked = slot_mapping, picked
        return picked

    def _take(self, layer: LiveLayer, key: torch.Tensor, other: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """The wanted rows of one layer's cache update. `other`: values, or the latent."""
        before, self.before = self.before, None
        for request, rows, tokens in self._pick(slot_mapping):
            span = self.spans[request]
            stored = key[rows].reshape(len(rows), -1, key.shape[-1])
            plain = self._unrotated(layer, before, rows, stored, span.order.first + tokens)
            if layer.shape.mla:
                parts = [torch.cat((other[rows].reshape(len(rows), 1, -1).to(plain.dtype), plain), -1)]
            else:
                parts = [plain, other[rows].reshape(len(rows), -1, other.shape[-1])]
            index, n = layer.shape.index, len(span.order.tokens)
            if index not in span.rows:
                span.rows[index] = [torch.empty(n, *p.shape[1:], dtype=torch.float32 if not self.exact else p.dtype) for p in parts]
                span.seen[index] = torch.zeros(n, dtype=torch.bool)
            for buffer, part in zip(span.rows[index], parts, strict=True):
                buffer[tokens] = part.to("cpu", buffer.dtype)
            span.seen[index][tokens] = True

    def _unrotated(
        self, layer: LiveLayer, before: tuple[torch.Tensor, torch.Tensor] | None, rows: torch.Tensor, stored: torch.Tensor,
        positions: torch.Tensor,
    ) -> torch.Tensor:
        if layer.shape.rope is None:
            if before is not None:
                raise Mismatch("its keys pass a rotary embedding that its module does not show")
            return stored
        table = self._table(layer)[positions]
        if not self.exact:
            return self._turn(layer, stored.to("cpu", torch.float32), table, undo=True)
        if before is None:
            raise Mismatch("its keys did not pass the rotary embedding (a fused kernel or a full graph has it)")
        if not torch.equal(before[0].flatten()[rows].cpu(), positions):
            raise Mismatch("its tokens stand at other positions than the request says")
        plain = before[1].reshape(before[1].shape[0], -1, stored.shape[-1])[rows]
        turned = self._turn(layer, plain.to("cpu", torch.float32), table, undo=False)
        bound = 0.02 * float(turned.abs().max()) + 1e-6  # a few units of the coarsest dtype; another rotation is off by the whole
        if float((turned - stored.to("cpu", torch.float32)).abs().max()) > bound:
            raise Mismatch("the keys it stores are not the rotated ones of those that were seen")
        return plain

    def _table(self, layer: LiveLayer) -> torch.Tensor:
        key = id(layer.rope)
        if key not in self.tables:
            self.tables[key] = rope_table(layer.rope, self.live.dtype)
        return self.tables[key]

    @staticmethod
    def _turn(layer: LiveLayer, rows: torch.Tensor, table: torch.Tensor, undo: bool) -> torch.Tensor:
        """Rotates rows [n][heads][dim] by a table's rows, or back (divided by the table's own magnitude, which a rounded one has)."""
        begin = 0 if layer.shape.mla else layer.shape.rot_begin  # of latent rows only the rotated part comes here
        dim = layer.shape.rot_dim
        half = dim // 2
        cos, sin = table[:, None, :half].double(), table[:, None, half:].double()
        out, turned = rows.double(), rows[..., begin : begin + dim].double()
        assert layer.shape.rope is not None
        a, b = (turned[..., 0::2], turned[..., 1::2]) if layer.shape.rope.adjacent else (turned[..., :half], turned[..., half:])
        if undo:
            scale = cos * cos + sin * sin
            first, second = (a * cos + b * sin) / scale, (b * cos - a * sin) / scale
        else:
            first, second = a * cos - b * sin, b * cos + a * sin
        pair = torch.stack((first, second), -1).flatten(-2) if layer.shape.rope.adjacent else torch.cat((first, second), -1)
        out[..., begin : begin + dim] = pair
        return out.float()

    # ---- the end ---------------------------------------------------------------------------------------------------------

    def _fail_step(self, why: str) -> None:
        for order in self.step:
            self.spans[order.request_id].failed = self.spans[order.request_id].failed or why

    def finish(self, stats: InferScaleStats) -> list[Failure]:
        """Writes the spans whose last token this step computed."""
        self.remove_hooks()
        failures = []
        for order in self.step:
            if order.end - order.first < len(order.tokens):
                continue
            span = self.spans.pop(order.request_id)
            why = span.failed or self._incomplete(span)
            if not why and self.live.writes:
                try:
                    self._write(span)
                except (LibraryError, OSError) as e:
                    why = str(e)
            if why:
                failures.append(Failure(order.request_id, "layout" if span.failed else "failed", f"not captured: {why}", capture=True))
                stats.failed(failures[-1].reason)
            else:
                stats.captured(len(order.tokens))
        self.step = []
        return failures

    def _incomplete(self, span: Span) -> str:
        for layer in self.live.layers:
            seen = span.seen.get(layer.shape.index)
            if seen is None or not bool(seen.all()):
                return f"not all rows of layer {layer.shape.index} were seen (a graph replayed without Python)"
        return ""

    def _write(self, span: Span) -> None:
        spool = self.settings.home / "vllm" / "spool"
        spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        heads = self.live.head_begin, self.live.head_begin + self.live.layers[0].n_heads
        rows = [plane.contiguous() for layer in self.live.layers for plane in span.rows[layer.shape.index]]
        dtype = F32 if not self.exact else DTYPES[self.live.dtype][1]
        path = spool / f"{span.order.file_name}.{self.pp_rank}.{self.live.head_begin}"
        self.model.write(path, span.order.tokens, span.order.n_context, self.model.plane_range(self.live), heads, dtype, rows)
        if self.bringer is not None:
            self.bringer.bring(path)

    def drop(self, request_id: str) -> None:
        self.spans.pop(request_id, None)
