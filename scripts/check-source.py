#!/usr/bin/env python3
"""Rules of the source that a compiler does not check: banned functions, form, nothing private in the files. TAP on stdout;
each rule is first tried on text that breaks it and on text that does not."""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)

NEVER = ["strcpy", "strcat", "sprintf", "vsprintf", "gets", "system", "popen", "tmpnam", "mktemp", "strtok", "alloca", "atoi", "atol"]
LIBRARY = NEVER + ["exit", "_exit", "_Exit", "quick_exit", "abort", "assert", "printf", "vprintf", "puts", "putchar", "perror",
                   "err", "errx", "warn", "warnx", "getc", "raise", "signal"]
ALLOC = ["malloc", "calloc", "realloc", "reallocarray", "strdup", "strndup", "asprintf", "vasprintf", "aligned_alloc",
         "posix_memalign"]
SORT = ["qsort", "qsort_r", "bsearch"]  # undefined for an empty list that is a null pointer: base/sort.h
STREAMS = re.compile(r"\b(stderr|stdout)\b")
LIMITS = {True: (150, 600), False: (200, 1000)}  # columns, lines: of code, of tests; aim at 128 columns
SECRETS = [re.compile(p) for p in (
    r"/" + r"(work|root)/", r"/tmp/" + r"(is-dep|[a-z]/)", r"/home/[a-z]+/", r"pypi" + r"\.org", r"python" + r"hosted",
    r"(deb|security|snapshot)\." + r"debian\.org", r"registry\." + r"npmjs", r"BEGIN [A-Z ]*PRIVATE" + r" KEY",
    r"\bAKIA" + r"[0-9A-Z]{16}\b", r"\b(ghp|gho|hf|sk)_" + r"[A-Za-z0-9]{20,}")]
LEFT_OVERS = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")


def code_of(text):
    """The text without comments and the inside of strings, line numbers kept."""
    return COMMENT_OR_STRING.sub(lambda m: " " + "\n" * m.group(0).count("\n"), text)


def calls(text, names):
    pattern = re.compile(r"(?<![\w.>])(%s)\s*\(" % "|".join(map(re.escape, names)))
    code = code_of(text)
    return [(code.count("\n", 0, m.start()) + 1, m.group(1) + "()") for m in pattern.finditer(code)]


def streams(text):
    code = code_of(text)
    return [(code.count("\n", 0, m.start()) + 1, m.group(1)) for m in STREAMS.finditer(code)]


def banned(path, text):
    """In the library rooms nothing prints, ends the process or allocates past base/mem.h; elsewhere only the dangerous ones.
    Lists are sorted and searched by base/sort.h everywhere."""
    if not path.startswith("src/") or not path.endswith((".c", ".h", ".cpp")):
        return []
    found = [] if path == "src/base/sort.h" else calls(text, SORT)
    if path.startswith(("src/cli/", "src/tools/")) and path != "src/tools/safetensors.c":
        return found + calls(text, NEVER)
    found += calls(text, LIBRARY) + streams(text)
    if not path.startswith("src/base/mem."):
        found += calls(text, ALLOC)
    return found


def form(path, text):
    found = []
    if not path.endswith((".c", ".h", ".cpp", ".py", ".sh")):
        return found
    lines = text.split("\n")
    max_columns, max_lines = LIMITS[not path.startswith("tests/")]
    if path == "include/inferscale.h":  # the manual: one file on purpose
        max_lines = 1000
    for number, line in enumerate(lines, 1):
        if len(line) > max_columns:
            found.append((number, "%d columns, at most %d" % (len(line), max_columns)))
        if "\t" in line:
            found.append((number, "a tab"))
        if line != line.rstrip():
            found.append((number, "white space at the end"))
        if LEFT_OVERS.search(line):
            found.append((number, "a left-over mark"))
    if len(lines) - 1 > max_lines:
        found.append((len(lines), "%d lines, at most %d" % (len(lines) - 1, max_lines)))
    return found


def private(path, text):
    return [(text.count("\n", 0, m.start()) + 1, "'%s' belongs in no file of ours" % m.group(0))
            for p in SECRETS for m in p.finditer(text)]


STRING = re.compile(r'"(?:\\.|[^"\\\n])*"')
# Sentences that a C program alone can get: the command line and the server never make these calls, or never with NULL.
OF_C_ALONE = ("src/base/words.h", "src/api/kv_api.c", "src/api/kv_live.c", "src/api/kv_live_load.c", "src/api/kv_live_match.c",
              "src/api/kv_live_write.c", "src/api/ticket_api.c")
COMMAND = re.compile(r"\binferscale (ask|backup|encode|fsck|gc|ls|rebuild|restore)\b"
                     r"|--(ctx|ram|codec|upstream|read-only)\b")
IS_NULL = ("the chat is NULL; open one with inferscale_chat_open", "the store handle is NULL; open one with inferscale_open")


def sentences(path, text):
    """A client of the server knows no function of C, and a C program types no commands: a sentence
    takes its words from base/words.h. Names of metrics are no functions. Commands are looked for in
    the rooms whose sentences every reader gets."""
    if not path.startswith("src/") or not path.endswith((".c", ".h")) or path in OF_C_ALONE:
        return []
    text = re.sub(r'/\*.*?\*/', lambda m: "\n" * m.group(0).count("\n"), text, flags=re.S)
    why = "%s names a C function; is_words() names the step for whoever reads"
    typed = "%s names a command; is_words() names the step for whoever reads"
    found = [(text.count("\n", 0, m.start()) + 1, typed % m.group(0)[:80])
             for m in STRING.finditer(text)
             if path.startswith(("src/kv/", "src/engine/")) and COMMAND.search(m.group(0))]
    return found + [(text.count("\n", 0, m.start()) + 1, why % m.group(0)[:80])
                    for m in STRING.finditer(text)
                    if re.search(r"inferscale_[a-z]", m.group(0)) and " " in m.group(0)
                    and not m.group(0)[1:-1].startswith(IS_NULL)
                    and not re.search(r"inferscale_\w*(_total|_seconds|_bytes)\b", m.group(0))]


RULES = [("banned functions", banned), ("sentences name no C function", sentences), ("form of the source", form),
         ("no private path, host or key", private)]
# rule, path, text, whether it must be found
TRIED = [
    (banned, "src/kv/a.c", "void f(void) { exit(1); }", True),
    (banned, "src/kv/a.c", "void f(void) { abort (); }", True),
    (banned, "src/kv/a.c", "fprintf(stderr, \"x\");", True),
    (banned, "src/kv/a.c", "p = malloc(3);", True),
    (banned, "src/base/mem.c", "p = malloc(3);", False),
    (banned, "src/engine/llama/a.c", "assert(x);", True),
    (banned, "src/cli/a.c", "strcpy(a, b);", True),
    (banned, "src/cli/a.c", "printf(\"x\");", False),
    (banned, "src/kv/a.c", "qsort(l, n, 4, by_name);", True), (banned, "src/cli/a.c", "p = bsearch(k, l, n, 4, by_name);", True),
    (banned, "src/base/sort.h", "if (n > 1) qsort(l, n, size, order);", False), (banned, "src/kv/a.c", "is_sort(l, n, 4, f);", False),
    (banned, "src/kv/a.c", "/* exit(1) */ f(\"abort()\"); is_malloc(3); snprintf(a, 1, b); x->exit(1); static_assert(1, \"\");", False),
    (banned, "src/kv/a.c", "// printf(\"%s\")\nchar c = '\"'; exit(0); char d = '\"';", True),
    (form, "a.c", "x" * 151, True), (form, "a.c", "x" * 150 + "\n", False), (form, "a.c", "\tx", True),
    (form, "a.c", "x\n" * 601, True), (form, "a.c", "x\n" * 600, False), (form, "a.c", "// TO" + "DO: later", True),
    (sentences, "src/a.c", 'f("call inferscale_ls");', True), (sentences, "src/a.c", 'f("look at inferscale_x_total in /metrics");', False),
    (sentences, "src/a.c", 'dlsym(h, "inferscale_plugin"); /* "by inferscale_ls" */', False),
    (sentences, "src/kv/a.c", 'f("run inferscale encode");', True),
    (sentences, "src/engine/vllm/a.c", 'f("give --ctx");', True),
    (sentences, "src/kv/a.c", 'f("inferscale segment 2"); /* inferscale encode */', False),
    (sentences, "src/base/words.h", 'X(LIST, "call inferscale_ls")', False),
    (private, "a.md", "see /ro" + "ot/x", True), (private, "a.md", "/wo" + "rk/main", True), (private, "a.md", "a/b work/x", False),
]


def files():
    """Tracked and new files, as git sees them; without git (an unpacked archive) all but what is built."""
    try:
        out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True).stdout
        names = out.decode().split("\n")
    except (OSError, subprocess.CalledProcessError):
        names = [os.path.relpath(os.path.join(d, n), ROOT) for d, _, ns in os.walk(ROOT) for n in ns]
    for name in sorted(set(names)):
        full = os.path.join(ROOT, name)
        if not name or name.startswith(("build/", ".git/", "fuzz/corpus/")) or not os.path.isfile(full):
            continue
        try:
            yield name, open(full, encoding="utf-8").read()
        except UnicodeDecodeError:
            continue


def main():
    everything = list(files())
    failed = False
    print("1..%d" % (len(RULES) + 1))
    wrong = ["%s(%s) on %r" % (r.__name__, p, t[:60]) for r, p, t, must in TRIED if bool(r(p, t)) != must]
    for number, (name, found) in enumerate(
            [("the rules find what breaks them", wrong)] +
            [(name, ["%s:%d: %s" % (p, n, why) for p, t in everything for n, why in rule(p, t)]) for name, rule in RULES], 1):
        for line in found:
            print("# " + line)
        print("%s %d - %s" % ("not ok" if found else "ok", number, name))
        failed |= bool(found)
    return failed


if __name__ == "__main__":
    sys.exit(main())
