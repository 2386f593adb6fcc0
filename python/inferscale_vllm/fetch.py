"""Fetching ahead: the parts of a request with a ticket come from the gateway while the request waits in vLLM's queue.

vLLM asks a waiting request's connector again and again how many tokens it has, and takes "not known yet" for an answer; so the loop that computes
other requests never waits for the network. A request waits `fetch_wait_s` at most: what is not here by then is computed exactly (`fetch`), and
still comes for the next one if it has begun to. Names that failed are not asked for again at once, and later and later."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vllm.logger import init_logger

from .cache import Cache, Entry, Key, shred
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
    thread: int = 0  # that fetches it; 0 = none has begun
    cancelled: bool = False
    entry: Entry | None = None  # of the cache, which it has become
    done: threading.Event = field(default_factory=threading.Event)


@dataclass
class Wait:
    """What one request counts on."""

    held: list[Job | Entry]  # one pin each is this request's
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
        self.gone: list[bytes] = []  # names that the gateway has no more, for the scheduler
        self.forgetting = 0  # REVOKEs that wait for the thread that keeps house
        self.counts = {"segments_fetched": 0, "bytes_fetched": 0}
        self.work: queue.Queue[Job] = queue.Queue()
        self.chores: queue.Queue[Callable[[], None]] = queue.Queue()
        self.scrub_at, self.scrub_all, self.scrub_keys = time.monotonic() + SCRUB_S, False, list[Key]()  # of the thread that keeps house
        for i in range(THREADS):
            threading.Thread(target=self._fetch_all, name=f"inferscale-fetch-{i}", daemon=True).start()
        self.house = threading.Thread(target=self._keep_house, name="inferscale-cache", daemon=True)
        self.house.start()

    # ---- for the scheduler: nothing here waits ---------------------------------------------------------------------------

    def begin(self, tag: bytes, epoch: int, parts: Sequence[StoredPart]) -> Wait:
        wait = Wait([], [], time.monotonic() + self.settings.fetch_wait_s)
        for part in parts:
            key = part.where, part.name
            with self.lock:
                if (entry := self.cache.pin(key, 1)) is not None:
                    wait.held.append(entry)
                    continue
                if (job := self.jobs.get(key)) is not None:
                    job.pins += 1
                    wait.jobs.append(job)
                elif key in self.bad and self.bad[key][2] > time.monotonic():
                    continue
                else:
                    job = self.jobs[key] = Job(key, tag, epoch, 1)
                    wait.jobs.append(job)
                    self.work.put(job)
                wait.held.append(job)
        return wait

    def ready(self, wait: Wait) -> bool:
        wait.jobs = [job for job in wait.jobs if not job.done.is_set()]
        return not wait.jobs or time.monotonic() > wait.until

    def end(self, wait: Wait) -> None:
        """The request is over; a job that has begun goes on for the next one."""
        for held in wait.held:
            with self.lock:
                entry = held.entry if isinstance(held, Job) else held
                if entry is not None:
                    self.cache.unpin(entry)
                elif isinstance(held, Job):
                    held.pins = max(0, held.pins - 1)
        wait.held = []

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
            begun = [job for job in jobs if job.thread]
            for job in jobs:
                job.cancelled = True
                if job.thread:
                    self.gateway.break_off(job.thread)  # under the lock: it is still at this job
                else:
                    del self.jobs[job.key]
                    job.done.set()
            self.forgetting += 1
            self.gateway.break_off(self.house.ident or 0)  # it may wait for the gateway's word
        out = Forgetting(tag, epoch, begun, time.monotonic() + FORGET_S)
        self.chores.put(lambda: self._forget(out))
        return out

    def scrub(self) -> None:
        """What the gateway has no more, because it was forgotten while this vLLM could not be told, goes from here."""
        self.gateway.speaks()
        self.chores.put(self._scrub_from_the_start)

    def take_gone(self) -> list[bytes]:
        """Names that left the cache because the gateway has them no more: memory must not keep them either."""
        with self.lock:
            gone, self.gone = self.gone, []
        return gone

    def take_counts(self) -> dict[str, int]:
        with self.lock:
            taken, self.counts = self.counts, dict.fromkeys(self.counts, 0)
        return taken

    # ---- the threads that fetch ------------------------------------------------------------------------------------------

    def _fetch_all(self) -> None:
        while True:
            job = self.work.get()
            if not self._take(job):
                continue
            try:
                self._fetch(job)
            except GatewayError as e:
                self._note_bad(job.key, e.reason, str(e))
            except Cancelled:
                self._note_bad(job.key, "epoch", "this memory has been changed since")
            except OSError as e:  # a full disk, for instance
                logger.error("InferScale: a segment could not be kept: %s", e)
                self._note_bad(job.key, "fetch", f"{type(e).__name__}: {e}")
            except Exception as e:  # noqa: BLE001 - the thread must live
                logger.exception("InferScale: a segment could not be fetched")
                self._note_bad(job.key, "fetch", f"{type(e).__name__}: {e}")
            with self.lock:
                self._over(job)

    def _take(self, job: Job) -> bool:
        """Is it still to be fetched? Not if it was called off, or if whoever wanted it has ended."""
        with self.lock:
            if job.done.is_set():
                return False
            if job.pins == 0:
                self._over(job)
                return False
            job.thread = threading.get_ident()
            return True

    def _over(self, job: Job) -> None:
        """Under the lock. Under its name there may be another already."""
        if self.jobs.get(job.key) is job:
            del self.jobs[job.key]
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
                job.entry = self.cache.pin(job.key, 0)  # its pins are the entry's now
                del self.jobs[job.key]
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
        try:
            for job in forgetting.jobs:
                job.done.wait()
            self.cache.drop(self.cache.of_tag(forgetting.tag, forgetting.epoch))
        except OSError as e:
            forgetting.why = f"files of this memory stay in the cache: {e}"
            logger.error("InferScale: %s", forgetting.why)
        finally:
            with self.lock:
                self.forgetting -= 1
        forgetting.done.set()

    def _scrub_from_the_start(self) -> None:
        self.scrub_all, self.scrub_keys, self.scrub_at = True, [], time.monotonic()

    def _scrub(self) -> None:
        """A few files are compared with what the gateway has; what is to be forgotten comes between."""
        if not self.scrub_keys:
            self.scrub_keys = self.cache.all() if self.scrub_all else self.cache.idle(1)  # heads: rows of single turns have no other end
        try:
            gone = [key for key in self.scrub_keys[:SCRUB_KEYS] if not self.gateway.has(*key, lambda: not self.forgetting)]
        except Cancelled:  # a REVOKE comes first
            self.scrub_at = time.monotonic()
            return
        except GatewayError as e:
            self.scrub_at = time.monotonic() + (SCRUB_AGAIN_S if self.scrub_all else SCRUB_S)
            logger.info("InferScale: the cache could not be compared with the gateway: %s", e)
            return
        del self.scrub_keys[:SCRUB_KEYS]
        self.scrub_all = self.scrub_all and bool(self.scrub_keys)
        self.scrub_at = time.monotonic() + (0 if self.scrub_keys else SCRUB_S)
        if gone:
            try:
                self.cache.drop(gone)
            finally:  # out of the books they are
                with self.lock:
                    self.gone += [name for _, name in gone]
            logger.info("InferScale: %d segments left the cache because the gateway has them no more", len(gone))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


__all__ = ["Fetcher", "Forgetting", "Wait"]
