"""Fixtures of the tests of vLLM, and the count that tests/vllm.sh prints last. Modules run in the order of their names."""
import os

import pytest

from support import ground, process

os.environ.update({k: v for k, v in ground.VLLM.items() if k not in os.environ})  # transformers in this process stays off the network too


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Of this run: models, logs, stores."""
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="session")
def smollm2():
    return ground.smollm2()


@pytest.fixture(scope="session")
def dummy(folder):
    """dummy(SHAPE, dtype="float32", ...): the folder of a tiny model, written once (support/dummy.py)."""
    from support import dummy as shapes  # imports transformers: seconds

    def write(shape, dtype="float32", **more):
        return shapes.write(shape, folder, dtype, **more)
    return write


@pytest.fixture(scope="session")
def servers(folder):
    """servers.get(MODEL, ARGUMENT...): a vLLM that other modules may use too; at most two live at a time."""
    pool = process.Pool(folder)
    yield pool
    pool.close()


@pytest.fixture
def start(folder):
    """start(process.vllm, MODEL, ARGUMENT...) or start(process.inferscale, ARGUMENT...): of this test alone, ended with it."""
    started = []

    def begin(what, *arguments, **more):
        arguments = (arguments[0], folder) + arguments[1:] if what is process.vllm else (folder,) + arguments
        started.append(what(*arguments, **more))
        return started[-1]
    yield begin
    for one in reversed(started):
        one.stop()


# ---- The count ---------------------------------------------------------------------------------------------------------------

counts = {"passed": 0, "failed": 0, "skipped": []}


def pytest_runtest_logreport(report):
    if report.skipped:
        counts["skipped"].append("%s: %s" % (report.nodeid, reason(report)))
    elif report.failed:
        counts["failed"] += 1
    elif report.when == "call":
        counts["passed"] += 1


def pytest_collectreport(report):
    if report.skipped:
        counts["skipped"].append("%s: %s" % (report.nodeid, reason(report)))


def reason(report):
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else getattr(report, "wasxfail", str(report.longrepr))
    return text.removeprefix("Skipped: ")


def pytest_unconfigure(config):
    """PASSED FAILED, then a line for each that was skipped: tests/vllm.sh prints them behind pytest's own report."""
    target = os.environ.get("INFERSCALE_COUNTS")
    if target:
        with open(target, "w", encoding="utf-8") as out:
            out.write("%d %d\n" % (counts["passed"], counts["failed"]) + "".join("skipped: %s\n" % s for s in counts["skipped"]))
