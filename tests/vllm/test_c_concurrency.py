"""Many requests at once, each with a memory of its own: in one step, when blocks run out and requests are put off, and when a client goes away
while its rows are being loaded. In float32, where the same prompt gives the same log-probabilities however it is batched."""
import contextlib
import secrets

import numpy
import pytest
from memory import Gateway, ask, batch, connector, difference, part

USERS, HEADER, QUESTION, BLOCK = 8, 24, 9, 32
CLOSE = 1e-4


class Users:
    """Prompts of several users: one header, a memory and a question of each. Their rows are captured from the engine itself, header and memory
    in one pass, so that what is injected is exact and the plain answer is what must come out."""

    def __init__(self, gateway, engine, seed):
        random = numpy.random.default_rng(seed)

        def draw(n):
            return [int(t) for t in random.integers(3, 259, n)]
        self.gateway, header = gateway, draw(HEADER)
        self.prompts, self.stored, self.names, self.salts = [], [], [], []
        for _ in range(USERS):
            memory = draw(int(random.integers(70, 140)))
            self.prompts.append(header + memory + draw(QUESTION))
            self.stored.append(HEADER + len(memory))
            self.names.append(gateway.capture(engine, self.prompts[-1], 0, self.stored[-1])[0])
            self.salts.append(secrets.token_bytes(32))

    def ticket(self, i):
        return self.gateway.inject(self.prompts[i], [part(self.names[i], 0, self.stored[i], 0)], salt=self.salts[i])

    def together(self, engine, max_tokens):
        return batch(engine, [(p, self.ticket(i)) for i, p in enumerate(self.prompts)], max_tokens)

    def plain(self, engine, max_tokens):
        """Each alone, computed in full: under a salt of its own nothing is cached."""
        return [ask(engine, p, max_tokens=max_tokens, salt="plain-%d" % i) for i, p in enumerate(self.prompts)]


class Watch:
    """How many requests ran in one step, and how many were put off."""

    def __init__(self, scheduler):
        self.together = self.preempted = 0
        schedule, preempt = scheduler.schedule, scheduler._preempt_request

        def watched_schedule(*a, **k):
            out = schedule(*a, **k)
            self.together = max(self.together, len(out.num_scheduled_tokens))
            return out

        def watched_preempt(*a, **k):
            self.preempted += 1
            return preempt(*a, **k)
        scheduler.schedule, scheduler._preempt_request = watched_schedule, watched_preempt


@contextlib.contextmanager
def ground(path, model, seed, **settings):
    from support.engine import Engine
    home = path / "home"
    home.mkdir()
    gateway = Gateway(home)
    with Engine(model, kv_transfer_config=connector(home), block_size=BLOCK, **settings) as engine:
        assert gateway.describe(engine)["can_inject"]
        yield engine, Users(gateway, engine, seed)


def free_blocks(engine):
    return engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


def same(got, expected):
    """Every token, and every step's distribution over the whole vocabulary."""
    for a, b in zip(got, expected, strict=True):
        assert a.tokens == b.tokens
        assert difference(a, b) <= CLOSE


def test_eight_memories_in_one_step(dummy, tmp_path):
    with ground(tmp_path, dummy("llama"), 11) as (engine, users):
        plain = users.plain(engine, 4)
        watch = Watch(engine.scheduler)
        first = users.together(engine, 4)
        again = users.together(engine, 4)  # each one's own blocks are a local hit now; the rest is injected again
        same(first, plain)
        same(again, plain)
        assert watch.together == USERS
        assert [a.said["injected"] for a in first] == users.stored
        for a, prompt, stored in zip(again, users.prompts, users.stored):
            assert a.said["local"] == (len(prompt) - 1) // BLOCK * BLOCK, a.said
            assert a.said["injected"] == max(0, stored - a.said["local"]), a.said
        # The comparison would notice a mix-up: two users' answers are far apart.
        assert min(float(numpy.abs(a.rows[0] - b.rows[0]).max()) for i, a in enumerate(plain) for b in plain[:i]) > 100 * CLOSE


def test_requests_that_are_put_off_come_to_the_same_answers(dummy, tmp_path):
    # Eight prompts of 103 to 173 tokens and 64 more each want 56 blocks or so: most start, not all can stay to the end.
    with ground(tmp_path, dummy("llama"), 12, num_gpu_blocks_override=42, max_model_len=256) as (engine, users):
        plain = users.plain(engine, 64)
        watch, free = Watch(engine.scheduler), free_blocks(engine)
        together = users.together(engine, 64)
        assert watch.preempted > 0 and watch.together > 1
        same(together, plain)
        assert free_blocks(engine) == free


def test_a_client_that_goes_away_during_a_load(dummy, tmp_path):
    """The abort comes while the rows are written, as it does from a server's input thread; vLLM looks at it when the step is over."""
    from vllm import SamplingParams
    from vllm.distributed.kv_transfer import get_kv_transfer_group
    with ground(tmp_path, dummy("llama"), 13) as (engine, users):
        plain, free, llm = users.plain(engine, 4), free_blocks(engine), engine.llm.llm_engine
        group, loads = get_kv_transfer_group(), []
        load = group.start_load_kv

        def going_away(*a, **k):
            load(*a, **k)
            loads.append(list(engine.scheduler.requests))
            engine.core.aborts_queue.put(loads[-1])
        for n, i in enumerate((0, 1, 0), 1):
            group.start_load_kv = going_away
            llm.add_request("gone-%d" % n, {"prompt_token_ids": users.prompts[i]}, SamplingParams(
                temperature=0, max_tokens=8, ignore_eos=True, extra_args={"kv_transfer_params": {"inferscale": users.ticket(i)}}))
            llm.step()
            group.start_load_kv = load
            assert len(loads) == n and len(loads[-1]) == 1
            assert not engine.scheduler.requests
            llm.abort_request(["gone-%d" % n])
            assert not llm.has_unfinished_requests() and free_blocks(engine) == free
        same(users.together(engine, 4), plain)
        # What it left in the cache is under its salt: the same prompt without a ticket is computed, and exactly.
        exact = ask(engine, users.prompts[0], max_tokens=4)
        assert exact.cached == 0
        same([exact], plain[:1])
