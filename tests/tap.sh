# shellcheck shell=bash
# tap.sh - sourced by shell tests: `check NAME COMMAND...` runs it and prints a TAP line; `finish` ends with the plan.
tap_n=0
tap_bad=0
tap_scratch=$(mktemp -d)
trap 'rm -rf "$tap_scratch"' EXIT

check() {
    local name=$1
    shift
    tap_n=$((tap_n + 1))
    if "$@" >"$tap_scratch/tap.out" 2>&1; then
        echo "ok $tap_n - $name"
    else
        sed 's/^/# /' "$tap_scratch/tap.out" | tail -n 40
        echo "not ok $tap_n - $name"
        tap_bad=1
    fi
}

finish() {
    echo "1..$tap_n"
    exit $tap_bad
}
