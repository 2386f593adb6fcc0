#!/usr/bin/env bash
# setup-rivals.sh - Mem0 and llama-cpp-python's server for bench/rivals.sh, in a virtual environment
# of the cache (about 300 MB), under a name made from what it depends on. Prints its python.
#
# llama-cpp-python comes without a libllama of its own: its server runs the one that setup.sh built
# from the same package, so that both sides of the comparison run the same code; LLAMA_CPP_LIB_PATH
# says where it is.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly format=1 # raise it when the same requirements are to give another folder
readonly cache=${INFERSCALE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/inferscale}
readonly log=$cache/setup-rivals.log
readonly requirements=scripts/requirements-rivals.txt llama=scripts/requirements-llama.txt
# shellcheck disable=SC2034 # read by setup-common.sh
readonly me=setup-rivals room='1 GB'
# shellcheck source=scripts/setup-common.sh
. scripts/setup-common.sh

steps_of() {
    local n
    n=$(grep -caE '^(Requirement already satisfied|Collecting) ' "$log" 2>/dev/null || true)
    [ "${n:-0}" -eq 0 ] || echo "package $n"
}

find_python() {
    local p
    [ "$(uname -sm)" = 'Linux x86_64' ] ||
        die "the pinned packages are those of Linux on x86-64, and this is $(uname -sm)" \
            "run the comparison on such a machine"
    for p in ${INFERSCALE_PYTHON:-python3 /usr/bin/python3}; do
        if "$p" -c 'import sys, venv, ensurepip
sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then
            python=$p
            return
        fi
    done
    die "python3 (3.11 to 3.13) with venv is needed" \
        "apt-get install python3-venv, or set INFERSCALE_PYTHON to such a python3"
}

pip_install() { # WHAT ARGUMENT...
    local what=$1
    shift
    run "$what" env -u PIP_REQUIRE_VIRTUALENV -u PIP_USER -u PIP_PREFIX -u PIP_TARGET \
        -u PYTHONPATH TMPDIR="$work" PIP_CONSTRAINT="$PWD/scripts/build-constraints.txt" \
        CMAKE_ARGS=-DLLAMA_BUILD=OFF "$venv/bin/python" -m pip install --no-input \
        --disable-pip-version-check --no-cache-dir --no-deps --require-hashes "$@"
}

python=
find_python
open_cache rivals-tmp rivals-lock
key=$({
    echo "$format"
    cat $requirements $llama scripts/build-constraints.txt
    "$python" -VV
} | hash_of)
venv=$cache/rivals-$key
if [ ! -e "$venv/done" ]; then
    need_room 1000
    rm -rf "$venv"
    run "virtual environment" env -u PYTHONPATH "$python" -m venv "$venv"
    pip_install "packages ($(grep -c == $requirements))" --only-binary :all: -r $requirements
    pip_install "llama-cpp-python without its library" --no-binary llama-cpp-python -r $llama
    touch "$venv/done"
fi
echo "$venv/bin/python"
