"""The fetcher alone, before a gateway that keeps it waiting: what is called off leaves nothing, what does not answer is left alone, what the gateway
has no more goes. (test_d_hosts.py has the real gateway and the real vLLM.)"""
import hashlib
import http.server
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from support import ground

sys.path.insert(0, ground.PACKAGE)
from inferscale_vllm import cache, fetch, gateway, scheduler, settings, state  # noqa: E402
from inferscale_vllm.ticket import StoredPart  # noqa: E402

SECRET, TAG, OTHER = bytes(range(32)), b"t" * 32, b"o" * 32


class Slow(http.server.ThreadingHTTPServer):
    """Has segments by name; sends their first half, and the rest when `go` is set. `how`: drip (the rest a byte at a time until then), cut."""
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.segments, self.asked, self.how, self.go, self.half = {}, [], "", threading.Event(), threading.Event()
        self.go.set()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Answer(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.send_response(200 if self.path.rsplit("/", 1)[1] in self.server.segments else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self):
        name = self.path.rsplit("/", 1)[1]
        self.server.asked.append(name)
        data = self.server.segments.get(name)
        if data is None:
            self.do_HEAD()
            return
        signature = bytes.fromhex(self.headers["X-Inferscale-Pass"].rsplit(".", 1)[1])
        seal = hashlib.blake2b(gateway._field(b"inferscale seal 1") + gateway._field(signature) + data, key=SECRET, digest_size=32).digest()
        self.send_response(200)
        if self.server.how == "cut":
            self.send_header("Content-Length", str(len(data) + len(seal)))
        self.end_headers()
        try:
            self.wfile.write(data[: len(data) // 2])
            self.server.half.set()
            rest = data[len(data) // 2:] + seal
            while self.server.how == "drip" and not self.server.go.wait(0.2):
                self.wfile.write(rest[:1])
                rest = rest[1:]
            self.server.go.wait(4)  # less than the fetcher's patience
            if self.server.how != "cut":
                self.wfile.write(rest)
        except OSError:
            pass


@pytest.fixture
def slow():
    server = Slow()
    yield server
    server.shutdown()


@pytest.fixture
def fetcher(tmp_path, slow):
    secret = tmp_path / "secret"
    secret.write_text(SECRET.hex())
    secret.chmod(0o600)
    return fetch.Fetcher(settings.read({"home": str(tmp_path / "cache"), "secret_file": str(secret), "fetch_wait_s": 60,
                                        "gateway": "http://127.0.0.1:%d" % slow.server_address[1]}))


def part(n):
    return StoredPart(bytes([n]) * 32, 0, 0, 10, 0)


def key(n):
    return 0, bytes([n]) * 32


def until(holds, seconds=60):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def get(fetcher, n, tag=TAG, epoch=1):
    wait = fetcher.begin(tag, epoch, [part(n)])
    until(lambda: fetcher.ready(wait))
    fetcher.end(wait)
    return fetcher.why(part(n))[0]


def test_what_is_revoked_on_its_way_leaves_nothing(fetcher, slow):
    for n in (1, 2, 3):
        slow.segments[part(n).name.hex()] = bytes([n]) * 100_000
    assert get(fetcher, 1) == "" and get(fetcher, 2, OTHER) == ""
    slow.go.clear()
    slow.half.clear()
    wait = fetcher.begin(TAG, 1, [part(3)])
    slow.half.wait(60)
    forgetting = fetcher.forget(TAG, 2)
    slow.go.set()  # the rest comes, and is not taken
    until(forgetting.over)
    assert forgetting.ok(), forgetting.why
    assert not fetcher.cache.has(key(1)) and not fetcher.cache.has(key(3)) and fetcher.cache.has(key(2))
    assert not fetcher.cache.path(key(1)).exists() and not fetcher.cache.path(key(3)).exists()
    assert not list(fetcher.cache.temporary.iterdir()) and fetcher.ready(wait)
    assert get(fetcher, 3, TAG, 2) == ""  # of the new epoch it may be had
    assert fetcher.forget(TAG, 2).tag == TAG and fetcher.cache.has(key(3))


def test_a_file_that_cannot_be_overwritten_is_not_forgotten(fetcher, slow, monkeypatch):
    slow.segments[part(1).name.hex()] = b"x" * 1000
    assert get(fetcher, 1) == ""
    real = cache.shred

    def refuse(path):
        raise OSError("the disk is read-only")
    monkeypatch.setattr(cache, "shred", refuse)
    forgetting = fetcher.forget(TAG, 2)
    until(forgetting.done.is_set)
    assert not forgetting.ok() and "read-only" in forgetting.why
    monkeypatch.setattr(cache, "shred", real)
    forgetting = fetcher.forget(TAG, 2)  # the gateway asks again
    until(forgetting.done.is_set)
    assert forgetting.ok() and not list(fetcher.cache.temporary.iterdir())


def test_a_part_that_cannot_be_overwritten_is_not_forgotten(fetcher, slow, monkeypatch):
    slow.segments[part(1).name.hex()] = b"x" * 1000
    real = cache.shred

    def refuse(path):
        raise OSError("the disk is read-only")
    slow.go.clear()
    slow.half.clear()
    fetcher.begin(TAG, 1, [part(1)])
    slow.half.wait(60)
    until(lambda: list(fetcher.cache.temporary.iterdir()))
    for module in (cache, fetch):
        monkeypatch.setattr(module, "shred", refuse)
    forgetting = fetcher.forget(TAG, 2)
    slow.go.set()
    until(forgetting.done.is_set)
    assert not forgetting.ok() and "read-only" in forgetting.why and list(fetcher.cache.temporary.iterdir())
    for module in (cache, fetch):
        monkeypatch.setattr(module, "shred", real)
    forgetting = fetcher.forget(TAG, 2)  # the gateway asks again
    until(forgetting.done.is_set)
    assert forgetting.ok() and not list(fetcher.cache.temporary.iterdir())


def test_a_secret_that_goes_meanwhile_is_not_replaced(fetcher, slow):
    """The seal is that of the secret which signed: no other is believed, and zeros least of all."""
    slow.segments[part(1).name.hex()] = b"x" * 1000
    real = fetcher.gateway._send

    def send(*given, **more):
        answer = real(*given, **more)
        fetcher.settings.secret_file.unlink()
        return answer
    fetcher.gateway._send = send
    assert get(fetcher, 1) == ""
    assert get(fetcher, 2) == "fetch"  # and none is asked for without


def test_what_is_missing_or_spoilt_is_asked_for_again_later(fetcher, slow):
    assert get(fetcher, 1) == "missing" and get(fetcher, 1) == "missing"
    assert len(slow.asked) == 1
    slow.segments[part(2).name.hex()] = b"y" * 1000
    assert get(fetcher, 2) == ""
    fetcher.spoilt(key(2), "torn", "its checksum")
    until(lambda: not fetcher.cache.path(key(2)).exists())
    assert get(fetcher, 2) == "torn" and len(slow.asked) == 2


def test_a_gateway_that_does_not_answer_is_left_alone(fetcher, slow):
    slow.shutdown()
    slow.server_close()
    assert [get(fetcher, n) for n in range(1, 9)] == ["fetch"] * 8
    with fetcher.gateway.lock:
        assert fetcher.gateway.down_until > time.monotonic() - 60 and fetcher.gateway.n_row < 8  # most of them were not even tried
    fetcher.gateway.speaks()
    assert fetcher.gateway.n_row == 0


def test_the_cache_follows_the_gateway(fetcher, slow):
    for n in (1, 2):
        slow.segments[part(n).name.hex()] = bytes([n]) * 1000
        assert get(fetcher, n) == ""
    del slow.segments[part(1).name.hex()]
    fetcher.scrub()
    until(lambda: not fetcher.cache.has(key(1)))
    assert fetcher.cache.has(key(2)) and fetcher.cache.bytes == 1000


def occupy(fetcher, slow, tag=OTHER):
    """All threads are at segments (11 and further) that drip."""
    slow.how = "drip"
    slow.go.clear()
    for n in range(11, 11 + fetch.THREADS):
        slow.segments[part(n).name.hex()] = bytes([n]) * 100_000
    wait = fetcher.begin(tag, 1, [part(n) for n in range(11, 11 + fetch.THREADS)])
    until(lambda: len(slow.asked) == fetch.THREADS)
    return wait


def test_a_revoke_does_not_wait_behind_others(fetcher, slow):
    """Neither for what has not begun, nor for its own that drips, nor for the line at which the cache is compared."""
    occupy(fetcher, slow)
    slow.segments[part(1).name.hex()] = b"x" * 1000
    wait = fetcher.begin(TAG, 1, [part(1)])
    forgetting = fetcher.forget(TAG, 2)
    until(forgetting.done.is_set)
    assert forgetting.ok() and fetcher.ready(wait) and not slow.go.is_set()
    fetcher.end(wait)
    forgetting = fetcher.forget(OTHER, 2)
    until(forgetting.done.is_set)
    assert forgetting.ok() and not list(fetcher.cache.temporary.iterdir()) and not slow.go.is_set()
    assert fetcher.gateway.n_row == 0  # the gateway is not blamed
    slow.how = ""
    slow.go.set()
    assert get(fetcher, 1, TAG, 2) == "" and slow.asked.count(part(1).name.hex()) == 1


def test_a_comparison_gives_way_to_a_revoke(fetcher, slow, monkeypatch):
    for n in (1, 2):
        slow.segments[part(n).name.hex()] = bytes([n]) * 1000
        assert get(fetcher, n, (TAG, OTHER)[n - 1]) == ""
    asked, hold = threading.Event(), threading.Event()

    def head(self):
        self.wfile.write(b"HTTP/1.0 200 OK\r\nX: ")
        asked.set()
        try:
            while not hold.wait(0.2):
                self.wfile.write(b"x")
        except OSError:
            return
        self.wfile.write(b"\r\nContent-Length: 0\r\n\r\n")
    monkeypatch.setattr(Answer, "do_HEAD", head)
    fetcher.scrub()
    assert asked.wait(60)
    forgetting = fetcher.forget(TAG, 2)
    until(forgetting.done.is_set)
    assert forgetting.ok() and not fetcher.cache.has(key(1)) and fetcher.cache.has(key(2)) and not hold.is_set()
    hold.set()


def test_what_nobody_waits_for_any_more_is_not_fetched(fetcher, slow):
    others = occupy(fetcher, slow)
    for n in (1, 2):
        slow.segments[part(n).name.hex()] = b"x" * 1000
    fetcher.end(fetcher.begin(TAG, 1, [part(1)]))
    fetcher.end(others)  # these have begun
    slow.how = ""
    wait = fetcher.begin(TAG, 1, [part(2)])
    slow.go.set()
    until(lambda: fetcher.ready(wait))
    until(lambda: not fetcher.jobs)
    assert part(1).name.hex() not in slow.asked and fetcher.cache.has(key(2)) and fetcher.cache.has(key(11))


def test_a_request_lowers_its_own_pin(fetcher, slow):
    slow.segments[part(1).name.hex()] = b"x" * 1000
    first = fetcher.begin(TAG, 1, [part(1)])
    until(lambda: fetcher.ready(first))
    fetcher.cache.drop([key(1)])
    second = fetcher.begin(TAG, 1, [part(1)])
    until(lambda: fetcher.ready(second))
    fetcher.end(first)
    assert fetcher.cache.idle(0) == []  # the second counts on it
    fetcher.end(second)
    assert fetcher.cache.idle(0) == [key(1)]


def test_a_transfer_that_is_cut_is_no_forgery(fetcher, slow):
    slow.segments[part(1).name.hex()] = b"x" * 1000
    slow.how = "cut"
    assert get(fetcher, 1) == "fetch" and "500 of 1032" in fetcher.why(part(1))[1] and fetcher.gateway.n_row == 1


def test_a_full_disk_is_not_the_gateway_s_failure(fetcher, slow):
    slow.segments[part(1).name.hex()] = b"x" * 1000
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(OSError, match="No space"):
        fetcher.gateway.fetch(*key(1), full, 1 << 20, lambda: True)
    assert fetcher.gateway.n_row == 0 and get(fetcher, 1) == ""


def test_what_the_gateway_has_no_more_leaves_memory_too(fetcher, slow):
    """Also where a request counts on it."""
    slow.segments[part(1).name.hex()] = b"x" * 1000
    wait = fetcher.begin(TAG, 1, [part(1)])
    until(lambda: fetcher.ready(wait))
    assert fetcher.cache.has(key(1))
    slow.segments.clear()
    fetcher.scrub()
    until(lambda: not fetcher.cache.has(key(1)))
    gone = []
    until(lambda: gone.extend(fetcher.take_gone()) or gone)
    let_go = []
    side = SimpleNamespace(fetcher=SimpleNamespace(take_gone=lambda: gone), _let_go=let_go.extend, over=[], forget=[], loads={}, live={})
    scheduler.SchedulerSide.orders(side, SimpleNamespace(num_scheduled_tokens={}), None)
    assert let_go == [part(1).name]


@pytest.mark.parametrize("reason, blamed", [("fetch", False), ("epoch", False), ("torn", True), ("missing", True)])
def test_only_what_says_something_of_the_file_is_told_as_bad(reason, blamed):
    side = SimpleNamespace(model=object(), failed={}, stats=SimpleNamespace(failed=lambda _: None),
                           fetcher=SimpleNamespace(why=lambda _: (reason, "why")))
    one = state.RequestState(None, None)
    assert scheduler.SchedulerSide._check(side, one, part(1)) == (reason, "why")
    assert ("bad" in one.result()) == blamed


@pytest.mark.parametrize("wrong", [{"fetch_wait_s": "nan"}, {"fetch_wait_s": float("inf")}, {"fetch_wait_s": -1}, {"cache_bytes": 0}, {"cache_bytes": -1}])
def test_settings_without_a_sense_are_refused(tmp_path, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        settings.read({"home": str(tmp_path), **wrong})
