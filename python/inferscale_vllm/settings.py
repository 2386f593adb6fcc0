"""Settings of the connector: kv_connector_extra_config of --kv-transfer-config."""

from __future__ import annotations

import math
import os
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KNOWN = (
    "home", "library", "secret_file", "ram_bytes", "capture", "disabled", "allow_untested_vllm", "gateway", "gateway_ca", "cache_bytes",
    "fetch_wait_s",
)


@dataclass(frozen=True)
class Settings:
    home: Path  # the store's folder; with a gateway: the cache of what was fetched from it
    library: str | None  # libinferscale; None: $INFERSCALE_LIBRARY, else what the loader finds
    secret_file: Path
    ram_bytes: int  # verified segments that a worker keeps in memory; 0 = the library's default
    capture: str  # "exact": keys are seen before RoPE, that step runs without the compiled graph; "rotated": un-rotated in F32
    disabled: bool  # every ticket is answered by exact prefill, reason `disabled`
    allow_untested: bool
    gateway: str | None = None  # http(s)://host:port of a gateway whose folder is not here; None: home is its folder
    gateway_ca: str | None = None  # PEM of who signed its certificate; None: the system's
    cache_bytes: int = 8 << 30
    fetch_wait_s: float = 5.0  # a request waits so long for its stored parts, then they are computed


def read(extra: dict[str, Any] | None) -> Settings:
    extra = dict(extra or {})
    unknown = sorted(set(extra) - set(KNOWN))
    if unknown:
        raise ValueError(f"unknown setting {unknown[0]!r} in kv_connector_extra_config; known are {', '.join(KNOWN)}")
    home = extra.get("home") or os.environ.get("INFERSCALE_HOME")
    if not home:
        home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "inferscale"
    home = Path(home).expanduser()
    gateway, secret_file = _gateway(extra.get("gateway")), extra.get("secret_file")
    if gateway and not (extra.get("home") and secret_file):
        raise ValueError('with a "gateway", kv_connector_extra_config needs "home" (a folder for its cache) and "secret_file" (a copy of the '
                         "gateway's vllm/secret)")
    capture = str(extra.get("capture", "exact"))
    if capture not in ("exact", "rotated"):
        raise ValueError(f'"capture" is {capture!r}; use "exact" or "rotated"')
    settings = Settings(
        home=home, library=extra.get("library"), secret_file=Path(secret_file or home / "vllm" / "secret").expanduser(),
        ram_bytes=int(extra.get("ram_bytes", 0)), capture=capture, disabled=bool(extra.get("disabled", False)),
        allow_untested=bool(extra.get("allow_untested_vllm", False)), gateway=gateway, gateway_ca=extra.get("gateway_ca"),
        cache_bytes=int(extra.get("cache_bytes", Settings.cache_bytes)), fetch_wait_s=float(extra.get("fetch_wait_s", Settings.fetch_wait_s)),
    )
    if not (math.isfinite(settings.fetch_wait_s) and settings.fetch_wait_s >= 0):
        raise ValueError(f'"fetch_wait_s" is {settings.fetch_wait_s}; give seconds, 0 or more')
    if settings.cache_bytes <= 0:
        raise ValueError(f'"cache_bytes" is {settings.cache_bytes}; give bytes, more than 0')
    if gateway:
        _check_private(settings.secret_file)
    return settings


def _gateway(url: object) -> str | None:
    if not url:
        return None
    parts = urllib.parse.urlsplit(str(url))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
        shown = "an address with a user in it" if parts.username else repr(str(url))
        raise ValueError(f'"gateway" is {shown}; write it as http://host:port or https://host:port')
    return str(url).rstrip("/")


def _check_private(secret: Path) -> None:
    """A copied secret that others can read opens the gateway's memory to them."""
    try:
        mode = secret.stat().st_mode
    except OSError as e:
        raise ValueError(f"the gateway's secret cannot be read: {e}; copy its vllm/secret here") from None
    if mode & 0o077:
        raise ValueError(f"others can read {secret}; chmod 600 it")
