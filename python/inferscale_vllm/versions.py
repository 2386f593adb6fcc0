"""Which versions of vLLM this connector has been run with.

The connector interface of vLLM is experimental and changes between minor versions, and a connector that misreads it can put
wrong rows into somebody's cache. So an untested version is refused when the connector is loaded, not when it first fails."""

from __future__ import annotations

import re

from . import __version__

# minor version -> what was run with it
TESTED: dict[tuple[int, int], str] = {
    (0, 32): "0.32.0: CPU backend (runner V1), every test of tests/vllm; GPU runners V1 and V2: arguments read, not run",
}


class UnsupportedVersion(RuntimeError):
    """vLLM of a version that this connector has not been run with."""


def check(version: str, allow_untested: bool = False) -> None:
    """Raises UnsupportedVersion unless `version` is in the table, or untested ones were allowed in so many words."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found and (int(found[1]), int(found[2])) in TESTED:
        return
    if allow_untested:
        return
    known = ", ".join(f"{a}.{b}.x" for a, b in sorted(TESTED))
    raise UnsupportedVersion(
        f"inferscale-vllm {__version__} has been tested with vLLM {known}, and this is vLLM {version}; install one of these, or set "
        '"allow_untested_vllm": true in kv_connector_extra_config to use it at your own risk'
    )
