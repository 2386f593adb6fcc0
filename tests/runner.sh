#!/usr/bin/env bash
# scripts/run-tests.sh counts what happened: failures of every kind are failures, and its last line is the sum.
set -u
cd "$(dirname "$0")/.." || exit 2
# shellcheck source=tests/tap.sh
. tests/tap.sh
unset TEST_ONLY
export TEST_TIMEOUT=20

# program NAME SHELL-TEXT
program() {
    printf '#!/bin/sh\n%s\n' "$2" >"$tap_scratch/$1"
    chmod +x "$tap_scratch/$1"
}

# gives EXIT LAST-LINE PROGRAM...
gives() {
    local want_rc=$1 want=$2 items=() p rc=0 out
    shift 2
    for p in "$@"; do items+=("$tap_scratch/$p"); done
    out=$(scripts/run-tests.sh "${items[@]}" 2>&1) || rc=$?
    echo "exit $rc: $out"
    [ "$rc" -eq "$want_rc" ] && [ "$(echo "$out" | tail -n 1)" = "$want" ]
}

program good 'printf "1..2\nseed 7\nok 1 - a\nok 2 - b\n"'
program bad 'printf "1..2\nok 1 - a\nnot ok 2 - b\n"; exit 1'
program skips 'printf "1..2\nok 1 - a\nnot ok 2 # SKIP b\n"'
program plan-last 'printf "ok 1 - a\nok 2 - b\n1..2\n"'
program two-groups 'printf "1..1\nok 1 - a\n1..2\nok 1 - b\nok 2 - c\n"'
program stops 'printf "1..5\nok 1 - a\n"; exit 0'
program crashes 'printf "1..2\nok 1 - a\nok 2 - b\n"; kill -SEGV $$'
program nothing 'exit 0'
program hangs 'echo 1..1; sleep 30'
program argument '[ "$1" = x ] && printf "1..1\nok 1 - a\n"'
program home 'printf "1..1\n"; [ -d "$TMPDIR" ] && [ ! -e "$INFERSCALE_HOME" ] && touch "$TMPDIR/x" && echo ok 1 - a'
# Each of two waits for the other; one has a CPU of its own; one is where the sanitizers' programs are.
for p in left:right right:left; do
    program "${p%:*}" "touch '$tap_scratch/${p%:*}.is'; for i in \$(seq 100); do if [ -e '$tap_scratch/${p#*:}.is' ]; then printf '1..1\nok 1 - a\n'; exit; fi; sleep 0.1; done"
done
program waits 'sleep 0.5; printf "1..1\nok 1 - a\n"'
program dies 'printf "1..1\nok 1 - a\n"; kill -KILL $$'
program alone "[ \$(nproc) -eq 1 ] && printf '1..1\nok 1 - a\n'"

side_by_side() {
    rm -f "$tap_scratch"/*.is
    TEST_JOBS=2 gives 0 "2 passed, 0 failed" left right
}

# It dies while others run and begin: the sum comes nevertheless.
crashes_beside_others() {
    TEST_JOBS=3 gives 1 "8 passed, 3 failed" waits crashes dies waits crashes waits
}

one_cpu() {
    local out
    out=$(TEST_JOBS=2 scripts/run-tests.sh "CPUS=1 $tap_scratch/alone" "CPUS=1 $tap_scratch/alone" 2>&1)
    echo "$out"
    [ "$(echo "$out" | tail -n 1)" = "2 passed, 0 failed" ]
}

an_interrupt_ends_all() { # two programs of 30 seconds each
    local pid
    TEST_JOBS=2 scripts/run-tests.sh "$tap_scratch/hangs" "$tap_scratch/hangs" &
    pid=$!
    sleep 1
    kill -TERM $pid
    wait $pid
    [ $? -eq 130 ] && [ $SECONDS -lt $((began + 25)) ]
}

check "passes" gives 0 "2 passed, 0 failed" good
check "a failing case" gives 1 "3 passed, 1 failed" good bad
check "skipped cases are counted apart" gives 0 "1 passed, 0 failed, 1 skipped" skips
check "plan at the end, several groups" gives 0 "5 passed, 0 failed" plan-last two-groups
check "cases that did not run are failures" gives 1 "1 passed, 4 failed" stops
check "a crash after the last case" gives 1 "2 passed, 1 failed" crashes
check "a program without cases" gives 1 "0 passed, 1 failed" nothing
check "no program at all" gives 1 "0 passed, 0 failed"
check "a program with arguments, each in its own folder" gives 0 "3 passed, 0 failed" "argument x" home home
check "two side by side" side_by_side
check "crashes beside others that run" crashes_beside_others
check "one CPU for a program that asks for it" one_cpu
began=$SECONDS
check "an interrupt ends all that run" an_interrupt_ends_all
TEST_TIMEOUT=1
check "a program that hangs" gives 1 "0 passed, 1 failed" hangs
finish
