"""vLLM inside this process: quicker than a server by its start (2 s a tiny model once vLLM is imported), and its parts can be reached. One
at a time: an engine is closed before the next one is opened."""
import gc
import os
import sys

import numpy

from support import ground, registry

ground.here()

import torch  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory  # noqa: E402
from vllm.utils.gc_utils import freeze_gc_heap  # noqa: E402
from vllm.v1.worker.cpu_worker import CPUWorker  # noqa: E402

# A worker of a GPU freezes the heap when it has warmed up, before the handshake with its connector; one of the CPU does not. Engines of
# this process do as those of a GPU, unless this is "0"; the servers of support/process.py are left as they are.
FREEZE = os.environ.get("INFERSCALE_TEST_FREEZE", "1") != "0"
_warm_up = CPUWorker.compile_or_warm_up_model


def _warm_up_as_on_a_gpu(worker):
    times = _warm_up(worker)
    if FREEZE:
        freeze_gc_heap()
    return times


CPUWorker.compile_or_warm_up_model = _warm_up_as_on_a_gpu


def connector(class_name, module, policy="recompute", **extra):
    """kv_transfer_config for Engine, and for a server as JSON."""
    return {"kv_connector": class_name, "kv_connector_module_path": module, "kv_role": "kv_both", "kv_load_failure_policy": policy,
            "kv_connector_extra_config": extra}


class Engine:
    def __init__(self, model, dtype="float32", eager=True, **settings):
        settings = dict({"max_model_len": 1024, "max_logprobs": -1, "kv_cache_memory_bytes": 64 << 20, "seed": 0}, **settings)
        registry.know(model)
        torch._dynamo.config.disable, os.environ["TORCH_COMPILE_DISABLE"] = eager, str(int(eager))  # vLLM looks at the one, torch at the other
        self.llm = LLM(model=str(model), dtype=dtype, enforce_eager=eager, **settings)
        self.core = self.llm.llm_engine.engine_core.engine_core

    @property
    def scheduler(self):
        return self.core.scheduler

    @property
    def runner(self):
        """The worker's model runner."""
        worker = self.core.model_executor.driver_worker
        return getattr(worker, "worker", worker).model_runner

    def run(self, prompts, max_tokens=1, salt=None, **params):
        """Greedy; prompts: lists of token ids (one at a time or a batch). The requests' outputs. salt: one for all, or a list."""
        many = bool(prompts) and not isinstance(prompts[0], int)
        prompts = prompts if many else [prompts]
        salts = salt if isinstance(salt, list) else [salt] * len(prompts)
        inputs = [dict({"prompt_token_ids": list(p)}, **({"cache_salt": s} if s else {})) for p, s in zip(prompts, salts)]
        wanted = SamplingParams(**dict({"temperature": 0, "max_tokens": max_tokens, "ignore_eos": True, "detokenize": False}, **params))
        return self.llm.generate(inputs, wanted, use_tqdm=False)

    def next_logprobs(self, prompt, max_tokens=1, **more):
        """[max_tokens][vocabulary] of what follows one prompt, in full, and the request's output."""
        output = self.run(prompt, max_tokens, logprobs=-1, **more)[0]
        return numpy.stack([dense(r) for r in output.outputs[0].logprobs]), output

    def prompt_logprobs(self, prompt, **more):
        """[tokens - 1][vocabulary]; row i is of the token behind prompt[:i + 1]. Nothing cached or injected is used for it."""
        output = self.run(prompt, prompt_logprobs=-1, **more)[0]
        return numpy.stack([dense(r) for r in output.prompt_logprobs[1:]])

    def close(self):
        if self.llm is None:
            return
        self.llm.llm_engine.engine_core.shutdown()
        self.llm = self.core = None
        gc.collect()
        if not torch._dynamo.config.disable:
            torch._dynamo.reset()
        cleanup_dist_env_and_memory()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def dense(by_token):
    values = numpy.full(len(by_token), numpy.nan)
    for token, entry in by_token.items():
        values[token] = entry.logprob
    if numpy.isnan(values).any():
        sys.exit("the log-probabilities are not those of the whole vocabulary")
    return values
