#!/usr/bin/env python3
"""embed.py FILE...: a C file on stdout that holds these files (src/serve/embedded.h), so that the program serves them wherever it lies."""
import mimetypes
import os
import sys

TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
         ".json": "application/json", ".svg": "image/svg+xml", ".txt": "text/plain; charset=utf-8"}


def main():
    rows = []
    print('/* Made by scripts/embed.py. */\n#include "serve/embedded.h"\n')
    for number, path in enumerate(sys.argv[1:]):
        name = os.path.basename(path)
        data = open(path, "rb").read()
        kind = TYPES.get(os.path.splitext(name)[1]) or mimetypes.guess_type(name)[0] or "application/octet-stream"
        print("static const unsigned char file_%d[%d] = {" % (number, len(data) + 1))
        for at in range(0, len(data), 24):
            print("    " + "".join("%d," % b for b in data[at:at + 24]))
        print("    0\n};\n")
        rows.append('    { "%s", "%s", file_%d, %d },' % (name, kind, number, len(data)))
    print("const is_embedded is_embedded_files[] = {\n%s\n    { 0 },\n};" % "\n".join(rows))


if __name__ == "__main__":
    main()
