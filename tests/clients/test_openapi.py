"""docs/openapi.json by schemathesis: thousands of requests made from it, right and wrong ones, against a server of its own on the mock
engine. None may end in a 5xx (501, what is not served here, apart), and every answer must be what the description says."""
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

from tap import case, finish

SEED = os.environ.get("INFERSCALE_SEED", "20261130")
EXAMPLES = os.environ.get("INFERSCALE_EXAMPLES", "12")  # an operation and phase
SECONDS = 240


def start(home):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    log = open(os.path.join(home, "log"), "wb")
    server = subprocess.Popen([os.environ["INFERSCALE_BIN"], "serve", "--home", os.path.join(home, "store"), "--port", str(port), "--engine", "mock",
                               "--refine", "none"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    url = "http://127.0.0.1:%d" % port
    for _ in range(600):
        try:
            urllib.request.urlopen(url + "/ready", timeout=5)
            return server, url
        except OSError:
            assert server.poll() is None, open(os.path.join(home, "log")).read()[-2000:]
            time.sleep(0.1)
    raise AssertionError("the server did not become ready")


home = tempfile.mkdtemp(prefix="inferscale-openapi-")
server, url = start(home)


@case("seed %s: no 5xx, no answer that is not described, in bounded time" % SEED)
def _():
    command = [os.path.join(os.path.dirname(sys.executable), "schemathesis"), "run", url + "/openapi.json", "--url", url, "--seed", SEED,
               "--max-examples", EXAMPLES, "--max-time", str(SECONDS), "--phases", "examples,fuzzing", "--no-color", "--request-timeout", "60",
               "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
               "--exclude-deprecated", "--no-shrink", "--generation-database", "none", "--warnings", "off", "--continue-on-failure",
               "--suppress-health-check", "all"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * SECONDS, cwd=home)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@case("the server is as well as before, and ends in order")
def _():
    with urllib.request.urlopen(url + "/ready", timeout=30) as reply:
        assert reply.status == 200
    server.send_signal(signal.SIGTERM)
    assert server.wait(60) == 0, server.returncode


if server.poll() is None:
    server.kill()
shutil.rmtree(home, ignore_errors=True)
finish()
