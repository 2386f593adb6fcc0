"""docs/openapi.json by schemathesis: thousands of requests made from it, right and wrong ones, against a server of its own on the mock
engine. None may end in a 5xx (501, what is not served here, apart), and every answer must be what the description says."""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from tap import case, finish

SEED = os.environ.get("INFERSCALE_SEED", "20261130")
EXAMPLES = os.environ.get("INFERSCALE_EXAMPLES", "12")  # an operation and phase
SECONDS = 90


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
               "--exclude-deprecated", "--exclude-path", "/inferscale/import", "--no-shrink", "--generation-database", "none", "--warnings", "off", "--continue-on-failure",
               "--suppress-health-check", "all"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=4 * SECONDS, cwd=home)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def imported(body):
    try:
        request = urllib.request.Request(url + "/inferscale/import?user_id=lines", data=body, headers={"Content-Type": "application/x-ndjson"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)


@case("JSON Lines, which schemathesis cannot write: what is exported is imported, what is none is refused")
def _():
    status, reply = imported(b'{"text": "Rosa keeps bees."}\n')
    assert status == 200 and reply["added"] == 1, (status, reply)
    with urllib.request.urlopen(url + "/inferscale/export?user_id=lines", timeout=60) as out:
        status, reply = imported(out.read())
    assert status == 200 and (reply["added"], reply["known"]) == (0, 1), (status, reply)
    for bad in (b"{", b"[]\n", b"\xff\xfe\n", b'{"text": 1}\n', b"\x00" * 100, b'{"text": ""}\n'):
        status, reply = imported(bad)
        assert status == 400 and reply["error"]["message"], (bad, status, reply)


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
