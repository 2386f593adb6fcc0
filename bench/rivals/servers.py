"""Processes that answer over HTTP, one request at a time."""
import http.client
import json
import re
import socket
import subprocess
import time


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


RUNNING = []


def cpu_clock(pid):
    """Linux's number of the clock of a process's own processor time, ended threads included: what
    clock_getcpuclockid() gives, which Python has not."""
    return ~pid << 3 | 2


class Clock:
    """Seconds since it was made: of the wall (`wall`), and of the processor (`cpu`): this process
    and all running servers together. Neighbours on a busy machine lengthen only the first."""

    def __init__(self):
        self.cpu0 = self.cpu_now()
        self.wall0 = time.perf_counter()

    @staticmethod
    def cpu_now():
        return time.process_time() + sum(time.clock_gettime(cpu_clock(s.process.pid))
                                         for s in RUNNING)

    def read(self):
        wall = time.perf_counter() - self.wall0
        return {"wall": wall, "cpu": self.cpu_now() - self.cpu0}


class Server:
    """A started server; its log is the file `log`. stop() ends it."""

    def __init__(self, name, command, port, log, ready, env=None):
        self.name, self.port, self.log = name, port, log
        with open(log, "wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out,
                                            stdin=subprocess.DEVNULL, env=env)
        RUNNING.append(self)
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3600)
        self.wait(ready)

    def wait(self, ready):
        for _ in range(3000):
            if self.process.poll() is not None:
                break
            try:
                self.get(ready)
                return
            except (OSError, http.client.HTTPException, RuntimeError):
                self.connection.close()
                time.sleep(0.1)
        self.stop()
        raise SystemExit("%s did not start; its log is %s" % (self.name, self.log))

    def stop(self):
        RUNNING.remove(self)
        self.connection.close()
        self.process.terminate()
        self.process.wait()

    def fresh(self):
        """A new connection: servers close idle ones. Call it before a clock is started."""
        self.connection.close()
        self.connection.connect()

    def send(self, method, path, body=None):
        data = None if body is None else json.dumps(body)
        self.connection.request(method, path, data, {"Content-Type": "application/json"})
        reply = self.connection.getresponse()
        if reply.status >= 300:
            raise RuntimeError("%s: %s %s: %d %s" % (self.name, method, path, reply.status,
                                                     reply.read().decode(errors="replace")))
        return reply

    def get(self, path):
        data = self.send("GET", path).read()
        return json.loads(data) if data[:1] in (b"{", b"[") else None

    def post(self, path, body):
        return json.loads(self.send("POST", path, body).read())

    def chat(self, body):
        """Streams an answer. first, last: Clock.read() at the first piece of text (None: there was
        none) and at the end."""
        self.fresh()
        text, first, memory, clock = "", None, None, Clock()
        reply = self.send("POST", "/v1/chat/completions",
                          dict(body, stream=True, temperature=0))
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError("%s: %s" % (self.name, event["error"]))
            memory = event.get("memory", memory)
            for choice in event.get("choices", []):
                piece = choice.get("delta", {}).get("content")
                if piece and first is None:
                    first = clock.read()
                text += piece or ""
        return {"first": first, "last": clock.read(), "text": text, "memory": memory}


class Ours(Server):
    """`inferscale serve` on a home folder. refine: it serves the second stage's rows, and makes
    those that are missing in the background, beside what is measured."""

    def __init__(self, binary, home, model, threads, context, refine, log):
        port = free_port()
        super().__init__("inferscale serve", [
            binary, "serve", "--home", home, "--model", model, "--threads", str(threads), "--ctx",
            str(context), "--ram", "4G", "--host", "127.0.0.1", "--port", str(port)] +
            ([] if refine else ["--refine", "none"]), port, log, "/ready")


class Llama(Server):
    """llama-cpp-python's server. It always keeps the last prompt as a prefix; cache_bytes: it
    keeps copies of earlier ones too (its RAM cache)."""

    def __init__(self, name, python, model, threads, context, flash, log, env, cache_bytes=0):
        port = free_port()
        command = [python, "-m", "llama_cpp.server", "--model", model, "--host", "127.0.0.1",
                   "--port", str(port), "--n_threads", str(threads), "--n_threads_batch",
                   str(threads), "--n_ctx", str(context), "--flash_attn", str(flash), "--verbose",
                   "True"]
        if cache_bytes:
            command += ["--cache", "True", "--cache_size", str(cache_bytes)]
        super().__init__(name, command, port, log, "/v1/models", env)

    def ask(self, messages, max_tokens):
        """chat(), with `computed` and `prompt`: tokens, as the server's log says."""
        with open(self.log, "rb") as f:
            f.seek(0, 2)
            seen = f.tell()
        r = self.chat({"messages": messages, "max_tokens": max_tokens, "repeat_penalty": 1.0})
        said = b""
        for _ in range(500):  # the log is written after the last piece of the answer
            with open(self.log, "rb") as f:
                f.seek(seen)
                said = f.read()
            if b"prompt eval time" in said:
                break
            time.sleep(0.01)
        r.update(tokens_of(said.decode(errors="replace")))
        return r


def tokens_of(log):
    evaluated = re.search(r"prompt eval time = +[\d.]+ ms / +(\d+) tokens", log)
    kept = re.search(r"Llama.generate: (\d+) prefix-match hit, remaining (\d+)", log)
    computed = int(kept.group(2)) if kept else int(evaluated.group(1)) if evaluated else None
    return {"computed": computed, "prompt": computed + int(kept.group(1)) if kept else computed}
