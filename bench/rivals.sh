#!/usr/bin/env bash
# rivals.sh [OPTION...] - InferScale beside its rivals on the same facts, model and machine: the
# mem0ai package with llama-cpp-python's server, the prompts of Letta and Graphiti, the whole memory
# as a cached prefix, a prefix cache with a cache-aware order of facts. `make rivals` runs it.
#
# --model NAME takes an installed model (default: smollm2-135m-instruct-q4_0), other options go to
# bench/rivals/run.py (--help). What was measured is in docs/results/rivals-MODEL.jsonl, numbers
# only: the same command goes on where it was stopped, and prints the table when nothing is left to
# measure. The stores are kept in the cache, in rivals-work. To measure again, remove both.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly cache=${INFERSCALE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/inferscale}
readonly bin=${INFERSCALE_BIN:-$PWD/build/release/inferscale}
model=smollm2-135m-instruct-q4_0
if [ "${1:-}" = --model ]; then
    model=${2:?--model takes a name}
    shift 2
fi
[ -x "$bin" ] || { echo "rivals: $bin is not there; build it with make" >&2 && exit 1; }
llama=$(sed -n 's/^LLAMA_DIR := //p' build/deps.mk)/lib
models=${INFERSCALE_MODELS:-$cache/models}
[ -e "$models/$model.gguf" ] || {
    echo "rivals: there is no model $models/$model.gguf; next: make models" >&2 && exit 1
}
python=$(scripts/setup-rivals.sh)
export INFERSCALE_MODELS=$models INFERSCALE_PLUGINS=${INFERSCALE_PLUGINS:-${bin%/*}}
export LLAMA_CPP_LIB_PATH=$llama PYTHONDONTWRITEBYTECODE=1
mkdir -p docs/results
exec "$python" bench/rivals/run.py --binary "$bin" --llama-lib "$llama" \
    --model "$models/$model.gguf" --embedder all-minilm-l6-v2-f16 \
    --work "$cache/rivals-work/$model" --results "docs/results/rivals-$model.jsonl" "$@"
