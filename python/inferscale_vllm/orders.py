"""What the scheduler's side tells the workers for one step, and what they tell back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from .model import ModelShape
from .ticket import StoredPart

Identity = tuple[int, int, int] | None  # inode, size, time of change of a segment's file; None: it is not there


def slots(block_ids: Sequence[int], block_size: int, begin: int, end: int) -> list[int]:
    """Where the tokens at positions begin .. end-1 of a request lie in the paged cache."""
    return [block_ids[p // block_size] * block_size + p % block_size for p in range(begin, end)]


@dataclass
class LoadOrder:
    """Write stored rows to positions [begin, begin + n_tokens) of a request before this step's forward."""

    request_id: str
    parts: list[StoredPart]
    begin: int
    n_tokens: int
    block_ids: list[int]
    block_size: int
    ahead: bool = False  # the request waits until all workers have said that this is over

    def touched_blocks(self) -> set[int]:
        first, last = self.begin // self.block_size, (self.begin + self.n_tokens - 1) // self.block_size
        return set(self.block_ids[first : last + 1])


@dataclass
class CaptureOrder:
    """Keep the rows of positions [begin, end) that this step computes, of a span [first, first + len(tokens))."""

    request_id: str
    file_name: str  # hex of the ticket's id
    tokens: list[int]
    first: int
    n_context: int
    begin: int
    end: int
    block_ids: list[int]
    block_size: int


@dataclass
class StepOrders(KVConnectorMetadata):
    """One step's orders. `model` is there whenever a worker may need it."""

    model: ModelShape | None = None
    loads: list[LoadOrder] = field(default_factory=list)
    captures: list[CaptureOrder] = field(default_factory=list)
    over: list[str] = field(default_factory=list)  # requests that have ended: drop what was kept for them
    forget: list[bytes] = field(default_factory=list)  # names of segments that were revoked: memory lets go of them


@dataclass(frozen=True)
class Bad:
    """A segment that could not be used, and the file that it was then."""

    name: bytes
    where: int
    reason: str
    why: str
    identity: Identity


@dataclass
class Failure:
    """A load or capture that did not happen: the request was computed exactly instead."""

    request_id: str
    reason: str
    why: str
    bad: list[Bad] = field(default_factory=list)  # the segments at fault, if some were
    capture: bool = False


@dataclass
class StepResult(KVConnectorWorkerMetadata):
    """What went wrong in one step, from all workers."""

    failures: list[Failure] = field(default_factory=list)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> StepResult:
        assert isinstance(other, StepResult)
        return StepResult(self.failures + other.failures)
