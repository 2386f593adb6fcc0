#!/usr/bin/env bash
# check-static.sh CPPFLAGS... - static analysers, those that are installed. `make check-static` calls it.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
rc=0
ran=0
have() { command -v "$1" >/dev/null 2>&1 || { echo "($1 is not installed: apt-get install $1)"; return 1; }; }

flags=()
for f in "$@"; do case $f in -MMD | -MP) ;; *) flags+=("$f") ;; esac; done
mapfile -t sources < <(find src fuzz examples -name '*.c' | sort)
mapfile -t scripts < <(find scripts tests .ci -name '*.sh' -o -path .ci/run | sort)

if have shellcheck; then
    ran=1
    shellcheck -S warning -x "${scripts[@]}" || rc=1
fi
if have cppcheck; then
    ran=1
    cppcheck --quiet --enable=warning,portability --inline-suppr --error-exitcode=1 --std=c11 -Iinclude -Isrc \
        --suppress=missingIncludeSystem --suppress=normalCheckLevelMaxBranches "${sources[@]}" || rc=1
fi
if have clang-tidy; then
    ran=1
    checks='-*,clang-analyzer-*,bugprone-*,-clang-analyzer-security.insecureAPI.DeprecatedOrUnsafeBufferHandling'
    for c in easily-swappable-parameters narrowing-conversions reserved-identifier assignment-in-if-condition \
        implicit-widening-of-multiplication-result macro-parentheses; do checks+=",-bugprone-$c"; done
    clang-tidy --quiet --warnings-as-errors='*' --checks="$checks" \
        "${sources[@]}" -- -std=c11 -D_GNU_SOURCE "${flags[@]}" 2>/dev/null || rc=1
fi
[ "$ran" -eq 1 ] || { echo "no analyser is installed"; exit 1; }
exit $rc
