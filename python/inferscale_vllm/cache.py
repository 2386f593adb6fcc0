"""Segments of a gateway on another host, as files of this one: under the names and in the folders that the store has, so everything that
reads segments reads these.

A cache holds what its own process fetched: what an earlier one left is overwritten when the next begins, since nobody can say what was forgotten
while none ran. Files that go, for whatever reason, are overwritten first."""

from __future__ import annotations

import fcntl
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .ticket import folder

MARK = "inferscale-cache"  # the file that says: this folder is a cache, what is in it may go
PARTS = ("vault", "vllm")  # what of it is ours
Key = tuple[int, bytes]  # (StoredPart.where, name)


def shred(path: Path) -> None:
    """Overwritten with zeros, synced, removed. OSError if it is there and cannot be; gone already is fine."""
    try:
        with open(path, "r+b") as f:
            left = os.fstat(f.fileno()).st_size
            zeros = bytes(min(left, 1 << 20))
            while left > 0:
                left -= f.write(zeros[:left])
            f.flush()
            os.fsync(f.fileno())
        os.unlink(path)
    except FileNotFoundError:
        pass


@dataclass
class Entry:
    size: int
    tag: bytes
    epoch: int
    pins: int = 0  # requests that count on it


class Cache:
    """Thread safe. One process has it; workers of the same vLLM read its files."""

    def __init__(self, home: Path, budget: int) -> None:
        self.home, self.budget = home, budget
        self.lock = threading.Lock()
        self.entries: OrderedDict[Key, Entry] = OrderedDict()  # the one used longest ago first
        self.bytes, self.serial = 0, 0
        self.doomed: set[Path] = set()  # files that are out of the books and not overwritten yet
        self.held = self._claim()
        self._wipe()
        self.temporary = home / "vault" / "tmp"
        self.temporary.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _claim(self) -> int:
        """The mark, locked as long as the process lives. ValueError: the folder is something else, or another vLLM's."""
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        mark = self.home / MARK
        if not mark.exists() and any(self.home.iterdir()):
            raise ValueError(f"{self.home} is not empty and no cache of this connector; give a folder of its own (--cache)")
        os.chmod(self.home, 0o700)
        held = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(held)
            raise ValueError(f"{self.home} is the cache of another vLLM that runs; give each its own (--cache)") from None
        return held

    def _wipe(self) -> None:
        for part in PARTS:
            for base, _, names in os.walk(self.home / part):
                for name in names:
                    shred(Path(base) / name)

    def path(self, key: Key) -> Path:
        name = key[1].hex()
        return self.home / folder(key[0]) / name[:2] / (name + ".seg")

    def has(self, key: Key) -> bool:
        with self.lock:
            if key not in self.entries:
                return False
            self.entries.move_to_end(key)
            return True

    def pin(self, key: Key, by: int) -> Entry | None:
        """The entry, so that whoever pinned it lowers this one and not another that came under its name."""
        with self.lock:
            entry = self.entries.get(key)
            if entry is not None:
                self.entries.move_to_end(key)
                entry.pins = max(0, entry.pins + by)
            return entry

    def unpin(self, entry: Entry) -> None:
        with self.lock:
            entry.pins = max(0, entry.pins - 1)

    def begin(self) -> Path:
        """A name for a file that is being fetched."""
        with self.lock:
            self.serial += 1
            return self.temporary / f"{os.getpid()}-{self.serial}.fetch"

    def add(self, key: Key, fetched: Path, size: int, tag: bytes, epoch: int, pins: int) -> list[Path]:
        """The fetched file becomes the segment's; what was used longest ago makes room. What is left to be overwritten."""
        path = self.path(key)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.lock:
            os.rename(fetched, path)
            old = self.entries.pop(key, None)
            self.bytes += size - (old.size if old is not None else 0)
            self.entries[key] = Entry(size, tag, epoch, pins)
            return [self._take_out(other) for other in self._surplus(key)]

    def _surplus(self, newest: Key) -> list[Key]:
        """Under the lock: what has to go. Nothing that a request counts on."""
        left, out = self.bytes, []
        for key, entry in self.entries.items():
            if left <= self.budget:
                break
            if entry.pins == 0 and key != newest:
                out.append(key)
                left -= entry.size
        return out

    def _take_out(self, key: Key) -> Path:
        """Under the lock: nobody finds it any more under the path that this returns."""
        self.serial += 1
        away = self.temporary / f"{os.getpid()}-{self.serial}.gone"
        try:
            os.rename(self.path(key), away)
        except FileNotFoundError:
            pass
        self.bytes -= self.entries.pop(key).size
        self.doomed.add(away)
        return away

    def drop(self, keys: Iterable[Key]) -> None:
        """Overwrites and removes them. OSError: something is still there, and is tried again with the next."""
        with self.lock:
            for key in keys:
                if key in self.entries:
                    self._take_out(key)
        self.sweep()

    def doom(self, path: Path) -> None:
        """A file that was never in the books and could not be overwritten: the next sweep tries again."""
        with self.lock:
            self.doomed.add(path)

    def sweep(self) -> None:
        """Overwrites what was taken out. OSError: some of it is still there."""
        failed: OSError | None = None
        with self.lock:
            doomed = list(self.doomed)
        for path in doomed:
            try:
                shred(path)
            except OSError as e:
                failed = e
                continue
            with self.lock:
                self.doomed.discard(path)
        if failed is not None:
            raise failed

    def of_tag(self, tag: bytes, epoch: int) -> list[Key]:
        """What was fetched for this memory before this epoch."""
        with self.lock:
            return [key for key, entry in self.entries.items() if entry.tag == tag and entry.epoch < epoch]

    def all(self) -> list[Key]:
        with self.lock:
            return list(self.entries)

    def idle(self, where: int) -> list[Key]:
        """What no request counts on now."""
        with self.lock:
            return [key for key, entry in self.entries.items() if entry.pins == 0 and key[0] == where]
