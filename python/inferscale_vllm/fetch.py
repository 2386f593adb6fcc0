"""Fetching ahead: the parts of a request with a ticket come from the gateway while the request waits in vLLM's queue.

vLLM asks a waiting request's connector again and again how many tokens it has, and takes "not known yet" for an answer; so the loop that computes
other requests never waits for the network. A request waits `fetch_wait_s` at most: what is not here by then is computed exactly (`fetch`), and
still comes for the next one. Names that failed are not asked for again at once, and later and later."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vllm.logger import init_logger

from .cache import Cache, Key, shred
from .gateway import Cancelled, Gateway, GatewayError
from .settings import Settings
from .ticket import StoredPart

logger = init_logger("vllm.inferscale")

THREADS = 4
BAD_S, BAD_MAX_S = 5.0, 600.0  # how long a name that failed is left alone: the first time, at most
BAD_MOST = 65_536
SCRUB_S, SCRUB_AGAIN_S, SCRUB_KEYS = 60.0, 2.0, 64  # how often rows of single turns are looked after; if no gateway answers; at once
FORGET_S = 10.0  # a REVOKE waits so long before it says that it is not done yet


@dataclass
class Job:
    """A segment on its way."""

    key: Key
    tag: bytes
    epoch: int
    pins: int = 0
    cancelled: bool = False
    done: threading.Event = field(default_factory=threading.Event)


@dataclass
class Wait:
    """What one request counts on."""

    keys: list[Key]
    jobs: list[Job]
    until: float


@dataclass
class Forgetting:
    """A memory's files on their way out."""

    tag: bytes
    epoch: int
    jobs: list[Job]
    until: float
    done: threading.Event = field(default_factory=threading.Event)
    why: str = ""  # why it failed

    def ok(self) -> bool:
        return self.done.is_set() and not self.why

    def over(self) -> bool:
        return self.done.is_set() or time.monotonic() > self.until


class Fetcher:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.cache, self.gateway = Cache(settings.home, settings.cache_bytes), Gateway(settings)
        self.lock = threading.Lock()  # of what follows
        self.jobs: dict[Key, Job] = {}
        self.bad: OrderedDict[Key, tuple[str, str, float, int]] = OrderedDict()  # reason, sentence, not before, how often
        self.counts = {"segments_fetched": 0, "bytes_fetched": 0}
        self.work: queue.Queue[Job] = queue.Queue()
        self.chores: queue.Queue[Callable[[], None]] = queue.Queue()
        self.scrub_at, self.scrub_all, self.scrub_keys = time.monotonic() + SCRUB_S, False, list[Key]()  # of the thread that keeps house
        for i in range(THREADS):
            threading.Thread(target=self._fetch_all, name=f"inferscale-fetch-{i}", daemon=True).start()
        threading.Thread(target=self._keep_house, name="inferscale-cache", daemon=True).start()

    # ---- for the scheduler: nothing here waits ---------------------------------------------------------------------------

    def begin(self, tag: bytes, epoch: int, parts: Sequence[StoredPart]) -> Wait:
        wait = Wait([], [], time.monotonic() + self.settings.fetch_wait_s)
        for part in parts:
            key = part.where, part.name
            with self.lock:
                if self.cache.has(key):
                    self.cache.pin(key, 1)
                elif (job := self.jobs.get(key)) is not None:
                    job.pins += 1
                    wait.jobs.append(job)
                elif key in self.bad and self.bad[key][2] > time.monotonic():
                    continue
                else:
                    job = self.jobs[key] = Job(key, tag, epoch, 1)
                    wait.jobs.append(job)
                    self.work.put(job)
            wait.keys.append(key)
        return wait

    def ready(self, wait: Wait) -> bool:
        wait.jobs = [job for job in wait.jobs if not job.done.is_set()]
        return not wait.jobs or time.monotonic() > wait.until

    def end(self, wait: Wait) -> None:
        """The request is over; a job that goes on is for the next one."""
        for key in wait.keys:
            with self.lock:
                job = self.jobs.get(key)
                if job is not None and not job.done.is_set():
                    job.pins = max(0, job.pins - 1)
                else:
                    self.cache.pin(key, -1)

    def why(self, part: StoredPart) -> tuple[str, str]:
        """Why the part's file is not here; ("", "") if it is."""
        key = part.where, part.name
        if self.cache.has(key):
            return "", ""
        with self.lock:
            if key in self.jobs:
                return "fetch", f"segment {part.name.hex()[:16]} did not come within {self.settings.fetch_wait_s:g} s"
            reason, why, _, _ = self.bad.get(key, ("fetch", f"segment {part.name.hex()[:16]} is not in the cache", 0.0, 0))
            return reason, why

    def spoilt(self, key: Key, reason: str, why: str) -> None:
        """A file that is here is not what it should be: it goes, and is fetched anew some time."""
        self._note_bad(key, reason, why)
        self.chores.put(lambda: self.cache.drop([key]))

    def forget(self, tag: bytes, epoch: int) -> Forgetting:
        with self.lock:
            jobs = [job for job in self.jobs.values() if job.tag == tag and job.epoch < epoch]
            for job in jobs:
                job.cancelled = True
        out = Forgetting(tag, epoch, jobs, time.monotonic() + FORGET_S)
        self.chores.put(lambda: self._forget(out))
        return out

    def scrub(self) -> None:
        """What the gateway has no more, because it was forgotten while this vLLM could not be told, goes from here."""
        self.gateway.speaks()
        self.chores.put(self._scrub_from_the_start)

    def take_counts(self) -> dict[str, int]:
        with self.lock:
            taken, self.counts = self.counts, dict.fromkeys(self.counts, 0)
        return taken

    # ---- the threads that fetch ------------------------------------------------------------------------------------------

    def _fetch_all(self) -> None:
        while True:
            job = self.work.get()
            try:
                self._fetch(job)
            except GatewayError as e:
                self._note_bad(job.key, e.reason, str(e))
            except Cancelled:
                self._note_bad(job.key, "epoch", "this memory has been changed since")
            except Exception as e:  # noqa: BLE001 - a full disk, for instance; the thread must live
                logger.exception("InferScale: a segment could not be fetched")
                self._note_bad(job.key, "fetch", f"{type(e).__name__}: {e}")
            with self.lock:
                self.jobs.pop(job.key, None)
            job.done.set()

    def _fetch(self, job: Job) -> None:
        path = self.cache.begin()
        try:
            if job.cancelled:
                raise Cancelled
            with open(path, "xb", opener=_private) as out:
                size = self.gateway.fetch(job.key[0], job.key[1], out, self.settings.cache_bytes, lambda: not job.cancelled)
            with self.lock:  # forget() looks at jobs under it: either it sees this one, or the cache has the file already
                if job.cancelled:
                    raise Cancelled
                surplus = self.cache.add(job.key, path, size, job.tag, job.epoch, job.pins)
                self.bad.pop(job.key, None)
                self.counts["segments_fetched"] += 1
                self.counts["bytes_fetched"] += size
                self.jobs.pop(job.key, None)
            if surplus:
                self.chores.put(self.cache.sweep)
        finally:
            try:
                shred(path)  # unless it has become the segment's
            except OSError as e:
                logger.error("InferScale: a part of a segment could not be overwritten, which is tried again: %s", e)
                self.cache.doom(path)
                self.chores.put(self.cache.sweep)

    def _note_bad(self, key: Key, reason: str, why: str) -> None:
        with self.lock:
            n = self.bad.pop(key, ("", "", 0.0, 0))[3]
            own = reason not in ("fetch", "epoch")  # the gateway's back-off is for these
            self.bad[key] = reason, why, time.monotonic() + (min(BAD_MAX_S, BAD_S * 2**n) if own else 0.0), min(n + own, 16)
            while len(self.bad) > BAD_MOST:
                self.bad.popitem(last=False)

    # ---- the thread that keeps house -------------------------------------------------------------------------------------

    def _keep_house(self) -> None:
        while True:
            try:
                chore = self.chores.get(timeout=max(0.01, self.scrub_at - time.monotonic()))
            except queue.Empty:
                chore = self._scrub
            try:
                chore()
            except Exception:  # noqa: BLE001 - the thread must live
                logger.exception("InferScale: the cache could not be put in order")

    def _forget(self, forgetting: Forgetting) -> None:
        for job in forgetting.jobs:
            job.done.wait()
        try:
            self.cache.drop(self.cache.of_tag(forgetting.tag, forgetting.epoch))
        except OSError as e:
            forgetting.why = f"files of this memory stay in the cache: {e}"
            logger.error("InferScale: %s", forgetting.why)
        forgetting.done.set()

    def _scrub_from_the_start(self) -> None:
        self.scrub_all, self.scrub_keys, self.scrub_at = True, [], time.monotonic()

    def _scrub(self) -> None:
        """A few files are compared with what the gateway has; what is to be forgotten comes between."""
        if not self.scrub_keys:
            self.scrub_keys = self.cache.idle((0, 1) if self.scrub_all else (1,))  # heads: rows of single turns have no other end
        try:
            gone = [key for key in self.scrub_keys[:SCRUB_KEYS] if not self.gateway.has(*key)]
        except GatewayError as e:
            self.scrub_at = time.monotonic() + (SCRUB_AGAIN_S if self.scrub_all else SCRUB_S)
            logger.info("InferScale: the cache could not be compared with the gateway: %s", e)
            return
        del self.scrub_keys[:SCRUB_KEYS]
        self.scrub_all = self.scrub_all and bool(self.scrub_keys)
        self.scrub_at = time.monotonic() + (0 if self.scrub_keys else SCRUB_S)
        if gone:
            self.cache.drop(gone)
            logger.info("InferScale: %d segments left the cache because the gateway has them no more", len(gone))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


__all__ = ["Fetcher", "Forgetting", "Wait"]
