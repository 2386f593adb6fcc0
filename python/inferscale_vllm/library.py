"""libinferscale by ctypes: the C structures of include/inferscale.h as far as the connector needs them, and one error class.

Nothing here computes. Buffers cross as addresses (torch's data_ptr), so a row is never copied in Python."""

from __future__ import annotations

import ctypes as c
import ctypes.util
import os
from collections.abc import Sequence
from pathlib import Path

F32, F16, BF16 = 0, 1, 2
NO_FREQ = 0xFFFF  # `freq` of a plane that is not rotated
PAIR_NONE, PAIR_ADJACENT, PAIR_HALVES = 0, 1, 2

STATUS_NAMES = [
    "OK", "INVALID", "NOMEM", "IO", "FULL", "READONLY", "NOTFOUND", "CORRUPT", "FOREIGN", "BUSY", "CONTEXT", "UNSUPPORTED", "MODEL", "ENGINE",
    "CANCELLED", "DENIED", "STALE", "PARSE", "INTERNAL", "TRACE",
]


class Plane(c.Structure):
    """inferscale_plane"""

    _fields_ = [
        ("layer", c.c_uint32), ("is_v", c.c_int), ("n_heads", c.c_uint32), ("head_dim", c.c_uint32), ("rot_begin", c.c_uint32),
        ("rot_dim", c.c_uint32), ("pairing", c.c_int), ("freq", c.c_uint32), ("window", c.c_uint32),
    ]


class Freqs(c.Structure):
    """inferscale_kv_freqs"""

    _fields_ = [
        ("n_pairs", c.c_uint32), ("n_pos", c.c_uint32), ("mscale", c.c_double), ("w", c.POINTER(c.c_double)), ("table", c.c_void_p),
    ]


class Desc(c.Structure):
    """inferscale_kv_desc"""

    _fields_ = [
        ("struct_size", c.c_size_t), ("n_planes", c.c_uint32), ("n_freqs", c.c_uint32), ("planes", c.POINTER(Plane)),
        ("freqs", c.POINTER(Freqs)), ("fingerprint", c.c_uint8 * 32), ("rotation", c.c_int),
        ("dirs", c.POINTER(c.c_char_p)), ("n_dirs", c.c_uint32), ("ram_bytes", c.c_uint64),
    ]


class Part(c.Structure):
    """inferscale_kv_part"""

    _fields_ = [
        ("name", c.c_uint8 * 32), ("dir", c.c_uint32), ("begin", c.c_uint32), ("n_tokens", c.c_uint32), ("pos", c.c_uint32),
    ]


class CTicket(c.Structure):
    """inferscale_ticket"""

    _fields_ = [
        ("struct_size", c.c_size_t), ("op", c.c_int), ("id", c.c_uint8 * 16), ("fingerprint", c.c_uint8 * 32),
        ("tag", c.c_uint8 * 32), ("salt", c.c_uint8 * 32), ("epoch", c.c_uint64), ("expires", c.c_int64),
        ("n_prompt", c.c_uint32), ("prompt_hash", c.c_uint8 * 32), ("n_parts", c.c_uint32), ("parts", c.POINTER(Part)),
        ("capture_from", c.c_uint32), ("capture_n", c.c_uint32),
    ]


class LibraryError(RuntimeError):
    """A call of libinferscale failed; `status` is its name without E_ ("CORRUPT"), `part` the index of the part at fault."""

    def __init__(self, status: str, message: str, part: int | None = None) -> None:
        super().__init__(message)
        self.status, self.part = status, part


U8P = c.POINTER(c.c_uint8)
SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "inferscale_error": (c.c_char_p, []),
    "inferscale_version": (c.c_char_p, []),
    "inferscale_kv_open": (c.c_int, [c.POINTER(Desc), c.POINTER(c.c_void_p)]),
    "inferscale_kv_close": (None, [c.c_void_p]),
    "inferscale_kv_geometry": (c.c_int, [c.c_void_p, c.POINTER(U8P), c.POINTER(c.c_size_t)]),
    "inferscale_kv_match": (
        c.c_int,
        [c.c_void_p, c.c_uint32, c.c_int, c.c_void_p, c.c_void_p, c.c_uint32, c.c_uint32, c.c_uint32, c.POINTER(c.c_int)],
    ),
    "inferscale_kv_check": (c.c_int, [c.c_void_p, c.POINTER(Part), c.POINTER(c.c_int32), c.c_uint32]),
    "inferscale_kv_forget": (None, [c.c_void_p, c.c_char_p, c.c_size_t]),
    "inferscale_kv_load_open": (
        c.c_int,
        [c.c_void_p, c.POINTER(Part), c.c_size_t, c.c_uint32, c.c_uint32, c.c_uint32, c.c_uint32, c.POINTER(c.c_void_p),
         c.POINTER(c.c_size_t)],
    ),
    "inferscale_kv_load_close": (None, [c.c_void_p]),
    "inferscale_kv_load_read": (c.c_int, [c.c_void_p, c.c_uint32, c.c_int, c.c_void_p, c.c_size_t, c.c_size_t]),
    "inferscale_kv_write": (
        c.c_int,
        [c.c_void_p, c.c_char_p, c.POINTER(c.c_int32), c.c_uint32, c.c_uint32, c.c_uint32, c.c_uint32, c.c_uint32, c.c_uint32,
         c.c_int, c.POINTER(c.c_void_p)],
    ),
    "inferscale_hash": (None, [c.c_char_p, c.c_void_p, c.c_size_t, c.c_char_p]),
    "inferscale_ticket_write": (c.c_int, [c.POINTER(CTicket), c.c_char_p, c.POINTER(c.c_void_p)]),
    "inferscale_ticket_text_free": (None, [c.c_void_p]),
    "inferscale_ticket_read": (c.c_int, [c.c_char_p, c.c_char_p, c.c_int64, c.POINTER(c.POINTER(CTicket))]),
    "inferscale_ticket_free": (None, [c.POINTER(CTicket)]),
}


class Library:
    """The loaded library with typed functions; `check` turns a status into LibraryError."""

    def __init__(self, path: str) -> None:
        try:
            self.dll = c.CDLL(path)
        except OSError as e:
            raise RuntimeError(
                f"libinferscale cannot be loaded: {path} ({e}). The connector needs libinferscale.so.0 on the machine of each vLLM worker: "
                "install InferScale there (`make install` puts it where the loader looks, `ldconfig` makes that known), or say where the file "
                "is: --library FILE of inferscale-vllm, \"library\" in kv_connector_extra_config, or INFERSCALE_LIBRARY=FILE"
            ) from e
        for name, (result, arguments) in SIGNATURES.items():
            try:
                function = getattr(self.dll, name)
            except AttributeError as e:
                raise RuntimeError(f"{path} is a libinferscale without {name}; install the version that belongs to this connector") from e
            function.restype, function.argtypes = result, arguments

    def check(self, status: int, part: int | None = None) -> None:
        if status:
            name = STATUS_NAMES[status] if 0 < status < len(STATUS_NAMES) else str(status)
            raise LibraryError(name, self.error(), part)

    def error(self) -> str:
        """The sentence about this thread's last failed call."""
        return (self.dll.inferscale_error() or b"").decode("utf-8", "replace")

    def hash(self, data: bytes, key: bytes | None = None) -> bytes:
        """The keyed hash of the library, 32 bytes."""
        out = c.create_string_buffer(32)
        self.dll.inferscale_hash(key, data, len(data), out)
        return out.raw

    @property
    def version(self) -> str:
        return self.dll.inferscale_version().decode()


def find(configured: str | None = None) -> str:
    """The library's path: the setting, then the environment, then what the loader finds."""
    given = configured or os.environ.get("INFERSCALE_LIBRARY")
    if given:
        return str(Path(given).expanduser())
    return ctypes.util.find_library("inferscale") or "libinferscale.so.0"


_loaded: dict[str, Library] = {}


def load(configured: str | None = None) -> Library:
    path = find(configured)
    if path not in _loaded:
        _loaded[path] = Library(path)
    return _loaded[path]


def ids_array(tokens: Sequence[int]) -> c.Array[c.c_int32]:
    return (c.c_int32 * len(tokens))(*tokens)
