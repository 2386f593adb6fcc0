"""What a gateway would do, for the tests: the secret, tickets, segments put where the connector looks for them."""

from __future__ import annotations

import ctypes as c
import os
import secrets
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine import Answer, Ask, Engine

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

from inferscale_vllm import ticket as tickets  # noqa: E402
from inferscale_vllm.library import load  # noqa: E402
from inferscale_vllm.ticket import StoredPart, Ticket  # noqa: E402

NOBODY = bytes(32)


class Gateway:
    """A store's folder with a secret, and the tickets that it signs for one engine."""

    def __init__(self, home: Path) -> None:
        self.home, self.library = home, load(os.environ["INFERSCALE_LIBRARY"])
        self.secret = secrets.token_bytes(32)
        (home / "vllm").mkdir(parents=True, mode=0o700)
        (home / "vllm" / "spool").mkdir(mode=0o700)
        (home / "vault").mkdir(mode=0o700)
        path = home / "vllm" / "secret"
        path.write_text(self.secret.hex() + "\n")
        path.chmod(0o600)
        self.fingerprint = NOBODY

    def ticket(self, op: int, tokens: list[int], **fields: Any) -> Ticket:
        base = Ticket(
            op=op, id=secrets.token_bytes(16), fingerprint=self.fingerprint, tag=NOBODY, epoch=1, salt=secrets.token_bytes(32),
            expires=int(time.time()) + 600, n_prompt=len(tokens), prompt_hash=tickets.prompt_hash(self.library, tokens),
        )
        return replace(base, **fields)

    def sign(self, ticket: Ticket, secret: bytes | None = None) -> str:
        return tickets.write(self.library, ticket, secret or self.secret)

    def describe(self, engine: Engine) -> dict[str, Any]:
        tokens = [1]
        found = engine.one(tokens, self.sign(self.ticket(tickets.DESCRIBE, tokens, fingerprint=NOBODY))).result
        self.fingerprint = bytes.fromhex(found["fingerprint"]) if found.get("fingerprint") else NOBODY
        return found

    def inject(self, tokens: list[int], parts: list[StoredPart], **fields: Any) -> str:
        return self.sign(self.ticket(tickets.INJECT, tokens, parts=tuple(parts), **fields))

    def capture(self, engine: Engine, tokens: list[int], first: int, n: int, parts: tuple[StoredPart, ...] = ()) -> tuple[Path, Answer]:
        """Rows of [first, first + n) of the prompt; the spool file that one worker leaves."""
        ticket = self.ticket(tickets.CAPTURE, tokens, capture_from=first, capture_n=n, parts=parts)
        answer = engine.one(tokens, self.sign(ticket))
        return self.home / "vllm" / "spool" / f"{ticket.id.hex()}.0.0", answer

    def keep(self, spool: Path, where: int = 0, name: bytes | None = None) -> bytes:
        """Puts a captured file under a name of its own where stored segments are; the real gateway encodes it anew."""
        name = name or secrets.token_bytes(32)
        path = StoredPart(name, where, 0, 1, 0).path(self.home)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.copyfile(spool, path)
        return name

    def path(self, name: bytes, where: int = 0) -> Path:
        return StoredPart(name, where, 0, 1, 0).path(self.home)


def part(name: bytes, begin: int, n: int, pos: int, where: int = 0) -> StoredPart:
    return StoredPart(name, where, begin, n, pos)


def difference(a: Answer, b: Answer, step: int = 0) -> float:
    """Largest difference of the log-probabilities over the whole vocabulary."""
    import numpy as np

    x, y = a.logprobs[step], b.logprobs[step]
    return float(np.abs(np.maximum(x, -1e9) - np.maximum(y, -1e9)).max())


__all__ = ["Ask", "Gateway", "c", "difference", "part", "tickets"]
