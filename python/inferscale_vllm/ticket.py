"""Tickets: what the gateway signed. Reading and verifying is done by the library; this file holds the Python form of a ticket and
the secret, which is read anew when its file changes."""

from __future__ import annotations

import array
import ctypes as c
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .library import CTicket, Library, LibraryError, Part

DESCRIBE, INJECT, CAPTURE, REVOKE, STATUS = 1, 2, 3, 4, 5
OP_NAMES = {DESCRIBE: "describe", INJECT: "inject", CAPTURE: "capture", REVOKE: "revoke", STATUS: "status"}
NOBODY = bytes(32)


@dataclass(frozen=True)
class StoredPart:
    """Tokens [begin, begin + n_tokens) of a stored segment, the first of them at position pos of the prompt."""

    name: bytes
    where: int
    begin: int
    n_tokens: int
    pos: int

    @property
    def end(self) -> int:
        return self.pos + self.n_tokens

    def path(self, home: Path) -> Path:
        """The segment's file, as the vault names it: fanned out by the name's first byte."""
        name = self.name.hex()
        return home / folder(self.where) / name[:2] / (name + ".seg")


def folder(where: int) -> str:
    return "vault" if where == 0 else "vllm/heads"


@dataclass(frozen=True)
class Ticket:
    op: int
    id: bytes
    fingerprint: bytes
    tag: bytes
    epoch: int
    salt: bytes
    expires: int
    n_prompt: int
    prompt_hash: bytes
    parts: tuple[StoredPart, ...] = field(default=())
    capture_from: int = 0
    capture_n: int = 0


def c_parts(parts: Sequence[StoredPart]) -> c.Array[Part]:
    out = (Part * len(parts))()
    for at, part in zip(out, parts, strict=True):
        at.name[:] = part.name
        at.dir, at.begin, at.n_tokens, at.pos = part.where, part.begin, part.n_tokens, part.pos
    return out


def read(library: Library, text: str, secret: bytes, now: int | None = None) -> Ticket:
    """Verified ticket; LibraryError with status PARSE, DENIED, STALE, INVALID otherwise."""
    found = c.POINTER(CTicket)()
    raw = text.encode("ascii", "replace")
    if b"\0" in raw:
        raise LibraryError("PARSE", "a ticket with a NUL in it; send what the gateway signed")
    library.check(library.dll.inferscale_ticket_read(raw, secret, int(time.time()) if now is None else now, c.byref(found)))
    try:
        t = found.contents
        return Ticket(
            op=t.op, id=bytes(t.id), fingerprint=bytes(t.fingerprint), tag=bytes(t.tag), epoch=t.epoch, salt=bytes(t.salt),
            expires=t.expires, n_prompt=t.n_prompt, prompt_hash=bytes(t.prompt_hash),
            parts=tuple(
                StoredPart(bytes(p.name), p.dir, p.begin, p.n_tokens, p.pos) for p in (t.parts[i] for i in range(t.n_parts))
            ),
            capture_from=t.capture_from, capture_n=t.capture_n,
        )
    finally:
        library.dll.inferscale_ticket_free(found)


def write(library: Library, ticket: Ticket, secret: bytes) -> str:
    """The signed text of a ticket. The gateway does this in C; tests do it here, through the same function."""
    out, parts = CTicket(struct_size=c.sizeof(CTicket)), c_parts(ticket.parts)
    out.op, out.epoch, out.expires, out.n_prompt = ticket.op, ticket.epoch, ticket.expires, ticket.n_prompt
    for name in ("id", "fingerprint", "tag", "salt", "prompt_hash"):
        getattr(out, name)[:] = getattr(ticket, name)
    out.n_parts, out.parts = len(parts), parts
    out.capture_from, out.capture_n = ticket.capture_from, ticket.capture_n
    text = c.c_void_p()
    library.check(library.dll.inferscale_ticket_write(c.byref(out), secret, c.byref(text)))
    try:
        return c.string_at(text.value).decode("ascii")
    finally:
        library.dll.inferscale_ticket_text_free(text)


def prompt_hash(library: Library, tokens: Sequence[int]) -> bytes:
    ids = array.array("i", tokens)
    return library.hash(ids.tobytes())


class Secret:
    """The secret's file, read when it is first needed and again when it changes: a gateway may be set up after vLLM."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity: tuple[int, int, int] | None = None
        self._value: bytes | None = None

    def value(self) -> bytes | None:
        """32 bytes, or None while there is no readable secret: then no ticket is valid."""
        try:
            st = os.stat(self.path)
        except OSError:
            self._identity, self._value = None, None
            return None
        identity = (st.st_ino, st.st_size, st.st_mtime_ns)
        if identity != self._identity:
            self._identity, self._value = identity, self._read()
        return self._value

    def _read(self) -> bytes | None:
        try:
            value = bytes.fromhex(self.path.read_text("ascii").strip())
        except (OSError, ValueError, UnicodeDecodeError):
            return None
        return value if len(value) == 32 else None
