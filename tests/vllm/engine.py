"""An engine in a process of its own, driven by its test through a pipe: vLLM as it is installed, with the connector, without HTTP.

The child holds one vllm.LLM with the engine core in process, so that a test can look at the block pool. Commands and results are
pickles: `generate` (a batch of requests, so that they share steps) and `call` (a function of this file's namesake module in the child)."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Ask:
    """One request."""

    tokens: list[int]
    ticket: str | None = None
    salt: str | None = None
    max_tokens: int = 1
    params: dict[str, Any] | None = None  # kv_transfer_params as they are, instead of a ticket


@dataclass
class Answer:
    tokens: list[int]
    logprobs: Any  # [n_generated][n_vocab] F32
    params: dict[str, Any] | None  # kv_transfer_params of the response
    cached: int
    finish: str | None = None

    @property
    def result(self) -> dict[str, Any]:
        return (self.params or {}).get("inferscale", {})


@dataclass
class Engine:
    """The parent's end."""

    model: str
    home: Path
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    policy: str = "recompute"

    def __enter__(self) -> Engine:
        extra = {"home": str(self.home), "library": os.environ["INFERSCALE_LIBRARY"], **self.settings}
        options = {
            "model": self.model, "max_model_len": 1024, "max_logprobs": -1, "enforce_eager": True, "disable_log_stats": False,
            "kv_transfer_config": {
                "kv_connector": "InferScaleConnector", "kv_connector_module_path": "inferscale_vllm.connector", "kv_role": "kv_both",
                "kv_load_failure_policy": self.policy, "kv_connector_extra_config": extra,
            },
            **self.options,
        }
        environment = {
            **os.environ, "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"), "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "INFO",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]),
        }
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log", prefix="inferscale-vllm-", delete=False)
        self.child = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("engine_child.py"))], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self.log, env=environment,
        )
        self.ask("start", options)
        return self

    def ask(self, command: str, *arguments: Any) -> Any:
        assert self.child.stdin and self.child.stdout
        data = pickle.dumps((command, arguments))
        self.child.stdin.write(struct.pack("<Q", len(data)) + data)
        self.child.stdin.flush()
        head = self.child.stdout.read(8)
        if len(head) < 8:
            raise RuntimeError(f"the engine ended; its log: {self.tail()}")
        ok, value = pickle.loads(self.child.stdout.read(struct.unpack("<Q", head)[0]))
        if not ok:
            raise RuntimeError(value)
        return value

    def generate(self, asks: list[Ask]) -> list[Answer]:
        return [Answer(**a) for a in self.ask("generate", [vars(a) for a in asks])]

    def one(self, tokens: list[int], ticket: str | None = None, **kw: Any) -> Answer:
        return self.generate([Ask(tokens, ticket, **kw)])[0]

    def run(self, code: str, **variables: Any) -> Any:
        """Python run in the child with `llm`, `scheduler`, `worker` (sides of the connector) in reach; `result` comes back."""
        return self.ask("run", code, variables)

    def tail(self) -> str:
        self.log.flush()
        return Path(self.log.name).read_text(errors="replace")[-4000:]

    def __exit__(self, *exc: object) -> None:
        if self.child.stdin:
            self.child.stdin.close()
        try:
            self.child.wait(30)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        self.log.close()
        if exc[0] is None:
            os.unlink(self.log.name)
