"""Which cached blocks hold whose memory, and how they leave the prefix cache when it is forgotten.

A block is known by its hash, which its salt is in. All hashes that a request with a ticket has ever had are noted under its tag, so
blocks are found wherever they are: in a running request, shared by two, or idle in the cache. Hashes whose blocks the engine has
reused since are dropped when there are more of them than blocks."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager


class BlockBook:
    def __init__(self) -> None:
        self.hashes: dict[bytes, dict[Any, int]] = {}  # tag -> block hash -> epoch
        self.count = 0
        self.pool: Any = None
        self.groups = 1
        self.scheduler: Any = None
        self.why_not = ""

    def bind(self, manager: KVCacheManager) -> None:
        """The cache manager is there. A connector is given no scheduler, and only that can end a request; the one that binds us is
        looked up in the call that does, once. Without it `can_abort` is false and the gateway closes the connections alone."""
        self.pool = manager.block_pool
        self.groups = getattr(manager, "num_kv_cache_groups", 1)
        needed = ("cached_block_hash_to_block", "evict_blocks", "num_gpu_blocks")
        if not all(hasattr(self.pool, name) for name in needed):
            self.pool, self.why_not = None, "this version of vLLM does not let a connector evict blocks"
        frame = inspect.currentframe()
        for _ in range(4):
            frame = frame.f_back if frame is not None else None
            owner = frame.f_locals.get("self") if frame is not None else None
            if hasattr(owner, "finish_requests") and hasattr(owner, "kv_cache_manager"):
                self.scheduler = owner
                return

    def can_evict(self) -> bool:
        return self.pool is not None

    def can_abort(self) -> bool:
        return self.scheduler is not None

    def note(self, tag: bytes, epoch: int, hashes: Iterable[Any]) -> None:
        if tag == bytes(32) or self.pool is None:
            return
        known = self.hashes.setdefault(tag, {})
        before = len(known)
        for block_hash in hashes:
            known[block_hash] = max(epoch, known.get(block_hash, 0))
        self.count += len(known) - before
        if self.count > 2 * self.pool.num_gpu_blocks + 1024:
            self._prune()

    def _blocks_of(self, block_hash: Any) -> Iterable[Any]:
        from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

        for group in range(self.groups):
            block = self.pool.cached_block_hash_to_block.get_one_block(make_block_hash_with_group_id(block_hash, group))
            if block is not None:
                yield block

    def _prune(self) -> None:
        """Drops hashes that no block has any more."""
        for tag in list(self.hashes):
            kept = {h: e for h, e in self.hashes[tag].items() if any(True for _ in self._blocks_of(h))}
            if kept:
                self.hashes[tag] = kept
            else:
                del self.hashes[tag]
        self.count = sum(map(len, self.hashes.values()))

    def abort(self, request_ids: list[str]) -> None:
        if request_ids and self.scheduler is not None:
            from vllm.v1.request import RequestStatus

            self.scheduler.finish_requests(request_ids, RequestStatus.FINISHED_ABORTED)

    def evict(self, tag: bytes, epoch: int) -> int:
        """Takes all blocks of the tag's memory before `epoch` out of the prefix cache; how many there were."""
        known = self.hashes.get(tag)
        if known is None or self.pool is None:
            return 0
        gone = 0
        for block_hash in [h for h, e in known.items() if e < epoch]:
            del known[block_hash]
            self.count -= 1
            while blocks := {block.block_id for block in self._blocks_of(block_hash)}:  # several blocks may have one hash
                self.pool.evict_blocks(blocks)
                gone += len(blocks)
        if not known:
            del self.hashes[tag]
        return gone
