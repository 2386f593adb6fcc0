#!/usr/bin/env python3
"""Reads the #includes under src/ and fails on a wrong arrow (docs/design.md: a lower room never includes a higher one).
TAP on stdout. The second case plants wrong arrows in a copy and must find each."""
import os
import re
import shutil
import sys
import tempfile

# room: the rooms whose headers it may include besides its own. The plug-ins and the tool carry only what is below the engine.
ROOMS = {
    "base": [],
    "kv": ["base"],
    "bank": ["base"],
    "engine": ["base", "kv"],
    "embed": ["base", "kv", "bank", "engine"],
    "recall": ["base", "kv", "bank", "engine", "embed"],
    "plan": ["base", "kv", "bank", "engine", "embed"],
    "encode": ["base", "kv", "bank", "engine", "embed", "recall", "plan"],
    "api": ["base", "kv", "bank", "engine", "embed", "recall", "plan", "encode"],
    "exchange": ["base"],
    "eval": ["base", "kv", "bank", "engine", "embed", "recall", "plan", "encode", "api"],
    "serve": ["base", "kv", "bank", "engine", "embed", "recall", "plan", "encode", "api", "eval", "exchange"],
    "cli": ["base", "kv", "bank", "engine", "embed", "recall", "plan", "encode", "api", "eval", "exchange", "serve"],
    "engine/llama": ["base", "kv", "engine"],
    "engine/mock": ["base", "kv", "engine"],
    "engine/vllm": ["base", "kv", "engine"],
    "embed/http": ["base", "kv", "engine"],
    "tools": ["base"],
}
LLAMA = re.compile(r"^(llama|ggml|gguf)[\w.-]*\.h$")
LLAMA_ROOMS = ("engine/llama", "tools")
NOT_LLAMA = ("src/tools/safetensors.c", "src/tools/safetensors.h")  # linked by its fuzz target without libllama
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
# Who else may use a library, by header: its one room (and the command line for JSON).
ONLY = {"sqlite3.h": ("bank", "cli"), "curl/curl.h": ("embed/http", "engine/vllm", "serve", "eval"),
        "zlib.h": ("engine/vllm",), "microhttpd.h": ("serve",),
        "libstemmer.h": ("recall", "eval"), "sodium.h": ("base",),
        "xxhash.h": ("base",)}


def room_of(path):
    """The room of a path below src/, e.g. "engine/llama/a.c" -> "engine/llama"; None for files beside the rooms."""
    parts = path.split("/")
    for n in (2, 1):
        if len(parts) > n and "/".join(parts[:n]) in ROOMS:
            return "/".join(parts[:n])
    return None


def faults(root):
    found = []
    for folder, _, names in sorted(os.walk(os.path.join(root, "src"))):
        for name in sorted(names):
            if name.endswith((".c", ".h", ".cpp")):
                full = os.path.join(folder, name)
                found += file_faults(root, os.path.relpath(full, root), full)
    return found


def file_faults(root, path, full):
    room = room_of(path[len("src/"):])
    found = []
    if room is None:
        return ["%s: not in a room (%s)" % (path, ", ".join(sorted(ROOMS)))]
    with open(full, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            m = INCLUDE.match(line)
            if m:
                why = wrong(root, path, room, m.group(1), m.group(2))
                if why:
                    found.append("%s:%d: %s" % (path, number, why))
    return found


def wrong(root, path, room, mark, target):
    """Why this include is not allowed, or None."""
    if LLAMA.match(os.path.basename(target)):
        if room not in LLAMA_ROOMS or path in NOT_LLAMA:
            return "%s is only for %s" % (target, " and ".join("src/" + r for r in LLAMA_ROOMS))
        return None
    if target in ONLY and room not in ONLY[target]:
        return "%s is only for src/%s" % (target, ", src/".join(ONLY[target]))
    if mark == "<" or target == "inferscale.h":
        return None
    if not os.path.exists(os.path.join(root, "src", target)):
        if "/" not in target and os.path.exists(os.path.join(root, os.path.dirname(path), target)):
            return None  # beside it, in its own room
        return '"%s" is not there' % target
    other = room_of(target)
    if other is None or (other != room and other not in ROOMS[room]):
        return "room %s must not include %s (it may: %s)" % (room, target, ", ".join(ROOMS[room]) or "nothing")
    return None


PLANTED = [
    ("src/base/buf.c", '#include "bank/bank.h"'),
    ("src/kv/geometry.h", '#include "engine/engine.h"'),
    ("src/kv/geometry.h", '#include "bank/bank.h"'),
    ("src/plan/plan.h", '  #  include "encode/encode.h"'),
    ("src/recall/recall.h", '#include "plan/plan.h"'),
    ("src/engine/engine.h", '#include "embed/embed.h"'),
    ("src/engine/llama/planted.c", '#include "bank/bank.h"'),
    ("src/engine/mock/planted.c", '#include "llama.h"'),
    ("src/api/planted.c", "#include <llama.h>"),
    ("src/cli/planted.c", '#include "gguf.h"'),
    ("src/tools/safetensors.c", "#include <ggml-cpu.h>"),
    ("src/eval/planted.c", '#include "cli/cli.h"'),
    ("src/api/planted.c", "#include <sqlite3.h>"),
    ("src/newroom/planted.c", "#include <stdio.h>"),
    ("src/engine/llama/planted.c", '#include "../../bank/bank.h"'),
]


def missed(root):
    """The planted faults that are not found, each planted alone in a copy of src/."""
    out = []
    with tempfile.TemporaryDirectory() as tmp:
        shutil.copytree(os.path.join(root, "src"), os.path.join(tmp, "src"))
        for path, line in PLANTED:
            full = os.path.join(tmp, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            before = open(full, encoding="utf-8").read() if os.path.exists(full) else None
            with open(full, "w", encoding="utf-8") as f:
                f.write((before or "") + "\n" + line + "\n")
            if not any(x.startswith(path) for x in file_faults(tmp, path, full)):
                out.append("%s: %s" % (path, line))
            if before is None:
                os.remove(full)
            else:
                open(full, "w", encoding="utf-8").write(before)
    return out


def main():
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    failed = 0
    print("1..2")
    for number, (name, found) in enumerate([("no wrong arrow between rooms", faults(root)),
                                            ("every planted wrong arrow is found", missed(root))], 1):
        for line in found:
            print("# " + line)
        print("%s %d - %s" % ("not ok" if found else "ok", number, name))
        failed |= bool(found)
    return failed


if __name__ == "__main__":
    sys.exit(main())
