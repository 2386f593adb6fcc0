"""A server of ours or of vLLM's as a child process: its output in a file, waited for until it answers, ended by its own id. A failure to start
tells the end of the log."""
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

from support import ground

START_S = 900  # a crowded machine; alone a start takes 20 to 40 s


class Process:
    """url: where it listens. ready: the path that answers 200 when it serves."""

    def __init__(self, name, command, folder, port, ready, env):
        self.name, self.port, self.ready = name, port, ready
        self.url = "http://127.0.0.1:%d" % port
        self.log_path = os.path.join(str(folder), "%s-%d.log" % (name, port))
        with open(self.log_path, "ab") as out:
            # A session of its own: what it starts can be ended with it, and an interrupt of the tests does not reach it first.
            self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=env,
                                          start_new_session=True)
        self.command = command

    def log(self, lines=40):
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return "".join(f.readlines()[-lines:])

    def alive(self):
        return self.child.poll() is None

    def wait_ready(self, seconds=START_S):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if not self.alive():
                raise RuntimeError("%s ended with status %s before it was ready:\n%s" % (self.name, self.child.returncode, self.log()))
            try:
                with urllib.request.urlopen(self.url + self.ready, timeout=5) as answer:
                    if answer.status == 200:
                        return self
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.2)
        tail = self.log()
        self.kill()
        raise RuntimeError("%s was not ready after %d s:\n%s" % (self.name, seconds, tail))

    def stop(self, seconds=60):
        """Asks it to end, and returns its exit status; what will not end is killed, and that is an error."""
        if not self.alive():
            return self.child.returncode
        self.child.send_signal(signal.SIGTERM)
        try:
            status = self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            tail = self.log()
            self.kill()
            raise RuntimeError("%s did not end within %d s:\n%s" % (self.name, seconds, tail)) from None
        self._end_group()
        return status

    def kill(self):
        """As a crash would: the process and what it started, at once."""
        self._end_group()
        self.child.wait(30)

    def _end_group(self):
        try:
            os.killpg(self.child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None and self.alive():
            sys.stderr.write("---- the end of %s's log ----\n%s" % (self.name, self.log(60)))
        self.stop()


def vllm(model, folder, *arguments, port=None, env=None, wait=True):
    """An OpenAI server of vLLM, eager, with 256 MiB of cache; arguments come after these, so they win."""
    port = port or ground.free_port()
    command = [ground.needed("INFERSCALE_VLLM_PYTHON"), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--host", "127.0.0.1",
               "--port", str(port), "--enforce-eager", "--kv-cache-memory-bytes", "268435456", "--max-model-len", "2048", "--max-logprobs", "-1",
               "--enable-prompt-tokens-details", "--uvicorn-log-level", "warning"]
    process = Process("vllm", command + list(map(str, arguments)), folder, port, "/health", ground.environment(**(env or {})))
    return process.wait_ready() if wait else process


def inferscale(folder, *arguments, port=None, env=None, wait=True):
    """`inferscale serve` on a store of its own: HOME/store in folder, unless arguments name another. Its rows are in the type of vLLM's
    cache, because the tests compare them with it."""
    port = port or ground.free_port()
    command = [ground.BIN, "serve", "--host", "127.0.0.1", "--port", str(port)]
    if "--home" not in arguments:
        command += ["--home", os.path.join(str(folder), "store")]
    if "--codec" not in arguments:
        command += ["--codec", "auto"]
    process = Process("inferscale", command + list(map(str, arguments)), folder, port, "/ready", ground.environment(**(env or {})))
    return process.wait_ready() if wait else process


class Pool:
    """Servers of vLLM that test modules share, at most two at a time: the one asked for longest ago makes room. Whoever breaks one on
    purpose starts it by vllm() instead."""
    LIMIT = 2

    def __init__(self, folder):
        self.folder, self.servers = folder, {}

    def get(self, model, *arguments):
        key = (str(model),) + arguments
        server = self.servers.pop(key, None)
        if server is not None and not server.alive():
            raise RuntimeError("a shared server ended by itself:\n%s" % server.log(80))
        if server is None:
            while len(self.servers) >= self.LIMIT:
                self.servers.pop(next(iter(self.servers))).stop()
            server = vllm(model, self.folder, *arguments)
        self.servers[key] = server  # the last one is the most lately used
        return server

    def close(self):
        while self.servers:
            self.servers.popitem()[1].stop()
