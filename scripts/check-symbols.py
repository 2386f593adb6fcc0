#!/usr/bin/env python3
"""The library exports exactly what its header declares and scripts/symbols.txt lists; a plug-in exports its one entry. TAP.
`--update` rewrites scripts/symbols.txt from the header: do that when a function is added on purpose, never to make a test pass."""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIST = os.path.join(ROOT, "scripts", "symbols.txt")
BUILD = os.path.join(ROOT, "build", "release")
VERSION = "INFERSCALE_0"


def declared():
    with open(os.path.join(ROOT, "include", "inferscale.h"), encoding="utf-8") as f:
        text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", f.read(), flags=re.S)
    text = re.sub(r"^\s*#.*?$", " ", text, flags=re.M)
    return sorted(re.findall(r"INFERSCALE_API[^;(]*?\b(inferscale_\w+)\s*\(", text))


def listed():
    with open(LIST, encoding="utf-8") as f:
        return sorted(line.strip() for line in f if line.strip() and not line.startswith("#"))


def exported(path):
    """Names that others can link to, the version's own name left out."""
    out = subprocess.run(["nm", "-D", "--defined-only", "--extern-only", path], capture_output=True, text=True, check=True).stdout
    names = [line.split()[-1].split("@")[0] for line in out.splitlines()]
    return sorted(n for n in names if n != VERSION)


def needed(path):
    out = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.*?)\]", out), re.findall(r"\(SONAME\).*\[(.*?)\]", out)


def differences(name_a, a, name_b, b):
    return ["%s: in %s only" % (x, name_a) for x in sorted(set(a) - set(b))] + \
           ["%s: in %s only" % (x, name_b) for x in sorted(set(b) - set(a))]


def library_needs():
    """libinferscale stands on libc, SQLite, libsodium, xxhash and libstemmer alone (design.md, The house)."""
    allowed = ("libsqlite3.so", "libsodium.so", "libxxhash.so", "libstemmer.so", "libc.so", "libm.so", "libpthread.so", "libdl.so",
               "ld-linux")
    libs, soname = needed(os.path.join(BUILD, "libinferscale.so.0"))
    found = ["needs %s" % x for x in libs if not x.startswith(allowed)]
    return found + ([] if soname == ["libinferscale.so.0"] else ["SONAME is %s" % soname])


def plugins():
    found = []
    names = [n for n in sorted(os.listdir(BUILD)) if re.match(r"libinferscale-.*\.so$", n)]
    for name in names:
        got = exported(os.path.join(BUILD, name))
        if got != ["inferscale_plugin"]:
            found.append("%s exports %s" % (name, " ".join(got)))
    return found if names else ["no plug-in is built"]


def main():
    if sys.argv[1:] == ["--update"]:
        with open(LIST, "w", encoding="utf-8") as f:
            f.write("# What libinferscale.so exports; checked by scripts/check-symbols.py.\n" + "\n".join(declared()) + "\n")
        return 0
    checks = [
        ("the header declares what symbols.txt lists", lambda: differences("the header", declared(), "symbols.txt", listed())),
        ("libinferscale.so exports what symbols.txt lists",
         lambda: differences("libinferscale.so", exported(os.path.join(BUILD, "libinferscale.so.0")), "symbols.txt", listed())),
        ("libinferscale.so needs only its five libraries", library_needs),
        ("a plug-in exports inferscale_plugin alone", plugins),
    ]
    failed = False
    print("1..%d" % len(checks))
    for number, (name, check) in enumerate(checks, 1):
        try:
            found = check()
        except (OSError, subprocess.CalledProcessError) as e:
            found = ["%s; build first: make" % e]
        for line in found:
            print("# " + line)
        print("%s %d - %s" % ("not ok" if found else "ok", number, name))
        failed |= bool(found)
    return failed


if __name__ == "__main__":
    sys.exit(main())
