"""What is known of one request with a ticket, valid or not."""

from __future__ import annotations

import ctypes as c
from typing import TYPE_CHECKING, Any

from .ticket import Ticket

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from .fetch import Forgetting, Wait


class RequestState:
    __slots__ = (
        "ticket", "request", "prompt", "checked", "local", "injected", "waits", "gave_up", "evicted", "reason", "why", "wait", "forgetting"
    )

    def __init__(self, ticket: Ticket | None, request: Request, reason: str = "", why: str = "") -> None:
        self.ticket, self.request = ticket, request
        self.prompt: c.Array[c.c_int32] | None = None  # token ids as the library takes them, made once
        self.checked: dict[tuple[bytes, int], tuple[str, str]] = {}  # part -> ("", "") or why it is not used
        self.local = 0  # tokens that the prefix cache had
        self.injected = 0
        self.waits = False  # for a load in a step of its own
        self.gave_up = False  # a load failed: nothing is injected for this request any more
        self.evicted = 0  # of a REVOKE: blocks that left the cache
        self.reason, self.why = reason, why
        self.wait: Wait | None = None  # its parts, on their way from a gateway on another host
        self.forgetting: Forgetting | None = None  # of a REVOKE: files in the cache

    def result(self) -> dict[str, Any]:
        return {"injected": self.injected, "local": self.local, "reason": self.reason, "why": self.why}

    def forget_request(self) -> None:
        """The request has ended: only the result is kept, for STATUS."""
        self.request, self.prompt = None, None  # type: ignore[assignment]
        self.checked = {}
