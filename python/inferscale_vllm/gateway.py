"""The gateway on another host: segments are fetched from it and captured rows brought to it, over HTTP.

Each request carries a pass (docs/formats.md, "Pass"), signed with the secret for this method, path, range, body and time; what is fetched ends
with a seal that the same secret made for that pass, so bytes of anybody else are never taken. Calls block, for seconds at most, and belong
into threads of their own: never into vLLM's loop. A gateway that cannot be reached is left alone for a while that doubles."""

from __future__ import annotations

import hashlib
import http.client
import os
import socket
import ssl
import struct
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from .settings import Settings
from .ticket import Secret

CONNECT_S, SILENT_S = 2.0, 5.0
BACKOFF_S, BACKOFF_MAX_S = 0.5, 30.0
PIECE = 256 << 10
SEAL = 32
FOLDERS = ("vault", "heads")  # by StoredPart.where


class GatewayError(Exception):
    """`reason`: fetch (no gateway, or one that refuses), missing (it has no such segment), torn (its bytes are not what it sent)."""

    def __init__(self, reason: str, why: str) -> None:
        super().__init__(why)
        self.reason = reason


class Cancelled(Exception):
    """The caller does not want it any more."""


def _always() -> bool:
    return True


def _field(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def write_pass(secret: bytes, method: str, path: str, content_range: str, body: bytes, now: int) -> tuple[str, bytes]:
    """(the header's value, its signature): src/kv/pass.c reads it."""
    nonce, digest = os.urandom(16), hashlib.blake2b(body, digest_size=32).digest()
    parts = (b"inferscale pass 1", method.encode(), path.encode(), content_range.encode(), struct.pack("<Q", now), nonce, digest)
    signature = hashlib.blake2b(b"".join(map(_field, parts)), key=secret, digest_size=32).digest()
    return f"1.{now}.{nonce.hex()}.{digest.hex()}.{signature.hex()}", signature


class Gateway:
    def __init__(self, settings: Settings) -> None:
        assert settings.gateway is not None
        self.url = settings.gateway
        parts = urllib.parse.urlsplit(settings.gateway)
        self.tls = parts.scheme == "https"
        self.host, self.port, self.prefix = parts.hostname or "", parts.port, parts.path.rstrip("/")
        self.context = ssl.create_default_context(cafile=settings.gateway_ca) if self.tls else None
        self.secret = Secret(settings.secret_file)
        self.links = threading.local()
        self.lock = threading.Lock()  # of what follows
        self.down_until, self.n_row, self.why = 0.0, 0, ""
        self.socks: dict[int, socket.socket] = {}  # by thread: what it waits at

    # ---- is it there -----------------------------------------------------------------------------------------------------

    def _ask_leave(self) -> None:
        with self.lock:
            left = self.down_until - time.monotonic()
            if left > 0:
                raise GatewayError("fetch", f"the gateway {self.url} is not asked for {left:.1f} s: {self.why}")

    def speaks(self) -> None:
        """It has asked us something, so it is there, whatever was before."""
        self._worked()

    def _worked(self) -> None:
        with self.lock:
            self.down_until, self.n_row = 0.0, 0

    def _failed(self, why: str) -> GatewayError:
        with self.lock:
            if self.down_until <= time.monotonic():  # requests that were under way together are one failure
                self.down_until = time.monotonic() + min(BACKOFF_MAX_S, BACKOFF_S * 2 ** min(self.n_row, 16))
                self.n_row += 1
            self.why = why
        return GatewayError("fetch", f"the gateway {self.url}: {why}")

    # ---- one request -----------------------------------------------------------------------------------------------------

    def _link(self) -> tuple[http.client.HTTPConnection, bool]:
        """This thread's connection, and whether it has been used before."""
        link = getattr(self.links, "link", None)
        if link is not None and link.sock is not None:
            return link, True
        if self.tls:
            link = http.client.HTTPSConnection(self.host, self.port, timeout=CONNECT_S, context=self.context)
        else:
            link = http.client.HTTPConnection(self.host, self.port, timeout=CONNECT_S)
        link.connect()
        link.sock.settimeout(SILENT_S)
        self.links.link = link
        with self.lock:
            self.socks[threading.get_ident()] = link.sock
        return link, False

    def _drop_link(self) -> None:
        link = getattr(self.links, "link", None)
        with self.lock:
            self.socks.pop(threading.get_ident(), None)
            if link is not None:
                link.close()
        self.links.link = None

    def break_off(self, thread: int) -> None:
        """What that thread waits for ends now, however slowly it comes; its `wanted` must say no already."""
        with self.lock:
            sock = self.socks.get(thread)
            if sock is None:
                return
            try:
                socket.socket.shutdown(sock, socket.SHUT_RDWR)  # not TLS's, which is the other thread's
            except OSError:
                pass  # it has ended by itself

    def _send(
        self, method: str, path: str, content_range: str = "", body: bytes = b"", wanted: Callable[[], bool] = _always
    ) -> tuple[http.client.HTTPResponse, bytes, bytes]:
        """(answer, signature of the pass, the secret that made it). A kept connection may have ended meanwhile: then once more on a new one."""
        self._ask_leave()
        secret = self.secret.value()
        if secret is None:
            raise self._failed(f"there is no secret in {self.secret.path}")
        text, signature = write_pass(secret, method, path, content_range, body, int(time.time()))
        headers = {"X-Inferscale-Pass": text, **({"Content-Range": content_range} if content_range else {})}
        while True:
            used = False
            try:
                link, used = self._link()
                if not wanted():  # looked at behind the connection: break_off() sees that, or this sees why it came
                    raise Cancelled
                link.request(method, self.prefix + path, body if method == "PUT" else None, headers)
                return link.getresponse(), signature, secret
            except (OSError, http.client.HTTPException) as e:
                self._drop_link()
                if not wanted():
                    raise Cancelled from e
                if not used or isinstance(e, TimeoutError):
                    raise self._failed(f"{type(e).__name__}: {e}") from e

    def _refused(self, answer: http.client.HTTPResponse) -> GatewayError:
        said = answer.read(2000).decode("utf-8", "replace")
        self._drop_link()
        return self._failed(f"HTTP {answer.status}: {said[:300]}")

    # ---- what is asked for -----------------------------------------------------------------------------------------------

    def fetch(self, where: int, name: bytes, out: BinaryIO, most: int, wanted: Callable[[], bool]) -> int:
        """Writes the segment's bytes to `out`, at most so many, and says how many. GatewayError; Cancelled when `wanted` says so."""
        answer, signature, secret = self._send("GET", f"/inferscale/kv/{FOLDERS[where]}/{name.hex()}", wanted=wanted)
        if answer.status == 404:
            answer.read()
            self._worked()
            raise GatewayError("missing", f"the gateway has no segment {name.hex()[:16]}")
        if answer.status != 200:
            raise self._refused(answer)
        hasher = hashlib.blake2b(_field(b"inferscale seal 1") + _field(signature), key=secret, digest_size=32)
        due, held, n = answer.length, b"", 0  # the last bytes that have come are the seal, if nothing comes behind them
        try:
            for piece in self._pieces(answer, wanted):
                held += piece
                ready, held = held[:-SEAL], held[-SEAL:]
                hasher.update(ready)
                out.write(ready)
                n += len(ready)
                if n > most:
                    raise GatewayError("fetch", f"segment {name.hex()[:16]} is larger than the cache ({most} bytes)")
        finally:
            if not answer.isclosed():
                self._drop_link()
        if due is not None and n + len(held) < due:
            raise self._failed(f"the transfer broke off after {n + len(held)} of {due} bytes")
        self._worked()
        if hasher.digest() != held:
            raise GatewayError("torn", f"segment {name.hex()[:16]} came with a wrong seal")
        return n

    def _pieces(self, answer: http.client.HTTPResponse, wanted: Callable[[], bool]) -> Iterator[bytes]:
        """The body as it comes. What its reader raises, of a full disk for instance, does not pass through here and is no failure of the line."""
        while True:
            try:
                piece = answer.read1(PIECE)
            except (OSError, http.client.HTTPException) as e:
                raise self._failed(f"the transfer broke off ({type(e).__name__}: {e})") if wanted() else Cancelled() from e
            if not wanted():
                raise Cancelled
            if not piece:
                return
            yield piece

    def has(self, where: int, name: bytes, wanted: Callable[[], bool] = _always) -> bool:
        answer, _, _ = self._send("HEAD", f"/inferscale/kv/{FOLDERS[where]}/{name.hex()}", wanted=wanted)
        answer.read()
        if answer.status not in (200, 404):
            raise self._refused(answer)
        self._worked()
        return answer.status == 200

    def bring(self, path: Path) -> None:
        """A file of captured rows, piece by piece. GatewayError `missing`: nobody waits for it any more."""
        total, at = path.stat().st_size, 0
        with open(path, "rb") as rows:
            while piece := rows.read(PIECE):
                answer, _, _ = self._send("PUT", f"/inferscale/kv/spool/{path.name}", f"bytes {at}-{at + len(piece) - 1}/{total}", piece)
                if answer.status == 404:
                    answer.read()
                    raise GatewayError("missing", f"the gateway does not wait for {path.name}")
                if answer.status != 200:
                    raise self._refused(answer)
                answer.read()
                self._worked()
                at += len(piece)
