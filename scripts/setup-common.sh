# shellcheck shell=bash
# setup-common.sh - sourced by setup.sh, setup-models.sh and setup-vllm.sh: what they say, how they
# run long commands, how they fail. The one that sources it has set $me (its name in messages),
# $cache, $log (output of the running command) and $room (what to free when the disk is full).
child=
work= # a folder of this run in the cache

# shellcheck disable=SC2329 # by the trap
clean_up() {
    if [ -n "$child" ]; then kill "$child" 2>/dev/null || true; fi
    if [ -n "$work" ]; then rm -rf "$work"; fi
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

say() { printf '%s: %s\n' "$me" "$*" >&2; }

# die CAUSE NEXT-STEP
die() {
    printf '%s: error: %s\n       next: %s\n' "$me" "$1" "$2" >&2
    exit 1
}

# What went wrong in a command whose output is in $log, in words.
explain() { # WHAT
    local offline='name resolution|could not resolve|network is unreachable|failed to establish|max retries|proxyerror'
    offline+='|connection (refused|timed out|reset|broken)|read timed out|no matching distribution|could not find a version'
    offline+='|temporary failure|unable to locate package|failed to fetch'
    if grep -qiE 'no space left|disk quota exceeded' "$log"; then
        die "$1 failed: the disk is full" "free $room in $cache, or set INFERSCALE_CACHE to a folder with room, and run it again"
    elif grep -qiE 'hashes.*do not match|do not match the hashes' "$log"; then
        die "$1 failed: the download is not the pinned file (its sha256 differs)" \
            "check the network and pip's index settings, and run it again"
    elif grep -qiE "$offline" "$log"; then
        die "$1 failed: the package registry cannot be reached (or does not have the pinned version)" \
            "check the network and the proxy settings and run it again; what was done is kept. Details: $log"
    fi
    tail -n 15 "$log" | sed 's/^/    /' >&2
    die "$1 failed (last lines above)" "see $log, and run it again"
}

# How far the running command is, in a word or two; the script that sources this may say it better. Ninja's [n/m] is progress.
steps_of() { tail -c 60000 "$log" 2>/dev/null | grep -aoE '\[[0-9]+/[0-9]+\]' | tail -n 1 || true; }

# Runs a command, its output in $log; shows that it lives.
run() { # WHAT COMMAND...
    local what=$1 start=$SECONDS shown=0 steps pid rc=0
    shift
    "$@" >"$log" 2>&1 </dev/null &
    pid=$!
    child=$pid
    while kill -0 "$pid" 2>/dev/null; do
        sleep 0.3
        steps=$(steps_of)
        if [ -t 2 ]; then
            printf '\r%s: %s %s %d s ' "$me" "$what" "$steps" $((SECONDS - start)) >&2
        elif [ $((SECONDS - start - shown)) -ge 30 ]; then
            shown=$((SECONDS - start))
            say "$what $steps ${shown} s"
        fi
    done
    wait "$pid" || rc=$?
    child=
    if [ -t 2 ]; then printf '\r\033[K' >&2; fi
    if [ "$rc" -ne 0 ]; then explain "$what"; fi
    say "$what: done ($((SECONDS - start)) s)"
}

# Sets $python to one with pip.
# shellcheck disable=SC2034 # read by who sources this
find_python() {
    local p
    for p in ${INFERSCALE_PYTHON:-python3 /usr/bin/python3}; do
        if "$p" -m pip --version >/dev/null 2>&1; then
            python=$p
            return
        fi
    done
    die "python3 with pip is needed" "apt-get install python3-pip"
}

hash_of() { sha256sum | cut -c1-16; }

need_room() { # MEGABYTES
    local free
    free=$(df -Pm "$cache" | awk 'NR == 2 { print $4 }')
    [ "$free" -ge "$1" ] ||
        die "only $free MB are free in $cache; $1 MB are needed" "free some space, or set INFERSCALE_CACHE to a folder with room"
}

# Makes the cache, holds its lock until we end, and makes $work, a new folder in FOLDER.
open_cache() { # FOLDER LOCK
    if ! mkdir -p "$cache/$1" build 2>/dev/null || [ ! -w "$cache/$1" ]; then
        die "cannot write to the cache folder $cache" "set INFERSCALE_CACHE to a folder that you may write to"
    fi
    exec 9>"$cache/$2"
    if ! flock -n 9; then
        say "another set-up is running; waiting for it"
        flock 9
    fi
    rm -rf "${cache:?}/$1/"* # left by one that was killed: we hold the lock
    work=$(mktemp -d "$cache/$1/XXXXXX")
}
