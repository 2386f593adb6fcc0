"""guidellm, the load generator that vLLM's users measure with, against `inferscale serve` with the default model: it sees every request served."""
import json
import subprocess

import pytest
from support import ground, process

STREAMS, REQUESTS, PROMPT, ANSWER = 2, 6, 48, 8


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_every_request_is_served(start, folder, smollm2, path):
    server = start(process.inferscale)
    report = folder / ("guidellm%s.json" % path.replace("/", "-"))
    command = [
        ground.needed("INFERSCALE_GUIDELLM"), "-m", "guidellm", "run", "--disable-console-interactive",
        "--backend", "kind=openai_http,target=%s,model=%s,request_format=%s" % (server.url, "smollm2-135m-instruct-q4_0", path),
        "--tokenizer", json.dumps({"kind": "huggingface_auto", "model": smollm2}),
        "--data", "kind=synthetic_text,prompt_tokens=%d,output_tokens=%d" % (PROMPT, ANSWER),
        "--profile", "kind=concurrent,streams=%d" % STREAMS, "--constraint", "kind=max_requests,count=%d" % REQUESTS,
        "--output", "kind=json,path=%s" % report,
    ]
    done = subprocess.run(command, env=ground.environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    benchmarks = json.loads(report.read_text())["benchmarks"]
    totals = benchmarks[0]["metrics"]["request_totals"]
    assert totals["successful"] == REQUESTS and totals["errored"] == 0 and totals["incomplete"] == 0, totals
    for request in benchmarks[0]["requests"]["successful"]:
        assert request["output_metrics"]["text_tokens"] == ANSWER, request  # it had the length that was asked for
