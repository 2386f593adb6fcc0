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

check "passes" gives 0 "2 passed, 0 failed" good
check "a failing case" gives 1 "3 passed, 1 failed" good bad
check "skipped cases are counted apart" gives 0 "1 passed, 0 failed, 1 skipped" skips
check "plan at the end, several groups" gives 0 "5 passed, 0 failed" plan-last two-groups
check "cases that did not run are failures" gives 1 "1 passed, 4 failed" stops
check "a crash after the last case" gives 1 "2 passed, 1 failed" crashes
check "a program without cases" gives 1 "0 passed, 1 failed" nothing
check "no program at all" gives 1 "0 passed, 0 failed"
check "a program with arguments, each in its own folder" gives 0 "3 passed, 0 failed" "argument x" home home
TEST_TIMEOUT=1
check "a program that hangs" gives 1 "0 passed, 1 failed" hangs
finish
