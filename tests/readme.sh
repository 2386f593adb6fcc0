#!/usr/bin/env bash
# README's commands, pasted in their order, on one store: each of them works. With the mock engine, so that it costs no model.
set -u
cd "$(dirname "$0")/.." || exit 2
# shellcheck source=tests/tap.sh
. tests/tap.sh
root=$PWD
program=${INFERSCALE_BIN:-$root/build/release/inferscale}
export INFERSCALE_HOME=$tap_scratch/store
mkdir -p "$tap_scratch/bin" "$tap_scratch/here"
ln -s "$root/data" "$tap_scratch/here/data"
printf '#!/bin/sh\nexec "%s" "$@" --engine mock\n' "$program" >"$tap_scratch/bin/inferscale"
printf '#!/bin/sh\nexec "%s" -sS --fail-with-body "$@"\n' "$(command -v curl)" >"$tap_scratch/bin/curl"
chmod +x "$tap_scratch/bin/inferscale" "$tap_scratch/bin/curl"
PATH=$tap_scratch/bin:$PATH

# The blocks without a language between "## Use it" and "## What it costs" that have a line that begins so.
blocks() { # BEGINNING
    awk -v begins="$1" '/^## Use it/ { on = 1 } /^## What it costs/ { exit } !on { next }
        /^```/ { if (inside) { if (wanted && plain) printf "%s", text } else plain = $0 == "```"; inside = !inside; text = ""; wanted = 0; next }
        inside { text = text $0 "\n"; if (index($0, begins) == 1) wanted = 1 }' README.md
}

run() { # FILE: in a folder of its own, nobody types
    (cd "$tap_scratch/here" && bash -eux "$1") </dev/null
}

command_line() {
    blocks "inferscale remember" >"$tap_scratch/commands"
    [ "$(grep -c '^inferscale' "$tap_scratch/commands")" -ge 12 ] && run "$tap_scratch/commands"
}

over_http() {
    local server port rc
    "$program" serve --engine mock --port 0 --log off --json >"$tap_scratch/ready" &
    server=$!
    until [ -s "$tap_scratch/ready" ] || ! kill -0 $server 2>/dev/null; do sleep 0.05; done
    port=$(grep -oE '"port": *[0-9]+' "$tap_scratch/ready" | tr -dc 0-9)
    blocks curl | sed "s/127.0.0.1:8080/127.0.0.1:$port/" >"$tap_scratch/requests"
    [ "$(grep -c '^curl\|(curl' "$tap_scratch/requests")" -ge 6 ] && run "$tap_scratch/requests"
    rc=$?
    kill -TERM $server
    wait $server && return $rc
}

check "the command line of README, in its order" command_line
check "README's requests to a server on the same store" over_http
finish
