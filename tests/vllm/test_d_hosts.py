"""A gateway and vLLM on two hosts that share no folder: segments are fetched over HTTP and kept in the worker's cache, captured rows come back the
same way, what is forgotten leaves the other host's disk, and what goes wrong on the way is computed exactly and counted."""
import http.client
import os
import subprocess
import sys
import threading
import time

import pytest
from support import ground, hosts, process

sys.path.insert(0, ground.PACKAGE)
from inferscale_vllm import cache, gateway, settings  # noqa: E402

PEANUTS, WHICH = "Anna is allergic to peanuts and to nothing else that she knows of.", "Which food is Anna allergic to?"


@pytest.fixture(scope="module", params=["127.0.0.1", "namespaces"])
def pair(request, folder, smollm2):
    ns = hosts.Namespaces() if request.param == "namespaces" else None
    if ns and ns.why:
        pytest.skip(ns.why)
    made = None
    try:
        made = hosts.Pair(folder / ("hosts-" + request.param), smollm2, ns, fetch_wait=120, block_size=32)
        yield made
    finally:
        if made:
            made.stop()
        if ns:
            ns.close()


def answer(said):
    return said["choices"][0]["message"]["content"]


def injected(said):
    return said["memory"]["mode"] == "kv" and said["memory"]["fallback"] == "" and [f["source"] for f in said["memory"]["facts"]] == ["stored"]


def until(holds, what, seconds=120):
    end = time.monotonic() + seconds
    while not (value := holds()):
        assert time.monotonic() < end, what
        time.sleep(0.5)
    return value


def injected_again(pair, user, question):
    """Soon after the line is mended: names that failed are left alone for some seconds."""
    return until(lambda: injected(pair.ask(user, question)), "%s's facts are not injected again: %s" % (user, pair.vllm.log()))


# ---- The way there and back ---------------------------------------------------------------------------------------------------


def test_facts_are_captured_there_and_injected_from_here(pair):
    pair.remember("anna", PEANUTS)
    kv, text = (pair.ask("anna", WHICH, mode) for mode in ("kv", "text"))
    assert injected(kv), (kv["memory"], pair.vllm.log())
    assert answer(kv) == answer(text)
    assert pair.stored() and pair.stored("vllm/heads")
    fetched = pair.metric("inferscale_segments_fetched_total")
    assert fetched >= 2 and pair.metric("inferscale_bytes_fetched_total") > 10_000
    pair.ask("anna", WHICH + " Say it again.")
    assert pair.metric("inferscale_segments_fetched_total") == fetched  # out of the cache
    for spool in (pair.home / "vllm/spool", pair.cache / "vllm/spool"):
        until(lambda: not [p for p in spool.iterdir() if not p.name.startswith("owner-")], "captured rows stay in %s" % spool, 20)  # noqa: B023
    assert any(r.startswith("PUT /inferscale/kv/spool/") for r in pair.link.requests)


def test_forgetting_reaches_the_other_host_s_disk(pair):
    before = pair.stored()
    secret = pair.remember("ida", "Ida's word is quixotic.")[0]
    assert "quixotic" in answer(pair.ask("ida", "What is Ida's word?")).lower()
    hers = pair.stored() - before
    assert hers and before
    files = [open(pair.cache / "vault" / name[:2] / (name + ".seg"), "rb") for name in hers]
    report = pair.call("POST", "/inferscale/forget", {"ids": [secret], "user_id": "ida", "prove": True})
    assert report["forgotten"] == 1 and report["pending"] == 0, report
    assert not hers & pair.stored() and before <= pair.stored()  # others' stay
    for f in files:
        assert f.read().strip(b"\0") == b""  # overwritten, whoever still has it open
        f.close()
    assert "quixotic" not in str(pair.ask("ida", "What is Ida's word?", k=2)).lower()


# ---- What goes wrong ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how, reason, who, town", [("garble", "torn", "ole", "Oslo"), ("cut", "fetch", "pia", "Paris"), ("refuse", "fetch", "rob", "Rome")])
def test_what_does_not_arrive_is_computed_and_counted(pair, how, reason, who, town):
    question = "Where does %s live?" % who.title()
    pair.remember(who, "%s lives in %s and has lived there for years." % (who.title(), town))
    before, failures = pair.stored(), pair.metric("inferscale_failures_total", 'reason="%s"' % reason)
    pair.link.how = how
    try:
        said = pair.ask(who, question)
        assert not injected(said) and said["memory"]["tokens"]["injected"] == 0, said["memory"]
        assert town in answer(said) and pair.stored() == before
        assert pair.metric("inferscale_failures_total", 'reason="%s"' % reason) > failures
        info = pair.call("GET", "/inferscale/info")["upstreams"][0]
        assert info["failures"].get(reason), info
    finally:
        pair.link.how = "pass"
    injected_again(pair, who, question)
    assert not list((pair.cache / "vault/tmp").iterdir())


def test_nobody_waits_for_somebody_else_s_segments(pair):
    pair.remember("val", "Val lives in Vienna and has lived there for years.")
    out = {}
    pair.link.go.clear()
    pair.link.how = "drip"
    slow = threading.Thread(target=lambda: out.update(said=pair.ask("val", "Where does Val live?")))
    try:
        slow.start()
        until(lambda: any((pair.cache / "vault/tmp").iterdir()), "nothing is fetched")
        assert injected(pair.ask("anna", WHICH + " Please."))
        assert slow.is_alive() and not out
    finally:
        pair.link.how = "pass"
        pair.link.go.set()
    slow.join()
    assert injected(out["said"]) and "Vienna" in answer(out["said"])


def knock(pair, method, path, secret, body=b"", content_range="", headers=None, now=None, signed=None):
    """One request to the gateway, past the link, signed for `signed` (method, path) if that is another; its status."""
    for_method, for_path = signed or (method, path)
    head = {"X-Inferscale-Pass": gateway.write_pass(secret, for_method, for_path, content_range, body, now or int(time.time()))[0]} if secret else {}

    def ask():
        link = http.client.HTTPConnection(pair.link.host, pair.port, timeout=60)
        link.request(method, path, body if method == "PUT" else None,
                     dict(head, **({"Content-Range": content_range} if content_range else {}), **(headers or {})))
        got = link.getresponse()
        got.read()
        link.close()
        return got.status
    return pair.inside(0, ask)


def test_without_the_secret_nothing_is_had_or_brought(pair):
    secret = bytes.fromhex(pair.secret.read_text().strip())
    name = sorted(pair.stored())[0]
    get, put = "/inferscale/kv/vault/" + name, "/inferscale/kv/spool/%s.0.0" % ("ab" * 16)
    assert knock(pair, "GET", get, secret) == 200 and knock(pair, "HEAD", get, secret) == 200
    key = {"Authorization": "Bearer isk_test_0123456789abcdef"}  # an administrator's
    for status in (
        knock(pair, "GET", get, None), knock(pair, "GET", get, None, headers=key), knock(pair, "GET", get, bytes(32)),
        knock(pair, "GET", get, bytes(32), headers=key), knock(pair, "GET", get, secret, now=int(time.time()) - 400),
        knock(pair, "GET", get, secret, now=int(time.time()) + 400), knock(pair, "GET", get, secret, signed=("HEAD", get)),
        knock(pair, "GET", get, secret, signed=("GET", get[:-1] + ("1" if get[-1] != "1" else "2"))),
        knock(pair, "PUT", put, None, b"rows", "bytes 0-3/4"), knock(pair, "PUT", put, bytes(32), b"rows", "bytes 0-3/4", headers=key),
    ):
        assert status == 401
    for path in ("../../bank.sqlite", "..%2f..%2fbank.sqlite", "..%2fsecret", name.upper(), name[:-1], name + "0", "%2e%2e"):
        assert knock(pair, "GET", "/inferscale/kv/vault/" + path, secret) in (400, 404), path
    assert knock(pair, "GET", "/inferscale/kv/vault/" + "0" * 64, secret) == 404
    assert knock(pair, "PUT", put, secret, b"rows", "bytes 0-3/4") == 404  # nobody asked for it
    for path in ("..%2fsecret", "x", "ab" * 16, "ab" * 16 + ".0", "ab" * 16 + ".0.0.part", "ab" * 16 + ".00.0"):
        assert knock(pair, "PUT", "/inferscale/kv/spool/" + path, secret, b"rows", "bytes 0-3/4") in (400, 404), path
    for wrong in ("", "bytes 0-4/4", "bytes 0-2/4", "bytes 4-0/9", "bytes */4"):
        assert knock(pair, "PUT", put, secret, b"rows", wrong) == 400, wrong
    assert knock(pair, "PUT", put, secret, bytes(17 << 20), "bytes 0-17825791/17825792") == 413
    assert sorted(p.name for p in (pair.home / "vllm/spool").iterdir() if not p.name.startswith("owner-")) == []


def test_what_is_forgotten_while_no_gateway_runs_goes_when_one_does(pair):
    before = pair.stored()
    pair.remember("eva", "Eva's favourite colour is green.")
    assert injected(pair.ask("eva", "What is Eva's favourite colour?"))
    hers = pair.stored() - before
    assert hers
    pair.gateway.kill()
    said = subprocess.run([ground.BIN, "forget", "--home", str(pair.home), "--user", "eva", "--all", "--yes"], capture_output=True, text=True,
                          env=ground.environment(), timeout=300)
    assert said.returncode == 0, said.stderr
    assert hers <= pair.stored()  # nobody could tell
    pair.start_gateway()
    until(lambda: not hers & pair.stored(), "what was forgotten stays in the cache: %s" % pair.vllm.log())
    assert before <= pair.stored()
    injected_again(pair, "anna", WHICH)
    assert "green" not in str(pair.ask("eva", "What is Eva's favourite colour?")).lower()


# ---- The cache ------------------------------------------------------------------------------------------------------------------


def key(n):
    return 0, bytes([n]) * 32


def put(c, n, size, tag=b"t" * 32, epoch=1, pins=0):
    path = c.begin()
    path.write_bytes(b"x" * size)
    c.add(key(n), path, size, tag, epoch, pins)
    c.sweep()


def test_a_cache_is_its_own_and_begins_empty(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store/bank.sqlite").write_text("a store")
    with pytest.raises(ValueError, match="no cache"):
        cache.Cache(tmp_path / "store", 1 << 20)
    assert (tmp_path / "store/bank.sqlite").read_text() == "a store"
    one = cache.Cache(tmp_path / "mine", 1 << 20)
    put(one, 1, 100)
    with pytest.raises(ValueError, match="another vLLM"):
        cache.Cache(tmp_path / "mine", 1 << 20)
    os.close(one.held)
    with open(one.path(key(1)), "rb") as left:
        assert not cache.Cache(tmp_path / "mine", 1 << 20).path(key(1)).exists()
        assert left.read() == bytes(100)  # overwritten


def test_a_cache_keeps_what_was_used_last_and_what_is_in_use(tmp_path):
    c = cache.Cache(tmp_path / "c", 1000)
    put(c, 1, 400, pins=1)
    put(c, 2, 400)
    put(c, 3, 400)  # 2 goes: 1 is in use
    assert c.has(key(1)) and not c.has(key(2)) and not c.path(key(2)).exists() and c.has(key(3))
    c.pin(key(1), -1)
    assert c.has(key(3)) and c.has(key(1))
    put(c, 4, 400)  # 3 was used longer ago than 1
    assert c.has(key(1)) and not c.has(key(3)) and c.bytes == 800
    put(c, 5, 100, tag=b"u" * 32, epoch=7)
    assert c.of_tag(b"u" * 32, 8) == [key(5)] and c.of_tag(b"u" * 32, 7) == []
    c.drop([key(5), key(9)])
    assert not c.has(key(5)) and c.bytes == 800 and not list(c.temporary.iterdir())


# ---- TLS ------------------------------------------------------------------------------------------------------------------------


def test_tls_with_a_certificate_of_one_s_own(tmp_path, start):
    cert, private, secret = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "secret"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", private, "-out", cert, "-days", "2", "-subj", "/CN=gateway",
                    "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    secret.write_text("ab" * 32)
    secret.chmod(0o600)
    port = ground.free_port()
    server = start(process.inferscale, "--home", str(tmp_path / "home"), "--engine", "mock", "--embedder", "mock", "--tls-cert", str(cert),
                   "--tls-key", str(private), port=port, wait=False)
    url = "https://127.0.0.1:%d" % port

    def asked(**more):
        link = gateway.Gateway(settings.read({"home": str(tmp_path / "cache"), "gateway": url, "secret_file": str(secret), **more}))
        return until(lambda: try_it(link), server.log(), 60)

    def try_it(link):
        try:
            return "answered %s" % link.has(0, bytes(32))
        except gateway.GatewayError as e:
            return str(e) if "refused" not in str(e) and "loading" not in str(e) and "is not asked" not in str(e) else ""
    assert asked(gateway_ca=str(cert)) == "answered False"  # the mock has no workers: 404
    assert "CERTIFICATE_VERIFY_FAILED" in asked()
    secret.chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        settings.read({"home": str(tmp_path / "cache"), "gateway": url, "secret_file": str(secret)})
