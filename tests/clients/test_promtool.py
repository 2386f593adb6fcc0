"""promtool on what a live server exposes after real traffic, and on the alert rules that are installed."""
import os
import re
import subprocess
import urllib.request

from tap import URL, case, finish

PROMTOOL = os.environ.get("INFERSCALE_PROMTOOL", "")


def promtool(*arguments, stdin=b""):
    done = subprocess.run([PROMTOOL, *arguments], input=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    return done.returncode, done.stdout.decode()


def metrics(query=""):
    with urllib.request.urlopen(URL + "/metrics" + query, timeout=30) as reply:
        return reply.read()


if not PROMTOOL:
    print("ok 1 - promtool # SKIP %s" % os.environ.get("INFERSCALE_NO_PROMTOOL", "it is not here"))
    print("1..1")
    raise SystemExit(0)


def ask():
    request = urllib.request.Request(URL + "/v1/completions", b'{"prompt": "One two three", "max_tokens": 4}', {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as reply:
        reply.read()


@case("promtool finds nothing in the metrics of a server that has answered")
def _():
    ask()
    text = metrics("?aliases=no")
    assert re.search(rb"^inferscale_generation_tokens_total [1-9]", text, re.M), "no traffic was counted"
    rc, out = promtool("check", "metrics", stdin=text)
    assert rc == 0 and not out.strip(), (rc, out)


@case("in vLLM's names promtool dislikes the colons alone")
def _():
    rc, out = promtool("check", "metrics", stdin=metrics())
    rest = [line for line in out.splitlines() if not re.match(r"vllm:\S+ metric names should not contain ':'", line)]
    assert not rest, (rc, rest)


@case("the check can fail")
def _():
    rc, out = promtool("check", "metrics", stdin=b"# TYPE a counter\na 1\na 2\n")
    assert rc != 0 or out.strip(), (rc, out)


@case("the alert rules are valid")
def _():
    rc, out = promtool("check", "rules", "packaging/alerts.yml")
    assert rc == 0, out


finish()
