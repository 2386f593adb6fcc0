"""Settings of the connector: kv_connector_extra_config of --kv-transfer-config."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KNOWN = ("home", "library", "secret_file", "ram_bytes", "capture", "disabled", "allow_untested_vllm")


@dataclass(frozen=True)
class Settings:
    home: Path  # the store's folder
    library: str | None  # libinferscale; None: $INFERSCALE_LIBRARY, else what the loader finds
    secret_file: Path
    ram_bytes: int  # verified segments that a worker keeps in memory; 0 = the library's default
    capture: str  # "exact": keys are seen before RoPE, that step runs without the compiled graph; "rotated": un-rotated in F32
    disabled: bool  # every ticket is answered by exact prefill, reason `disabled`
    allow_untested: bool


def read(extra: dict[str, Any] | None) -> Settings:
    extra = dict(extra or {})
    unknown = sorted(set(extra) - set(KNOWN))
    if unknown:
        raise ValueError(f"unknown setting {unknown[0]!r} in kv_connector_extra_config; known are {', '.join(KNOWN)}")
    home = extra.get("home") or os.environ.get("INFERSCALE_HOME")
    if not home:
        home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "inferscale"
    home = Path(home).expanduser()
    capture = str(extra.get("capture", "exact"))
    if capture not in ("exact", "rotated"):
        raise ValueError(f'"capture" is {capture!r}; use "exact" or "rotated"')
    return Settings(
        home=home, library=extra.get("library"), secret_file=Path(extra.get("secret_file") or home / "vllm" / "secret").expanduser(),
        ram_bytes=int(extra.get("ram_bytes", 0)), capture=capture, disabled=bool(extra.get("disabled", False)),
        allow_untested=bool(extra.get("allow_untested_vllm", False)),
    )
