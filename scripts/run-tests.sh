#!/usr/bin/env bash
# run-tests.sh PROGRAM[ ARG]... - runs each program (one quoted word: "program arg arg", or "VAR=VALUE program"), each with a time limit and a
# folder of its own, and counts single cases from TAP lines (cmocka writes them too). Prints one line a program, the whole output of those
# that fail, and last exactly "N passed, N failed" (", N skipped" where there are some). Exit: 0 = all passed and some ran.
#
# Environment: TEST_TIMEOUT seconds a program (default 1500: what a busy machine may need), TEST_ONLY = a regular expression that programs must match.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

readonly limit=${TEST_TIMEOUT:-1500}
passed=0 failed=0 skipped=0
scratch=$(mktemp -d)
child=
trap 'if [ -n "$child" ]; then kill "$child" 2>/dev/null; fi; rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

# TAP on stdin -> "ok notok skip missing" ; a plan ("1..N") that was not carried out makes the rest missing.
count() {
    awk '
        /^1\.\.[0-9]+/ { split($1, a, "."); plan += a[3] }
        /^(not )?ok [0-9]+.*# SKIP/ { skip++; next }
        /^ok [0-9]+/ { ok++ }
        /^not ok [0-9]+/ { bad++ }
        END { missing = plan - ok - bad - skip; print ok + 0, bad + 0, skip + 0, (missing > 0 ? missing : 0) }'
}

run_one() { # PROGRAM ARG...
    local set=()
    while [[ $1 == *=* ]]; do set+=("$1"); shift; done
    local program=$1 name="${set[*]}${set[*]:+ }${1#build/}" home="$scratch/run" out="$scratch/out" rc=0 start=$SECONDS ok bad skip missing note=
    name=${name/release\//}
    rm -rf "$home"
    mkdir -p "$home/tmp"
    (
        export CMOCKA_MESSAGE_OUTPUT=TAP INFERSCALE_HOME="$home/store" TMPDIR="$home/tmp"
        export ASAN_OPTIONS="detect_leaks=1:detect_stack_use_after_return=1:${ASAN_OPTIONS:-}"
        export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
        export LSAN_OPTIONS="suppressions=$PWD/tests/support/lsan.supp:print_suppressions=0:${LSAN_OPTIONS:-}"
        export TSAN_OPTIONS="suppressions=$PWD/tests/support/tsan.supp:${TSAN_OPTIONS:-}"
        case $program in build/*/*) INFERSCALE_PLUGINS=$PWD/$(echo "$program" | cut -d/ -f1-2); export INFERSCALE_PLUGINS ;; esac
        exec env "${set[@]}" timeout -k 10 "$limit" "$@"
    ) >"$out" 2>&1 </dev/null &
    child=$! # in the background, so that an interrupt ends it
    wait "$child" || rc=$?
    child=
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
        echo "FAIL  $name: $ok passed, $bad failed$note"
    else
        echo "ok    $name: $ok passed$([ "$skip" -eq 0 ] || echo ", $skip skipped"), $((SECONDS - start)) s"
    fi
}

for item in "$@"; do
    if [ -n "${TEST_ONLY:-}" ] && ! echo "$item" | grep -qE "$TEST_ONLY"; then continue; fi
    # shellcheck disable=SC2086 # the item is a command line of plain words
    run_one $item
done
if [ $((passed + failed)) -eq 0 ]; then echo "no test ran: build them with 'make tests', or check TEST_ONLY"; fi
if [ "$skipped" -gt 0 ]; then
    echo "$passed passed, $failed failed, $skipped skipped"
else
    echo "$passed passed, $failed failed"
fi
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
