"""`inferscale-vllm serve MODEL [--home DIR] [vllm options...]`: vLLM's own server with the connector and the settings that it needs.

`--print` shows the plain command instead, for those who start vLLM themselves. Other options go to vLLM as they are."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys

from . import settings
from .library import load

POLICY = "recompute"  # a load that fails costs time, not the answer


def transfer_config(home: str | None, library: str | None, policy: str = POLICY, extra: dict[str, object] | None = None) -> str:
    """The value of --kv-transfer-config."""
    settings = {**({"home": home} if home else {}), **({"library": library} if library else {}), **(extra or {})}
    return json.dumps(
        {
            "kv_connector": "InferScaleConnector", "kv_connector_module_path": "inferscale_vllm.connector", "kv_role": "kv_both",
            "kv_load_failure_policy": policy, "kv_connector_extra_config": settings,
        }
    )


def command(
    model: str, home: str | None, library: str | None, policy: str, rest: list[str], extra: dict[str, object] | None = None
) -> list[str]:
    if any(option.split("=")[0] == "--kv-transfer-config" for option in rest):
        raise SystemExit("inferscale-vllm: --kv-transfer-config is made here; give its parts as --home, --library, --policy")
    return [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model,
        "--kv-transfer-config", transfer_config(home, library, policy, extra), "--enable-prompt-tokens-details", *rest,
    ]


def _elsewhere(given: argparse.Namespace) -> dict[str, object]:
    """The settings for a gateway on another host."""
    extra = {
        "secret_file": given.secret, "cache_bytes": given.cache_bytes, "gateway_ca": given.gateway_ca, "fetch_wait_s": given.fetch_wait,
    }
    extra = {name: value for name, value in extra.items() if value is not None}
    if not given.gateway:
        if extra or given.cache:
            raise SystemExit("inferscale-vllm: --secret, --cache, --cache-bytes, --fetch-wait and --gateway-ca go with --gateway")
        return {}
    if given.home or not given.cache or not given.secret:
        raise SystemExit("inferscale-vllm: with --gateway give --secret FILE and --cache DIR, and no --home: the store's folder is the gateway's")
    return {"gateway": given.gateway, **extra}


def _check(full: list[str]) -> None:
    """What the connector would refuse, now and not minutes later, when vLLM has loaded its model."""
    try:
        load(settings.read(json.loads(full[full.index("--kv-transfer-config") + 1])["kv_connector_extra_config"]).library)
    except (RuntimeError, ValueError) as e:
        raise SystemExit(f"inferscale-vllm: {e}") from None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="inferscale-vllm", description="vLLM with InferScale's memory.", allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    serve = verbs.add_parser(
        "serve", help="start vLLM's server with the connector", allow_abbrev=False,
        epilog="Other options are vLLM's: --port, --tensor-parallel-size, --max-model-len, ...",
    )
    serve.add_argument("model", metavar="MODEL")
    serve.add_argument("--home", help="the store's folder, as the gateway's --home (default: $INFERSCALE_HOME, else the usual one)")
    serve.add_argument("--gateway", metavar="URL", help="the gateway, where its folder is not on this host: http(s)://HOST:PORT")
    serve.add_argument("--secret", metavar="FILE", help="with --gateway: a copy of its HOME/vllm/secret, mode 0600")
    serve.add_argument("--cache", metavar="DIR", help="with --gateway: a folder of this server's own for what it fetches")
    serve.add_argument("--cache-bytes", type=int, metavar="N", help="with --gateway: how large the folder may grow (default: 8 GiB)")
    serve.add_argument("--fetch-wait", type=float, metavar="S", help="with --gateway: a request waits so long for its stored parts (default: 5)")
    serve.add_argument("--gateway-ca", metavar="FILE", help="with an https gateway: PEM of its certificate's signer (default: the system's)")
    serve.add_argument("--library", help="libinferscale.so (default: $INFERSCALE_LIBRARY, else where the loader finds it)")
    serve.add_argument("--policy", choices=("recompute", "fail"), default=POLICY, help="what a failed load does (default: recompute)")
    serve.add_argument("--print", action="store_true", dest="only_print", help="print the command instead of running it")
    given, rest = parser.parse_known_args(arguments)
    full = command(given.model, given.cache or given.home, given.library, given.policy, rest, _elsewhere(given))
    if given.only_print:
        print(shlex.join(["python", *full[1:]]))
        return 0
    _check(full)
    os.execv(full[0], full)
    return 1  # not reached: the process is vLLM's now


if __name__ == "__main__":
    raise SystemExit(main())
