"""The child of engine.py: reads commands from standard input, answers on standard output; vLLM's own prints go to standard error."""

from __future__ import annotations

import os
import pickle
import struct
import sys
import traceback
from typing import Any

OUT = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)


class Child:
    def start(self, options: dict[str, Any]) -> None:
        from support.registry import know
        from vllm import LLM

        know(options["model"])
        self.llm = LLM(**options)
        self.core = self.llm.llm_engine.engine_core.engine_core
        self.scheduler = self.core.scheduler

    def generate(self, asks: list[dict[str, Any]]) -> list[dict[str, Any]]:
        import numpy as np
        from vllm import SamplingParams

        prompts, params = [], []
        for ask in asks:
            prompt: dict[str, Any] = {"prompt_token_ids": ask["tokens"]}
            if ask["salt"] is not None:
                prompt["cache_salt"] = ask["salt"]
            prompts.append(prompt)
            extra = ask["params"] or ({"inferscale": ask["ticket"]} if ask["ticket"] is not None else None)
            params.append(
                SamplingParams(
                    temperature=0, max_tokens=ask["max_tokens"], logprobs=-1, flat_logprobs=True, detokenize=False, ignore_eos=True,
                    extra_args={"kv_transfer_params": extra} if extra else None,
                )
            )
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        results = []
        for output in outputs:
            completion = output.outputs[0]
            rows = [_row(np, completion.logprobs, i) for i in range(len(completion.token_ids))]
            results.append(
                {"tokens": list(completion.token_ids), "logprobs": np.stack(rows) if rows else None,
                 "params": output.kv_transfer_params, "cached": output.num_cached_tokens or 0, "finish": completion.finish_reason}
            )
        return results

    def run(self, code: str, variables: dict[str, Any]) -> Any:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        scope = {
            "llm": self.llm, "core": self.core, "engine_scheduler": self.scheduler, "scheduler": self.scheduler.connector.scheduler_side,
            "worker": get_kv_transfer_group().worker_side, "result": None, **variables,
        }
        exec(code, scope)  # noqa: S102 - the test's own code
        return scope["result"]


def _row(np: Any, flat: Any, step: int) -> Any:
    """One step's log-probabilities by token id."""
    begin, end = flat.start_indices[step], flat.end_indices[step]
    ids = np.asarray(flat.token_ids[begin:end])
    row = np.full(ids.max() + 1, -np.inf, np.float32)
    row[ids] = flat.logprobs[begin:end]
    return row


def main() -> None:
    child = Child()
    while True:
        head = sys.stdin.buffer.read(8)
        if len(head) < 8:
            break
        command, arguments = pickle.loads(sys.stdin.buffer.read(struct.unpack("<Q", head)[0]))
        try:
            answer: tuple[bool, Any] = True, getattr(child, command)(*arguments)
        except Exception:  # noqa: BLE001 - the parent raises it
            answer = False, traceback.format_exc()
        data = pickle.dumps(answer)
        OUT.write(struct.pack("<Q", len(data)) + data)
        OUT.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
