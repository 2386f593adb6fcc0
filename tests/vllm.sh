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
# What Python compiles is kept, beside the packages: else every process of every server compiles vLLM anew (34 s for an import, not 15).
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX=${INFERSCALE_VLLM_PYTHON%/bin/python}/pycache
unset CC CXX # those of our own build: torch wants one word, and finds a compiler without
export PYTHONPATH=$root/python${PYTHONPATH:+:$PYTHONPATH}
[ -x "$INFERSCALE_PLUGINS/inferscale" ] || { echo "$INFERSCALE_PLUGINS/inferscale is not there; run make" >&2; echo "0 passed, 1 failed, 0 skipped"; exit 1; }

scratch=$(mktemp -d)
children=()
trap 'for c in "${children[@]}"; do kill -INT "$c" 2>/dev/null; done; wait; rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
cd tests/vllm || exit 2

# part N ARGUMENT... - one pytest, with counts and folders of its own; in the background, so that an interrupt ends its servers.
part() {
    local n=$1
    shift
    INFERSCALE_COUNTS=$scratch/counts.$n timeout -k 60 "${TEST_TIMEOUT:-2700}" "$INFERSCALE_VLLM_PYTHON" -m pytest -p no:cacheprovider -p no:logging \
        -W ignore --basetemp "$scratch/run.$n" -q --durations 15 --durations-min 2 "$@" </dev/null
}

# All of them, where there are two CPUs: those that talk to a gateway beside the others. A server computes on one thread.
if [ $# -eq 0 ] && [ "$(nproc)" -ge 2 ]; then
    with_gateway=(test_c_*.py test_d_hosts.py)
    others=()
    for f in test_*.py; do
        case " ${with_gateway[*]} " in *" $f "*) ;; *) others+=("$f") ;; esac
    done
    part 1 "${with_gateway[@]}" >"$scratch/output.1" 2>&1 &
    children+=($!)
    part 2 "${others[@]}" &
    children+=($!)
else
    part 1 "$@" &
    children+=($!)
fi

passed=0 failed=0 skipped=0
for n in "${!children[@]}"; do
    rc=0
    wait "${children[$n]}" || rc=$?
    n=$((n + 1))
    [ -f "$scratch/output.$n" ] && cat "$scratch/output.$n"
    if ! read -r ok bad <"$scratch/counts.$n" 2>/dev/null; then
        echo "these tests did not come to their end (exit status $rc)"
        failed=$((failed + 1))
        continue
    fi
    # pytest may fail without a failing test (an import, a plug-in), and must have run some.
    if [ "$bad" -eq 0 ] && { [ "$rc" -ne 0 ] || [ "$ok" -eq 0 ]; }; then bad=1; fi
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + $(wc -l <"$scratch/counts.$n") - 1))
done
children=()
for f in "$scratch"/counts.*; do [ -f "$f" ] && tail -n +2 "$f"; done
if [ "$failed" -gt 0 ]; then
    echo "$passed passed, $failed failed, $skipped skipped"
    exit 1
fi
echo "$passed passed, $skipped skipped"
