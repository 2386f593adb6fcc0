#!/usr/bin/env bash
# run-tests.sh PROGRAM[ ARG]... - runs each program (one quoted word: "program arg arg", or "VAR=VALUE program"), as many at a time as there are
# CPUs and in the order given, each with a time limit and a folder of its own, and counts single cases from TAP lines (cmocka writes them
# too). Prints one line a program as it ends, the last 200 lines of those that fail, and last exactly "N passed, N failed" (", N skipped"
# where there are some). Exit: 0 = all passed and some ran.
#
# "CPUS=1 program": it gets one CPU of its own while others run, and so one thread for models: threads that wait for one another by
# spinning crawl where they outnumber the CPUs.
#
# Environment: TEST_JOBS programs at a time; TEST_TIMEOUT seconds a program (default 1500: what a busy machine may need); TEST_ONLY = a
# regular expression that programs must match; TEST_MEMORY = a folder in memory for the sanitizers' programs (default /dev/shm where it has
# 2 GB; empty = none): so the same tests stand on two file systems, and wait for the disk once.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

readonly limit=${TEST_TIMEOUT:-1500}
passed=0 failed=0 skipped=0
scratch=$(mktemp -d)
in_memory=
declare -A child=() name=() start=() # by slot; slots count from 0
trap 'for pid in "${child[@]}"; do kill "$pid" 2>/dev/null; done; wait; rm -rf "$scratch" ${in_memory:+"$in_memory"}' EXIT
trap 'exit 130' INT TERM

if [ -z "${TEST_MEMORY+x}" ] && [ -w /dev/shm ] && [ "$(df -Pm /dev/shm | awk 'NR == 2 { print $4 }')" -ge 2000 ]; then TEST_MEMORY=/dev/shm; fi
if [ -n "${TEST_MEMORY:-}" ]; then
    in_memory=$(mktemp -d "$TEST_MEMORY/inferscale-tests-XXXXXX") || exit 2
    # Some tests load what they have written.
    if ! cp /bin/true "$in_memory/true" || ! "$in_memory/true" 2>/dev/null; then rm -rf "$in_memory"; in_memory=; fi
fi

# The CPUs that we may use, one a line.
cpus() {
    taskset -cp $$ | sed 's/.*: *//' | tr ',' '\n' | while IFS=- read -r from to; do seq "$from" "${to:-$from}"; done
}
mapfile -t cpu < <(cpus)
readonly jobs=${TEST_JOBS:-${#cpu[@]}}

# TAP on stdin -> "ok notok skip missing" ; a plan ("1..N") that was not carried out makes the rest missing.
count() {
    awk '
        /^1\.\.[0-9]+/ { split($1, a, "."); plan += a[3] }
        /^(not )?ok [0-9]+.*# SKIP/ { skip++; next }
        /^ok [0-9]+/ { ok++ }
        /^not ok [0-9]+/ { bad++ }
        END { missing = plan - ok - bad - skip; print ok + 0, bad + 0, skip + 0, (missing > 0 ? missing : 0) }'
}

begin() { # SLOT PROGRAM ARG...
    local slot=$1 set=() pin=() base=$scratch
    shift
    while [[ $1 == *=* ]]; do
        if [[ $1 == CPUS=1 ]]; then pin=(taskset -c "${cpu[slot % ${#cpu[@]}]}"); else set+=("$1"); fi
        shift
    done
    local program=$1
    name[$slot]="${set[*]}${set[*]:+ }${1#build/}"
    name[$slot]=${name[$slot]/release\//}
    if [[ -n $in_memory && $program == build/[at]san/* ]]; then base=$in_memory; fi
    if [ "$jobs" -eq 1 ]; then pin=(); fi
    start[$slot]=$SECONDS
    (
        home=$base/run$slot
        rm -rf "$home"
        mkdir -p "$home/tmp"
        export CMOCKA_MESSAGE_OUTPUT=TAP INFERSCALE_HOME="$home/store" TMPDIR="$home/tmp"
        export ASAN_OPTIONS="detect_leaks=1:detect_stack_use_after_return=1:${ASAN_OPTIONS:-}"
        export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
        export LSAN_OPTIONS="suppressions=$PWD/tests/support/lsan.supp:print_suppressions=0:${LSAN_OPTIONS:-}"
        export TSAN_OPTIONS="suppressions=$PWD/tests/support/tsan.supp:${TSAN_OPTIONS:-}"
        case $program in build/*/*) INFERSCALE_PLUGINS=$PWD/$(echo "$program" | cut -d/ -f1-2); export INFERSCALE_PLUGINS ;; esac
        exec env "${set[@]}" "${pin[@]}" timeout -k 10 "$limit" "$@"
    ) >"$scratch/out$slot" 2>&1 </dev/null &
    child[$slot]=$! # in the background, so that an interrupt ends it
}

# Waits for whichever program ends first, reports it, and sets `slot` to what it leaves free.
finish_one() {
    local pid rc=0 ok bad skip missing note='' out
    wait -n -p pid "${child[@]}" || rc=$?
    if [ -z "${pid-}" ]; then # bash has no child to name where one died by a signal and was reaped already; its status it still knows
        for pid in "${child[@]}"; do if ! kill -0 "$pid" 2>/dev/null; then break; fi; done
        rc=0
        wait "$pid" || rc=$?
    fi
    for slot in "${!child[@]}"; do if [ "${child[$slot]}" = "$pid" ]; then break; fi; done
    unset "child[$slot]"
    out=$scratch/out$slot
    read -r ok bad skip missing < <(count <"$out")
    if [ "$rc" -eq 124 ] || [ "$rc" -eq 137 ]; then note=" (stopped after ${limit} s)"; fi
    bad=$((bad + missing))
    # A program that failed without a failing case (a crash, a leak, bad usage), or that ran nothing, is one failure.
    if [ "$bad" -eq 0 ] && { [ "$rc" -ne 0 ] || [ $((ok + skip)) -eq 0 ]; }; then
        bad=1
        note="$note (exit status $rc, $ok cases)"
    fi
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
    if [ "$bad" -gt 0 ]; then
        sed 's/^/    /' "$out" | tail -n 200
        echo "FAIL  ${name[$slot]}: $ok passed, $bad failed$note"
    else
        echo "ok    ${name[$slot]}: $ok passed$([ "$skip" -eq 0 ] || echo ", $skip skipped"), $((SECONDS - start[$slot])) s"
    fi
}

free=()
for ((slot = jobs - 1; slot >= 0; slot--)); do free+=("$slot"); done
for item in "$@"; do
    if [ -n "${TEST_ONLY:-}" ] && ! echo "$item" | grep -qE "$TEST_ONLY"; then continue; fi
    if [ ${#free[@]} -eq 0 ]; then
        finish_one
        free=("$slot")
    fi
    slot=${free[-1]}
    unset 'free[-1]'
    # shellcheck disable=SC2086 # the item is a command line of plain words
    begin "$slot" $item
done
while [ ${#child[@]} -gt 0 ]; do finish_one; done
if [ $((passed + failed)) -eq 0 ]; then echo "no test ran: build them with 'make tests', or check TEST_ONLY"; fi
if [ "$skipped" -gt 0 ]; then
    echo "$passed passed, $failed failed, $skipped skipped"
else
    echo "$passed passed, $failed failed"
fi
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
