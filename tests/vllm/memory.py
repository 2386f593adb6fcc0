"""What a gateway does, for the connector's tests: the secret, tickets, segments put where the connector looks for them; and requests with
tickets for the engine in this process."""
import contextlib
import copy
import ctypes
import itertools
import os
import secrets
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy
from support import ground

sys.path.insert(0, ground.PACKAGE)

from inferscale_vllm import ticket as tickets  # noqa: E402
from inferscale_vllm.library import load  # noqa: E402
from inferscale_vllm.ticket import StoredPart, Ticket  # noqa: E402

NOBODY = bytes(32)
number = itertools.count()


def connector(home, policy="recompute", **extra):
    """kv_transfer_config with this package's connector."""
    return {"kv_connector": "InferScaleConnector", "kv_connector_module_path": "inferscale_vllm.connector", "kv_role": "kv_both",
            "kv_load_failure_policy": policy, "kv_connector_extra_config": dict({"home": str(home), "library": ground.LIBRARY}, **extra)}


class Answer:
    """One request's output: log-probabilities [step][vocabulary] and what the connector said of it."""

    def __init__(self, output):
        done = output.outputs[0]
        self.tokens, self.finish, self.cached = list(done.token_ids), done.finish_reason, output.num_cached_tokens or 0
        self.rows = [_row(done.logprobs, i) for i in range(len(self.tokens))]
        self.said = (output.kv_transfer_params or {}).get("inferscale")


def _row(flat, step):
    begin, end = flat.start_indices[step], flat.end_indices[step]
    ids = numpy.asarray(flat.token_ids[begin:end])
    row = numpy.full(ids.max() + 1, numpy.nan)
    row[ids] = flat.logprobs[begin:end]
    assert not numpy.isnan(row).any()
    return row


def difference(a, b):
    """Largest difference of the log-probabilities of the whole vocabulary, over all steps; the steps must be as many and equal tokens."""
    assert len(a.rows) == len(b.rows)
    return max(float(numpy.abs(x - y).max()) for x, y in zip(a.rows, b.rows))


def ask(engine, tokens, ticket=None, max_tokens=1, salt=None, params=None, lora=None):
    return batch(engine, [(tokens, ticket)], max_tokens, salt, params, lora)[0]


def batch(engine, requests, max_tokens=1, salt=None, params=None, lora=None):
    """[(token ids, ticket or None)], all at once, so that they share steps. lora: a LoRARequest for all, or a list with None where there is none."""
    from vllm import SamplingParams
    prompts, wanted = [], []
    for tokens, ticket in requests:
        prompts.append(dict({"prompt_token_ids": list(tokens)}, **({"cache_salt": salt} if salt else {})))
        extra = params or ({"inferscale": ticket} if ticket is not None else None)
        wanted.append(SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False, logprobs=-1,
                                     flat_logprobs=True, extra_args={"kv_transfer_params": copy.deepcopy(extra)} if extra else None))
    return [Answer(o) for o in engine.llm.generate(prompts, wanted, use_tqdm=False, lora_request=lora)]


class Gateway:
    """A store's folder with a secret, and the tickets that it signs."""

    def __init__(self, home):
        self.home, self.library = Path(home), load(ground.LIBRARY)
        self.secret, self.fingerprint = secrets.token_bytes(32), NOBODY
        for folder in ("vllm/spool", "vllm/heads", "vault"):
            (self.home / folder).mkdir(parents=True, mode=0o700)
        secret = self.home / "vllm/secret"
        secret.touch(0o600)
        secret.write_text(self.secret.hex() + "\n")

    def ticket(self, op, tokens, **fields):
        base = Ticket(op=op, id=secrets.token_bytes(16), fingerprint=self.fingerprint, tag=NOBODY, epoch=1, salt=secrets.token_bytes(32),
                      expires=int(time.time()) + 600, n_prompt=len(tokens), prompt_hash=tickets.prompt_hash(self.library, tokens))
        return replace(base, **fields)

    def sign(self, ticket, secret=None):
        return tickets.write(self.library, ticket, secret or self.secret)

    def describe(self, engine):
        said = ask(engine, [1], self.sign(self.ticket(tickets.DESCRIBE, [1], fingerprint=NOBODY))).said
        assert said["ok"], said
        self.fingerprint = bytes.fromhex(said["fingerprint"]) if said["fingerprint"] else NOBODY
        return said

    def inject(self, tokens, parts, **fields):
        return self.sign(self.ticket(tickets.INJECT, tokens, parts=tuple(parts), **fields))

    def capture_ticket(self, tokens, first=0, n=None, **fields):
        return self.ticket(tickets.CAPTURE, tokens, capture_from=first, capture_n=len(tokens) - first if n is None else n, **fields)

    def spool(self, ticket):
        return self.home / "vllm/spool" / ("%s.0.0" % ticket.id.hex())

    def capture(self, engine, tokens, first=0, n=None, **fields):
        """Captures and keeps; the segment's name, and the answer."""
        ticket = self.capture_ticket(tokens, first, n, **fields)
        answer = ask(engine, tokens, self.sign(ticket))
        assert answer.said["ok"], answer.said
        return self.keep(self.spool(ticket)), answer

    def keep(self, spool, where=0, name=None):
        """A worker's file under the name of a stored segment: what one worker of one writes is whole."""
        name = name or secrets.token_bytes(32)
        target = self.path(name, where)
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.copyfile(spool, str(target) + ".tmp")
        os.rename(str(target) + ".tmp", target)
        return name

    def path(self, name, where=0):
        return StoredPart(name, where, 0, 1, 0).path(self.home)


def part(name, begin, n, pos, where=0):
    return StoredPart(name, where, begin, n, pos)


def prompt(n, seed=1, low=3, high=259):
    return [int(t) for t in numpy.random.default_rng(seed).integers(low, high, n)]


@contextlib.contextmanager
def engine(folder, model, dtype="float32", eager=True, extra=None, policy="recompute", **settings):
    """An engine with the connector on a home of its own, and the gateway of that home, which has asked it to describe itself."""
    from support.engine import Engine
    home = folder / ("home%d" % next(number))
    home.mkdir()
    gateway = Gateway(home)
    with Engine(model, dtype, eager, kv_transfer_config=connector(home, policy, **(extra or {})), **settings) as vllm:
        gateway.said = gateway.describe(vllm)
        yield vllm, gateway


# ---- Rows of a segment, to make wrong ones of ----------------------------------------------------------------------------------------


def rows_of(gateway, path, shape):
    """[plane] -> F32 [token][head][dim] of a segment without position, by the library."""
    dll = gateway.library.dll
    segment = ctypes.c_void_p()
    assert dll.inferscale_segment_open(str(path).encode(), ctypes.byref(segment)) == 0, gateway.library.error()
    n = dll.inferscale_segment_tokens(segment)
    out = []
    for plane, (layer, is_v) in enumerate(shape.planes()):
        dim = layer.v_dim if is_v else layer.k_dim
        rows = numpy.zeros((n, layer.total_heads, dim), numpy.float32)
        gateway.library.check(dll.inferscale_segment_read(segment, plane, 0, n, 0, layer.total_heads, 0, 0, rows.ctypes.data_as(ctypes.c_void_p),
                                                          ctypes.c_size_t(layer.total_heads * dim), ctypes.c_size_t(dim)))
        if not is_v and layer.rope is not None:
            rows = turned(layer, rows, -numpy.arange(n))
            rows[..., layer.rot_begin:layer.rot_begin + layer.rot_dim] /= layer.rope.mscale  # YaRN's, which reading at positions puts on
        out.append(rows)
    dll.inferscale_segment_close(segment)
    return out


def turned(layer, rows, by):
    """Keys turned by so many positions each."""
    if layer.rope is None:
        return rows
    begin, half, angle = layer.rot_begin, layer.rot_dim // 2, numpy.asarray(by)[:, None] * numpy.asarray(layer.rope.w)[None, :]
    end = begin + layer.rot_dim
    first, second = (slice(begin, end, 2), slice(begin + 1, end, 2)) if layer.rope.adjacent else (slice(begin, begin + half), slice(begin + half, end))
    cos, sin, out = numpy.cos(angle)[:, None], numpy.sin(angle)[:, None], rows.astype(numpy.float64)
    a, b = out[..., first].copy(), out[..., second].copy()
    out[..., first], out[..., second] = a * cos - b * sin, b * cos + a * sin
    return out.astype(numpy.float32)
