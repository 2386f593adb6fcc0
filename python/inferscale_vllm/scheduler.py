"""The scheduler's side: which requests carry a valid ticket, what is injected for them, what becomes of them.

vLLM calls these from its scheduling loop, so nothing here waits for anything but small file heads: what comes from a gateway on another
host is fetched by threads (fetch.py). A request without a valid
ticket is computed as if this connector were not there, except that a cache salt of its own cannot be one of ours."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger

from . import ticket as tickets
from .blocks import BlockBook
from .bring import COMING
from .describe import Describer
from .fetch import Fetcher
from .library import LibraryError, ids_array, load
from .metrics import InferScaleStats
from .model import Model, ModelShape, WorkerReport, join
from .orders import CaptureOrder, Identity, LoadOrder, StepOrders, StepResult
from .settings import Settings
from .state import RequestState
from .ticket import Secret, StoredPart, Ticket

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = init_logger("vllm.inferscale")

RECENT = 65_536  # requests that STATUS remembers, and segments whose failure is remembered
NAMES = 262_144  # segments whose owner is remembered
REASONS = {"NOTFOUND": "missing", "CORRUPT": "torn", "FOREIGN": "model", "INVALID": "tokens"}


class SchedulerSide:
    def __init__(self, config: VllmConfig, kv_cache_config: KVCacheConfig, settings: Settings) -> None:
        self.config, self.settings = config, settings
        # Where the next step is scheduled before this one's failures are known, a request waits for its load in a step of its own (vLLM's
        # asynchronous loads): one that fails in the step that computes on it ends the engine, or is not noticed.
        self.ahead = bool(config.scheduler_config.async_scheduling) or config.parallel_config.pipeline_parallel_size > 1
        self.groups = len(kv_cache_config.kv_cache_groups)
        self.block_size = int(kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size) if self.groups else 0
        self.library = load(settings.library)
        self.secret = Secret(settings.secret_file)
        self.stats = InferScaleStats()
        self.shape: ModelShape | None = None
        self.model: Model | None = None
        self.why_not = "the workers have not reported yet"
        self.describer = Describer(config, settings, self.library)
        self.live: dict[str, RequestState] = {}
        self.recent: OrderedDict[bytes, RequestState] = OrderedDict()
        self.failed: OrderedDict[bytes, tuple[Identity, str, str]] = OrderedDict()
        self.min_epoch: dict[bytes, int] = {}
        self.loads: dict[str, LoadOrder] = {}
        self.over: list[str] = []
        self.forget: list[bytes] = []
        self.names: OrderedDict[bytes, dict[bytes, None]] = OrderedDict()  # whose memory -> segments that its tickets named
        self.n_names = 0  # in all of them
        self.book = BlockBook()
        self.fetcher = Fetcher(settings) if settings.gateway else None

    # ---- the model -------------------------------------------------------------------------------------------------------

    def set_reports(self, reports: Sequence[WorkerReport]) -> None:
        """All workers have said what they hold."""
        self.shape, self.why_not = join(reports)
        if self.shape is not None and self.groups != 1:
            self.shape, self.why_not = None, f"{self.groups} groups of KV caches (a hybrid model)"
        if self.shape is not None:
            try:
                self.model = Model(self.library, self.shape, self.settings.home, self.settings.ram_bytes, None)
            except LibraryError as e:
                self.shape, self.why_not = None, str(e)
        if self.why_not:
            logger.warning("InferScale: nothing is injected: %s", self.why_not)
        self.describer.start(reports, self.shape, self.model, self.why_not)

    # ---- a request comes -------------------------------------------------------------------------------------------------

    def on_new_request(self, request: Request) -> None:
        params = request.kv_transfer_params
        text = params.pop("inferscale", None) if isinstance(params, dict) else None
        if isinstance(params, dict) and not params:
            request.kv_transfer_params = None
        if text is None:
            self._ordinary(request)
            return
        found, reason, why = self._verify(request, text)
        if reason:
            self._ordinary(request)
            state = self.live[request.request_id] = RequestState(None, request, reason, why)
            if found is not None and found.op in (tickets.INJECT, tickets.CAPTURE) and found.id not in self.recent:
                self._keep(found.id, state)  # it is ours, though not for this: STATUS tells why
            self.stats.failed(reason)
            logger.info("InferScale: a ticket was refused (%s): %s", reason, why)
            return
        assert found is not None
        _salt(request, "inferscale:" + found.salt.hex())
        state = RequestState(found, request)
        self.live[request.request_id] = state
        self.stats.ticket(tickets.OP_NAMES[found.op])
        if found.op in (tickets.INJECT, tickets.CAPTURE):
            self._note_names(found)
            self._keep(found.id, state)
            if self.fetcher is not None:
                state.wait = self.fetcher.begin(found.tag, found.epoch, found.parts)
        elif found.op == tickets.REVOKE:
            self._revoke(found, state)
        elif found.op == tickets.DESCRIBE and self.fetcher is not None:
            self.fetcher.scrub()  # a gateway that has just begun, or has been away: it, or we, may have missed a REVOKE

    def _keep(self, ticket_id: bytes, state: RequestState) -> None:
        self.recent[ticket_id] = state
        while len(self.recent) > RECENT:
            self.recent.popitem(last=False)

    def _ordinary(self, request: Request) -> None:
        """A request that nobody signed: its blocks are ordinary ones, and its salt cannot be one that we make."""
        if request.cache_salt is not None:
            _salt(request, "client:" + request.cache_salt)

    def _verify(self, request: Request, text: object) -> tuple[Ticket | None, str, str]:
        """(ticket, "", ""), or (the ticket if we signed it, reason code, sentence): it is not to be used."""
        secret = self.secret.value()
        if secret is None:
            logger.warning("InferScale: there is no secret in %s", self.secret.path)
            return None, "unsigned", "there is no secret of a gateway here"
        if not isinstance(text, str):
            return None, "unsigned", "a ticket is a string"
        try:
            found = tickets.read(self.library, text, secret)
        except LibraryError as e:
            return None, {"STALE": "expired", "PARSE": "unsigned", "DENIED": "unsigned"}.get(e.status, "failed"), str(e)
        ids = request.prompt_token_ids
        if ids is None or request.mm_features or len(ids) != found.n_prompt:
            return found, "prompt", "the ticket is for another prompt"
        if tickets.prompt_hash(self.library, ids) != found.prompt_hash:
            return found, "prompt", "the ticket is for another prompt"
        if found.op not in tickets.OP_NAMES:
            return found, "failed", f"operation {found.op} is not known to this version"
        if found.op not in (tickets.INJECT, tickets.CAPTURE):
            return found, "", ""
        return self._verify_model(request, found)

    def _verify_model(self, request: Request, found: Ticket) -> tuple[Ticket, str, str]:
        if self.settings.disabled:
            return found, "disabled", "the connector is set to disabled"
        if self.shape is None:
            return found, "mla" if "latent" in self.why_not else "layout", self.why_not
        if found.fingerprint != self.shape.fingerprint or request.lora_request is not None:
            return found, "model", "the ticket is for another model" if request.lora_request is None else "a LoRA is another model"
        if self._outdated(found):
            return found, "epoch", "this memory has been changed since"
        if found.op == tickets.CAPTURE and found.id in self.recent:
            return found, "expired", "these rows were captured before"  # sent again by somebody else: nobody would take the file away
        return found, "", ""

    def _outdated(self, found: Ticket) -> bool:
        return found.tag != tickets.NOBODY and found.epoch < self.min_epoch.get(found.tag, 0)

    # ---- what is injected ------------------------------------------------------------------------------------------------

    def matched(self, request: Request, local: int) -> int | None:
        """Tokens that stored rows give directly behind `local` cached ones. Asked any number of times; changes nothing. None: not known yet,
        ask again."""
        state = self.live.get(request.request_id)
        if state is not None and self.fetcher is not None:
            if state.wait is not None and not self.fetcher.ready(state.wait):
                return None
            if state.forgetting is not None and not state.forgetting.over():
                return None
        if state is None or state.ticket is None or state.ticket.op not in (tickets.INJECT, tickets.CAPTURE) or state.gave_up:
            return 0
        state.local = local
        return sum(part.n_tokens for part in self._match(state, local))

    def _match(self, state: RequestState, local: int) -> list[StoredPart]:
        """The parts that cover local, local + 1, ... without a gap, up to the last token but one (a capture: up to its span)."""
        found = state.ticket
        assert found is not None
        limit = min(found.n_prompt - 1, found.capture_from) if found.op == tickets.CAPTURE else found.n_prompt - 1
        out: list[StoredPart] = []
        at = local
        state.reason, state.why = "", ""
        if self._outdated(found):
            state.reason, state.why = "epoch", "this memory has been changed since"
            return out
        for part in found.parts:
            if part.end <= at:
                continue
            if at >= limit:
                break
            if part.pos > at:
                state.reason, state.why = "gap", f"tokens {at} to {part.pos} before the next stored part are not in the cache"
                break
            state.reason, state.why = self._check(state, part)
            if state.reason:
                self._look_on(state, part)
                break
            end = min(part.end, limit)
            out.append(StoredPart(part.name, part.where, part.begin + at - part.pos, end - at, at))
            at = end
        return out

    def _look_on(self, state: RequestState, failed: StoredPart) -> None:
        """Behind the first part that fails nothing is injected; that the gateway hears of all that are bad at once, they are looked at."""
        assert state.ticket is not None
        for part in state.ticket.parts:
            if part.pos > failed.pos:
                self._check(state, part)

    def _check(self, state: RequestState, part: StoredPart) -> tuple[str, str]:
        """Is the part usable? ("", "") or (reason, sentence); asked of the file once a request."""
        known = state.checked.get((part.name, part.pos))
        if known is not None:
            return known
        assert self.model is not None
        result = ("", "")
        bad = self.failed.get(part.name)
        away = self.fetcher.why(part) if self.fetcher is not None else ("", "")
        if away[0]:
            result = away
        elif bad is not None and bad[0] == identity_of(part.path(self.settings.home)):
            result = bad[1], bad[2]
        else:
            if state.prompt is None:
                state.prompt = ids_array(state.request.prompt_token_ids)
            try:
                self.model.check(part, state.prompt)
            except LibraryError as e:
                result = REASONS.get(e.status, "failed"), str(e)
                if result[0] != "tokens":  # which is this prompt's fault, and says nothing about the file
                    self._remember(part.name, part.where, identity_of(part.path(self.settings.home)), *result)
        if result[0]:
            self.stats.failed(result[0])
            if result[0] not in ("fetch", "epoch"):  # which say nothing about the gateway's file
                state.blame(part.where, part.name, result[0])
        state.checked[(part.name, part.pos)] = result
        return result

    def _remember(self, name: bytes, where: int, identity: Identity, reason: str, why: str) -> None:
        if self.fetcher is not None:
            self.fetcher.spoilt((where, name), reason, why)
        self.failed[name] = (identity, reason, why)
        while len(self.failed) > RECENT:
            self.failed.popitem(last=False)

    def allocated(self, request: Request, block_ids: list[int], n_external: int) -> None:
        """Blocks are there: the load is ordered for this step. A preempted request comes here again when it resumes, one that waited for its
        load when that is over."""
        state = self.live.get(request.request_id)
        if state is None or state.ticket is None:
            return
        waited, state.waits = state.waits, self.ahead and n_external > 0
        if n_external > 0 or not waited:
            state.injected = n_external
        if n_external > 0:
            parts = self._match(state, state.local)
            self.loads[request.request_id] = LoadOrder(
                request.request_id, parts, state.local, n_external, list(block_ids), self.block_size, self.ahead
            )

    # ---- a step ----------------------------------------------------------------------------------------------------------

    def orders(self, output: SchedulerOutput, block_ids_of: Any) -> StepOrders:
        if self.fetcher is not None and (gone := self.fetcher.take_gone()):
            self._let_go(gone)
        step = StepOrders(over=self.over, forget=self.forget)
        self.over, self.forget = [], []
        if self.loads:
            step.loads = [order for rid, order in self.loads.items() if order.ahead or rid in output.num_scheduled_tokens]
            self.loads = {}
        captures = [
            rid for rid in output.num_scheduled_tokens
            if (state := self.live.get(rid)) is not None and state.ticket is not None and state.ticket.op == tickets.CAPTURE
        ]
        if captures:
            starts = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
            cached = output.scheduled_cached_reqs
            starts.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
            for rid in captures:
                order = self._capture(rid, starts[rid], output.num_scheduled_tokens[rid], block_ids_of)
                if order is not None:
                    step.captures.append(order)
        if step.loads or step.captures:
            step.model = self.shape
        return step

    def _capture(self, rid: str, start: int, n: int, block_ids_of: Any) -> CaptureOrder | None:
        state = self.live[rid]
        found = state.ticket
        assert found is not None
        last = found.capture_from + found.capture_n
        begin, end = max(start, found.capture_from), min(start + n, last)
        if begin >= end:
            return None
        tokens = list(state.request.prompt_token_ids[found.capture_from : last])
        return CaptureOrder(
            rid, found.id.hex(), tokens, found.capture_from, found.capture_from, begin, end, list(block_ids_of(rid)[0]),
            self.block_size,
        )

    def step_done(self, output: KVConnectorOutput) -> None:
        """What the workers said: failures are remembered by name and file, so that nothing is tried for ever."""
        result = output.kv_connector_worker_meta
        if not isinstance(result, StepResult):
            return
        for failure in result.failures:
            state = self.live.get(failure.request_id)
            for bad in failure.bad:
                self._remember(bad.name, bad.where, bad.identity, bad.reason, bad.why)
                if state is not None:
                    state.blame(bad.where, bad.name, bad.reason)
            if state is not None:
                state.reason, state.why = failure.reason, failure.why
                if not failure.capture:
                    state.injected, state.gave_up = 0, True
                    self._uncount(state)
                state.checked.clear()
            logger.warning("InferScale: %s; computed exactly instead", failure.why)

    @staticmethod
    def _uncount(state: RequestState) -> None:
        """`usage` says what was cached, and the gateway believes it: vLLM leaves rows that failed to load in it."""
        stats, request = getattr(state.request, "prefill_stats", None), state.request
        if stats is not None and hasattr(stats, "set"):
            stats.set(num_prompt_tokens=request.num_prompt_tokens, num_local_cached_tokens=state.local, num_external_cached_tokens=0)

    # ---- a request ends --------------------------------------------------------------------------------------------------

    def finished(self, request: Request) -> dict[str, Any] | None:
        state = self.live.pop(request.request_id, None)
        self.loads.pop(request.request_id, None)
        if state is None:
            return None
        if state.wait is not None and self.fetcher is not None:
            self.fetcher.end(state.wait)
        found = state.ticket
        if found is None:
            state.forget_request()
            return {"inferscale": {"ok": False, **state.result()}}
        if found.op in (tickets.INJECT, tickets.CAPTURE):
            self.over.append(request.request_id)
            self.book.note(found.tag, found.epoch, request.block_hashes)
        answer = self._answer(found, state)
        state.forget_request()
        return {"inferscale": answer}

    def _answer(self, found: Ticket, state: RequestState) -> dict[str, Any]:
        if found.op == tickets.DESCRIBE:
            return self.describer.answer(can_evict=self._can_evict(), can_abort=self.book.can_abort())
        if found.op == tickets.STATUS:
            asked = self.recent.get(found.id)
            if asked is None:
                return {"ok": False, "reason": "missing", "why": "no request with this id is remembered"}
            return {"ok": True, **asked.result()}
        if found.op == tickets.CAPTURE:
            return self._captured(found, state)
        if found.op == tickets.REVOKE:
            done, why = self._can_evict(), self.book.why_not
            if state.forgetting is not None and not state.forgetting.ok():
                done, why = False, state.forgetting.why or "files of this memory are still being overwritten in the cache; ask again"
            return {"ok": done, "evicted": state.evicted, "reason": "" if done else "failed", "why": why}
        return {"ok": True, **state.result()}

    def _captured(self, found: Ticket, state: RequestState) -> dict[str, Any]:
        """True only if every worker's file is there. With a gateway elsewhere they are on their way (bring.py) and a mark of each is there: the
        gateway, which knows best what has come, waits for so many."""
        assert self.shape is not None
        spool, end = self.settings.home / "vllm" / "spool", COMING if self.fetcher is not None else ""
        names = [f"{found.id.hex()}.{p}.{h}" for p, h in self.shape.writers]
        missing = [name for name in names if not (spool / (name + end)).exists()]
        if self.fetcher is not None:
            for name in names:
                (spool / (name + end)).unlink(missing_ok=True)
        if missing:
            return {"ok": False, **state.result(), "reason": state.reason or "failed",
                    "why": state.why or f"{missing[0]} was not written; the worker's log says why"}
        return {"ok": True, **({"coming": len(names)} if self.fetcher is not None else {}), **state.result()}

    def take_stats(self) -> InferScaleStats | None:
        if self.fetcher is not None:
            for name, n in self.fetcher.take_counts().items():
                self.stats.data[name] += n
        if self.stats.is_empty():
            return None
        stats, self.stats = self.stats, InferScaleStats()
        return stats

    # ---- forgetting ------------------------------------------------------------------------------------------------------

    def _can_evict(self) -> bool:
        return self.book.can_evict()

    def _note_names(self, found: Ticket) -> None:
        """Whose rows are in memory: of the owners seen last. Names say nothing of what they name."""
        if found.tag == tickets.NOBODY:
            return
        names = self.names.setdefault(found.tag, {})
        self.names.move_to_end(found.tag)
        before = len(names)
        names.update(dict.fromkeys(part.name for part in found.parts))
        self.n_names += len(names) - before
        while self.n_names > NAMES:
            _, gone = self.names.popitem(last=False)
            self.n_names -= len(gone)
            self._let_go(list(gone))  # what is not known to be an owner's any more is not kept

    def _let_go(self, names: list[bytes]) -> None:
        """What memory holds of these segments goes: here now, in the workers with the next step."""
        self.forget += names
        if self.model is not None:
            self.model.forget(names)

    def _revoke(self, found: Ticket, revoke: RequestState) -> None:
        """From now on tickets of this memory with a lower epoch are refused; what runs with one ends; its blocks leave the cache, and what
        memory holds of its rows goes (those that still count are read again)."""
        self.min_epoch[found.tag] = max(found.epoch, self.min_epoch.get(found.tag, 0))
        stale = [
            (rid, state) for rid, state in self.live.items()
            if state.ticket is not None and state.ticket.op in (tickets.INJECT, tickets.CAPTURE)
            and state.ticket.tag == found.tag and state.ticket.epoch < found.epoch
        ]
        for rid, state in stale:
            assert state.ticket is not None
            self.book.note(found.tag, state.ticket.epoch, state.request.block_hashes)
            self.loads.pop(rid, None)
        self.book.abort([rid for rid, _ in stale])
        gone = self.names.pop(found.tag, {})
        self.n_names -= len(gone)
        self._let_go(list(gone))
        evicted = self.book.evict(found.tag, found.epoch)
        revoke.evicted = evicted
        if self.fetcher is not None:
            revoke.forgetting = self.fetcher.forget(found.tag, found.epoch)
        self.stats.evicted(evicted)
        logger.info("InferScale: memory revoked: %d requests ended, %d blocks evicted", len(stale), evicted)


def identity_of(path: Path) -> Identity:
    try:
        st = os.stat(path)
    except OSError:
        return None
    return st.st_ino, st.st_size, st.st_mtime_ns


def _salt(request: Request, salt: str) -> None:
    """Gives a request a cache salt and computes its block hashes anew: they were made when it was created, with the client's."""
    request.cache_salt = salt
    request.block_hashes.clear()
    request.update_block_hashes()
