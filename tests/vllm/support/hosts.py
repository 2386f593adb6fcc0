"""Two hosts: a gateway on one, vLLM with the connector on the other, and between them nothing but HTTP, through a link that can be made to
misbehave (Link). On 127.0.0.1 with a folder each, or in two network namespaces joined by a cable, where neither sees the other's folder
(Namespaces)."""
import ctypes
import json
import os
import shutil
import socket
import subprocess
import threading
import time

from support import ground, process
from support.client import Client


class Link:
    """A TCP port that leads to the gateway's, and garbles, cuts, drips or refuses what comes from it when told to."""

    def __init__(self, host, port):
        self.host, self.target, self.how, self.requests = host, port, "pass", []
        self.go = threading.Event()  # "drip": one byte a second until it is set
        self.listener = socket.create_server((host, 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near):
        if self.how == "refuse":
            near.close()
            return
        try:
            far = socket.create_connection((self.host, self.target), 10)
        except OSError:
            near.close()
            return
        threading.Thread(target=self._upward, args=(near, far), daemon=True).start()
        try:
            while piece := far.recv(65536):
                if self.how == "refuse":
                    break
                if self.how == "garble" and len(piece) > 2000:  # a segment's bytes, not a head's
                    piece = piece[:1000] + bytes([piece[1000] ^ 1]) + piece[1001:]
                if self.how == "cut" and len(piece) > 2000:
                    near.sendall(piece[:1000])
                    break
                while self.how == "drip" and not self.go.is_set() and len(piece) > 1:
                    near.sendall(piece[:1])
                    piece = piece[1:]
                    self.go.wait(1)
                near.sendall(piece)
        except OSError:
            pass
        for s in (near, far):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            s.close()

    def _upward(self, near, far):
        try:
            while piece := near.recv(65536):
                self.requests.append(piece[:200].split(b"\r\n")[0].decode("latin-1"))
                far.sendall(piece)
        except OSError:
            pass

    def close(self):
        self.listener.close()


class Namespaces:
    """Two of the network, joined by a cable; `why` says why there are none. Run as root."""
    GATEWAY, WORKER = "10.213.47.1", "10.213.47.2"

    def __init__(self):
        mark = "is%d" % os.getpid()
        self.names, self.why = (mark + "g", mark + "w"), ""
        if not shutil.which("ip"):
            self.why = "there is no `ip` (package iproute2)"
        elif os.geteuid() != 0:
            self.why = "network namespaces need root"
        else:
            try:
                self._make()
            except subprocess.CalledProcessError as e:
                self.why = "no network namespaces here: %s" % e.stderr.decode("utf-8", "replace").strip()
                self.close()

    def _ip(self, *arguments):
        subprocess.run(("ip",) + arguments, check=True, capture_output=True)

    def _make(self):
        for name in self.names:
            self._ip("netns", "add", name)
        self._ip("link", "add", "eth0", "netns", self.names[0], "type", "veth", "peer", "name", "eth0", "netns", self.names[1])
        for name, address in zip(self.names, (self.GATEWAY, self.WORKER)):
            self._ip("-n", name, "addr", "add", address + "/30", "dev", "eth0")
            for link in ("lo", "eth0"):
                self._ip("-n", name, "link", "set", link, "up")

    def command(self, which, hide, command):
        """The command in that namespace, with an empty folder where `hide` is: `ip netns exec` gives mounts of its own too."""
        return ["ip", "netns", "exec", self.names[which], "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(hide)] + list(map(str, command))

    def inside(self, which, do):
        """Calls do() on a thread that is in that namespace: the sockets it makes are."""
        out = {}

        def run():
            with open("/run/netns/" + self.names[which]) as f:
                if ctypes.CDLL(None, use_errno=True).setns(f.fileno(), 0x40000000):
                    out["error"] = OSError(ctypes.get_errno(), "setns")
                    return
            try:
                out["value"] = do()
            except BaseException as e:  # noqa: BLE001 - the caller's
                out["error"] = e
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if "error" in out:
            raise out["error"]
        return out["value"]

    def close(self):
        for name in self.names:
            subprocess.run(("ip", "netns", "del", name), capture_output=True)


class Pair:
    """A gateway whose folder is `home`, and vLLM whose folder is `cache`. ns: Namespaces, or None for 127.0.0.1."""

    def __init__(self, folder, model, ns=None, **more):
        self.folder, self.model, self.ns = folder, model, ns
        self.home, self.cache, self.secret = folder / "gateway", folder / "worker/cache", folder / "worker/secret"
        for d in (self.home, folder / "worker"):
            os.makedirs(d, 0o700)
        self.port, self.vllm_port = ground.free_port(), ground.free_port()
        self.link = self.inside(0, lambda: Link(self._address(0), self.port))
        self.vllm = None
        self.keys = folder / "keys"
        self.keys.write_text("isk_test_0123456789abcdef admin\n")
        self.keys.chmod(0o600)
        self.start_gateway(wait=False)  # makes the secret, and would wait for vLLM, but a crowded machine takes longer than it waits
        until = time.monotonic() + 120
        while not (self.home / "vllm/secret").exists():
            assert time.monotonic() < until and self.gateway.alive(), self.gateway.log()
            time.sleep(0.05)
        shutil.copy(self.home / "vllm/secret", self.secret)
        self.secret.chmod(0o600)
        self.gateway.stop()
        self.start_vllm(**more)
        self.start_gateway()

    def inside(self, which, do):
        """What do() returns, called where host `which` is."""
        return self.ns.inside(which, do) if self.ns else do()

    def _address(self, which):
        return (Namespaces.GATEWAY, Namespaces.WORKER)[which] if self.ns else "127.0.0.1"

    def _start(self, which, name, command, port, ready, hide):
        if self.ns:
            command = self.ns.command(which, hide, command)
        os.makedirs(hide, exist_ok=True)
        p = process.Process(name, list(map(str, command)), self.folder, port, ready, ground.environment(HOME=self.folder))
        p.url = "http://%s:%d" % (self._address(which), port)
        return p

    def _ready(self, p):
        which = 0 if p is self.gateway else 1
        self.inside(which, p.wait_ready)

    def start_gateway(self, wait=True):
        command = [ground.BIN, "serve", "--host", self._address(0), "--port", self.port, "--home", self.home, "--engine", "vllm", "--keys", self.keys,
                   "--upstream", "http://%s:%d" % (self._address(1), self.vllm_port), "--policy", "header", "--refine", "none",
                   "--codec", "auto"]
        self.gateway = self._start(0, "gateway", command, self.port, "/ready", self.folder / "worker")
        self.api = Client(self.gateway.url, headers={"Authorization": "Bearer isk_test_0123456789abcdef"})
        if wait:
            self._ready(self.gateway)
        return self.gateway

    def start_vllm(self, **more):
        url = "http://%s:%d" % (self._address(0), self.link.port)
        command = [ground.needed("INFERSCALE_VLLM_PYTHON"), "-m", "inferscale_vllm.launch", "serve", self.model, "--gateway", url, "--secret", self.secret,
                   "--cache", self.cache, "--host", self._address(1), "--port", self.vllm_port, "--dtype", "float32", "--enforce-eager",
                   "--kv-cache-memory-bytes", "268435456", "--max-model-len", "2048", "--max-logprobs", "-1", "--uvicorn-log-level", "warning"]
        for name, value in more.items():
            command += ["--" + name.replace("_", "-"), value]
        self.vllm = self._start(1, "vllm", command, self.vllm_port, "/health", self.home)
        self._ready(self.vllm)

    def call(self, method, path, body=None):
        return json.loads(self.inside(0, lambda: self.api.request(method, path, body)))

    def metric(self, name, label=""):
        """The sum of a metric of vLLM's, of series with that label."""
        text = self.inside(1, lambda: Client(self.vllm.url).get("/metrics"))
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name) and label in line)

    def remember(self, user, *texts):
        got = self.call("POST", "/memories", {"messages": [{"role": "user", "content": t} for t in texts], "user_id": user, "infer": False,
            "timestamp": "2026-11-30"})
        until = time.monotonic() + 300
        while time.monotonic() < until:
            e = self.call("GET", "/inferscale/encode")
            if e["n_unembedded"] + e["n_unencoded"] == 0:
                return [int(r["id"]) for r in got["results"]]
            time.sleep(0.3)
        raise AssertionError("the encoder did not come to an end: %r\n%s\n%s" % (e, self.gateway.log(), self.vllm.log()))

    def ask(self, user, question, mode="kv", k=1, **more):
        return self.call("POST", "/v1/chat/completions", dict({"messages": [{"role": "user", "content": question}], "temperature": 0,
                         "max_tokens": 12, "memory": {"user_id": user, "mode": mode, "k": k}}, **more))

    def stored(self, where="vault"):
        """Names of the segments in the worker's cache."""
        return {p.stem for p in (self.cache / where).glob("??/*.seg")}

    def stop(self):
        for p in (self.gateway, self.vllm):
            if p is not None and p.alive():
                p.stop()
        self.link.close()
