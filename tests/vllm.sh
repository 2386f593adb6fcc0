#!/usr/bin/env bash
# vllm.sh [PYTEST-ARGUMENT...] - the tests of tests/vllm against the real vLLM: sets it up (scripts/setup-vllm.sh), and runs them by pytest. The
# last line is exactly "N passed, M skipped", before it a line for each test that was skipped; a failure has "N failed" in it too, and exits
# with 1. `make test-vllm` builds what is tested; here it must be built.
#
#   tests/vllm.sh -k identity              tests/vllm.sh test_harness.py -x -s
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
readonly root=$PWD

scripts/setup-vllm.sh || { echo "0 passed, 1 failed, 0 skipped"; exit 1; }
# shellcheck source=/dev/null
. build/vllm.env
export INFERSCALE_PLUGINS=${INFERSCALE_PLUGINS:-$root/build/release}
export INFERSCALE_MODELS=${INFERSCALE_MODELS:-${INFERSCALE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/inferscale}/models}
unset CC CXX # those of our own build: torch wants one word, and finds a compiler without
export PYTHONPATH=$root/python${PYTHONPATH:+:$PYTHONPATH}
[ -x "$INFERSCALE_PLUGINS/inferscale" ] || { echo "$INFERSCALE_PLUGINS/inferscale is not there; run make" >&2; echo "0 passed, 1 failed, 0 skipped"; exit 1; }

scratch=$(mktemp -d)
child=
trap 'if [ -n "$child" ]; then kill -INT "$child" 2>/dev/null; wait "$child"; fi; rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
export INFERSCALE_COUNTS=$scratch/counts

cd tests/vllm || exit 2
rc=0
timeout -k 60 "${TEST_TIMEOUT:-2700}" "$INFERSCALE_VLLM_PYTHON" -m pytest -p no:cacheprovider -p no:logging -W ignore \
    --basetemp "$scratch/run" -q --durations 15 --durations-min 2 "$@" </dev/null &
child=$! # in the background, so that an interrupt ends the servers
wait "$child" || rc=$?
child=

if ! read -r passed failed <"$INFERSCALE_COUNTS" 2>/dev/null; then
    echo "the tests did not come to their end (exit status $rc)"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi
tail -n +2 "$INFERSCALE_COUNTS"
skipped=$(($(wc -l <"$INFERSCALE_COUNTS") - 1))
# pytest may fail without a failing test (an import, a plug-in), and must have run some.
if [ "$failed" -eq 0 ] && { [ "$rc" -ne 0 ] || [ "$passed" -eq 0 ]; }; then failed=1; fi
if [ "$failed" -gt 0 ]; then
    echo "$passed passed, $failed failed, $skipped skipped"
    exit 1
fi
echo "$passed passed, $skipped skipped"
