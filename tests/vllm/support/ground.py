"""Where things are, from the environment that tests/vllm.sh sets, and the environment that every vLLM here runs in."""
import os
import socket
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BUILD = os.environ.get("INFERSCALE_PLUGINS", os.path.join(ROOT, "build/release"))
BIN = os.environ.get("INFERSCALE_BIN", os.path.join(BUILD, "inferscale"))
LIBRARY = os.environ.get("INFERSCALE_LIBRARY", os.path.join(BUILD, "libinferscale.so.0"))
PACKAGE = os.path.join(ROOT, "python")  # inferscale_vllm

# One thread, bound to no core: two servers would be bound to the same one. Without torch.compile: vLLM compiles small functions of its sampler
# even when it is eager, seconds each; who wants inductor sets TORCH_COMPILE_DISABLE to 0 and gives --no-enforce-eager.
VLLM = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "PYTHONWARNINGS": "ignore", "INFERSCALE_LIBRARY": LIBRARY,
    "INFERSCALE_PLUGINS": BUILD, "TOKENIZERS_PARALLELISM": "false", "TORCH_COMPILE_DISABLE": "1",
}


def smollm2():
    """The default model as vLLM reads it."""
    return needed("INFERSCALE_VLLM_MODEL")


def needed(name):
    value = os.environ.get(name)
    if not value:
        raise RuntimeError("%s is not set: run the tests by `make test-vllm`, or source build/vllm.env" % name)
    return value


def environment(**more):
    """Of a process that runs vLLM with the connector's package in reach."""
    env = dict(os.environ, **VLLM)
    env["PYTHONPATH"] = os.pathsep.join([PACKAGE] + [p for p in env.get("PYTHONPATH", "").split(os.pathsep) if p])
    env.update({k: str(v) for k, v in more.items()})
    return env


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def here():
    """Makes this process one that may run vLLM itself (support/engine.py); before vllm is imported."""
    os.environ.update(VLLM, VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL=os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"))
    if PACKAGE not in sys.path:
        sys.path.insert(0, PACKAGE)
