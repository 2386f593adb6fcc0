"""Files of segments that are lost, torn or rotten while the gateway and vLLM serve: the next answer is computed, exactly, and a later one injects
again. Nobody is restarted."""
import os
import time

import pytest
from test_c_gateway import Pair

FACTS = ["Erik keeps four goats on the roof.", "Erik's car is a green van.", "Erik was born in Namur."]
QUESTION = "What does Erik keep on the roof?"


@pytest.fixture(scope="module")
def pair(folder, smollm2):
    made = Pair(folder / "heal", smollm2)
    yield made
    made.stop()


def segments(pair):
    return {os.path.join(at, n) for at, _, names in os.walk(os.path.join(pair.home, "vault")) for n in names if n.endswith(".seg")}


def remembered(pair, user):
    """The files of three new facts of this user, encoded and not asked for yet."""
    before = segments(pair)
    pair.remember(user, *FACTS)
    files = sorted(segments(pair) - before)
    assert len(files) == len(FACTS), files
    return files


def ask(pair, user):
    said = pair.ask(user, QUESTION, k=3)
    assert said["choices"][0]["message"]["content"]
    assert "/" not in said["memory"]["fallback"], said["memory"]["fallback"]
    return said["memory"]


def count(pair, what):
    time.sleep(2.5)  # the metrics are looked at every second or two
    line = next(x for x in pair.api.get("/metrics").splitlines() if x.startswith('inferscale_damaged_segments_total{what="%s"}' % what))
    return float(line.split()[-1])


def heals(pair, user, files, told):
    """One answer says that something was amiss; when it is encoded, all is injected again."""
    before = count(pair, "queued")
    hurt = ask(pair, user)
    assert "damaged" in hurt["fallbacks"] and ("computed_after_all" in hurt["fallbacks"]) == told, hurt
    assert any(f["source"] == "computed" for f in hurt["facts"]), hurt
    pair.encoded()
    for _ in range(2):
        well = ask(pair, user)
        assert well["fallbacks"] == [] and well["mode"] == "kv", well
        assert [f["source"] for f in well["facts"]] == ["stored"] * len(FACTS), well
        assert well["tokens"]["injected"] + well["tokens"]["resident"] >= sum(f["tokens"] for f in well["facts"]), well
    assert set(files) <= segments(pair)
    assert count(pair, "queued") > before


def test_a_deleted_file_is_encoded_again(pair):
    files = remembered(pair, "deleted")
    os.unlink(files[0])
    heals(pair, "deleted", files, told=False)


def test_so_it_is_behind_an_answer_that_used_it(pair):
    """Gateway and workers have it in memory, and the answer's blocks are in vLLM's cache."""
    files = remembered(pair, "used")
    assert ask(pair, "used")["fallbacks"] == []
    for path in files:
        os.unlink(path)
    heals(pair, "used", files, told=False)


def test_a_torn_file_is_encoded_again(pair):
    files = remembered(pair, "torn")
    os.truncate(files[1], os.path.getsize(files[1]) // 2)
    heals(pair, "torn", files, told=False)


def test_rotten_rows_are_found_by_vllm_and_encoded_again(pair):
    """The gateway reads no rows. All that are bad are told at once, and the first part may be well."""
    files = remembered(pair, "rotten")
    for path in files[1:]:
        with open(path, "r+b") as f:
            f.seek(-100, os.SEEK_END)
            byte = f.read(1)
            f.seek(-100, os.SEEK_END)
            f.write(bytes([byte[0] ^ 0x40]))
    heals(pair, "rotten", files, told=True)
