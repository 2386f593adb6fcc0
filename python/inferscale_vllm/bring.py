"""Captured rows on their way to a gateway on another host: a worker leaves them in its own spool and goes on, and a thread brings them.

The response of the capture says how many files are coming; the gateway waits for them, and takes what has come whole, so nobody has to be
believed. A file is overwritten and removed here whether or not it was taken."""

from __future__ import annotations

import queue
import threading
from pathlib import Path

from vllm.logger import init_logger

from .cache import shred
from .gateway import Gateway, GatewayError
from .settings import Settings

logger = init_logger("vllm.inferscale")

COMING = ".coming"  # behind a file's name: an empty file that tells the scheduler's side that it was written


class Bringer:
    def __init__(self, settings: Settings) -> None:
        self.gateway = Gateway(settings)
        self.files: queue.Queue[Path] = queue.Queue()
        self.lock = threading.Lock()
        self.failures = 0
        threading.Thread(target=self._bring_all, name="inferscale-bring", daemon=True).start()

    def bring(self, path: Path) -> None:
        try:
            path.with_name(path.name + COMING).touch(mode=0o600)
        except OSError:  # nobody would come for these rows
            shred(path)
            raise
        self.files.put(path)

    def take_failures(self) -> int:
        with self.lock:
            taken, self.failures = self.failures, 0
        return taken

    def _bring_all(self) -> None:
        while True:
            path = self.files.get()
            try:
                self.gateway.bring(path)
            except Exception as e:  # noqa: BLE001 - whatever it is, the gateway asks again; the thread must live
                with self.lock:
                    self.failures += 1
                if isinstance(e, (GatewayError, OSError)):
                    logger.warning("InferScale: captured rows were not brought: %s", e)
                else:
                    logger.exception("InferScale: captured rows were not brought")
            try:
                shred(path)
            except OSError as e:
                logger.error("InferScale: captured rows stay in %s: %s", path, e)
