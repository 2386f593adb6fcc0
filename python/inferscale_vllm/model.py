"""The whole model, put together from what its workers found, and the library's handle for it.

Workers report their own layers (WorkerReport, at the handshake); the scheduler's side joins the reports to a ModelShape, and gives
that back to the workers with the first request that needs it: with pipeline parallelism nobody else has seen all layers."""

from __future__ import annotations

import ctypes as c
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata
from vllm.logger import init_logger

from .geometry import LayerShape, LiveModel, RopeShape, pairing, rope_table, rotation_sample
from .library import BF16, F16, F32, NO_FREQ, Desc, Freqs, Library, LibraryError, Plane
from .ticket import StoredPart, c_parts, folder

logger = init_logger("vllm.inferscale")

DTYPES = {torch.float32: ("f32", F32), torch.float16: ("f16", F16), torch.bfloat16: ("bf16", BF16)}


@dataclass
class WorkerReport(KVConnectorHandshakeMetadata):
    """What one worker tells the scheduler's side when both are there."""

    layers: tuple[LayerShape, ...]
    why_not: str
    dtype: str
    weights: str  # hex; equal on all workers
    identity: dict[str, str]  # what else the rows depend on
    n_params: int
    pp_rank: int
    head_begin: int
    writes: bool


@dataclass(frozen=True)
class ModelShape:
    """All layers of the model, whatever part of them a worker holds."""

    layers: tuple[LayerShape, ...]
    fingerprint: bytes
    writers: tuple[tuple[int, int], ...]  # (pipeline rank, first head) of each file that a capture leaves

    def planes(self) -> list[tuple[LayerShape, bool]]:
        """(layer, is V) in the library's order."""
        return [(layer, is_v) for layer in self.layers for is_v in ((False,) if layer.mla else (False, True))]


def join(reports: Sequence[WorkerReport]) -> tuple[ModelShape | None, str]:
    """The model of all workers' reports, or the reason why there is none."""
    for report in reports:
        if report.why_not:
            return None, report.why_not
    layers: dict[int, LayerShape] = {}
    for report in reports:
        for layer in report.layers:
            if layers.setdefault(layer.index, layer) != layer:
                return None, f"workers differ about layer {layer.index}"
    if len({(r.weights, json.dumps(r.identity, sort_keys=True)) for r in reports}) != 1:
        return None, "workers have unlike weights or settings"
    ordered = tuple(layers[i] for i in sorted(layers))
    identity = {
        "form": 1, "weights": reports[0].weights, "dtype": reports[0].dtype, **reports[0].identity,
        "layers": [asdict(layer) for layer in ordered],
    }
    digest = hashlib.blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=32, person=b"inferscale-vllm").digest()
    writers = tuple(sorted({(r.pp_rank, r.head_begin) for r in reports if r.writes}))
    return ModelShape(ordered, digest, writers), ""


class Model:
    """The library's handle: all layers and heads of the model, with the tables of the rotary embeddings that are here."""

    def __init__(
        self, library: Library, shape: ModelShape, home: Path, ram_bytes: int, live: LiveModel | None, match: bool = True
    ) -> None:
        self.library, self.shape = library, shape
        self.plane_list = shape.planes()
        freqs, tables = self._freqs(live)
        planes = (Plane * len(self.plane_list))(*(self._plane(layer, is_v, list(freqs)) for layer, is_v in self.plane_list))
        c_freqs = (Freqs * max(1, len(freqs)))()
        keep = []
        for at, (rope, table) in zip(c_freqs, tables, strict=False):
            w = (c.c_double * len(rope.w))(*rope.w)
            keep.append(w)
            at.n_pairs, at.n_pos, at.mscale, at.w = len(rope.w), rope.n_pos, rope.mscale, w
            at.table = table.data_ptr() if table is not None else None
        dirs = (c.c_char_p * 2)(*(str(home / folder(i)).encode() for i in range(2)))
        desc = Desc(struct_size=c.sizeof(Desc), n_planes=len(planes), n_freqs=len(freqs), planes=planes, freqs=c_freqs, dirs=dirs)
        desc.n_dirs, desc.ram_bytes = 2, ram_bytes
        desc.fingerprint[:] = shape.fingerprint
        self.handle = c.c_void_p()
        library.check(library.dll.inferscale_kv_open(c.byref(desc), c.byref(self.handle)))
        self.rotations: dict[RopeShape, int] = {}  # how the engine rounds, as far as it could be asked
        if live is not None and match:
            self._match(live)

    def _match(self, live: LiveModel) -> None:
        """Lets the library find out, from the engine's own results, how each rotary embedding rounds."""
        first = self.plane_range(live)[0]
        planes = {layer.index: i for i, (layer, is_v) in enumerate(self.plane_list) if not is_v}
        for layer in live.layers:
            rope = layer.shape.rope
            if rope is None or rope in self.rotations:
                continue
            found = c.c_int(-1)
            # of latent rows only the last dims are rotated, and there is one plane for both: it is matched with the latent before them
            sample = rotation_sample(layer.rope, live.dtype, live.compiled, 1 if layer.shape.mla else layer.n_heads)
            if sample is not None:
                keys, rotated = (self._widen(layer.shape, t) for t in sample)
                status = self.library.dll.inferscale_kv_match(
                    self.handle, planes[layer.shape.index], DTYPES[live.dtype][1], keys.data_ptr(), rotated.data_ptr(),
                    keys.shape[0], keys.shape[1], 1, c.byref(found),
                )
                if status:
                    logger.info("InferScale: %s", self.library.error())
            self.rotations[rope] = found.value if sample is not None and not status else -1
        logger.info("InferScale: %d layers from plane %d, rotations %s (-1: plain F32, not asked)", len(live.layers), first,
                    list(self.rotations.values()))

    @staticmethod
    def _widen(layer: LayerShape, rows: torch.Tensor) -> torch.Tensor:
        pad = layer.k_dim - rows.shape[-1]
        return torch.nn.functional.pad(rows, (pad, 0)).contiguous() if pad else rows

    def _freqs(self, live: LiveModel | None) -> tuple[dict[RopeShape, None], list[tuple[RopeShape, torch.Tensor | None]]]:
        """Distinct rotary embeddings in the order of their first layer, and the engine's table where this process has it."""
        ropes = dict.fromkeys(layer.rope for layer in self.shape.layers if layer.rope is not None)
        here = {layer.shape.rope: layer.rope for layer in live.layers if layer.rope is not None} if live is not None else {}
        return ropes, [(r, rope_table(here[r], live.dtype) if live is not None and r in here else None) for r in ropes]

    @staticmethod
    def _plane(layer: LayerShape, is_v: bool, ropes: list[RopeShape]) -> Plane:
        rotated = layer.rope is not None and not is_v
        return Plane(
            layer=layer.index, is_v=int(is_v), n_heads=layer.total_heads, head_dim=layer.v_dim if is_v else layer.k_dim,
            rot_begin=layer.rot_begin if rotated else 0, rot_dim=layer.rot_dim if rotated else 0,
            pairing=pairing(layer.rope) if rotated and layer.rope is not None else 0,
            freq=ropes.index(layer.rope) if rotated and layer.rope is not None else NO_FREQ, window=layer.window,
        )

    def plane_range(self, live: LiveModel) -> tuple[int, int]:
        """The planes of this worker's layers, which are contiguous in the model."""
        mine = {layer.shape.index for layer in live.layers}
        at = [i for i, (layer, _) in enumerate(self.plane_list) if layer.index in mine]
        if at != list(range(at[0], at[0] + len(at))):
            raise RuntimeError("the layers of this worker are not contiguous in the model")
        return at[0], at[-1] + 1

    def geometry(self) -> bytes:
        bytes_, n = c.POINTER(c.c_uint8)(), c.c_size_t()
        self.library.check(self.library.dll.inferscale_kv_geometry(self.handle, c.byref(bytes_), c.byref(n)))
        return c.string_at(bytes_, n.value)

    def check(self, part: StoredPart, prompt: c.Array[c.c_int32]) -> None:
        """LibraryError unless the stored part is there, of this model, and its tokens are the prompt's."""
        self.library.check(self.library.dll.inferscale_kv_check(self.handle, c_parts([part]), prompt, len(prompt)))

    def load(self, parts: Sequence[StoredPart], planes: tuple[int, int], heads: tuple[int, int]) -> Load:
        return Load(self, parts, planes, heads)

    def forget(self, names: Sequence[bytes]) -> None:
        """What memory holds of these segments is overwritten and freed."""
        if names:
            self.library.dll.inferscale_kv_forget(self.handle, b"".join(names), len(names))

    def write(
        self, path: Path, tokens: Sequence[int], n_context: int, planes: tuple[int, int], heads: tuple[int, int], dtype: int,
        rows: Sequence[torch.Tensor],
    ) -> None:
        """Captured rows as a segment file; one contiguous CPU tensor a plane."""
        ids, addresses = (c.c_int32 * len(tokens))(*tokens), (c.c_void_p * len(rows))(*(r.data_ptr() for r in rows))
        self.library.check(
            self.library.dll.inferscale_kv_write(
                self.handle, str(path).encode(), ids, len(tokens), n_context, *planes, *heads, dtype, addresses
            )
        )

    def close(self) -> None:
        if self.handle:
            self.library.dll.inferscale_kv_close(self.handle)
            self.handle = c.c_void_p()


class Load:
    """Stored parts made ready: read and verified for the planes and heads asked for. A context manager."""

    def __init__(self, model: Model, parts: Sequence[StoredPart], planes: tuple[int, int], heads: tuple[int, int]) -> None:
        self.library, self.handle, bad = model.library, c.c_void_p(), c.c_size_t(len(parts))
        status = self.library.dll.inferscale_kv_load_open(
            model.handle, c_parts(parts), len(parts), *planes, *heads, c.byref(self.handle), c.byref(bad)
        )
        self.library.check(status, bad.value if bad.value < len(parts) else None)

    def read(self, plane: int, dtype: int, out: torch.Tensor) -> None:
        """One plane of all parts into a contiguous [token][head][dim] CPU tensor, keys rotated to their positions."""
        self.library.check(
            self.library.dll.inferscale_kv_load_read(
                self.handle, plane, dtype, out.data_ptr(), out.shape[1] * out.shape[2], out.shape[2]
            )
        )

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *exc: object) -> None:
        self.library.dll.inferscale_kv_load_close(self.handle)


__all__ = ["DTYPES", "LibraryError", "Load", "Model", "ModelShape", "WorkerReport", "join"]
