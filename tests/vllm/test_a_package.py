"""The package by itself, without vLLM: how it is started, what its errors say, how the model is named and measured."""
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import ground

sys.path.insert(0, ground.PACKAGE)
from inferscale_vllm import geometry, launch, library, name, size, state  # noqa: E402


def test_it_is_a_program():
    by_module = subprocess.run([sys.executable, "-m", "inferscale_vllm", "serve", "a model", "--home", "/somewhere", "--port", "1", "--print"],
                               capture_output=True, text=True, env=ground.environment(), check=True).stdout
    assert "--model 'a model'" in by_module and "--kv-transfer-config" in by_module and by_module.rstrip().endswith("--port 1"), by_module
    help_text = subprocess.run([sys.executable, "-m", "inferscale_vllm", "--help"], capture_output=True, text=True, env=ground.environment(), check=True)
    assert "inferscale-vllm" in help_text.stdout


def test_a_missing_library_says_where_it_must_be(tmp_path):
    with pytest.raises(RuntimeError) as failed:
        library.Library(str(tmp_path / "libinferscale.so.0"))
    for word in ("libinferscale.so.0", "each vLLM worker", "make install", "--library", "INFERSCALE_LIBRARY"):
        assert word in str(failed.value), failed.value


@pytest.mark.parametrize("given, said", [
    (["--library", "/nowhere/libinferscale.so.0"], "make install"), (["--gateway", "http://h:1", "--secret", "/nowhere/s", "--cache", "/c"], "cannot be read"),
    (["--gateway", "h:1", "--secret", "/nowhere/s", "--cache", "/c"], "http://host:port"), (["--gateway", "http://h:1"], "--secret"),
    (["--cache", "/c"], "--gateway"), (["--kv-transfer-config", "{}"], "made here"),
])
def test_what_the_connector_would_refuse_is_said_before_vllm_starts(given, said, monkeypatch):
    started = []
    monkeypatch.setattr(os, "execv", lambda *command: started.append(command))
    with pytest.raises(SystemExit) as refused:
        launch.main(["serve", "model", "--home", "/h", *given] if "--gateway" not in given else ["serve", "model", *given])
    assert said in str(refused.value) and not started, refused.value
    monkeypatch.setenv("INFERSCALE_LIBRARY", ground.LIBRARY)
    launch.main(["serve", "model", "--home", "/h"])
    assert len(started) == 1


@pytest.mark.parametrize("served, model, shown", [
    (None, "org/model", "org/model"), ([], "org/model", "org/model"), (["mine", "yours"], "/data/model", "mine"), ("mine", "/data/model", "mine"),
    (None, "/data/models/model-7b", "model-7b"), (None, "/data/models/model-7b/", "model-7b"), ("/data/models/m", "/data/models/m", "m"),
])
def test_no_path_is_shown(served, model, shown):
    called = name.served_name(served, model)
    assert called == (served[0] if isinstance(served, list) and served else served if isinstance(served, str) else model)
    assert name.shown_name(called, model) == shown


def test_a_folder_s_own_name_is_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("here")
    assert name.shown_name("here", "here") == "here" and name.shown_name("./here", "./here") == "here"
    assert name.shown_name(".", ".") == tmp_path.name


def write(path, tensors):
    header = json.dumps({"__metadata__": {"format": "pt"}, **{n: {"dtype": d, "shape": s, "data_offsets": [0, 0]} for n, d, s in tensors}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    return path


def test_parameters_are_counted_as_their_author_does(tmp_path):
    plain = [("model.embed_tokens.weight", "BF16", [1000, 64]), ("model.norm.weight", "F32", [64]), ("lm_head.weight", "BF16", [1000, 64]),
             ("model.position_ids", "I64", [1, 512])]
    found = list(size.tensors(write(tmp_path / "a.safetensors", plain)))
    assert size.count_tensors(found, tied=False) == 2 * 64000 + 64
    assert size.count_tensors(found, tied=True) == 64000 + 64
    packed = plain + [("model.layers.0.q_proj.qweight", "I32", [512, 64])]
    assert size.count_tensors(size.tensors(write(tmp_path / "b.safetensors", packed)), tied=False) == 0  # several stand in one
    real = [t for f in os.listdir(ground.smollm2()) if f.endswith(".safetensors") for t in size.tensors(Path(ground.smollm2(), f))]
    assert size.count_tensors(real, tied=True) == 134515008


@pytest.mark.parametrize("ranks, engine_id, refused", [(1, "3f", False), (2, "3f", True), (1, "3f_dp0", True), (1, "3f_dp12", True), (1, "_dp1x", False)])
def test_data_parallelism_is_refused(ranks, engine_id, refused):
    """Each engine has a scheduler of its own, and a REVOKE reaches one of them. A dense model's are told that they are alone."""
    config = SimpleNamespace(
        model_config=SimpleNamespace(uses_mrope=False, is_encoder_decoder=False, runner_type="generate"), speculative_config=None,
        parallel_config=SimpleNamespace(data_parallel_size=ranks, decode_context_parallel_size=1, prefill_context_parallel_size=1),
        cache_config=SimpleNamespace(cache_dtype="auto"), kv_transfer_config=SimpleNamespace(engine_id=engine_id))
    assert ("data parallelism" in geometry._refused(config)) == refused


def test_of_a_request_that_ended_only_the_result_is_kept():
    one = state.RequestState(object(), object())
    one.wait, one.injected = object(), 7
    one.blame(0, b"n" * 32, "torn")
    before = one.result()
    one.forget_request()
    assert one.ticket is None and one.wait is None and one.request is None and one.result() == before and before["bad"]
