#!/usr/bin/env bash
# scripts/setup.sh without the network: a finished set-up is left alone, and each thing that can be missing is named with a next
# step, leaving nothing half done. A stand-in for python3 plays pip.
set -u
cd "$(dirname "$0")/.." || exit 2
# shellcheck source=tests/tap.sh
. tests/tap.sh
export INFERSCALE_SKIP_APT=1
unset INFERSCALE_MODELS
fake=$tap_scratch/bin
mkdir -p "$fake"

# python3 that answers "-m pip --version" and, for all else, prints $FAKE_SAYS and fails (or sleeps).
cat >"$fake/python3" <<'PY'
#!/bin/sh
if [ "$3" = --version ]; then exit "${FAKE_NO_PIP:-0}"; fi
touch "$FAKE_STARTED"
if [ "$FAKE_SAYS" = sleep ]; then exec sleep 60; fi
echo "$FAKE_SAYS"
exit 1
PY
chmod +x "$fake/python3"
export FAKE_STARTED=$tap_scratch/started FAKE_SAYS=

unchanged() { # a second run: same file, same time
    local before
    before=$(stat -c '%Y %i' build/deps.mk) && scripts/setup.sh && [ "$before" = "$(stat -c '%Y %i' build/deps.mk)" ]
}

# fails WORDS COMMAND...: it fails, saying both the words and a next step, leaves no temporary file, and build/deps.mk is as it was
fails() {
    local words=$1 out rc=0 before
    shift
    before=$(cat build/deps.mk)
    out=$("$@" 2>&1) || rc=$?
    echo "exit $rc: $out"
    [ "$rc" -eq 1 ] && echo "$out" | grep -qi -- "$words" && echo "$out" | grep -q 'next: ' && [ "$before" = "$(cat build/deps.mk)" ] &&
        [ -z "$(ls -A "$tap_scratch/cache/tmp" 2>/dev/null)" ]
}

pip_says() { # WORDS TEXT
    fails "$1" env PATH="$fake:$PATH" FAKE_SAYS="$2" INFERSCALE_CACHE="$tap_scratch/cache" scripts/setup.sh
}

disk_full_before() {
    printf '#!/bin/sh\necho head\necho disk 1 1 10 1 /\n' >"$fake/df"
    chmod +x "$fake/df"
    fails "only 10 MB are free" env PATH="$fake:$PATH" INFERSCALE_CACHE="$tap_scratch/cache" scripts/setup.sh
    local rc=$?
    rm "$fake/df"
    return $rc
}

no_pip() {

    fails "python3 with pip" env PATH="$fake:$PATH" FAKE_NO_PIP=1 INFERSCALE_PYTHON="$fake/python3" \
        INFERSCALE_CACHE="$tap_scratch/cache" scripts/setup.sh
}

no_root() { # as nobody, with a package missing and no sudo
    printf '#!/bin/sh\necho 1000\n' >"$fake/id"
    printf '#!/bin/sh\nexit 1\n' >"$fake/dpkg-query"
    chmod +x "$fake/id" "$fake/dpkg-query"
    local rc=0 path
    path=$fake:$(mkdir -p "$tap_scratch/few" && for p in bash env dirname mkdir flock rm mktemp cat grep apt-get printf; do
        ln -sf "$(command -v $p)" "$tap_scratch/few/$p"; done; echo "$tap_scratch/few")
    fails "not root" env -u INFERSCALE_SKIP_APT PATH="$path" INFERSCALE_CACHE="$tap_scratch/cache" bash scripts/setup.sh || rc=1
    rm "$fake/id" "$fake/dpkg-query"
    return $rc
}

interrupted() {
    local pid rc=0
    rm -f "$FAKE_STARTED"
    env PATH="$fake:$PATH" FAKE_SAYS=sleep INFERSCALE_CACHE="$tap_scratch/cache" scripts/setup.sh &
    pid=$!
    for _ in $(seq 100); do [ -e "$FAKE_STARTED" ] && break; sleep 0.1; done
    [ -e "$FAKE_STARTED" ] || return 1
    kill -TERM $pid
    wait $pid || rc=$?
    [ "$rc" -eq 143 ] && [ -z "$(ls -A "$tap_scratch/cache/tmp")" ]
}

waits_for_the_other() {
    local pid
    mkdir -p "$tap_scratch/cache"
    exec 8>"$tap_scratch/cache/lock"
    flock 8
    env PATH="$fake:$PATH" FAKE_SAYS=refused INFERSCALE_CACHE="$tap_scratch/cache" scripts/setup.sh \
        >"$tap_scratch/wait.out" 2>&1 8>&- &
    pid=$!
    for _ in $(seq 100); do grep -q 'waiting for it' "$tap_scratch/wait.out" && break; sleep 0.1; done
    grep -q 'waiting for it' "$tap_scratch/wait.out" || return 1
    rm -f "$FAKE_STARTED"
    sleep 0.3
    [ ! -e "$FAKE_STARTED" ] || return 1
    exec 8>&-
    wait $pid
    [ -e "$FAKE_STARTED" ]
}

# As in a fresh clone: no build folder, so no build/deps.mk yet.
before_setup() {
    local goal clone="$tap_scratch/clone"
    mkdir -p "$clone"
    cp -r Makefile src include tests fuzz examples "$clone/" || return 1
    for goal in help clean; do env -u MAKEFLAGS -u MAKELEVEL make -C "$clone" "$goal" || return 1; done
    for goal in setup demo test; do # -n runs the makes within too; they fail, as nothing was set up
        env -u MAKEFLAGS -u MAKELEVEL make -C "$clone" -n "$goal" >"$tap_scratch/goal.out" 2>&1
        grep -q '^scripts/setup.sh$' "$tap_scratch/goal.out" || return 1
    done
    env -u MAKEFLAGS -u MAKELEVEL make -C "$clone" -n plugins 2>&1 | grep -q "run .make setup. first"
}

check "before set-up make does what needs none, and names what is missing" before_setup
check "a finished set-up is left alone" unchanged
check "no network" pip_says "registry cannot be reached" "ERROR: Could not find a version that satisfies the requirement (from versions: none)"
check "a file that is not the pinned one" pip_says "not the pinned file" \
    "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE."
check "a disk that fills up" pip_says "disk is full" "fatal error: error writing to /x: No space left on device"
check "a build that breaks shows its last lines" pip_says "internal compiler error" "g++: internal compiler error"
check "a disk with too little room" disk_full_before
models_fail() { # WORDS TEXT NAME: the same for the evaluation's models
    local rc=0
    fails "$1" env PATH="$fake:$PATH" FAKE_SAYS="$2" INFERSCALE_CACHE="$tap_scratch/cache" \
        scripts/setup-models.sh "$3" || rc=1
    [ "$rc" -eq 0 ] && [ -z "$(ls -A "$tap_scratch/cache/models-tmp" 2>/dev/null)" ]
}

check "a model of the evaluation that is not the pinned one" models_fail "not the pinned file" \
    "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE." gemma-3-270m
check "a model that nobody has" models_fail "take one of: qwen2.5-coder-0.5b-instruct" "" gemma-3-271m
check "python without pip" no_pip
check "a cache that cannot be written" fails "cannot write" env INFERSCALE_CACHE=/dev/null/x scripts/setup.sh
check "a cache with a space in its name" fails "space in its name" env INFERSCALE_CACHE="$tap_scratch/a b" scripts/setup.sh
check "packages missing, no root, no sudo" no_root
check "interrupted: nothing half done stays" interrupted
check "two at once: the second waits" waits_for_the_other
finish
