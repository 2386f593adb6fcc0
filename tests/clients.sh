#!/usr/bin/env bash
# clients.sh [NAME...] - real clients against the real server: starts `inferscale serve` with the default model on a store of its own and
# runs tests/clients/test_*.py (or only tests/clients/test_NAME.py), each plain Python that prints TAP. The clients are those of
# scripts/requirements-clients.txt, in a folder of the cache under that file's hash, made here when it is not there.
#
# A test file gets INFERSCALE_URL (http://127.0.0.1:PORT, no key needed), INFERSCALE_BIN (the program), and names owners of its own (the
# store is shared by all files). tests/clients/tap.py has `case` and `finish`.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

readonly cache=${INFERSCALE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/inferscale} requirements=scripts/requirements-clients.txt
readonly bin=${INFERSCALE_BIN:-$PWD/build/release/inferscale}
export INFERSCALE_PLUGINS=${INFERSCALE_PLUGINS:-$PWD/build/release} INFERSCALE_BIN=$bin
scratch=$(mktemp -d)
server=
trap 'if [ -n "$server" ]; then kill "$server" 2>/dev/null; wait "$server" 2>/dev/null; fi; rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

# A failure of the ground that the tests stand on is one failed case.
die() {
    echo "# $*"
    echo "not ok 1 - the server and its clients are there"
    echo "1..1"
    exit 1
}

find_python() { # one that can make a virtual environment; the clients need 3.9
    local p
    for p in ${INFERSCALE_PYTHON:-python3 /usr/bin/python3}; do
        if "$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then echo "$p" && return; fi
    done
    return 1
}

# The folder is complete when `done` is in it.
make_venv() {
    local base key
    base=$(find_python) || die "python3 (3.9 or later) with venv is needed; apt-get install python3-venv"
    key=$({ cat "$requirements"; "$base" -VV; } | sha256sum | cut -c1-16)
    venv=$cache/clients-$key
    mkdir -p "$cache" || die "cannot write to $cache; set INFERSCALE_CACHE to a folder that you may write to"
    exec 8>"$cache/clients.lock"
    flock 8
    if [ ! -e "$venv/done" ]; then
        rm -rf "$venv"
        { "$base" -m venv "$venv" && "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$requirements"; } \
            >"$scratch/pip.log" 2>&1 || { tail -n 15 "$scratch/pip.log" | sed 's/^/# /'; die "the clients of $requirements cannot be installed"; }
        touch "$venv/done"
    fi
    exec 8>&-
}

start_server() {
    local port url _
    port=$("$venv/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    url=http://127.0.0.1:$port
    "$bin" serve --home "$scratch/store" --host 127.0.0.1 --port "$port" >"$scratch/server.out" 2>"$scratch/server.err" </dev/null &
    server=$!
    for _ in $(seq 1200); do
        if "$venv/bin/python" - "$url/ready" 2>/dev/null <<'PY'; then export INFERSCALE_URL=$url; return; fi
import sys, urllib.request
urllib.request.urlopen(sys.argv[1], timeout=5)
PY
        kill -0 "$server" 2>/dev/null || break
        sleep 0.2
    done
    tail -n 20 "$scratch/server.err" | sed 's/^/# /'
    die "$bin serve did not become ready"
}

[ -x "$bin" ] || die "$bin is not there; build it with make"
make_venv
start_server
# Debian's promtool, or why there is none (that test is skipped then).
if INFERSCALE_PROMTOOL=$(scripts/promtool.sh 2>"$scratch/promtool.err"); then
    export INFERSCALE_PROMTOOL
else
    unset INFERSCALE_PROMTOOL
    INFERSCALE_NO_PROMTOOL=$(tail -n 1 "$scratch/promtool.err")
    export INFERSCALE_NO_PROMTOOL
fi
files=()
if [ $# -gt 0 ]; then for name in "$@"; do files+=("tests/clients/test_$name.py"); done; else files=(tests/clients/test_*.py); fi
bad=0
for file in "${files[@]}"; do
    echo "# $file"
    PYTHONPATH=tests/clients PYTHONDONTWRITEBYTECODE=1 timeout -k 10 600 "$venv/bin/python" "$file" </dev/null 2>"$scratch/err" || {
        bad=1
        sed 's/^/# /' "$scratch/err" | tail -n 40
    }
    kill -0 "$server" 2>/dev/null || { tail -n 40 "$scratch/server.err" | sed 's/^/# /'; die "the server ended while $file ran"; }
done
# It ends when asked to, in order.
kill "$server"
wait "$server"
rc=$?
server=
[ "$rc" -eq 0 ] || { tail -n 40 "$scratch/server.err" | sed 's/^/# /'; die "the server ended with exit status $rc"; }
exit "$bad"
