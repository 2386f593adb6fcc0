"""What is known of one request with a ticket, valid or not."""

from __future__ import annotations

import ctypes as c
from typing import TYPE_CHECKING, Any

from .ticket import Ticket

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from .fetch import Forgetting, Wait


BAD_MAX = 64  # segments that one answer names


class RequestState:
    __slots__ = (
        "ticket", "request", "prompt", "checked", "local", "injected", "waits", "gave_up", "evicted", "reason", "why", "wait", "forgetting",
        "bad",
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
        self.bad: dict[tuple[int, bytes], str] = {}  # segments that could not be used: (folder, name) -> reason

    def blame(self, where: int, name: bytes, reason: str) -> None:
        if len(self.bad) < BAD_MAX:
            self.bad[where, name] = reason

    def result(self) -> dict[str, Any]:
        out: dict[str, Any] = {"injected": self.injected, "local": self.local, "reason": self.reason, "why": self.why}
        if self.bad:
            out["bad"] = [{"name": name.hex(), "where": where, "reason": reason} for (where, name), reason in self.bad.items()]
        return out

    def forget_request(self) -> None:
        """The request has ended: only the result is kept, for STATUS."""
        if self.prompt is not None:
            c.memset(self.prompt, 0, c.sizeof(self.prompt))  # a copy of somebody's words
        self.request, self.prompt = None, None  # type: ignore[assignment]
        self.ticket, self.wait = None, None  # of thousands of parts perhaps
        self.checked = {}
