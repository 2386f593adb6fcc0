#!/usr/bin/env bash
# The example of the header, as a stranger uses it: installed, found by pkg-config, built, run on the real model. And what is
# installed stands on its own: it works after the folder is moved, and holds no path of the machine that built it.
set -u
cd "$(dirname "$0")/.." || exit 2
# shellcheck source=tests/tap.sh
. tests/tap.sh
unset INFERSCALE_PLUGINS MAKEFLAGS MFLAGS MAKELEVEL
# On one CPU, and so with one thread: threads that wait for one another by spinning crawl on a busy machine.
taskset -cp "$(taskset -cp $$ | sed 's/.*: *//' | grep -oE '^[0-9]+')" $$ >/dev/null 2>&1 || true
first=$tap_scratch/first prefix=$tap_scratch/moved/prefix

same_as_header() {
    awk '/^ \*   #include <inferscale.h>/ { on = 1 } /^ \* Link with/ { exit } on { sub(/^ \*(   )?/, ""); print }' \
        include/inferscale.h | sed '$d' | diff - examples/remember.c
}

installs() {
    make -s install PREFIX="$first" && make -s install PREFIX=/usr/local DESTDIR="$tap_scratch/staged" &&
        diff <(cd "$first" && find . | sort) <(cd "$tap_scratch/staged/usr/local" && find . | sort) &&
        [ "$(find "$tap_scratch/staged" -mindepth 1 -maxdepth 1 | wc -l)" -eq 1 ] && grep -q '^prefix=/usr/local$' \
        "$tap_scratch/staged/usr/local/lib/pkgconfig/inferscale.pc"
}

pkg() { PKG_CONFIG_PATH=$first/lib/pkgconfig pkg-config "$@" inferscale; }

# The installed files with the sections that say where they were built.
no_machine_path() {
    local found
    found=$(grep -rlF -e "$PWD" -e "$HOME/.cache" -e "${INFERSCALE_CACHE:-$PWD}" "$first" --include='*' --exclude='*libllama*' \
        --exclude='*libggml*')
    [ -z "$found" ] || { echo "$found"; return 1; }
}

# shellcheck disable=SC2046 # pkg-config prints words
builds_shared() {
    [ "$(pkg --modversion)" = "$("$first/bin/inferscale" --version | grep -oE '[0-9]+\.[0-9]+\.[0-9]+' | head -n 1)" ] &&
        gcc -std=c11 -Wall -Werror $(pkg --cflags) examples/remember.c -o "$tap_scratch/remember" $(pkg --libs)
}

# shellcheck disable=SC2046
builds_static() {
    gcc -std=c11 $(pkg --cflags) examples/remember.c -o "$tap_scratch/remember-static" -Wl,-Bstatic $(pkg --libs) -Wl,-Bdynamic \
        $(pkg --static --libs | sed 's/-linferscale//') && ! ldd "$tap_scratch/remember-static" | grep inferscale
}

# Without a folder it says so, and an error is its exit code.
refuses() {
    local out rc
    out=$(LD_LIBRARY_PATH=$first/lib "$tap_scratch/remember" 2>&1)
    rc=$?
    [ $rc -eq 2 ] && grep -q '^Usage: .*FOLDER' <<<"$out" && ! LD_LIBRARY_PATH=$first/lib "$tap_scratch/remember" /dev/null/store 2>/dev/null
}

# The programs' own folder in front of all others: nothing in it is taken for install. And where things went is said last.
installs_by_path() {
    PATH=$PWD/build/release:$PATH make -s install PREFIX="$tap_scratch/third" >"$tap_scratch/said" 2>&1 ||
        { cat "$tap_scratch/said"; return 1; }
    tail -n 1 "$tap_scratch/said" | grep -q '^Installed\.' &&
        [ -f "$tap_scratch/third/share/doc/inferscale/docs/design.md" ]
}

builds_cxx() {
    printf '#include <inferscale.h>\nint main() { return inferscale_version()[0] != 48; }\n' >"$tap_scratch/a.cc"
    # shellcheck disable=SC2046
    g++ -std=c++11 -Wall -Werror $(pkg --cflags) "$tap_scratch/a.cc" -o "$tap_scratch/a" $(pkg --libs) &&
        LD_LIBRARY_PATH=$first/lib "$tap_scratch/a"
}

# Runs the example program twice on one store: it answers from injected facts.
answers() { # PROGRAM LIBRARY_FOLDER
    local out
    for _ in 1 2; do
        out=$(LD_LIBRARY_PATH=$2 "$1" "$tap_scratch/store-$(basename "$1")" 2>&1)
        echo "$out"
        echo "$out" | grep -qE '^\([1-9][0-9]* tokens computed, [1-9][0-9]* injected\)$' || return 1
    done
    echo "$out" | grep -qi peanut
}

moved_works() {
    mkdir -p "$(dirname "$prefix")" && mv "$first" "$prefix" || return 1
    answers "$tap_scratch/remember" "$prefix/lib" && HOME=$tap_scratch "$prefix/bin/inferscale" doctor --json \
        --model "$(models)/smollm2-135m-instruct-q4_0.gguf" --embedder "$(models)/all-minilm-l6-v2-f16.gguf" \
        --home "$tap_scratch/doctor"
}

models() { echo "${INFERSCALE_MODELS:-${INFERSCALE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/inferscale}/models}"; }

manual() {
    head -n 3 "$prefix/share/man/man1/inferscale.1" | grep -q '^\.TH INFERSCALE 1' &&
        bash -n "$prefix/share/bash-completion/completions/inferscale" &&
        bash -c '. "$1" && complete -p inferscale' _ "$prefix/share/bash-completion/completions/inferscale" &&
        head -n 1 "$prefix/share/zsh/site-functions/_inferscale" | grep -q '^#compdef inferscale$' &&
        grep -q '^complete -c inferscale' "$prefix/share/fish/vendor_completions.d/inferscale.fish"
}

check "examples/remember.c is the example of the header" same_as_header
check "make install, with and without DESTDIR" installs
check "no path of this machine in what is installed" no_machine_path
check "the example builds with pkg-config" builds_shared
check "the example builds with the static library" builds_static
check "the header is C++ too" builds_cxx
check "the example refuses to guess a folder" refuses
check "make install with the programs' folder in PATH" installs_by_path
check "the example answers from memory" answers "$tap_scratch/remember" "$first/lib"
export INFERSCALE_PLUGINS=$first/lib/inferscale
check "the static example answers from memory" answers "$tap_scratch/remember-static" ""
unset INFERSCALE_PLUGINS
check "the installed folder can be moved" moved_works
check "man page and completion" manual
finish
